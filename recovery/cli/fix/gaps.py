"""`headrace gaps`: lists, shows, opens and closes gaps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import uuid4

import typer
from rich.console import Console

from headrace.recovery import identity
from headrace.recovery.cli.fix.gap_choice import find_gap
from headrace.writer.clients.kafka_sample import open_cluster
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.text import instant, plural
from headrace.writer.offsets import skip_to_latest, start_decision
from headrace.writer.output.cli_options import By
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline, PipelineNames
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, numbers, sentence
from headrace.writer.table.backfill_locks import BackfillLocks
from headrace.writer.table.factory import existing_table
from headrace.writer.table.gap_records import ID_SHOWN, gap_records, gap_records_in_snapshot
from headrace.writer.table.ledger.gap_record import GapEnd, GapRecord
from headrace.writer.table.log.operations.gaps import Loss
from headrace.writer.table.table import PipelineTable

_COLUMNS = [
    *(Column(title) for title in ("pipeline", "gap", "state", "opened", "cause")),
    *numbers("offsets", "left"),
    Column("by"),
]
_Gap = Annotated[str, typer.Argument(help="Id of the gap, or its beginning; of any pipeline.")]


class NotOpen(ConfigError):
    """The gap has ended already."""


@dataclass(frozen=True)
class GapEnding:
    """How a gap ended. `left`: offsets that are not filled."""

    version: int
    how: Literal["done", "lost", "rewound"]
    at: datetime | None
    by: str
    reason: str
    left: int

    @property
    def text(self) -> str:
        """What a person reads of it."""
        text = f"{self.how} as version {self.version} of the table"
        if self.at is not None:
            text += f" at {instant(self.at)}"
        if self.by:
            text += f" by {self.by}"
        if self.left:
            text += f", {plural(self.left, 'offset')} not filled"
        return f"{text}: {self.reason}" if self.reason else text


@dataclass(frozen=True, kw_only=True)
class GapReport(Report):
    """One gap. What its opening says is None where that is not known any more."""

    pipeline: str
    id: str
    state: Literal["open", "claimed", "done", "lost", "rewound"]
    opened_at: datetime | None = None
    opened_by: str | None = None
    cause: str | None = None
    reason: str | None = None
    version: int | None = None
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    offsets: int
    left: int
    rows: int
    unplaced: int
    files: int
    sources: Sequence[str]
    approximate: bool
    # The process that fills it now.
    claimed_by: str | None
    ranges: Sequence[OffsetRange]
    open: Sequence[OffsetRange]
    # Each with `from`, which no field can be called, and `until`.
    hints: Sequence[Mapping[str, datetime | None]] = ()
    ended: GapEnding | None

    @property
    def short_id(self) -> str:
        """Its id, for a person."""
        return self.id[:ID_SHOWN]

    @property
    def is_open(self) -> bool:
        """Whether offsets of it are still to be filled or given up."""
        return self.state in ("open", "claimed")

    def render(self, out: Console) -> None:
        """Draw all that is known of it."""
        out.print(f"[bold]gap {self.id}[/bold]  {self.state}", soft_wrap=True)
        for label, text in self._labels():
            if text:
                out.print(f"{label:<11} {text}", soft_wrap=True, markup=False)

    def _labels(self) -> Iterator[tuple[str, str | int | None]]:
        """Yield what it has, each with its label."""
        yield "pipeline", self.pipeline
        yield "opened at", instant(self.opened_at) if self.opened_at else None
        yield "cause", self.cause
        yield "reason", self.reason
        yield "opened by", self.opened_by
        yield "claimed by", self.claimed_by
        yield "offsets", self.offsets
        yield "left", self.left
        yield "rows", self.rows
        yield "unplaced", self.unplaced
        for title, ranges in (("skipped", self.ranges), ("open", self.open)):
            for r in ranges:
                yield title, f"{r.part.name} of incarnation {r.part.incarnation} [{r.start:,}, {r.end:,})"
        for hint in self.hints:
            start = instant(hint["from"]) if hint["from"] else "the beginning"
            yield "event time", f"from {start} to {instant(hint['until'])}"
        yield "ended", self.ended.text if self.ended else None


@dataclass(frozen=True)
class GapListReport(Report):
    """The gaps of each pipeline."""

    pipelines: Mapping[str, Sequence[GapReport]]

    @property
    def _open_count(self) -> int:
        return sum(gap.is_open for gaps in self.pipelines.values() for gap in gaps)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a gap is open."""
        return 1 if self._open_count else 0

    def render(self, out: Console) -> None:
        """Draw a line for each gap, and what to do about them."""
        rows = [_cells(name, gap) for name, gaps in self.pipelines.items() for gap in gaps]
        if rows:
            TextTable(out, _COLUMNS).add(rows)
            out.print()
        message = "No gap is open."
        if self._open_count:
            message = f"{plural(self._open_count, 'gap')} open; `headrace backfill` brings what was skipped."
        sentence(out, message)


@dataclass(frozen=True)
class ClosingReport(Report):
    """What is given up of a gap, or would be. `version`: None: nothing was written."""

    pipeline: str
    gap: str
    state: Literal["open", "lost"]
    offsets: int
    version: int | None
    ranges: Sequence[OffsetRange] = field(metadata=SCREEN_ONLY)
    reason: str = field(metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw what nobody brings any more."""
        offsets = plural(self.offsets, "offset")
        if self.version is not None:
            sentence(out, f"{self.pipeline}: {offsets} given up, as version {self.version} of the table: {self.reason}")
            return
        _render_ranges(self.ranges, out)
        sentence(
            out,
            f"{self.pipeline}: {offsets} of gap {self.gap[:ID_SHOWN]} would be given up: nobody brings them. `headrace "
            "backfill` does, where a copy is left.",
        )


@dataclass(frozen=True)
class OpeningReport(Report):
    """What is skipped, or would be. `gap` and `version`: None: nothing was written."""

    pipeline: str
    offsets: int
    kafka_holds: int
    ranges: Sequence[OffsetRange]
    gap: str | None
    version: int | None

    @property
    def has_changes(self) -> bool:
        """Whether anything waits in Kafka."""
        return bool(self.ranges)

    def render(self, out: Console) -> None:
        """Draw what is skipped."""
        if not self.ranges:
            sentence(out, f"{self.pipeline}: nothing waits in Kafka; there is nothing to skip.")
            return
        _render_ranges(self.ranges, out)
        subject = f"{self.pipeline}: {plural(self.offsets, 'offset')}"
        if self.gap is None:
            sentence(out, f"{subject} would be skipped, of which Kafka still holds {self.kafka_holds:,}.")
            return
        sentence(
            out,
            f"{subject} skipped, of which Kafka still holds {self.kafka_holds:,}; gap {self.gap[:ID_SHOWN]}, version "
            f"{self.version} of the table. Start the pipeline, then `headrace backfill`.",
        )


@command(exits={0: "none is open", 1: "some are, or a table cannot be read", 2: "configuration"})
def list_(
    pipelines: PipelineNames,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are done or lost.")] = False,
) -> GapListReport:
    """List the gaps that are open: what was skipped, why, and which backfill fills it now. Reads the lake only."""
    now = datetime.now(UTC)
    gaps: dict[str, list[GapReport]] = {}
    for name in pipelines.names:
        table = existing_table(name, pipelines.config)
        records = gap_records(table, name).values()
        gaps[name] = [_report(name, table, record, now) for record in records if all_ or record.state == "open"]
    return GapListReport(gaps)


@command(exits={0: "shown", 1: "the table cannot be read", 2: "configuration, or no such gap"})
def show(pipelines: PipelineNames, gap: _Gap) -> GapReport:
    """Show one gap: its ranges, where in event time its records may lie, what was brought and what is open."""
    chosen = find_gap(pipelines, gap)
    table = existing_table(chosen.pipeline, pipelines.config)
    return _report(chosen.pipeline, table, chosen.gap_record, datetime.now(UTC))


@command(
    exits={
        0: "shown or closed",
        1: "another process changed it meanwhile, or the storage does not answer",
        2: "configuration, or it is not open",
    }
)
def close(
    pipelines: PipelineNames,
    gap: _Gap,
    reason: Annotated[str, typer.Option("--reason", help="Why its records will not be brought back.")],
    by: By = None,
    *,
    write: bool,
) -> ClosingReport:
    """Give up what is open of a gap: its records are lost. Buckets that it touches are sealed, and say so.

    There is no way back. A gap that is filled closes by itself.
    """
    if not reason.strip():
        raise ConfigError("--reason is empty; say why the records will not be brought back")
    facts = {"by": by or identity.person(), "reason": reason, "at": datetime.now(UTC).isoformat()}
    chosen = find_gap(pipelines, gap)
    table = existing_table(chosen.pipeline, pipelines.config)
    return close_gap(table, chosen.pipeline, chosen.gap_record.id, facts, write=write)


@command(
    exits={
        0: "shown or written",
        1: "a driver runs or Kafka does not answer",
        2: "configuration, or it cannot be skipped",
        4: "another process committed meanwhile",
    }
)
def open_(
    pipeline: Pipeline,
    reason: Annotated[str, typer.Option("--reason", help="Why what waits is to be skipped.")],
    to: Annotated[Literal["latest"], typer.Option("--to", help="Up to where: the end of Kafka's log.")] = "latest",
    fence: Annotated[
        bool, typer.Option("--fence", help="Also while a driver runs: the entry fences it, its next commit is exit 4.")
    ] = False,
    by: By = None,
    *,
    write: bool,
) -> OpeningReport:
    """Skip all that waits in Kafka, as the last resort: the table reads on at the end, and a gap says what it skipped.

    One entry of the table's log moves the frontier and carries the gap. Then start the pipeline, and bring the records
    with `headrace backfill` while it runs.
    """
    assert to == "latest"
    if not reason.strip():
        raise ConfigError("--reason is empty; say why what waits is to be skipped")
    return open_gap(pipeline.config, pipeline.name, reason, by or identity.person(), fence=fence, write=write)


def close_gap(table: PipelineTable, name: str, gap: str, facts: Mapping[str, str], *, write: bool) -> ClosingReport:
    """Find what would be given up of a gap, or give it up. Raises NotOpen, CommitFailed.

    `gap`: its id. `facts`: who closes it, why and when.
    """
    snapshot, records = gap_records_in_snapshot(table, name)
    gap_record = records[gap]
    if gap_record.state != "open":
        raise NotOpen(f"gap {gap_record.id[:ID_SHOWN]} is {gap_record.state} already.")
    open_offsets = gap_record.unfilled_offsets
    state: Literal["open", "lost"] = "open"
    version = None
    if write:
        changes = snapshot.gap_changes(gap_record.id)
        version = table.append(Loss(uuid4().hex, gap_record.id, changes, open_offsets.count, facts), snapshot)
        state = "lost"
    return ClosingReport(
        name, gap_record.id, state, open_offsets.count, version, open_offsets.ranges(), facts["reason"]
    )


def open_gap(config: Config, name: str, reason: str, by: str, *, fence: bool, write: bool) -> OpeningReport:
    """Find what would be skipped, or skip it. Raises ConfigError where nothing may be skipped, HeadraceError."""
    preview = skip_to_latest.preview_skip(config, name, open_cluster(config.kafka), "person")
    if isinstance(preview.decision, start_decision.Refuse):
        raise ConfigError(preview.decision.reason)
    ranges: Sequence[OffsetRange] = ()
    if isinstance(preview.decision, skip_to_latest.Skip):
        ranges = preview.decision.ranges
    gap = None
    version = None
    if write:
        now = datetime.now(UTC)
        entry = skip_to_latest.skip(config, name, preview, by=by, reason=reason, now=now, fence=fence)
        if entry is not None:
            version = entry[0]
            gap = entry[1].id
    return OpeningReport(name, sum(r.count for r in ranges), preview.offsets_in_kafka, ranges, gap, version)


def _report(pipeline: str, table: PipelineTable, gap_record: GapRecord, now: datetime) -> GapReport:
    owner = _lock_owner(table, gap_record, now)
    open_offsets = gap_record.unfilled_offsets
    report = GapReport(
        pipeline=pipeline,
        id=gap_record.id,
        state="claimed" if owner else gap_record.state,
        offsets=gap_record.offsets,
        left=open_offsets.count,
        rows=gap_record.rows,
        unplaced=gap_record.unplaced,
        files=gap_record.files,
        sources=gap_record.sources,
        approximate=gap_record.unplaced > 0,
        claimed_by=owner,
        ranges=gap_record.skipped_ranges,
        open=open_offsets.ranges(),
        ended=_ending(gap_record.ended),
    )
    opened = gap_record.opened
    if opened is None:
        return report
    return replace(
        report,
        opened_at=opened.opened_at,
        opened_by=opened.by or "the writer",
        cause=opened.cause,
        reason=opened.reason,
        version=opened.version,
        topic_ids=opened.topic_ids,
        hints=[{"from": hint.start, "until": hint.end} for hint in opened.hints],
    )


def _ending(gap_end: GapEnd | None) -> GapEnding | None:
    if gap_end is None:
        return None
    return GapEnding(gap_end.version, gap_end.how, gap_end.ended_at, gap_end.by, gap_end.reason, gap_end.left)


def _lock_owner(table: PipelineTable, gap_record: GapRecord, now: datetime) -> str | None:
    """Return the process that fills a gap now; None: none does."""
    if gap_record.state != "open":
        return None
    lock = BackfillLocks(table.store).newest(gap_record.id)
    if lock is None or not lock.is_valid(now) or identity.is_gone(lock.owner):
        return None
    return lock.owner


def _cells(name: str, gap: GapReport) -> list[str]:
    ended_by = gap.ended.by if gap.ended else ""
    return [
        name,
        gap.short_id,
        gap.state,
        instant(gap.opened_at) if gap.opened_at else "?",
        gap.cause or "?",
        f"{gap.offsets:,}",
        f"{gap.left:,}",
        gap.claimed_by or ended_by or gap.opened_by or "",
    ]


def _render_ranges(ranges: Sequence[OffsetRange], out: Console) -> None:
    for r in ranges:
        text = f"{r.part.name} [{r.start:,}, {r.end:,})  {plural(r.count, 'offset')}"
        out.print(text, soft_wrap=True, markup=False)
