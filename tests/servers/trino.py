"""Trino on loopback: coordinator and worker in one, with a Delta and a Hive catalog over a directory and an S3."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers import parts
from tests.servers.coordinator import Program, coordinator
from tests.servers.objects import ObjectServer
from tests.servers.statement import Coordinator

JAVA_MIN = 24
HEAP_MEGABYTES = 768
_CONFIG = {
    "query.max-memory": "256MB",
    "query.max-memory-per-node": "256MB",
    "memory.heap-headroom-per-node": "200MB",
}
_DELTA = {"connector.name": "delta_lake", "delta.register-table-procedure.enabled": "true"}
_HIVE = {
    "connector.name": "hive",
    "hive.non-managed-table-writes-enabled": "true",
    "hive.parquet.use-column-names": "true",
    "hive.timestamp-precision": "MICROSECONDS",
}


@contextmanager
def trino(
    directory: Path, location: Path, s3: ObjectServer | None = None, iceberg: Mapping[str, str] | None = None
) -> Iterator[Coordinator]:
    """Run Trino until the end of the block. Locations below `location` are written `local:///<path within it>`.

    `iceberg`: properties of a catalog of tables in that S3, which Trino knows as `headrace`.
    """
    home = parts.trino()
    (directory / "plugin").mkdir(parents=True)
    for plugin in [*(home / "plugin").iterdir(), *([parts.trino_iceberg()] if iceberg else [])]:
        (directory / "plugin" / plugin.name).symlink_to(plugin)
    files = _files(location, s3)
    catalogs = {"delta": {**_DELTA, **files}, "hive": {**_HIVE, **files}}
    if iceberg is not None:
        storage = {key: value for key, value in files.items() if "s3" in key}
        catalogs["headrace"] = {**iceberg, **storage}
    program = Program(
        name="Trino",
        main="io.trino.server.TrinoServer",
        home=home,
        java_min=JAVA_MIN,
        heap_megabytes=HEAP_MEGABYTES,
        options=("-XX:ReservedCodeCacheSize=256M", "-Djdk.nio.maxCachedBufferSize=2000000"),
        config={**_CONFIG, "plugin.dir": f"{directory}/plugin"},
        catalogs=catalogs,
    )
    with coordinator(program, directory) as server:
        server.ask("CREATE SCHEMA IF NOT EXISTS delta.lake")
        yield server


def _files(location: Path, s3: ObjectServer | None) -> dict[str, str]:
    """Settings of both catalogs: where tables are known, and what files lie on."""
    properties = {
        "hive.metastore": "file",
        "hive.metastore.catalog.dir": "local:///.metastore",
        "hive.metastore.disable-location-checks": "true",
        "fs.native-local.enabled": "true",
        "local.location": str(location),
    }
    if s3 is not None:
        properties |= {
            "fs.native-s3.enabled": "true",
            "s3.endpoint": s3.url,
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
            "s3.aws-access-key": s3.key,
            "s3.aws-secret-key": s3.secret,
        }
    return properties
