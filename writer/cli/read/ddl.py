"""`headrace ddl`: statements that an engine needs to read a pipeline's table, with its real columns."""

import json
import sys
from datetime import timedelta
from typing import Annotated

import typer

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.engines.caveats import Engine, notes
from writer.engines.registration import registration
from writer.engines.table_description import describe_table
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget, load_table
from writer.output.tables import emit_whole
from writer.table.factory import main_table

_HOUR = timedelta(hours=1)


def run_ddl(
    config: Config, pipeline: str, engine: Engine, *, name: str | None, location: str | None, as_json: bool
) -> None:
    """Print the statements. Notes are comments, or go to standard error where the text is JSON."""
    table = main_table(pipeline, config)
    if not table.exists():
        raise ConfigError(
            f"the table at {config.pipelines[pipeline].table.location} does not exist yet, so its columns are not "
            "known. Start the pipeline once (`headrace run --once`)."
        )
    description = describe_table(pipeline, config, table)
    remarks = notes(description, engine)
    texts = registration(description, engine, name=name, location=location, segment=_segment(config, pipeline))
    if as_json:
        key = "spec" if engine == "druid" else "statements"
        emit_whole({"pipeline": pipeline, "engine": engine, key: texts, "notes": remarks})
    elif engine == "druid":
        print(*(f"# {note}" for note in remarks), sep="\n", file=sys.stderr)  # noqa: T201 - JSON has no comments
        print(json.dumps(texts, indent=2))  # noqa: T201 - the output of the verb
    else:
        print(*(f"-- {note}" for note in remarks), sep="\n")  # noqa: T201
        print(*(f"{statement};" for statement in texts), sep="\n")  # noqa: T201


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
