"""Commits one chunk of a backfill: runs the steps of a task, then adds files and filled offsets in one entry.

It raises no epoch and moves no frontier, so the live writer goes on beside it. Whatever dies, the entry is there with
its files or it is not; what is open is read from the log each time, so a chunk is never settled twice.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from recovery.backfill.new_rows import NewRowStage
from recovery.backfill.source import Chunk
from writer.batch.plan import TaskPlan
from writer.batch.task_report import Counts, Report
from writer.commit import builder, missing_offsets as missing
from writer.commit.failed_records_limit import check_failed_records
from writer.config.pipelines import Config
from writer.core import fault_points
from writer.core.offsets import TopicPartition
from writer.maintenance.local_pipeline import (
    ANY_AGE,
    LocalPipeline,
    Piece,
    age_of,
    allow_older_events,
    open_local_pipeline,
)
from writer.schemas.registry import SchemaSource
from writer.table.factory import all_tables
from writer.table.gap_records import gap_records_in_snapshot
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.foreign_writes import Overtaken
from writer.table.log.operations.gaps import Fill
from writer.table.log.snapshot import PipelineSnapshot

# Yields pieces more slowly.
SlowDown = Callable[[Iterable[Piece]], Iterable[Piece]]


@dataclass(frozen=True)
class ChunkCommit:
    """One chunk that is in the table."""

    version: int
    offsets: int
    rows: int
    files: int
    bytes: int
    # Offsets that are open after it.
    left: int
    done: bool


@dataclass
class _ChunkResult:
    """What the task made of a chunk. `accounts`: one for each part, as the entry lists them."""

    report: Report
    unplaced: int = 0
    left_out: int = 0
    accounts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _Opening:
    """What the table's log says that a pipeline depends on, once it is open."""

    columns: pa.Schema
    specs: int
    privacy: int


class BackfilledTable:
    """The table of one pipeline, as a backfill reads and writes it."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource) -> None:
        """Open the tables. Raises HeadraceError when there are none."""
        self.name = name
        self.config = config
        self.settings = config.pipelines[name]
        self.tables = all_tables(name, config)
        self.table = self.tables.main
        self._schemas = schemas
        self._pipeline: LocalPipeline | None = None
        self._opening: _Opening | None = None
        self.table.check_exists()
        self.tables.side(self.settings.dead_letters).check_exists()

    @property
    def pipeline(self) -> LocalPipeline:
        """The pipeline, for tasks in this process. Raises RegistryUnreachable, ConfigError."""
        if self._pipeline is None:
            self._pipeline = open_local_pipeline(self.name, self.config, self._schemas, tables=self.tables)
        return self._pipeline

    @property
    def raw(self) -> str | None:
        """Location of the raw table, where the pipeline keeps records in one."""
        location = self.settings.raw_place
        return location if location in self.table.snapshot().raw_locations else None

    def read_gap_records(self) -> tuple[PipelineSnapshot, dict[str, GapRecord]]:
        """Apply pending side files, then read the gap records. Raises CommitFailed, LedgerUnreadable."""
        self.refresh()
        return gap_records_in_snapshot(self.table, self.name)

    def refresh(self) -> PipelineSnapshot:
        """Apply pending side files, and read which columns the table has by now. Raises CommitFailed."""
        snapshot = self.table.snapshot()
        self.tables.apply_side_files()
        opening = _Opening(snapshot.columns(), snapshot.specs, snapshot.privacy)
        if self._opening is not None and self._opening != opening:
            # The live writer has met another schema, or was started with other specs or privacy.
            self._pipeline = None
        self._opening = opening
        return snapshot

    def commit_chunk(
        self,
        gap_record: GapRecord,
        snapshot: PipelineSnapshot,
        chunk: Chunk,
        source: str,
        by: str,
        now: datetime,
        slow_down: SlowDown = iter,
    ) -> ChunkCommit:
        """Run the task of a chunk and commit it. `snapshot`: what the gap record was read from.

        Raises Overtaken when the gap record changed since, SourceFailed, LimitReached, CommitFailed.
        """
        _check_open(gap_record, chunk)
        fault_points.point("before_chunk")
        if chunk.unplaced:
            result = self._stage_new_rows(chunk, snapshot, slow_down)
        else:
            result = self._run_task(chunk, slow_down)
        fault_points.point("after_chunk")
        try:
            version, fill = self._commit(gap_record, snapshot, chunk, result, source, by, now)
        except (Overtaken, builder.StagedTooLongAgo):
            # What fails otherwise may have been committed all the same.
            self._discard(result.report)
            raise
        fault_points.point("before_chunk_redo")
        self.tables.apply_side_files()
        sums = builder.sums(builder.row_files(result.report))
        return ChunkCommit(version, fill.offsets, sums["rows"], sums["files"], sums["bytes"], fill.left, fill.done)

    def _run_task(self, chunk: Chunk, slow_down: SlowDown) -> _ChunkResult:
        """Run a task on records that have offsets; again when they meet schemas that the plan does not know."""
        incarnations = {part.topic: part.incarnation for part in chunk.spans}
        topics = {(part.topic, part.incarnation) for part in chunk.spans}
        assert len(incarnations) == len(topics), "one incarnation a chunk"

        def plan(first: Piece | None) -> TaskPlan:
            now = datetime.now(UTC)
            task_plan = self.pipeline.task_plan(now, "backfill", incarnations, _age(first, now))
            return replace(task_plan, raw=self.raw if chunk.raw else None)

        report = self.pipeline.run(lambda schemas: slow_down(chunk.read(schemas)), plan)
        try:
            return self._check_report(chunk, report)
        except BaseException:
            self._discard(report)
            raise

    def _check_report(self, chunk: Chunk, report: Report) -> _ChunkResult:
        """Compare what was read with what the chunk settles. Raises SourceFailed, LimitReached."""
        without_records: dict[TopicPartition, missing.MissingOffsets] = {}
        for part, spans in chunk.spans.items():
            missing_offsets = missing.without_records(part.source, spans, report)
            if missing_offsets is not None:
                without_records[part] = missing_offsets
        chunk.confirm(list(without_records.values()))
        check_failed_records(self.name, report, self.settings.limits)
        accounts = []
        for part, spans in chunk.spans.items():
            counts = report.counts.get(part.source, Counts())
            account = {**vars(part), "spans": [list(span) for span in spans], **counts.outcomes()}
            if part in without_records:
                account["without_records"] = without_records[part].to_dict()
            accounts.append(account)
        return _ChunkResult(report, accounts=accounts)

    def _stage_new_rows(self, chunk: Chunk, snapshot: PipelineSnapshot, slow_down: SlowDown) -> _ChunkResult:
        """Stage rows without offsets whose keys the table does not have."""
        self.config.one_table(self.name)
        task_plan = self.pipeline.task_plan(datetime.now(UTC), "backfill", {})
        rule = allow_older_events(self.pipeline.time_rule, ANY_AGE)
        stage = NewRowStage(self.table, snapshot, self.settings, task_plan, rule)
        pieces = slow_down(chunk.read(self.pipeline.plan))
        rows = (piece.rows for piece in pieces if piece.rows is not None)
        report, unplaced, left_out = stage.write(rows, chunk.keys)
        return _ChunkResult(report, unplaced, left_out)

    def _commit(
        self,
        gap_record: GapRecord,
        snapshot: PipelineSnapshot,
        chunk: Chunk,
        result: _ChunkResult,
        source: str,
        by: str,
        now: datetime,
    ) -> tuple[int, Fill]:
        """Append the entry. Returns its version, and what it fills."""
        builder.check_age(now, datetime.now(UTC), self.settings.table.orphan_retention)
        # The table has the columns before any file has them.
        self.pipeline.grow(self.table)
        report = result.report
        schemas = self.pipeline.schemas
        left = gap_record.unfilled_offsets.count - chunk.offsets
        facts = {
            "at": datetime.now(UTC).isoformat(),
            "by": by,
            "source": source,
            "ranges": result.accounts,
            **builder.sums(builder.row_files(report)),
            **builder.target_facts(report),
            **builder.spec_facts(report, self.pipeline.specs),
            "unplaced": result.unplaced,
            "left_out": result.left_out,
            "through": chunk.through or None,
            "seconds": {step: round(seconds, 3) for step, seconds in report.seconds.items()},
        }
        fill = Fill(
            uuid4().hex,
            gap_record.id,
            snapshot.gap_changes(gap_record.id),
            chunk.offsets,
            left,
            chunk.last or left == 0,
            report.files,
            self.pipeline.side_files(report),
            facts,
            schemas.id_meanings(report),
            schemas.privacy_version,
        )
        return self.table.append(fill, snapshot), fill

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        self.tables.discard(report.files, self.pipeline.side_files(report))


def _check_open(gap_record: GapRecord, chunk: Chunk) -> None:
    """Raise Overtaken where a chunk would settle what is not open: another process settled it after it was planned."""
    settled_ranges = (chunk.spans - gap_record.unfilled_offsets).ranges()
    if settled_ranges:
        settled = settled_ranges[0]
        raise Overtaken(f"offsets {settled.span} of {settled.part.name} were brought meanwhile: look again")


def _age(first: Piece | None, now: datetime) -> timedelta:
    """Return how long ago the broker had the first records."""
    if first is None:
        return age_of(None, now)
    times = first.records.column("timestamp")
    if times.null_count:
        return age_of(None, now)
    return age_of(pc.min(times).as_py(), now)
