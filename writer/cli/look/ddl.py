"""`headrace ddl`: statements that an engine needs to read tables, with their real columns."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from writer.config.loader import load
from writer.config.pipeline import Pipeline
from writer.core.errors import ConfigError
from writer.engines.caveats import Engine, notes
from writer.engines.registration import registration
from writer.engines.table_description import describe_table
from writer.output.cli_options import AsJson, ConfigFile, OnlyTarget, Pipelines
from writer.output.table_choice import ChosenTable, choose_tables
from writer.output.tables import emit_whole
from writer.table.factory import main_table

_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class _Registration:
    """What an engine must be told of one table."""

    table: ChosenTable
    # By default.
    name: str
    # Statements in order, or the specification of a Druid task.
    texts: list[str] | dict[str, Any]
    remarks: list[str]


def run_ddl(
    tables: Sequence[ChosenTable], engine: Engine, *, name: str | None, location: str | None, as_json: bool
) -> None:
    """Print the statements of each table. Notes are comments, or go to standard error where the text is JSON.

    Raises ConfigError where there is no table, or two would have one name.
    """
    if len(tables) > 1 and (name is not None or location is not None):
        titles = ", ".join(table.title for table in tables)
        raise ConfigError(f"--table and --location are of one table; say which with --pipeline or --target: {titles}")
    registrations = [_register(table, engine, name, location) for table in tables]
    _check_names_differ(registrations)
    if as_json:
        key = "spec" if engine == "druid" else "statements"
        documents = [
            {
                "pipeline": part.table.pipeline,
                "target": part.table.target,
                key: part.texts,
                "notes": part.remarks,
            }
            for part in registrations
        ]
        emit_whole({"engine": engine, "tables": documents})
        return
    for part in registrations:
        heads = [part.table.title] if len(registrations) > 1 else []
        _print(engine, [*heads, *part.remarks], part.texts)


def _register(table: ChosenTable, engine: Engine, name: str | None, location: str | None) -> _Registration:
    settings = table.config.pipelines[table.pipeline]
    stored_table = main_table(table.pipeline, table.config)
    if not stored_table.exists():
        raise ConfigError(
            f"the table at {settings.table.location} does not exist yet, so its columns are not known. Start the "
            "pipeline once (`headrace run --once`)."
        )
    description = describe_table(table.pipeline, table.config, stored_table, table.target)
    texts = registration(description, engine, name=name, location=location, segment=_segment(settings))
    return _Registration(table, description.short_name, texts, notes(description, engine))


def _check_names_differ(registrations: Sequence[_Registration]) -> None:
    """Raise ConfigError where two tables would have one name; engines do not tell upper case from lower."""
    owners: dict[str, str] = {}
    for part in registrations:
        other = owners.setdefault(part.name.lower(), part.table.title)
        if other != part.table.title:
            raise ConfigError(
                f"{other} and {part.table.title} would both be called {part.name}; print each by itself, with "
                "--pipeline or --target, and name it with --table"
            )


def _print(engine: Engine, remarks: Sequence[str], texts: list[str] | dict[str, Any]) -> None:
    if engine == "druid":
        print(*(f"# {note}" for note in remarks), sep="\n", file=sys.stderr)  # noqa: T201 - JSON has no comments
        print(json.dumps(texts, indent=2))  # noqa: T201 - the output of the verb
    else:
        print(*(f"-- {note}" for note in remarks), sep="\n")  # noqa: T201
        print(*(f"{statement};" for statement in texts), sep="\n")  # noqa: T201


def _segment(settings: Pipeline) -> str:
    """Name a granularity of segments that is not much finer than the buckets."""
    return "hour" if settings.bucket.get("width", _HOUR) <= _HOUR else "day"


def ddl(
    config: ConfigFile,
    engine: Annotated[Engine, typer.Option("--engine", help="Who is to read it.")],
    pipeline: Pipelines = None,
    target: OnlyTarget = None,
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
    """Print what an engine must be told to read the tables, with their columns as they are. Reads the lake only.

    A table of a route is named as its folder, unless --table names it.

    Exit codes: 0 printed, 1 the table cannot be read, 2 configuration, or there is no table yet.
    """
    tables = choose_tables(load(config), pipeline, target)
    run_ddl(tables, engine, name=table, location=location, as_json=as_json)
