"""Makes the rows of one bucket anew and swaps them in one entry of the table's log.

The records at the offsets of the bucket's rows are read from the sources and go through the steps of a task, in this
process. What the sources do not have stays as it is. The entry lands only while each file that it removes is there: a
delete, a compaction or another reprocess in between makes the bucket be done again.

Late rows stay late, and stay rows: so the account does not change. Their swap is a rewrite in the log of their own
table, where a delete of late rows is, too. A late row whose record is no row by the rules of today stays as it is.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.source import Source
from recovery.backfill.throttle import BackfillPace
from recovery.reprocess.row_offsets import BucketRows, RecordsAtOffsets, RowOffsets, read_staged_offsets
from writer.batch.plan import TaskPlan
from writer.batch.staging import table_file
from writer.batch.staging.sorting import sort_rows
from writer.batch.task_report import EXITS, Report
from writer.commit import builder
from writer.commit.failed_records_limit import check_failed_records
from writer.commit.privacy import record_privacy
from writer.core import fault_points
from writer.core.errors import HeadraceError
from writer.core.files import BucketFile, BucketKey, StagedFile
from writer.core.offsets import TopicPartition
from writer.maintenance.local_pipeline import age_of
from writer.maintenance.rewrite import batches_of
from writer.storage.base import Store
from writer.storage.disk_space import scratch
from writer.table.log.operations.operation import check_privacy
from writer.table.log.operations.rows import BucketChange, Reprocess, Rewrite
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.row_removal import OFFSET_COLUMNS, RemovalResult, discard_on_failure, stage_without_rows

# Of the names of files.
PREFIX = "reprocess"


@dataclass(frozen=True)
class BucketOutcome:
    """What became of the rows of one bucket."""

    bucket: BucketKey
    # Version of the table; None: every row is as it was.
    version: int | None = None
    # Rows whose records were read again.
    rows: int = 0
    # Rows of them in the same bucket.
    stay: int = 0
    # Rows of them in other buckets.
    moved: int = 0
    dead_letters: int = 0
    quarantined: int = 0
    filtered: int = 0
    # Rows whose records no source has, or late ones that are no rows now; they stay as they are.
    absent: int = 0
    # Rows without an offset; they stay as they are.
    unplaced: int = 0
    # Rows that other buckets got.
    into: Mapping[BucketKey, int] = field(default_factory=dict)
    # Paths of the files that were added.
    paths: Sequence[str] = ()
    seconds: float = 0.0
    # The bucket is of the table of late rows.
    late: bool = False


@dataclass
class ReprocessOutput:
    """What the tasks made of the records: one task for each incarnation of the topics.

    `offsets`: those whose records were read. `moves`: of each part, how many rows it has fewer, below 0, and how many
    records took each other exit instead: {"rows": -3, "dead_letters": 2, "filtered": 1}.
    """

    start: datetime
    reports: list[Report] = field(default_factory=list)
    offsets: dict[TopicPartition, np.ndarray] = field(default_factory=dict)
    moves: dict[TopicPartition, dict[str, int]] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        """The reports of all tasks."""
        return builder.merge_reports(self.reports)

    @property
    def move_sums(self) -> Counter[str]:
        """What became of the rows, of all parts."""
        sums: Counter[str] = Counter()
        for moves in self.moves.values():
            sums.update(moves)
        return sums

    @property
    def row_offsets(self) -> RowOffsets:
        """The offsets whose rows are to be replaced."""
        return RowOffsets(self.offsets)

    @property
    def rows(self) -> int:
        """How many rows are to be replaced."""
        return self.row_offsets.count


class BucketSwap:
    """Swaps buckets of one pipeline's table, one at a time."""

    def __init__(
        self,
        backfilled_table: BackfilledTable,
        sources: Sequence[Source],
        pace: BackfillPace,
        facts: Mapping[str, Any],
    ) -> None:
        """`facts`: what entries say of who did it, and from which source."""
        self._backfilled_table = backfilled_table
        self._sources = sources
        self._pace = pace
        self._facts = facts
        self.table = backfilled_table.table

    def run(self, snapshot: PipelineSnapshot, bucket_rows: BucketRows, now: datetime) -> BucketOutcome:
        """Make the bucket's rows anew. `snapshot`: where its files were listed; `now`: of the window of event times.

        Raises FilesGone, FileNotFoundError when another process rewrote files meanwhile, SourceFailed, LimitReached,
        CommitFailed.
        """
        output = ReprocessOutput(datetime.now(UTC))
        start_s = time.monotonic()
        fault_points.point("before_reprocess_read")
        with discard_on_failure(partial(self._discard, output)):
            for incarnation, offsets in bucket_rows.offsets.by_incarnation().items():
                self._run_task(output, incarnation, offsets, bucket_rows, now)
            report = output.report
            self._check_output(output)
            if not output.rows or self._is_same(snapshot, bucket_rows, output, report):
                self._discard(output)
                return BucketOutcome(
                    bucket_rows.bucket,
                    rows=output.rows,
                    stay=output.rows,
                    absent=bucket_rows.rows - output.rows,
                    unplaced=bucket_rows.unplaced,
                )
            fault_points.point("before_reprocess_swap")
            version = self._commit(snapshot, bucket_rows, output, report)
        self._backfilled_table.tables.apply_side_files()
        move_sums = output.move_sums
        rows_by_bucket = _rows_by_bucket(report.files)
        stay = rows_by_bucket.pop(bucket_rows.bucket, 0)
        return BucketOutcome(
            bucket_rows.bucket,
            version=version,
            rows=output.rows,
            stay=stay,
            moved=sum(rows_by_bucket.values()),
            dead_letters=move_sums["dead_letters"],
            quarantined=move_sums["quarantined"],
            filtered=move_sums["filtered"],
            absent=bucket_rows.rows - output.rows,
            unplaced=bucket_rows.unplaced,
            into=rows_by_bucket,
            paths=[file.path for file in report.files],
            seconds=round(time.monotonic() - start_s, 3),
        )

    def _run_task(
        self, output: ReprocessOutput, incarnation: int, offsets: RowOffsets, bucket_rows: BucketRows, now: datetime
    ) -> None:
        """Run a task on the records of one incarnation of the topics."""
        records = RecordsAtOffsets(self._sources, offsets, self._pace.slow_down)
        incarnations = {part.topic: incarnation for part in offsets.by_part}
        age = age_of(bucket_rows.first_time, now)
        report = self._backfilled_table.pipeline.run(records.pieces, lambda _: self._task_plan(now, incarnations, age))
        output.reports.append(report)
        output.offsets |= records.read_offsets()
        for (topic, partition), counts in report.counts.items():
            moves = {name: getattr(counts, name) for name in EXITS if getattr(counts, name)}
            moves["rows"] = moves.get("rows", 0) - counts.read
            part = TopicPartition(topic, incarnation, partition)
            assert not sum(moves.values()), f"{part}: {counts}"
            output.moves[part] = moves

    def _task_plan(self, now: datetime, incarnations: Mapping[str, int], age: timedelta) -> TaskPlan:
        return self._backfilled_table.pipeline.task_plan(now, PREFIX, incarnations, age)

    def _check_output(self, output: ReprocessOutput) -> None:
        """Check that what the records became may replace the rows. Raises LimitReached."""
        limits = self._backfilled_table.settings.limits
        check_failed_records(self._backfilled_table.name, output.report, limits)

    def _is_same(
        self, snapshot: PipelineSnapshot, bucket_rows: BucketRows, output: ReprocessOutput, report: Report
    ) -> bool:
        """Return whether the records became the rows that are there."""
        if any(moves["rows"] for moves in output.moves.values()):
            return False
        if {file.bucket for file in report.files} != {bucket_rows.bucket}:
            return False
        bucket_columns = snapshot.state.metadata["partitionColumns"]
        columns = pa.schema([column for column in snapshot.columns() if column.name not in bucket_columns])
        budget = self._backfilled_table.settings.memory.buffer
        return _has_same_rows(self.table.store, columns, bucket_rows.files, output.row_offsets, report.files, budget)

    def _commit(
        self, snapshot: PipelineSnapshot, bucket_rows: BucketRows, output: ReprocessOutput, report: Report
    ) -> int:
        """Stage what is left of the files, and append the entry. Returns its version."""
        table = self.table
        pipeline = self._backfilled_table.pipeline
        offsets = output.row_offsets
        record_privacy(self._backfilled_table.table, pipeline.schemas, None)
        # The table has the columns before any file has them.
        table.grow(list(pipeline.schemas.columns()))
        with stage_without_rows(
            table.store,
            bucket_rows.files,
            lambda file: offsets.count_rows(table.store, file),
            offsets.mask,
            columns=snapshot.state.metadata["partitionColumns"],
            hidden=table.hidden,
            folder=table.folder,
            prefix=PREFIX,
            rule=pipeline.time_rule,
        ) as removal:
            if removal.rows != output.rows:
                raise HeadraceError(
                    f"{output.rows} records were read of rows of a bucket of the table at {table.location}, "
                    f"{removal.rows} rows are at their offsets. `headrace audit --deep` looks at each."
                )
            orphan_retention = self._backfilled_table.settings.table.orphan_retention
            builder.check_age(output.start, datetime.now(UTC), orphan_retention)
            return self._append(snapshot, bucket_rows.bucket, output, report, removal)

    def _append(
        self,
        snapshot: PipelineSnapshot,
        bucket: BucketKey,
        output: ReprocessOutput,
        report: Report,
        removal: RemovalResult,
    ) -> int:
        """Append the entry. Returns its version."""
        pipeline = self._backfilled_table.pipeline
        removed = Counter({bucket: removal.rows})
        added = _rows_by_bucket(report.files)
        changes = [BucketChange(key, removed[key], added[key]) for key in dict.fromkeys([*removed, *added])]
        facts = {
            "at": output.start.isoformat(),
            "bucket": list(bucket),
            **self._facts,
            "moves": [{**vars(part), **moves} for part, moves in output.moves.items() if any(moves.values())],
            **builder.sums(report.files),
            **builder.spec_facts(report, pipeline.specs),
        }
        operation = Reprocess(
            uuid4().hex,
            removal.removed,
            removal.rewritten,
            report.files,
            changes,
            pipeline.side_files(report),
            facts,
            pipeline.schemas.id_meanings(report),
            pipeline.schemas.privacy_version,
        )
        return self.table.append(operation, snapshot)

    def _discard(self, output: ReprocessOutput) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        report = output.report
        self._backfilled_table.tables.discard(report.files, self._backfilled_table.pipeline.side_files(report))


class LateBucketSwap(BucketSwap):
    """Swaps buckets of a pipeline's table of late rows."""

    def __init__(
        self,
        backfilled_table: BackfilledTable,
        sources: Sequence[Source],
        pace: BackfillPace,
        facts: Mapping[str, Any],
    ) -> None:
        super().__init__(backfilled_table, sources, pace, facts)
        self.table = backfilled_table.tables.side(backfilled_table.settings.late_place)

    def run(self, snapshot: PipelineSnapshot, bucket_rows: BucketRows, now: datetime) -> BucketOutcome:
        """Make the bucket's late rows anew. Raises as for other rows, but no LimitReached."""
        return replace(super().run(snapshot, bucket_rows, now), late=True)

    def _task_plan(self, now: datetime, incarnations: Mapping[str, int], age: timedelta) -> TaskPlan:
        return replace(super()._task_plan(now, incarnations, age), table=self.table.location)

    def _check_output(self, output: ReprocessOutput) -> None:
        """Leave those rows as they are whose records became none."""
        output.moves.clear()
        output.offsets = dict(read_staged_offsets(self.table.store, output.report.files).by_part)

    def _append(
        self,
        snapshot: PipelineSnapshot,
        bucket: BucketKey,
        output: ReprocessOutput,
        report: Report,
        removal: RemovalResult,
    ) -> int:
        facts = {
            "why": "reprocess",
            "at": output.start.isoformat(),
            "bucket": list(bucket),
            **self._facts,
            "rows": output.rows,
        }
        rewrite = Rewrite(
            uuid4().hex,
            removal.removed,
            [*removal.rewritten, *report.files],
            None,
            facts,
            changes=True,
        )
        main_table = self._backfilled_table.table
        pipeline = self._backfilled_table.pipeline
        check_privacy(main_table.location, main_table.snapshot(), pipeline.schemas.privacy_version)
        version = self.table.append(rewrite, snapshot)
        self._backfilled_table.tables.discard((), pipeline.side_files(replace(report, files=[])))
        return version

    def _discard(self, output: ReprocessOutput) -> None:
        report = output.report
        self.table.discard(report.files)
        self._backfilled_table.tables.discard((), self._backfilled_table.pipeline.side_files(report))


def _rows_by_bucket(files: Iterable[StagedFile]) -> Counter[BucketKey]:
    rows: Counter[BucketKey] = Counter()
    for file in files:
        rows[file.bucket] += file.rows
    return rows


def _has_same_rows(
    store: Store,
    columns: pa.Schema,
    files: Sequence[BucketFile],
    offsets: RowOffsets,
    staged_files: Sequence[StagedFile],
    budget: int,
) -> bool:
    """Return whether the rows of files at some offsets are, value by value, those of staged files.

    The staged rows are at the same offsets. `columns`: of the table, those of buckets left out. `budget`: bytes of rows
    in memory; more are sorted on disk. Raises OSError.
    """
    for file in staged_files:
        with table_file.open_parquet(store, file.path) as source:
            if not {*source.names} <= {*columns.names}:
                return False
    with tempfile.TemporaryDirectory(prefix="headrace-reprocess-", dir=scratch()) as folder:
        table_folder = Path(folder) / "table"
        table_folder.mkdir()
        staged_folder = Path(folder) / "staged"
        staged_folder.mkdir()
        table_rows = (batch.filter(pa.array(offsets.mask(batch))) for batch in _read_batches(store, files, columns))
        staged_rows = _read_batches(store, staged_files, columns)
        return _is_equal(
            sort_rows(table_rows, OFFSET_COLUMNS, table_folder, budget // 2),
            sort_rows(staged_rows, OFFSET_COLUMNS, staged_folder, budget // 2),
        )


def _read_batches(
    store: Store, files: Iterable[BucketFile | StagedFile], columns: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for file in files:
        yield from batches_of(store, file.path, columns)


def _is_equal(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> bool:
    """Return whether two streams of rows are equal, however they are cut into batches."""
    left_batch = right_batch = pa.record_batch([], names=[])
    while True:
        left_batch = _next_rows(left_batch, left)
        right_batch = _next_rows(right_batch, right)
        count = min(left_batch.num_rows, right_batch.num_rows)
        if not count:
            return bool(left_batch.num_rows == right_batch.num_rows)
        if not left_batch.slice(0, count).equals(right_batch.slice(0, count)):
            return False
        left_batch = left_batch.slice(count)
        right_batch = right_batch.slice(count)


def _next_rows(batch: pa.RecordBatch, stream: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the batch if it has rows, else the next batch with rows. One without rows: the stream has ended."""
    while not batch.num_rows:
        following = next(stream, None)
        if following is None:
            return batch
        batch = following
    return batch
