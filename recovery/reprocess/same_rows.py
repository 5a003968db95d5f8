"""Compares the rows that records became with the rows that are there, in the order of their offsets."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from recovery.reprocess.places import Places, at_places
from writer.batch.staging import table_file
from writer.batch.staging.sorting import sort_rows
from writer.core.files import BucketFile, StagedFile
from writer.maintenance.rewrite import batches_of
from writer.storage.base import Store
from writer.storage.disk_space import scratch
from writer.table.row_removal import OFFSET_COLUMNS


def same_rows(
    store: Store, columns: pa.Schema, there: Sequence[BucketFile], places: Places, made: Sequence[StagedFile],
    budget: int,
) -> bool:  # fmt: skip
    """Return whether rows at these places are, value by value, those that were made, which are of the same places.

    `columns`: of the table, those of buckets left out. `budget`: bytes of rows in memory; more are sorted on disk.
    Raises OSError.
    """
    for file in made:
        with table_file.open_parquet(store, file.path) as source:
            if not {*source.names} <= {*columns.names}:
                return False
    before = (batch for file in there for batch in batches_of(store, file.path, columns))
    after = (batch for file in made for batch in batches_of(store, file.path, columns))
    with tempfile.TemporaryDirectory(prefix="headrace-reprocess-", dir=scratch()) as folder:
        left, right = (Path(folder) / name for name in ("before", "after"))
        for each in (left, right):
            each.mkdir()
        mine = (batch.filter(pa.array(at_places(batch, places))) for batch in before)
        return _are_alike(
            sort_rows(mine, OFFSET_COLUMNS, left, budget // 2), sort_rows(after, OFFSET_COLUMNS, right, budget // 2)
        )


def _are_alike(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch]) -> bool:
    """Compare two streams of rows, however they are cut."""
    one = other = pa.record_batch([], names=[])
    while True:
        one, other = _filled(one, left), _filled(other, right)
        count = min(one.num_rows, other.num_rows)
        if not count:
            return bool(one.num_rows == other.num_rows)
        if not bool(one.slice(0, count).equals(other.slice(0, count))):
            return False
        one, other = one.slice(count), other.slice(count)


def _filled(held: pa.RecordBatch, stream: Iterator[pa.RecordBatch]) -> pa.RecordBatch:
    """Return what is held; where that is nothing, the next batch with rows. Without rows: the stream is at its end."""
    while not held.num_rows:
        found = next(stream, None)
        if found is None:
            return held
        held = found
    return held
