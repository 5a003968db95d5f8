"""Servers that speak S3, each a process of its own on a free port."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from botocore.config import Config

from headrace.writer.clients.java_artifacts import cache_dir

KEY = "headrace-test"
SECRET = "a-secret-that-no-log-may-hold"
# The bundle that `make test-stores` builds.
MINIO = "minio-v0.0.0-20260212201848-7aac2a2c5b7c"
_URL = r"http://[\d.]+:\d+"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class ObjectServer:
    """A server that speaks S3."""

    url: str
    key: str = KEY
    secret: str = SECRET

    def bucket(self, name: str = "") -> str:
        """Make a bucket, by default one of its own. Returns its location."""
        name = name or f"lake-{uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def remove_bucket(self, location: str) -> None:
        """Remove a bucket with all that it holds."""
        for key in self.keys(location):
            self.client().delete_object(Bucket=location.removeprefix("s3://"), Key=key)
        self.client().delete_bucket(Bucket=location.removeprefix("s3://"))

    def client(self) -> object:
        style = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            config=style,
            region_name="us-east-1",
        )

    def keys(self, location: str) -> list[str]:
        """Keys below a location, relative to it."""
        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [entry["Key"].removeprefix(prefix) for page in pages for entry in page.get("Contents", [])]

    def download(self, location: str, into: Path) -> None:
        """Copy what lies below a location into a directory, for judges that read files."""
        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        for key in self.keys(location):
            target = into / key
            target.parent.mkdir(parents=True, exist_ok=True)
            self.client().download_file(bucket, f"{prefix}/{key}", str(target))


@contextmanager
def moto(directory: Path, host: str = "127.0.0.1") -> Iterator[ObjectServer]:
    """Run moto, which keeps its objects in memory. `host`: an address of this machine, where it listens."""
    log = directory / "moto.log"
    with run_server([sys.executable, str(Path(__file__).with_name("exclusive.py")), host], log, _URL) as url:
        yield ObjectServer(url)


@contextmanager
def minio(directory: Path) -> Iterator[ObjectServer]:
    """Run MinIO, which checks signatures and keeps its objects on disk. `make test-stores` builds it."""
    binary = program_path(MINIO, "minio")
    command = [str(binary), "server", "--address", f"127.0.0.1:{free_port()}", str(directory / "minio")]
    env = {**os.environ, "MINIO_ROOT_USER": KEY, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
    with run_server(command, directory / "minio.log", _URL, env) as url:
        yield ObjectServer(url)


@contextmanager
def s3rver(directory: Path) -> Iterator[ObjectServer]:
    """Run s3rver, which ignores If-None-Match: no table may lie on it."""
    program = program_path("s3rver-3.7.1", "node_modules/s3rver/bin/s3rver.js")
    port = free_port()
    command = ["node", str(program), "-a", "127.0.0.1", "-p", str(port), "-d", str(directory / "s3rver")]
    (directory / "s3rver").mkdir()
    with run_server(command, directory / "s3rver.log", str(port)):
        yield ObjectServer(f"http://127.0.0.1:{port}", "S3RVER", "S3RVER")


def program_path(bundle: str, name: str) -> Path:
    """Return a program that `make test-stores` has fetched. Fails where it has not."""
    program = cache_dir() / bundle / name
    if not program.exists():
        pytest.fail(f"{program} is not there: `make test-stores` fetches it.", pytrace=False)
    return program


def free_port() -> int:
    """Find a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def run_server(command: list[str], log: Path, ready: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server until the end of the block. Yields what its log says that matches `ready`."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        deadline = time.monotonic() + 60
        while (match := re.search(ready, log.read_text(errors="replace"))) is None:
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{command} is not ready after 60 s:\n{log.read_text()}"
            time.sleep(0.05)
        yield match[0]
    finally:
        process.kill()
        process.wait(10)
