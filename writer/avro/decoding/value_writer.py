"""Writes numbers, and sample values of a schema, in Avro's binary encoding. Pure. (Avro 1.12, "Binary Encoding")"""

import struct
from collections.abc import Iterator

from headrace.writer.avro import schema as avro

# Bits of a number, in each of its bytes.
_GROUP = 0x7F
_GROUP_BITS = 7
# Set in each byte of a number but the last.
_MORE = 0x80


def write_samples(record: avro.Record, count: int) -> Iterator[bytes]:
    """Yield values of a record, the same at each call, through every branch: what a decoder is probed with."""
    for number in range(count):
        yield _write_sample(record, record.root, number)


def write_long(value: int) -> bytes:
    """Return a number of at most 64 bits: zig-zag, of variable length."""
    zigzag = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while zigzag & ~_GROUP:
        encoded.append((zigzag & _GROUP) | _MORE)
        zigzag >>= _GROUP_BITS
    encoded.append(zigzag)
    return bytes(encoded)


def _write_sample(record: avro.Record, schema: avro.Schema, number: int) -> bytes:
    schema = record.resolve(schema)
    if isinstance(schema, list):
        index = number % len(schema)
        return write_long(index) + _write_sample(record, schema[index], number)
    kind = avro.type_name(schema)
    match kind:
        case "record":
            return b"".join(_write_sample(record, field["type"], number) for field in schema["fields"])
        case "array":
            items = range(number % 3)
            return _write_items([_write_sample(record, schema["items"], number + item) for item in items])
        case "map":
            return _write_items([_write_entry(record, schema["values"], number, item) for item in range(number % 3)])
        case "enum":
            return write_long(number % len(schema["symbols"]))
        case "bytes" | "fixed" if avro.decimal_digits(schema) is not None:
            return _write_decimal(schema, number)
        case "fixed":
            return bytes([number % 100]) * int(schema["size"])
        case primitive:
            return _write_primitive(primitive, number)


def _write_entry(record: avro.Record, values: avro.Schema, number: int, item: int) -> bytes:
    return _write_bytes(f"k{item}".encode()) + _write_sample(record, values, number + item)


def _write_primitive(kind: str, number: int) -> bytes:
    match kind:
        case "boolean":
            return bytes([number % 2 == 0])
        case "int" | "long":
            return write_long((number * 7919) % 2**20)
        case "float":
            return struct.pack("<f", number / 4)
        case "double":
            return struct.pack("<d", number / 4)
        case "bytes":
            return _write_bytes(bytes([number % 256]) * (number % 5))
        case "string":
            return _write_bytes(f"é{number}".encode() * (number % 4))
    return b""


def _write_decimal(schema: avro.Schema, number: int) -> bytes:
    """Return a decimal of one byte, or of the size of its fixed type, whose digits the precision allows."""
    precision, _ = avro.decimal_digits(schema) or (1, 0)
    magnitude = number % 2**7 % 10 ** min(precision, 3)
    unscaled = -magnitude if number % 2 else magnitude
    if schema["type"] == "fixed":
        size = int(schema["size"])
        return int.to_bytes(unscaled, size, "big", signed=True)
    return _write_bytes(int.to_bytes(unscaled, 1, "big", signed=True))


def _write_bytes(content: bytes) -> bytes:
    return write_long(len(content)) + content


def _write_items(items: list[bytes]) -> bytes:
    """Return the items of an array or map, in one block."""
    if not items:
        return b"\0"
    return write_long(len(items)) + b"".join(items) + b"\0"
