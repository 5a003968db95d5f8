"""Reads one Avro value by its writer's schema, and refuses what the specification forbids. Pure.

Avro 1.12, "Binary Encoding": an int has at most 5 bytes and 32 bits, a long 10 and 64; a boolean is 0 or 1; the index
of a union or enum is an int and has a branch or symbol; a length is not negative; text is UTF-8; a block of an array
or map that states its size has that size. A value is read to the shape of its column, so the judge and the decoder of
single records are one.
"""

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import pyarrow as pa

from writer.avro import schema as avro
from writer.avro.decoding.arrow_types import (
    DATE_RANGE_DAYS,
    NO_DECIMAL,
    NOT_A_TIME,
    TIMESTAMP_RANGE_US,
    decimal_value,
    too_many_digits,
)

TRUNCATED = "the value ends before the record does"
INT_BITS = 32
LONG_BITS = 64
_GROUP_BITS = 7  # of a number, in each of its bytes
_GROUP = 0x7F
_MORE = 0x80  # set in each byte of a number but the last
_MICROSECONDS = {"ms": 1_000, "us": 1}
Read = Callable[[bytes, int], tuple[Any, int]]  # bytes and a position in them → a value and the position behind it


class DamagedValue(ValueError):
    """Bytes that are no value of their schema. Its text names the field and the reason, and quotes no byte."""

    def __init__(self, reason: str) -> None:
        """`reason`: what the specification forbids."""
        super().__init__(reason)
        self.reason = reason
        self.path: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the innermost field, where the reason is one of a field."""
        is_of_field = self.path and self.reason != TRUNCATED
        return f"field {'.'.join(self.path)!r}: {self.reason}" if is_of_field else self.reason


def compile_reader(record: avro.Record, schema: avro.Schema) -> Read:
    """Return what reads a value of this schema.

    It raises DamagedValue; IndexError where the bytes end too early; ValueError for what no column can hold.
    """
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _union_reader(record, schema)
    name = schema["type"] if isinstance(schema, dict) else schema
    match name:
        case "record":
            # What takes no bytes and has no column is left out: items of an array may have thousands of such fields.
            fields = [
                (str(field["name"]), compile_reader(record, field["type"]))
                for field in schema["fields"]
                if not (avro.table_type(record, field["type"]) is None and avro.takes_no_bytes(record, field["type"]))
            ]
            return partial(_read_record, fields)
        case "array":
            return partial(_read_array, compile_reader(record, schema["items"]))
        case "map":
            return partial(_read_map, compile_reader(record, schema["values"]))
        case "enum":
            return partial(_read_enum, schema["symbols"])
        case "fixed":
            read: Read = partial(_read_fixed, schema["size"])
        case primitive:
            read = _PRIMITIVES[primitive]
    shape = column_shape(schema)
    return read if shape is None else partial(_read_shaped, read, shape)


def column_shape(schema: avro.Schema) -> Callable[[Any], Any] | None:
    """Return what turns a number, bytes or fixed of a logical type into the value of its column; None: nothing does.

    It raises ValueError for a value that its column cannot hold.
    """
    digits = avro.decimal_digits(schema)
    if digits is not None:
        return partial(_decimal, *digits)
    unit = avro.timestamp_unit(schema)
    if unit == "ns":
        return _instant_of_nanoseconds
    if unit is not None:
        return partial(_instant, _MICROSECONDS[unit])
    if isinstance(schema, dict) and schema.get("logicalType") == "date" and schema["type"] == "int":
        return partial(_believable, limits=DATE_RANGE_DAYS)
    return _uuid if avro.is_uuid(schema) else None


def union_shape(record: avro.Record, branches: Sequence[avro.Schema]) -> list[str | None]:
    """Return for each branch of a union the member of the column that it fills; None: the column itself."""
    several = pa.types.is_struct(avro.table_type(record, list(branches)) or pa.null())
    values = [branch for branch in map(record.resolve, branches) if branch != "null"]
    if not several or len(values) == 1:
        return [None] * len(branches)
    members = list[str | None]()
    number = 0
    for branch in map(record.resolve, branches):
        members.append(None if branch == "null" else f"member{number}")
        number += branch != "null"
    return members


def _union_reader(record: avro.Record, branches: Sequence[avro.Schema]) -> Read:
    readers = [compile_reader(record, branch) for branch in branches]
    members = union_shape(record, branches)
    return partial(_read_union, list(zip(members, readers, strict=True)))


def _read_record(fields: list[tuple[str, Read]], data: bytes, at: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    name = ""
    try:
        for name, read in fields:
            values[name], at = read(data, at)
    except DamagedValue as error:
        error.path = (name, *error.path)
        raise
    return values, at


def _read_array(read: Read, data: bytes, at: int) -> tuple[list[Any], int]:
    items = list[Any]()
    count, at, block_end = _read_block(data, at)
    while count:
        for _ in range(count):
            item, at = read(data, at)
            items.append(item)
        _check_block(at, block_end)
        count, at, block_end = _read_block(data, at)
    return items, at


def _read_map(read: Read, data: bytes, at: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    count, at, block_end = _read_block(data, at)
    while count:
        for _ in range(count):
            key, at = _read_string(data, at)
            items[key], at = read(data, at)
        _check_block(at, block_end)
        count, at, block_end = _read_block(data, at)
    return items, at


def _read_block(data: bytes, at: int) -> tuple[int, int, int | None]:
    """Return the count of a block's items, where they begin, and where they end if it says so.

    Each item has a byte at least: `avro.parse` refuses arrays of nothing, and a map has keys.
    """
    count, at = _read_long(data, at)
    block_end = None
    if count < 0:
        count = -count
        size, at = _read_long(data, at)
        if size < 0:
            raise DamagedValue("a block of a negative size")
        block_end = at + size
    if count > len(data) - at:
        raise DamagedValue("a block of more items than there are bytes")
    return count, at, block_end


def _check_block(at: int, block_end: int | None) -> None:
    if block_end is not None and at != block_end:
        raise DamagedValue("a block whose size is not that of its items")


def _read_union(branches: list[tuple[str | None, Read]], data: bytes, at: int) -> tuple[Any, int]:
    index, at = _read_int(data, at)
    if not 0 <= index < len(branches):
        raise DamagedValue("the index of a union has no branch")
    member, read = branches[index]
    value, at = read(data, at)
    return (value if member is None else {member: value}), at


def _read_enum(symbols: list[str], data: bytes, at: int) -> tuple[str, int]:
    index, at = _read_int(data, at)
    if not 0 <= index < len(symbols):
        raise DamagedValue("the index of an enum has no symbol")
    return symbols[index], at


def _read_shaped(read: Read, shape: Callable[[Any], Any], data: bytes, at: int) -> tuple[Any, int]:
    value, at = read(data, at)
    return shape(value), at


def _read_null(_: bytes, at: int) -> tuple[None, int]:
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    byte = data[at]
    if byte > 1:
        raise DamagedValue("a boolean that is neither 0 nor 1")
    return byte == 1, at + 1


def _read_int(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_number(data, at, INT_BITS)


def _read_long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), at + 1
    return _read_number(data, at, LONG_BITS)


def _read_number(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """Read a zig-zag number of variable length."""
    raw = 0
    for shift in range(0, bits, _GROUP_BITS):
        byte = data[at]
        at += 1
        raw |= (byte & _GROUP) << shift
        if byte < _MORE:
            break
    else:
        raise DamagedValue(f"a number of more than {-(-bits // _GROUP_BITS)} bytes")
    if raw >> bits:
        raise DamagedValue(f"a number of more than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), at


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    raw, at = _read_fixed(4, data, at)
    return struct.unpack("<f", raw)[0], at


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    raw, at = _read_fixed(8, data, at)
    return struct.unpack("<d", raw)[0], at


def _read_fixed(size: int, data: bytes, at: int) -> tuple[bytes, int]:
    end = at + size
    if end > len(data):
        raise DamagedValue(TRUNCATED)
    return data[at:end], end


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_long(data, at)
    if length < 0:
        raise DamagedValue("a negative length")
    return _read_fixed(length, data, at)


def _read_string(data: bytes, at: int) -> tuple[str, int]:
    raw, at = _read_bytes(data, at)
    try:
        return raw.decode(), at
    except UnicodeDecodeError:
        raise DamagedValue("text that is not UTF-8") from None


_PRIMITIVES: dict[str, Read] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": _read_int,
    "long": _read_long,
    "float": _read_float,
    "double": _read_double,
    "bytes": _read_bytes,
    "string": _read_string,
}


def _decimal(precision: int, scale: int, raw: bytes) -> Decimal | str:
    """Return a decimal, or its text where no column holds its digits."""
    if not raw:
        raise ValueError(NO_DECIMAL)
    unscaled = int.from_bytes(raw, "big", signed=True)
    # 10 is more than three bits. So no schema's precision makes a larger number here than the value is.
    if unscaled.bit_length() > 3 * precision and abs(unscaled) >= 10**precision:
        raise ValueError(too_many_digits(precision))
    number = decimal_value(unscaled, scale)
    return number if precision <= avro.DECIMAL_DIGITS_MAX else str(number)


def _instant(microseconds: int, number: int) -> int:
    """Return an instant in microseconds. `microseconds`: in one of its unit."""
    return _believable(number * microseconds, TIMESTAMP_RANGE_US)


def _instant_of_nanoseconds(number: int) -> int:
    return _believable(number // 1_000, TIMESTAMP_RANGE_US)


def _believable(number: int, limits: tuple[int, int]) -> int:
    first, last = limits
    if not first <= number <= last:
        raise ValueError(NOT_A_TIME)
    return number


def _uuid(raw: bytes) -> str:
    return str(UUID(bytes=raw))
