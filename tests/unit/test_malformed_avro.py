"""What Avro's specification forbids, kind by kind and wherever it stands, is refused, and its neighbours are rows."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.avro.decoding.value_reader import TRUNCATED
from headrace.writer.decoding.block import BlockRefused
from headrace.writer.decoding.decode import decode
from tests.support.avro_records import HEAD, record

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
INTS = {"type": "array", "items": "int"}
LONGS = {"type": "map", "values": "long"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
LEAST = b"\xff" * 9 + b"\x01"  # -2^63
BITS = "a number of more than 32 bits"
BYTES = "a number of more than 5 bytes"
NO_BRANCH = "the index of a union has no branch"
NO_SYMBOL = "the index of an enum has no symbol"
OTHER_SIZE = "a block whose size is not that of its items"
TOO_MANY = "a block of more items than there are bytes"
NOT_UTF8 = "text that is not UTF-8"
NEITHER = "a boolean that is neither 0 nor 1"
NEGATIVE = "a negative length"


class Kind(NamedTuple):
    """A type, the bytes of a sound value, bytes that are forbidden, and why."""

    schema: Any
    sound: bytes
    forbidden: bytes
    reason: str


KINDS = {
    "nullable, index 2": Kind(["null", "int"], b"\x02\x0a", b"\x04\x0a", NO_BRANCH),
    "nullable, index -1": Kind(["null", "int"], b"\x02\x0a", b"\x01\x0a", NO_BRANCH),
    "nullable, index -2^31": Kind(["null", "int"], b"\x02\x0a", b"\xff\xff\xff\xff\x0f\x0a", NO_BRANCH),
    "nullable, index of 6 bytes": Kind(["null", "int"], b"\x02\x0a", b"\x82\x80\x80\x80\x80\x00\x0a", BYTES),
    "null second, index 2": Kind(["int", "null"], b"\x02", b"\x04", NO_BRANCH),
    "null second, index -1": Kind(["int", "null"], b"\x02", b"\x01", NO_BRANCH),
    "union, index 3": Kind(["null", "int", "string"], b"\x02\x0a", b"\x06\x0a", NO_BRANCH),
    "union, index -1": Kind(["null", "int", "string"], b"\x04\x02a", b"\x01\x02a", NO_BRANCH),
    "union, index -2": Kind(["null", "int", "string"], b"\x02\x0a", b"\x03\x0a", NO_BRANCH),
    "enum, index 3": Kind(ENUM, b"\x04", b"\x06", NO_SYMBOL),
    "enum, index -1": Kind(ENUM, b"\x04", b"\x01", NO_SYMBOL),
    "enum, index -3": Kind(ENUM, b"\x04", b"\x05", NO_SYMBOL),
    "enum, index of 6 bytes": Kind(ENUM, b"\x04", b"\x82\x80\x80\x80\x80\x00", BYTES),
    "boolean 2": Kind("boolean", b"\x01", b"\x02", NEITHER),
    "boolean 255": Kind("boolean", b"\x00", b"\xff", NEITHER),
    "nullable boolean 3": Kind(["null", "boolean"], b"\x02\x01", b"\x02\x03", NEITHER),
    "int of 33 bits": Kind("int", b"\x0a", b"\x80\x80\x80\x80\x10", BITS),
    "int of 35 bits": Kind("int", b"\x0a", b"\xff\xff\xff\xff\x7f", BITS),
    "int of 6 bytes": Kind("int", b"\x0a", b"\x8a\x80\x80\x80\x80\x00", BYTES),
    "long of 65 bits": Kind("long", b"\x0a", b"\x80" * 9 + b"\x02", "a number of more than 64 bits"),
    "long of 70 bits": Kind("long", b"\x0a", b"\xff" * 9 + b"\x7f", "a number of more than 64 bits"),
    "long of 11 bytes": Kind("long", b"\x0a", b"\x80" * 10 + b"\x00", "a number of more than 10 bytes"),
    "string, length -1": Kind("string", b"\x02a", b"\x01", NEGATIVE),
    "string, length -2^63": Kind("string", b"\x02a", LEAST, NEGATIVE),
    "string, longer than the value": Kind("string", b"\x02a", b"\xfe\xff\xff\xff\x0f", TRUNCATED),
    "string, no UTF-8": Kind("string", b"\x02a", b"\x02\xff", NOT_UTF8),
    "string, half a character": Kind("string", b"\x04\xc3\xa9", b"\x02\xc3", NOT_UTF8),
    "string, half a pair": Kind("string", b"\x06\xe2\x82\xac", b"\x06\xed\xa0\x80", NOT_UTF8),
    "string, the long way": Kind("string", b"\x02a", b"\x04\xc1\xa1", NOT_UTF8),
    "bytes, length -1": Kind("bytes", b"\x02a", b"\x01", NEGATIVE),
    "bytes, length of 65 bits": Kind("bytes", b"\x02a", b"\x82" + b"\x80" * 8 + b"\x02a", "more than 64 bits"),
    "decimal of no bytes": Kind(MONEY, b"\x02\x01", b"\x00", "a decimal of no bytes"),
    "array, count -2^63": Kind(INTS, b"\x04\x02\x04\x00", LEAST + b"\x02\x00", TOO_MANY),
    "array, count -2^63 of size 0": Kind(INTS, b"\x00", LEAST + b"\x00\x00", TOO_MANY),
    "array, count 2^62": Kind(INTS, b"\x02\x02\x00", b"\xfe" + b"\xff" * 7 + b"\x7f\x02\x00", TOO_MANY),
    "array, negative size": Kind(INTS, b"\x01\x02\x02\x00", b"\x01\x01\x02\x00", "a block of a negative size"),
    "array, size too great": Kind(INTS, b"\x01\x02\x02\x00", b"\x01\x04\x02\x00", OTHER_SIZE),
    "array, size too small": Kind(INTS, b"\x03\x04\x02\x02\x00", b"\x03\x02\x02\x02\x00", OTHER_SIZE),
    "map, count -2^63": Kind(LONGS, b"\x02\x02a\x02\x00", LEAST + b"\x02\x00", TOO_MANY),
    "map, size too great": Kind(LONGS, b"\x01\x06\x02a\x02\x00", b"\x01\x08\x02a\x02\x00", OTHER_SIZE),
    "map, key of length -1": Kind(LONGS, b"\x02\x02a\x02\x00", b"\x02\x01\x02\x00", NEGATIVE),
    "map, key that is no UTF-8": Kind(LONGS, b"\x02\x02a\x02\x00", b"\x02\x02\xff\x02\x00", NOT_UTF8),
}  # fmt: skip


def same_bytes(value: bytes) -> bytes:
    return value


PLACES: dict[str, tuple[Callable[[Any], Any], Callable[[bytes], bytes]]] = {
    "at the top": (lambda kind: kind, same_bytes),
    "in a record": (lambda kind: record("In", ("y", "string"), ("x", kind)), lambda value: b"\x04ab" + value),
    "in an array": (
        lambda kind: {"type": "array", "items": record("In", ("x", kind))}, lambda value: b"\x02" + value + b"\x00",
    ),
    "in a map": (lambda kind: {"type": "map", "values": kind}, lambda value: b"\x02\x02k" + value + b"\x00"),
    "in a nullable record": (lambda kind: ["null", record("In", ("x", kind))], lambda value: b"\x02" + value),
    "in a union of several": (
        lambda kind: ["null", "string", record("In", ("x", kind)), record("Other", ("x", "int"))],
        lambda value: b"\x04" + value,
    ),
    "in an array in a map in a record": (
        lambda kind: record("In", ("m", {"type": "map", "values": {"type": "array", "items": kind}})),
        lambda value: b"\x02\x02k\x02" + value + b"\x00\x00",
    ),
}  # fmt: skip
BESIDE = 12  # sound values before and behind the other one: more than are decoded singly at once


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_forbidden_value_fails_alone_natively_and_singly(kind: str, place: str) -> None:
    schema, sound, forbidden, reason = KINDS[kind]
    around, wrap = PLACES[place]
    parsed = avro.parse(json.dumps(record("R", ("before", "long"), ("a", around(schema)), ("after", ["null", "long"]))))
    values = [HEAD + b"\x80\x01" + wrap(sound) + b"\x02\x0a"] * (2 * BESIDE + 1)
    values[BESIDE] = HEAD + b"\x80\x01" + wrap(forbidden) + b"\x02\x0a"
    single = SingleDecoder(parsed)
    native = NativeDecoder(parsed) if is_native(parsed) else None
    assert native is not None or "union" in place or "union" in kind
    expected = single(pa.array([*values[:BESIDE], *values[BESIDE + 1 :]], pa.binary()))
    assert not expected.failures
    for decoder in (native, None):
        decoded = decode(pa.array(values, pa.binary()), decoder, single)
        assert list(decoded.failures) == [BESIDE]
        assert decoded.failures[BESIDE].endswith(reason), decoded.failures
        assert decoded.rows.equals(expected.rows)
    if native is not None and kind != "decimal of no bytes":  # which is not refused, but a row that is bad
        with pytest.raises(BlockRefused):
            native(pa.array(values, pa.binary()))


@pytest.mark.parametrize(
    ("schema", "longer", "shortest"),
    [
        ("int", b"\x8a\x80\x80\x80\x00", b"\x0a"),
        ("long", b"\x8a" + b"\x80" * 8 + b"\x00", b"\x0a"),
        (["null", "int"], b"\x82\x00\x0a", b"\x02\x0a"),
        (ENUM, b"\x82\x80\x00", b"\x02"),
        ("string", b"\x82\x00a", b"\x02a"),
        (MONEY, b"\x08\x00\x00\x00\x01", b"\x02\x01"),
        (INTS, b"\x03\x04\x02\x04\x00", b"\x04\x02\x04\x00"),
        (INTS, b"\x02\x02\x02\x04\x00", b"\x04\x02\x04\x00"),
        (LONGS, b"\x01\x06\x02a\x02\x00", b"\x02\x02a\x02\x00"),
    ],
)
def test_a_longer_encoding_that_avro_allows_is_the_same_row(schema: Any, longer: bytes, shortest: bytes) -> None:
    parsed = avro.parse(json.dumps(record("R", ("a", schema), ("after", ["null", "boolean"]))))
    values = pa.array([HEAD + longer + b"\x02\x01", HEAD + shortest + b"\x02\x01"] * 20, pa.binary())
    single = SingleDecoder(parsed)(values)
    rows, bad = NativeDecoder(parsed)(values)
    assert not single.failures
    assert bad is None
    assert rows.equals(single.rows)
    assert rows.slice(0, 1).equals(rows.slice(1, 1))


def test_the_reason_names_the_field_within_its_records_and_no_byte_of_the_value() -> None:
    inner = record("In", ("x", ["null", ENUM]))
    parsed = avro.parse(json.dumps(record("R", ("list", {"type": "array", "items": inner}))))
    decoded = SingleDecoder(parsed)(pa.array([HEAD + b"\x02\x02\x54\x00"], pa.binary()))
    assert decoded.failures == {0: "field 'list.x': the index of an enum has no symbol"}


def test_a_count_of_items_that_no_value_holds_takes_no_memory() -> None:
    parsed = avro.parse(json.dumps(record("R", ("a", {"type": "array", "items": ["null"]}), ("b", "int"))))
    claims = HEAD + b"\xfe" + b"\xff" * 7 + b"\x7f" + b"\x00" * 100
    decoded = SingleDecoder(parsed)(pa.array([claims], pa.binary()))
    assert decoded.failures == {0: f"field 'a': {TOO_MANY}"}
