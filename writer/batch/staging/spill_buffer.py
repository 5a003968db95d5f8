"""Buffers the rows of a task by bucket, in memory and on local disk, until they are written as Parquet.

All buckets of a task share one byte budget. Over it, the rows go to a spill run: one Arrow IPC file, rows in bucket
order. Where one bucket holds most of the rows, its rows skip the detour and become a row group of its open file. So
memory is the budget plus one row group, however many buckets are open. (docs/adr/0005-staging.md)
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers import Buckets
from headrace.writer.batch.staging.parquet_files import BucketFiles, Destination
from headrace.writer.core.files import BucketKey, StagedFile


class ScratchFailed(OSError):
    """The local disk of spill runs refused; the table's storage has no part in it."""


@contextmanager
def _scratch_failures() -> Iterator[None]:
    """Raise ScratchFailed for an OSError, with its number and its words."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise ScratchFailed(str(error)) from error
        raise ScratchFailed(error.errno, error.strerror, error.filename) from error


@dataclass
class _Bucket:
    """The rows of one bucket.

    `first`, `last`: event times. `bytes`: of the rows in memory, by the mean of those that came together. `spilled`:
    numbers of runs, and of batches in them.
    """

    key: BucketKey
    first: datetime
    last: datetime
    parts: list[pa.Table] = field(default_factory=list)
    bytes: float = 0
    spilled: list[tuple[int, int]] = field(default_factory=list)

    def take_parts(self) -> list[pa.Table]:
        parts = self.parts
        self.parts = []
        self.bytes = 0
        return parts

    def move_parts(self, files: BucketFiles) -> None:
        """Give the rows in memory to the files."""
        row_bytes = self.bytes / max(sum(part.num_rows for part in self.parts), 1)
        for part in self.take_parts():
            files.add(part, row_bytes * part.num_rows)


class Stage:
    """The buckets of one task. `add` rows, then `finish` once, or `abandon`."""

    def __init__(self, destination: Destination, *, budget: int, scratch: str | None = None) -> None:
        """Stage to `destination`, holding at most `budget` bytes of rows; spill runs go below `scratch`."""
        self._destination = destination
        self._budget = budget
        self._scratch = scratch
        # Of spill runs, made with the first: a task of a route has a stage for each table, most of which spill nothing.
        self._runs_folder: tempfile.TemporaryDirectory[str] | None = None
        self._buckets: dict[BucketKey, _Bucket] = {}
        self._open: tuple[_Bucket, BucketFiles] | None = None
        self._staged: list[StagedFile] = []
        self._runs: list[Path] = []
        self._bytes = 0
        self.spilled_bytes = 0

    def add(self, rows: pa.Table, event_time: pa.Array, buckets: Buckets) -> None:
        """Take rows in, each to the bucket its code names; over the budget, empty the memory."""
        if rows.num_rows == 0:
            return
        # To measure each part on its own would cost more than the part.
        row_bytes = rows.nbytes / rows.num_rows
        for code, part, first, last in _cut_by_bucket(rows, event_time, buckets.codes):
            key = buckets.values[code]
            bucket = self._buckets.setdefault(key, _Bucket(key, first, last))
            bucket.parts.append(part)
            bucket.bytes += row_bytes * part.num_rows
            bucket.first = min(bucket.first, first)
            bucket.last = max(bucket.last, last)
        self._bytes += rows.nbytes
        if self._bytes > self._budget:
            self.empty_memory()

    def finish(self) -> list[StagedFile]:
        """Turn every bucket into Parquet, one after the other. Returns the staged files. Raises as `empty_memory`."""
        with _scratch_failures():
            # No memory map: what is read of a run would count as memory of this process, up to the size of all runs.
            readers = [pa.ipc.open_file(pa.OSFile(str(run))) for run in self._runs]
        waiting = [bucket for bucket in self._buckets.values() if bucket.parts or bucket.spilled]
        for bucket in sorted(waiting, key=lambda bucket: self._open is None or self._open[0] is not bucket):
            files = self._files_of(bucket)
            for run, number in bucket.spilled:
                with _scratch_failures():
                    batch = readers[run].get_batch(number)
                files.add(pa.Table.from_batches([batch]))
            bucket.move_parts(files)
        self._close()
        del readers
        self._remove_runs()
        return self._staged

    def abandon(self) -> None:
        """Remove what this task wrote."""
        if self._open is not None:
            self._open[1].discard()
        self._remove_runs()
        self._destination.remove()

    @property
    def held_bytes(self) -> int:
        """Bytes of the rows in memory."""
        return self._bytes

    def empty_memory(self) -> None:
        """Move the rows in memory to disk: those of a large bucket to its open file, others to a spill run.

        Raises ScratchFailed for the local disk, OSError for the storage of the file.
        """
        if not self._bytes:
            return
        largest = max(self._buckets.values(), key=lambda bucket: bucket.bytes)
        if 2 * largest.bytes >= self._bytes:
            files = self._files_of(largest)
            largest.move_parts(files)
            files.flush()
        with _scratch_failures():
            self._spill([bucket for bucket in self._buckets.values() if bucket.parts])
        self._bytes = 0

    def _spill(self, waiting: list[_Bucket]) -> None:
        if not waiting:
            return
        if self._runs_folder is None:
            self._runs_folder = tempfile.TemporaryDirectory(
                prefix="headrace-stage-", dir=self._scratch, ignore_cleanup_errors=True
            )
        path = Path(self._runs_folder.name) / f"run-{len(self._runs)}.arrow"
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        written = 0
        with pa.ipc.new_file(str(path), waiting[0].parts[0].schema, options=options) as sink:
            for bucket in waiting:
                for batch in pa.concat_tables(bucket.take_parts()).combine_chunks().to_batches():
                    sink.write_batch(batch)
                    bucket.spilled.append((len(self._runs), written))
                    written += 1
        self._runs.append(path)
        self.spilled_bytes += path.stat().st_size

    def _remove_runs(self) -> None:
        if self._runs_folder is not None:
            self._runs_folder.cleanup()

    def _files_of(self, bucket: _Bucket) -> BucketFiles:
        """Return the bucket's open files; another bucket's are closed first, so that one writer is open at a time."""
        if self._open is None or self._open[0] is not bucket:
            self._close()
            self._open = (bucket, BucketFiles(self._destination, bucket.key))
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            bucket, files = self._open
            self._staged += files.close(bucket.first, bucket.last)
            self._open = None


def _cut_by_bucket(
    rows: pa.Table, event_time: pa.Array, codes: pa.Int32Array
) -> Iterator[tuple[int, pa.Table, datetime, datetime]]:
    """Cut rows by the codes of their buckets. Yields each code, its rows, and their first and last event time.

    Of rows `a` (code 2, at 12:05), `b` (code 0, at 10:01), `c` (code 2, at 12:01) it yields `0, [b], 10:01, 10:01` and
    `2, [a, c], 12:01, 12:05`.
    """
    times = event_time.cast(pa.int64()).to_numpy()
    counts_by_code = np.bincount(codes.to_numpy())
    if np.count_nonzero(counts_by_code) > 1:
        order = pc.array_sort_indices(codes)
        rows = rows.take(order)
        times = times[order.to_numpy()]
    present_codes = np.flatnonzero(counts_by_code)
    counts = counts_by_code[present_codes]
    starts = np.cumsum(counts) - counts
    firsts = pa.array(np.minimum.reduceat(times, starts)).cast(event_time.type).to_pylist()
    lasts = pa.array(np.maximum.reduceat(times, starts)).cast(event_time.type).to_pylist()
    parts = zip(present_codes.tolist(), starts.tolist(), counts.tolist(), firsts, lasts, strict=True)
    for code, start, count, first, last in parts:
        yield code, rows.slice(start, count), first, last
