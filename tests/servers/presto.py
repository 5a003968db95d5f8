"""Presto on loopback: coordinator and worker in one, with a Delta and a Hive catalog over files and an S3."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.servers import parts
from tests.servers.objects import ObjectServer
from tests.servers.statement import Coordinator
from tests.servers.trino import lines
from writer import artifacts
from writer.embedded.process import LOOPBACK, Process, free_ports, java_options

HEAP_MEGABYTES = 640
READY_WITHIN = timedelta(seconds=180)  # seen: 10 s
_OPENED = (
    "io lang lang.ref lang.reflect net nio security text util util.concurrent util.regex"  # below java.
)  # fmt: skip


@contextmanager
def presto(directory: Path, s3: ObjectServer | None = None) -> Iterator[Coordinator]:
    """Run Presto until the end of the block. Locations are `file:///<absolute path>` and, for Delta, `s3://…`."""
    home = parts.presto()
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    _configure(directory, home, url, s3)
    opened = [f"java.{package}" for package in _OPENED.split()]
    opened += ["javax.security.auth", "javax.security.auth.login", "jdk.internal.loader", "sun.nio.ch"]
    command = [
        artifacts.java(),
        *java_options(directory, heap_megabytes=HEAP_MEGABYTES),
        "-Djdk.attach.allowAttachSelf=true",
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in opened),
        "-Dnode.environment=test",
        "-Dnode.id=presto",
        f"-Dnode.internal-address={LOOPBACK}",
        f"-Dnode.bind-ip={LOOPBACK}",
        f"-Dnode.data-dir={directory}/data",
        f"-Dconfig={directory}/config.properties",
        f"-Dlog.levels-file={directory}/log.properties",
        "-cp",
        f"{home}/lib/*",
        "com.facebook.presto.server.PrestoServer",
    ]
    utf8 = {"LC_ALL": "C.UTF-8"}  # else it cannot open files whose names are not ASCII
    process = Process("presto", command, cwd=directory, log=directory / "presto.log", env=utf8)
    coordinator = Coordinator(url, "Presto")
    try:
        process.launch()
        process.wait_until(
            lambda: coordinator.answers("SELECT count(*) FROM delta.information_schema.tables"), within=READY_WITHIN
        )
        coordinator.ask("CREATE SCHEMA IF NOT EXISTS hive.lake")
        yield coordinator
    finally:
        process.stop(grace=timedelta(0))


def _configure(directory: Path, home: Path, url: str, s3: ObjectServer | None) -> None:
    for folder in ("data", "catalog", "metastore"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    config = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "discovery-server.enabled": "true",
        "http-server.http.port": url.rpartition(":")[2],
        "discovery.uri": url,
        "query.max-memory": "192MB",
        "query.max-memory-per-node": "192MB",
        "query.max-total-memory-per-node": "192MB",
        "memory.heap-headroom-per-node": "128MB",
        "plugin.dir": f"{home}/plugin",
        "catalog.config-dir": f"{directory}/catalog",
    }
    lines(directory / "config.properties", config)
    lines(directory / "log.properties", {"": "WARN"})
    shared = {"hive.metastore": "file", "hive.metastore.catalog.dir": f"file://{directory}/metastore"}
    if s3 is not None:
        shared |= {
            "hive.s3.endpoint": s3.url,
            "hive.s3.path-style-access": "true",
            "hive.s3.ssl.enabled": "false",
            "hive.s3.aws-access-key": s3.key,
            "hive.s3.aws-secret-key": s3.secret,
        }
    lines(directory / "catalog" / "delta.properties", {"connector.name": "delta", **shared})
    hive = {
        "connector.name": "hive-hadoop2",
        "hive.non-managed-table-writes-enabled": "true",
        "hive.parquet.use-column-names": "true",
        **shared,
    }
    lines(directory / "catalog" / "hive.properties", hive)
