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

from bucketers.arrow import column, contiguous
from writer.batch.staging.parquet_files import value_bounds
from writer.batch.staging.sorting import PLACE, Dedupe, RowBits, query, scratch_file

CAME = "_kafka_time"
Bounds = Mapping[str, tuple[Any, Any] | None]  # of columns: least and greatest value; None: unknown


@dataclass(frozen=True)
class ComparedBucket:
    """A bucket whose rows are compared."""

    start_us: int  # of its interval, since 1970
    end_us: int
    late: bool = False  # of the table of late rows: its rows are judged after all others
    near: bool = True  # within the window of the bucket that is judged, not only of another that is compared
    sealed: bool = False  # its rows were judged before: it is said where they go by a row of the judged bucket


class KeyFilter:
    """Tells which rows may have one of some keys. It has 16 bits a key: one row in 16 or more passes for nothing."""

    def __init__(self, keys: int, budget: int) -> None:
        """`keys`: how many there are; `budget`: bytes, of which a quarter is taken at most."""
        self._size = 1 << (int(min(max(16 * keys, 8), budget)) - 1).bit_length()
        self._marks = RowBits(self._size)

    def add(self, keys: Sequence[pa.Array]) -> None:
        """Add the keys of rows: an array for each column, without nulls."""
        self._marks.set(self._numbers(keys))

    def may_have(self, keys: Sequence[pa.Array]) -> pa.Array:
        """Return for each row whether its key may have been added."""
        return pa.array(self._marks.has(self._numbers(keys)))

    def _numbers(self, keys: Sequence[pa.Array]) -> np.ndarray:
        mixed = np.zeros(len(keys[0]), np.uint64)
        for values in keys:
            for part in _words(values):
                mixed = (mixed ^ part) * np.uint64(0x9E3779B97F4A7C15)
                mixed ^= mixed >> np.uint64(32)
        return np.asarray((mixed & np.uint64(self._size - 1)).astype(np.int64))


def _words(values: pa.Array) -> Iterator[np.ndarray]:
    """Yield 64 bits of each value, or several times: of texts the first and the last eight bytes, and the length."""
    if pa.types.is_integer(values.type):
        yield values.to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        return
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0, values.type))  # no zero below zero
    opaque = pa.types.is_binary(values.type) or pa.types.is_fixed_size_binary(values.type)
    texts = values.cast(pa.large_binary() if opaque else pa.large_string())
    ends = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    bytes_, lengths = np.append(data, np.zeros(8, np.uint8)), np.diff(ends)
    starts, ends = ends[:-1] - ends[0], ends[1:] - ends[0]
    for first in (starts, np.maximum(ends - 8, starts)):
        at = np.minimum(first[:, None] + np.arange(8), ends[:, None])  # beyond the end the byte after it, for all alike
        words = np.where(at < ends[:, None], bytes_[at], np.uint8(0))
        yield np.ascontiguousarray(words).view(np.uint64).ravel()
    yield lengths.astype(np.uint64)


class Judge:
    """Judges rows that come sorted by key, then in their order. Holds the buckets of the rows of one key that stay."""

    def __init__(self, buckets: Sequence[ComparedBucket], window_us: int) -> None:
        self._starts = np.array([one.start_us for one in buckets], np.int64)
        self._ends = np.array([one.end_us for one in buckets], np.int64)
        self._window_us = window_us
        self._stay: list[int] = []  # of the key that the last batch ended with: a few, each a window from the others

    def judge(self, buckets: np.ndarray, first: np.ndarray) -> np.ndarray:
        """Return for each row the bucket of the row by which it goes; -1: it stays.

        `buckets`: numbers of their buckets; `first`: whether it is the first row of its key.
        """
        if not len(buckets):
            return np.full(0, -1)
        by, key = np.full(len(buckets), -1), np.cumsum(first)  # rows of the last batch's key have 0
        for one in self._stay:
            by[(by < 0) & (key == 0) & self._near(buckets, np.full(len(buckets), one))] = one
        stay = [] if key[-1] else list(self._stay)
        open_ = np.flatnonzero(by < 0)
        while len(open_):
            heads = np.flatnonzero(np.diff(key[open_], prepend=-1))  # of each key the first row that is open: it stays
            counts = np.diff(np.append(heads, len(open_)))
            heading = np.repeat(open_[heads], counts)
            if key[open_[-1]] == key[-1]:
                stay.append(int(buckets[heading[-1]]))
            gone = (open_ != heading) & self._near(buckets[open_], buckets[heading])
            by[open_[gone]] = buckets[heading[gone]]
            open_ = open_[~gone & (open_ != heading)]
        self._stay = stay
        return by

    def _near(self, some: np.ndarray, others: np.ndarray) -> np.ndarray:
        between = np.maximum(self._starts[some], self._starts[others]) - np.minimum(
            self._ends[some], self._ends[others]
        )
        return np.asarray((some == others) | (between < self._window_us))


def repeated_within(
    batches: Iterable[tuple[int, pa.RecordBatch]], buckets: Sequence[ComparedBucket], rows: int, rule: Dedupe,
    window_us: int, scratch: Path, budget: int,
) -> tuple[RowBits, set[int]]:  # fmt: skip
    """Mark the rows of bucket 0 that go. Returns also the sealed buckets of which rows go by one of bucket 0.

    `batches`: number of a bucket, and rows of it with the columns of `needed`; first the `rows` of bucket 0, as they
    are numbered. Of the others only rows whose key bucket 0 may have are kept. Memory is the budget of the sort, and
    what it takes beside; 33 bits at most for each row of bucket 0, of which 32 are at most a quarter of the budget.
    """
    assert rule.keep == "first", "what came later cannot take a row that was judged before"
    names, path, at = [f"k{n}" for n in range(len(rule.key))], scratch / "keys.parquet", 0
    writer, own = None, KeyFilter(rows, budget)
    for bucket, batch in batches:
        count, facts = batch.num_rows, buckets[bucket]
        beside = [
            pa.repeat(facts.late, count), pa.repeat(facts.start_us, count), pa.array(np.arange(at, at + count)),
            pa.repeat(pa.scalar(bucket, pa.int32()), count),
        ]  # fmt: skip
        at += count
        keys = [column(batch, name) for name in rule.key]
        wanted = pa.table(
            [*keys, *(batch.column(name) for name in PLACE), *beside],
            names=[*names, *PLACE, "late", "start", "at", "bucket"],
        )
        for name in names:
            wanted = wanted.filter(pc.is_valid(wanted.column(name)))
        plain = [contiguous(wanted.column(name)) for name in names]
        if bucket:
            wanted = wanted.filter(own.may_have(plain))
        else:
            own.add(plain)
        writer = writer or scratch_file(path, wanted.schema)
        if wanted.num_rows:
            writer.write_table(wanted)
    marks, repeats_in, judge = RowBits(rows), set[int](), Judge(buckets, window_us)
    if writer is None:
        return marks, repeats_in
    writer.close()
    order, sealed = ", ".join(["late", *(f'"{name}"' for name in PLACE), "start", "at"]), [b.sealed for b in buckets]
    question = f"SELECT at, bucket, {', '.join(names)} FROM rows ORDER BY {', '.join(names)}, {order}"  # noqa: S608 - our own names
    last: pa.RecordBatch | None = None
    with query(path, question, scratch, budget, budget // 4) as found:  # texts as keys are large where they merge
        for batch in found:
            numbers, found_in = (batch.column(n).to_numpy(zero_copy_only=False) for n in ("at", "bucket"))
            by = judge.judge(found_in, _begins(batch, last, names))
            last = batch.slice(batch.num_rows - 1) if batch.num_rows else last
            marks.set(numbers[(by >= 0) & (found_in == 0)])
            repeats_in.update(n for n in np.unique(found_in[(by == 0) & (found_in != 0)]).tolist() if sealed[n])
    path.unlink()
    return marks, repeats_in


def _begins(batch: pa.RecordBatch, last: pa.RecordBatch | None, names: Sequence[str]) -> np.ndarray:
    """Return for each row whether it has another key than the one before; `last`: that of the batch before."""
    begins = np.zeros(batch.num_rows, bool)
    begins[:1] = last is None
    for name in names:
        own = batch.column(name)
        before = pa.concat_arrays([own[:1] if last is None else last.column(name), own])[: batch.num_rows]
        differs = pc.not_equal(own, before)
        if pa.types.is_floating(own.type):
            differs = pc.and_not(differs, pc.and_(pc.is_nan(own), pc.is_nan(before)))
        begins |= differs.to_numpy(zero_copy_only=False)
    return begins


def bounds(metadata: pq.FileMetaData, names: Iterable[str]) -> dict[str, tuple[Any, Any] | None]:
    """Return the least and the greatest value of columns in a file, nulls aside, by the statistics of its footer.

    Of `_kafka_time`, which orders rows, a null is the last.
    """
    at = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
    groups, found = [metadata.row_group(g) for g in range(metadata.num_row_groups)], {}
    for name in names:
        statistics = [group.column(at[name]).statistics for group in groups] if name in at else []
        has_null = name == CAME and any(group is None or group.null_count != 0 for group in statistics)
        found[name] = None if has_null else value_bounds(statistics)
    return found


def joined_bounds(several: Sequence[Bounds]) -> dict[str, tuple[Any, Any] | None]:
    """Return the bounds of several files together."""
    found: dict[str, tuple[Any, Any] | None] = {}
    for name in several[0] if several else ():
        known = [one for each in several if (one := each[name]) is not None]
        whole = len(known) == len(several)
        try:
            found[name] = (min(low for low, _ in known), max(high for _, high in known)) if whole else None
        except TypeError:  # of another type, in a file from before the column was widened
            found[name] = None
    return found


def concerns(bucket: ComparedBucket, other: Bounds, judged: ComparedBucket, own: Bounds, key: Sequence[str]) -> bool:
    """Return whether rows of a file may share a key with the judged bucket, and decide or hear what goes."""
    if not all(_meet(own[name], other[name]) for name in key):
        return False
    if bucket.late != judged.late:
        return bucket.near if bucket.late else True
    came, others = own[CAME], other[CAME]
    if came is None or others is None:
        return True
    return bool(others[0] <= came[1] or (bucket.near and bucket.sealed and others[1] >= came[0]))


def _meet(some: tuple[Any, Any] | None, others: tuple[Any, Any] | None) -> bool:
    if some is None or others is None:
        return True
    try:
        return bool(some[0] <= others[1] and others[0] <= some[1])
    except TypeError:
        return True
