"""Compares the rows of two tables offset by offset and column by column, a window of offsets at a time."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.batch.staging.table_file import NAMES_IN_ICEBERG
from headrace.writer.core.offsets import Span, TopicPartition
from headrace.writer.table.row_removal import OFFSET_COLUMNS

if TYPE_CHECKING:
    from pyarrow import dataset

# Offsets whose rows of both tables are in memory at once.
_WINDOW_OFFSETS = 200_000


@dataclass(frozen=True)
class PartitionPair:
    """One partition as both tables know it, and the offsets [start, end) that both have committed."""

    first: TopicPartition
    second: TopicPartition
    offsets: Span


@dataclass(frozen=True)
class Difference:
    """An offset whose rows are not the same. A side without a row is None; else the values of `columns`."""

    # Of the first table.
    part: TopicPartition
    offset: int
    columns: tuple[str, ...]
    first: Mapping[str, Any] | None
    second: Mapping[str, Any] | None


@dataclass
class Comparison:
    """How the rows of two tables differ."""

    # Offsets that were compared, with a row or without.
    offsets: int = 0
    # Rows that are the same in both.
    equal: int = 0
    # Offsets with a row in both, of which some column differs.
    different: int = 0
    only_first: int = 0
    only_second: int = 0
    # Rows that differ, by column.
    columns: Counter[str] = field(default_factory=Counter)
    # Columns that one table alone has; not compared.
    columns_only_first: tuple[str, ...] = ()
    columns_only_second: tuple[str, ...] = ()
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
    first_names = set(first.schema.names) - set(OFFSET_COLUMNS)
    second_names = set(second.schema.names) - set(OFFSET_COLUMNS)
    columns = [name for name in first.schema.names if name in first_names & second_names]
    comparison = Comparison(
        columns_only_first=tuple(sorted(first_names - second_names)),
        columns_only_second=tuple(sorted(second_names - first_names)),
    )
    for pair in pairs:
        for window in _windows(pair.offsets):
            first_rows = _read_rows(first, pair.first, window, columns)
            second_rows = _read_rows(second, pair.second, window, columns)
            comparison.offsets += window[1] - window[0]
            _add_window(comparison, pair.first, first_rows, second_rows, samples)
    return comparison


def _windows(offsets: Span) -> Iterator[Span]:
    start, end = offsets
    for window_start in range(start, end, _WINDOW_OFFSETS):
        yield window_start, min(end, window_start + _WINDOW_OFFSETS)


def _read_rows(table: "dataset.Dataset", part: TopicPartition, window: Span, columns: Sequence[str]) -> pa.Table:
    """Return rows in the order of their offsets."""
    start, end = window
    # The column's name in files that clients of Iceberg rewrote.
    iceberg_name = NAMES_IN_ICEBERG["_partition"]
    if iceberg_name not in table.schema.names:
        table = table.replace_schema(table.schema.append(pa.field(iceberg_name, pa.int32())))
    row_filter = pc.field("_topic") == part.topic
    row_filter &= pc.coalesce(pc.field("_partition"), pc.field(iceberg_name)) == part.partition
    row_filter &= pc.field("_incarnation") == part.incarnation
    row_filter &= (pc.field("_offset") >= start) & (pc.field("_offset") < end)
    rows = table.to_table(columns=["_offset", *columns], filter=row_filter)
    return rows.sort_by("_offset").combine_chunks()


def _add_window(comparison: Comparison, part: TopicPartition, first: pa.Table, second: pa.Table, samples: int) -> None:
    """Add the comparison of the rows of one window.

    Rows at the offsets 1, 2, 3 and at 2, 3, 4, of which those at 3 differ: one is equal, one different, and each side
    has one row alone. The samples are of the offsets 1, 3 and 4.
    """
    first_offsets: Any = first.column("_offset").to_numpy()
    second_offsets: Any = second.column("_offset").to_numpy()
    common, first_indexes, second_indexes = np.intersect1d(
        first_offsets, second_offsets, assume_unique=True, return_indices=True
    )
    only_first = np.setdiff1d(first_offsets, common, assume_unique=True)
    only_second = np.setdiff1d(second_offsets, common, assume_unique=True)
    first_common = first.take(pa.array(first_indexes))
    second_common = second.take(pa.array(second_indexes))
    masks = {
        name: unequal_values(first_common.column(name), second_common.column(name))
        for name in first.schema.names
        if name != "_offset"
    }
    is_different = _any_mask(len(common), masks.values())
    comparison.columns.update({name: int(mask.sum()) for name, mask in masks.items() if mask.any()})
    comparison.different += int(is_different.sum())
    comparison.equal += len(common) - int(is_different.sum())
    comparison.only_first += len(only_first)
    comparison.only_second += len(only_second)
    samples_left = samples - len(comparison.samples)
    if samples_left > 0:
        offsets = np.sort(np.concatenate([common[is_different], only_first, only_second]))[:samples_left]
        comparison.samples += [_sample(part, int(offset), first, second, masks, common) for offset in offsets]


def _any_mask(rows: int, masks: Iterable[Any]) -> Any:
    """Return where any of the masks is true; nowhere if there is none."""
    return np.logical_or.reduce([np.zeros(rows, bool), *masks])


def _sample(
    part: TopicPartition, offset: int, first: pa.Table, second: pa.Table, masks: Mapping[str, Any], common: Any
) -> Difference:
    """Return the difference at an offset. `masks`: which rows differ at the offsets of `common`, by column."""
    columns = tuple(masks)
    index = int(np.searchsorted(common, offset))
    if index < len(common) and common[index] == offset:
        columns = tuple(name for name, mask in masks.items() if mask[index])
    return Difference(part, offset, columns, _row_at(first, offset, columns), _row_at(second, offset, columns))


def _row_at(rows: pa.Table, offset: int, columns: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the values of columns at an offset; None where there is no row."""
    rows_at_offset = rows.filter(pc.equal(rows.column("_offset"), offset)).select(columns).to_pylist()
    return rows_at_offset[0] if rows_at_offset else None


def unequal_values(first: pa.ChunkedArray | pa.Array, second: pa.ChunkedArray | pa.Array) -> Any:
    """Return which values of two columns differ, a numpy array of bool; NaN equals NaN, null equals null.

    Types that differ are compared as the first one; values that it cannot hold differ.
    """
    first = _combine_chunks(first)
    second = _combine_chunks(second)
    if first.type != second.type:
        try:
            second = second.cast(first.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return np.ones(len(first), bool)
    return _unequal_items(first, second)


def _combine_chunks(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _unequal_items(first: pa.Array, second: pa.Array) -> Any:
    """Return which items of two arrays of one type differ: [1, null, 3] and [1, 2, 4] give [false, true, true]."""
    first_nulls = first.is_null().to_numpy(zero_copy_only=False)
    second_nulls = second.is_null().to_numpy(zero_copy_only=False)
    is_unequal = first_nulls != second_nulls
    indexes = np.flatnonzero(~(first_nulls | second_nulls))
    if len(indexes):
        first_values = first.take(pa.array(indexes))
        second_values = second.take(pa.array(indexes))
        is_unequal[indexes] = _unequal_without_nulls(first_values, second_values)
    return is_unequal


def _unequal_without_nulls(first: pa.Array, second: pa.Array) -> Any:
    """Return which items of two arrays of one type without nulls differ."""
    if pa.types.is_struct(first.type):
        children = zip(first.flatten(), second.flatten(), strict=True)
        return _any_mask(len(first), [_unequal_items(*pair) for pair in children])
    if pa.types.is_list(first.type) or pa.types.is_large_list(first.type) or pa.types.is_map(first.type):
        return _unequal_lists(first, second)
    is_unequal = pc.not_equal(first, second)
    if pa.types.is_floating(first.type):
        is_unequal = pc.and_(is_unequal, pc.invert(pc.and_(pc.is_nan(first), pc.is_nan(second))))
    return is_unequal.to_numpy(zero_copy_only=False)


def _unequal_lists(first: pa.Array, second: pa.Array) -> Any:
    """Compare lists without nulls: by length, then all items of those that are equally long at once.

    [[1, 2], [3], [4]] and [[1, 5], [3, 3], [4]] give [true, true, false].
    """
    first_lengths = np.diff(first.offsets.to_numpy())
    second_lengths = np.diff(second.offsets.to_numpy())
    is_unequal = first_lengths != second_lengths
    indexes = np.flatnonzero(~is_unequal)
    first_items = _items(first.take(pa.array(indexes)))
    second_items = _items(second.take(pa.array(indexes)))
    list_of_item = np.repeat(np.arange(len(indexes)), first_lengths[indexes])
    unequal_items = list_of_item[_unequal_items(first_items, second_items)]
    is_unequal[indexes] = np.bincount(unequal_items, minlength=len(indexes)) > 0
    return is_unequal


def _items(lists: pa.Array) -> pa.Array:
    """Return the items of all lists as one array; of maps, structs of key and value."""
    if not pa.types.is_map(lists.type):
        return lists.flatten()
    start = lists.offsets[0].as_py()
    length = lists.offsets[-1].as_py() - start
    return pa.StructArray.from_arrays(
        [lists.keys.slice(start, length), lists.items.slice(start, length)], ["key", "value"]
    )
