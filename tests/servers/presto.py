"""Presto on loopback: coordinator and worker in one, with a Delta and a Hive catalog over files and an S3."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.bench.engines.coordinator import Program, coordinator
from headrace.bench.engines.statement import Coordinator
from tests.servers import parts
from tests.servers.objects import ObjectServer

JAVA_MIN = 17
HEAP_MEGABYTES = 640
_OPENED = (
    "java.io",
    "java.lang",
    "java.lang.ref",
    "java.lang.reflect",
    "java.net",
    "java.nio",
    "java.security",
    "java.text",
    "java.util",
    "java.util.concurrent",
    "java.util.regex",
    "javax.security.auth",
    "javax.security.auth.login",
    "jdk.internal.loader",
    "sun.nio.ch",
)
_CONFIG = {
    "discovery-server.enabled": "true",
    "query.max-memory": "192MB",
    "query.max-memory-per-node": "192MB",
    "query.max-total-memory-per-node": "192MB",
    "memory.heap-headroom-per-node": "128MB",
}
_HIVE = {
    "connector.name": "hive-hadoop2",
    "hive.non-managed-table-writes-enabled": "true",
    "hive.parquet.use-column-names": "true",
}


@contextmanager
def presto(directory: Path, s3: ObjectServer | None = None) -> Iterator[Coordinator]:
    """Run Presto until the end of the block. Locations are `file:///<absolute path>` and, for Delta, `s3://…`."""
    home = parts.presto()
    files = _files(directory, s3)
    (directory / "metastore").mkdir(parents=True)
    program = Program(
        name="Presto",
        main="com.facebook.presto.server.PrestoServer",
        home=home,
        java_min=JAVA_MIN,
        heap_megabytes=HEAP_MEGABYTES,
        options=[f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED],
        config={**_CONFIG, "plugin.dir": f"{home}/plugin"},
        catalogs={"delta": {"connector.name": "delta", **files}, "hive": {**_HIVE, **files}},
    )
    with coordinator(program, directory) as server:
        server.ask("CREATE SCHEMA IF NOT EXISTS hive.lake")
        yield server


def _files(directory: Path, s3: ObjectServer | None) -> dict[str, str]:
    """Settings of both catalogs: where tables are known, and how S3 is reached."""
    properties = {"hive.metastore": "file", "hive.metastore.catalog.dir": f"file://{directory}/metastore"}
    if s3 is not None:
        properties |= {
            "hive.s3.endpoint": s3.url,
            "hive.s3.path-style-access": "true",
            "hive.s3.ssl.enabled": "false",
            "hive.s3.aws-access-key": s3.key,
            "hive.s3.aws-secret-key": s3.secret,
        }
    return properties
