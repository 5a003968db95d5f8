"""Makes the rows of one bucket anew and swaps them in one entry of the table's log.

The records at the offsets of the bucket's rows are read from the sources and go through the steps of a task. What the
sources do not have stays as it is. The entry lands only while each file that it removes is there: a delete, a
compaction or another reprocess in between makes the bucket be done again.

Late rows stay late, and stay rows: so the account does not change. Their swap is a rewrite in the log of their own
table, where a delete of late rows is, too. A late row whose record is no row by the rules of today stays as it is.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from headrace.recovery.backfill.source import Source
from headrace.recovery.backfill.throttle import BackfillPace
from headrace.recovery.reprocess.row_offsets import BucketRows, RecordsAtOffsets, RowOffsets, read_staged_offsets
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.staging.sorting import sort_rows
from headrace.writer.batch.task import Piece
from headrace.writer.commit.failed_records_limit import check_failed_records
from headrace.writer.core import fault_points
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile, BucketKey, StagedFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.local_pipeline import age_of
from headrace.writer.maintenance.record_commit import RecordCommit, RecordTable
from headrace.writer.maintenance.rewrite import batches_of
from headrace.writer.storage.base import Store
from headrace.writer.storage.disk_space import scratch
from headrace.writer.table.log.operations.operation import Operation, check_privacy
from headrace.writer.table.log.operations.rows import BucketChange, Reprocess, Rewrite
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.row_removal import OFFSET_COLUMNS, RemovalResult

# Of the names of files.
PREFIX = "reprocess"
# How many records more than before each exit has, by part: {"rows": -3, "dead_letters": 2, "filtered": 1}.
Moves = Mapping[TopicPartition, Mapping[str, int]]


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


class BucketSwap:
    """Swaps buckets of one pipeline's table, one at a time."""

    def __init__(
        self,
        record_table: RecordTable,
        sources: Sequence[Source],
        pace: BackfillPace,
        facts: Mapping[str, Any],
    ) -> None:
        """`facts`: what entries say of who did it, and from which source."""
        self._record_table = record_table
        self._sources = sources
        self._pace = pace
        self._facts = facts
        self.table = record_table.table

    def run(self, snapshot: PipelineSnapshot, bucket_rows: BucketRows, now: datetime) -> BucketOutcome:
        """Make the bucket's rows anew. `snapshot`: where its files were listed; `now`: of the window of event times.

        Raises FilesGone, FileNotFoundError when another process rewrote files meanwhile, SourceFailed, LimitReached,
        CommitFailed.
        """
        start_s = time.monotonic()
        fault_points.point("before_reprocess_read")
        pipeline = self._record_table.pipeline
        with RecordCommit(self._record_table.tables, pipeline, self.table) as commit:
            offsets = self._run_tasks(commit, bucket_rows, now)
            moves = self._moves(commit)
            files = commit.report.files
            unchanged = BucketOutcome(
                bucket_rows.bucket,
                rows=offsets.count,
                stay=offsets.count,
                absent=bucket_rows.rows - offsets.count,
                unplaced=bucket_rows.unplaced,
            )
            if not offsets.count or self._is_same(snapshot, bucket_rows, offsets, files, moves):
                return unchanged
            fault_points.point("before_reprocess_swap")
            removal = commit.remove_rows(
                bucket_rows.files,
                partial(offsets.count_rows, self.table.store),
                offsets.mask,
                columns=snapshot.state.metadata["partitionColumns"],
                prefix=PREFIX,
                rule=pipeline.time_rule,
            )
            self._check_removal(removal, offsets)
            build_operation = partial(self._build_operation, commit, bucket_rows.bucket, removal, moves)
            version = commit.append(build_operation, snapshot)
        exits = _sum_exits(moves)
        rows_by_bucket = _rows_by_bucket(files)
        stay = rows_by_bucket.pop(bucket_rows.bucket, 0)
        return replace(
            unchanged,
            version=version,
            stay=stay,
            moved=sum(rows_by_bucket.values()),
            dead_letters=exits["dead_letters"],
            quarantined=exits["quarantined"],
            filtered=exits["filtered"],
            into=rows_by_bucket,
            paths=[file.path for file in files],
            seconds=round(time.monotonic() - start_s, 3),
        )

    def _run_tasks(self, commit: RecordCommit, bucket_rows: BucketRows, now: datetime) -> RowOffsets:
        """Run a task on the records of each incarnation. Returns the offsets whose rows are to be replaced."""
        age = age_of(bucket_rows.first_time, now)
        read_offsets: dict[TopicPartition, np.ndarray] = {}
        for incarnation, offsets in bucket_rows.offsets.by_incarnation().items():
            tasks = self._record_table.task_count(offsets.count)
            records = RecordsAtOffsets(self._sources, offsets, tasks)
            incarnations = {part.topic: incarnation for part in offsets.by_part}
            build_plan = partial(self._build_task_plan, now, incarnations, age)
            admit = partial(self._admit_records, records)
            commit.run_tasks(incarnations, [records] * tasks, build_plan, self._record_table.pool, admit)
            read_offsets |= records.read_offsets()
        return self._choose_offsets(commit, RowOffsets(read_offsets))

    def _admit_records(self, wanted: RecordsAtOffsets, records: pa.RecordBatch) -> pa.BooleanArray:
        """Wait until a task may take records. Returns which of them it takes."""
        self._pace.admit_records(records)
        return wanted.admit_records(records)

    def _build_task_plan(
        self, now: datetime, incarnations: Mapping[str, int], age: timedelta, _: Piece | None
    ) -> TaskPlan:
        return self._record_table.pipeline.task_plan(now, PREFIX, incarnations, age)

    def _choose_offsets(self, commit: RecordCommit, read_offsets: RowOffsets) -> RowOffsets:
        """Return the offsets whose rows are to be replaced: all whose records were read. Raises LimitReached."""
        limits = self._record_table.settings.limits
        check_failed_records(self._record_table.name, commit.report, limits)
        return read_offsets

    def _moves(self, commit: RecordCommit) -> Moves:
        """Return what became of the records, each of which was a row."""
        return commit.moves({part: {"rows": counts.read} for part, counts in commit.counts.items()})

    def _is_same(
        self,
        snapshot: PipelineSnapshot,
        bucket_rows: BucketRows,
        offsets: RowOffsets,
        files: Sequence[StagedFile],
        moves: Moves,
    ) -> bool:
        """Return whether the records became the rows that are there."""
        if any(exits["rows"] for exits in moves.values()):
            return False
        if {file.bucket for file in files} != {bucket_rows.bucket}:
            return False
        bucket_columns = snapshot.state.metadata["partitionColumns"]
        columns = pa.schema([column for column in snapshot.columns() if column.name not in bucket_columns])
        budget = self._record_table.settings.memory.buffer
        return _has_same_rows(self.table.store, columns, bucket_rows.files, offsets, files, budget)

    def _check_removal(self, removal: RemovalResult, offsets: RowOffsets) -> None:
        """Raise HeadraceError where not each offset is that of one row."""
        if removal.rows != offsets.count:
            raise HeadraceError(
                f"{offsets.count} records were read of rows of a bucket of the table at {self.table.location}, "
                f"{removal.rows} rows are at their offsets. `headrace audit --deep` looks at each."
            )

    def _build_operation(
        self, commit: RecordCommit, bucket: BucketKey, removal: RemovalResult, moves: Moves
    ) -> Operation:
        files = commit.report.files
        removed = Counter({bucket: removal.rows})
        added = _rows_by_bucket(files)
        changes = [BucketChange(key, removed[key], added[key]) for key in dict.fromkeys([*removed, *added])]
        facts = {
            "at": commit.start.isoformat(),
            "bucket": list(bucket),
            **self._facts,
            "moves": [{**vars(part), **exits} for part, exits in moves.items() if any(exits.values())],
            **commit.row_facts(),
        }
        return Reprocess(
            uuid4().hex,
            removal.removed,
            removal.rewritten,
            files,
            changes,
            commit.side_files,
            facts,
            commit.meanings,
            commit.privacy_version,
        )


class LateBucketSwap(BucketSwap):
    """Swaps buckets of a pipeline's table of late rows."""

    def __init__(
        self,
        record_table: RecordTable,
        sources: Sequence[Source],
        pace: BackfillPace,
        facts: Mapping[str, Any],
    ) -> None:
        super().__init__(record_table, sources, pace, facts)
        self.table = record_table.tables.side(record_table.settings.late_place)

    def run(self, snapshot: PipelineSnapshot, bucket_rows: BucketRows, now: datetime) -> BucketOutcome:
        """Make the bucket's late rows anew. Raises as for other rows, but no LimitReached."""
        return replace(super().run(snapshot, bucket_rows, now), late=True)

    def _build_task_plan(
        self, now: datetime, incarnations: Mapping[str, int], age: timedelta, first: Piece | None
    ) -> TaskPlan:
        task_plan = super()._build_task_plan(now, incarnations, age, first)
        return replace(task_plan, table=self.table.location)

    def _choose_offsets(self, commit: RecordCommit, read_offsets: RowOffsets) -> RowOffsets:  # noqa: ARG002 - of the base
        """Return the offsets whose records became rows: late rows whose records became none stay as they are."""
        commit.discard_side_files()
        return read_staged_offsets(self.table.store, commit.report.files)

    def _moves(self, commit: RecordCommit) -> Moves:  # noqa: ARG002 - of the base
        """Return none: each late row stays one."""
        return {}

    def _build_operation(
        self,
        commit: RecordCommit,
        bucket: BucketKey,
        removal: RemovalResult,
        moves: Moves,  # noqa: ARG002 - of the base
    ) -> Operation:
        # The late table's own log has no privacy entries.
        main_table = self._record_table.table
        check_privacy(main_table.location, main_table.snapshot(), commit.privacy_version)
        facts = {
            "why": "reprocess",
            "at": commit.start.isoformat(),
            "bucket": list(bucket),
            **self._facts,
            "rows": removal.rows,
        }
        return Rewrite(
            uuid4().hex,
            removal.removed,
            [*removal.rewritten, *commit.report.files],
            None,
            facts,
            changes=True,
        )


def _sum_exits(moves: Moves) -> Counter[str]:
    """Return how many records more each exit has, of all parts."""
    sums: Counter[str] = Counter()
    for exits in moves.values():
        sums.update(exits)
    return sums


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
