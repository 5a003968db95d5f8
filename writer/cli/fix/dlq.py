"""`headrace dlq`: lists, shows and replays dead letters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from headrace.writer.commit.privacy import record_screen
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import SchemaChanged
from headrace.writer.core.freed_memory import keep_freed_memory
from headrace.writer.core.offsets import Span
from headrace.writer.core.text import instant, iso, plural
from headrace.writer.maintenance.dead_letters.listing import (
    DeadLetterGroup,
    RecordPosition,
    decode_dead_letters,
    first_dead_letters,
    group_dead_letters,
)
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.output.cli_options import time_of
from headrace.writer.output.command import Depends, command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, hanging, legible, plain, sentence, visible
from headrace.writer.schemas.registry import RegistryUnreachable, source

_BYTES_PER_LINE = 16
_BYTES_SHOWN = 8 * _BYTES_PER_LINE
_REASONS_SHOWN = 10
_OFFSET_MAX = 2**63 - 1
_GROUP_TABLE = [
    Column("records", right=True),
    Column("outcome"),
    Column("topic", width_max=24),
    Column("schema", right=True),
    Column("offsets", width_max=24),
    Column("newest"),
    Column("oldest", right=True),
]


def choose_dead_letters(
    outcome: Annotated[
        Literal["dead_letter", "quarantined"] | None, typer.Option("--outcome", help="Only these.", show_default=False)
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only where the reason has this text in it.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only of this topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Only of this partition.")] = None,
    offsets: Annotated[str | None, typer.Option("--offsets", help="Only from START to before END: 100:200.")] = None,
    schema_id: Annotated[int | None, typer.Option("--schema-id", help="Only with this schema id.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only written to Kafka at or after this time.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only written to Kafka before this time.")] = None,
) -> Selection:
    """Choose dead letters by the options that each command of the group has. Raises BadParameter."""
    return Selection(
        outcome,
        reason,
        topic,
        partition,
        _parse_range(offsets),
        schema_id,
        time_of("--since", since),
        time_of("--until", until),
    )


_Chosen = Annotated[Selection, Depends(choose_dead_letters)]


@dataclass(frozen=True)
class DeadLetterGroups(Report):
    """Dead letters by what they share."""

    pipeline: str
    groups: Sequence[DeadLetterGroup]

    def render(self, out: Console) -> None:
        """Draw a line for each group, and its reason below."""
        records = sum(group.records for group in self.groups)
        quarantined = sum(group.records for group in self.groups if group.outcome == "quarantined")
        counts = f"{plural(records - quarantined, 'dead letter')} and {quarantined:,} quarantined"
        sentence(out, f"{self.pipeline}: {counts}, of {plural(len(self.groups), 'kind')}", "bold")
        table = TextTable(out, _GROUP_TABLE)
        rows = [_group_row(group) for group in self.groups]
        table.settle(rows)
        for row, group in zip(rows, self.groups, strict=True):
            table.add([row])
            hanging(out, "    ", group.reason, "dim")


@dataclass(frozen=True)
class DeadLetterRecords(Report):
    """Dead letters one by one: a line each."""

    pipeline: str
    # As their table has them; without `value` and `headers` where these are not asked for.
    records: Sequence[Mapping[str, Any]]
    # Those that can be decoded.
    rows: Mapping[RecordPosition, Mapping[str, Any]]
    # Why none was decoded; None: some were, or none was to be.
    not_decoded: str | None
    has_values: bool

    def render(self, out: Console) -> None:
        """Draw each record."""
        if self.not_decoded is not None:
            sentence(out, f"not decoded: {self.not_decoded}", "yellow")
        if not self.records:
            sentence(out, f"{self.pipeline}: no such dead letters")
        for record in self.records:
            _render_record(out, record, self._row(record), values=self.has_values)

    def lines(self) -> Iterator[Any]:
        """Yield a line for each record."""
        for record in self.records:
            line = {key.lstrip("_"): value for key, value in record.items() if key not in ("value", "headers")}
            line["kafka_time"] = line["kafka_time"] and iso(line["kafka_time"])
            if self.has_values:
                line |= {"value": record["value"], "decoded": self._row(record), "not_decoded": self.not_decoded}
            yield plain(line)

    def _row(self, record: Mapping[str, Any]) -> Mapping[str, Any] | None:
        return self.rows.get((record["_topic"], record["_partition"], record["_offset"]))


@dataclass(frozen=True)
class FailedDeadLetters:
    """Dead letters that failed again, and stay, by what they share."""

    outcome: str
    schema_id: int | None
    reason: str
    records: int


@dataclass(frozen=True)
class ReplayReport(Report):
    """What becomes of the dead letters that are chosen. `filtered`: those that event specs leave out by now."""

    pipeline: str
    chosen: int
    rows: int = 0
    filtered: int = 0
    # Of the table.
    versions: Sequence[int] = ()
    failed: Sequence[FailedDeadLetters] = ()
    # What is chosen, where nothing was replayed.
    preview: DeadLetterGroups | None = field(default=None, metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a replay brought no row."""
        is_fruitless = self.preview is None and self.rows == 0
        return 1 if is_fruitless else 0

    @property
    def has_changes(self) -> bool:
        """Whether a dead letter is chosen."""
        return self.chosen > 0

    def render(self, out: Console) -> None:
        """Draw what is chosen, or what became of it."""
        if self.preview is not None:
            self.preview.render(out)
            return
        if self.chosen == 0:
            sentence(out, f"{self.pipeline}: no dead letter that has its bytes is chosen, so no row came.")
            return
        became = f"{self.rows:,} became rows" if self.rows else "none became a row"
        summary = f"{self.pipeline}: of {plural(self.chosen, 'dead letter')} {became}"
        if self.versions:
            summary += f" in {plural(len(self.versions), 'commit')}"
        sentence(out, summary, "bold")
        if self.filtered:
            sentence(out, f"{plural(self.filtered, 'dead letter')} went, which event specs leave out.")
        if self.failed:
            failed = sum(group.records for group in self.failed)
            sentence(out, f"{plural(failed, 'dead letter')} failed again and stay:")
        for group in sorted(self.failed, key=lambda group: -group.records)[:_REASONS_SHOWN]:
            hanging(out, f"{group.records:>8,} ", group.reason)


@command(exits={0: "shown", 1: "the table is not there or cannot be read", 2: "configuration"})
def list_(pipeline: Pipeline, chosen: _Chosen) -> DeadLetterGroups:
    """List dead letters by outcome, topic, schema and reason. Reads the lake only."""
    return DeadLetterGroups(pipeline.name, group_dead_letters(pipeline.name, pipeline.config, chosen))


@command(
    exits={0: "shown", 1: "the table is not there or cannot be read", 2: "configuration"},
    json_form="a line for each dead letter",
    has_lines=True,
)
def show(
    pipeline: Pipeline,
    chosen: _Chosen,
    dead_letters: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many.")] = 20,
    values: Annotated[
        bool, typer.Option("--values", help="Show what is in them, too: it may be about people.")
    ] = False,
) -> DeadLetterRecords:
    """Show dead letters one by one: where they stood, why they are no rows, their keys."""
    name = pipeline.name
    screen = record_screen(name, pipeline.config)
    # Whether a reason may quote a value, the value says.
    has_values = values or screen.hides
    records = first_dead_letters(name, pipeline.config, chosen, dead_letters, has_values=has_values)
    rows: Mapping[RecordPosition, Mapping[str, Any]] = {}
    problem = None
    if values and records.num_rows:
        rows, problem = _decode(name, pipeline.config, records)
    if records.num_rows:
        records = screen.table(records)
    # cold: at most --limit records
    return DeadLetterRecords(name, records.to_pylist(), rows, problem, values)


@command(
    exits={
        0: "rows came, or it is only shown",
        1: "no row came, or the registry or the storage does not answer",
        2: "configuration",
    }
)
def replay(pipeline: Pipeline, chosen: _Chosen, *, write: bool) -> ReplayReport:
    """Carry dead letters through the writer once more, by today's schemas and configuration, exactly once.

    What becomes a row leaves the dead letters in the same commit; what fails again stays, with its new reason. May be
    killed, repeated, and run beside the writer, which goes on.
    """
    name = pipeline.name
    if not write:
        groups = group_dead_letters(name, pipeline.config, chosen)
        preview = DeadLetterGroups(name, groups)
        return ReplayReport(name, sum(group.records for group in groups), preview=preview)
    keep_freed_memory()
    run = DeadLetterReplay(name, pipeline.config, source(pipeline.config.registry_of(pipeline.name)))
    result = run.run(chosen, datetime.now(UTC))
    failed = [
        FailedDeadLetters(outcome, schema_id, reason, count)
        for (outcome, schema_id, reason), count in result.failed.items()
    ]
    return ReplayReport(name, result.chosen, result.rows, result.filtered, result.versions, failed)


def _decode(
    name: str, config: Config, records: pa.Table
) -> tuple[Mapping[RecordPosition, Mapping[str, Any]], str | None]:
    """Decode what can be. Returns the rows, and why there are none."""
    try:
        return decode_dead_letters(name, config, source(config.registry_of(name)), records), None
    except (RegistryUnreachable, SchemaChanged) as error:
        return {}, str(error)


def _group_row(group: DeadLetterGroup) -> list[str]:
    return [
        f"{group.records:,}",
        group.outcome,
        group.topic,
        "-" if group.schema_id is None else str(group.schema_id),
        f"{group.offset_min} to {group.offset_max}",
        instant(group.time_max),
        instant(group.time_min),
    ]


def _render_record(out: Console, record: Mapping[str, Any], row: Mapping[str, Any] | None, *, values: bool) -> None:
    position = f"{record['_topic']}/{record['_partition']} offset {record['_offset']}"
    properties = [instant(record["_kafka_time"])]
    properties.append("no key" if record["key"] is None else f"key {legible(record['key'])}")
    if record["schema_id"] is not None:
        properties.append(f"schema id {record['schema_id']}")
    out.print(Text.assemble((position, "bold"), f"  {', '.join(properties)}"), soft_wrap=True)
    hanging(out, f"  {record['outcome']}: ", record["error"], "yellow")
    if not values or record["value"] is None:
        return
    _render_bytes(out, record["value"])
    if row is not None:
        hanging(out, "  decoded: ", str(plain(row)))


def _render_bytes(out: Console, value: bytes) -> None:
    for start in range(0, min(len(value), _BYTES_SHOWN), _BYTES_PER_LINE):
        piece = value[start : start + _BYTES_PER_LINE]
        line = f"  {start:04x}  {piece.hex(' '):<{3 * _BYTES_PER_LINE}} {visible(piece)}"
        out.print(Text(line, "dim"), soft_wrap=True)
    if len(value) > _BYTES_SHOWN:
        out.print(Text(f"  … {len(value):,} bytes", "dim"), soft_wrap=True)


def _parse_range(text: str | None) -> Span | None:
    if text is None:
        return None
    start, _, end = text.partition(":")
    try:
        return int(start or 0), int(end) if end else _OFFSET_MAX
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no range; write 100:200", param_hint="--offsets") from error
