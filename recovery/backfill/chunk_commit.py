"""Commits one chunk of a backfill: runs the steps of a task, then adds files and filled offsets in one entry.

It raises no epoch and moves no frontier, so the live writer goes on beside it. Whatever dies, the entry is there with
its files or it is not; what is open is read from the log each time, so a chunk is never settled twice.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from recovery.backfill.dedupe_rows import Unplaced
from recovery.backfill.source import Chunk
from writer.batch.plan import TaskPlan
from writer.batch.task_report import Counts, Report
from writer.commit import builder, missing_offsets as missing
from writer.commit.failed_records_limit import check as check_failed_records
from writer.config.pipelines import Config
from writer.core import fault_points
from writer.core.offsets import Span, TopicPartition, without
from writer.maintenance.local_pipeline import ANY_AGE, LocalPipeline, Piece, age_of, believing, opened
from writer.schemas.registry import SchemaSource
from writer.table.factory import all_tables
from writer.table.gap_records import gap_records_in_snapshot
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.foreign_writes import Overtaken
from writer.table.log.operations import Fill
from writer.table.log.snapshot import PipelineSnapshot


@dataclass(frozen=True)
class ChunkCommit:
    """One chunk that is in the table."""

    version: int
    offsets: int
    rows: int
    files: int
    bytes: int
    left: int  # offsets that are open after it
    done: bool


@dataclass
class _ChunkOutcome:
    """What the task made of a chunk."""

    report: Report
    unplaced: int = 0
    left_out: int = 0
    accounts: list[dict[str, Any]] = field(default_factory=list)


class BackfilledTable:
    """The table of one pipeline, as a backfill reads and writes it."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource) -> None:
        """Open the tables. Raises HeadraceError when there are none."""
        self.name, self.config = name, config
        self.settings = config.pipelines[name]
        self._schemas = schemas
        self.tables = all_tables(name, config)
        self.table = self.tables.main
        self._walk: LocalPipeline | None = None
        self._known: tuple[pa.Schema, int, int] | None = None  # columns, specs, privacy, as the walk was opened
        self.table.check_exists()
        self.tables.side(self.settings.dead_letters).check_exists()

    @property
    def walk(self) -> LocalPipeline:
        """The pipeline, for tasks in this process. Raises RegistryUnreachable, ConfigError."""
        self._walk = self._walk or opened(self.name, self.config, self._schemas, tables=self.tables)
        return self._walk

    @property
    def raw(self) -> str | None:
        """Location of the raw table, where the pipeline keeps records in one."""
        place = self.settings.raw_place
        return place if place in self.table.snapshot().raw_places else None

    def look(self) -> tuple[PipelineSnapshot, dict[str, GapRecord]]:
        """Apply pending side files, then read the gap records. Raises CommitFailed, LedgerUnreadable."""
        self.follow()
        return gap_records_in_snapshot(self.table, self.name)

    def follow(self) -> PipelineSnapshot:
        """Apply pending side files, and see which columns the table has by now. Raises CommitFailed."""
        now = self.table.snapshot()
        self.tables.apply_side_files()
        known = now.columns(), now.specs, now.privacy
        if self._known is not None and self._known != known:
            self._walk = None  # the live writer has met another schema, or was started with other specs or privacy
        self._known = known
        return now

    def carry(
        self, gap_record: GapRecord, snapshot: PipelineSnapshot, chunk: Chunk, source: str, by: str, now: datetime,
        paced: Any = iter,
    ) -> ChunkCommit:  # fmt: skip
        """Carry a chunk and commit it. `snapshot`: what the gap record was read from. `paced` slows its pieces down.

        Raises Overtaken when the gap record changed since, SourceFailed, LimitReached, CommitFailed.
        """
        _still_open(gap_record, chunk)
        fault_points.point("before_chunk")
        done = self._unplaced(chunk, snapshot, paced) if chunk.unplaced else self._placed(chunk, paced)
        fault_points.point("after_chunk")
        try:
            version, fill = self._commit(gap_record, snapshot, chunk, done, source, by, now)
        except (Overtaken, builder.StagedTooLongAgo):  # what else fails may have been committed all the same
            self._discard(done.report)
            raise
        fault_points.point("before_chunk_redo")
        self.tables.apply_side_files()
        sums = builder.sums(builder.row_files(done.report))
        return ChunkCommit(version, fill.offsets, sums["rows"], sums["files"], sums["bytes"], fill.left, fill.done)

    def _placed(self, chunk: Chunk, paced: Any) -> _ChunkOutcome:
        """Carry records that have offsets; again when they meet schemas that the plan does not know."""
        incarnations = {part.topic: part.incarnation for part in chunk.spans}
        assert len(incarnations) == len({(p.topic, p.incarnation) for p in chunk.spans}), "one incarnation a chunk"

        def plan(first: Piece | None) -> TaskPlan:
            now = datetime.now(UTC)
            found = self.walk.task_plan(now, "backfill", incarnations, _age(first, now))
            return replace(found, raw=self.raw if chunk.raw else None)

        report = self.walk.run(lambda schemas: paced(chunk.read(schemas)), plan)
        try:
            return self._accounted(chunk, report)
        except BaseException:
            self._discard(report)
            raise

    def _accounted(self, chunk: Chunk, report: Report) -> _ChunkOutcome:
        """Compare what was read with what the chunk settles. Raises SourceFailed, LimitReached."""
        each = {
            part: missing.without_records((part.topic, part.partition), spans, report)
            for part, spans in chunk.spans.items()
        }
        without_records = {part: found for part, found in each.items() if found is not None}
        chunk.confirm(list(without_records.values()))
        check_failed_records(self.name, report, self.settings.limits)
        accounts = []
        for part, spans in chunk.spans.items():
            counts = report.counts.get((part.topic, part.partition), Counts())
            unread = {"without_records": without_records[part].to_dict()} if part in without_records else {}
            accounts.append({**vars(part), "spans": [list(s) for s in spans], **counts.outcomes(), **unread})
        return _ChunkOutcome(report, accounts=accounts)

    def _unplaced(self, chunk: Chunk, snapshot: PipelineSnapshot, paced: Any) -> _ChunkOutcome:
        """Add rows without offsets whose keys the table does not have."""
        self.config.one_table(self.name)
        doing = Unplaced(self.table, snapshot, self.settings, self._plan(), believing(self.walk.time_rule, ANY_AGE))
        pieces = (p.rows for p in paced(chunk.read(self.walk.plan)) if p.rows is not None)
        report, rows, out = doing.carried(pieces, chunk.keys)
        return _ChunkOutcome(report, rows, out)

    def _commit(
        self, gap_record: GapRecord, snapshot: PipelineSnapshot, chunk: Chunk, done: _ChunkOutcome, source: str,
        by: str, now: datetime,
    ) -> tuple[int, Fill]:  # fmt: skip
        builder.check_age(now, datetime.now(UTC), self.config.pipelines[self.name].table.orphan_retention)
        self.walk.grow(self.table)  # before any file has them
        report = done.report
        left = sum(r.end - r.start for r in gap_record.left()) - chunk.offsets
        facts = {
            "at": datetime.now(UTC).isoformat(), "by": by, "source": source, "ranges": done.accounts,
            **builder.sums(builder.row_files(report)), **builder.target_facts(report),
            **builder.spec_facts(report, self.walk.specs),
            "unplaced": done.unplaced, "left_out": done.left_out,
            "through": chunk.through or None,
            "seconds": {step: round(spent, 3) for step, spent in report.seconds.items()},
        }  # fmt: skip
        fill = Fill(
            uuid4().hex, gap_record.id, snapshot.changes(gap_record.id), chunk.offsets, left, chunk.last or left == 0,
            report.files, self.walk.side_files(report), facts, self.walk.schemas.meant(report),
            self.walk.schemas.privacy_version,
        )  # fmt: skip
        return self.table.fill(snapshot, fill), fill

    def _plan(self) -> TaskPlan:
        return self.walk.task_plan(datetime.now(UTC), "backfill", {})

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        self.tables.discard(report.files, self.walk.side_files(report))


def _still_open(gap_record: GapRecord, chunk: Chunk) -> None:
    """Raise Overtaken where a chunk would settle what is not open: it was planned before another process brought it."""
    left: dict[TopicPartition, list[Span]] = {}
    for r in gap_record.left():
        left.setdefault(r.part, []).append((r.start, r.end))
    for part, spans in chunk.spans.items():
        if gone := without(spans, left.get(part, ())):
            raise Overtaken(f"offsets {gone[0]} of {part.topic}/{part.partition} were brought meanwhile: look again")


def _age(first: Piece | None, now: datetime) -> timedelta:
    """Return how long ago the broker had the first records."""
    times = None if first is None else first.records.column("timestamp")
    return age_of(None if times is None or times.null_count else pc.min(times).as_py(), now)
