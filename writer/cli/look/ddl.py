"""`headrace ddl`: what an engine or dbt needs to read tables, with their real columns."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headrace import bucketers
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.engines.caveats import Engine, notes
from headrace.writer.engines.dbt_sources import (
    Adapter,
    SealAge,
    describe_source,
    dump_sources,
    has_seal_query,
    seal_age,
)
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import describe_table
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Tables, look_at_each_table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import is_printable
from headrace.writer.preflight.schema_descriptions import read_descriptions
from headrace.writer.table.factory import main_table
from headrace.writer.table.table import PipelineTable

# Who is to read a table: an engine, or dbt by one of its adapters.
Reader = Literal[Engine, "dbt"]
_HOUR = timedelta(hours=1)
# What a seal takes after it is due: the look for it, a commit that comes first, its manifest.
_SEAL_SLACK = timedelta(minutes=5)


@dataclass(frozen=True)
class TableDdl:
    """What an engine must be told of one table."""

    pipeline: str
    target: str | None
    # In order; None for Druid and dbt.
    statements: Sequence[str] | None
    # The specification of a task for Druid, an entry of `sources:` for dbt; None for others.
    spec: Mapping[str, Any] | None
    notes: Sequence[str]
    title: str = field(metadata=SCREEN_ONLY)
    # Its name there by default.
    name: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class DdlReport(Report):
    """What an engine or dbt must be told of tables."""

    engine: Reader
    tables: Sequence[TableDdl]
    # Of tables that cannot be read.
    failure: HeadraceError | None = field(default=None, metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Print the statements, with notes as comments; those of JSON, which has none, go to standard error."""
        if self.engine == "dbt":
            self._render_sources(out)
            return
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

    def _render_sources(self, out: Console) -> None:
        """Print one `sources.yml` of all tables."""
        remarks = [f"# {table.title}: {note}" for table in self.tables for note in table.notes]
        text = dump_sources(table.spec or {} for table in self.tables)
        _check_printable([*remarks, text], out)
        out.out("\n".join([*remarks, text.rstrip("\n")]), highlight=False)


def _check_printable(statements: Sequence[str], out: Console) -> None:
    """Raise ConfigError where a character of SQL or YAML would become a question mark."""
    if not all(map(is_printable, statements)):
        raise ConfigError(
            f"standard output has the encoding {out.encoding}, which lacks characters of the text. Set "
            "PYTHONIOENCODING=utf-8, or give --json."
        )


def run_ddl(
    tables: Sequence[ChosenTable],
    engine: Reader,
    *,
    adapter: Adapter | None = None,
    name: str | None = None,
    location: str | None = None,
) -> DdlReport:
    """Return the statements of each table. Raises ConfigError where there is no table, or two would have one name.

    `adapter`: of dbt, by default trino.
    """
    if len(tables) > 1 and (name is not None or location is not None):
        titles = ", ".join(table.title for table in tables)
        raise ConfigError(f"--table and --location are of one table; say which with --pipeline or --target: {titles}")
    if engine == "dbt":
        if location is not None:
            raise ConfigError(
                "dbt finds tables by their names, or as headrace names their location; leave --location out"
            )
        described, failure = look_at_each_table(tables, lambda table: _describe_source(table, adapter or "trino", name))
    else:
        if adapter is not None:
            raise ConfigError("--adapter says what dbt runs on; give it with --engine dbt, or leave it out")
        described, failure = look_at_each_table(tables, lambda table: _describe(table, engine, name, location))
    report = DdlReport(engine, list(described.values()), failure)
    _check_names_differ(report.tables)
    return report


def _describe(table: ChosenTable, engine: Engine, name: str | None, location: str | None) -> TableDdl:
    settings = table.config.pipelines[table.pipeline]
    description = describe_table(table.pipeline, table.config, _open_table(table), table.target)
    texts = registration(description, engine, name=name, location=location, segment=_segment(settings))
    statements = texts if isinstance(texts, list) else None
    spec = texts if isinstance(texts, dict) else None
    remarks = notes(description, engine)
    return TableDdl(table.pipeline, table.target, statements, spec, remarks, table.title, description.short_name)


def _describe_source(table: ChosenTable, adapter: Adapter, name: str | None) -> TableDdl:
    settings = table.config.pipelines[table.pipeline]
    stored_table = _open_table(table)
    description = describe_table(table.pipeline, table.config, stored_table, table.target)
    age = _seal_age(settings, stored_table)
    spec = describe_source(description, adapter, name, read_descriptions(table.pipeline, table.config), age)
    remarks = []
    if age is None:
        remarks.append("It has no freshness: no bucket of it is sealed by time yet.")
    elif not has_seal_query(description, adapter):
        remarks.append("It has no freshness: Trino does not see which buckets of a Parquet table are sealed.")
    return TableDdl(table.pipeline, table.target, None, spec, remarks, table.title, description.short_name)


def _open_table(table: ChosenTable) -> PipelineTable:
    """Open a table that is there. Raises ConfigError for one that is not."""
    stored_table = main_table(table.pipeline, table.config)
    if not stored_table.exists():
        location = table.config.pipelines[table.pipeline].table.location
        raise ConfigError(
            f"the table at {location} does not exist yet, so its columns are not known. Start the pipeline once "
            "(`headrace run --once`)."
        )
    return stored_table


def _seal_age(settings: Pipeline, table: PipelineTable) -> SealAge | None:
    """Return how old the newest sealed bucket may be; None where none is sealed by time, or the table has none yet."""
    if not settings.seal.enabled:
        return None
    bucketer = bucketers.build(settings.bucket)
    intervals = [bucketers.interval(bucketer, bucket) for bucket in table.buckets()]
    widths = [interval[1] - interval[0] for interval in intervals if interval is not None]
    if not widths:
        return None
    by_watermark = settings.seal.out_of_orderness + settings.seal.allowed_lateness
    delay = max(by_watermark, settings.seal.after or by_watermark)
    return seal_age(max(widths), delay + settings.commit.max_delay + _SEAL_SLACK)


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


@command(
    exits={
        0: "printed",
        1: "the table cannot be read, or the registry does not answer",
        2: "configuration, or there is no table yet",
    }
)
def ddl(
    tables: Tables,
    engine: Annotated[Reader, typer.Option("--engine", help="Who is to read it.")],
    adapter: Annotated[
        Adapter | None, typer.Option("--adapter", help="With --engine dbt: what dbt runs on; default: trino.")
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table",
            help="Name of the table there: catalog.schema.table for Trino, Presto and dbt, datasource for Druid.",
        ),
    ] = None,
    location: Annotated[
        str | None, typer.Option("--location", help="The table's location as Trino or Presto names it.")
    ] = None,
) -> DdlReport:
    """Print what an engine must be told to read the tables, with their columns as they are. Changes nothing.

    A table of a route is named as its folder, unless --table names it. For dbt it prints a sources.yml, with
    descriptions of the registry's schemas, and freshness by the newest sealed bucket.
    """
    return run_ddl(tables, engine, adapter=adapter, name=table, location=location)
