"""One chunk of a backfill: through the writer's own rooms into files, then files and settled offsets in one entry.

It raises no epoch and moves no frontier, so the live writer goes on beside it. Whatever dies, the entry is there with
its files or it is not; what is open is read from the log each time, so a chunk is never settled twice.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any
from uuid import uuid4

import pyarrow as pa

import bucketers
from recovery.backfill.dedupe_rows import Unplaced
from recovery.backfill.source import ANY_AGE, Chunk, Piece
from writer.avro.schema_plan import PROVENANCE
from writer.avro.wire_format import CONFLUENT
from writer.batch import task
from writer.batch.bucketing import TimeRule
from writer.batch.task_report import Counts, Report
from writer.commit import builder
from writer.commit.missing_offsets import MissingOffsets, gaps
from writer.commit.poison_limit import check as check_poison
from writer.config.pipelines import Config
from writer.core import fault_points
from writer.core.errors import ConfigError, HeadraceError
from writer.core.offsets import Span, TopicPartition
from writer.maintenance.local_pipeline import LocalPipeline, opened
from writer.schemas.registry import SchemaSource
from writer.table.factory import all_tables
from writer.table.gap_tickets import standing
from writer.table.ledger.gap_ticket import GapRecord, without
from writer.table.log.foreign_writes import Overtaken
from writer.table.log.operations import Fill
from writer.table.log.snapshot import PipelineSnapshot


@dataclass(frozen=True)
class Settled:
    """One chunk that is in the table."""

    version: int
    offsets: int
    rows: int
    files: int
    bytes: int
    left: int  # offsets that are open after it
    done: bool


@dataclass
class _Carried:
    """A chunk after the rooms."""

    report: Report
    unplaced: int = 0
    left_out: int = 0
    accounts: list[dict[str, Any]] = field(default_factory=list)


class Filling:
    """The table of one pipeline, as a backfill reads and writes it."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource) -> None:
        """Open the tables. Raises HeadraceError when there are none."""
        self.name, self.config = name, config
        self.settings = config.pipelines[name]
        self._schemas = schemas
        self._tables = all_tables(name, config)
        self.table = self._tables.main
        self._walk: LocalPipeline | None = None
        self._columns: pa.Schema | None = None  # of the table, as the walk was opened
        if not (self.table.exists() and self._tables.side(self.settings.dead_letters).exists()):
            raise HeadraceError(f"pipeline {name!r} has no tables yet. `headrace run` makes them.")

    @property
    def walk(self) -> LocalPipeline:
        """The rooms, ready. Raises RegistryUnreachable, ConfigError."""
        self._walk = self._walk or opened(self.name, self.config, self._schemas)
        return self._walk

    def look(self) -> tuple[PipelineSnapshot, dict[str, GapRecord]]:
        """Let redo catch up, then read the tickets. Raises CommitFailed, LedgerUnreadable."""
        now = self.table.snapshot()
        self._tables.redo()
        if self._columns is not None and self._columns != now.columns():
            self._walk = None  # the live writer has met another schema
        self._columns = now.columns()
        return standing(self.table, self.name)

    def carry(
        self, ticket: GapRecord, snapshot: PipelineSnapshot, chunk: Chunk, source: str, by: str, now: datetime,
        paced: Any = iter,
    ) -> Settled:  # fmt: skip
        """Carry a chunk and commit it. `snapshot`: what the ticket was read from. `paced` slows its pieces down.

        Raises Overtaken when the ticket changed since, SourceFailed, LimitReached, CommitFailed.
        """
        _still_open(ticket, chunk)
        fault_points.point("before_chunk")
        done = self._unplaced(chunk, snapshot, paced) if chunk.unplaced else self._placed(chunk, paced)
        fault_points.point("after_chunk")
        try:
            version, fill = self._commit(ticket, snapshot, chunk, done, source, by, now)
        except (Overtaken, builder.StagedTooLongAgo):  # what else fails may have been committed all the same
            self._discard(done.report)
            raise
        fault_points.point("before_chunk_redo")
        self._tables.redo()
        rows = sum(file.rows for file in done.report.files)
        size = sum(file.bytes for file in done.report.files)
        return Settled(version, fill.offsets, rows, len(done.report.files), size, fill.left, fill.done)

    def _placed(self, chunk: Chunk, paced: Any) -> _Carried:
        """Carry records that have offsets; again when they meet schemas that the plan does not know."""
        incarnations = {part.topic: part.incarnation for part in chunk.spans}
        assert len(incarnations) == len({(p.topic, p.incarnation) for p in chunk.spans}), "one incarnation a chunk"
        while True:
            pieces: Iterator[Piece] = iter(paced(chunk.read(self.walk.plan)))
            first = next(pieces, None)
            raw = first is not None and first.rows is None
            if first is not None and raw:
                self.walk.settled(first.records)
            carried = task.Task(self._plan(incarnations, first))
            try:
                for piece in chain([] if first is None else [first], pieces):
                    self._take(carried, piece)
                report = carried.finish()
                if not report.unknown_schemas:
                    return self._accounted(chunk, report)
            except ValueError as error:
                carried.abandon()
                raise ConfigError(f"pipelines.{self.name}.event_time: {error}") from error
            except BaseException:
                carried.abandon()
                raise
            self.walk.learn(report.unknown_schemas)

    def _take(self, carried: task.Task, piece: Piece) -> None:
        size = self.settings.memory.batch_records
        for at in range(0, piece.records.num_rows, size):
            if piece.rows is None:
                carried.take(piece.records.slice(at, size))
            else:
                carried.take_rows(piece.records.slice(at, size), piece.rows.slice(at, size))

    def _accounted(self, chunk: Chunk, report: Report) -> _Carried:
        """Hold what was read against what the chunk settles. Raises SourceFailed, LimitReached."""
        holes = {part: found for part, spans in chunk.spans.items() if (found := _holes(part, spans, report))}
        try:
            chunk.confirm(list(holes.values()))
            limits = self.settings.limits
            check_poison(
                self.name, report.counts, report.poison,
                share_max=limits.failed_ratio_max, records_min=limits.failed_records_min,
            )  # fmt: skip
        except BaseException:
            self._discard(report)
            raise
        accounts = []
        for part, spans in chunk.spans.items():
            counts = report.counts.get((part.topic, part.partition), Counts())
            told = {"holes": holes[part].told()} if part in holes else {}
            accounts.append({**vars(part), "spans": [list(s) for s in spans], **counts.outcomes(), **told})
        return _Carried(report, accounts=accounts)

    def _unplaced(self, chunk: Chunk, snapshot: PipelineSnapshot, paced: Any) -> _Carried:
        """Carry rows that have no offset: those whose keys the table does not have."""
        doing = Unplaced(self.table, snapshot, self.settings, self._destination(), self._rule(ANY_AGE))
        report, rows, out = doing.carried(p.rows for p in paced(chunk.read(self.walk.plan)) if p.rows is not None)
        return _Carried(report, rows, out)

    def _commit(
        self, ticket: GapRecord, snapshot: PipelineSnapshot, chunk: Chunk, done: _Carried, source: str, by: str,
        now: datetime,
    ) -> tuple[int, Fill]:  # fmt: skip
        builder.check_age(now, datetime.now(UTC), self.config.pipelines[self.name].table.orphan_retention)
        self.table.grow([*self.walk.plan.columns, *PROVENANCE])  # before any file has them
        report, rows = done.report, sum(file.rows for file in done.report.files)
        left = sum(r.end - r.start for r in ticket.left()) - chunk.offsets
        facts = {
            "at": datetime.now(UTC).isoformat(), "by": by, "source": source, "ranges": done.accounts, "rows": rows,
            "bytes": sum(file.bytes for file in report.files), "files": len(report.files), "unplaced": done.unplaced,
            "left_out": done.left_out, "through": chunk.through or None,
            "seconds": {room: round(spent, 3) for room, spent in report.seconds.items()},
        }  # fmt: skip
        side = {self.settings.dead_letters: report.dead_letter_files} if report.dead_letter_files else {}
        fill = Fill(
            uuid4().hex, ticket.id, snapshot.changes(ticket.id), chunk.offsets, left, chunk.last or left == 0,
            report.files, side, facts, self.walk.meant(report.schemas),
        )  # fmt: skip
        return self.table.fill(snapshot, fill), fill

    def _plan(self, incarnations: Mapping[str, int], first: Piece | None) -> task.TaskPlan:
        walk, settings = self.walk, self.settings
        to = self._destination()
        return replace(to, wire=walk.wire or CONFLUENT, incarnations=incarnations, schemas=walk.plan,
                       time_rule=self._rule(_age(first, to.now)), dead_letters=settings.dead_letters)  # fmt: skip

    def _rule(self, older: Any) -> TimeRule:
        """Believe what was believable when the broker had it: a gap may be far older than `event_time.max_age`."""
        rule = self.walk.time_rule
        return rule if rule.age_max >= ANY_AGE else replace(rule, age_max=min(ANY_AGE, rule.age_max + older))

    def _destination(self) -> task.TaskPlan:
        settings, walk = self.settings, self.walk
        return task.TaskPlan(
            now=datetime.now(UTC), frontier={}, incarnations={}, schemas=walk.plan, time_rule=walk.time_rule,
            bucket=settings.bucket, bucket_columns=bucketers.build(settings.bucket).columns,
            table=settings.table.location, dead_letters=settings.dead_letters, prefix="backfill",
            budget=settings.memory.buffer, target_file_size=settings.roll.target_file_size,
            entropy_bits=settings.table.entropy_bits, hidden=self.table.hidden, s3=self.config.s3.settings,
        )  # fmt: skip

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        self._tables.discard(report.files, {self.settings.dead_letters: report.dead_letter_files})


def _still_open(ticket: GapRecord, chunk: Chunk) -> None:
    """Raise Overtaken where a chunk would settle what is not open: it was planned before somebody else brought it."""
    left: dict[TopicPartition, list[Span]] = {}
    for r in ticket.left():
        left.setdefault(r.part, []).append((r.start, r.end))
    for part, spans in chunk.spans.items():
        if gone := without(spans, left.get(part, ())):
            raise Overtaken(f"offsets {gone[0]} of {part.topic}/{part.partition} were brought meanwhile: look again")


def _holes(part: TopicPartition, spans: Sequence[tuple[int, int]], report: Report) -> MissingOffsets | None:
    """Find the offsets of a chunk's part that gave no record; None when each gave one."""
    source = (part.topic, part.partition)
    counts = report.counts.get(source, Counts())
    missing = sum(end - start for start, end in spans) - counts.read
    assert missing >= 0, f"{source}: {counts.read} records were read, more than the chunk has offsets"
    if missing == 0:
        return None
    unread = tuple(span for start, end in spans for span in gaps(counts.spans, start, end))
    if counts.spans_whole:
        found = sum(end - start for start, end in unread)
        assert found == missing, f"{source}: {missing} offsets gave no record, but {found} were not seen"
    return MissingOffsets(source, missing, unread, counts.spans_whole)


def _age(first: Piece | None, now: datetime) -> Any:
    """Return how long ago the broker had the first record; where nobody knows, any age is believed."""
    times = [] if first is None else [t for t in first.records.column("timestamp").to_pylist() if t is not None]
    oldest = min(times, default=None)
    return ANY_AGE if oldest is None or oldest.year <= 1970 else max(now - oldest, now - now)  # noqa: PLR2004
