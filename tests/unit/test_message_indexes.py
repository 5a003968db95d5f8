"""Message indexes of Protobuf: how they are written and read, how they split a batch, and the ids that name them."""

import io
import random
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry.serde import SchemaId
from hypothesis import given, strategies as st

from headrace.writer.framing.message_indexes import find_mark, read_indexes, split_by_indexes, write_indexes
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    Wire,
    canonical_mark,
    detect_wire,
    framed_id,
    int64_id,
    is_guid,
    message_mark,
    own_schema_id,
    show_id,
    show_message,
    with_message,
    without_message,
)

INDEXES = st.lists(st.integers(0, 5_000), min_size=1, max_size=32)
GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
IN_HEADER = Wire("header", "confluent", "__value_schema_id")


@given(INDEXES)
def test_indexes_are_written_and_read_as_confluents_client_does(indexes):
    of_client = SchemaId("PROTOBUF", schema_id=7, message_indexes=indexes).id_to_bytes()[5:]
    assert write_indexes(indexes) == of_client
    assert read_indexes(of_client) == tuple(indexes)
    assert find_mark(b"frame" + of_client + b"\x08\x01", 5) == of_client
    client = SchemaId("PROTOBUF")
    client.from_bytes(io.BytesIO(b"\0\0\0\0\7" + write_indexes(indexes)))
    assert client.message_indexes == indexes


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"\x02",  # a position is missing
        b"\x02\x80",  # a varint is cut
        b"\x01\x00",  # a negative count
        b"\x02\x01",  # a negative position
        b"\x80\x00",  # written longer than it need be
        b"\x02\x80\x80\x80\x01",  # more positions than a file has
        b"\x42" + b"\0" * 33,  # deeper than protoc takes
        b"\xff" * 10,
    ],
)
def test_damaged_indexes_are_none(mark):
    assert read_indexes(mark) is None
    assert find_mark(mark, 0) is None


def test_the_first_message_has_two_spellings():
    assert read_indexes(b"\0") == read_indexes(b"\2\0") == (0,)
    assert canonical_mark(b"\2\0", "indexes") == canonical_mark(b"\0", "indexes") == b"\0"


@given(st.binary(max_size=40))
def test_no_bytes_raise(data):
    mark = find_mark(data, 0)
    assert mark is None or read_indexes(mark) is not None


@pytest.mark.parametrize("marks", [1, 3, 40])
def test_records_are_split_by_their_indexes(marks):
    chance = random.Random(marks)
    written = [write_indexes([number]) for number in range(marks - 1)] + [b"\x01"]
    chosen = [chance.choice(written) for _ in range(500)]
    values = [b"\0\0\0\0\7" + mark + bytes([number % 256]) for number, mark in enumerate(chosen)]
    records = pa.table({"value": pa.array(values, pa.binary()), "offset": range(500)})
    split = {mark: group.column("offset").to_pylist() for mark, group in split_by_indexes(records, 5)}
    expected: dict[bytes | None, list[int]] = {}
    for number, mark in enumerate(chosen):
        expected.setdefault(None if mark == b"\x01" else mark, []).append(number)
    assert split == expected


def test_nothing_is_split_into_nothing():
    assert list(split_by_indexes(pa.table({"value": pa.array([], pa.binary())}), 5)) == []


@given(st.sampled_from([7, 2**31, GUID.int]), st.sampled_from([0, 1, 5]), INDEXES)
def test_an_id_of_a_message_keeps_its_parts(schema_id, number, indexes):
    mark = write_indexes(indexes)
    plain = framed_id(number, schema_id)
    both = with_message(plain, mark)
    assert both == framed_id(number, with_message(schema_id, mark))
    assert message_mark(both) == mark
    assert message_mark(plain) is None
    assert without_message(both) == without_message(plain) == plain
    assert own_schema_id(both) == own_schema_id(plain) == (number, schema_id)
    assert (show_id(both), is_guid(both), int64_id(both)) == (show_id(plain), is_guid(plain), int64_id(plain))
    assert show_message(both) == f", message {indexes}"
    assert show_message(with_message(plain, b"\2\0")) == ", message [0], written 0200"


def test_a_fingerprint_is_of_no_message():
    assert message_mark(-5) is None
    assert own_schema_id(-5) == (0, -5)


@pytest.mark.parametrize(("mark", "schema_id"), [(b"\0\0\0\0\7", 7), (b"\1" + GUID.bytes, GUID.int)])
def test_a_kafka_header_names_a_message_behind_the_id(mark, schema_id):
    assert IN_HEADER.parse_id(mark) == schema_id
    both = with_message(schema_id, b"\4\2\0")
    assert IN_HEADER.parse_id(mark + b"\4\2\0") == both
    assert IN_HEADER.parse_id(mark + b"\4\2") is None
    assert IN_HEADER.parse_id(mark + b"\0\0") is None
    assert IN_HEADER.bytes_before(both) == 0
    assert detect_wire(b"\x08\x01", {"__value_schema_id": mark + b"\0"}) == (IN_HEADER, schema_id)


def test_a_message_stands_between_the_id_and_the_value():
    assert CONFLUENT.bytes_before(7) == 5
    assert CONFLUENT.bytes_before(with_message(7, b"\4\2\0")) == 8
