"""Finds the rows whose bytes are not the shortest encoding of what the native decoder made of them.

The decoder reads some bytes that Avro forbids as other values: a nullable union's index beside 0 and 1, a boolean
beside 0 and 1, an int of more than five bytes, a block whose size is wrong. From the decoded columns follows how many
bytes each value takes in its shortest encoding, and so where each value begins. A row of another length is found; so is
one with another byte in the place of an index or a boolean. Most rows that are found are sound: Avro allows longer
numbers, and blocks that state their size. Whole columns at a time. (docs/adr/0050-strict-decoding.md)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.writer.avro import schema as avro

Longs = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
# Of each value, or of all alike.
Sizes = npt.NDArray[np.int32] | int
# Bytes of a block, and starts of values in it → which values differ; None: none does.
Check = Callable[[Bytes, Longs], Mask | None]
_FIXED_SIZES = {"null": 0, "float": 4, "double": 8}
# Of a number, in each of its bytes.
_GROUP_BITS = 7
# So many indexes take one byte, and so many lengths.
_ONE_BYTE_INDEXES = 64
_SIGN_BITS = 1
# Values that are compared together: their bytes stay in the processor's cache.
_ROWS_AT_ONCE = 4_096


@dataclass(frozen=True)
class EncodedColumn:
    """What follows from decoded values about their bytes in the shortest encoding."""

    sizes: Sizes
    # The byte that each begins with, where neither the decoder nor the size shows it.
    first_bytes: Bytes | None = None
    # Compares what lies inside the values.
    check: Check | None = None

    @property
    def has_checks(self) -> bool:
        """Return whether there are bytes to compare."""
        return self.first_bytes is not None or self.check is not None

    def run_check(self, block: Bytes, starts: Longs) -> Mask | None:
        """Return which values differ inside; None: none does, or there is nothing to compare."""
        if self.check is None:
            return None
        return self.check(block, starts)


def find_other_bytes(
    record: avro.Record, columns: Mapping[str, pa.Array], block: Bytes, starts: Longs, sizes: Longs
) -> Mask:
    """Return which rows have other bytes than the shortest encoding of their values.

    `columns`: as the decoder hands them over, by field. `starts`, `sizes`: of each value in the block, without header.

    For an int field, the decoded values 1, 1, 64 and the bytes `02`, `82 00`, `80 01` give false, true, false.
    """
    row = _record_column([_encode_column(record, field["type"], columns[field["name"]]) for field in record.fields])
    differs: Mask = sizes != row.sizes
    differs_inside = row.run_check(block, starts)
    return differs if differs_inside is None else differs | differs_inside


def varint_sizes(numbers: Integers) -> Sizes:
    """Return how many bytes each number has as a zig-zag varint: 2 for 64, 1 for -64; one size where all have it."""
    if not len(numbers):
        return 1
    least = int(numbers.min())
    most = int(numbers.max())
    if least < 0:
        # A number and its complement have one size.
        numbers = numbers ^ (numbers >> (8 * numbers.itemsize - 1))
        most = max(most, ~least)
        least = 0
    size_min = _varint_size(least)
    size_max = _varint_size(most)
    if size_min == size_max:
        return size_min
    sizes = np.full(len(numbers), size_min, np.int32)
    for size in range(size_min, size_max):
        sizes += numbers >= 1 << (_GROUP_BITS * size - _SIGN_BITS)
    return sizes


def _varint_size(number: int) -> int:
    """Return the bytes of a number that is not negative."""
    return -(-(number.bit_length() + _SIGN_BITS) // _GROUP_BITS)


def _encode_column(record: avro.Record, schema: avro.Schema, array: pa.Array) -> EncodedColumn:
    schema = record.resolve(schema)
    if isinstance(schema, list):
        if pa.types.is_union(array.type):
            return _union_column(record, schema, array)
        return _nullable_column(record, schema, array)
    match avro.type_name(schema):
        case "record":
            fields = enumerate(schema["fields"])
            return _record_column([_encode_column(record, field["type"], array.field(i)) for i, field in fields])
        case "array":
            items = array.values.slice(*_items_range(array))
            return _block_column(_offsets(array), _encode_column(record, schema["items"], items))
        case "map":
            keys = _text_column(array.keys.slice(*_items_range(array)))
            values = _encode_column(record, schema["values"], array.items.slice(*_items_range(array)))
            return _block_column(_offsets(array), _record_column([keys, values]))
        case "string" | "bytes":
            return _text_column(array)
        case "enum":
            if len(schema["symbols"]) <= _ONE_BYTE_INDEXES:
                return EncodedColumn(1)
            return EncodedColumn(varint_sizes(_numbers(array.indices)))
        case "fixed":
            return EncodedColumn(int(schema["size"]))
        case "int" | "long":
            return EncodedColumn(varint_sizes(_numbers(array)))
        case "boolean":
            return EncodedColumn(1, first_bytes=_bits(array.buffers()[1], array))
        case primitive:
            return EncodedColumn(_FIXED_SIZES[primitive])


def _record_column(parts: Sequence[EncodedColumn]) -> EncodedColumn:
    """Return the column of records of these fields."""
    sizes = _sum_sizes([part.sizes for part in parts])
    if any(part.has_checks for part in parts):
        return EncodedColumn(sizes, check=partial(_find_differences, parts))
    return EncodedColumn(sizes)


def _sum_sizes(sizes: Sequence[Sizes]) -> Sizes:
    """Return the sizes of values that lie behind one another: 4, [1, 2] and [3, 3] give [8, 9]."""
    constant = sum(size for size in sizes if isinstance(size, int))
    arrays = [size for size in sizes if not isinstance(size, int)]
    if not arrays:
        return constant
    total = arrays[0] + np.int32(constant)
    for array in arrays[1:]:
        total += array
    return total


def _sizes_of(sizes: Sizes, values: slice | Longs) -> Sizes:
    """Return the sizes of some of the values."""
    return sizes if isinstance(sizes, int) else sizes[values]


def _find_differences(parts: Sequence[EncodedColumn], block: Bytes, starts: Longs) -> Mask | None:
    """Return which values have another byte in one of these parts, which lie behind one another.

    For a part of 1 byte and a part with the first bytes 0 and 1, two rows at the starts 0 and 2 of the block
    `09 00 09 07` give false and true.
    """
    steps = list(_steps_between_checks(parts))
    differs = np.zeros(len(starts), np.bool_)
    for first_row in range(0, len(starts), _ROWS_AT_ONCE):
        rows = slice(first_row, first_row + _ROWS_AT_ONCE)
        positions = starts[rows].copy()
        for sizes, part in steps:
            positions += _sizes_of(sizes, rows)
            if part.first_bytes is not None:
                differs[rows] |= block.take(positions, mode="clip") != part.first_bytes[rows]
    if any(part.check is not None for _, part in steps):
        positions = starts
        for sizes, part in steps:
            positions = positions + sizes
            differs_inside = part.run_check(block, positions)
            if differs_inside is not None:
                differs |= differs_inside
    return differs if differs.any() else None


def _steps_between_checks(parts: Sequence[EncodedColumn]) -> Iterator[tuple[Sizes, EncodedColumn]]:
    """Yield the parts with bytes to compare, each with the sizes from the one before to it."""
    sizes_between = list[Sizes]()
    for part in parts:
        if part.has_checks:
            yield _sum_sizes(sizes_between), part
            sizes_between = []
        sizes_between.append(part.sizes)


def _nullable_column(record: avro.Record, branches: Sequence[avro.Schema], array: pa.Array) -> EncodedColumn:
    """Return the column of a union that arrives without its indexes, which are one byte each.

    Of null and int, the values 5, null, 64 have the sizes 2, 1, 3 and the first bytes 2, 0, 2.
    """
    names = [record.resolve(branch) for branch in branches]
    value_index = next((index for index, name in enumerate(names) if name != "null"), 0)
    value_byte = 2 * value_index
    values = _encode_column(record, branches[value_index], array)
    if array.null_count == 0:
        first_bytes = np.full(len(array), value_byte, np.uint8)
        sizes = 1 + values.sizes
    else:
        is_value = _bits(array.buffers()[0], array)
        indexes = is_value if value_index else 1 - is_value
        first_bytes = indexes + indexes
        sizes = 1 + np.multiply(is_value, values.sizes, dtype=np.int32)
    if not values.has_checks:
        return EncodedColumn(sizes, first_bytes)

    def check(block: Bytes, starts: Longs) -> Mask | None:
        differs = _find_differences([values], block, starts + 1)
        if differs is not None:
            differs &= first_bytes == value_byte
        return differs

    return EncodedColumn(sizes, first_bytes, check)


@dataclass(frozen=True)
class _CheckedBranch:
    """A branch of a union with bytes to compare."""

    column: EncodedColumn
    # How many values its array has, also those of no row.
    count: int
    # The rows that took the branch, and the position of each one's value in the branch's array.
    rows: Longs
    positions: Longs


def _union_column(record: avro.Record, branches: Sequence[avro.Schema], array: pa.UnionArray) -> EncodedColumn:
    """Return the column of a union whose indexes the decoder has checked. Its branches lie in arrays of their own.

    Of int and boolean, the values 64, true, 1 have the sizes 3, 2, 2; the byte of `true` is compared.
    """
    codes = np.asarray(array.type_codes)
    offsets = np.asarray(array.offsets)
    sizes = np.ones(len(array), np.int32)
    checked_branches = list[_CheckedBranch]()
    for code, branch in enumerate(branches):
        values = array.field(code)
        column = _encode_column(record, branch, values)
        rows = np.flatnonzero(codes == code)
        positions = offsets[rows]
        sizes[rows] += _sizes_of(column.sizes, positions)
        if column.has_checks and len(rows):
            checked_branches.append(_CheckedBranch(column, len(values), rows, positions))
    if not checked_branches:
        return EncodedColumn(sizes)

    def check(block: Bytes, starts: Longs) -> Mask | None:
        differs = np.zeros(len(starts), np.bool_)
        for branch in checked_branches:
            value_starts = np.zeros(branch.count, np.int64)
            value_starts[branch.positions] = starts[branch.rows] + 1
            has_other_bytes = _find_differences([branch.column], block, value_starts)
            if has_other_bytes is not None:
                differs[branch.rows] |= has_other_bytes[branch.positions]
        return differs

    return EncodedColumn(sizes, check=check)


def _block_column(offsets: npt.NDArray[np.int32], items: EncodedColumn) -> EncodedColumn:
    """Return the column of arrays or maps, whose items lie in one block, behind their count and before a 0.

    The offsets 0, 2, 2, 3 of items with the sizes 1, 3, 2 give the sizes 6, 1, 4: count, items and end.
    """
    counts = np.diff(offsets)
    first_items = offsets - offsets[0]
    # Where each item ends, if all items lie behind one another.
    item_ends = np.zeros(first_items[-1] + 1, np.int64)
    np.cumsum(np.broadcast_to(items.sizes, len(item_ends) - 1), out=item_ends[1:])
    count_sizes = varint_sizes(counts) * (counts > 0)
    sizes = (1 + count_sizes + np.diff(item_ends[first_items])).astype(np.int32)
    if not items.has_checks:
        return EncodedColumn(sizes)

    def check(block: Bytes, starts: Longs) -> Mask | None:
        """Compare all items. A row's items lie in the block where its first one does, in the order of `item_ends`."""
        shifts = starts + count_sizes - item_ends[first_items[:-1]]
        item_starts = np.repeat(shifts, counts) + item_ends[:-1]
        has_other_bytes = _find_differences([items], block, item_starts)
        if has_other_bytes is None:
            return None
        differences_before = np.zeros(len(item_ends), np.int64)
        np.cumsum(has_other_bytes, out=differences_before[1:])
        differs: Mask = np.diff(differences_before[first_items]) > 0
        return differs

    return EncodedColumn(sizes, check=check)


def _text_column(array: pa.Array) -> EncodedColumn:
    """Return the column of text or bytes, which have their length before them."""
    offsets = _offsets(array)
    lengths = offsets[1:] - offsets[:-1]
    return EncodedColumn(lengths + varint_sizes(lengths))


def _numbers(array: pa.Array) -> Integers:
    kind: type[np.integer[Any]] = np.int32 if array.type.bit_width == 32 else np.int64  # noqa: PLR2004 - of an Avro int
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _bits(buffer: pa.Buffer | None, array: pa.Array) -> Bytes:
    """Return a buffer of an array that has a bit for each value: booleans, or which are not null."""
    if buffer is None:
        return np.zeros(len(array), np.uint8)
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :]


def _offsets(array: pa.Array) -> npt.NDArray[np.int32]:
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


def _items_range(array: pa.Array) -> tuple[int, int]:
    """Return where the items of these arrays or maps begin among all, and how many they are."""
    offsets = _offsets(array)
    return int(offsets[0]), int(offsets[-1] - offsets[0])
