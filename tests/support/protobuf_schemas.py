"""Random message types, random messages of them, and damaged ones; google.protobuf's own classes as the oracle."""

import json
import math
import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from headrace.writer.protobuf.schema_files import open_pool

F = descriptor_pb2.FieldDescriptorProto
SCALARS = [
    F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_INT64, F.TYPE_UINT64, F.TYPE_INT32, F.TYPE_FIXED64, F.TYPE_FIXED32,
    F.TYPE_BOOL, F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_UINT32, F.TYPE_SFIXED32, F.TYPE_SFIXED64, F.TYPE_SINT32,
    F.TYPE_SINT64,
]  # fmt: skip
KEYS = [kind for kind in SCALARS if kind not in (F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES)]
KNOWN_MODULES = (any_pb2, duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
JSON = ("Struct", "Value", "ListValue")
KNOWN = (
    "Timestamp", "Timestamp", "Duration", "Int64Value", "StringValue", "BoolValue", "UInt64Value", "BytesValue",
    "DoubleValue", "FloatValue", "UInt32Value", "Any", "Empty", *JSON,
)  # fmt: skip
INSTANTS = (-62_135_596_800, 253_402_300_799)


def message_class(file_set: bytes, message: str) -> Any:
    """Return google.protobuf's class of a message type."""
    return message_factory.GetMessageClass(open_pool(file_set).FindMessageTypeByName(message))


@dataclass(frozen=True)
class RandomSchema:
    """A message type: its files, and google.protobuf's class of it."""

    file_set: bytes
    message: str
    syntax: str

    @property
    def message_class(self) -> Any:
        return message_class(self.file_set, self.message)


def random_schema(rng: random.Random, *, groups: bool = False) -> RandomSchema:
    """Return a message type of proto2, proto3 or an edition, with a column at least."""
    while True:
        schema = any_schema(rng, groups=groups)
        if has_columns(schema.message_class.DESCRIPTOR, ()):
            return schema


def any_schema(rng: random.Random, *, groups: bool) -> RandomSchema:
    syntax = rng.choice(["proto2", "proto3", "proto3", "2023"])
    if groups:
        syntax = rng.choice(["proto2", "2023"])
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="f", syntax=syntax)
    if syntax == "2023":
        file.syntax = "editions"
        file.edition = descriptor_pb2.EDITION_2023
    file.dependency.extend(module.DESCRIPTOR.name for module in KNOWN_MODULES)
    enum = file.enum_type.add(name="E")
    for number in (0, 1, 5, -3):
        enum.value.add(name=f"V{number}".replace("-", "_"), number=number)
    _SchemaWriter(rng, file, groups=groups).add(file.message_type.add(name="M"), "f.M", 0)
    file_set = descriptor_pb2.FileDescriptorSet()
    for module in KNOWN_MODULES:
        file_set.file.append(descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb))
    file_set.file.append(file)
    return RandomSchema(file_set.SerializeToString(), "f.M", syntax)


class _SchemaWriter:
    def __init__(self, rng: random.Random, file: Any, *, groups: bool) -> None:
        self.rng = rng
        self.file = file
        self.groups = groups

    def add(self, message: Any, full_name: str, depth: int) -> None:
        number = 0
        for index in range(self.rng.randint(1, 8)):
            number += self.rng.choice([1, 1, 1, 2, 15, 300])
            field = message.field.add(name=f"a{index}", number=number, label=F.LABEL_OPTIONAL)
            if self.rng.random() < 0.3:
                field.label = F.LABEL_REPEATED
            self._set_type(message, field, full_name, depth)
            is_single = field.label == F.LABEL_OPTIONAL and field.type != F.TYPE_MESSAGE
            if self.file.syntax == "proto3" and is_single and self.rng.random() < 0.2:
                field.proto3_optional = True
            if self.file.syntax == "editions" and is_single and self.rng.random() < 0.3 and field.type != F.TYPE_GROUP:
                field.options.features.field_presence = descriptor_pb2.FeatureSet.IMPLICIT
        if self.rng.random() < 0.5:
            self._add_oneof(message, number)
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")

    def _add_oneof(self, message: Any, number: int) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name="choice")
        for member in range(self.rng.randint(2, 3)):
            field = message.field.add(
                name=f"o{member}", number=number + 1 + member, label=F.LABEL_OPTIONAL, oneof_index=index
            )
            field.type = self.rng.choice(SCALARS)
            if self.rng.random() < 0.3:
                field.type = F.TYPE_MESSAGE
                field.type_name = f".google.protobuf.{self.rng.choice(KNOWN)}"

    def _set_type(self, message: Any, field: Any, full_name: str, depth: int) -> None:
        pick = self.rng.random()
        is_repeated = field.label == F.LABEL_REPEATED
        if pick < 0.45:
            field.type = self.rng.choice(SCALARS)
            if is_repeated and field.type not in (F.TYPE_STRING, F.TYPE_BYTES) and self.file.syntax != "editions":
                field.options.packed = self.rng.random() < 0.5
        elif pick < 0.55:
            field.type = F.TYPE_ENUM
            field.type_name = ".f.E"
        elif pick < 0.7:
            field.type = F.TYPE_MESSAGE
            field.type_name = f".google.protobuf.{self.rng.choice(KNOWN)}"
        elif pick < 0.85 and depth < 3:
            self._add_message(message, field, full_name, depth)
        elif pick < 0.97:
            self._add_map(message, field, full_name)
        else:
            field.type = F.TYPE_MESSAGE
            field.type_name = f".{full_name}"

    def _add_message(self, message: Any, field: Any, full_name: str, depth: int) -> None:
        name = f"N{field.name}"
        self.add(message.nested_type.add(name=name), f"{full_name}.{name}", depth + 1)
        field.type = F.TYPE_MESSAGE
        field.type_name = f".{full_name}.{name}"
        if self.groups and self.file.syntax == "proto2":
            field.name = name.lower()
            field.type = F.TYPE_GROUP
        elif self.groups:
            field.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED

    def _add_map(self, message: Any, field: Any, full_name: str) -> None:
        entry = message.nested_type.add(name=f"A{field.name[1:]}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self.rng.choice(KEYS))
        value = entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL, type=self.rng.choice(SCALARS))
        pick = self.rng.random()
        if pick < 0.3:
            value.type = F.TYPE_ENUM
            value.type_name = ".f.E"
        elif pick < 0.6:
            value.type = F.TYPE_MESSAGE
            value.type_name = f".google.protobuf.{self.rng.choice(KNOWN)}"
        field.label = F.LABEL_REPEATED
        field.type = F.TYPE_MESSAGE
        field.type_name = f".{full_name}.{entry.name}"


# ---- messages ----


def fill(rng: random.Random, message: Any, depth: int = 0) -> Any:
    """Give some fields of a message random values. Returns the message."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.3 or depth > 3:
            continue
        if is_map(field):
            entries = getattr(message, field.name)
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            for _ in range(rng.randint(0, 3)):
                if value.message_type is None:
                    entries[scalar(rng, key)] = scalar(rng, value)
                else:
                    fill_message(rng, entries[scalar(rng, key)], depth)
        elif field.is_repeated:
            for _ in range(rng.choice([0, 1, 2, 5])):
                if field.message_type is None:
                    getattr(message, field.name).append(scalar(rng, field))
                else:
                    fill_message(rng, getattr(message, field.name).add(), depth)
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            fill_message(rng, getattr(message, field.name), depth)
        else:
            setattr(message, field.name, scalar(rng, field))
    return message


def fill_message(rng: random.Random, message: Any, depth: int) -> None:
    match message.DESCRIPTOR.full_name.removeprefix("google.protobuf."):
        case "Timestamp":
            message.seconds = rng.randint(*INSTANTS)
            message.nanos = rng.choice([0, 1, 999_999_999, rng.randint(0, 10**9 - 1)])
        case "Duration":
            sign = rng.choice([-1, 1])
            message.seconds = sign * rng.choice([0, rng.randint(0, 10**9), 315_576_000_000])
            message.nanos = sign * rng.choice([0, 1, 1_000, 999_999_000])
        case "Struct" | "Value" | "ListValue" as name:
            document = random_json(rng, 0)
            wanted = {"Struct": {"a": document, "b": 1}, "Value": document, "ListValue": [document, document]}[name]
            json_format.ParseDict(wanted, message)
        case _:
            fill(rng, message, depth + 1)


def random_json(rng: random.Random, depth: int) -> Any:
    choices: list[Any] = [None, True, 1.5, 3, -0.25, 1e300, "Zürich", "", 'a"b\n']
    if depth < 3:
        choices += [[random_json(rng, depth + 1)], {"k": random_json(rng, depth + 1), "é": 1}, [], {}]
    return rng.choice(choices)


def scalar(rng: random.Random, field: Any) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_INT32:
            return rng.choice([0, 1, -1, 2**31 - 1, -(2**31), rng.randint(-1000, 1000)])
        case field.CPPTYPE_INT64:
            return rng.choice([0, 1, -1, 2**63 - 1, -(2**63), rng.randint(-(10**12), 10**12)])
        case field.CPPTYPE_UINT32:
            return rng.choice([0, 1, 2**32 - 1, rng.randint(0, 10**6)])
        case field.CPPTYPE_UINT64:
            return rng.choice([0, 1, 2**64 - 1, rng.randint(0, 10**12)])
        case field.CPPTYPE_DOUBLE:
            return rng.choice([0.0, -0.0, 1.5, math.inf, math.nan, 1e-310, rng.gauss(0, 1e6)])
        case field.CPPTYPE_FLOAT:
            return rng.choice([0.0, 1.5, -math.inf, math.nan, 0.25])
        case field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case field.CPPTYPE_ENUM:
            numbers = [0, 1, 5, -3]
            return rng.choice(numbers if field.enum_type.is_closed else [*numbers, 77])
    if field.type == field.TYPE_BYTES:
        return rng.randbytes(rng.choice([0, 1, 5, 200]))
    return "".join(rng.choice('ab\0é東😀"\\\n') for _ in range(rng.choice([0, 1, 5, 90])))


def damage(rng: random.Random, value: bytes) -> bytes:
    """Cut, extend, flip, overwrite, repeat or swap parts of a value."""
    data = bytearray(value)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        start = rng.randrange(len(data) + 1)
        match rng.randrange(8):
            case 0:
                del data[start:]
            case 1:
                data[start:start] = rng.randbytes(rng.choice([1, 2, 9]))
            case 2 if start < len(data):
                data[start] ^= 1 << rng.randrange(8)
            case 3 if start < len(data):
                data[start] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 4:
                del data[start : start + rng.choice([1, 2, 5])]
            case 5:
                data[start:start] = data[start : start + rng.choice([2, 8, 30])]
            case 6:
                data[start:start] = b"\xff" * rng.choice([1, 4, 9, 10]) + b"\x01"
            case 7:
                data += data[: rng.choice([3, 10, 50])]
    return bytes(data)


# ---- the oracle ----


def is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


class NoRow(ValueError):
    """By docs/FORMATS.md, the message is no row."""


def expected_row(message: Any, around: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the columns of a parsed message, by docs/FORMATS.md; of a message type without fields, none.

    Maps are sorted pairs, NaN is text, times are microseconds, JSON is sorted, and a message inside itself is the
    text of the message. Raises NoRow.
    """
    around = (*around, message.DESCRIPTOR.full_name)
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        inner = field.message_type
        if inner is not None and is_map(field):
            inner = inner.fields_by_name["value"].message_type
        if inner is not None and not has_columns(inner, around):
            continue
        held = getattr(message, field.name)
        if is_map(field):
            value = field.message_type.fields_by_name["value"]
            row[field.name] = sorted((key_text(key), repr(one(held[key], value, around))) for key in held)
        elif field.is_repeated:
            row[field.name] = [one(item, field, around) for item in held]
        elif field.has_presence and not message.HasField(field.name):
            row[field.name] = None
        else:
            row[field.name] = one(held, field, around)
    return row


def has_columns(descriptor: Any, around: tuple[str, ...]) -> bool:
    if descriptor.full_name in around or descriptor.full_name.startswith("google.protobuf."):
        return descriptor.name != "Empty"
    around = (*around, descriptor.full_name)
    for field in descriptor.fields:
        inner = field.message_type
        if inner is not None and is_map(field):
            inner = inner.fields_by_name["value"].message_type
        if inner is None or has_columns(inner, around):
            return True
    return False


def key_text(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def one(value: Any, field: Any, around: tuple[str, ...]) -> Any:
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return str(value) if symbol is None else symbol.name
    if field.message_type is None:
        if field.type == field.TYPE_STRING and isinstance(value, bytes):
            raise NoRow("no UTF-8")
        return plain(value)
    name = field.message_type.full_name
    match name.removeprefix("google.protobuf."):
        case "Timestamp":
            if not (INSTANTS[0] <= value.seconds <= INSTANTS[1] and 0 <= value.nanos < 10**9):
                raise NoRow(name)
            return value.seconds * 1_000_000 + value.nanos // 1_000
        case "Duration":
            try:
                value.ToJsonString()
            except ValueError:
                raise NoRow(name) from None
            return value.ToMicroseconds()
        case "Struct" | "Value" | "ListValue":
            return json_document(value)
    if name.startswith("google.protobuf.") and name.endswith("Value"):
        return plain(value.value)
    if name in around:
        return repr(value.SerializeToString(deterministic=True))
    return expected_row(value, around)


def json_document(value: Any) -> str:
    if value.DESCRIPTOR.name == "Value" and value.WhichOneof("kind") is None:
        return canonical_json("null")
    try:
        return canonical_json(json_format.MessageToJson(value))
    except (json_format.SerializeToJsonError, ValueError):
        raise NoRow("JSON") from None


def canonical_json(text: str) -> str:
    return json.dumps(json.loads(text, parse_int=float), sort_keys=True)


def plain(value: Any) -> Any:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return value


def rows_with_numbers(table: pa.Table) -> list[dict[str, Any]]:
    """Return rows with times as numbers: Python's own end in 9999."""
    if not table.num_rows:
        return []
    rows: list[dict[str, Any]] = table.cast(
        pa.schema([column.with_type(with_numbers(column.type)) for column in table.schema])
    ).to_pylist()
    return rows


def with_numbers(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(with_numbers(part.type)) for part in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, with_numbers(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(with_numbers(kind.value_type)))
    return kind


def actual_row(row: dict[str, Any], descriptor: Any, around: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a row of a table, its times as numbers and its maps as pairs, as `expected_row` writes one."""
    around = (*around, descriptor.full_name)
    fields = descriptor.fields_by_name
    return {name: actual(cell, fields[name], around) for name, cell in row.items()}


def actual(cell: Any, field: Any, around: tuple[str, ...]) -> Any:
    if cell is None:
        return None
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return sorted((key, repr(actual_one(item, value, around))) for key, item in cell)
    if field.is_repeated:
        return [actual_one(item, field, around) for item in cell]
    return actual_one(cell, field, around)


def actual_one(cell: Any, field: Any, around: tuple[str, ...]) -> Any:
    if field.message_type is None:
        return int(cell) if field.type in (field.TYPE_UINT64, field.TYPE_FIXED64) else plain(cell)
    name = field.message_type.full_name
    match name.removeprefix("google.protobuf."):
        case "Struct" | "Value" | "ListValue" if isinstance(cell, str):
            return canonical_json(cell)
        case "UInt64Value":
            return int(cell)
    if name in around and isinstance(cell, bytes):
        message = message_factory.GetMessageClass(field.message_type)
        return repr(message.FromString(cell).SerializeToString(deterministic=True))
    if isinstance(cell, dict):
        return actual_row(cell, field.message_type, around)
    return plain(cell)
