"""Wire formats: what each looks like, how a batch is split by it, and what a sample shows."""

import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.config.sections.record_format import Wire as Section
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    GLUE,
    HEADERS,
    Wire,
    detect_wire,
    framed_id,
    int64_id,
    kafka_header,
    own_schema_id,
    refusal_reasons,
    show_id,
    split_by_schema_id,
)
from headrace.writer.schemas.format_detection import MixedWire, UnclearWire, judge
from headrace.writer.schemas.registry import SchemaFiles, SchemaNotFound, with_ids
from tests.support import sample_records
from tests.support.wire_formats import APICURIO, BARE, BY_NAME, EVERY, SINGLE, record, table

GUID = UUID("89791762-2336-4186-9674-299b90a802e2")
CONFLUENT_HEADER, GLOBAL, CONTENT = BY_NAME.values()


def groups(rows: list[tuple[bytes | None, Mapping[str, bytes]]], wire: Wire) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for schema_id, group in split_by_schema_id(table(rows), wire):
        assert schema_id not in found, "one group an id"
        found[schema_id] = group.column("offset").to_pylist()
    return found


@pytest.mark.parametrize(
    ("wire", "schema_id", "before", "beside"),
    [
        (CONFLUENT, 258, b"\0\0\0\1\2", None),
        (APICURIO, 258, b"\0\0\0\0\0\0\0\1\2", None),
        (SINGLE, 0x63DD24E7CC258F8A, bytes.fromhex("c3018a8f25cce724dd63"), None),
        (SINGLE, -1, b"\xc3\x01" + b"\xff" * 8, None),
        (GLUE, GUID.int, b"\3\0" + GUID.bytes, None),
        (CONFLUENT_HEADER, 258, b"", b"\0\0\0\1\2"),
        (CONFLUENT_HEADER, GUID.int, b"", b"\1" + GUID.bytes),
        (GLOBAL, 258, b"", b"\0\0\0\0\0\0\1\2"),
        (CONTENT, 258, b"", b"\0\0\0\0\0\0\1\2"),
    ],
)
def test_a_format_writes_and_reads_its_ids(wire, schema_id, before, beside):
    assert (wire.value_header(schema_id), wire.kafka_header_value(schema_id)) == (before, beside)
    assert wire.header_bytes == len(before)
    value, headers = record(wire, schema_id)
    assert wire.find_schema_id(value, headers) == schema_id
    assert detect_wire(value, headers) == (wire, schema_id)
    assert Wire(**wire.facts()) == wire


def test_the_fingerprint_is_the_one_that_avro_s_specification_gives():
    assert crc_fingerprint('"null"') == 7195948357588979594
    assert crc_fingerprint('{"type": "int", "doc": "is no part of it"}') == crc_fingerprint('"int"')


@pytest.mark.parametrize(
    ("wire", "value", "beside"),
    [
        (CONFLUENT, b"", {}), (CONFLUENT, b"\0\0\0\1", {}), (CONFLUENT, b"\1\0\0\0\1", {}),
        (CONFLUENT, b"\0" * 12, {}),  # no registry has an id 0
        (APICURIO, b"\0" * 8, {}), (APICURIO, b"\0" * 9, {}), (APICURIO, b"\0\0\0\0\1\0\0\0\1rest", {}),
        (GLUE, b"\3\0" + GUID.bytes[:15], {}), (GLUE, b"\3\1" + GUID.bytes, {}), (GLUE, b"\2\0" + GUID.bytes, {}),
        (GLUE, b"\3\0" + b"\0" * 16, {}), (GLUE, b"\3\5" + b"\0" * 16, {}),  # 0 is the GUID of nothing
        (SINGLE, b"\xc3\x01\0\0\0\0\0\0\0", {}), (SINGLE, b"\xc3\x02" + b"\0" * 8, {}),
        (GLOBAL, b"x", {}), (GLOBAL, b"x", {str(GLOBAL.header): b"\0\0\0\1"}),
        (GLOBAL, b"x", {"Other": b"\0" * 7 + b"\1"}),
        (GLOBAL, b"x", {str(GLOBAL.header): struct.pack(">q", -5)}),
        (CONFLUENT_HEADER, b"x", {str(CONFLUENT_HEADER.header): b"\1" + b"\0" * 15}),
        (CONFLUENT_HEADER, b"x", {str(CONFLUENT_HEADER.header): b"\1" + b"\0" * 16}),
    ],
)  # fmt: skip
def test_a_value_of_another_format_has_no_schema_id(wire, value, beside):
    assert wire.find_schema_id(value, beside) is None
    assert groups([(value, beside)], wire) == {None: [0]}


def test_a_small_group_keeps_nothing_of_its_batch_in_memory():
    """Rows of a small table are held while those of large ones go to disk, and have columns of their records."""
    values = [struct.pack(">bI", 0, 1 + (at == 7)) + b"x" * 100 for at in range(10_000)]
    records = pa.table({"value": pa.array(values), "topic": ["clicks"] * 10_000, "offset": pa.arange(0, 10_000)})
    large, small = (group for _, group in split_by_schema_id(records, CONFLUENT))
    assert (large.num_rows, small.num_rows) == (9_999, 1)
    assert small.column("offset").to_pylist() == [7]
    assert small.get_total_buffer_size() < 1_000


@pytest.mark.parametrize("chunks", [1, 4])
def test_a_batch_of_many_ids_is_copied_a_few_times_however_many_its_chunks_are(chunks):
    """Its records come in a chunk for each partition."""
    ids = 200
    values = pa.array([struct.pack(">bI", 0, 1 + at % ids) + b"x" * 1_000 for at in range(4_000)])
    step = len(values) // chunks
    records = pa.table({"value": pa.chunked_array([values.slice(at, step) for at in range(0, len(values), step)])})
    pool = pa.default_memory_pool()
    allocated_before = pool.total_bytes_allocated()
    groups = list(split_by_schema_id(records, CONFLUENT))
    assert (len(groups), sum(group.num_rows for _, group in groups)) == (ids, 4_000)
    assert pool.total_bytes_allocated() - allocated_before < 5 * values.nbytes


@settings(deadline=None)
@given(st.data())
def test_a_mixed_batch_is_split_as_each_record_says(data):
    wire = data.draw(st.sampled_from(EVERY))
    some = data.draw(st.lists(st.sampled_from([1, 2, 77, 2**31]), min_size=1, max_size=3, unique=True))
    mine = st.sampled_from(some).map(lambda schema_id: record(wire, schema_id))
    others = st.sampled_from(EVERY).map(lambda other: record(other, 5))
    rows = data.draw(st.lists(mine | others | st.binary(max_size=12).map(lambda value: (value, {})), max_size=40))
    expected: dict[int | None, list[int]] = {}
    for at, row in enumerate(rows):
        expected.setdefault(wire.find_schema_id(*row), []).append(at)
    assert groups(rows, wire) == expected


@settings(deadline=None)
@given(
    st.lists(
        st.none() | st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.binary(max_size=3)), max_size=4),
        max_size=12,
    ),
    st.integers(0, 5),
)
def test_of_several_kafka_headers_of_one_name_the_last_counts(headers, start):
    column = pa.array(
        [None if some is None else [{"key": k, "value": v} for k, v in some] for some in headers], HEADERS
    )
    expected = [dict(some or []).get("b") for some in headers]
    assert kafka_header(column.slice(start), "b").to_pylist() == expected[start:]


def test_all_values_of_a_bare_topic_have_its_schema():
    assert groups([(b"", {}), (b"\0\0\0\0\1", {}), (b"x", {})], BARE) == {9: [0, 1, 2]}


IN_HEADER = Wire("header", "confluent", "__value_schema_id")


def test_values_in_several_formats_are_split_and_no_id_of_one_is_that_of_another():
    wire = replace(CONFLUENT, others=(APICURIO, IN_HEADER, SINGLE))
    rows = [record(each, 5) for each in (CONFLUENT, APICURIO, IN_HEADER, SINGLE, CONFLUENT)]
    split = groups([*rows, (b"x", {})], wire)
    ids = [schema_id for schema_id in split if schema_id is not None]
    assert [split[schema_id] for schema_id in ids] == [[0, 4], [1], [2], [3]]
    assert split[None] == [5]
    assert [wire.of_id(schema_id) for schema_id in ids] == [(CONFLUENT, 5), (APICURIO, 5), (IN_HEADER, 5), (SINGLE, 5)]
    assert [show_id(schema_id) for schema_id in ids] == ["5"] * 4
    assert [int64_id(schema_id) for schema_id in ids] == [5] * 4
    assert [wire.find_schema_id(*row) for row in rows[:4]] == ids
    (reason,) = refusal_reasons(table([(b"x", {})]), replace(CONFLUENT, others=(APICURIO,)))
    assert reason.startswith("no Confluent header (magic byte 0 and a 4-byte schema id), no header of Apicurio")


@pytest.mark.parametrize("own_id", [1, 2**32 - 1, -(2**63), 2**63 - 1, 2**128 - 1])
def test_an_id_is_read_back_whatever_its_format(own_id):
    for number in range(4):
        assert own_schema_id(framed_id(number, own_id)) == (number, own_id)


def test_no_record_has_two_formats():
    for wire in EVERY:
        value, beside = record(wire, 5)
        assert [other for other in EVERY if other.find_schema_id(value, beside) is not None] == [wire]


def test_a_refusal_names_the_format_and_the_mend():
    rows = [record(APICURIO, 3), record(SINGLE, 3), (b"{}", {})]
    why = "no Confluent header (magic byte 0 and a 4-byte schema id)"
    apicurio = "a header of Apicurio (magic byte 0 and an 8-byte global id)"
    single = "a single-object header (C3 01 and an 8-byte fingerprint)"
    assert refusal_reasons(table(rows), CONFLUENT) == [
        f"{why}, but it has {apicurio}: a topic of such records needs `wire: apicurio`",
        f"{why}, but it has {single}: a topic of such records needs `wire: single_object`",
        why,
    ]
    assert refusal_reasons(table([record(CONFLUENT, 3)]), GLOBAL)[0].startswith(
        "no Kafka header apicurio.value.globalId"
    )


# --- the probe --------------------------------------------------------------------------------------------------


def knows(*known: int) -> Any:
    return lambda _, schema_id: schema_id in known


@pytest.mark.parametrize("wire", EVERY, ids=lambda wire: wire.header or wire.format)
def test_a_topic_of_one_format_shows_it(wire):
    found = judge(table([record(wire, 1)] * 30 + [(None, {}), (b"{}", {})]), knows(1))
    assert (found.wire, found.is_sure) == (wire, True)
    assert found.message == f"30 of 31 values have a {wire.description}"


def test_strays_do_not_decide():
    rows = [record(CONFLUENT, 1)] * 19 + [record(APICURIO, 1)] + [record(SINGLE, 50)] * 30
    found = judge(table(rows), knows(1))
    assert (found.wire, found.is_sure) == (CONFLUENT, True)


def test_two_formats_in_one_topic_are_for_a_person_to_choose():
    rows = [record(CONFLUENT, 1)] * 12 + [record(APICURIO, 1)] * 8
    with pytest.raises(
        UnclearWire, match=r"12 of 20 values have a Confluent.*8 of 20.*Set `wire`.*such as \[confluent, apicurio\]"
    ):
        judge(table(rows), knows(1))


def test_formats_of_kafka_headers_come_before_those_of_the_values():
    rows = [record(CONFLUENT, 1)] * 12 + [record(APICURIO, 1)] * 3 + [record(GLOBAL, 1)] * 5
    with pytest.raises(MixedWire) as mixed:
        judge(table(rows), knows(1))
    assert mixed.value.wires == (GLOBAL, CONFLUENT, APICURIO)
    assert f"such as [{{format: header, header: {GLOBAL.header}}}, confluent, apicurio]." in str(mixed.value)


def test_a_format_whose_schemas_are_unknown_is_taken_but_not_for_good():
    found = judge(table([record(SINGLE, 4)] * 30), knows())
    assert (found.wire, found.is_sure) == (SINGLE, False)


@pytest.mark.parametrize("count", [20, 100])
def test_a_topic_that_shows_no_format_is_refused(count):
    with pytest.raises(UnclearWire, match=f"none of {count} values .* bare"):
        judge(table([(b'{"id": 1}', {})] * count), knows(1))


def test_bare_values_that_happen_to_begin_with_zero_are_no_confluent_topic():
    rows = [(b"\0" + struct.pack(">I", at + 7), {}) for at in range(10)] + [(b"\2abc", {})] * 30
    asked: list[int] = []
    with pytest.raises(UnclearWire):
        judge(table(rows), lambda _, schema_id: bool(asked.append(schema_id)))
    assert len(asked) == 8, "a registry is not asked for every number that a value begins with"


@pytest.mark.parametrize("rows", [[], [(None, {})] * 50, [(b"{}", {})] * 19])
def test_too_few_values_to_tell_are_read_as_confluent_until_there_are_more(rows):
    found = judge(table(rows), knows())
    assert (found.wire, found.is_sure) == (CONFLUENT, False)


# --- configuration, schemas, dead letters -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "wire"),
    [
        ("auto", None), ({}, None), ("confluent", CONFLUENT), ("apicurio", APICURIO), ("single_object", SINGLE),
        ({"format": "apicurio", "ids": "content"}, Wire("apicurio", "content")), ("glue", GLUE),
        ({"format": "confluent", "ids": "content"}, Wire("confluent", "content")),
        ({"format": "header", "header": "apicurio.value.contentId"}, CONTENT),
        ({"format": "header", "header": "schema", "ids": "confluent"}, Wire("header", "confluent", "schema")),
        ({"format": "bare", "schema_id": 9}, BARE),
    ],
)  # fmt: skip
def test_the_file_says_the_format(given, wire):
    assert Section.model_validate(given).fixed == wire


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("avro", "Input should be 'auto'"), ("bare", "needs 'schema_id'"), ("header", "needs 'header'"),
        ({"format": "confluent", "header": "a"}, "has no 'header'"),
        ({"format": "header", "header": "schema"}, "set 'ids'"),
        ({"format": "single_object", "ids": "global"}, "no choice of 'ids'"),
        ({"format": "apicurio", "ids": "confluent"}, "global or content"),
        ({"form": "bare"}, "did you mean 'format'"),
    ],
)  # fmt: skip
def test_a_format_without_what_it_needs_is_refused(given, said):
    with pytest.raises(ValueError, match=said):
        Section.model_validate(given)


def test_files_serve_any_ids_and_fingerprints(tmp_path):
    path = Path(tmp_path) / "event.avsc"
    path.write_text(text := '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    broken = Path(tmp_path) / "broken.avsc"
    broken.write_text("{")
    files = SchemaFiles({7: path, 8: broken})
    assert with_ids(files, "global").schema(7) == text
    schemas = with_ids(files, "fingerprint")
    assert schemas.topic_schemas("clicks") == {crc_fingerprint(text): text}
    assert schemas.schema(crc_fingerprint(text)) == text
    with pytest.raises(SchemaNotFound, match="no schema of clicks has the fingerprint 5"):
        schemas.schema(5)


def test_dead_letters_hold_the_headers_that_name_a_schema():
    assert DEAD_LETTERS.field("headers").type == HEADERS
    assert sample_records.records([b"x"], headers={"a": b"1"}).column("headers").to_pylist() == [
        [{"key": "a", "value": b"1"}]
    ]
