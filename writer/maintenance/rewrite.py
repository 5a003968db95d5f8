"""Rewrites the files of one bucket: merged, sorted or deduplicated as requested. Rows stream through.

Memory is one row group of what is written and the compressed row group of what is read; with an order or a key the
budget comes on top, and for a key one bit a row. Nothing here asks the table's log: what came out stands in an entry
when the driver puts it there.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bucketers.arrow import contiguous
from headrace.writer.batch.bucketing import TimeRule, times_of
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.staging.key_window import (
    KAFKA_TIME,
    ComparedBucket,
    column_bounds,
    mark_repeats_in_window,
    may_match,
    merge_bounds,
)
from headrace.writer.batch.staging.parquet_files import (
    GROUP_BYTES_MAX,
    GROUP_ROWS_MAX,
    Destination,
    OpenFile,
    leaves,
    unmeasured_columns,
    value_bounds,
)
from headrace.writer.batch.staging.sorting import Dedupe, RowBits, TakenLimit, dedupe_columns, mark_repeats, sort_rows
from headrace.writer.columns.column_cast import PLAIN_CAST, cast_values, default_values
from headrace.writer.core import fault_points
from headrace.writer.core.files import BucketKey, StagedFile
from headrace.writer.storage.base import Store
from headrace.writer.storage.disk_space import SCRATCH, TABLE, name_full_disk, scratch
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.missing_bucket import name_missing_bucket
from headrace.writer.storage.settings import StoreSettings

# Shares of the target size that a file may have.
SHARE_MAX = 1.3
SHARE_MIN = 0.7
_BATCH_BYTES = 16 * 2**20
_BATCH_ROWS = 65_536
PREFIX = "rewrite"
Times = tuple[datetime, datetime]


class UnknownColumn(ValueError):
    """A column that rows are to be sorted or deduped by is not there, or has parts."""


@dataclass(frozen=True)
class Source:
    """A file to read."""

    path: str
    # Of its first and last event; None: unknown.
    times: Times | None
    # Its size is good: it is rewritten only if a row of it is removed, or if it is not sorted.
    is_well_sized: bool = False


@dataclass(frozen=True)
class Window:
    """Other buckets that dedupe compares with, and their files: their keys are read, and nothing of them is written."""

    width_us: int
    # Number 0 is the job's own.
    buckets: tuple[ComparedBucket, ...]
    # Number of the bucket, location of the table, path.
    files: tuple[tuple[int, str, str], ...] = ()


@dataclass(frozen=True)
class Job:
    """The job of a task: one bucket's files, and how to rewrite them."""

    # The location of the table.
    table: str
    bucket: BucketKey
    bucket_columns: tuple[str, ...]
    # Columns of the table, bucket columns left out.
    columns: pa.Schema
    files: tuple[Source, ...]
    target_file_size: int
    # Bytes of rows in memory.
    budget: int
    times: TimeRule
    sort_by: tuple[str, ...] = ()
    dedupe: Dedupe | None = None
    entropy_bits: int = 0
    hidden: bool = False
    # The folder of the table's files.
    folder: str = ""
    stores: StoreSettings | None = None
    # None: dedupe looks at this bucket alone.
    window: Window | None = None
    # None: a person has asked for it, or nothing is taken.
    taken_limit: TakenLimit | None = None
    # Count the rows that dedupe would take, and write nothing.
    only_counts: bool = False


@dataclass(frozen=True)
class RewriteResult:
    """Files to remove, and those that replace them. `removed` is empty where nothing is to be done."""

    removed: tuple[str, ...] = ()
    files: tuple[StagedFile, ...] = ()
    # Rows of the files that go; where nothing is written, of all files.
    rows: int = 0
    # Rows of them that dedupe took, or would take.
    taken: int = 0
    # Nothing was done: it takes more rows than it may without a person.
    exceeds_limit: bool = False
    # Numbers of other buckets that hold repeats of rows of this one.
    repeats_in: tuple[int, ...] = ()


@dataclass
class _File:
    """A source, with what its footer says of its rows."""

    source: Source
    rows: int
    # The first Kafka time of its rows; the first instant of all: unknown.
    kafka_time: datetime
    is_sorted: bool
    # The number of its first row, over all files.
    first_row: int = 0
    # The number of rows that dedupe takes.
    repeats: int = 0
    # Columns without statistics.
    unmeasured: frozenset[str] = frozenset()

    @property
    def needs_rewrite(self) -> bool:
        """Rows of it go, or it is not sorted, whatever its size."""
        return self.repeats > 0 or not self.is_sorted


def rewrite(job: Job, scratch: str | None = None) -> RewriteResult:
    """Carry a job out. What it wrote is removed when it fails.

    Raises FileNotFoundError when a file is gone, UnknownColumn.
    """
    _check(job)
    store = store_at(job.table, job.stores)
    with tempfile.TemporaryDirectory(prefix="headrace-rewrite-", dir=scratch, ignore_cleanup_errors=True) as folder:
        files = _read_footers(job, store)
        marks, repeats_in = _mark_repeats(job, store, files, Path(folder))
        sums = RewriteResult(rows=sum(file.rows for file in files), taken=sum(file.repeats for file in files))
        if job.only_counts:
            return sums
        if job.taken_limit is not None and job.taken_limit.is_exceeded(sums.taken, sums.rows):
            return replace(sums, exceeds_limit=True)
        chosen = [file for file in files if file.needs_rewrite or not file.source.is_well_sized]
        # One file alone cannot be merged.
        if len(chosen) <= 1 and not any(file.needs_rewrite for file in chosen):
            return RewriteResult(repeats_in=repeats_in)
        rows = sum(file.rows for file in chosen)
        repeats = sum(file.repeats for file in chosen)
        times = _EventTimes(job)
        batches = _read(job, store, chosen, marks, times)
        if job.sort_by:
            batches = sort_rows(batches, job.sort_by, Path(folder), job.budget)
        return RewriteResult(
            removed=tuple(file.source.path for file in chosen),
            files=tuple(_write(job, store, batches, rows - repeats, times, chosen)),
            rows=rows,
            taken=repeats,
            repeats_in=repeats_in,
        )


def _check(job: Job) -> None:
    for name in job.sort_by:
        if name not in job.columns.names or pa.types.is_nested(job.columns.field(name).type):
            raise UnknownColumn(f"compact.sort_by names {name!r}, no plain column of the table at {job.table}")
    for name in job.dedupe.key if job.dedupe else ():
        column_type = _type_of(job.columns, name)
        if column_type is None or pa.types.is_nested(column_type):
            raise UnknownColumn(f"compact.dedupe.key names {name!r}, no plain column of the table at {job.table}")


def _type_of(columns: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of a column, dots into structs; None: there is none."""
    column_type: Any = pa.struct(list(columns))
    for part in name.split("."):
        if not pa.types.is_struct(column_type) or column_type.get_field_index(part) < 0:
            return None
        column_type = column_type.field(part).type
    return column_type


def _read_footers(job: Job, store: Store) -> list[_File]:
    """Return the job's files in the order in which their rows came, with their rows numbered."""
    files = [_read_footer(store, source, job.sort_by) for source in job.files]
    files.sort(key=lambda file: (file.kafka_time, file.source.path))
    rows = 0
    for file in files:
        file.first_row = rows
        rows += file.rows
    return files


def _read_footer(store: Store, source: Source, sort_by: Sequence[str]) -> _File:
    with table_file.open_parquet(store, source.path) as file:
        metadata = file.metadata
        names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        kafka_time = datetime.min.replace(tzinfo=UTC)
        if KAFKA_TIME in names:
            index = names.index(KAFKA_TIME)
            bounds = _bounds(group.column(index).statistics for group in groups)
            if bounds is not None:
                kafka_time = bounds[0]
        return _File(
            source,
            metadata.num_rows,
            kafka_time,
            is_sorted=_is_sorted(groups, names, sort_by),
            unmeasured=unmeasured_columns(metadata),
        )


def _is_sorted(groups: Sequence[Any], names: Sequence[str], sort_by: Sequence[str]) -> bool:
    """Return whether each row group says that its rows are sorted by these columns first."""
    indexes = [names.index(name) for name in sort_by if name in names]
    if len(indexes) < len(sort_by):
        return False
    sorted_by = [[column.column_index for column in group.sorting_columns] for group in groups]
    return all(columns[: len(indexes)] == indexes for columns in sorted_by)


def _bounds(statistics: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return the bounds of the values in the row groups that have some."""
    return value_bounds([values for values in statistics if values is not None and values.has_min_max])


def _mark_repeats(
    job: Job, store: Store, files: Sequence[_File], scratch: Path
) -> tuple[RowBits | None, tuple[int, ...]]:
    """Find the rows that dedupe takes, and count them by file. Returns also what `RewriteResult.repeats_in` has."""
    if job.dedupe is None:
        return None, ()
    rows = sum(file.rows for file in files)
    columns = pa.schema([job.columns.field(name) for name in dedupe_columns(job.dedupe)])
    batches = chain.from_iterable(batches_of(store, file.source.path, columns) for file in files)
    repeats_in = set[int]()
    if job.window is None:
        marks = mark_repeats(batches, rows, job.dedupe, scratch, job.budget)
    else:
        numbered = ((0, batch) for batch in batches)
        others = _read_neighbours(job, job.window, [(store, file.source.path) for file in files], columns)
        marks, repeats_in = mark_repeats_in_window(
            chain(numbered, others), job.window.buckets, rows, job.dedupe, job.window.width_us, scratch, job.budget
        )
    for file in files:
        file.repeats = _count_marks(marks, file)
    return marks, tuple(sorted(repeats_in))


def _count_marks(marks: RowBits, file: _File) -> int:
    """Count the marked rows of a file, some at a time."""
    end_row = file.first_row + file.rows
    return sum(
        int(np.count_nonzero(marks.of(row, min(_BATCH_ROWS, end_row - row))))
        for row in range(file.first_row, end_row, _BATCH_ROWS)
    )


def _read_neighbours(
    job: Job, window: Window, own_files: Sequence[tuple[Store, str]], columns: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows of the other buckets' files that may share a key with those of this one, by the files' statistics."""
    assert job.dedupe is not None
    names = [*job.dedupe.key, KAFKA_TIME]
    own_bucket = window.buckets[0]
    stores = {table: store_at(table, job.stores) for table in {table for _, table, _ in window.files}}

    def read_bounds(store: Store, path: str) -> Mapping[str, tuple[Any, Any] | None]:
        with table_file.open_parquet(store, path) as file:
            return column_bounds(file.metadata, names)

    own_bounds = merge_bounds([read_bounds(*file) for file in own_files])
    for number, table, path in window.files:
        bounds = read_bounds(stores[table], path)
        if may_match(window.buckets[number], bounds, own_bucket, own_bounds, job.dedupe.key):
            yield from ((number, batch) for batch in batches_of(stores[table], path, columns))


def _read(
    job: Job, store: Store, files: Sequence[_File], marks: RowBits | None, times: "_EventTimes"
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of files that dedupe leaves."""
    for file in files:
        row = file.first_row
        for batch in batches_of(store, file.source.path, job.columns):
            times.add(file.source, batch)
            if marks is not None and file.repeats:
                is_repeat = marks.of(row, batch.num_rows)
                yield batch.filter(pa.array(~is_repeat))
            else:
                yield batch
            row += batch.num_rows


def batches_of(store: Store, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows with these columns, as any reader of the table finds them."""
    with table_file.open_parquet(store, path) as file:
        metadata = file.metadata
        size = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
        row_bytes = max(1, size / max(metadata.num_rows, 1))
        batch_rows = int(np.clip(_BATCH_BYTES / row_bytes, 1, _BATCH_ROWS))
        names = [name for name in file.names if name in columns.names]
        for batch in file.iter_batches(batch_rows, names):
            yield pa.record_batch([_cast_column(batch, column) for column in columns], schema=columns)


def _cast_column(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    if column.name not in batch.schema.names:
        return default_values(batch.num_rows, column.type, (column.name,), {})
    values = batch.column(column.name)
    return cast_values(contiguous(values), column.type, (column.name,), PLAIN_CAST, {})


class _EventTimes:
    """First and last event time of the output: from the log, or from the rows if the log has none."""

    def __init__(self, job: Job) -> None:
        self._rule = job.times
        self._min: datetime | None = None
        self._max: datetime | None = None

    def add(self, source: Source, batch: pa.RecordBatch) -> None:
        """Add the times of a file, or of rows that were read of it."""
        times: Iterable[datetime | None] = source.times or ()
        if source.times is None and self._rule.field.partition(".")[0] in batch.schema.names:
            values, _ = times_of(pa.Table.from_batches([batch]), self._rule, batch.column("_topic"))
            times = pc.min_max(values).as_py().values()
        for time in times:
            if time is not None:
                self._min = time if self._min is None else min(self._min, time)
                self._max = time if self._max is None else max(self._max, time)

    def bounds(self) -> Times:
        """Return both; 1970 where no row has a time."""
        epoch = datetime.fromtimestamp(0, UTC)
        return self._min or epoch, self._max or epoch


def _write(
    job: Job, store: Store, batches: Iterator[pa.RecordBatch], rows: int, times: _EventTimes, sources: Sequence[_File]
) -> list[StagedFile]:
    """Write rows to new files, and return these. Removes them when it fails."""
    destination = Destination(
        store,
        job.bucket_columns,
        PREFIX,
        job.target_file_size,
        job.entropy_bits,
        job.hidden,
        job.folder,
        # Protected values get no bounds in the new files either.
        unmeasured=frozenset[str]().union(*(file.unmeasured for file in sources)),
    )
    files = _Files(destination, job, rows)
    try:
        # An error names the full disk before what was written is removed.
        with name_missing_bucket(), name_full_disk({job.table: TABLE, scratch(): SCRATCH}):
            for batch in batches:
                files.add(pa.Table.from_batches([batch]))
            closed_files = files.close()
        fault_points.point("in_rewrite")
    except BaseException:
        files.discard()
        destination.remove()
        raise
    staged = [file.staged_file(*times.bounds()) for file in closed_files]
    assert sum(file.rows for file in staged) == rows, "rows came or went while they were rewritten"
    return staged


@dataclass
class _Files:
    """Writes a known number of rows to files that are alike in size, near the target."""

    destination: Destination
    job: Job
    # Rows in all.
    rows: int
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _open: OpenFile | None = None
    _closed: list[OpenFile] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._group_bytes_max():
            self._flush()

    def close(self) -> list[OpenFile]:
        self._flush()
        self._close_file()
        return self._closed

    def discard(self) -> None:
        if self._open is not None:
            self._open.discard()

    def _flush(self) -> None:
        """Write the waiting rows as row groups, and begin a file after each that is full."""
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting = []
        self._waiting_bytes = 0
        start = 0
        while start < rows.num_rows:
            if self._open is None:
                self._open = self._open_file(rows.slice(start))
            rows_left = max(1, self._file_rows_max() - self._open.rows)
            group = rows.slice(start, min(self._group_rows_max(rows), rows_left))
            self._open.write(group)
            start += group.num_rows
            if self._open.rows >= self._file_rows_max():
                self._close_file()

    def _group_rows_max(self, rows: pa.Table) -> int:
        return int(np.clip(self._group_bytes_max() * rows.num_rows / max(rows.nbytes, 1), 1, GROUP_ROWS_MAX))

    def _group_bytes_max(self) -> int:
        """Arrow data of a row group; the first is no larger than a file, for its size in memory is not known yet."""
        if self._closed or (self._open is not None and self._open.rows):
            return GROUP_BYTES_MAX
        return min(GROUP_BYTES_MAX, self.destination.target_file_size)

    def _file_rows_max(self) -> int:
        """Rows of a file, by the bytes that a row was seen to take: as many files as keep each within its bounds."""
        files = list(self._closed)
        if self._open is not None:
            files.append(self._open)
        rows_written = sum(file.rows for file in files)
        bytes_written = sum(file.bytes for file in files)
        if not rows_written:
            return self.rows
        size = bytes_written / rows_written * self.rows
        file_count = max(1, ceil(size / (SHARE_MAX * self.destination.target_file_size)))
        return ceil(self.rows / file_count)

    def _open_file(self, rows: pa.Table) -> OpenFile:
        leaf_names = list(leaves(rows.schema))
        order = [pq.SortingColumn(leaf_names.index(name)) for name in self.job.sort_by]
        return OpenFile(self.destination, self.job.bucket, rows, order)

    def _close_file(self) -> None:
        if self._open is not None:
            self._open.close()
            self._closed.append(self._open)
            self._open = None
