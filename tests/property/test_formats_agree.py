"""Random events as Avro, declared JSON, JSON by a JSON Schema, and Protobuf: the same rows come of all.

What they cannot have in common is left out here, and stated in docs/TYPES.md: Avro's enum, fixed, uuid, duration and
times of day have no declared type; NaN and the infinities are no JSON; a JSON Schema has times as text alone. JSON has
the column `rest` beside, which is empty here. Protobuf has no date and no decimal, no null inside a list or a map, and
none of these inside one another.
"""

import json
import math
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, event, given, settings, strategies as st

from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.preflight.testing.protobuf_json import MessageEncoder
from headrace.writer.protobuf.registered_schema import wrap_schema
from tests.support.local_driver import log
from tests.support.sample_records import Schemas, config, value

# A type as `columns.declared` has it.
Declared = Any
NAMES = ("a", "b", "Name", "x_1", "value", "fields")
DEPTH_MAX = 3
VALUES_MAX = 8
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PRECISION = 12
SCALE = 3
DECIMAL = f"decimal({PRECISION}, {SCALE})"
TIMES = {"timestamp": 1, "timestamp(us)": 1, "timestamp(ms)": 1_000, "timestamp(s)": 1_000_000}
MICROSECONDS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


def instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def times(step: int) -> st.SearchStrategy[datetime]:
    """Instants in whole steps of so many microseconds."""
    return MICROSECONDS.map(lambda number: instant(number // step * step if number >= 0 else -(-number // step * step)))


VALUES: Mapping[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "string": st.text(max_size=12),
    "binary": st.binary(max_size=12),
    "date": st.dates(),
    DECIMAL: st.integers(-(10**PRECISION) + 1, 10**PRECISION - 1).map(lambda number: Decimal(number).scaleb(-SCALE)),
    **{name: times(step) for name, step in TIMES.items()},
}
LEAVES = tuple(VALUES)
AVRO: Mapping[str, Any] = {
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    DECIMAL: {"type": "bytes", "logicalType": "decimal", "precision": PRECISION, "scale": SCALE},
    **{name: {"type": "long", "logicalType": "timestamp-micros"} for name in TIMES},
}
JSON_SCHEMA: Mapping[str, Any] = {
    "boolean": {"type": "boolean"},
    "int": {"type": "integer", "connect.type": "int32"},
    "long": {"type": "integer"},
    "float": {"type": "number", "connect.type": "float32"},
    "double": {"type": "number"},
    "string": {"type": "string"},
    "binary": {"type": "string", "contentEncoding": "base64"},
    "date": {"type": "string", "format": "date"},
    DECIMAL: {
        "type": "number",
        "title": "org.apache.kafka.connect.data.Decimal",
        "connect.parameters": {"scale": str(SCALE), "connect.decimal.precision": str(PRECISION)},
    },
    "timestamp": {"type": "string", "format": "date-time"},
}


def declarations(leaves: Sequence[str]) -> st.SearchStrategy[dict[str, Declared]]:
    """Records of a few members, some of them with members of their own."""

    def containers(inner: st.SearchStrategy[Declared]) -> st.SearchStrategy[Declared]:
        return st.one_of(
            st.dictionaries(st.sampled_from(NAMES), inner, min_size=1, max_size=3),
            inner.map(lambda kind: [kind]),
            inner.map(lambda kind: {"*": kind}),
        )

    kind = st.recursive(st.sampled_from(list(leaves)), containers, max_leaves=6)
    return st.dictionaries(st.sampled_from(NAMES), kind, min_size=1, max_size=5)


def values_of(kind: Declared) -> st.SearchStrategy[Any]:
    """Values of a type, of which any may be null."""
    if isinstance(kind, str):
        return st.none() | VALUES[kind]
    if isinstance(kind, list):
        return st.none() | st.lists(values_of(kind[0]), max_size=3)
    if "*" in kind:
        return st.none() | st.dictionaries(st.text(max_size=4), values_of(kind["*"]), max_size=3)
    return st.none() | records_of(kind)


def records_of(kind: Mapping[str, Declared]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: values_of(member) for name, member in kind.items()})


def avro_type(kind: Declared, names: Iterator[str]) -> Any:
    if isinstance(kind, str):
        return AVRO.get(kind, kind)
    if isinstance(kind, list):
        return {"type": "array", "items": ["null", avro_type(kind[0], names)]}
    if "*" in kind:
        return {"type": "map", "values": ["null", avro_type(kind["*"], names)]}
    fields = [
        {"name": name, "type": ["null", avro_type(member, names)], "default": None} for name, member in kind.items()
    ]
    return {"type": "record", "name": next(names), "fields": fields}


def json_schema(kind: Declared) -> Any:
    if isinstance(kind, str):
        return JSON_SCHEMA[kind]
    if isinstance(kind, list):
        return {"type": "array", "items": json_schema(kind[0])}
    if "*" in kind:
        return {"type": "object", "additionalProperties": json_schema(kind["*"])}
    return {"type": "object", "properties": {name: json_schema(member) for name, member in kind.items()}}


def json_text(item: Any, kind: Declared, *, ascii_only: bool) -> str:
    """Return a value as JSON, numbers exactly. Members that are null are left out."""

    def text(inner: Any, inner_kind: Declared) -> str:
        return json_text(inner, inner_kind, ascii_only=ascii_only)

    match item:
        case None:
            return "null"
        case dict():
            kinds = kind if "*" not in kind else dict.fromkeys(item, kind["*"])
            members = [
                f"{json.dumps(name, ensure_ascii=ascii_only)}:{text(inner, kinds[name])}"
                for name, inner in item.items()
                if inner is not None or "*" in kind
            ]
            return f"{{ {', '.join(members)} }}"
        case list():
            return f"[{','.join(text(inner, kind[0]) for inner in item)}]"
        case bytes():
            return json.dumps(b64encode(item).decode())
        case Decimal():
            return f"{item:f}"
        case datetime():
            microseconds = (item - EPOCH) // timedelta(microseconds=1)
            return json.dumps(item.isoformat()) if kind == "timestamp" else str(microseconds // TIMES[kind])
        case date():
            return json.dumps(item.isoformat())
    return json.dumps(item, ensure_ascii=ascii_only)


def rows_of(root: Path, values: Sequence[bytes], schema: Any = None, **pipeline: Any) -> list[dict[str, Any]]:
    """Return the rows that a pipeline makes of values, without what JSON has besides. None of them fails."""
    schemas = Schemas({} if schema is None else {1: schema}, [] if schema is None else [1])
    settings_ = config(root, event_time={"field": "_kafka_time"}, **pipeline)
    sample = open_local_pipeline("clicks", settings_, schemas).decode(log(dict(enumerate(values))))
    assert not sample.dead_letters, sample.dead_letters[0].reason
    (group,) = sample.groups
    return [plain(row) for row in group.rows.to_pylist(maps_as_pydicts="strict")]


def plain(cell: Any) -> Any:
    """Return a value of a row as one that compares: -0.0 is another than 0.0; `rest` is left out."""
    match cell:
        case dict():
            assert cell.get("rest") is None
            return {name: plain(inner) for name, inner in cell.items() if name != "rest"}
        case list():
            return [plain(inner) for inner in cell]
        case float():
            return cell, math.copysign(1, cell)
    return cell


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_avro_and_declared_json_make_the_same_rows(data: st.DataObject) -> None:
    check_agreement(data, LEAVES, with_json_schema=False)


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_avro_and_json_by_both_kinds_of_schema_make_the_same_rows(data: st.DataObject) -> None:
    check_agreement(data, tuple(JSON_SCHEMA), with_json_schema=True)


PROTOBUF: Mapping[str, str] = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "bytes",
    "timestamp": "google.protobuf.Timestamp",
}


def protobuf_declarations() -> st.SearchStrategy[dict[str, Declared]]:
    """Records of a few members, as Protobuf can have them."""

    def containers(inner: st.SearchStrategy[Declared]) -> st.SearchStrategy[Declared]:
        members = inner | inner.map(lambda kind: [kind]) | inner.map(lambda kind: {"*": kind})
        return st.dictionaries(st.sampled_from(NAMES), members, min_size=1, max_size=3)

    single = st.recursive(st.sampled_from(list(PROTOBUF)), containers, max_leaves=6)
    kind = single | single.map(lambda kind: [kind]) | single.map(lambda kind: {"*": kind})
    return st.dictionaries(st.sampled_from(NAMES), kind, min_size=1, max_size=5)


def protobuf_values(kind: Declared, *, may_be_null: bool = True) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.lists(protobuf_values(kind[0], may_be_null=False), max_size=3)
    if isinstance(kind, dict) and "*" in kind:
        return st.dictionaries(st.text(max_size=4), protobuf_values(kind["*"], may_be_null=False), max_size=3)
    values = VALUES[kind] if isinstance(kind, str) else protobuf_records(kind)
    return st.none() | values if may_be_null else values


def protobuf_records(kind: Mapping[str, Declared]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({name: protobuf_values(member) for name, member in kind.items()})


def message_lines(name: str, kind: Mapping[str, Declared], names: Iterator[str]) -> Iterator[str]:
    """Yield the message of a record; each inside it has a name of its own."""
    yield f"message {name} {{"
    for number, (member, declared) in enumerate(kind.items(), 1):
        label, before, behind = "optional ", "", ""
        if isinstance(declared, list):
            label, declared = "repeated ", declared[0]  # noqa: PLW2901
        elif isinstance(declared, dict) and "*" in declared:
            label, before, behind, declared = "", "map<string, ", ">", declared["*"]  # noqa: PLW2901
        if isinstance(declared, str):
            type_name = PROTOBUF[declared]
        else:
            type_name = next(names)
            yield from message_lines(type_name, declared, names)
        yield f"{label}{before}{type_name}{behind} {member} = {number};"
    yield "}"


def protobuf_json(item: Any) -> Any:
    """Return a value as Protobuf's JSON has it: bytes in base64."""
    match item:
        case dict():
            return {name: protobuf_json(member) for name, member in item.items()}
        case list():
            return [protobuf_json(inner) for inner in item]
        case bytes():
            return b64encode(item).decode()
    return item


@settings(suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_avro_and_protobuf_make_the_same_rows(data: st.DataObject) -> None:
    declared = data.draw(protobuf_declarations())
    events = data.draw(st.lists(protobuf_records(declared), min_size=1, max_size=VALUES_MAX))
    avro = avro_type(declared, (f"R{number}" for number in range(100)))
    lines = message_lines("Root", declared, (f"Inner{number}" for number in range(100)))
    text = "\n".join(['syntax = "proto3"; import "google/protobuf/timestamp.proto";', *lines])
    encode = MessageEncoder(text, "Root")
    event("nested" if any(not isinstance(kind, str) for kind in declared.values()) else "flat")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = rows_of(root, [value(1, avro, item) for item in events], avro)
        framed = [b"\0\0\0\0\1" + encode.mark + encode(protobuf_json(item)) for item in events]
        assert rows_of(root, framed, json.loads(wrap_schema(text, {})), formats="protobuf") == expected


def check_agreement(data: st.DataObject, leaves: Sequence[str], *, with_json_schema: bool) -> None:
    declared = data.draw(declarations(leaves))
    events = data.draw(st.lists(records_of(declared), min_size=1, max_size=VALUES_MAX))
    ascii_only = data.draw(st.booleans())
    avro = avro_type(declared, (f"R{number}" for number in range(100)))
    texts = [json_text(item, declared, ascii_only=ascii_only).encode() for item in events]
    event("nested" if any(not isinstance(kind, str) for kind in declared.values()) else "flat")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        expected = rows_of(root, [value(1, avro, item) for item in events], avro)
        assert rows_of(root, texts, formats="json", columns={"declared": declared}) == expected
        if with_json_schema:
            framed = [b"\0\0\0\0\1" + text for text in texts]
            assert rows_of(root, framed, json_schema(declared), formats="json_schema") == expected


def test_the_values_of_an_event_are_those_of_its_row(tmp_path: Path) -> None:
    """Of one event in all three, so that the rows do not agree for being empty."""
    declared: dict[str, Declared] = {
        "n": "long",
        "at": "timestamp",
        "list": [{"price": DECIMAL}],
        "map": {"*": "binary"},
    }
    row = {"n": 5, "at": instant(1), "list": [{"price": Decimal("1.500")}, None], "map": {"k": b"\xff", "z": None}}
    text = json_text(row, declared, ascii_only=True).encode()
    avro = avro_type(declared, (f"R{number}" for number in range(100)))
    assert rows_of(tmp_path, [value(1, avro, row)], avro) == [row]
    assert rows_of(tmp_path, [text], formats="json", columns={"declared": declared}) == [row]
    framed = [b"\0\0\0\0\1" + text]
    assert rows_of(tmp_path, framed, json_schema(declared), formats="json_schema") == [row]
