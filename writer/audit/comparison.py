"""Compares the rows of two tables offset by offset and column by column, a window of offsets at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.batch.staging.table_file import NAMES_IN_ICEBERG
from writer.core.offsets import Span, TopicPartition

if TYPE_CHECKING:
    from pyarrow import dataset

_WINDOW = 200_000  # offsets whose rows of both tables are in memory at once
_PLACE = ("_topic", "_incarnation", "_partition", "_offset")
_KINDS = pa.types


@dataclass(frozen=True)
class PartitionPair:
    """One partition as both tables know it, and the offsets [start, end) that both have committed."""

    first: TopicPartition
    second: TopicPartition
    offsets: Span


@dataclass(frozen=True)
class Difference:
    """An offset whose rows are not the same. A side without a row is None; else the values of `columns`."""

    part: TopicPartition  # of the first table
    offset: int
    columns: tuple[str, ...]
    first: Mapping[str, Any] | None
    second: Mapping[str, Any] | None


@dataclass
class Comparison:
    """How the rows of two tables differ."""

    offsets: int = 0  # compared, with a row or without
    equal: int = 0  # rows that are the same in both
    different: int = 0  # offsets with a row in both, of which some column differs
    only_first: int = 0
    only_second: int = 0
    columns: Counter[str] = field(default_factory=Counter)  # rows that differ, by column
    first_alone: tuple[str, ...] = ()  # columns that only the first table has; not compared
    second_alone: tuple[str, ...] = ()
    samples: list[Difference] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """No row differs. Columns that one table alone has do not count."""
        return not (self.different or self.only_first or self.only_second)


def compare(
    first: "dataset.Dataset", second: "dataset.Dataset", pairs: Iterable[PartitionPair], samples: int
) -> Comparison:
    """Compare the rows of two tables. `samples`: most differences that are kept, the first by partition and offset.

    Each offset has at most one row in a table, which `headrace audit --deep` proves. Raises OSError, ArrowInvalid.
    """
    names = [set(one.schema.names) - set(_PLACE) for one in (first, second)]
    common = [name for name in first.schema.names if name in names[0] & names[1]]
    found = Comparison(first_alone=tuple(sorted(names[0] - names[1])), second_alone=tuple(sorted(names[1] - names[0])))
    for pair in pairs:
        for start, end in _windows(pair.offsets):
            found.offsets += end - start
            one = _rows(first, pair.first, start, end, common)
            other = _rows(second, pair.second, start, end, common)
            _add(found, pair.first, one, other, common, samples)
    return found


def _windows(offsets: Span) -> Iterator[Span]:
    start, end = offsets
    for at in range(start, end, _WINDOW):
        yield at, min(end, at + _WINDOW)


def _rows(table: "dataset.Dataset", part: TopicPartition, start: int, end: int, columns: list[str]) -> pa.Table:
    """Return rows in the order of their offsets."""
    theirs = NAMES_IN_ICEBERG["_partition"]  # in files that Iceberg's clients wrote anew
    if theirs not in table.schema.names:
        table = table.replace_schema(table.schema.append(pa.field(theirs, pa.int32())))
    partition = pc.coalesce(pc.field("_partition"), pc.field(theirs))
    here = (pc.field("_topic") == part.topic) & (partition == part.partition)
    here &= (
        (pc.field("_incarnation") == part.incarnation) & (pc.field("_offset") >= start) & (pc.field("_offset") < end)
    )
    return table.to_table(columns=["_offset", *columns], filter=here).sort_by("_offset").combine_chunks()


def _add(
    found: Comparison, part: TopicPartition, first: pa.Table, second: pa.Table, columns: list[str], samples: int
) -> None:
    """Add the comparison of one window."""
    offsets: list[Any] = [one.column("_offset").to_numpy() for one in (first, second)]
    both, left, right = np.intersect1d(offsets[0], offsets[1], assume_unique=True, return_indices=True)
    alone = np.setdiff1d(offsets[0], both, assume_unique=True), np.setdiff1d(offsets[1], both, assume_unique=True)
    one, other = first.take(pa.array(left)), second.take(pa.array(right))
    masks = {name: different(one.column(name), other.column(name)) for name in columns}
    any_of = np.logical_or.reduce([np.zeros(len(both), bool), *masks.values()])
    found.columns.update({name: int(mask.sum()) for name, mask in masks.items() if mask.any()})
    found.different += int(any_of.sum())
    found.equal += len(both) - int(any_of.sum())
    found.only_first, found.only_second = found.only_first + len(alone[0]), found.only_second + len(alone[1])
    wanted = samples - len(found.samples)
    if wanted > 0:
        unlike = np.sort(np.concatenate([both[any_of], *alone]))[:wanted]
        found.samples += [_sample(part, int(offset), first, second, masks, both) for offset in unlike]


def _sample(
    part: TopicPartition, offset: int, first: pa.Table, second: pa.Table, masks: Mapping[str, Any], both: Any
) -> Difference:
    at = int(np.searchsorted(both, offset))
    shared = at < len(both) and both[at] == offset
    columns = tuple(name for name, mask in masks.items() if not shared or mask[at])
    sides = [one.filter(pc.equal(one.column("_offset"), offset)).select(columns).to_pylist() for one in (first, second)]
    one, other = (rows[0] if rows else None for rows in sides)
    return Difference(part, offset, columns, one, other)


def different(first: pa.ChunkedArray | pa.Array, second: pa.ChunkedArray | pa.Array) -> Any:
    """Return which values of two columns differ, a numpy array of bool; NaN equals NaN, null equals null.

    Types that differ are compared as the first one; values that it cannot hold differ.
    """
    one, other = (value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value for value in (first, second))
    if one.type != other.type:
        try:
            other = other.cast(one.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return np.ones(len(one), bool)
    return _unlike(one, other)


def _unlike(one: pa.Array, other: pa.Array) -> Any:
    """Compare arrays of one type."""
    nulls = one.is_null().to_numpy(zero_copy_only=False), other.is_null().to_numpy(zero_copy_only=False)
    found, there = nulls[0] != nulls[1], ~(nulls[0] | nulls[1])
    if not there.any():
        return found
    at = np.flatnonzero(there)
    one, other = one.take(pa.array(at)), other.take(pa.array(at))
    if _KINDS.is_struct(one.type):
        inner = [_unlike(a, b) for a, b in zip(one.flatten(), other.flatten(), strict=True)]
        found[at] = np.logical_or.reduce([np.zeros(len(at), bool), *inner])
    elif _KINDS.is_list(one.type) or _KINDS.is_large_list(one.type) or _KINDS.is_map(one.type):
        found[at] = _unlike_lists(one, other)
    else:
        unlike = pc.not_equal(one, other)
        if _KINDS.is_floating(one.type):
            unlike = pc.and_(unlike, pc.invert(pc.and_(pc.is_nan(one), pc.is_nan(other))))
        found[at] = unlike.to_numpy(zero_copy_only=False)
    return found


def _unlike_lists(one: pa.Array, other: pa.Array) -> Any:
    """Compare lists without nulls: by length, then all items of those that are equally long at once."""
    lengths = [np.diff(value.offsets.to_numpy()) for value in (one, other)]
    found = lengths[0] != lengths[1]
    at = np.flatnonzero(~found)
    items = [_items(value.take(pa.array(at))) for value in (one, other)]
    unlike = _unlike(*items)
    of = np.repeat(np.arange(len(at)), lengths[0][at])
    found[at] = np.bincount(of[unlike], minlength=len(at)) > 0
    return found


def _items(lists: pa.Array) -> pa.Array:
    if not _KINDS.is_map(lists.type):
        return lists.flatten()
    start, end = lists.offsets[0].as_py(), lists.offsets[-1].as_py()
    return pa.StructArray.from_arrays(
        [lists.keys.slice(start, end - start), lists.items.slice(start, end - start)], ["key", "value"]
    )
