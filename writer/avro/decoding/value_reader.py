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

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.arrow_types import (
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
# Of a number, in each of its bytes.
_GROUP_BITS = 7
_GROUP = 0x7F
# Set in each byte of a number but the last.
_MORE = 0x80
_MICROSECONDS = {"ms": 1_000, "us": 1}
# Bytes and a position in them → a value and the position behind it.
Read = Callable[[bytes, int], tuple[Any, int]]
Convert = Callable[[Any], Any]


class DamagedValue(ValueError):
    """Bytes that are no value of their schema. Its text names the field and the reason, and quotes no byte."""

    def __init__(self, reason: str) -> None:
        """`reason`: what the specification forbids."""
        super().__init__(reason)
        self.reason = reason
        self.path: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Name the innermost field, where the reason is one of a field."""
        if not self.path or self.reason == TRUNCATED:
            return self.reason
        return f"field {'.'.join(self.path)!r}: {self.reason}"


def compile_reader(record: avro.Record, schema: avro.Schema) -> Read:
    """Return what reads a value of this schema.

    It raises DamagedValue; IndexError where the bytes end too early; ValueError for what no column can hold.
    """
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _compile_union_reader(record, schema)
    name = avro.type_name(schema)
    match name:
        case "record":
            readers = [
                (str(field["name"]), compile_reader(record, field["type"]))
                for field in schema["fields"]
                if _has_bytes_or_column(record, field["type"])
            ]
            return partial(_read_record, readers)
        case "array":
            return partial(_read_array, compile_reader(record, schema["items"]))
        case "map":
            return partial(_read_map, compile_reader(record, schema["values"]))
        case "enum":
            return partial(_read_enum, schema["symbols"])
        case "fixed":
            read: Read = partial(_read_raw, schema["size"])
        case primitive:
            read = _PRIMITIVES[primitive]
    convert = value_converter(schema)
    return read if convert is None else partial(_read_converted_value, read, convert)


def _has_bytes_or_column(record: avro.Record, schema: avro.Schema) -> bool:
    """Return whether a field is to be read: items of an array may have thousands of fields that are nothing."""
    return avro.table_type(record, schema) is not None or not avro.takes_no_bytes(record, schema)


def value_converter(schema: avro.Schema) -> Convert | None:
    """Return what turns a number, bytes or fixed of a logical type into the value of its column; None: nothing does.

    It raises ValueError for a value that its column cannot hold.
    """
    digits = avro.decimal_digits(schema)
    if digits is not None:
        return partial(_to_decimal, *digits)
    unit = avro.timestamp_unit(schema)
    if unit == "ns":
        return _nanoseconds_to_microseconds
    if unit is not None:
        return partial(_to_microseconds, _MICROSECONDS[unit])
    if isinstance(schema, dict) and schema.get("logicalType") == "date" and schema["type"] == "int":
        return partial(_check_time, limits=DATE_RANGE_DAYS)
    return _to_uuid_text if avro.is_uuid(schema) else None


def branch_members(record: avro.Record, branches: Sequence[avro.Schema]) -> list[str | None]:
    """Return for each branch of a union the member of the column that it fills; None: the column itself.

    null, string, record give None, member0, member1; null and string give None and None.
    """
    has_members = pa.types.is_struct(avro.table_type(record, list(branches)) or pa.null())
    values = [branch for branch in map(record.resolve, branches) if branch != "null"]
    if not has_members or len(values) == 1:
        return [None] * len(branches)
    members = list[str | None]()
    number = 0
    for branch in map(record.resolve, branches):
        if branch == "null":
            members.append(None)
        else:
            members.append(f"member{number}")
            number += 1
    return members


def _compile_union_reader(record: avro.Record, branches: Sequence[avro.Schema]) -> Read:
    readers = [compile_reader(record, branch) for branch in branches]
    members = branch_members(record, branches)
    return partial(_read_union, list(zip(members, readers, strict=True)))


def _read_record(readers: list[tuple[str, Read]], data: bytes, position: int) -> tuple[dict[str, Any], int]:
    values: dict[str, Any] = {}
    name = ""
    try:
        for name, read in readers:
            values[name], position = read(data, position)
    except DamagedValue as error:
        error.path = (name, *error.path)
        raise
    return values, position


def _read_array(read: Read, data: bytes, position: int) -> tuple[list[Any], int]:
    items = list[Any]()
    count, position, block_end = _read_block(data, position)
    while count:
        for _ in range(count):
            item, position = read(data, position)
            items.append(item)
        _check_block_end(position, block_end)
        count, position, block_end = _read_block(data, position)
    return items, position


def _read_map(read: Read, data: bytes, position: int) -> tuple[dict[str, Any], int]:
    items: dict[str, Any] = {}
    count, position, block_end = _read_block(data, position)
    while count:
        for _ in range(count):
            key, position = _read_string(data, position)
            items[key], position = read(data, position)
        _check_block_end(position, block_end)
        count, position, block_end = _read_block(data, position)
    return items, position


def _read_block(data: bytes, position: int) -> tuple[int, int, int | None]:
    """Return the count of a block's items, where they begin, and where they end if it says so.

    Each item has a byte at least: `avro.parse` refuses arrays of nothing, and a map has keys.
    """
    count, position = _read_long(data, position)
    block_end = None
    if count < 0:
        count = -count
        size, position = _read_long(data, position)
        if size < 0:
            raise DamagedValue("a block of a negative size")
        block_end = position + size
    if count > len(data) - position:
        raise DamagedValue("a block of more items than there are bytes")
    return count, position, block_end


def _check_block_end(position: int, block_end: int | None) -> None:
    if block_end is not None and position != block_end:
        raise DamagedValue("a block whose size is not that of its items")


def _read_union(branches: list[tuple[str | None, Read]], data: bytes, position: int) -> tuple[Any, int]:
    index, position = _read_int(data, position)
    if not 0 <= index < len(branches):
        raise DamagedValue("the index of a union has no branch")
    member, read = branches[index]
    value, position = read(data, position)
    if member is None:
        return value, position
    return {member: value}, position


def _read_enum(symbols: list[str], data: bytes, position: int) -> tuple[str, int]:
    index, position = _read_int(data, position)
    if not 0 <= index < len(symbols):
        raise DamagedValue("the index of an enum has no symbol")
    return symbols[index], position


def _read_converted_value(read: Read, convert: Convert, data: bytes, position: int) -> tuple[Any, int]:
    value, position = read(data, position)
    return convert(value), position


def _read_null(_: bytes, position: int) -> tuple[None, int]:
    return None, position


def _read_boolean(data: bytes, position: int) -> tuple[bool, int]:
    byte = data[position]
    if byte > 1:
        raise DamagedValue("a boolean that is neither 0 nor 1")
    return byte == 1, position + 1


def _read_int(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_varint(data, position, INT_BITS)


def _read_long(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    if byte < _MORE:
        return (byte >> 1) ^ -(byte & 1), position + 1
    return _read_varint(data, position, LONG_BITS)


def _read_varint(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Read a zig-zag number of variable length."""
    raw = 0
    for shift in range(0, bits, _GROUP_BITS):
        byte = data[position]
        position += 1
        raw |= (byte & _GROUP) << shift
        if byte < _MORE:
            break
    else:
        raise DamagedValue(f"a number of more than {-(-bits // _GROUP_BITS)} bytes")
    if raw >> bits:
        raise DamagedValue(f"a number of more than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position


def _read_float(data: bytes, position: int) -> tuple[float, int]:
    raw, position = _read_raw(4, data, position)
    return struct.unpack("<f", raw)[0], position


def _read_double(data: bytes, position: int) -> tuple[float, int]:
    raw, position = _read_raw(8, data, position)
    return struct.unpack("<d", raw)[0], position


def _read_raw(size: int, data: bytes, position: int) -> tuple[bytes, int]:
    """Read so many bytes as they are."""
    stop = position + size
    if stop > len(data):
        raise DamagedValue(TRUNCATED)
    return data[position:stop], stop


def _read_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    length, position = _read_long(data, position)
    if length < 0:
        raise DamagedValue("a negative length")
    return _read_raw(length, data, position)


def _read_string(data: bytes, position: int) -> tuple[str, int]:
    raw, position = _read_bytes(data, position)
    try:
        return raw.decode(), position
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


def _to_decimal(precision: int, scale: int, raw: bytes) -> Decimal | str:
    """Return a decimal, or its text where no column holds its digits."""
    if not raw:
        raise ValueError(NO_DECIMAL)
    unscaled = int.from_bytes(raw, "big", signed=True)
    # 10 is more than three bits. So no schema's precision makes a larger number here than the value is.
    if unscaled.bit_length() > 3 * precision and abs(unscaled) >= 10**precision:
        raise ValueError(too_many_digits(precision))
    number = decimal_value(unscaled, scale)
    return number if precision <= avro.DECIMAL_DIGITS_MAX else str(number)


def _to_microseconds(microseconds: int, number: int) -> int:
    """Return an instant in microseconds. `microseconds`: in one of its unit."""
    return _check_time(number * microseconds, TIMESTAMP_RANGE_US)


def _nanoseconds_to_microseconds(number: int) -> int:
    return _check_time(number // 1_000, TIMESTAMP_RANGE_US)


def _check_time(number: int, limits: tuple[int, int]) -> int:
    """Return a date or an instant. Raises ValueError for one beyond the limits."""
    first, last = limits
    if not first <= number <= last:
        raise ValueError(NOT_A_TIME)
    return number


def _to_uuid_text(raw: bytes) -> str:
    return str(UUID(bytes=raw))
