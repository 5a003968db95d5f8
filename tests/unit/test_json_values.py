"""JSON values: types, reasons, and what is no JSON object; each alone, and between others."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import DecodedBlock
from headrace.writer.formats.formats import FORMATS
from headrace.writer.json.block_decoder import JsonDecoder
from headrace.writer.json.declared import declared_record

LONG_DECIMAL = Decimal("1234567890123456789012345678.0123456789")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def open_decoder(declared: dict[str, Any], undeclared: str = "rest", misfit: str = "dead_letter") -> JsonDecoder:
    record = avro.parse(declared_record(declared, undeclared, misfit))  # type: ignore[arg-type]
    decoder = FORMATS["json"].open_decoder(record, native=True, header_bytes=0, scratch="")
    assert isinstance(decoder, JsonDecoder)
    return decoder


def decode_between(value: bytes, declared: dict[str, Any], **rules: str) -> DecodedBlock:
    """Decode a value between 40 empty objects, and return what becomes of it alone, which is the same."""
    decoder = open_decoder(declared, **rules)
    block = decoder.decode(pa.array([b"{}"] * 20 + [value] + [b"{}"] * 20, pa.binary()))
    alone = decoder.single(pa.array([value], pa.binary()))
    assert block.failures.keys() <= {20}
    assert alone.failures.get(0) == block.failures.get(20)
    assert dict(alone.unfit) == dict(block.unfit)
    if not alone.failures:
        assert block.rows.slice(20, 1).equals(alone.rows)
    return alone


def read(value: str, declared: dict[str, Any], **rules: str) -> dict[str, Any]:
    decoded = decode_between(value.encode(), declared, **rules)
    assert decoded.failures == {}
    row: dict[str, Any] = decoded.rows.to_pylist(maps_as_pydicts="strict")[0]
    return row


def reason(value: str | bytes, declared: dict[str, Any], **rules: str) -> str:
    text = value.encode() if isinstance(value, str) else value
    return decode_between(text, declared, **rules).failures[0]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", '"a\\u00e9\\ud83d\\ude00"', "aé😀"),
        ("boolean", "true", True),
        ("int", "-2147483648", -(2**31)),
        ("long", "9223372036854775807", 2**63 - 1),
        ("long", "1.0", 1),
        ("long", "1e3", 1000),
        ("long", "9223372036854775807.0", 2**63 - 1),
        ("long", "-0", 0),
        ("long", "0e500", 0),
        ("long", "-0.0e999999999", 0),
        ("float", "16777217.0000000001", 16777218.0),
        ("double", "0.1", 0.1),
        ("double", "5", 5.0),
        ("binary", '"QUJD"', b"ABC"),
        ("decimal(10, 2)", "1.10", Decimal("1.10")),
        ("decimal(10, 2)", "1.1000", Decimal("1.10")),
        ("decimal(10, 2)", '"1.10"', Decimal("1.10")),
        ("decimal(38, 10)", "1234567890123456789012345678.0123456789", LONG_DECIMAL),
        ("date", '"2026-11-20"', date(2026, 11, 20)),
        ("timestamp", '"2026-11-20T12:00:00Z"', NOON),
        ("timestamp", '"2026-11-20T13:00:00.1234567+01:00"', NOON.replace(microsecond=123456)),
        ("timestamp", '"2026-11-20 12:00"', NOON),
        ("timestamp", '"2026-11-20"', NOON.replace(hour=0)),
        ("timestamp(s)", "1795176000.25", NOON.replace(microsecond=250000)),
        ("timestamp(ms)", "1795176000000", NOON),
        ("timestamp(ms)", "1795176000000.9999", NOON.replace(microsecond=999)),
        ("timestamp(us)", "1795176000000001", NOON.replace(microsecond=1)),
        ("timestamp(ns)", "1795176000000001999", NOON.replace(microsecond=1)),
        ("timestamp(ns)", "-1", datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)),
        ("json", '[1.50, {"a": 1e5}]', '[1.50, {"a": 1e5}]'),
        ("json", '"x"', '"x"'),
        (["long"], "[1, null]", [1, None]),
        ({"*": "double"}, '{"a": 1, "b": null}', {"a": 1.0, "b": None}),
        ({"*": {"n": "int"}}, '{"a": {"n": 1}}', {"a": {"n": 1, "rest": None}}),
        ({"n": "int"}, '{"n": 1, "m": 1.00}', {"n": 1, "rest": '{"m":1.00}'}),
        ([{"n": "int"}], '[{"m": []}, null]', [{"n": None, "rest": '{"m":[]}'}, None]),
    ],
)  # fmt: skip
def test_a_value_of_its_type_is_read(kind: Any, text: str, expected: Any) -> None:
    assert read(f'{{"v": {text}}}', {"v": kind})["v"] == expected
    assert read('{"v": null}', {"v": kind})["v"] is None


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", "5", "$.v: expected text, not a number"),
        ("boolean", "1", "$.v: expected true or false, not a number"),
        ("int", "2147483648", "$.v: expected an integer of 32 bits, not a larger one"),
        ("long", '"5"', "$.v: expected an integer, not text"),
        ("long", "1.5", "$.v: expected an integer, not a number with a fraction"),
        ("long", "1e999999999", "$.v: expected an integer of 64 bits, not a larger one"),
        ("float", "3.5e38", "$.v: expected a number of 32 bits, not a larger one"),
        ("double", "1e400", "$.v: expected a number of 64 bits, not a larger one"),
        ("binary", '"A!"', "$.v: expected text in base64, not another text"),
        ("decimal(4, 2)", "100", "$.v: expected a number that fits into decimal128(4, 2), not another one"),
        ("decimal(4, 2)", "1.234", "$.v: expected a number that fits into decimal128(4, 2), not another one"),
        ("date", '"2026-02-30"', "$.v: expected an ISO date, not another text"),
        ("timestamp", "5", "$.v: expected an ISO time, not a number"),
        ("timestamp", '"0000-01-01T00:00:00Z"', "$.v: expected an ISO time, not another text"),
        ("timestamp(ms)", '"5"', "$.v: expected a time as a number, not text"),
        ("timestamp(s)", "1e30", "$.v: expected a time in the years 1 to 9999, not another one"),
        (["long"], "[1, true]", "$.v[1]: expected an integer, not true or false"),
        (["long"], '"x"', "$.v: expected an array, not text"),
        ({"*": "long"}, '{"ann@example.org": "x"}', "$.v.*: expected an integer, not text"),
        ({"*": "long"}, '{"ann@example.org": 1, "ann@example.org": 2}', "$.v.*: the member stands there twice"),
        ({"n": "int"}, "[]", "$.v: expected an object, not an array"),
        ([{"a b": {"n": "int"}}], '[{}, {"a b": {"n": "x"}}]', "$.v[1]['a b'].n: expected an integer, not text"),
        ({"n": "int"}, '{"m": 1, "m": 2}', "$.v.m: the member stands there twice"),
    ],
)
def test_a_reason_names_the_place_and_the_kinds(kind: Any, text: str, expected: str) -> None:
    assert reason(f'{{"v": {text}}}', {"v": kind}) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"", "$: the value is empty"),
        (b"[1]", "$: expected an object, not an array"),
        (b"null", "$: expected an object, not null"),
        (b'{"v": 1', "it is no JSON: Input data was truncated"),
        (b"{}{}", "it is no JSON: JSON is malformed: trailing characters"),
        (b'{"v": 1},"v":{"v": 2}', "it is no JSON: JSON is malformed: trailing characters"),
        (b'{"v": 1},"x": 2', "it is no JSON: JSON is malformed: trailing characters"),
        (b'{"v": NaN}', "it is no JSON: JSON is malformed: invalid character"),
        (b'{"v": 1, "v": 2}', "$.v: the member stands there twice"),
        (b'{"w": 1, "\\u0077": 2}', "$.w: the member stands there twice"),
        (b'{"w": "\xff"}', "$: it is not UTF-8"),
        (b'{"w": ' + b"[" * 501 + b"]" * 501 + b"}", "$: it has too many levels inside one another"),
    ],
)
def test_what_is_no_object_has_a_reason(value: bytes, expected: str) -> None:
    assert reason(value, {"v": "long"}) == expected


def test_minus_zero_keeps_its_sign_in_a_map() -> None:
    for text in ('{"m": {"a": -0}}', '{"m": {"a": -0, "b": 1}}', '{"m": {"a": -0.0}}'):
        values = pa.array([text.encode()] * 40, pa.binary())
        for decode in (open_decoder({"m": {"*": "double"}}).decode, open_decoder({"m": {"*": "double"}}).single):
            row = decode(values).rows.to_pylist(maps_as_pydicts="strict")[0]
            assert str(row["m"]["a"]) == "-0.0"


def test_a_long_name_is_cut_in_a_reason() -> None:
    name = "x" * 100_000
    for value in (f'{{"{name}": 1}}', f'{{"{name}": 1, "{name}": 2}}'):
        assert reason(value, {"v": "long"}, undeclared="dead_letter").startswith(f"$['{'x' * 80}…']: ")


@pytest.mark.parametrize("value", ['{"v": {"m": 1, "m": 2}}', '{"v": {"w": 1, "w": 2}}', '{"n": [{"m": 1, "m": 2}]}'])
def test_a_name_that_stands_twice_is_no_misfit(value: str) -> None:
    declared = {"v": {"m": "int"}, "n": [{"m": "int"}]}
    assert reason(value, declared, misfit="null").endswith(": the member stands there twice")


def test_rest_has_what_was_sent_in_the_order_of_the_names() -> None:
    value = '{"v": 1, "z": 1.00, "a": 123456789012345678901234567890, "é\\"": "\\u0041", "n": null}'
    assert read(value, {"v": "long"})["rest"] == (
        '{"a":123456789012345678901234567890,"n":null,"z":1.00,"é\\"":"\\u0041"}'
    )


def test_members_are_dropped_and_counted_at_every_level() -> None:
    decoded = decode_between(
        b'{"v": {"a": 1, "b": 2}, "w": [{"c": 3}, {}], "x": 4}', {"v": {"a": "long"}, "w": [{"d": "long"}]},
        undeclared="drop",
    )  # fmt: skip
    assert dict(decoded.unfit) == {"dropped": 3}
    assert "rest" not in decoded.rows.column_names


def test_an_undeclared_member_refuses_the_value_at_every_level() -> None:
    declared = {"v": {"a": "long"}, "w": [{"d": "long"}]}
    assert reason('{"v": {"b": 1}}', declared, undeclared="dead_letter") == "$.v.b: no column is declared for it"
    assert reason('{"w": [{}, {"e": 1}]}', declared, undeclared="dead_letter", misfit="null") == (
        "$.w[1].e: no column is declared for it"
    )


def test_a_member_that_does_not_fit_is_null_and_goes_to_rest() -> None:
    declared = {"v": {"a": "long"}, "w": ["long"], "m": {"*": "long"}, "t": "timestamp"}
    value = '{"v": {"a": "x"}, "w": [1, "y"], "m": {"k": 1.5}, "t": "soon", "new": 1}'
    decoded = decode_between(value.encode(), declared, misfit="null")
    assert decoded.rows.to_pylist() == [
        {
            "v": {"a": None, "rest": '{"a":"x"}'}, "w": None, "m": None, "t": None,
            "rest": '{"m":{"k": 1.5},"new":1,"t":"soon","w":[1, "y"]}',
        }
    ]  # fmt: skip
    assert dict(decoded.unfit) == {"nulled": 4}


def test_a_member_inside_one_that_goes_to_rest_is_not_counted() -> None:
    declared = {"items": [{"n": "long"}], "user": {"m": {"n": "long"}, "k": "long"}}
    value = b'{"items": [{"n": "x"}, 5], "user": {"m": {"n": "x"}, "k": "x"}}'
    decoded = decode_between(value, declared, misfit="null")
    assert decoded.rows.column("rest").to_pylist() == ['{"items":[{"n": "x"}, 5]}']
    assert dict(decoded.unfit) == {"nulled": 3}
    dropped = decode_between(b'{"items": [{"u": 1}, 5]}', declared, misfit="null", undeclared="drop")
    assert dict(dropped.unfit) == {"nulled": 1}


def test_a_member_called_rest_keeps_its_name() -> None:
    assert read('{"rest": 5, "new": 1}', {"rest": "long"}) == {"rest": 5, "rest_": '{"new":1}'}


def test_names_that_no_type_can_have_are_columns_as_others() -> None:
    declared = {'a"b': "long", "c\\d": {"*": "long"}}
    assert read('{"a\\"b": 1, "c\\\\d": {"k": 2}, "e\\"": 3}', declared) == {
        'a"b': 1, "c\\d": {"k": 2}, "rest": '{"e\\"":3}',
    }  # fmt: skip


def test_members_that_no_value_had_before_are_kept_in_later_blocks() -> None:
    decoder = open_decoder({"v": "long"})
    for members in ('"a":1', '"b":2', '"a":1,"b":2', '"\\n":3', '"c":4'):
        block = decoder.decode(pa.array([f'{{"v":1,{members}}}'.encode()] * 40, pa.binary()))
        assert block.rows.column("rest").to_pylist() == [f"{{{members}}}"] * 40
