"""Finds rows whose key stands in another bucket within a window, in bounded memory.

Two buckets are within the window where less than it lies between the end of one and the start of the other, so rows
whose event times are at most the window apart always are. The rows of a key are judged in the order of PLACE, each
once: one goes where a row that stays lies within the window. A row that goes takes no other with it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bucketers.arrow import column, contiguous
from headrace.writer.batch.staging.parquet_files import value_bounds
from headrace.writer.batch.staging.sorting import PLACE, Dedupe, RowBits, query_rows, scratch_file

KAFKA_TIME = "_kafka_time"
# The least and the greatest value of columns; None: not known.
Bounds = Mapping[str, tuple[Any, Any] | None]
_STAYS = -1


@dataclass(frozen=True)
class ComparedBucket:
    """A bucket whose rows are compared.

    `start_us`, `end_us`: of its interval, in microseconds since 1970. `late`: it is of the table of late rows, whose
    rows are judged after all others. `near`: it is within the window of the bucket that is judged, not only of another
    that is compared. `sealed`: its rows were judged before; where they go by a row of the judged bucket is reported.
    """

    start_us: int
    end_us: int
    late: bool = False
    near: bool = True
    sealed: bool = False


class KeyFilter:
    """Tells which rows may have one of some keys. It has 16 bits a key: one row in 16 or more passes for nothing."""

    def __init__(self, keys: int, budget: int) -> None:
        """`keys`: how many there are; `budget`: bytes, of which a quarter is taken at most."""
        bits = min(max(16 * keys, 8), budget)
        self._size = 1 << (int(bits) - 1).bit_length()
        self._marks = RowBits(self._size)

    def add(self, keys: Sequence[pa.Array]) -> None:
        """Add the keys of rows: an array for each column, without nulls."""
        self._marks.set(self._hash_keys(keys))

    def may_have(self, keys: Sequence[pa.Array]) -> pa.Array:
        """Return for each row whether its key may have been added."""
        return pa.array(self._marks.has(self._hash_keys(keys)))

    def _hash_keys(self, keys: Sequence[pa.Array]) -> np.ndarray:
        """Return the number of a bit for each key: its 64-bit parts are multiplied and folded, one after the other."""
        hashes = np.zeros(len(keys[0]), np.uint64)
        for values in keys:
            for part in _key_parts(values):
                hashes = (hashes ^ part) * np.uint64(0x9E3779B97F4A7C15)
                hashes ^= hashes >> np.uint64(32)
        return np.asarray((hashes & np.uint64(self._size - 1)).astype(np.int64))


def _key_parts(values: pa.Array) -> Iterator[np.ndarray]:
    """Yield 64 bits of each value, or several times: of texts the first and the last eight bytes, and the length.

    Of `["ab", "abcdefghij"]` these are `[b"ab", b"abcdefgh"]` and `[b"ab", b"cdefghij"]`, each as one integer of eight
    bytes, and `[2, 10]`. A text below eight bytes is filled up with zeros.
    """
    if pa.types.is_integer(values.type):
        yield values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        return
    if pa.types.is_floating(values.type):
        # A zero below zero becomes the one above it.
        values = pc.add(values, pa.scalar(0, values.type))
    is_binary = pa.types.is_binary(values.type) or pa.types.is_fixed_size_binary(values.type)
    texts = values.cast(pa.large_binary() if is_binary else pa.large_string())
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    padded = np.append(data, np.zeros(8, np.uint8))
    starts = offsets[:-1] - offsets[0]
    ends = offsets[1:] - offsets[0]
    for first in (starts, np.maximum(ends - 8, starts)):
        # Positions beyond the end of a text are its end; the zeros below take the place of what stands there.
        positions = np.minimum(first[:, None] + np.arange(8), ends[:, None])
        eight_bytes = np.where(positions < ends[:, None], padded[positions], np.uint8(0))
        yield np.ascontiguousarray(eight_bytes).view(np.uint64).ravel()
    yield np.diff(offsets).astype(np.uint64)


class WindowDedupe:
    """Judges rows that come sorted by key, then in their order. Holds the buckets of the rows of one key that stay."""

    def __init__(self, buckets: Sequence[ComparedBucket], window_us: int) -> None:
        self._starts = np.array([bucket.start_us for bucket in buckets], np.int64)
        self._ends = np.array([bucket.end_us for bucket in buckets], np.int64)
        self._window_us = window_us
        # Of the key that the last batch ended with: a few, each a window from the others.
        self._staying_buckets: list[int] = []

    def match_rows(self, buckets: np.ndarray, is_first: np.ndarray) -> np.ndarray:
        """Return for each row the bucket of the row by which it goes; -1: it stays.

        `buckets`: numbers of their buckets; `is_first`: whether it is the first row of its key. Each turn lets the
        first open row of every key stay, and matches the open rows of its key that are near it.

        With hours 0, 1 and 5 as buckets and a window of two hours, three rows of one key and one of the next:

            buckets   [0, 1, 2, 1]
            is_first  [True, False, False, True]
            matches   [-1, 0, -1, -1]

        The second row goes by that of bucket 0. The third is too far from it, and stays in the second turn.
        """
        if not len(buckets):
            return np.full(0, _STAYS)
        matches = np.full(len(buckets), _STAYS)
        # Rows of the last batch's key have 0.
        keys = np.cumsum(is_first)
        for bucket in self._staying_buckets:
            is_near = self._near(buckets, np.full(len(buckets), bucket))
            matches[(matches < 0) & (keys == 0) & is_near] = bucket
        staying_buckets = [] if keys[-1] else list(self._staying_buckets)
        open_rows = np.flatnonzero(matches < 0)
        while len(open_rows):
            # The first open row of each key stays.
            heads = np.flatnonzero(np.diff(keys[open_rows], prepend=-1))
            counts = np.diff(np.append(heads, len(open_rows)))
            staying_rows = np.repeat(open_rows[heads], counts)
            if keys[open_rows[-1]] == keys[-1]:
                staying_buckets.append(int(buckets[staying_rows[-1]]))
            is_other = open_rows != staying_rows
            is_match = is_other & self._near(buckets[open_rows], buckets[staying_rows])
            matches[open_rows[is_match]] = buckets[staying_rows[is_match]]
            open_rows = open_rows[is_other & ~is_match]
        self._staying_buckets = staying_buckets
        return matches

    def _near(self, buckets: np.ndarray, others: np.ndarray) -> np.ndarray:
        last_start = np.maximum(self._starts[buckets], self._starts[others])
        first_end = np.minimum(self._ends[buckets], self._ends[others])
        return np.asarray((buckets == others) | (last_start - first_end < self._window_us))


def mark_repeats_in_window(
    batches: Iterable[tuple[int, pa.RecordBatch]],
    buckets: Sequence[ComparedBucket],
    rows: int,
    rule: Dedupe,
    window_us: int,
    scratch: Path,
    budget: int,
) -> tuple[RowBits, set[int]]:
    """Mark the rows of bucket 0 that go. Returns also the sealed buckets of which rows go by one of bucket 0.

    `batches`: number of a bucket, and rows of it with the columns of `dedupe_columns`; first the `rows` of bucket 0, as
    they are numbered. Of the others only rows whose key bucket 0 may have are kept. Memory is the budget of the sort,
    and what it takes beside; 33 bits at most for each row of bucket 0, of which 32 are at most a quarter of the budget.
    """
    assert rule.keep == "first", "what came later cannot take a row that was judged before"
    names = [f"k{n}" for n in range(len(rule.key))]
    path = scratch / "keys.parquet"
    row_count = 0
    writer: pq.ParquetWriter | None = None
    key_filter = KeyFilter(rows, budget)
    for bucket, batch in batches:
        compared = _compared_rows(batch, row_count, bucket, buckets[bucket], rule)
        row_count += batch.num_rows
        keys = [contiguous(compared.column(name)) for name in names]
        if bucket:
            compared = compared.filter(key_filter.may_have(keys))
        else:
            key_filter.add(keys)
        writer = writer or scratch_file(path, compared.schema)
        if compared.num_rows:
            writer.write_table(compared)
    marks = RowBits(rows)
    repeats_in = set[int]()
    if writer is None:
        return marks, repeats_in
    writer.close()
    is_sealed = [bucket.sealed for bucket in buckets]
    dedupe = WindowDedupe(buckets, window_us)
    last_row: pa.RecordBatch | None = None
    # Texts as keys are large where sorted runs merge.
    with query_rows(path, _sort_statement(names), scratch, budget, merge_bytes=budget // 4) as sorted_batches:
        for batch in sorted_batches:
            numbers, bucket_numbers = (batch.column(n).to_numpy(zero_copy_only=False) for n in ("at", "bucket"))
            matches = dedupe.match_rows(bucket_numbers, _key_starts(batch, last_row, names))
            if batch.num_rows:
                last_row = batch.slice(batch.num_rows - 1)
            marks.set(numbers[(matches >= 0) & (bucket_numbers == 0)])
            others = bucket_numbers[(matches == 0) & (bucket_numbers != 0)]
            repeats_in.update(bucket for bucket in np.unique(others).tolist() if is_sealed[bucket])
    path.unlink()
    return marks, repeats_in


def _compared_rows(
    batch: pa.RecordBatch, first_number: int, bucket_number: int, bucket: ComparedBucket, rule: Dedupe
) -> pa.Table:
    """Return the keys and places of rows, with their numbers and what is the same for their bucket; no null in a key.

    The columns are `k0`, `k1`, …, those of PLACE, and `late`, `start`, `at` (the number of the row), `bucket`.
    """
    count = batch.num_rows
    keys = [column(batch, name) for name in rule.key]
    names = [f"k{n}" for n in range(len(keys))]
    of_bucket = [
        pa.repeat(bucket.late, count),
        pa.repeat(bucket.start_us, count),
        pa.array(np.arange(first_number, first_number + count)),
        pa.repeat(pa.scalar(bucket_number, pa.int32()), count),
    ]
    rows = pa.table(
        [*keys, *(batch.column(name) for name in PLACE), *of_bucket],
        names=[*names, *PLACE, "late", "start", "at", "bucket"],
    )
    for name in names:
        rows = rows.filter(pc.is_valid(rows.column(name)))
    return rows


def _sort_statement(names: Sequence[str]) -> str:
    """Return the SQL that sorts compared rows by key, then in their order."""
    keys = ", ".join(names)
    order = ", ".join(["late", *(f'"{name}"' for name in PLACE), "start", "at"])
    return f"SELECT at, bucket, {keys} FROM rows ORDER BY {keys}, {order}"  # noqa: S608 - our own names


def _key_starts(batch: pa.RecordBatch, last_row: pa.RecordBatch | None, names: Sequence[str]) -> np.ndarray:
    """Return for each row whether it has another key than the one before. `last_row`: of the batch before.

    For the keys `["a", "a", "b"]` after a last row with `"a"` these are `[False, False, True]`. NaN is equal to NaN.
    """
    starts = np.zeros(batch.num_rows, bool)
    starts[:1] = last_row is None
    for name in names:
        keys = batch.column(name)
        first = keys[:1] if last_row is None else last_row.column(name)
        previous = pa.concat_arrays([first, keys])[: batch.num_rows]
        differs = pc.not_equal(keys, previous)
        if pa.types.is_floating(keys.type):
            differs = pc.and_not(differs, pc.and_(pc.is_nan(keys), pc.is_nan(previous)))
        starts |= differs.to_numpy(zero_copy_only=False)
    return starts


def column_bounds(metadata: pq.FileMetaData, names: Iterable[str]) -> dict[str, tuple[Any, Any] | None]:
    """Return the least and the greatest value of columns in a file, nulls aside, by the statistics of its footer.

    Of `_kafka_time`, which orders rows, a null is the last.
    """
    positions = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    groups = [metadata.row_group(g) for g in range(metadata.num_row_groups)]
    bounds: dict[str, tuple[Any, Any] | None] = {}
    for name in names:
        bounds[name] = None
        if name not in positions:
            continue
        statistics = [group.column(positions[name]).statistics for group in groups]
        if name == KAFKA_TIME and any(group is None or group.null_count != 0 for group in statistics):
            continue
        bounds[name] = value_bounds(statistics)
    return bounds


def merge_bounds(bounds_of_files: Sequence[Bounds]) -> dict[str, tuple[Any, Any] | None]:
    """Return the bounds of several files together; None for a column of which those of one are not known."""
    if not bounds_of_files:
        return {}
    return {name: _merge_column([bounds[name] for bounds in bounds_of_files]) for name in bounds_of_files[0]}


def _merge_column(bounds_of_files: Sequence[tuple[Any, Any] | None]) -> tuple[Any, Any] | None:
    bounds = [each for each in bounds_of_files if each is not None]
    if len(bounds) < len(bounds_of_files):
        return None
    try:
        return min(low for low, _ in bounds), max(high for _, high in bounds)
    except TypeError:
        # The column has another type in a file from before it was widened.
        return None


def may_match(
    bucket: ComparedBucket, bounds: Bounds, judged: ComparedBucket, judged_bounds: Bounds, key: Sequence[str]
) -> bool:
    """Return whether rows of a file may share a key with the judged bucket, and decide or hear what goes.

    `bounds`: of the file, which is one of `bucket`. `judged_bounds`: of the judged bucket's files.
    """
    if not all(_overlap(judged_bounds[name], bounds[name]) for name in key):
        return False
    if bucket.late != judged.late:
        return not bucket.late or bucket.near
    times = bounds[KAFKA_TIME]
    judged_times = judged_bounds[KAFKA_TIME]
    if times is None or judged_times is None:
        return True
    if times[0] <= judged_times[1]:
        return True
    return bool(bucket.near and bucket.sealed and times[1] >= judged_times[0])


def _overlap(bounds: tuple[Any, Any] | None, others: tuple[Any, Any] | None) -> bool:
    """Return whether two intervals overlap; also where one is not known, or of another type."""
    if bounds is None or others is None:
        return True
    try:
        return bool(bounds[0] <= others[1] and others[0] <= bounds[1])
    except TypeError:
        return True
