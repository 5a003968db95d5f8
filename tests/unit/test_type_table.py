"""Each line of the table of types: Avro type, Arrow type, and one value there and back."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from headrace.writer.avro import schema
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.decoding.decode import decode
from headrace.writer.framing.wire_format import header

TIME = pa.timestamp("us", "UTC")
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, {"name": "none", "type": "null"}]}


def logical(kind: str, base: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def record_of(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Only", "fields": [{"name": "only", "type": kind}]}


def column(kind: Any, written: Any) -> pa.Array | None:
    """The column that one value becomes; it is written without the meaning of its type, by 20 records."""
    spec = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "a", "type": kind}]}
    raw = json.loads(json.dumps(spec), object_hook=lambda part: {k: v for k, v in part.items() if k != "logicalType"})
    record, plain = schema.parse(json.dumps(spec)), parse_schema(raw)
    values = []
    for i in range(20):
        out = BytesIO()
        out.write(header(1))
        schemaless_writer(out, plain, {"id": i, "a": written})
        values.append(out.getvalue())
    native = NativeDecoder(record) if is_native(record) else None
    decoded = decode(pa.array(values, pa.binary()), native, SingleDecoder(record))
    assert not decoded.failures
    assert decoded.rows["id"].to_pylist() == list(range(20))
    return decoded.rows["a"].combine_chunks() if "a" in decoded.rows.column_names else None


NOON, EVE = datetime(2026, 11, 20, 12, 0, 0, 1000, UTC), datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
NOON_MS = 1_795_176_000_001
ROWS: list[tuple[Any, Any, pa.DataType, Any]] = [
    ("boolean", True, pa.bool_(), True),
    ("int", -(2**31), pa.int32(), -(2**31)),
    ("long", 2**63 - 1, pa.int64(), 2**63 - 1),
    ("float", 0.25, pa.float32(), 0.25),
    ("double", 1e300, pa.float64(), 1e300),
    ("bytes", b"\xff\0", pa.binary(), b"\xff\0"),
    ("string", "é€😀", pa.string(), "é€😀"),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", pa.binary(), b"abc"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", pa.string(), "B"),
    (logical("uuid", "string"), "as it is", pa.string(), "as it is"),
    (logical("uuid", "fixed", name="U", size=16), bytes(range(16)), pa.string(),
     "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    (logical("date", "int"), -1, pa.date32(), date(1969, 12, 31)),
    (logical("timestamp-millis", "long"), NOON_MS, TIME, NOON),
    (logical("timestamp-micros", "long"), -1, TIME, EVE),
    (logical("timestamp-nanos", "long"), -1, TIME, EVE),
    (logical("timestamp-nanos", "long"), NOON_MS * 10**6 + 999, TIME, NOON),
    (logical("local-timestamp-millis", "long"), NOON_MS, TIME, NOON),
    (logical("local-timestamp-micros", "long"), -1, TIME, EVE),
    (logical("local-timestamp-nanos", "long"), -1, TIME, EVE),
    (logical("time-millis", "int"), 86_399_999, pa.int32(), 86_399_999),
    (logical("time-micros", "long"), 86_399_999_999, pa.int64(), 86_399_999_999),
    (logical("duration", "fixed", name="D", size=12), bytes(12), pa.binary(), bytes(12)),
    (logical("decimal", "bytes", precision=38, scale=2), b"\xff", pa.decimal128(38, 2), Decimal("-0.01")),
    (logical("decimal", "fixed", name="M", size=4, precision=9, scale=9), b"\0\0\0\5", pa.decimal128(9, 9),
     Decimal("5E-9")),
    (logical("decimal", "bytes", precision=39, scale=2), b"\x01\x00", pa.string(), "2.56"),
    (logical("decimal", "bytes", precision=77, scale=0), b"\x01\x00", pa.string(), "256"),
    (logical("decimal", "bytes", precision=2, scale=4), b"\x01", pa.binary(), b"\x01"),
    (logical("decimal", "bytes", precision=0), b"\x01", pa.binary(), b"\x01"),
    (logical("decimal", "bytes"), b"\x01", pa.binary(), b"\x01"),
    (logical("decimal", "fixed", name="M", size=1, precision=3), b"\x01", pa.binary(), b"\x01"),
    (logical("decimal", "string", precision=4), "text", pa.string(), "text"),
    (logical("uuid", "fixed", name="U", size=4), b"abcd", pa.binary(), b"abcd"),
    (logical("big-decimal", "bytes"), b"\x01", pa.binary(), b"\x01"),
    (logical("timestamp-millis", "int"), 5, pa.int32(), 5),
    ({"type": "array", "items": "int"}, [1, 2], pa.list_(pa.field("element", pa.int32())), [1, 2]),
    ({"type": "map", "values": "long"}, {"k": 1}, pa.map_(pa.string(), pa.int64()), [("k", 1)]),
    (POINT, {"x": 1, "none": None}, pa.struct([("x", pa.int32())]), {"x": 1}),
    (["null", {"type": "array", "items": ["null", {"type": "enum", "name": "E", "symbols": ["A", "B"]}]}], ["B", None],
     pa.list_(pa.field("element", pa.string())), ["B", None]),
    (["null", "int"], None, pa.int32(), None),
    (["string", "null"], "s", pa.string(), "s"),
    (["int"], 3, pa.int32(), 3),
    (["int", "long"], ("long", 2**40), pa.int64(), 2**40),
    (["null", "double", "float"], ("float", 0.5), pa.float64(), 0.5),
    (["null", "int", "string"], "s", pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
     {"member0": None, "member1": "s"}),
    (["null", "int", "string"], None, pa.struct([("member0", pa.int32()), ("member1", pa.string())]), None),
    ([POINT, "int"], 7, pa.struct([("member0", pa.struct([("x", pa.int32())])), ("member1", pa.int32())]),
     {"member0": None, "member1": 7}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "written", "arrow", "read"), ROWS, ids=[json.dumps(row[0])[:70] for row in ROWS])
def test_an_avro_type_has_its_arrow_type_and_keeps_its_value(kind, written, arrow, read):
    found = column(kind, written)
    assert found is not None
    assert found.type.equals(arrow, check_metadata=True)
    assert found.to_pylist() == [read] * 20


@pytest.mark.parametrize(
    "kind", ["null", ["null"], {"type": "record", "name": "Nothing", "fields": []}], ids=json.dumps
)
def test_a_type_without_values_has_no_column(kind):
    assert column(kind, {} if isinstance(kind, dict) else None) is None


# --- the page ---------------------------------------------------------------------------------------------------

TYPES = Path(__file__).parents[2] / "docs" / "TYPES.md"
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "y", "type": "string"}]}
FIXED, ENUM = {"type": "fixed", "name": "F", "size": 4}, {"type": "enum", "name": "E", "symbols": ["A", "B"]}


def decimals(*precisions: int) -> list[Any]:
    return [logical("decimal", "bytes", precision=precision, scale=1) for precision in precisions]


# First cell of a row → what its columns are, and types that it speaks of. The decoder is the page's own.
PAGE: dict[str, tuple[list[Any], list[str]]] = {
    "boolean, int, long, float, double": (
        ["boolean", "int", "long", "float", "double"], ["bool", "int32", "int64", "float", "double"],
    ),
    "bytes, string": (["bytes", "string"], ["binary", "string"]),
    "fixed": ([FIXED], ["binary"]),
    "enum": ([ENUM], ["string"]),
    "uuid on fixed(16)": ([{**FIXED, "size": 16, "logicalType": "uuid"}], ["string"]),
    "uuid on string": ([logical("uuid", "string")], ["string"]),
    "date": ([logical("date", "int")], ["date32[day]"]),
    "timestamp-millis, -micros": (
        [logical(f"timestamp-{unit}", "long") for unit in ("millis", "micros")], ["timestamp[us, tz=UTC]"] * 2,
    ),
    "timestamp-nanos": ([logical("timestamp-nanos", "long")], ["timestamp[us, tz=UTC]"]),
    "local-timestamp-millis, -micros, -nanos": (
        [logical(f"local-timestamp-{unit}", "long") for unit in ("millis", "micros", "nanos")],
        ["timestamp[us, tz=UTC]"] * 3,
    ),
    "time-millis": ([logical("time-millis", "int")], ["int32"]),
    "time-micros": ([logical("time-micros", "long")], ["int64"]),
    "duration": ([{**FIXED, "size": 12, "logicalType": "duration"}], ["binary"]),
    "decimal, precision up to 38": (decimals(1, 38), ["decimal128(1, 1)", "decimal128(38, 1)"]),
    "decimal, precision 39 to 76": (decimals(39, 76), ["string"] * 2),
    "decimal, precision 77 and more": (decimals(77, 100), ["string"] * 2),
    "array of T": ([{"type": "array", "items": "int"}], ["list<element: int32>"]),
    "map of T": ([{"type": "map", "values": "long"}], ["map<string, int64>"]),
    "record": ([record_of("int")], ["struct<only: int32>"]),
    "[null, T], [T, null], [T]": ([["null", "int"], ["int", "null"], ["int"]], ["int32"] * 3),
    "[int, long], also with null": (
        [["int", "long"], ["long", "int"], ["null", "int", "long"], ["int", "null", "long"]], ["int64"] * 4,
    ),
    "[float, double], also with null": (
        [["float", "double"], ["double", "float"], ["double", "float", "null"]], ["double"] * 3,
    ),
    "other unions of primitives, one array, one map": (
        [["null", "int", "string"], ["boolean", {"type": "array", "items": "int"}, {"type": "map", "values": "int"}]],
        [
            "struct<member0: int32, member1: string>",
            "struct<member0: bool, member1: list<element: int32>, member2: map<string, int32>>",
        ],
    ),
    "unions with a record, or with a named type that the native decoder confuses with another branch": (
        [[POINT, OTHER], ["string", ENUM], ["bytes", FIXED]],
        [
            "struct<member0: struct<x: int32>, member1: struct<y: string>>", "struct<member0: string, member1: string>",
            "struct<member0: binary, member1: binary>",
        ],
    ),
    "null, record without fields, record of nulls": (
        ["null", {"type": "record", "name": "E", "fields": []}, record_of("null")], ["none", "none", "none"],
    ),
}  # fmt: skip


def page() -> dict[str, str]:
    """First cell and decoder of each row of the page's table of types."""
    section = TYPES.read_text(encoding="utf-8").split("## Avro to table")[1].split("\n\n- ")[0]
    cells = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {row[0]: row[2] for row in cells[2:]}


def test_a_null_in_a_nested_record_makes_it_fastavro_s():
    fields = [{"name": "id", "type": "long"}, {"name": "a", "type": POINT}]
    assert not is_native(schema.parse(json.dumps({"type": "record", "name": "R", "fields": fields})))


def test_each_row_of_the_page_is_tried_here():
    assert list(page()) == list(PAGE)


@pytest.mark.parametrize("row", PAGE)
def test_a_row_of_the_page_says_what_becomes_of_its_types(row):
    decoder = page()[row]
    kinds, columns = PAGE[row]
    for kind, shown in zip(kinds, columns, strict=True):
        fields = [{"name": "id", "type": "long"}, {"name": "a", "type": kind}]
        record = schema.parse(json.dumps({"type": "record", "name": "R", "fields": fields}))
        assert str(schema.table_fields(record).get("a", "none")) == shown
        expected = decoder == "native" or decoder.startswith("as ") or kind == "null"
        assert is_native(record) == expected, f"{kind} is decoded {'natively' if not expected else 'one by one'}"


@pytest.mark.parametrize("precision", [1, 2, 3])
@pytest.mark.parametrize("base", ["bytes", "fixed"])
def test_a_decimal_of_few_digits_is_native_too(precision, base):
    money = logical(
        "decimal", base, precision=precision, scale=1, **({"name": "M", "size": 4} if base == "fixed" else {})
    )
    fields = [{"name": "id", "type": "long"}, {"name": "a", "type": money}]
    assert is_native(schema.parse(json.dumps({"type": "record", "name": "R", "fields": fields})))


def test_a_nullable_list_of_nullable_enums_is_native():
    kind = ["null", {"type": "array", "items": ["null", ENUM]}]
    fields = [{"name": "id", "type": "long"}, {"name": "a", "type": kind}]
    assert is_native(schema.parse(json.dumps({"type": "record", "name": "R", "fields": fields})))


def test_a_schema_that_unfolds_without_measure_is_refused_at_once():
    kind: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}
    for level in range(1, 40):
        fields = [{"name": "l", "type": kind}, {"name": "r", "type": f"R{level - 1}"}]
        kind = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(schema.UnsupportedSchema, match="unfolds to more than 20,000 parts"):
        schema.parse(json.dumps(kind))
    deep: Any = "int"
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    with pytest.raises(schema.UnsupportedSchema, match="more than 64 levels deep"):
        schema.parse(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": deep}]}))
