"""Each line of docs/SCHEMAS.md: a field's type, the type it gets, and what the column and both records become."""

import json
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from headrace.writer.avro import schema
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from headrace.writer.decoding.decode import decode
from headrace.writer.framing.wire_format import header

EMPTY = SchemaPlan(pa.schema([]))
INT, L, F, D, S, B = pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()
TIME = pa.timestamp("us", "UTC")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOON_MS = 1_795_176_000_000


def logical(kind: str, base: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def record(name: str, *fields: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f[0], "type": f[1], **(f[2] if f[2:] else {})} for f in fields],
    }


def money(precision: int, scale: int) -> dict[str, Any]:
    return logical("decimal", "bytes", precision=precision, scale=scale)


def cents(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def struct(**parts: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field(name, kind) for name, kind in parts.items()])


def array(item: Any) -> dict[str, Any]:
    return {"type": "array", "items": item}


def mapping(item: Any) -> dict[str, Any]:
    return {"type": "map", "values": item}


def listed(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


def fixed(size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "Fix", "size": size}


def enum(*symbols: str) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)}


def carried(plan: SchemaPlan, schema_id: int, row: dict[str, Any]) -> dict[str, Any]:
    """The row that one record becomes; 20 of them go through, as a block."""
    known = plan.schemas[schema_id]
    assert isinstance(known, WriterSchema), known
    parsed = schema.parse(known.text)
    raw = json.loads(known.text, object_hook=lambda part: {k: v for k, v in part.items() if k != "logicalType"})
    out = BytesIO()
    out.write(header(schema_id))
    schemaless_writer(out, parse_schema(raw), row)
    values = pa.array([out.getvalue()] * 20, pa.binary())
    decoded = decode(values, NativeDecoder(parsed) if known.native else None, SingleDecoder(parsed))
    assert not decoded.failures
    rows = conform(decoded.rows, known, plan)
    assert rows.schema.equals(plan.columns)
    first, *others = rows.to_pylist()
    assert others == [first] * 19
    return first


def admitted(*fields: Any, plan: SchemaPlan = EMPTY) -> SchemaPlan:
    """The plan after a schema for each of these fields, with ids from 1 on."""
    for schema_id, spec in enumerate(fields, 1):
        plan = plan.extend(schema_id, json.dumps(record("Event", ("id", "long"), spec)))
    return plan


MILLIS, MICROS = logical("timestamp-millis", "long"), logical("timestamp-micros", "long")
X, XY = record("P", ("x", "int")), record("P", ("y", "string"), ("x", "int"))
CLICK, BUY, VIEW = (record(name, ("at", "int")) for name in ("Click", "Buy", "View"))
AT = struct(at=INT)
# type of the first schema, a value, type of the second, a value; then the column, and what the values are in it
ROWS: list[tuple[Any, Any, Any, Any, pa.DataType, Any, Any]] = [
    # narrower than the column: cast
    ("long", 2**40, "int", 5, L, 2**40, 5),
    ("double", 0.1, "int", 5, D, 0.1, 5.0),
    ("double", 0.1, "long", 2**53 + 1, D, 0.1, float(2**53)),
    ("float", 0.5, "int", 5, F, 0.5, 5.0),
    ("double", 0.1, "float", 0.5, D, 0.1, 0.5),
    ("bytes", b"\xff", "string", "é", B, b"\xff", b"\xc3\xa9"),
    ("int", 5, logical("date", "int"), 1, INT, 5, 1),
    ("long", 5, MILLIS, -1, L, 5, -1),
    ("long", 5, MICROS, 7, L, 5, 7),
    # wider than the column: the column widens
    ("int", 5, "long", 2**40, L, 5, 2**40),
    ("int", 5, "double", 0.1, D, 5.0, 0.1),
    ("int", 2**31 - 1, "float", 0.5, D, float(2**31 - 1), 0.5),
    ("float", 0.5, "double", 0.1, D, 0.5, 0.1),
    (money(9, 2), cents(125), money(18, 2), cents(10**17), pa.decimal128(18, 2), Decimal("1.25"), Decimal(10**15)),
    (money(9, 2), cents(125), money(9, 4), cents(12345), pa.decimal128(11, 4), Decimal("1.25"), Decimal("1.2345")),
    (money(9, 4), cents(12345), money(9, 2), cents(125), pa.decimal128(11, 4), Decimal("1.2345"), Decimal("1.25")),
    (money(12, 4), cents(12345), money(9, 2), cents(125), pa.decimal128(12, 4), Decimal("1.2345"), Decimal("1.25")),
    # other words for the same
    ("int", 5, ["null", "int"], None, INT, 5, None),
    (["null", "int"], None, "int", 5, INT, None, 5),
    (["null", "int"], 5, ["null", "long"], 2**40, L, 5, 2**40),
    (["int", "long"], 2**40, "int", 5, L, 2**40, 5),
    (MILLIS, NOON_MS, MICROS, NOON_MS * 1000, TIME, NOON, NOON),
    (MICROS, NOON_MS * 1000, logical("timestamp-nanos", "long"), NOON_MS * 10**6, TIME, NOON, NOON),
    (MICROS, NOON_MS * 1000, logical("local-timestamp-millis", "long"), NOON_MS, TIME, NOON, NOON),
    (enum("A", "B"), "A", enum("A", "B", "C"), "C", S, "A", "C"),
    (enum("A", "B"), "B", enum("A"), "A", S, "B", "A"),
    (enum("A", "B"), "B", "string", "Z", S, "B", "Z"),
    ("string", "u", logical("uuid", "fixed", name="U", size=16), bytes(16), S, "u",
     "00000000-0000-0000-0000-000000000000"),
    (fixed(2), b"ab", fixed(3), b"abc", B, b"ab", b"abc"),
    (fixed(2), b"ab", "bytes", b"", B, b"ab", b""),
    # inside
    (X, {"x": 1}, XY, {"y": "b", "x": 2}, struct(x=INT, y=S), {"x": 1, "y": None}, {"x": 2, "y": "b"}),
    (XY, {"y": "b", "x": 2}, X, {"x": 1}, struct(y=S, x=INT), {"y": "b", "x": 2}, {"y": None, "x": 1}),
    (["null", X], None, ["null", XY], {"y": "b", "x": 2}, struct(x=INT, y=S), None, {"x": 2, "y": "b"}),
    (array(X), [{"x": 1}], array(XY), [{"y": "b", "x": 2}], listed(struct(x=INT, y=S)), [{"x": 1, "y": None}],
     [{"x": 2, "y": "b"}]),
    (mapping(X), {"k": {"x": 1}}, mapping(XY), {"k": {"y": "b", "x": 2}}, pa.map_(S, struct(x=INT, y=S)),
     [("k", {"x": 1, "y": None})], [("k", {"x": 2, "y": "b"})]),
    (record("Q", ("p", X)), {"p": {"x": 1}}, record("Q", ("p", XY)), {"p": {"y": "b", "x": 2}},
     struct(p=struct(x=INT, y=S)), {"p": {"x": 1, "y": None}}, {"p": {"x": 2, "y": "b"}}),
    (X, {"x": 1}, record("P", ("x", "long")), {"x": 2**40}, struct(x=L), {"x": 1}, {"x": 2**40}),
    (array("int"), [1], array("long"), [2**40], listed(L), [1], [2**40]),
    (mapping("int"), {"k": 1}, mapping("double"), {"k": 0.5}, pa.map_(S, D), [("k", 1.0)], [("k", 0.5)]),
    (record("P", ("x", "int")), {"x": 1}, record("P", ("left", "int", {"aliases": ["x"]})), {"left": 2}, struct(x=INT),
     {"x": 1}, {"x": 2}),
    (X, {"x": 1}, record("P", ("x", "int"), ("n", "long", {"default": 7})), {"x": 2, "n": 3}, struct(x=INT, n=L),
     {"x": 1, "n": 7}, {"x": 2, "n": 3}),
    (array(X), [{"x": 1}], array(record("P", ("x", "int"), ("n", "string", {"default": "none"}))), [{"x": 2, "n": "b"}],
     listed(struct(x=INT, n=S)), [{"x": 1, "n": "none"}], [{"x": 2, "n": "b"}]),
    # unions of several
    ([CLICK, BUY], ("Buy", {"at": 1}), [CLICK, BUY, VIEW], ("View", {"at": 2}),
     struct(member0=AT, member1=AT, member2=AT), {"member0": None, "member1": {"at": 1}, "member2": None},
     {"member0": None, "member1": None, "member2": {"at": 2}}),
    ([CLICK, BUY], ("Buy", {"at": 1}), [VIEW, BUY, CLICK], ("Click", {"at": 2}),
     struct(member0=AT, member1=AT, member2=AT), {"member0": None, "member1": {"at": 1}, "member2": None},
     {"member0": {"at": 2}, "member1": None, "member2": None}),
    ([CLICK, BUY], ("Buy", {"at": 1}), BUY, {"at": 2}, struct(member0=AT, member1=AT),
     {"member0": None, "member1": {"at": 1}}, {"member0": None, "member1": {"at": 2}}),
    ([CLICK, BUY], ("Buy", {"at": 1}), [CLICK, record("Buy", ("at", "int"), ("n", "int"))], ("Buy", {"at": 2, "n": 3}),
     struct(member0=AT, member1=struct(at=INT, n=INT)), {"member0": None, "member1": {"at": 1, "n": None}},
     {"member0": None, "member1": {"at": 2, "n": 3}}),
    (["null", "int", "string"], 1, ["string", "long", "null"], 2**40, struct(member0=L, member1=S),
     {"member0": 1, "member1": None}, {"member0": 2**40, "member1": None}),
    (["long", "string"], "s", ["string", "int"], 5, struct(member0=L, member1=S), {"member0": None, "member1": "s"},
     {"member0": 5, "member1": None}),
    (["int", "string"], 1, "string", "s", struct(member0=INT, member1=S), {"member0": 1, "member1": None},
     {"member0": None, "member1": "s"}),
    (["boolean", "string"], True, ["null", "long"], 5, struct(member0=pa.bool_(), member1=S, member2=L),
     {"member0": True, "member1": None, "member2": None}, {"member0": None, "member1": None, "member2": 5}),
    (["boolean", "string"], True, ["null", "long"], None, struct(member0=pa.bool_(), member1=S, member2=L),
     {"member0": True, "member1": None, "member2": None}, None),
]  # fmt: skip


def _named(row: tuple[Any, ...]) -> str:
    return f"{json.dumps(row[0])[:60]} then {json.dumps(row[2])[:60]}"


@pytest.mark.parametrize("row", ROWS, ids=_named)
def test_a_type_that_changes_has_one_column_for_both(row):
    old, old_value, new, new_value, column, old_read, new_read = row
    plan = admitted(("a", old), ("a", new))
    assert plan.columns.field("a").type.equals(column)
    assert carried(plan, 1, {"id": 1, "a": old_value}) == {"id": 1, "a": old_read}
    assert carried(plan, 2, {"id": 2, "a": new_value}) == {"id": 2, "a": new_read}
    again = admitted(("a", old), ("a", new), plan=SchemaPlan(plan.columns))
    assert again.columns.equals(plan.columns), "a start that finds the table decides the same"
    assert carried(again, 2, {"id": 2, "a": new_value}) == {"id": 2, "a": new_read}


TIME_MS, TIME_US = logical("time-millis", "int"), logical("time-micros", "long")
REFUSED: list[tuple[Any, Any, str]] = [
    ("string", "bytes", "field 'a' is binary, but column 'a' holds string"),
    ("string", fixed(2), "field 'a' is binary, but column 'a' holds string"),
    ("string", "int", "field 'a' is int32, but column 'a' holds string"),
    ("int", "string", "field 'a' is string, but column 'a' holds int32"),
    ("long", "double", "field 'a' is double, but column 'a' holds int64"),
    ("long", "float", "field 'a' is float, but column 'a' holds int64"),
    ("boolean", "int", "field 'a' is int32, but column 'a' holds bool"),
    ("int", money(9, 2), "field 'a' is decimal128(9, 2), but column 'a' holds int32"),
    (money(38, 0), money(20, 10), "field 'a' is decimal128(20, 10), but column 'a' holds decimal128(38, 0)"),
    (money(9, 2), money(40, 2), "field 'a' is string, but column 'a' holds decimal128(9, 2)"),
    (MILLIS, "long", "field 'a' is int64, but column 'a' holds timestamp[us, tz=UTC]"),
    ("long", logical("timestamp-nanos", "long"), "field 'a' is timestamp[us, tz=UTC], but column 'a' holds int64"),
    (TIME_MS, TIME_US, "field 'a' is a time-micros, but column 'a' holds time-millis"),
    (TIME_US, TIME_MS, "field 'a' is a time-millis, but column 'a' holds time-micros"),
    (logical("date", "int"), "int", "field 'a' is int32, but column 'a' holds date32[day]"),
    (X, array("int"), "field 'a' is list<element: int32>, but column 'a' holds struct<x: int32>"),
    (array("int"), "int", "field 'a' is int32, but column 'a' holds list<element: int32>"),
    ("string", ["string", "int"],
     "field 'a' is struct<member0: string, member1: int32>, but column 'a' holds string"),
    (X, record("P", ("x", "string")), "field 'a.x' is string, but column 'a.x' holds int32"),
    (array(X), array(record("P", ("x", "string"))),
     "field 'a.element.x' is string, but column 'a.element.x' holds int32"),
    (mapping("int"), mapping("string"), "field 'a.value' is string, but column 'a.value' holds int32"),
    (X, record("P", ("X", "int")), "field 'a.X' differs from column 'a.x' only in case"),
    (X, record("P", ("x", "int"), ("y", "int", {"aliases": ["x"]})), "two fields would fill column 'a.x'"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: f"{json.dumps(row[0])[:50]} then {json.dumps(row[1])[:50]}")
def test_a_type_that_the_column_cannot_hold_parks_only_its_own_records(row):
    old, new, sentence = row
    first = admitted(("a", old))
    plan = admitted(("a", old), ("a", new))
    assert plan.schemas[2] == RejectedSchema(f"schema id 2: {sentence}")
    assert plan.columns.equals(first.columns)
    assert plan.reader == first.reader
    assert plan.schemas[1] == first.schemas[1]


DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("boolean", True, True),
    ("int", -5, -5),
    ("double", 1, 1.0),
    ("string", "é", "é"),
    ("bytes", "\u00ff\u0000", b"\xff\0"),
    (fixed(2), "a\u00ff", b"a\xff"),
    (enum("A", "B"), "B", "B"),
    (MILLIS, NOON_MS, NOON),
    (logical("date", "int"), -1, date(1969, 12, 31)),
    (money(9, 2), "\u0001\u0000", Decimal("2.56")),
    (logical("uuid", "fixed", name="U", size=16), "\0" * 16, "00000000-0000-0000-0000-000000000000"),
    (array("int"), [1, 2], [1, 2]),
    (mapping("string"), {"k": "v"}, [("k", "v")]),
    (record("P", ("x", "int"), ("y", "string", {"default": "none"})), {"x": 1}, {"x": 1, "y": "none"}),
    (["string", "null"], "s", "s"),
    (["null", "string"], None, None),
    (["null", "string"], "s", "s"),  # Avro 1.12: of any branch
    (["int", "string"], "s", {"member0": None, "member1": "s"}),
    ([CLICK, BUY], {"at": 3}, {"member0": {"at": 3}, "member1": None}),
    ("int", 2**31, None),  # no value of its type: Avro forbids it, and not every registry notices
    (enum("A"), "Z", None),
]  # fmt: skip


@pytest.mark.parametrize("row", DEFAULTS, ids=lambda row: f"{json.dumps(row[0])[:50]} {row[1]!r}"[:70])
def test_a_writer_that_lacks_a_field_has_the_readers_default(row):
    kind, given, found = row
    plan = EMPTY.extend(1, json.dumps(record("Event", ("id", "long"))))
    plan = plan.extend(2, json.dumps(record("Event", ("id", "long"), ("a", kind, {"default": given}))))
    assert carried(plan, 1, {"id": 1}) == {"id": 1, "a": found}


def large_union(count):
    return [record(f"N{number}", (f"x{number}", "int")) for number in range(count)]


@pytest.mark.parametrize("given", ["y" * 1_000_000, [list(range(200_000))]], ids=["a text", "a list"])
def test_a_large_default_that_no_branch_can_hold_costs_little(given):
    text = json.dumps(record("Event", ("id", "long"), ("a", large_union(3_000), {"default": given})))
    began_s = time.process_time()
    plan = EMPTY.extend(1, text)
    assert time.process_time() - began_s < 10
    assert isinstance(plan.schemas[1], WriterSchema)


def test_a_default_of_too_many_items_and_branches_is_refused():
    kind = {"type": "map", "values": large_union(3_000)}
    default = {f"k{number}": {"x2999": 1} for number in range(2_000)}
    text = json.dumps(record("Event", ("id", "long"), ("a", kind, {"default": default})))
    reason = "the default of field 'a' takes more than 2,000,000 steps to read; shorten it"
    began_s = time.process_time()
    plan = EMPTY.extend(1, text)
    assert time.process_time() - began_s < 30
    assert plan.schemas[1] == RejectedSchema(f"schema id 1: {reason}")
    assert EMPTY.find_problems(text) == [reason]


def test_the_default_is_that_of_the_newest_schema_that_has_the_field():
    plan = admitted(("a", "int", {"default": 1}), ("a", "int", {"default": 2}), ("b", "int"))
    assert carried(plan, 3, {"id": 1, "b": 5}) == {"id": 1, "a": 2, "b": 5}
    plan = plan.extend(4, json.dumps(record("Event", ("id", "long"), ("a", "int"))))
    assert carried(plan, 3, {"id": 1, "b": 5}) == {"id": 1, "a": None, "b": 5}
    assert carried(plan, 4, {"id": 1, "a": 6}) == {"id": 1, "a": 6, "b": None}


def test_a_field_that_is_renamed_again_and_again_fills_its_first_column():
    plan = admitted(("a", "int"), ("b", "int", {"aliases": ["a"]}), ("c", "int", {"aliases": ["b"]}))
    assert plan.columns.names == ["id", "a"]
    assert carried(plan, 3, {"id": 1, "c": 5}) == {"id": 1, "a": 5}


def test_an_older_name_finds_the_column_of_a_newer_schema_that_came_first():
    plan = admitted(("b", "int", {"aliases": ["a"]}), ("a", "int"))
    assert plan.columns.names == ["id", "b"]
    assert carried(plan, 2, {"id": 1, "a": 5}) == {"id": 1, "b": 5}


def test_a_default_follows_its_column_when_that_grows():
    point = record("P", ("x", "int"))
    plan = admitted(("b", "int"), ("a", point, {"default": {"x": 1}}))
    wider = record(
        "Event",
        ("id", "long"),
        ("c", "int"),
        ("a", record("P", ("x", "long"), ("y", "int")), {"default": {"x": 2**40, "y": 3}}),
    )
    plan = plan.extend(3, json.dumps(wider))
    assert carried(plan, 1, {"id": 1, "b": 0})["a"] == {"x": 2**40, "y": 3}
    assert carried(plan, 2, {"id": 1, "a": {"x": 5}})["a"] == {"x": 5, "y": None}
