"""SQL statements that register a table in Trino, Presto, Spark and DuckDB."""

from dataclasses import dataclass

from headrace.writer.core.errors import ConfigError
from headrace.writer.engines import bucket_access
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.engines.types import PRESTO, SPARK, TRINO, Dialect
from headrace.writer.storage.locations import on_s3

# What a catalog is commonly called, by the format of its tables.
_CATALOGS = {"delta": "delta", "parquet": "hive"}
_SCHEMA = "lake"


@dataclass(frozen=True)
class Name:
    """A table as Trino and Presto name it."""

    catalog: str
    schema: str
    table: str

    @classmethod
    def of(cls, text: str) -> "Name":
        """Read catalog.schema.table."""
        catalog, schema, table = text.split(".")
        return cls(catalog, schema, table)

    @classmethod
    def of_option(cls, text: str) -> "Name":
        """Read what --table says. Raises ConfigError."""
        try:
            return cls.of(text)
        except ValueError as error:
            raise ConfigError(f"--table {text!r} is no catalog.schema.table; write it as delta.lake.clicks") from error

    def __str__(self) -> str:
        return f"{self.catalog}.{self.schema}.{self.table}"


def default_name(table: TableDescription) -> Name:
    """Return what Trino and Presto call a Delta or Parquet table, unless a name is given."""
    return Name(_CATALOGS[table.format], _SCHEMA, table.short_name)


def literal(text: str) -> str:
    """Write a text as SQL does."""
    return "'" + text.replace("'", "''") + "'"


def trino_location(table: TableDescription) -> str:
    """Name a location as Trino does: a path below `local.location` of its catalog, here taken to be `/`."""
    location = bucket_access.hadoop_location(table)
    return location if "://" in location else f"local://{location}"


def presto_location(table: TableDescription) -> str:
    """Name a location as Presto does."""
    location = bucket_access.hadoop_location(table)
    return location if "://" in location else f"file://{location}"


def create_schema(name: Name) -> str:
    """Make the schema, if there is none."""
    return f"CREATE SCHEMA IF NOT EXISTS {name.catalog}.{name.schema}"


def register(name: Name, table: TableDescription, engine: str, location: str | None = None) -> str:
    """Make the table known, where it is not yet. `location`: as the engine names it."""
    if engine == "trino" and table.format == "delta":
        quoted_location = literal(location or trino_location(table))
        return (
            f"CALL {name.catalog}.system.register_table(schema_name => {literal(name.schema)}, "
            f"table_name => {literal(name.table)}, table_location => {quoted_location})"
        )
    # The columns come from the log, but the statement must name one.
    if engine == "presto" and table.format == "delta":
        quoted_location = literal(location or presto_location(table))
        return f"CREATE TABLE {name} (dummy integer) WITH (external_location = {quoted_location})"
    if engine == "trino":
        dialect = TRINO
        quoted_location = literal(location or trino_location(table))
    else:
        dialect = PRESTO
        quoted_location = literal(location or presto_location(table))
    columns = ",\n  ".join(f"{dialect.name(c.name)} {dialect.type(c.type)}" for c in table.ordered)
    parts = ", ".join(literal(column.lower()) for column in table.bucket_columns)
    return (
        f"CREATE TABLE {name} (\n  {columns}\n) WITH (\n  external_location = {quoted_location},\n"
        f"  format = 'PARQUET',\n  partitioned_by = ARRAY[{parts}]\n)"
    )


def unregister(name: Name, table: TableDescription, engine: str) -> str:
    """Let an engine forget a table; its files stay."""
    if engine == "trino" and table.format == "delta":
        return (
            f"CALL {name.catalog}.system.unregister_table(schema_name => {literal(name.schema)}, "
            f"table_name => {literal(name.table)})"
        )
    return f"DROP TABLE {name}"


def add_column(name: Name, column: str, kind: str, dialect: Dialect) -> str:
    """Add a column that the table has by now."""
    return f"ALTER TABLE {name} ADD COLUMN {dialect.name(column)} {kind}"


def sync_partitions(name: Name) -> str:
    """Let folders be partitions: new ones come, those that are gone go."""
    call = f"CALL {name.catalog}.system.sync_partition_metadata"
    return f"{call}({literal(name.schema)}, {literal(name.table)}, 'FULL')"


def analyze(name: Name) -> str:
    """Gather statistics."""
    return f"ANALYZE {name}"


def spark(table: TableDescription, name: str) -> list[str]:
    """Make the table known to Spark's catalog."""
    location = literal(bucket_access.hadoop_location(table).replace("s3://", "s3a://", 1))
    if table.format == "delta":
        return [f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {location}"]
    columns = ",\n  ".join(f"{SPARK.name(c.name)} {SPARK.type(c.type)}" for c in table.ordered)
    parts = ", ".join(SPARK.name(column) for column in table.bucket_columns)
    body = f"(\n  {columns}\n) USING parquet\nPARTITIONED BY ({parts})\nLOCATION {location}"
    return [f"CREATE TABLE IF NOT EXISTS {name} {body}", f"MSCK REPAIR TABLE {name}"]


def duckdb_setup(table: TableDescription) -> list[str]:
    """Let DuckDB reach the files of a table."""
    if not on_s3(table.location):
        return bucket_access.duckdb_setup(table)
    return ["INSTALL httpfs", "LOAD httpfs", *_secret(table)]


def duckdb(table: TableDescription, name: str) -> list[str]:
    """Make the table a view in DuckDB."""
    setup = duckdb_setup(table)
    if table.format == "delta":
        setup += ["INSTALL delta", "LOAD delta"]
    return [*setup, f"CREATE OR REPLACE VIEW {TRINO.name(name)} AS SELECT * FROM {duckdb_scan(table)}"]  # noqa: S608 - quoted


def duckdb_scan(table: TableDescription) -> str:
    """Return the function call that reads a Delta or Parquet table in DuckDB."""
    location = bucket_access.duckdb_location(table)
    if table.format == "delta":
        return f"delta_scan({literal(location)})"
    folders = "/".join(["*"] * len(table.bucket_columns))
    options = "hive_partitioning = true, hive_types_autocast = false, union_by_name = true"
    return f"read_parquet({literal(f'{location}/{folders}/*.parquet')},\n  {options})"


def _secret(table: TableDescription) -> list[str]:
    s3 = table.stores.s3
    options = ["TYPE s3", "PROVIDER credential_chain"]
    if s3.endpoint:
        scheme, _, address = s3.endpoint.partition("://")
        options += [f"ENDPOINT {literal(address)}", f"USE_SSL {str(scheme == 'https').lower()}"]
    if s3.region:
        options.append(f"REGION {literal(s3.region)}")
    if s3.path_style:
        options.append("URL_STYLE 'path'")
    return ["INSTALL aws", "LOAD aws", f"CREATE OR REPLACE SECRET lake ({', '.join(options)})"]
