"""Trino on loopback: coordinator and worker in one, with a Delta and a Hive catalog over a directory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.bench.engines.coordinator import Program, Settings, coordinator
from headrace.bench.engines.statement import Coordinator
from headrace.writer.clients import java_artifacts
from headrace.writer.clients.java_artifacts import Bundle, Module

# The newest version that Maven Central carries as an archive.
TRINO = Bundle(
    "trino",
    "476",
    (Module("io.trino", "trino-server", "476", packed=True),),
    files=1,
    megabytes=821,
    unpack=True,
    keep=("lib", "plugin/hive", "plugin/delta-lake"),
)
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


def trino_home(progress: Callable[[str], None]) -> Path:
    """Return the folder of Trino, with `lib` and two plugins; fetches it once. Raises ArtifactError."""
    (home,) = java_artifacts.fetch(TRINO, progress=progress).iterdir()
    return home


@contextmanager
def trino(
    home: Path,
    directory: Path,
    location: Path,
    *,
    storage: Settings | None = None,
    catalogs: Mapping[str, Settings] | None = None,
    plugins: Sequence[Path] = (),
) -> Iterator[Coordinator]:
    """Run Trino until the end of the block. Locations below `location` are written `local:///<path within it>`.

    `storage`: more settings of both catalogs; `catalogs`: more of them, with their `plugins`. Raises JavaMissing,
    ServerFailed.
    """
    (directory / "plugin").mkdir(parents=True)
    for plugin in [*(home / "plugin").iterdir(), *plugins]:
        (directory / "plugin" / plugin.name).symlink_to(plugin)
    files = {**_local_files(location), **(storage or {})}
    program = Program(
        name="Trino",
        main="io.trino.server.TrinoServer",
        home=home,
        java_min=JAVA_MIN,
        heap_megabytes=HEAP_MEGABYTES,
        options=("-XX:ReservedCodeCacheSize=256M", "-Djdk.nio.maxCachedBufferSize=2000000"),
        config={**_CONFIG, "plugin.dir": f"{directory}/plugin"},
        catalogs={"delta": {**_DELTA, **files}, "hive": {**_HIVE, **files}, **(catalogs or {})},
    )
    with coordinator(program, directory) as server:
        server.ask("CREATE SCHEMA IF NOT EXISTS delta.lake")
        yield server


def register(server: Coordinator, name: str, location: str) -> None:
    """Make a Delta table known to Trino. Raises QueryFailed."""
    server.ask(
        "CALL delta.system.register_table(schema_name => 'lake',"
        f" table_name => '{name}', table_location => '{location}')"
    )


def _local_files(location: Path) -> dict[str, str]:
    """Return settings of both catalogs: where tables are known, and what files lie on."""
    return {
        "hive.metastore": "file",
        "hive.metastore.catalog.dir": "local:///.metastore",
        "hive.metastore.disable-location-checks": "true",
        "fs.native-local.enabled": "true",
        "local.location": str(location),
    }
