"""Decodes each value by itself with google.protobuf: the judge of what a block refuses, and of schemas with groups."""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import DecodedBlock, Mask
from headrace.writer.protobuf.column_values import INSTANT_SECONDS, MICROSECONDS, NANOSECONDS, TIME_SPAN_SECONDS
from headrace.writer.protobuf.json_values import NoJson, write_json
from headrace.writer.protobuf.message_tree import (
    Enum,
    Instant,
    JsonText,
    Kind,
    Member,
    Message,
    MessageBytes,
    Scalar,
    TimeSpan,
    Wrapper,
)
from headrace.writer.protobuf.wire_schema import wire_class, wire_name

# Of one value, once it is unfolded: two bytes may be an item of many fields.
_PARTS_MAX = 2_000_000
# Of rows that are Python's objects, before they become arrays.
_PARTS_KEPT = 500_000


class NoRow(ValueError):
    """A value becomes no row; the message names the place and the kind, and no value."""


class ProtobufSingleDecoder:
    """Decodes values of one message type."""

    def __init__(self, record: avro.Record, tree: Message, header_bytes: int = 0) -> None:
        self._header_bytes = header_bytes
        self._tree = tree
        self._class = wire_class(tree)
        self._schema = pa.schema(list(avro.table_fields(record).items()))

    def __call__(self, values: pa.Array) -> DecodedBlock:
        """Decode each value; never raises for what a value holds."""
        tables = [self._schema.empty_table()]
        rows: list[dict[str, Any]] = []
        positions: list[int] = []
        failures: dict[int, str] = {}
        parts = 0
        for position, value in enumerate(values.to_pylist()):
            reader = _RowReader()
            try:
                row = reader.read(self._parse(value[self._header_bytes :]), self._tree, "")
            except NoRow as error:
                failures[position] = str(error)
                continue
            rows.append(row)
            positions.append(position)
            parts += reader.parts
            if parts > _PARTS_KEPT:
                tables.append(pa.Table.from_pylist(rows, self._schema))
                rows = []
                parts = 0
        tables.append(pa.Table.from_pylist(rows, self._schema))
        table = pa.concat_tables(tables).combine_chunks()
        return DecodedBlock(table, pa.array(positions, pa.int64()), failures)

    def find_unparsable(self, values: list[bytes], header_bytes: int) -> Mask:
        """Return which values are no messages. `header_bytes`: before each."""
        is_unparsable = np.zeros(len(values), bool)
        parse = self._class.FromString
        for position, value in enumerate(values):
            try:
                parse(value[header_bytes:] if header_bytes else value)
            except DecodeError:
                is_unparsable[position] = True
        return is_unparsable

    def _parse(self, value: bytes) -> Any:
        try:
            return self._class.FromString(value)
        except DecodeError:
            raise NoRow(
                f"it is no message {self._tree.name}: it is cut, a field has another type on the wire, or a text is "
                "not UTF-8"
            ) from None


class _RowReader:
    """Reads one parsed message."""

    def __init__(self) -> None:
        self.parts = 0

    def read(self, parsed: Any, message: Message, path: str) -> dict[str, Any]:
        """Return the columns of a message. Raises NoRow."""
        return {member.name: self._read_member(parsed, member, f"{path}{member.name}") for member in message.columns}

    def _read_member(self, parsed: Any, member: Member, path: str) -> Any:
        self._count_part()
        name = wire_name(member.number)
        if member.has_presence and not parsed.HasField(name):
            return None
        value = getattr(parsed, name)
        match member.shape:
            case "list":
                return [self._read(item, member.kind, f"{path}[{index}]") for index, item in enumerate(value)]
            case "map":
                # The keys of entries may be data. The last entry of a key counts.
                items = {_key_text(entry.key): self._read(entry.value, member.kind, f"{path}.*") for entry in value}
                return list(items.items())
        return self._read(value, member.kind, path)

    def _read(self, value: Any, kind: Kind, path: str) -> Any:
        self._count_part()
        match kind:
            case Scalar():
                return _plain(value, kind, path)
            case Wrapper():
                return _plain(value.value, kind.value, path)
            case Enum():
                return kind.names.get(value, str(value))
            case Instant():
                return _instant(value, path)
            case TimeSpan():
                return _time_span(value, path)
            case JsonText():
                try:
                    return write_json(kind.message, value)
                except NoJson as error:
                    raise NoRow(f"{path}: {error}") from None
            case MessageBytes():
                return _message_bytes(value, kind, path)
            case Message():
                return self.read(value, kind, f"{path}.")

    def _count_part(self) -> None:
        self.parts += 1
        if self.parts > _PARTS_MAX:
            raise NoRow(f"it unfolds to more than {_PARTS_MAX:,} parts")


def _plain(value: Any, kind: Scalar, path: str) -> Any:
    """Return a scalar as Arrow takes it. Raises NoRow for a text of proto2 that is not UTF-8."""
    match kind.type:
        case FieldDescriptor.TYPE_STRING if isinstance(value, bytes):
            raise NoRow(f"{path}: the text is not UTF-8")
        case FieldDescriptor.TYPE_UINT64 | FieldDescriptor.TYPE_FIXED64:
            return Decimal(value)
    return value


def _message_bytes(value: Any, kind: MessageBytes, path: str) -> bytes:
    """Return the bytes of a message inside itself, as they were sent, or of a group. Raises NoRow."""
    if not isinstance(value, bytes):
        return bytes(value.SerializeToString(deterministic=True))
    try:
        kind.parse(value)
    except DecodeError:
        raise NoRow(f"{path}: it is no message {kind.name}") from None
    return value


def _key_text(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return str(key)


def _instant(time: Any, path: str) -> int:
    """Return microseconds since 1970, finer ones floored. Raises NoRow."""
    lowest, highest = INSTANT_SECONDS
    if not (lowest <= time.seconds <= highest and 0 <= time.nanos < NANOSECONDS):
        raise NoRow(f"{path}: expected a Timestamp of the years 1 to 9999, with 0 to 999,999,999 nanoseconds")
    return int(time.seconds * MICROSECONDS + time.nanos // 1_000)


def _time_span(time: Any, path: str) -> int:
    """Return microseconds, finer ones cut off. Raises NoRow."""
    lowest, highest = TIME_SPAN_SECONDS
    has_one_sign = time.seconds == 0 or time.nanos == 0 or (time.seconds < 0) == (time.nanos < 0)
    if not (lowest <= time.seconds <= highest and abs(time.nanos) < NANOSECONDS and has_one_sign):
        raise NoRow(f"{path}: expected a Duration of 10,000 years at most, of one sign")
    return int(time.seconds * MICROSECONDS + int(time.nanos / 1_000))
