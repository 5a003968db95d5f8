"""`headrace ddl`: statements that an engine needs to read tables, with their real columns."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import ConfigError
from headrace.writer.engines.caveats import Engine, notes
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import describe_table
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Tables
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import is_printable
from headrace.writer.table.factory import main_table

_HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class TableDdl:
    """What an engine must be told of one table."""

    pipeline: str
    target: str | None
    # In order; None for Druid.
    statements: Sequence[str] | None
    # The specification of a task; None for others than Druid.
    spec: Mapping[str, Any] | None
    notes: Sequence[str]
    title: str = field(metadata=SCREEN_ONLY)
    # Its name there by default.
    name: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class DdlReport(Report):
    """What an engine must be told of tables."""

    engine: Engine
    tables: Sequence[TableDdl]

    def render(self, out: Console) -> None:
        """Print the statements, with notes as comments; those of JSON, which has none, go to standard error."""
        for table in self.tables:
            remarks = list(table.notes)
            if len(self.tables) > 1:
                remarks.insert(0, table.title)
            if table.spec is not None:
                print(*(f"# {note}" for note in remarks), sep="\n", file=sys.stderr)  # noqa: T201 - JSON has no comments
                out.out(json.dumps(table.spec, indent=2), highlight=False)
                continue
            statements = [f"{statement};" for statement in table.statements or ()]
            _check_printable(statements, out)
            out.out("\n".join([*(f"-- {note}" for note in remarks), *statements]), highlight=False)


def _check_printable(statements: Sequence[str], out: Console) -> None:
    """Raise ConfigError where a character of SQL would become a question mark."""
    if not all(map(is_printable, statements)):
        raise ConfigError(
            f"standard output has the encoding {out.encoding}, which lacks characters of the statements. Set "
            "PYTHONIOENCODING=utf-8, or give --json."
        )


def run_ddl(
    tables: Sequence[ChosenTable], engine: Engine, *, name: str | None = None, location: str | None = None
) -> DdlReport:
    """Return the statements of each table. Raises ConfigError where there is no table, or two would have one name."""
    if len(tables) > 1 and (name is not None or location is not None):
        titles = ", ".join(table.title for table in tables)
        raise ConfigError(f"--table and --location are of one table; say which with --pipeline or --target: {titles}")
    report = DdlReport(engine, [_describe(table, engine, name, location) for table in tables])
    _check_names_differ(report.tables)
    return report


def _describe(table: ChosenTable, engine: Engine, name: str | None, location: str | None) -> TableDdl:
    settings = table.config.pipelines[table.pipeline]
    stored_table = main_table(table.pipeline, table.config)
    if not stored_table.exists():
        raise ConfigError(
            f"the table at {settings.table.location} does not exist yet, so its columns are not known. Start the "
            "pipeline once (`headrace run --once`)."
        )
    description = describe_table(table.pipeline, table.config, stored_table, table.target)
    texts = registration(description, engine, name=name, location=location, segment=_segment(settings))
    statements = texts if isinstance(texts, list) else None
    spec = texts if isinstance(texts, dict) else None
    remarks = notes(description, engine)
    return TableDdl(table.pipeline, table.target, statements, spec, remarks, table.title, description.short_name)


def _check_names_differ(tables: Sequence[TableDdl]) -> None:
    """Raise ConfigError where two tables would have one name; engines do not tell upper case from lower."""
    owners: dict[str, str] = {}
    for table in tables:
        other = owners.setdefault(table.name.lower(), table.title)
        if other != table.title:
            raise ConfigError(
                f"{other} and {table.title} would both be called {table.name}; print each by itself, with "
                "--pipeline or --target, and name it with --table"
            )


def _segment(settings: Pipeline) -> str:
    """Name a granularity of segments that is not much finer than the buckets."""
    return "hour" if settings.bucket.get("width", _HOUR) <= _HOUR else "day"


@command(exits={0: "printed", 1: "the table cannot be read", 2: "configuration, or there is no table yet"})
def ddl(
    tables: Tables,
    engine: Annotated[Engine, typer.Option("--engine", help="Who is to read it.")],
    table: Annotated[
        str | None,
        typer.Option(
            "--table", help="Name of the table there: catalog.schema.table for Trino and Presto, datasource for Druid."
        ),
    ] = None,
    location: Annotated[
        str | None, typer.Option("--location", help="The table's location as Trino or Presto names it.")
    ] = None,
) -> DdlReport:
    """Print what an engine must be told to read the tables, with their columns as they are. Reads the lake only.

    A table of a route is named as its folder, unless --table names it.
    """
    return run_ddl(tables, engine, name=table, location=location)
