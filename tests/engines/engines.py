"""The engines, each with the tables of a lake as it is pointed at them, and its own words for what it is asked."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import pyarrow as pa
from deltalake import DeltaTable

from headrace.bench.engines.statement import Coordinator
from headrace.bench.engines.trino import register
from headrace.bench.job import delta_bundle
from headrace.writer.clients import java_artifacts
from tests.engines import dialects
from tests.engines.dialects import Dialect, DuckDB, Presto, Spark, Trino, TrinoHive
from tests.engines.lake import REWRITTEN, Lake
from tests.servers import parts
from tests.servers.druid import Druid
from tests.servers.objects import ObjectServer
from tests.support import oracle
from tests.support.table_formats import OPENED

BUCKETS = ["hour", "kind_bucket"]
Ask = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class Engine:
    """An engine that runs, and its words for each table: (format, place) → dialect."""

    ask: Ask
    tables: dict[tuple[str, str], Dialect]
    close: Callable[[], None] = lambda: None


def columns(lake: Lake) -> pa.Schema:
    """The table's columns, which are the same in both formats."""
    return OPENED["parquet"](lake.location("parquet"), "parquet").snapshot().columns()


def trino_engine(server: Coordinator, lakes: Path, lake: Lake, s3: ObjectServer | None) -> Engine:
    """Trino, whose local files lie below `lakes`, after each table was registered or created."""
    tables: dict[tuple[str, str], Dialect] = {}
    local = f"local:///{lake.root.relative_to(lakes)}/"
    for place, root in (("local", local), ("s3", f"{lake.bucket}/")):
        if place == "s3" and s3 is None:
            continue
        register(server, f"delta_{place}", f"{root}delta")
        tables["delta", place] = Trino(f"delta.lake.delta_{place}")
        name = f"hive.lake.parquet_{place}"
        server.ask(hive_table(name, columns(lake), BUCKETS, f"{root}parquet", timestamp="timestamp(6)"))
        server.ask(f"CALL hive.system.sync_partition_metadata('lake', 'parquet_{place}', 'ADD')")
        tables["parquet", place] = TrinoHive(name)
    register(server, REWRITTEN, f"{local}{REWRITTEN}")
    tables[REWRITTEN, "local"] = Trino(f"delta.lake.{REWRITTEN}")
    return Engine(lambda sql: server.ask(sql).rows, tables)


def presto_engine(server: Coordinator, lake: Lake, s3: ObjectServer | None) -> Engine:
    """Presto after each table was created, or with its path for a name."""
    tables: dict[tuple[str, str], Dialect] = {}
    for name in ("delta", REWRITTEN):
        location = f"file://{lake.location(name)}"
        server.ask(f"CREATE TABLE delta.lake.{name} (ignored int) WITH (external_location = '{location}')")
        tables[name, "local"] = Presto(f"delta.lake.{name}")
    if s3 is not None:  # the file metastore takes no s3://; paths as names of tables are lower case
        tables["delta", "s3"] = Presto(f'delta."$path$"."{lake.location("delta", s3=True)}"')
    name, location = "hive.lake.parquet_local", f"file://{lake.location('parquet')}"
    server.ask(hive_table(name, columns(lake), BUCKETS, location, timestamp="timestamp"))
    server.ask("CALL hive.system.sync_partition_metadata('lake', 'parquet_local', 'ADD')")
    tables["parquet", "local"] = Presto(name)
    return Engine(lambda sql: server.ask(sql).rows, tables)


def delta_view(connection: duckdb.DuckDBPyConnection, name: str, location: str, buckets: Sequence[str]) -> None:
    """Let DuckDB know the files that a Delta log names now, with the buckets that it gives them."""
    adds = pa.table(DeltaTable(location).get_add_actions(flatten=True))
    files = [f"{location}/{unquote(path)}" for path in adds["path"].to_pylist()]
    partition_values = {"filename": files, **{bucket: adds[f"partition.{bucket}"] for bucket in buckets}}
    connection.register(f"{name}_files", pa.table(partition_values))
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    connection.execute(
        f"CREATE OR REPLACE VIEW {name} AS FROM read_parquet([{listed}], union_by_name = true, filename = true,"
        f" hive_partitioning = false) JOIN {name}_files USING (filename)"
    )


def duckdb_engine(lake: Lake) -> Engine:
    """DuckDB over the files that the Delta log names, with the buckets that it gives them, and over the folders."""
    connection = duckdb.connect()
    for name in ("delta", REWRITTEN):
        delta_view(connection, name, lake.location(name), BUCKETS)
    read = f"read_parquet('{lake.location('parquet')}/*/*/*.parquet', hive_partitioning = true,"
    tables: dict[tuple[str, str], Dialect] = {
        ("delta", "local"): DuckDB("delta"),
        (REWRITTEN, "local"): DuckDB(REWRITTEN),
        ("parquet", "local"): DuckDB(f"{read} hive_types_autocast = false, union_by_name = true)"),
    }
    return Engine(lambda sql: connection.execute(sql).fetchall(), tables, connection.close)


_JVM = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256M"  # one compiler alone has 48 MB, which fifty tests fill


@contextmanager
def spark_session(directory: Path) -> Iterator[Any]:
    """Run Spark with Delta's own jars and Iceberg's until the end of the block."""
    from pyspark.sql import SparkSession

    found = [*sorted(java_artifacts.fetch(delta_bundle(), progress=print).glob("*.jar")), *parts.spark_iceberg()]
    jars = [str(jar) for jar in found]
    iceberg = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
        .config("spark.sql.extensions", f"io.delta.sql.DeltaSparkSessionExtension,{iceberg}")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.files.openCostInBytes", "0")  # small files share tasks
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.warehouse.dir", str(directory))
        .config("spark.driver.extraJavaOptions", f"{_JVM} -Dderby.system.home={directory}")
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()
        os.environ.pop("PYSPARK_GATEWAY_PORT", None)


def spark_engine(session: Any, lake: Lake) -> Engine:
    """Spark; it reads the folders of a Parquet table with the columns it is told."""
    delta = f"delta.`{lake.location('delta')}`"
    schema = session.table(delta).schema
    session.read.schema(schema).parquet(lake.location("parquet")).createOrReplaceTempView("parquet_local")
    tables: dict[tuple[str, str], Dialect] = {
        ("delta", "local"): Spark(delta), ("parquet", "local"): Spark("parquet_local"),
        (REWRITTEN, "local"): Spark(f"delta.`{lake.location(REWRITTEN)}`"),
    }  # fmt: skip
    return Engine(lambda sql: [tuple(row) for row in session.sql(sql).collect()], tables)


def druid_engine(server: Druid, lake: Lake) -> Engine:
    """Druid after a native batch of each table's files: those that the Delta log names, those in the folders."""
    inputs: dict[str, dict[str, Any]] = {
        name: {
            "type": "local",
            "files": [str(lake.root / name / path) for path in oracle.replay(lake.root / name).files],
        }
        for name in ("delta", REWRITTEN)
    }
    inputs["parquet"] = {"type": "local", "baseDir": lake.location("parquet"), "filter": "*.parquet"}
    for source, jars in inputs.items():
        io = {"inputSource": jars, "inputFormat": {"type": "parquet", "binaryAsString": False}}
        server.ingest(ingestion(source, io, columns(lake)))
        server.wait_for_segments(source)
    tables: dict[tuple[str, str], Dialect] = {(source, "local"): dialects.Druid(source) for source in inputs}
    return Engine(server.ask, tables)


def ingestion(source: str, io: dict[str, Any], columns_: pa.Schema) -> dict[str, Any]:
    """A native batch of a table: its event time is Druid's time column, the buckets are not in the files."""
    dimensions = [dimension(f) for f in columns_ if f.name not in ("event_time", *BUCKETS)]
    schema = {
        "dataSource": source,
        "timestampSpec": {"column": "event_time", "format": "millis"},
        "dimensionsSpec": {"dimensions": dimensions},
        "granularitySpec": {"segmentGranularity": "hour", "queryGranularity": "none", "rollup": False},
    }
    tuning = {"type": "index_parallel", "maxRowsInMemory": 20_000, "partitionsSpec": {"type": "dynamic"}}
    spec = {"ioConfig": {"type": "index_parallel", **io}, "dataSchema": schema, "tuningConfig": tuning}
    return {"type": "index_parallel", "spec": spec}


def dimension(field: pa.Field) -> dict[str, str]:
    """How Druid is told to keep a column. Left to itself it makes whole numbers of decimals."""
    kind = field.type
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind):
        name = "long"
    elif pa.types.is_floating(kind):
        name = "double"
    elif pa.types.is_list(kind) and not pa.types.is_nested(kind.value_type):
        name = "auto"
    else:
        name = "json" if pa.types.is_nested(kind) else "string"
    return {"type": name, "name": field.name}


def hive_type(kind: pa.DataType, *, timestamp: str) -> str:
    """Name a type as Trino's and Presto's Hive connectors do; `timestamp` is their word for microseconds in UTC."""
    names = {
        pa.bool_(): "boolean", pa.int32(): "integer", pa.int64(): "bigint", pa.float32(): "real",
        pa.float64(): "double", pa.string(): "varchar", pa.binary(): "varbinary", pa.date32(): "date",
    }  # fmt: skip
    if kind in names:
        return names[kind]
    if pa.types.is_timestamp(kind):
        return timestamp
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_struct(kind):
        fields = (f'"{field.name}" {hive_type(field.type, timestamp=timestamp)}' for field in kind)
        return f"row({', '.join(fields)})"
    if pa.types.is_map(kind):
        value = hive_type(kind.item_type, timestamp=timestamp)
        return f"map({hive_type(kind.key_type, timestamp=timestamp)}, {value})"
    assert pa.types.is_list(kind), kind
    return f"array({hive_type(kind.value_type, timestamp=timestamp)})"


def hive_table(name: str, columns: pa.Schema, buckets: list[str], location: str, *, timestamp: str) -> str:
    """An external table over a Parquet table's folders."""
    ordered = [field for field in columns if field.name not in buckets] + [columns.field(b) for b in buckets]
    listed = ", ".join(f'"{field.name}" {hive_type(field.type, timestamp=timestamp)}' for field in ordered)
    parts = ", ".join(f"'{bucket}'" for bucket in buckets)
    return (
        f"CREATE TABLE {name} ({listed}) WITH (external_location = '{location}', format = 'PARQUET',"
        f" partitioned_by = ARRAY[{parts}])"
    )
