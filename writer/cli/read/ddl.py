"""`headrace ddl`: statements that an engine needs to read a pipeline's table, with its real columns."""

import json
import sys
from datetime import timedelta
from typing import Annotated, Any

import typer

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.engines import iceberg, sql
from writer.engines.caveats import Engine, notes
from writer.engines.druid_spec import table_task
from writer.engines.table_description import TableDescription, describe_table
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget, load_table
from writer.output.tables import emit_whole
from writer.table.factory import main_table

CATALOGS = {"delta": "delta", "parquet": "hive"}  # table.format → what a catalog of it is commonly called
SCHEMA = "lake"
_HOUR = timedelta(hours=1)


def run_ddl(
    config: Config, pipeline: str, engine: Engine, *, name: str | None, location: str | None, as_json: bool
) -> None:
    """Print the texts. Notes are comments, or go to standard error where the text is JSON."""
    table = main_table(pipeline, config)
    if not table.exists():
        raise ConfigError(
            f"the table at {config.pipelines[pipeline].table.location} does not exist yet, so its columns are not "
            "known. Start the pipeline once (`headrace run --once`)."
        )
    known = describe_table(pipeline, config, table)
    remarks = notes(known, engine)
    found = texts(known, engine, name=name, location=location, segment=_segment(config, pipeline))
    if as_json:
        key = "spec" if engine == "druid" else "statements"
        emit_whole({"pipeline": pipeline, "engine": engine, key: found, "notes": remarks})
    elif engine == "druid":
        print(*(f"# {note}" for note in remarks), sep="\n", file=sys.stderr)  # noqa: T201 - JSON has no comments
        print(json.dumps(found, indent=2))  # noqa: T201 - the output of the verb
    else:
        print(*(f"-- {note}" for note in remarks), sep="\n")  # noqa: T201
        print(*(f"{statement};" for statement in found), sep="\n")  # noqa: T201


def texts(
    table: TableDescription, engine: Engine, *, name: str | None, location: str | None, segment: str = "hour"
) -> list[str] | dict[str, Any]:
    """Return the statements, in order; for Druid the specification of a task. Raises ConfigError."""
    short = table.pipeline.replace("-", "_")
    if location is not None and (engine not in ("trino", "presto") or table.format == "iceberg"):
        raise ConfigError(f"{engine} names the location as headrace does; leave --location out")
    if table.format == "iceberg":
        return iceberg.statements(table, engine, name)
    match engine:
        case "druid":
            return table_task(table, datasource=name or table.pipeline, segment=segment)
        case "spark":
            return sql.spark(table, name or short)
        case "duckdb":
            return sql.duckdb(table, name or short)
    try:
        full = sql.Name.of(name or f"{CATALOGS[table.format]}.{SCHEMA}.{short}")
    except ValueError as error:
        raise ConfigError(f"--table {name!r} is no catalog.schema.table; write it as delta.lake.clicks") from error
    statements = [sql.create_schema(full), sql.register(full, table, engine, location)]
    if table.format == "parquet":
        exact = [f"SET SESSION {full.catalog}.timestamp_precision = 'MICROSECONDS'"] if engine == "trino" else []
        statements = [*exact, *statements, sql.sync_partitions(full)]
    return statements


def _segment(config: Config, pipeline: str) -> str:
    """Name a granularity of segments that is not much finer than the buckets."""
    return "hour" if config.pipelines[pipeline].bucket.get("width", _HOUR) <= _HOUR else "day"


def ddl(
    config: ConfigFile,
    engine: Annotated[Engine, typer.Option("--engine", help="Who is to read it.")],
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", help="Name of the table there: catalog.schema.table for Trino and Presto, datasource for Druid."
        ),
    ] = None,
    location: Annotated[
        str | None, typer.Option("--location", help="The table's location as Trino or Presto names it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print what an engine must be told to read the table, with its columns as they are. Reads the lake only.

    Exit codes: 0 printed, 1 the table cannot be read, 2 configuration, or there is no table yet.
    """
    settings, name = load_table(config, pipeline, target)
    run_ddl(settings, name, engine, name=table, location=location, as_json=as_json)
