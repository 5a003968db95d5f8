"""How records of AWS Glue and of Apicurio name their message of a Protobuf schema, and the ids that stand for it."""

import random
import zlib
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import encoder
from hypothesis import given, strategies as st

from headrace.writer.framing.message_header import split_by_name_header
from headrace.writer.framing.message_marks import (
    NAME_HEADER,
    describe_mark,
    find_name,
    find_place,
    lack_of_mark,
    lack_of_message,
    read_name,
    read_place,
    split_by_mark,
    write_name,
    write_place,
)
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    GLUE,
    HEADERS,
    Wire,
    canonical_mark,
    framed_id,
    id_facts,
    message_mark,
    message_style,
    own_schema_id,
    show_id,
    show_message,
    with_message,
    without_message,
)
from headrace.writer.protobuf.message_types import compile_types, read_types
from headrace.writer.protobuf.schema_files import message_by_order
from tests.support.glue_values import compressed, plain

ONE = UUID("89791762-2336-4186-9674-299b90a802e2")
# AWS's own example, and an entry of a map, which counts and is no message of a value.
NESTED = """syntax = "proto3"; package shop;
message B { message C {} message A { message D {} } map<string, int64> counts = 1; }
message Other {}"""
PLACES = ["shop.B", "shop.B.A", "shop.B.A.D", "shop.B.C", None, "shop.Other"]


def apicurio_ref(name: str) -> bytes:
    """Return Apicurio's `Ref` with its length before it, as Google's library writes it."""
    file = descriptor_pb2.FileDescriptorProto(name="ref.proto", syntax="proto3")
    message = file.message_type.add(name="Ref")
    message.field.add(name="name", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    ref = message_factory.GetMessageClass(pool.FindMessageTypeByName("Ref"))(name=name).SerializeToString()
    return encoder._VarintBytes(len(ref)) + ref


@given(st.integers(0, 2**21 - 1))
def test_a_place_is_a_plain_varint(place: int) -> None:
    mark = write_place(place)
    assert mark == encoder._VarintBytes(place)
    assert read_place(mark) == place
    assert find_place(plain(ONE, mark + b"\x08\x01"), 18) == mark
    assert find_place(compressed(ONE, mark + b"\x08\x01"), 18) == mark
    assert canonical_mark(mark, "place") == mark


@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=300))
def test_a_name_is_a_message_with_its_length(name: str) -> None:
    mark = write_name(name)
    assert mark == apicurio_ref(name)
    assert read_name(mark) == name
    assert find_name(b"frame" + mark + b"\x08\x01", 5) == mark
    assert canonical_mark(mark, "name") == mark


@pytest.mark.parametrize("mark", [b"", b"\x80", b"\x80\x00", b"\xff" * 10])
def test_damaged_places_are_none(mark: bytes) -> None:
    assert find_place(plain(ONE, mark), 18) is None
    assert read_place(mark) is None
    assert find_place(compressed(ONE, mark), 18) is None


@pytest.mark.parametrize("stream", [b"", b"no stream", zlib.compress(b"")])
def test_a_stream_without_a_place_names_no_message(stream: bytes) -> None:
    assert find_place(b"\3\5" + ONE.bytes + stream, 18) is None


@pytest.mark.parametrize(
    "mark",
    [
        b"",
        b"\0",
        b"\2\x0a",
        b"\5\x0a\4Even",
        b"\6\x0a\3Even",
        b"\6\x12\4Even",
        b"\4\x0a\2\xff\xfe",
        b"\x86\0\x0a\4Even",
    ],
)
def test_damaged_names_are_none(mark: bytes) -> None:
    assert find_name(mark, 0) is None


@given(st.binary(max_size=40))
def test_no_bytes_raise(data: bytes) -> None:
    assert find_name(data, 0) is None or read_name(find_name(data, 0) or b"") is not None
    find_place(b"\3\0" + ONE.bytes + data, 18)
    find_place(b"\3\5" + ONE.bytes + data, 18)


def test_places_are_those_of_all_messages_sorted_by_full_name() -> None:
    types = compile_types(NESTED)
    by_place = types.marks("place")
    assert by_place == {write_place(place): name for place, name in enumerate(PLACES) if name is not None}
    assert [message_by_order(types.files, place) for place, name in enumerate(PLACES) if name is not None] == [
        name for name in PLACES if name is not None
    ]
    assert types.marks("name") == {write_name("B"): "shop.B", write_name("Other"): "shop.Other"}
    assert types.marks("header_name") == {b"B": "shop.B", b"Other": "shop.Other"}
    for style in ("indexes", "place", "name", "header_name"):
        assert read_types(types.text_of(style)) == types.marks(style)


@pytest.mark.parametrize("is_compressed", [False, True])
@pytest.mark.parametrize("marks", [1, 3, 40])
def test_records_are_split_by_their_places(marks: int, is_compressed: bool) -> None:
    chance = random.Random(marks)
    places = [write_place(7 * place) for place in range(marks - 1)] + [b"\x80\x00"]
    chosen = [chance.choice(places) for _ in range(500)]
    frames = [
        (compressed if is_compressed and chance.random() < 0.5 else plain)(ONE, mark + b"\x08\x01") for mark in chosen
    ]
    records = pa.table({"value": pa.array(frames, pa.binary()), "offset": pa.arange(0, 500)})
    groups = list(split_by_mark(records, 18, "place", is_compressed=is_compressed))
    assert len({mark for mark, _ in groups}) == len(groups)
    found = {offset: mark for mark, group in groups for offset in group.column("offset").to_pylist()}
    assert found == {offset: None if mark == b"\x80\x00" else mark for offset, mark in enumerate(chosen)}
    assert all(group.column("offset").to_pylist() == sorted(group.column("offset").to_pylist()) for _, group in groups)


@pytest.mark.parametrize(
    ("style", "mark", "words"),
    [
        ("indexes", b"\2\4", "[2]"),
        ("place", b"\4", "4 by name"),
        ("name", write_name("Click"), "'Click'"),
        ("header_name", b"Click", "'Click'"),
    ],
)
@pytest.mark.parametrize("number", [0, 2])
def test_an_id_of_a_message_has_the_id_of_its_schema(style, mark, words, number) -> None:
    both = framed_id(number, with_message(ONE.int, mark, style))
    assert (message_mark(both), message_style(both)) == (mark, style)
    assert without_message(both) == framed_id(number, ONE.int)
    assert own_schema_id(both) == (number, ONE.int)
    assert show_id(both) == str(ONE)
    assert show_message(both) == f", message {words}"
    assert describe_mark(mark, style) == words
    assert lack_of_message(mark, style).startswith("no message has the ")
    assert id_facts(both)["message"] == ([2] if style == "indexes" else words)


def test_ways_to_name_a_message_give_different_ids() -> None:
    styles = ("indexes", "place", "name", "header_name")
    assert len({with_message(ONE.int, b"\0", style) for style in styles}) == 4


def test_a_header_names_a_message_alone_or_beside_its_value() -> None:
    wire = Wire("header", "global", "apicurio.value.globalId")
    ref = write_name("Click")
    alone = with_message(7, b"Click", "header_name")
    both = with_message(7, ref, "header_name")
    assert (wire.bytes_before(alone), wire.bytes_before(both)) == (0, len(ref))
    assert canonical_mark(b"Click", "header_name") == canonical_mark(ref, "header_name") == b"Click"
    assert show_message(alone) == ", message 'Click'"
    assert show_message(both) == f", message 'Click', written {ref.hex()}"
    # A letter is a place, too.
    assert canonical_mark(b"A", "place") == b"A"
    assert lack_of_mark("header_name") == "no Kafka header apicurio.protobuf.type has the name of a message"


# Bytes that no message is called; a `Ref` in the header is none that stands before the value.
NO_NAMES = (b"", b"7", b"acme.Order", b"Order\n", b"\xff\xfe", write_name("Order"))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["Order", "Orders", "Ordering_of_a_long_name", "_", None]),
            st.booleans(),
            st.binary(max_size=6),
        ),
        min_size=1,
        max_size=40,
    ),
    st.lists(st.sampled_from(NO_NAMES), max_size=4),
)
def test_records_are_split_by_the_names_in_their_headers(
    named: list[tuple[str | None, bool, bytes]], garbage: list[bytes]
) -> None:
    values: list[bytes] = []
    headers: list[list[dict[str, Any]]] = []
    expected: list[bytes | None] = []
    for name, has_ref, body in named:
        ref = write_name(name or "Order")
        values.append(ref + body if has_ref else body)
        # Of several headers with one name the last counts.
        headers.append(
            [{"key": NAME_HEADER, "value": b"Other"}, {"key": NAME_HEADER, "value": name.encode()}] if name else []
        )
        mark = None if name is None else name.encode()
        if mark is not None and values[-1].startswith(ref):
            mark = ref
        expected.append(mark)
    for name_bytes in garbage:
        values.append(write_name("Order"))
        headers.append([{"key": NAME_HEADER, "value": name_bytes}])
        expected.append(None)
    records = pa.table(
        {
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, HEADERS),
            "offset": pa.arange(0, len(values)),
        }
    )
    marks: dict[int, bytes | None] = {}
    for mark, group in split_by_name_header(records):
        offsets = group.column("offset").to_pylist()
        assert offsets == sorted(offsets)
        assert marks.keys().isdisjoint(offsets)
        marks |= dict.fromkeys(offsets, mark)
    assert [marks[offset] for offset in range(len(values))] == expected


@pytest.mark.parametrize(
    ("wire", "style"),
    [
        (CONFLUENT, "indexes"), (GLUE, "place"),
        (Wire("confluent", "content"), "name"), (Wire("apicurio", "global"), "name"),
        (Wire("header", "confluent", "__value_schema_id"), "indexes"),
        (Wire("header", "global", "apicurio.value.globalId"), "header_name"),
        (Wire("single_object", "fingerprint"), None),
        (Wire("bare", schema_id=7), None),
    ],
)  # fmt: skip
def test_a_wire_format_has_one_way(wire: Wire, style: str | None) -> None:
    assert wire.message_style == style
    assert wire.bytes_before(with_message(7, b"\4", "place")) == wire.header_bytes + (wire.header is None)
