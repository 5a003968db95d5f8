"""Rows of Protobuf values: presence, kinds of fields, and what becomes of values that no sound producer writes."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import struct_pb2

from headrace.writer.decoding.block import BlockRefused, PartRefused
from headrace.writer.formats.formats import FORMATS
from headrace.writer.protobuf import block_decoder
from headrace.writer.protobuf.json_values import NoJson, write_json
from tests.support.protobuf_values import MessageType, field, record_of

PROTO2 = 'syntax = "proto2";'
EDITION = 'edition = "2023";'
NO_MESSAGE = "it is no message shop.Order: it is cut, a field has another type on the wire, or a text is not UTF-8"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def test_an_unset_field_is_null_with_a_presence_and_else_the_default() -> None:
    order = MessageType("""enum E { A = 0; B = 1; } message Order {
        int32 a = 1; optional int32 b = 2; string c = 3; E d = 4; repeated int32 e = 5; map<string, int32> f = 6;
        Order g = 7; google.protobuf.Timestamp h = 8; google.protobuf.Int32Value i = 9; bytes j = 10; bool k = 11; }""")
    assert order.native
    assert order.rows(b"") == [
        {
            "a": 0, "b": None, "c": "", "d": "A", "e": [], "f": [], "g": None, "h": None, "i": None, "j": b"",
            "k": False,
        }
    ]  # fmt: skip
    assert order.rows(order.new(b=0, i={}))[0]["b"] == 0
    assert order.rows(order.new(i={"value": 0}))[0]["i"] == 0


@pytest.mark.parametrize("syntax", [PROTO2, EDITION])
def test_defaults_of_a_schema_do_not_fill_unset_fields(syntax: str) -> None:
    label = "optional " if syntax == PROTO2 else ""
    order = MessageType(
        f"message Order {{ {label}int32 a = 1 [default = 5]; {label}string b = 2 [default = 'x']; }}", syntax=syntax
    )
    assert order.native
    assert order.rows(b"") == [{"a": None, "b": None}]


def test_a_field_of_an_edition_may_have_no_presence() -> None:
    order = MessageType(
        "message Order { int32 a = 1 [features.field_presence = IMPLICIT]; int32 b = 2; }", syntax=EDITION
    )
    assert order.native
    assert order.rows(b"") == [{"a": 0, "b": None}]


def test_a_required_field_that_is_missing_is_null() -> None:
    order = MessageType("message Order { required int32 a = 1; optional int32 b = 2; }", syntax=PROTO2)
    assert order.rows(order.new(b=1).SerializePartialToString()) == [{"a": None, "b": 1}]


def test_unsigned_numbers_keep_their_values() -> None:
    order = MessageType("""message Order { uint32 a = 1; fixed32 b = 2; uint64 c = 3; fixed64 d = 4;
        repeated uint64 e = 5; google.protobuf.UInt64Value f = 6; map<uint64, fixed64> g = 7; }""")
    most = 2**64 - 1
    made = order.new(a=2**32 - 1, b=2**32 - 1, c=most, d=most, e=[most, 0], f={"value": most}, g={most: most})
    assert order.rows(made) == [
        {
            "a": 2**32 - 1, "b": 2**32 - 1, "c": Decimal(most), "d": Decimal(most), "e": [Decimal(most), Decimal(0)],
            "f": Decimal(most), "g": [(str(most), Decimal(most))],
        }
    ]  # fmt: skip


@pytest.mark.parametrize("syntax", [PROTO2, 'syntax = "proto3";'])
def test_an_enum_is_its_name_or_the_digits_of_a_number_without_one(syntax: str) -> None:
    label = "optional " if syntax == PROTO2 else ""
    order = MessageType(
        f"""enum E {{ option allow_alias = true; A = 0; B = 1; ALSO_B = 1; MINUS = -3; }}
        message Order {{ {label}E e = 1; repeated E es = 2; map<string, E> m = 3; }}""",
        syntax=syntax,
    )
    assert order.native
    entry = field(1, 2, b"k") + field(2, 0, 77)
    wire = field(1, 0, 77) + field(2, 2, b"\x01\x4d") + field(2, 0, 2**64 - 3) + field(3, 2, entry)
    assert order.rows(wire, order.new(e=1)) == [
        {"e": "77", "es": ["B", "77", "MINUS"], "m": [("k", "77")]},
        {"e": "B", "es": [], "m": []},
    ]


def test_times_are_microseconds_and_finer_ones_are_floored() -> None:
    order = MessageType("""message Order { google.protobuf.Timestamp at = 1; repeated google.protobuf.Timestamp ats = 2;
        google.protobuf.Duration took = 3; }""")
    made = order.new()
    made.at.FromJsonString("1969-12-31T23:59:59.999999999Z")
    made.ats.add().FromJsonString("0001-01-01T00:00:00Z")
    made.ats.add().FromJsonString("9999-12-31T23:59:59.999999Z")
    made.took.FromJsonString("-1.000001999s")
    row = order.rows(made)[0]
    assert row["at"] == datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    assert [at.year for at in row["ats"]] == [1, 9999]
    assert row["took"] == -1_000_001


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(253_402_300_800, 0), (-62_135_596_801, 0), (0, -1), (0, 10**9), (2**63 - 1, 0), (-(2**63), 0)],
)
@pytest.mark.parametrize("place", ["at", "ats[0]", "in.at", "ins[0].at", "m.*"])
def test_a_timestamp_that_no_table_holds_fails_with_its_place(seconds: int, nanos: int, place: str) -> None:
    order = MessageType("""message In { google.protobuf.Timestamp at = 1; } message Order {
        google.protobuf.Timestamp at = 1; repeated google.protobuf.Timestamp ats = 2; In in = 3; repeated In ins = 4;
        map<string, google.protobuf.Timestamp> m = 5; }""")
    made = order.new()
    time = {
        "at": lambda: made.at,
        "ats[0]": made.ats.add,
        "in.at": lambda: getattr(made, "in").at,
        "ins[0].at": lambda: made.ins.add().at,
        "m.*": lambda: made.m["secret"],
    }[place]()
    time.seconds = seconds
    time.nanos = nanos
    assert order.reason(made) == (
        f"{place}: expected a Timestamp of the years 1 to 9999, with 0 to 999,999,999 nanoseconds"
    )


@pytest.mark.parametrize(("seconds", "nanos"), [(315_576_000_001, 0), (1, -1), (-1, 1), (0, 10**9), (0, -(10**9))])
def test_a_duration_that_protobuf_does_not_allow_fails(seconds: int, nanos: int) -> None:
    order = MessageType("message Order { google.protobuf.Duration took = 1; }")
    made = order.new()
    made.took.seconds = seconds
    made.took.nanos = nanos
    assert order.reason(made) == "took: expected a Duration of 10,000 years at most, of one sign"


def test_of_two_members_of_a_oneof_the_last_counts() -> None:
    order = MessageType("""message In { oneof pick { int32 a = 1; google.protobuf.Empty b = 2; } } message Order {
        oneof pay { string card = 1; bool cash = 2; google.protobuf.Empty gift = 3; } repeated In ins = 4; }""")
    both = field(1, 2, b"visa") + field(2, 0, 1)
    assert order.rows(both, field(2, 0, 1) + field(1, 2, b"visa"), both + field(3, 2, b"")) == [
        {"card": None, "cash": True, "ins": []},
        {"card": "visa", "cash": None, "ins": []},
        {"card": None, "cash": None, "ins": []},
    ]
    inner = field(4, 2, field(1, 0, 5)) + field(4, 2, field(1, 0, 5) + field(2, 2, b""))
    assert order.rows(inner)[0]["ins"] == [{"a": 5}, {"a": None}]


def test_of_a_key_that_a_map_has_twice_the_last_value_counts() -> None:
    order = MessageType("message Order { map<string, int32> m = 1; }")
    entries = [field(1, 2, field(1, 2, key) + field(2, 0, value)) for key, value in ((b"a", 1), (b"b", 2), (b"a", 3))]
    assert order.rows(b"".join(entries)) == [{"m": [("a", 3), ("b", 2)]}]


def test_entries_of_a_map_may_lack_their_key_or_value() -> None:
    order = MessageType("""message In { int32 a = 1; optional int32 b = 2; } message Order {
        map<string, int32> m = 1; map<bool, In> n = 2; map<string, google.protobuf.Timestamp> o = 3;
        map<string, google.protobuf.Int64Value> p = 4; map<string, google.protobuf.Value> q = 5; }""")
    empty = b"".join(field(number, 2, b"") for number in range(1, 6))
    assert order.rows(empty) == [
        {
            "m": [("", 0)], "n": [("false", {"a": 0, "b": None})], "o": [("", EPOCH)], "p": [("", 0)],
            "q": [("", "null")],
        }
    ]  # fmt: skip


def test_an_entry_of_a_map_may_have_other_fields() -> None:
    order = MessageType("message Order { map<string, int32> m = 1; }")
    assert order.rows(field(1, 2, field(1, 2, b"a") + field(2, 0, 1) + field(3, 0, 5))) == [{"m": [("a", 1)]}]


def test_keys_of_maps_are_text() -> None:
    order = MessageType(
        "message Order { map<bool, int32> a = 1; map<sint64, int32> b = 2; map<fixed32, int32> c = 3; }"
    )
    made = order.new(a={True: 1}, b={-(2**63): 2}, c={2**32 - 1: 3})
    assert order.rows(made) == [{"a": [("true", 1)], "b": [(str(-(2**63)), 2)], "c": [(str(2**32 - 1), 3)]}]


def test_a_message_that_stands_twice_is_merged() -> None:
    order = MessageType("message In { int32 a = 1; repeated int32 b = 2; } message Order { In in = 1; }")
    wire = field(1, 2, field(1, 0, 1) + field(2, 0, 5)) + field(1, 2, field(2, 0, 6))
    assert order.rows(wire) == [{"in": {"a": 1, "b": [5, 6]}}]


def test_a_message_inside_itself_is_its_own_bytes() -> None:
    order = MessageType("message Order { int32 a = 1; Order next = 2; repeated Order all = 3; }")
    inner = field(1, 0, 7) + field(99, 0, 1)
    assert order.rows(field(2, 2, inner) + field(3, 2, b"")) == [{"a": 0, "next": inner, "all": [b""]}]
    assert order.reason(field(2, 2, b"\x08")) == "next: it is no message shop.Order"
    assert order.reason(field(3, 2, b"") + field(3, 2, b"\x0f")) == "all[1]: it is no message shop.Order"


def test_json_messages_are_json_texts() -> None:
    order = MessageType("""message Order { google.protobuf.Struct s = 1; google.protobuf.Value v = 2;
        repeated google.protobuf.ListValue l = 3; oneof o { google.protobuf.Value w = 4; int32 x = 5; } }""")
    made = order.new()
    made.s.update({"b": 1, "a": [True, None, 1.5, "Zürich", {}]})
    made.v.null_value = struct_pb2.NULL_VALUE
    made.l.add()
    made.w.number_value = 1e300
    assert order.rows(made, b"") == [
        {"s": '{"a":[true,null,1.5,"Zürich",{}],"b":1}', "v": "null", "l": ["[]"], "w": "1e+300", "x": None},
        {"s": None, "v": None, "l": [], "w": None, "x": None},
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_has_not_fails_with_its_place(number: float) -> None:
    order = MessageType("message Order { google.protobuf.Value v = 1; }")
    made = order.new()
    made.v.number_value = number
    assert order.reason(made) == "v: NaN and Infinity are no JSON"
    assert order.reason(field(1, 2, b"\xff")) == "v: its bytes are no google.protobuf.Value"


def test_json_that_is_nested_without_end_fails() -> None:
    order = MessageType("message Order { google.protobuf.Value v = 1; }")
    value = b""
    for _ in range(200):
        value = field(6, 2, field(1, 2, value))
    assert order.reason(field(1, 2, value)) == "v: its bytes are no google.protobuf.Value"
    with pytest.raises(NoJson):
        write_json("google.protobuf.Value", value)


@pytest.mark.parametrize(
    "value",
    [
        b"\x0a",
        b"\x0a\x05ab",
        b"\x08",
        b"\x08\xff",
        b"\x00\x00",
        field(2, 2, b"\xff\xfe"),
        b"\x0b",
        b"\x0b" * 100_000,
        b"\x0c",
        b"\x0f",
        b"\xff" * 30,
        field(1, 2, b"\x80"),
    ],
    ids=[
        "tag",
        "cut",
        "varint",
        "long varint",
        "field 0",
        "UTF-8",
        "group",
        "groups",
        "end",
        "type 7",
        "bits",
        "packed",
    ],
)
def test_what_is_no_message_fails(value: bytes) -> None:
    order = MessageType("message Order { repeated int32 a = 1; string b = 2; }")
    assert order.reason(value) == NO_MESSAGE


def test_unknown_fields_are_skipped() -> None:
    order = MessageType("message Order { int32 a = 1; extensions 100 to 200; }".replace("extensions 100 to 200;", ""))
    others = (
        field(2, 2, b"x") + field(100, 0, 5) + field(3, 5, b"1234") + field(4, 1, b"12345678") + b"\x2b\x08\x01\x2c"
    )
    assert order.rows(others + field(1, 0, 7)) == [{"a": 7}]


def test_a_field_of_another_type_on_the_wire_is_skipped_as_unknown() -> None:
    order = MessageType("message Order { int32 a = 1; }")
    assert order.rows(field(1, 2, b"abc")) == [{"a": 0}]


@pytest.mark.parametrize(
    ("body", "syntax"),
    [
        (
            """message Order { optional group G = 1 { optional int32 a = 1;
            repeated group H = 2 { optional Order o = 1; } } }""",
            PROTO2,
        ),
        (
            """message G { int32 a = 1; repeated H h = 2 [features.message_encoding = DELIMITED]; }
            message H { Order o = 1; } message Order { G g = 1 [features.message_encoding = DELIMITED]; }""",
            EDITION,
        ),
    ],
)
def test_groups_are_read_one_by_one(body: str, syntax: str) -> None:
    order = MessageType(body, syntax=syntax)
    assert not order.native
    made = order.new()
    made.g.a = 5
    made.g.h.add().o.g.a = 6
    assert order.rows(made) == [{"g": {"a": 5, "h": [{"o": b"\x0b\x08\x06\x0c"}]}}]


def test_a_group_inside_itself_is_bytes() -> None:
    order = MessageType(
        "message Order { int32 a = 1; Order next = 2 [features.message_encoding = DELIMITED]; }", syntax=EDITION
    )
    assert not order.native
    assert order.rows(order.new(a=1, next={"a": 2})) == [{"a": 1, "next": b"\x08\x02"}]


def test_a_text_of_proto2_that_is_not_utf8_fails() -> None:
    order = MessageType("message Order { optional string a = 1; }", syntax=PROTO2)
    assert order.reason(field(1, 2, b"\xff")) == NO_MESSAGE
    order = MessageType(
        "message Order { optional string a = 1; optional group G = 2 { optional int32 b = 1; } }", syntax=PROTO2
    )
    assert order.reason(field(1, 2, b"\xff")) in (NO_MESSAGE, "a: the text is not UTF-8")


def test_names_of_fields_do_not_meet_names_that_headrace_makes() -> None:
    order = MessageType("""message M0 { int32 W1 = 1; } message Order { optional int32 _a = 1; optional int32 a = 2;
        M0 M1 = 3; M0 Time = 4; oneof oneof0 { int32 seconds = 5; int32 nanos = 6; } map<string, int32> key = 7;
        map<string, M0> value = 8; google.protobuf.Int32Value E2 = 9; }""")
    assert order.native
    made = order.new(
        _a=1, a=2, M1={"W1": 3}, Time={"W1": 4}, nanos=6, key={"k": 7}, value={"v": {"W1": 8}}, E2={"value": 9}
    )
    assert order.rows(made) == [
        {
            "_a": 1, "a": 2, "M1": {"W1": 3}, "Time": {"W1": 4}, "seconds": None, "nanos": 6, "key": [("k", 7)],
            "value": [("v", {"W1": 8})], "E2": 9,
        }
    ]  # fmt: skip


def test_a_header_is_skipped_in_both_ways() -> None:
    order = MessageType("message Order { int32 a = 1; }")
    values = pa.array([b"\x00\x00\x00\x00\x07\x00" + field(1, 0, number) for number in range(40)], pa.binary())
    decoder = order.open(6)
    assert decoder.decode(values).rows.column("a").to_pylist() == list(range(40))
    assert decoder.single(values).rows.column("a").to_pylist() == list(range(40))


def test_many_suspects_cost_no_second_look() -> None:
    """Columns name the rows that are to be judged, and the others are taken as they are."""
    order = MessageType("message Order { google.protobuf.Timestamp at = 1; }")
    bad = field(1, 2, field(2, 0, 10**9))
    values = pa.array([bad if number % 3 == 0 else b"" for number in range(300)], pa.binary())
    decoder = order.open()
    assert decoder.block is not None
    with pytest.raises(PartRefused) as refusal:
        decoder.block(values)
    assert refusal.value.rows.num_rows == 200
    assert len(decoder.decode(values).failures) == 100


def test_a_panic_of_rust_is_a_refusal() -> None:
    class PanicException(BaseException):
        pass

    def panic() -> Any:
        raise PanicException("secret")

    with pytest.raises(BlockRefused, match=r"^ptars panicked, which is a bug of it"):
        block_decoder._call_ptars(panic)

    def interrupt() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block_decoder._call_ptars(interrupt)


def test_a_varint_that_ends_with_the_value_makes_ptars_panic_and_fails_alone() -> None:
    order = MessageType("message Order { repeated int32 a = 1; }")
    assert order.reason(field(1, 2, b"\x01\x02")[:-1] + b"\xff") == NO_MESSAGE


def test_a_value_that_unfolds_to_millions_of_parts_is_not_judged() -> None:
    members = " ".join(f"optional int32 f{number} = {number};" for number in range(1, 401))
    order = MessageType(
        f"message In {{ {members} }} message Order {{ repeated In ins = 1; google.protobuf.Timestamp at = 2; }}"
    )
    decoder = order.open()
    late = field(2, 2, field(2, 0, 10**9))
    block = decoder.decode(pa.array([field(1, 2, b"") * 20_000 + late], pa.binary()))
    assert block.failures == {0: "it unfolds to more than 2,000,000 parts"}


def test_a_schema_that_the_probe_distrusts_is_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_of("message Order { repeated int32 a = 1; }")
    assert FORMATS["protobuf"].is_native(record)
    monkeypatch.setattr(block_decoder, "make_columns", lambda *_: [pa.nulls(24, pa.list_(pa.int32()))])
    assert not FORMATS["protobuf"].is_native(record)
