"""Rewrites the files of one bucket: merged, sorted or deduplicated as requested. Rows stream through.

Memory is one row group of what is written and the compressed row group of what is read; with an order or a key the
budget comes on top, and for a key one bit a row. Nothing here asks the table's log: what came out stands in an entry
when the driver puts it there.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bucketers.arrow import contiguous
from writer.avro.column_cast import PLAIN_CAST, cast_values, default_values
from writer.batch.bucketing import TimeRule, times_of
from writer.batch.staging import table_file
from writer.batch.staging.key_window import (
    KAFKA_TIME,
    ComparedBucket,
    column_bounds,
    mark_repeats_in_window,
    may_match,
    merge_bounds,
)
from writer.batch.staging.parquet_files import (
    GROUP_BYTES_MAX,
    GROUP_ROWS_MAX,
    Destination,
    OpenFile,
    leaves,
    unmeasured_columns,
    value_bounds,
)
from writer.batch.staging.sorting import Dedupe, RowBits, dedupe_columns, mark_repeats, sort_rows
from writer.core import fault_points
from writer.core.files import BucketKey, StagedFile
from writer.storage.base import S3Settings, Store
from writer.storage.disk_space import SCRATCH, TABLE, naming_full_disk, scratch
from writer.storage.locations import store_at

SHARE_MAX = 1.3  # of the target size that a file may have
SHARE_MIN = 0.7
_BATCH_BYTES = 16 * 2**20
_BATCH_ROWS = 65_536
PREFIX = "rewrite"
Times = tuple[datetime, datetime]


class UnknownColumn(ValueError):
    """A column that rows are to be sorted or deduped by is not there, or has parts."""


@dataclass(frozen=True)
class Source:
    """A file to read. `whole`: it is rewritten only if a row of it is removed, or if it is not sorted."""

    path: str
    times: Times | None  # of its first and last event; None: unknown
    whole: bool = False


@dataclass(frozen=True)
class Window:
    """Other buckets that dedupe compares with, and their files: their keys are read, and nothing of them is written."""

    width_us: int
    buckets: tuple[ComparedBucket, ...]  # number 0 is the job's own
    files: tuple[tuple[int, str, str], ...] = ()  # number of the bucket, location of the table, path


@dataclass(frozen=True)
class Job:
    """The job of a task: one bucket's files, and how to rewrite them."""

    table: str  # location
    bucket: BucketKey
    bucket_columns: tuple[str, ...]
    columns: pa.Schema  # of the table, bucket columns left out
    files: tuple[Source, ...]
    target_file_size: int
    budget: int  # bytes of rows in memory
    times: TimeRule
    sort_by: tuple[str, ...] = ()
    dedupe: Dedupe | None = None
    entropy_bits: int = 0
    hidden: bool = False
    folder: str = ""  # of the table's files
    s3: S3Settings | None = None
    window: Window | None = None  # None: dedupe looks at this bucket alone


@dataclass(frozen=True)
class RewriteResult:
    """What is to take the place of what. `removed` is empty where nothing is to be done."""

    removed: tuple[str, ...] = ()
    files: tuple[StagedFile, ...] = ()
    rows: int = 0  # that were read of the files that go
    taken: int = 0  # rows of them that dedupe took
    repeats_in: tuple[int, ...] = ()  # numbers of other buckets that hold repeats of rows of this one


@dataclass
class _File:
    """A source, opened far enough to know how many rows it has and where they came."""

    source: Source
    rows: int
    came: datetime
    in_order: bool
    first: int = 0  # number of its first row, over all files
    going: int = 0  # rows that dedupe takes
    unmeasured: frozenset[str] = frozenset()  # columns without statistics


def rewrite(job: Job, scratch: str | None = None) -> RewriteResult:
    """Carry a job out. What it wrote is removed when it fails.

    Raises FileNotFoundError when a file is gone, UnknownColumn.
    """
    _check(job)
    store = store_at(job.table, job.s3)
    with tempfile.TemporaryDirectory(prefix="headrace-rewrite-", dir=scratch, ignore_cleanup_errors=True) as folder:
        looked = (_looked_at(store, source, job.sort_by) for source in job.files)
        files = sorted(looked, key=lambda file: (file.came, file.source.path))
        at = 0
        for file in files:
            file.first, at = at, at + file.rows
        marks, repeats_in = _marked(job, store, files, at, Path(folder))
        chosen = [file for file in files if file.going or not file.source.whole or not file.in_order]
        if not any(f.going or not f.in_order for f in chosen) and len(chosen) < 2:  # noqa: PLR2004 - nothing to merge
            return RewriteResult(repeats_in=repeats_in)
        going = sum(file.going for file in chosen)
        rows = sum(file.rows for file in chosen)
        times = _Times(job)
        read = _read(job, store, chosen, marks, times)
        ordered = sort_rows(read, job.sort_by, Path(folder), job.budget) if job.sort_by else read
        return RewriteResult(
            tuple(file.source.path for file in chosen),
            tuple(_written(job, store, ordered, rows - going, times, chosen)), rows, going, repeats_in,
        )  # fmt: skip


def _check(job: Job) -> None:
    for name in job.sort_by:
        if name not in job.columns.names or pa.types.is_nested(job.columns.field(name).type):
            raise UnknownColumn(f"compact.sort_by names {name!r}, no plain column of the table at {job.table}")
    for name in job.dedupe.key if job.dedupe else ():
        kind = _type_at(job.columns, name)
        if kind is None or pa.types.is_nested(kind):
            raise UnknownColumn(f"compact.dedupe.key names {name!r}, no plain column of the table at {job.table}")


def _type_at(columns: pa.Schema, name: str) -> pa.DataType | None:
    kind: Any = pa.struct(list(columns))
    for part in name.split("."):
        if not pa.types.is_struct(kind) or kind.get_field_index(part) < 0:
            return None
        kind = kind.field(part).type
    return kind


def _looked_at(store: Store, source: Source, sort_by: Sequence[str]) -> _File:
    with table_file.open_parquet(store, source.path) as opened:
        metadata = opened.metadata
        names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
        at = names.index("_kafka_time") if "_kafka_time" in names else None
        bounds = None if at is None else _came(group.column(at).statistics for group in groups)
        came = datetime.min.replace(tzinfo=UTC) if bounds is None else bounds[0]
        wanted = [names.index(name) for name in sort_by if name in names]
        sorted_by = [[c.column_index for c in g.sorting_columns] for g in groups]
        in_order = len(wanted) == len(sort_by) and all(found[: len(wanted)] == wanted for found in sorted_by)
    return _File(source, metadata.num_rows, came, in_order, unmeasured=unmeasured_columns(metadata))


def _came(groups: Iterable[Any]) -> tuple[Any, Any] | None:
    """Return the bounds of the times in the row groups that have one."""
    return value_bounds(group for group in groups if group is not None and group.has_min_max)


def _marked(
    job: Job, store: Store, files: Sequence[_File], rows: int, scratch: Path
) -> tuple[RowBits | None, tuple[int, ...]]:
    """Find the rows that dedupe takes, and count them by file. Returns also what `RewriteResult.repeats_in` has."""
    if job.dedupe is None:
        return None, ()
    columns = pa.schema([job.columns.field(name) for name in dedupe_columns(job.dedupe)])
    every = (batch for file in files for batch in batches_of(store, file.source.path, columns))
    repeats_in = set[int]()
    if job.window is None:
        marks = mark_repeats(every, rows, job.dedupe, scratch, job.budget)
    else:
        numbered = ((0, batch) for batch in every)
        beside = _beside(job, job.window, [(store, file.source.path) for file in files], columns)
        marks, repeats_in = mark_repeats_in_window(
            chain(numbered, beside), job.window.buckets, rows, job.dedupe, job.window.width_us, scratch, job.budget
        )
    for file in files:
        file.going = sum(
            int(np.count_nonzero(marks.of(at, min(_BATCH_ROWS, file.first + file.rows - at))))
            for at in range(file.first, file.first + file.rows, _BATCH_ROWS)
        )
    return marks, tuple(sorted(repeats_in))


def _beside(
    job: Job, window: Window, own: Sequence[tuple[Store, str]], columns: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows of the other buckets' files that may share a key with those of this one, by the files' statistics."""
    assert job.dedupe is not None
    names, judged = [*job.dedupe.key, KAFKA_TIME], window.buckets[0]
    stores = {table: store_at(table, job.s3) for table in {table for _, table, _ in window.files}}

    def bounds_of(store: Store, path: str) -> Mapping[str, tuple[Any, Any] | None]:
        with table_file.open_parquet(store, path) as file:
            return column_bounds(file.metadata, names)

    known = merge_bounds([bounds_of(*file) for file in own])
    for number, table, path in window.files:
        if may_match(window.buckets[number], bounds_of(stores[table], path), judged, known, job.dedupe.key):
            yield from ((number, batch) for batch in batches_of(stores[table], path, columns))


def _read(
    job: Job, store: Store, files: Sequence[_File], marks: RowBits | None, times: "_Times"
) -> Iterator[pa.RecordBatch]:
    for file in files:
        at = file.first
        for batch in batches_of(store, file.source.path, job.columns):
            times.take(file.source, batch)
            going = marks.of(at, batch.num_rows) if marks is not None and file.going else None
            at += batch.num_rows
            yield batch if going is None else batch.filter(pa.array(~going))


def batches_of(store: Store, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows with these columns, as any reader of the table finds them."""
    with table_file.open_parquet(store, path) as file:
        groups = [file.metadata.row_group(g).total_byte_size for g in range(file.metadata.num_row_groups)]
        per_row = max(1, sum(groups) / max(file.metadata.num_rows, 1))
        there = [name for name in file.names if name in columns.names]
        for batch in file.iter_batches(int(np.clip(_BATCH_BYTES / per_row, 1, _BATCH_ROWS)), there):
            yield pa.record_batch([_shaped(batch, column) for column in columns], schema=columns)


def _shaped(batch: pa.RecordBatch, column: pa.Field) -> pa.Array:
    if column.name not in batch.schema.names:
        return default_values(batch.num_rows, column.type, (column.name,), {})
    values = batch.column(column.name)
    return cast_values(contiguous(values), column.type, (column.name,), PLAIN_CAST, {})


class _Times:
    """First and last event time of the output: from the log, or from the rows if the log has none."""

    def __init__(self, job: Job) -> None:
        self._job, self._known = job, {source.path: source.times for source in job.files}
        self._found: list[datetime] = []

    def take(self, source: Source, batch: pa.RecordBatch) -> None:
        if source.times is None and self._job.times.field.partition(".")[0] in batch.schema.names:
            found, _ = times_of(pa.Table.from_batches([batch]), self._job.times, batch.column("_topic"))
            self._found += [t for t in pc.min_max(found).as_py().values() if t is not None]
        else:
            self._found += source.times or ()
        self._found = [min(self._found), max(self._found)] if self._found else []

    def bounds(self) -> Times:
        epoch = datetime.fromtimestamp(0, UTC)
        return (self._found[0], self._found[-1]) if self._found else (epoch, epoch)


def _written(
    job: Job, store: Store, rows: Iterator[pa.RecordBatch], count: int, times: _Times, read: Sequence[_File]
) -> list[StagedFile]:
    size, entropy = job.target_file_size, job.entropy_bits
    unmeasured = frozenset[str]().union(*(file.unmeasured for file in read))  # protected values have no bounds anew
    to = Destination(
        store, job.bucket_columns, PREFIX, size, entropy, job.hidden, job.folder, unmeasured=unmeasured
    )  # fmt: skip
    files = _Files(to, job, count)
    try:
        with naming_full_disk({job.table: TABLE, scratch(): SCRATCH}):  # before what was written is removed
            for batch in rows:
                files.add(pa.Table.from_batches([batch]))
            done = files.close()
        fault_points.point("in_rewrite")
    except BaseException:
        files.discard()
        to.remove()
        raise
    staged = [file.staged_file(*times.bounds()) for file in done]
    assert sum(file.rows for file in staged) == count, "rows came or went while they were rewritten"
    return staged


@dataclass
class _Files:
    """Writes a known number of rows to files that are alike in size, near the target."""

    to: Destination
    job: Job
    count: int  # rows in all
    _waiting: list[pa.Table] = field(default_factory=list)
    _waiting_bytes: int = 0
    _open: OpenFile | None = None
    _done: list[OpenFile] = field(default_factory=list)

    def add(self, rows: pa.Table) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= self._group_bytes_max():
            self._flush()

    def close(self) -> list[OpenFile]:
        self._flush()
        self._roll()
        return self._done

    def discard(self) -> None:
        if self._open is not None:
            self._open.discard()

    def _flush(self) -> None:
        if not self._waiting:
            return
        rows = pa.concat_tables(self._waiting)
        self._waiting, self._waiting_bytes = [], 0
        at = 0
        while at < rows.num_rows:
            file = self._open = self._open or self._opened(rows.slice(at))
            group = rows.slice(at, min(self._group_rows_max(rows), max(1, self._quota() - file.rows)))
            file.write(group)
            at += group.num_rows
            if file.rows >= self._quota():
                self._roll()

    def _group_rows_max(self, rows: pa.Table) -> int:
        return int(np.clip(self._group_bytes_max() * rows.num_rows / max(rows.nbytes, 1), 1, GROUP_ROWS_MAX))

    def _group_bytes_max(self) -> int:
        """Arrow data of a row group; the first is no larger than a file, for its size in memory is not known yet."""
        begun = self._done or (self._open is not None and self._open.rows)
        return GROUP_BYTES_MAX if begun else min(GROUP_BYTES_MAX, self.to.target_file_size)

    def _quota(self) -> int:
        """Rows of a file, by the bytes that a row was seen to take: as many files as keep each within its bounds."""
        begun = [*self._done, *([self._open] if self._open else [])]
        rows, written = sum(file.rows for file in begun), sum(file.bytes for file in begun)
        if not rows:
            return self.count
        files = max(1, ceil(written / rows * self.count / (SHARE_MAX * self.to.target_file_size)))
        return ceil(self.count / files)

    def _opened(self, rows: pa.Table) -> OpenFile:
        order = [pq.SortingColumn(list(leaves(rows.schema)).index(name)) for name in self.job.sort_by]
        return OpenFile(self.to, self.job.bucket, rows, order)

    def _roll(self) -> None:
        if self._open is not None:
            self._open.close()
            self._done.append(self._open)
            self._open = None
