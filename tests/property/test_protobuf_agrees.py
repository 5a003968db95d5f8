"""Random events as Avro and as Protobuf: the same rows come of both.

What they cannot have in common is left out: lists and maps of Protobuf are never null, nor are their items, and none
lies directly in another; Avro has no unsigned numbers and no oneof.
"""

import io
import json
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.formats.formats import FORMATS
from headrace.writer.json.record_schema import nested_name
from headrace.writer.protobuf.record_schema import protobuf_record
from headrace.writer.protobuf.schema_files import compile_files
from tests.support.protobuf_schemas import message_class

Kind = Any
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SYMBOLS = ("ZERO", "ONE", "TWO")
TIMES = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=12),
    "bytes": st.binary(max_size=12),
    "enum": st.sampled_from(SYMBOLS),
    "time": TIMES.map(lambda number: EPOCH + timedelta(microseconds=number)),
}
PROTOBUF = {
    "boolean": ("bool",),
    "int": ("int32", "sint32", "sfixed32"),
    "long": ("int64", "sint64", "sfixed64"),
    "float": ("float",),
    "double": ("double",),
    "string": ("string",),
    "bytes": ("bytes",),
    "enum": ("Symbol",),
    "time": ("google.protobuf.Timestamp",),
}
SYNTAXES = ('syntax = "proto3";', 'syntax = "proto2";', 'edition = "2023";')
NAMES = ("a", "b", "Name", "x_1", "value", "fields")


def types() -> st.SearchStrategy[dict[str, Kind]]:
    """Records: of scalars, records, lists and maps; each member may be null, but for lists and maps."""

    scalars = st.sampled_from(list(VALUES))

    def containers(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
        records = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3)
        items = scalars | records
        return st.one_of(records, items.map(lambda kind: ("list", kind)), items.map(lambda kind: ("map", kind)))

    kind = st.recursive(scalars, containers, max_leaves=6)
    return st.dictionaries(st.sampled_from(NAMES), kind, min_size=1, max_size=5)


def values_of(kind: Kind) -> st.SearchStrategy[Any]:
    match kind:
        case ("list", item):
            return st.lists(values_of(item), max_size=3)
        case ("map", item):
            return st.dictionaries(st.text(max_size=4), values_of(item), max_size=3)
        case dict():
            return st.fixed_dictionaries({name: member_of(member) for name, member in kind.items()})
    return VALUES[kind]


def member_of(kind: Kind) -> st.SearchStrategy[Any]:
    return values_of(kind) if isinstance(kind, tuple) else st.none() | values_of(kind)


def avro_type(kind: Kind, path: tuple[str, ...]) -> Any:
    match kind:
        case ("list", item):
            return {"type": "array", "items": avro_type(item, (*path, "0"))}
        case ("map", item):
            return {"type": "map", "values": avro_type(item, (*path, "0"))}
        case dict():
            fields = [avro_field(name, member, (*path, name)) for name, member in kind.items()]
            return {"type": "record", "name": nested_name("Event", path), "fields": fields}
        case "enum":
            return {"type": "enum", "name": f"{nested_name('Event', path)}_symbol", "symbols": list(SYMBOLS)}
        case "time":
            return {"type": "long", "logicalType": "timestamp-micros"}
    return kind


def avro_field(name: str, kind: Kind, path: tuple[str, ...]) -> dict[str, Any]:
    schema = avro_type(kind, path)
    return {"name": name, "type": schema if isinstance(kind, tuple) else ["null", schema]}


class ProtoWriter:
    """Writes the text of a schema, with any of the types that Protobuf has for a column."""

    def __init__(self, data: st.DataObject, syntax: str) -> None:
        self.data = data
        self.optional = "" if "edition" in syntax else "optional "
        self.messages: list[str] = []

    def message(self, kind: Mapping[str, Kind], name: str) -> str:
        numbers = self.data.draw(st.permutations(range(1, len(kind) + 1)))
        members = zip(kind.items(), numbers, strict=True)
        fields = [self.field(member, number, inner, name) for (member, inner), number in members]
        self.messages.append(f"message {name} {{ {' '.join(fields)} }}")
        return name

    def field(self, name: str, number: int, kind: Kind, parent: str) -> str:
        match kind:
            case ("list", item):
                return f"repeated {self.type_of(item, f'{parent}_{number}')} {name} = {number};"
            case ("map", item):
                return f"map<string, {self.type_of(item, f'{parent}_{number}')}> {name} = {number};"
        return f"{self.optional}{self.type_of(kind, f'{parent}_{number}')} {name} = {number};"

    def type_of(self, kind: Kind, name: str) -> str:
        if isinstance(kind, dict):
            return self.message(kind, name)
        return self.data.draw(st.sampled_from(PROTOBUF[kind]))


def fill(message: Any, kind: Mapping[str, Kind], row: Mapping[str, Any]) -> Any:
    for name, value in row.items():
        if value is None:
            continue
        inner = kind[name]
        match inner:
            case ("list", item):
                for part in value:
                    if item == "time":
                        set_time(getattr(message, name).add(), part)
                    elif isinstance(item, dict):
                        fill(getattr(message, name).add(), item, part)
                    else:
                        getattr(message, name).append(SYMBOLS.index(part) if item == "enum" else part)
            case ("map", item):
                for key, part in value.items():
                    if item == "time":
                        set_time(getattr(message, name)[key], part)
                    elif isinstance(item, dict):
                        getattr(message, name)[key].SetInParent()
                        fill(getattr(message, name)[key], item, part)
                    else:
                        getattr(message, name)[key] = SYMBOLS.index(part) if item == "enum" else part
            case "time":
                set_time(getattr(message, name), value)
            case dict():
                getattr(message, name).SetInParent()
                fill(getattr(message, name), inner, value)
            case _:
                setattr(message, name, SYMBOLS.index(value) if inner == "enum" else value)
    return message


def set_time(message: Any, at: datetime) -> None:
    microseconds = (at - EPOCH) // timedelta(microseconds=1)
    message.seconds = microseconds // 1_000_000
    message.nanos = microseconds % 1_000_000 * 1_000
    message.SetInParent()


def decode(text: str, values: list[bytes]) -> list[str]:
    record = avro.parse(text)
    adapter = FORMATS[record.root.get("headrace.format", "avro")]
    native = adapter.is_native(record)
    decoder = adapter.open_decoder(record, native=native, header_bytes=0, scratch=tempfile.gettempdir())
    block = decoder.decode(pa.array(values, pa.binary()))
    assert not block.failures
    return [repr(sorted_members(row)) for row in block.rows.to_pylist(maps_as_pydicts="strict")]


def sorted_members(cell: Any) -> Any:
    match cell:
        case dict():
            return {name: sorted_members(cell[name]) for name in sorted(cell)}
        case list():
            return [sorted_members(item) for item in cell]
    return cell


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_avro_and_protobuf_make_the_same_rows(data: st.DataObject) -> None:
    kind = data.draw(types())
    rows = data.draw(st.lists(values_of(kind), min_size=1, max_size=20))
    schema = avro_type(kind, ())
    parsed = parse_schema(schema)
    in_avro = []
    for row in rows:
        out = io.BytesIO()
        schemaless_writer(out, parsed, row)
        in_avro.append(out.getvalue())
    syntax = data.draw(st.sampled_from(SYNTAXES))
    writer = ProtoWriter(data, syntax)
    writer.message(kind, "Event")
    text = f"""{syntax} import "google/protobuf/timestamp.proto"; enum Symbol {{ ZERO = 0; ONE = 1; TWO = 2; }}
    {" ".join(writer.messages)}"""
    file_set = compile_files({"event.proto": text}, "event.proto")
    in_protobuf = [fill(message_class(file_set, "Event")(), kind, row).SerializeToString() for row in rows]
    assert decode(protobuf_record(file_set, "Event"), in_protobuf) == decode(json.dumps(schema), in_avro)
