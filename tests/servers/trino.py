"""Trino on loopback: coordinator and worker in one, with a Delta and a Hive catalog over a directory and an S3."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from tests.servers import parts
from tests.servers.objects import ObjectServer
from tests.servers.statement import Coordinator
from writer import artifacts
from writer.embedded.process import LOOPBACK, Process, free_ports, java_options

JAVA_MIN = 24
HEAP_MEGABYTES = 768
READY_WITHIN = timedelta(seconds=180)  # seen: 10 s


@contextmanager
def trino(directory: Path, lake: Path, s3: ObjectServer | None = None) -> Iterator[Coordinator]:
    """Run Trino until the end of the block. Locations below `lake` are written `local:///<path within it>`."""
    home = parts.trino()
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    _configure(directory, home, url, lake, s3)
    command = [
        artifacts.java(JAVA_MIN),
        *java_options(directory, heap_megabytes=HEAP_MEGABYTES),
        "-XX:ReservedCodeCacheSize=256M",
        "-Djdk.attach.allowAttachSelf=true",
        "-Djdk.nio.maxCachedBufferSize=2000000",
        "-Dnode.environment=test",
        "-Dnode.id=trino",
        f"-Dnode.internal-address={LOOPBACK}",
        f"-Dnode.bind-ip={LOOPBACK}",
        f"-Dnode.data-dir={directory}/data",
        f"-Dconfig={directory}/config.properties",
        f"-Dlog.levels-file={directory}/log.properties",
        "-cp",
        f"{home}/lib/*",
        "io.trino.server.TrinoServer",
    ]
    process = Process("trino", command, cwd=directory, log=directory / "trino.log", env={"LC_ALL": "C.UTF-8"})
    coordinator = Coordinator(url, "Trino")
    try:
        process.launch()
        process.wait_until(
            lambda: coordinator.answers("SELECT count(*) FROM delta.information_schema.tables"), within=READY_WITHIN
        )
        coordinator.ask("CREATE SCHEMA IF NOT EXISTS delta.lake")
        yield coordinator
    finally:
        process.stop(grace=timedelta(0))


def _configure(directory: Path, home: Path, url: str, lake: Path, s3: ObjectServer | None) -> None:
    for folder in ("data", "catalog", "plugin"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    for plugin in (home / "plugin").iterdir():
        (directory / "plugin" / plugin.name).symlink_to(plugin)
    config = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": url.rpartition(":")[2],
        "discovery.uri": url,
        "query.max-memory": "256MB",
        "query.max-memory-per-node": "256MB",
        "memory.heap-headroom-per-node": "200MB",
        "plugin.dir": f"{directory}/plugin",
        "catalog.config-dir": f"{directory}/catalog",
    }
    lines(directory / "config.properties", config)
    lines(directory / "log.properties", {"": "WARN"})
    shared = {
        "hive.metastore": "file",
        "hive.metastore.catalog.dir": "local:///.metastore",
        "hive.metastore.disable-location-checks": "true",
        "fs.native-local.enabled": "true",
        "local.location": str(lake),
    }
    if s3 is not None:
        shared |= {
            "fs.native-s3.enabled": "true",
            "s3.endpoint": s3.url,
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
            "s3.aws-access-key": s3.key,
            "s3.aws-secret-key": s3.secret,
        }
    delta = {"connector.name": "delta_lake", "delta.register-table-procedure.enabled": "true", **shared}
    lines(directory / "catalog" / "delta.properties", delta)
    hive = {
        "connector.name": "hive",
        "hive.non-managed-table-writes-enabled": "true",
        "hive.parquet.use-column-names": "true",
        "hive.timestamp-precision": "MICROSECONDS",
        **shared,
    }
    lines(directory / "catalog" / "hive.properties", hive)


def lines(path: Path, settings: dict[str, str]) -> None:
    """Write a file of Java properties."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
