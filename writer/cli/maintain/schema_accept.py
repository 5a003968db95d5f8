"""`headrace schema accept`: shows schema ids that mean other schemas than before, and stores their new meaning."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from rich.console import Console

from headrace.writer.core.text import instant, plural
from headrace.writer.framing.wire_format import show_id
from headrace.writer.output.cli_options import time_of
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import ChosenPipeline, Pipeline
from headrace.writer.output.report import Report
from headrace.writer.output.tables import Column, TextTable, sentence
from headrace.writer.schemas.meaning_acceptance import MeaningAcceptance, SchemaMeaning, show_fingerprint
from headrace.writer.schemas.registry import SchemaSource, source

_STATES = {
    "same": "means what it did",
    "other": "another schema",
    "no_avro": "no Avro: nothing to accept, its records are dead letters",
    "gone": "not in the registry: nothing to accept, its records are dead letters",
}


@dataclass(frozen=True)
class SchemaIdLine:
    """A schema id, with the fingerprints of its schemas by the log and by the registry."""

    id: str
    state: Literal["same", "other", "no_avro", "gone"]
    before: str
    # None: the registry has no Avro schema of the id.
    now: str | None
    # Name of the registry's schema.
    schema: str | None


@dataclass(frozen=True)
class SchemaAcceptReport(Report):
    """The schema ids by which records were read, and what became of those that mean other schemas."""

    pipeline: str
    registry: str
    # From when on ids mean other schemas; None: none does.
    since: datetime | None
    # Of the table's log, that has the new meanings; None: they are only shown.
    version: int | None
    ids: Sequence[SchemaIdLine]

    @property
    def has_changes(self) -> bool:
        """Whether an id means another schema."""
        return self.since is not None

    def render(self, out: Console) -> None:
        """Draw the ids, and what is to follow."""
        ids = plural(len(self.ids), "schema id")
        sentence(out, f"{self.pipeline}: {ids} of {self.registry} by which records were read", "bold")
        columns = [Column("id", right=True, width_min=6), *map(Column, ("in the log", "now", "schema", ""))]
        TextTable(out, columns).add(
            [[line.id, line.before, line.now or "-", line.schema or "-", _STATES[line.state]] for line in self.ids]
        )
        if self.since is None:
            sentence(out, "There is nothing to accept.")
            return
        sentence(
            out,
            f"Records that Kafka had before {instant(self.since)} are taken for those of the old schemas: a batch, a "
            "replay and a backfill that meet them leave them as dead letters. --since moves this instant.",
        )
        if self.version is None:
            sentence(
                out,
                "`headrace schema plan --id N` shows what a schema does to the table. Stop the driver, if one runs.",
            )
        else:
            sentence(
                out, f"Written as version {self.version} of the table. Start the pipeline: it reads by the new schemas."
            )


@command(
    exits={
        0: "shown or written",
        1: "the registry or the storage does not answer, or a driver runs",
        2: "configuration",
    }
)
def accept(
    pipeline: Pipeline,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="Only this id; may be repeated. Default: all that changed.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="From when on the ids mean this (2026-11-20T05:00Z). Default: when the newest batch began."
        ),
    ] = None,
    *,
    write: bool,
) -> SchemaAcceptReport:
    """Let schema ids mean what the registry says now, after it was made anew or gave ids out again.

    A start, a replay and a backfill refuse an id that means another schema than the one by which records were read.
    This shows such ids, and with --yes writes their new meanings into the table's log. Records that are older than
    --since are not read by them: they are, or stay, dead letters.
    """
    schemas = source(pipeline.config.registry_of(pipeline.name))
    return run_accept(pipeline, schemas, ids or [], time_of("--since", since), write=write, now=datetime.now(UTC))


def run_accept(
    pipeline: ChosenPipeline,
    schemas: SchemaSource,
    ids: Sequence[str],
    since: datetime | None,
    *,
    write: bool,
    now: datetime,
) -> SchemaAcceptReport:
    """Find which ids have other meanings, and write these if asked. Raises HeadraceError."""
    acceptance = MeaningAcceptance(pipeline.config, pipeline.name, schemas)
    plan = acceptance.plan(ids, since)
    version = None
    if write and plan.accepted:
        version = acceptance.carry_out(plan, now)
    lines = [_line(meaning) for meaning in plan.meanings.values()]
    return SchemaAcceptReport(pipeline.name, plan.registry, plan.since, version, lines)


def _line(meaning: SchemaMeaning) -> SchemaIdLine:
    now = None
    if meaning.now is not None:
        now = show_fingerprint(meaning.now)
    before = show_fingerprint(meaning.before)
    return SchemaIdLine(show_id(meaning.schema_id), meaning.state, before, now, meaning.name or None)
