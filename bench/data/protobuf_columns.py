"""Encodes Protobuf in whole columns, as `encode` does Avro: each field of many events becomes one binary array.

A field has its number only in its message, so a column is what stands behind the tag; a message writes the tags. Fields
are numbered in their order.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.data import encode
from headrace.bench.data.encode import Bytes, Doubles, Longs, Mask, fixed_width_array, group_items, join_parts, texts
from headrace.bench.data.fields import Field

_VARINT = 0
_FIXED_64 = 1
_LENGTH = 2
# Of a byte of a varint: another one follows.
_MORE = 0x80
_SCALARS = {"int": "int32", "long": "int64", "double": "double", "boolean": "bool", "string": "string"}


@dataclass(frozen=True)
class ProtobufColumn:
    """A field of many events. `content`: of each value behind its tag, with its length where it has one.

    `wire_type`: of the tag. `present`: which are set; None: all. `counts`: of items, where the field is repeated and
    each item has a tag; the content is then of items.
    """

    wire_type: int
    content: pa.BinaryArray
    present: Mask | None = None
    counts: Longs | None = None

    def tagged(self, number: int) -> pa.BinaryArray:
        """Return the bytes of the field in its message."""
        tagged = join_parts([pa.scalar(_one_varint(number << 3 | self.wire_type), pa.binary()), self.content])
        if self.counts is not None:
            tagged = group_items(tagged, self.counts)
        if self.present is None:
            return tagged
        return pc.if_else(pa.array(self.present), tagged, pa.scalar(b"", pa.binary()))


class ProtobufColumns:
    """Columns of Protobuf values."""

    def longs(self, values: Longs) -> ProtobufColumn:
        """Encode `int32` and `int64`."""
        return ProtobufColumn(_VARINT, encode.varints(values.view(np.uint64)))

    def times(self, milliseconds: Longs) -> ProtobufColumn:
        """Encode `google.protobuf.Timestamp`."""
        nanoseconds = milliseconds % 1000 * 1_000_000
        return self.record(["seconds", "nanos"], [self.longs(milliseconds // 1000), self.longs(nanoseconds)])

    def symbols(self, symbols: Sequence[str], codes: Longs) -> ProtobufColumn:  # noqa: ARG002 - the schema has them
        """Encode an enum."""
        return self.longs(codes)

    def doubles(self, values: Doubles, present: Mask | None = None) -> ProtobufColumn:
        """Encode `double`."""
        return ProtobufColumn(_FIXED_64, encode.doubles(values), present)

    def booleans(self, values: Mask) -> ProtobufColumn:
        """Encode `bool`."""
        return ProtobufColumn(_VARINT, encode.booleans(values))

    def text(self, content: Bytes, present: Mask | None = None) -> ProtobufColumn:
        """Encode `string` of one width."""
        return ProtobufColumn(_LENGTH, _with_length(fixed_width_array(content)), present)

    def prose(self, words: npt.NDArray[np.uint64], counts: Longs) -> ProtobufColumn:
        """Encode `string`."""
        return ProtobufColumn(_LENGTH, _with_length(texts(words, counts)))

    def words(self, values: Sequence[str | None], codes: Longs) -> ProtobufColumn:
        """Encode `string`, unset where the value is None."""
        encodings = [(value or "").encode() for value in values]
        content = encode.pick_encodings(codes, [_one_varint(len(raw)) + raw for raw in encodings])
        is_set = np.array([value is not None for value in values])
        if is_set.all():
            return ProtobufColumn(_LENGTH, content)
        return ProtobufColumn(_LENGTH, content, is_set[codes])

    def array(self, items: ProtobufColumn, counts: Longs) -> ProtobufColumn:
        """Encode `repeated`: numbers are packed."""
        if items.wire_type == _LENGTH:
            return replace(items, counts=counts)
        return ProtobufColumn(_LENGTH, _with_length(group_items(items.content, counts)), counts > 0)

    def mapping(self, keys: ProtobufColumn, values: ProtobufColumn, counts: Longs) -> ProtobufColumn:
        """Encode `map`."""
        return replace(self.record(["key", "value"], [keys, values]), counts=counts)

    def record(self, names: Sequence[str], columns: Sequence[ProtobufColumn]) -> ProtobufColumn:  # noqa: ARG002
        """Encode a message inside another."""
        return ProtobufColumn(_LENGTH, _with_length(self.message(columns)))

    def message(self, columns: Sequence[ProtobufColumn]) -> pa.BinaryArray:
        """Encode a message that stands alone."""
        return join_parts([column.tagged(number) for number, column in enumerate(columns, 1)])

    def optional(self, column: ProtobufColumn, present: Mask) -> ProtobufColumn:
        """Leave values unset."""
        return replace(column, present=present)


def proto_text(name: str, fields: Sequence[Field]) -> str:
    """Return the schema of a message of these fields."""
    lines = [
        'syntax = "proto3";',
        "package headrace.bench;",
        'import "google/protobuf/timestamp.proto";',
        *_message_lines(name, [field.schema() for field in fields]),
    ]
    return "\n".join(lines) + "\n"


def _message_lines(name: str, fields: Sequence[Any]) -> Iterator[str]:
    yield f"message {name} {{"
    for number, field in enumerate(fields, 1):
        kind = field["type"]
        label = ""
        match kind:
            case ["null", branch]:
                kind = branch
                label = "optional "
            case {"type": "array", "items": item}:
                kind = item
                label = "repeated "
        yield from (f"  {line}" for line in _type_lines(kind))
        yield f"  {label}{_type_name(kind)} {field['name']} = {number};"
    yield "}"


def _type_lines(kind: Any) -> Iterator[str]:
    """Yield the definition of a type that has a name."""
    match kind:
        case {"type": "record", "name": name, "fields": fields}:
            yield from _message_lines(name, fields)
        case {"type": "enum", "name": name, "symbols": symbols}:
            values = " ".join(f"{symbol} = {number};" for number, symbol in enumerate(symbols))
            yield f"enum {name} {{ {values} }}"


def _type_name(kind: Any) -> str:
    match kind:
        case {"type": "record" | "enum", "name": name}:
            return str(name)
        case {"type": "long", "logicalType": "timestamp-millis"}:
            return "google.protobuf.Timestamp"
        case {"type": "map", "values": ["null", value] | value}:
            return f"map<string, {_type_name(value)}>"
        case str():
            return _SCALARS[kind]
    raise ValueError(f"no field has the type {kind}")


def _with_length(content: pa.BinaryArray) -> pa.BinaryArray:
    lengths = pc.binary_length(content).to_numpy().astype(np.uint64)
    return join_parts([encode.varints(lengths), content])


def _one_varint(number: int) -> bytes:
    written = bytearray()
    while number >= _MORE:
        written.append(number & ~_MORE & 0xFF | _MORE)
        number >>= 7
    written.append(number)
    return bytes(written)
