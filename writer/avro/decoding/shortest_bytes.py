"""Finds the rows whose bytes are not the shortest encoding of what the native decoder made of them.

The decoder reads some bytes that Avro forbids as other values: a nullable union's index beside 0 and 1, a boolean
beside 0 and 1, an int of more than five bytes, a block whose size is wrong. From the decoded columns follows how many
bytes each value takes in its shortest encoding, and so where each value begins. A row of another length is named; so is
one with another byte in the place of an index or a boolean. Most of what is named is sound: Avro allows longer numbers,
and blocks that state their size. Whole columns at a time. (docs/adr/0050-strict-decoding.md)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from writer.avro import schema as avro

Longs = npt.NDArray[np.int64]
Integers = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
Sizes = npt.NDArray[np.int32] | int  # of each value, or of all alike
Check = Callable[[Bytes, Longs], Mask | None]  # bytes of a block, starts of values in it → which differ; None: none
_BYTES_OF = {"null": 0, "float": 4, "double": 8}
_GROUP_BITS = 7  # of a number, in each of its bytes
_ONE_BYTE_INDEXES = 64  # so many indexes take one byte, and so many lengths
_SIGN_BITS = 1
_ROWS_AT_ONCE = 4_096  # values that are looked at together: their bytes stay in the processor's cache


@dataclass(frozen=True)
class Column:
    """Decoded values, and what follows from them about their bytes in the shortest encoding."""

    sizes: Sizes
    first: Bytes | None = None  # the byte that each begins with, where neither the decoder nor the size shows it
    inside: Check | None = None  # of what lies inside the values

    @property
    def is_checked(self) -> bool:
        """Return whether there are bytes to look at."""
        return self.first is not None or self.inside is not None


def rows_of_other_bytes(
    record: avro.Record, columns: Mapping[str, pa.Array], block: Bytes, starts: Longs, sizes: Longs
) -> Mask:
    """Return which rows have other bytes than the shortest encoding of their values.

    `columns`: as the decoder hands them over, by field. `starts`, `sizes`: of each value in the block, without header.
    """
    row = _record([_measured(record, field["type"], columns[field["name"]]) for field in record.fields])
    differs: Mask = sizes != row.sizes
    others = None if row.inside is None else row.inside(block, starts)
    return differs if others is None else differs | others


def varint_sizes(numbers: Integers) -> Sizes:
    """Return how many bytes each number has as a zig-zag varint."""
    if not len(numbers):
        return 1
    least = int(numbers.min())
    most = int(numbers.max())
    if least < 0:
        numbers = numbers ^ (numbers >> (8 * numbers.itemsize - 1))  # a number and its complement have one size
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


def _measured(record: avro.Record, schema: avro.Schema, array: pa.Array) -> Column:
    schema = record.resolve(schema)
    if isinstance(schema, list):
        if pa.types.is_union(array.type):
            return _union(record, schema, array)
        return _nullable(record, schema, array)
    match schema["type"] if isinstance(schema, dict) else schema:
        case "record":
            return _record([_measured(record, f["type"], array.field(i)) for i, f in enumerate(schema["fields"])])
        case "array":
            items = array.values.slice(*_items_range(array))
            return _blocks(_offsets(array), _measured(record, schema["items"], items))
        case "map":
            keys = array.keys.slice(*_items_range(array))
            values = array.items.slice(*_items_range(array))
            return _blocks(_offsets(array), _record([_lengthy(keys), _measured(record, schema["values"], values)]))
        case "string" | "bytes":
            return _lengthy(array)
        case "enum":
            few = len(schema["symbols"]) <= _ONE_BYTE_INDEXES
            return Column(1 if few else varint_sizes(_numbers(array.indices)))
        case "fixed":
            return Column(int(schema["size"]))
        case "int" | "long":
            return Column(varint_sizes(_numbers(array)))
        case "boolean":
            return Column(1, first=_bits(array.buffers()[1], array))
        case primitive:
            return Column(_BYTES_OF[primitive])


def _record(parts: Sequence[Column]) -> Column:
    """Return the column of records of these fields."""
    is_checked = any(part.is_checked for part in parts)
    return Column(_sum([part.sizes for part in parts]), inside=partial(_differing, parts) if is_checked else None)


def _sum(sizes: Sequence[Sizes]) -> Sizes:
    alike = sum(size for size in sizes if isinstance(size, int))
    various = [size for size in sizes if not isinstance(size, int)]
    if not various:
        return alike
    total = various[0] + np.int32(alike)
    for size in various[1:]:
        total += size
    return total


def _differing(parts: Sequence[Column], block: Bytes, starts: Longs) -> Mask | None:
    """Return which values have another byte in one of these parts, that lie behind one another."""
    steps = list(_steps(parts))
    differs = np.zeros(len(starts), np.bool_)
    for begin in range(0, len(starts), _ROWS_AT_ONCE):
        rows = slice(begin, begin + _ROWS_AT_ONCE)
        places = starts[rows].copy()
        for sizes, part in steps:
            places += sizes if isinstance(sizes, int) else sizes[rows]
            if part.first is not None:
                differs[rows] |= block.take(places, mode="clip") != part.first[rows]
    if any(part.inside is not None for _, part in steps):
        places = starts
        for sizes, part in steps:
            places = places + sizes
            others = None if part.inside is None else part.inside(block, places)
            if others is not None:
                differs |= others
    return differs if differs.any() else None


def _steps(parts: Sequence[Column]) -> Iterator[tuple[Sizes, Column]]:
    """Yield the parts with bytes to look at, each with the sizes from the one before to it."""
    passed = list[Sizes]()
    for part in parts:
        if part.is_checked:
            yield _sum(passed), part
            passed = []
        passed.append(part.sizes)


def _nullable(record: avro.Record, branches: Sequence[avro.Schema], array: pa.Array) -> Column:
    """Return the column of a union that arrives without its indexes, which are one byte each."""
    names = [record.resolve(branch) for branch in branches]
    of_value = next((index for index, name in enumerate(names) if name != "null"), 0)
    value = _measured(record, branches[of_value], array)
    if array.null_count == 0:
        first = np.full(len(array), 2 * of_value, np.uint8)
        sizes = 1 + value.sizes
    else:
        is_value = _bits(array.buffers()[0], array)
        is_second = is_value if of_value else 1 - is_value
        first = is_second + is_second
        sizes = 1 + np.multiply(is_value, value.sizes, dtype=np.int32)
    if not value.is_checked:
        return Column(sizes, first)

    def inside(block: Bytes, starts: Longs) -> Mask | None:
        differs = _differing([value], block, starts + 1)
        return None if differs is None else differs & (first == 2 * of_value)

    return Column(sizes, first, inside)


def _union(record: avro.Record, branches: Sequence[avro.Schema], array: pa.UnionArray) -> Column:
    """Return the column of a union whose indexes the decoder has checked. Its branches lie in arrays of their own."""
    codes = np.asarray(array.type_codes)
    offsets = np.asarray(array.offsets)
    sizes = np.ones(len(array), np.int32)
    checked = list[tuple[Longs, Longs, int, Column]]()
    for code, branch in enumerate(branches):
        column = _measured(record, branch, array.field(code))
        rows = np.flatnonzero(codes == code)
        places = offsets[rows]
        sizes[rows] += column.sizes if isinstance(column.sizes, int) else column.sizes[places]
        if column.is_checked and len(rows):
            checked.append((rows, places, len(array.field(code)), column))

    def inside(block: Bytes, starts: Longs) -> Mask | None:
        differs = np.zeros(len(starts), np.bool_)
        for rows, places, count, column in checked:
            begins = np.zeros(count, np.int64)
            begins[places] = starts[rows] + 1
            others = _differing([column], block, begins)
            if others is not None:
                differs[rows] |= others[places]
        return differs

    return Column(sizes, inside=inside if checked else None)


def _blocks(offsets: npt.NDArray[np.int32], items: Column) -> Column:
    """Return the column of arrays or maps, whose items lie in one block, behind their count and before a 0."""
    counts = np.diff(offsets)
    firsts = offsets - offsets[0]
    item_ends = np.zeros(firsts[-1] + 1, np.int64)
    np.cumsum(np.broadcast_to(items.sizes, len(item_ends) - 1), out=item_ends[1:])
    count_sizes = varint_sizes(counts) * (counts > 0)
    sizes = (1 + count_sizes + np.diff(item_ends[firsts])).astype(np.int32)
    if not items.is_checked:
        return Column(sizes)

    def inside(block: Bytes, starts: Longs) -> Mask | None:
        moved = starts + count_sizes - item_ends[firsts[:-1]]
        others = _differing([items], block, np.repeat(moved, counts) + item_ends[:-1])
        if others is None:
            return None
        before = np.zeros(len(item_ends), np.int64)
        np.cumsum(others, out=before[1:])
        differs: Mask = np.diff(before[firsts]) > 0
        return differs

    return Column(sizes, inside=inside)


def _lengthy(array: pa.Array) -> Column:
    """Return the column of text or bytes."""
    offsets = _offsets(array)
    lengths = offsets[1:] - offsets[:-1]
    return Column(lengths + varint_sizes(lengths))


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
