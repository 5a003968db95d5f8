"""What an engine must be told to read a table: SQL statements, or the specification of a Druid task."""

from collections.abc import Collection
from typing import Any

from headrace.writer.core.errors import ConfigError
from headrace.writer.engines import iceberg, sql
from headrace.writer.engines.bucket_access import check_engine
from headrace.writer.engines.caveats import Engine
from headrace.writer.engines.druid_spec import table_task
from headrace.writer.engines.table_description import TableDescription

_ENGINES_WITH_LOCATIONS: tuple[Engine, ...] = (
    "trino",
    "presto",
)  # they know a table by its location, and can name that otherwise


def registration(
    table: TableDescription, engine: Engine, *, name: str | None, location: str | None, segment: str = "hour"
) -> list[str] | dict[str, Any]:
    """Return the statements, in order; for Druid the specification of a task. Raises ConfigError."""
    if location is not None and (engine not in _ENGINES_WITH_LOCATIONS or table.format == "iceberg"):
        raise ConfigError(f"{engine} names the location as headrace does; leave --location out")
    check_engine(table, engine)
    if table.format == "iceberg":
        return iceberg.statements(table, engine, name)
    match engine:
        case "druid":
            return table_task(table, datasource=name or table.datasource, segment=segment)
        case "spark":
            return sql.spark(table, name or table.short_name)
        case "duckdb":
            return sql.duckdb(table, name or table.short_name)
    full_name = sql.Name.of_option(name) if name else sql.default_name(table)
    statements = [sql.create_schema(full_name), sql.register(full_name, table, engine, location)]
    if table.format == "parquet":
        statements.append(sql.sync_partitions(full_name))
        if engine == "trino":
            statements.insert(0, f"SET SESSION {full_name.catalog}.timestamp_precision = 'MICROSECONDS'")
    return statements


def promotion_statements(table: TableDescription, readers: Collection[str]) -> dict[str, list[str]]:
    """Return the SQL that points Trino and Presto to this table of a pipeline, by engine, for those that read it.

    There is none for an Iceberg table, whose readers follow its name in the catalog.
    """
    if table.format == "iceberg":
        return {}
    name = sql.default_name(table)
    statements = dict[str, list[str]]()
    for engine in _ENGINES_WITH_LOCATIONS:
        if engine in readers:
            registered = registration(table, engine, name=str(name), location=None)
            statements[engine] = [sql.unregister(name, table, engine), *registered]
    return statements
