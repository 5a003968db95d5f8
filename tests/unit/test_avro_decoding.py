"""What the decoder does at its edges: names, hangs, limits, slices, and which types are native."""

import json
import threading
import tracemalloc
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.arrow_types import NOT_A_TIME
from headrace.writer.avro.decoding.block_decoder import NativeDecoder, _ContainerReader
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.decoding import decode as step
from headrace.writer.decoding.block import BlockRefused, DecoderUnresponsive
from headrace.writer.decoding.decode import decode
from headrace.writer.framing.wire_format import header

HEAD = header(1)


def parsed(*fields: tuple[str, Any], name: str = "Event") -> avro.Record:
    spec = {"type": "record", "name": name, "fields": [{"name": n, "type": kind} for n, kind in fields]}
    return avro.parse(json.dumps(spec))


def of(kind: Any) -> avro.Record:
    return parsed(("a", kind), ("b", "int"))


def block(record: avro.Record, rows: list[dict[str, Any]]) -> pa.Array:
    schema = parse_schema(json.loads(record.text))
    values = []
    for row in rows:
        out = BytesIO()
        out.write(HEAD)
        schemaless_writer(out, schema, row)
        values.append(out.getvalue())
    return pa.array(values, pa.binary())


SIMPLE = parsed(("id", "long"), ("name", "string"))


def simple(count: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"name {i}"} for i in range(count)]


# --- framing ----------------------------------------------------------------------------------------------------


def test_fields_may_have_the_names_of_the_frame():
    record = parsed(("_hdr", "int"), ("_end", "string"), ("_end_", "int"), ("_hdr_", "int"))
    rows = [{"_hdr": 1, "_end": "x", "_end_": 2, "_hdr_": 3}] * 20
    assert is_native(record)
    assert decode(block(record, rows), NativeDecoder(record), SingleDecoder(record)).rows.to_pylist() == rows


def test_the_frame_is_named_beside_every_field():
    record = parsed(("_hdr", "int"), ("_end", "int"), ("_end_", "int"))
    _, names = avro.frame_schema(record, {"_hdr": avro.fixed_type("Head", 5)}, {"_end": avro.fixed_type("Tail", 8)})
    assert names == {"_hdr": "_hdr_", "_end": "_end__"}


def test_types_of_one_name_in_two_namespaces_stay_apart():
    inner = {"type": "record", "name": "a.Inner", "fields": [{"name": "x", "type": "int"}]}
    other = {
        "type": "record",
        "name": "b.Inner",
        "fields": [{"name": "y", "type": "string"}, {"name": "z", "type": "a.Inner"}],
    }
    bare = {"type": "record", "name": "Inner", "namespace": "", "fields": [{"name": "w", "type": "a.Inner"}]}
    record = parsed(("a", inner), ("b", other), ("c", bare), ("d", ["null", "b.Inner"]), name="c.d.Event")
    rows = [{"a": {"x": i}, "b": {"y": "t", "z": {"x": 2}}, "c": {"w": {"x": 3}}, "d": None} for i in range(20)]
    assert is_native(record)
    assert decode(block(record, rows), NativeDecoder(record), SingleDecoder(record)).rows.to_pylist() == rows


# --- the watchdog -----------------------------------------------------------------------------------------------


class Spinning(_ContainerReader):
    """A reader that never comes back from 40 records, until it is let go."""

    def __init__(self) -> None:
        super().__init__(None)
        self.let_go = threading.Event()

    def _read(self, count: int) -> pa.Table:
        if count == 40:
            while not self.let_go.is_set():
                pass
        return super()._read(count)


@pytest.fixture
def spinning():
    decoder, reader = NativeDecoder(SIMPLE, deadline=lambda _: 0.2), Spinning()
    decoder._reader = reader
    yield decoder
    reader.let_go.set()


def test_a_reader_that_spins_is_left_at_its_deadline(spinning):
    with pytest.raises(DecoderUnresponsive, match="no end after"):
        spinning(block(SIMPLE, simple(40)))
    assert spinning.unresponsive


def test_decoders_of_a_process_share_a_reader_and_one_that_spins_leaves_the_others_a_new_one(spinning):
    first, second = NativeDecoder(SIMPLE), NativeDecoder(SIMPLE)
    assert first._reader is second._reader
    other = NativeDecoder(SIMPLE)
    other._reader = spinning._reader
    with pytest.raises(DecoderUnresponsive):
        spinning(block(SIMPLE, simple(40)))
    rows, _ = other(block(SIMPLE, simple(30)))
    assert rows.to_pylist() == simple(30)
    assert not other.unresponsive


def test_a_hung_block_is_decoded_singly_and_so_are_those_after_it(spinning):
    singly = SingleDecoder(SIMPLE)
    for count in (30, 40, 50):
        assert decode(block(SIMPLE, simple(count)), spinning, singly).rows.to_pylist() == simple(count)
        assert spinning.unresponsive == (count >= 40)
    with pytest.raises(BlockRefused, match="lost"):
        spinning(block(SIMPLE, simple(1)))


# --- blocks -----------------------------------------------------------------------------------------------------


@dataclass
class Watched:
    """A native decoder that remembers the sizes of its blocks."""

    native: NativeDecoder
    sizes: list[int] = field(default_factory=list)

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        self.sizes.append(len(values))
        return self.native(values)

    def take_unfit(self) -> dict[str, int]:
        return {}

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> np.ndarray | None:
        return self.native.find_suspects(values, refusal)


def test_a_block_over_the_limit_is_halved(monkeypatch):
    values = block(SIMPLE, simple(100))
    monkeypatch.setattr(step, "BLOCK_BYTES_MAX", values.nbytes // 3)
    watched = Watched(NativeDecoder(SIMPLE))
    out = decode(values, watched, SingleDecoder(SIMPLE))
    assert watched.sizes == [25, 25, 25, 25]
    assert out.rows.to_pylist() == simple(100)
    assert out.positions.to_pylist() == list(range(100))


def test_values_over_the_limit_one_by_one_are_decoded_singly(monkeypatch):
    monkeypatch.setattr(step, "BLOCK_BYTES_MAX", 1)
    watched = Watched(NativeDecoder(SIMPLE))
    assert decode(block(SIMPLE, simple(40)), watched, SingleDecoder(SIMPLE)).rows.to_pylist() == simple(40)
    assert watched.sizes == []


def test_of_a_refused_block_what_looks_sound_is_decoded_at_once():
    values = block(SIMPLE, simple(128)).to_pylist()
    watched = Watched(NativeDecoder(SIMPLE))
    decode(pa.array(values), watched, SingleDecoder(SIMPLE))
    assert watched.sizes == [128]
    damaged = {
        3: (values[3][:-1], "the value ends before the record does"),
        64: (values[64].replace(b"name", b"na\xffe"), "field 'name': text that is not UTF-8"),
        100: (values[100] + b"!", "1 surplus bytes after the record"),
    }
    for at, (value, _) in damaged.items():
        values[at] = value
    watched.sizes.clear()
    out = decode(pa.array(values), watched, SingleDecoder(SIMPLE))
    assert watched.sizes == [128, 125]
    assert list(out.failures) == list(damaged)
    assert all(why in out.failures[at] for at, (_, why) in damaged.items())
    assert out.positions.to_pylist() == [i for i in range(128) if i not in damaged]
    assert out.rows.to_pylist() == [row for i, row in enumerate(simple(128)) if i not in damaged]


@pytest.mark.parametrize("hint", [[], [0, 5, 127], list(range(128)), [99, 101], None], ids=str)
def test_a_wrong_hint_costs_no_record(monkeypatch, hint):
    """Nobody suspected, the sound suspected, all, the culprit not, and no hint: the same records fail alone."""
    mask = None if hint is None else np.isin(np.arange(128), hint)
    monkeypatch.setattr(NativeDecoder, "find_suspects", lambda _, part, __: mask if len(part) == 128 else None)
    values = block(SIMPLE, simple(128)).to_pylist()
    values[100] += b"!"
    out = decode(pa.array(values), NativeDecoder(SIMPLE), SingleDecoder(SIMPLE))
    assert out.failures == {100: "1 surplus bytes after the record"}
    assert out.positions.to_pylist() == [i for i in range(128) if i != 100]
    assert out.rows.to_pylist() == [row for i, row in enumerate(simple(128)) if i != 100]


def test_a_slice_decodes_as_its_copy():
    values = block(SIMPLE, simple(100))
    native, singly = NativeDecoder(SIMPLE), SingleDecoder(SIMPLE)
    for start, count in ((0, 100), (1, 99), (50, 30), (99, 1), (70, 5), (100, 0)):
        out = decode(values.slice(start, count), native, singly)
        assert out.rows.to_pylist() == simple(100)[start : start + count]
        assert out.positions.to_pylist() == list(range(count))


def test_a_value_of_the_header_alone_fails_alone():
    values = [*block(SIMPLE, simple(3)).to_pylist(), HEAD]
    out = decode(pa.array(values), NativeDecoder(SIMPLE), SingleDecoder(SIMPLE))
    assert out.rows.to_pylist() == simple(3)
    assert list(out.failures) == [3]


def test_no_row_can_forge_its_neighbours():
    """One value that holds two records, and one that holds none: the container would read them as two sound ones."""
    values = block(SIMPLE, simple(40)).to_pylist()
    values[10], values[11] = values[10] + values[11], b""
    out = decode(pa.array(values), NativeDecoder(SIMPLE), SingleDecoder(SIMPLE))
    assert sorted(out.failures) == [10, 11]


# --- values that a type cannot hold -----------------------------------------------------------------------------


def logical(kind: str, base: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


MILLIS, MICROS, DATE = logical("timestamp-millis", "long"), logical("timestamp-micros", "long"), logical("date", "int")
MONEY = logical("decimal", "bytes", precision=4, scale=2)
TOO_MUCH = "a decimal of more than 4 digits"


def raw(kind: Any) -> Any:
    """The type without its meaning: how a producer without scruples writes it."""
    return json.loads(json.dumps(kind), object_hook=lambda part: {k: v for k, v in part.items() if k != "logicalType"})


@pytest.mark.parametrize(
    ("kind", "first", "last", "below", "above", "reason"),
    [
        (MILLIS, -62_135_596_800_000, 253_402_300_799_999, -62_135_596_800_001, 253_402_300_800_000, NOT_A_TIME),
        (MICROS, -62_135_596_800_000_000, 253_402_300_799_999_999, -62_135_596_800_000_001, 253_402_300_800_000_000,
         NOT_A_TIME),
        (MILLIS, 0, 1, -(2**63), 2**63 - 1, NOT_A_TIME),
        (DATE, -719_162, 2_932_896, -719_163, 2_932_897, NOT_A_TIME),
        (DATE, 0, 1, -(2**31), 2**31 - 1, NOT_A_TIME),
        (MONEY, b"\xd8\xf1", b"\x27\x0f", b"\xd8\xf0", b"\x27\x10", TOO_MUCH),
        (MONEY, b"\0", b"\0" * 20 + b"\1", b"\x80" + b"\0" * 15, b"\x7f" * 16, TOO_MUCH),
        (MONEY, b"\xff", b"\0", b"\xff\x00\x00", b"\x7f" * 20, TOO_MUCH),
    ],
    ids=["millis", "micros", "far millis", "date", "far date", "decimal", "16 bytes of decimal", "20 bytes of decimal"],
)  # fmt: skip
@pytest.mark.parametrize("around", ["plain", "nullable", "array", "map", "record", "nullable record", "union"])
def test_a_value_beyond_its_type_fails_alone_in_both_decoders(kind, first, last, below, above, reason, around):
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": kind}]}
    shapes = {
        "plain": (kind, lambda v: v),
        "nullable": (["null", kind], lambda v: v),
        "array": ({"type": "array", "items": kind}, lambda v: [v, v]),
        "map": ({"type": "map", "values": kind}, lambda v: {"k": v}),
        "record": (inner, lambda v: {"x": v}),
        "nullable record": (["null", inner], lambda v: {"x": v}),
        "union": (["null", "boolean", kind], lambda v: v),
    }
    schema, wrap = shapes[around]
    record = of(schema)
    held = [first, last] * 20
    held[5], held[30] = below, above
    values = block(of(raw(schema)), [{"a": wrap(value), "b": i} for i, value in enumerate(held)])
    singly = SingleDecoder(record)
    assert is_native(record)
    native = NativeDecoder(record)
    for out in (decode(values, native, singly), singly(values)):
        assert out.failures == {5: reason, 30: reason}
        assert out.rows["b"].to_pylist() == [i for i in range(40) if i not in (5, 30)]
        assert out.rows.equals(singly(values).rows)


def test_of_a_key_that_a_map_holds_twice_the_last_value_stays():
    record = parsed(
        ("m", {"type": "map", "values": "int"}), ("n", {"type": "array", "items": {"type": "map", "values": MICROS}})
    )
    sound = block(record, [{"m": {}, "n": []}, {"m": {"a": 5}, "n": [{}, {}]}] * 10).to_pylist()
    twice = HEAD + b"\x06\x02a\x02\x02b\x04\x02a\x06\x00" + b"\x04\x04\x02x\x02\x02x\x04\x00\x02\x02x\x06\x00\x00"
    values = pa.array([*sound, twice, *sound])
    native = NativeDecoder(record)
    rows, bad = native(values)
    assert bad is None
    assert rows.equals(SingleDecoder(record)(values).rows)
    row = rows.to_pylist()[20]
    assert row["m"] == [("a", 3), ("b", 2)]
    assert [[(k, t.microsecond) for k, t in m] for m in row["n"]] == [[("x", 2)], [("x", 3)]]
    assert rows.to_pylist()[1] == {"m": [("a", 5)], "n": [[], []]}


def test_a_branch_of_a_union_keeps_its_place_in_both_decoders():
    kinds: list[Any] = ["null", "int", "long", "string", "float", "double"]
    record = parsed(("u", kinds))
    picks = [None, ("int", 1), ("long", 2), ("long", 2**40), ("string", "s"), ("float", 0.5), ("double", 0.25)]
    values = block(record, [{"u": pick} for pick in picks] * 3)
    rows = SingleDecoder(record)(values).rows
    assert NativeDecoder(record)(values)[0].equals(rows)
    members = [
        None if row["u"] is None else {k: v for k, v in row["u"].items() if v is not None} for row in rows.to_pylist()
    ]
    assert members[:7] == [
        None, {"member0": 1}, {"member1": 2}, {"member1": 2**40}, {"member2": "s"}, {"member3": 0.5}, {"member4": 0.25},
    ]  # fmt: skip


# --- which types are native -------------------------------------------------------------------------------------

RECORD = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}
OTHER = {"type": "record", "name": "Out", "fields": [{"name": "x", "type": "int"}]}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
UUID = logical("uuid", "fixed", name="U", size=16)
FIXED = {"type": "fixed", "name": "F", "size": 3}
NATIVE: list[Any] = [
    "null", "boolean", "int", "long", "float", "double", "bytes", "string", ENUM, FIXED, RECORD,
    {"type": "array", "items": "int"}, {"type": "array", "items": {"type": "array", "items": ["null", "string"]}},
    {"type": "array", "items": RECORD}, {"type": "array", "items": ["null", RECORD]},
    {"type": "map", "values": "long"}, {"type": "map", "values": {"type": "map", "values": RECORD}},
    ["null"], ["int"], ["null", "string"], ["string", "null"], ["null", RECORD], ["null", ENUM], ["null", FIXED],
    ["null", {"type": "array", "items": "int"}], ["null", {"type": "map", "values": ["null", "int"]}],
    ["int", "long"], ["float", "double"], ["null", "int", "string"], ["int", "string", "long", "boolean", "bytes"],
    ["null", "string", {"type": "array", "items": "int"}], ["null", {"type": "map", "values": "int"}, "int"],
    ["null", MILLIS, "string"], DATE, MILLIS, MICROS, logical("timestamp-nanos", "long"),
    logical("local-timestamp-millis", "long"), logical("local-timestamp-micros", "long"),
    logical("local-timestamp-nanos", "long"), logical("time-millis", "int"), logical("time-micros", "long"),
    logical("uuid", "string"), UUID, ["null", UUID],
    logical("duration", "fixed", name="D", size=12), MONEY, ["null", MONEY], ["null", "string", MONEY],
    logical("decimal", "bytes", precision=38, scale=38), logical("decimal", "bytes", precision=39, scale=2),
    logical("decimal", "bytes", precision=76), logical("decimal", "fixed", name="M", size=8, precision=18, scale=4),
    logical("decimal", "fixed", name="M", size=30, precision=60, scale=4), logical("decimal", "string"),
    logical("decimal", "bytes", precision=0), logical("no such thing", "long"),
]  # fmt: skip
FALLBACK: list[Any] = [
    [RECORD, OTHER], ["null", RECORD, OTHER], ["string", RECORD], ["string", ENUM], ["bytes", FIXED],
    {"type": "array", "items": [RECORD, OTHER]},
    logical("decimal", "bytes", precision=77), {"type": "record", "name": "Empty", "fields": []},
    {"type": "fixed", "name": "Nothing", "size": 0},
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "native"), [*((kind, True) for kind in NATIVE), *((kind, False) for kind in FALLBACK)], ids=json.dumps
)
def test_a_type_is_native_or_falls_back(kind, native):
    assert is_native(of(kind)) == native


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('"string"', "the root is string, not a record; wrap it in a record with one field"),
        ('["null", "string"]', "the root is union, not a record"),
        ('{"type": "array", "items": "int"}', "the root is array, not a record"),
        ('{"type": "record", "name": "R", "fields": []}', "none of its fields holds a value"),
        ('{"type": "record", "name": "R"', "not an Avro schema: its text is no JSON"),
        ("5", "not an Avro schema: it is a number, and no type"),
    ],
)
def test_a_root_that_cannot_become_rows_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(avro.UnsupportedSchema) as refused:
        avro.parse(text)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (["null", "R"], "record R contains itself; a table has no type for that"),
        ({"type": "map", "values": {"type": "array", "items": "R"}}, "record R contains itself"),
        ("null", "none of its fields holds a value"),
        ("Nowhere", "field 'a' is of type 'Nowhere', which is defined nowhere in the schema"),
        ({"type": "array"}, "field 'a' is of type array, without 'items'"),
        (5, "field 'a' is a number, and no type"),
        ([], "a union without branches"),
        ({"type": "enum", "name": "E", "symbols": []}, "enum 'E' has no symbols; give it one"),
        ({"type": "fixed", "name": "F", "size": -1}, "fixed 'F' has a negative size; make it positive"),
        ({"type": "array", "items": "null"}, "an array whose items take no bytes"),
        ({"type": "map", "values": {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}}, "no bytes"),
        (["null", {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}], "no bytes"),
    ],
    ids=json.dumps,
)
def test_a_field_that_cannot_become_a_column_is_refused_with_a_sentence(kind, sentence):
    with pytest.raises(avro.UnsupportedSchema) as refused:
        parsed(("a", kind), name="R")
    assert sentence in str(refused.value)


def test_where_all_values_of_a_block_are_damaged_none_is_left_for_the_native_decoder():
    record = of(["float", "null", "long", "double"])
    values = pa.array([HEAD + b"\x09"] * 40, pa.binary())
    decoded = decode(values, NativeDecoder(record), SingleDecoder(record))
    assert list(decoded.failures) == list(range(40))
    assert decoded.rows.num_rows == 0


@pytest.mark.parametrize("decimal", [{}, {"logicalType": "decimal", "precision": 5}])
def test_a_fixed_type_of_any_size_is_parsed_and_takes_no_memory(decimal: dict[str, Any]) -> None:
    record = of({"type": "fixed", "name": "Huge", "size": 2**31 - 1, **decimal})
    assert not is_native(record)
    assert SingleDecoder(record)(pa.array([HEAD + b"abc"], pa.binary())).failures == {
        0: "the value ends before the record does"
    }


@pytest.mark.parametrize("size", range(1, 40))
def test_a_fixed_decimal_has_as_many_digits_as_all_numbers_of_its_size_have(size: int) -> None:
    digits = len(str(2 ** (8 * size - 1))) - 1
    for precision, is_decimal in ((digits, True), (digits + 1, False)):
        if precision:
            kind = logical("decimal", "fixed", name="M", size=size, precision=precision)
            assert ("logicalType" in avro.parse(json.dumps(json.loads(of(kind).text))).fields[0]["type"]) == is_decimal


def test_a_decimal_of_any_precision_costs_what_its_value_has() -> None:
    record = of(logical("decimal", "bytes", precision=2**31 - 1))
    assert SingleDecoder(record)(pa.array([HEAD + b"\x02\x05\x02"], pa.binary())).rows.to_pylist() == [
        {"a": "5", "b": 1}
    ]


def test_fields_of_nothing_take_no_memory_in_each_item_of_an_array() -> None:
    nothing = [{"name": f"n{number}", "type": "null"} for number in range(5_000)]
    item = {"type": "record", "name": "Item", "fields": [{"name": "x", "type": "boolean"}, *nothing]}
    record = of({"type": "array", "items": item})
    tracemalloc.start()
    decoded = SingleDecoder(record)(pa.array([HEAD + b"\xa0\x9c\x01" + b"\x01" * 10_000 + b"\x00\x02"], pa.binary()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert decoded.rows["a"].to_pylist() == [[{"x": True}] * 10_000]
    assert most < 2**25, "5,000 fields of 10,000 items would take 2 GB"


@pytest.mark.parametrize("error", [MemoryError("no memory"), pa.ArrowMemoryError("malloc of size 64 failed")])
@pytest.mark.parametrize("place", ["a value", "its column"])
def test_a_process_without_memory_makes_no_dead_letters(monkeypatch, error, place):
    def fail(*_: object) -> Any:
        raise error

    class Row(dict[str, Any]):
        get = __getitem__ = __contains__ = fail

    decoder = SingleDecoder(SIMPLE)
    monkeypatch.setattr(decoder, "_read", fail if place == "a value" else lambda _: Row())
    with pytest.raises(MemoryError):
        decoder(block(SIMPLE, simple(3)))
