"""Each line of the table of types: Avro type, Arrow type, and one value there and back."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from writer.rooms import avro
from writer.rooms.decode import decode, is_native
from writer.rooms.native import NativeDecoder
from writer.rooms.singly import SingleDecoder
from writer.rooms.wire import header

TIME = pa.timestamp("us", "UTC")
POINT = {"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}, {"name": "none", "type": "null"}]}


def logical(kind: str, base: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def column(kind: Any, written: Any) -> pa.Array | None:
    """The column that one value becomes; it is written without the meaning of its type, by 20 records."""
    spec = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}, {"name": "a", "type": kind}]}
    raw = json.loads(json.dumps(spec), object_hook=lambda part: {k: v for k, v in part.items() if k != "logicalType"})
    record, plain = avro.parse(json.dumps(spec)), parse_schema(raw)
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
def test_what_holds_nothing_has_no_column(kind):
    assert column(kind, {} if isinstance(kind, dict) else None) is None
