"""The pinned data sets: what fastavro reads in them, and what makes them like life."""

import io
import json
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from google.protobuf import message_factory

from headrace.bench.data import encode
from headrace.bench.data.dataset import SETS, TIME_FIELD, dataset
from headrace.bench.data.draw import draw
from headrace.bench.data.fields import ANCHOR, declared_type
from headrace.bench.data.json_columns import JsonColumns
from headrace.bench.features.schemas_in_turn import batches_in_turn, rounds
from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.core.errors import ConfigError
from headrace.writer.formats.formats import format_of
from headrace.writer.framing.wire_format import header
from headrace.writer.json.declared import declared_record
from headrace.writer.protobuf.record_schema import protobuf_record
from headrace.writer.protobuf.schema_files import compile_files, message_at, open_pool

COUNT = 2_000
# The sets whose events are there in other formats, too.
AVRO_SETS = [name for name in SETS if f"{name}-json" in SETS]


def read(schema: Any, value: bytes) -> Any:
    """Read one value with fastavro; it must end where its bytes end."""
    stream = io.BytesIO(value)
    found = fastavro.schemaless_reader(stream, schema)
    assert stream.read() == b""
    return found


def records(name: str, *, schema_id: int = 7) -> list[dict[str, Any]]:
    data = dataset(name)
    schema = fastavro.parse_schema(json.loads(data.schema_text))
    values = data.encode(0, COUNT, schema_id=schema_id).to_pylist()
    assert all(value.startswith(header(schema_id)) for value in values)
    return [read(schema, value[5:]) for value in values]


@pytest.mark.parametrize("name", AVRO_SETS)
def test_fastavro_reads_every_event(name: str) -> None:
    assert len(records(name)) == COUNT


@pytest.mark.parametrize("name", SETS)
def test_an_event_is_the_same_bytes_whatever_is_asked_with_it(name: str) -> None:
    data = dataset(name)
    apart = pa.concat_arrays([data.encode(0, 70), data.encode(70, 1), data.encode(71, 29)])
    assert data.encode(0, 100).equals(apart)
    assert data.encode(90, 10).equals(apart.slice(90))


@pytest.mark.parametrize("name", AVRO_SETS)
def test_the_native_decoder_takes_every_set(name: str) -> None:
    assert is_native(avro.parse(dataset(name).schema_text))


def json_records(name: str) -> list[dict[str, Any]]:
    """Return the events of a set as JSON, with their time as Avro has it."""
    found = [json.loads(value) for value in dataset(name).encode(0, COUNT).to_pylist()]
    return [{**record, TIME_FIELD: datetime.fromisoformat(record[TIME_FIELD])} for record in found]


@pytest.mark.parametrize("name", AVRO_SETS)
def test_json_holds_the_values_of_the_avro_set(name: str) -> None:
    assert json_records(f"{name}-json") == records(name)


@pytest.mark.parametrize("name", AVRO_SETS)
def test_protobuf_holds_the_values_of_the_avro_set(name: str) -> None:
    """Read by Google's library, and by the native decoder."""
    data = dataset(f"{name}-protobuf")
    values = data.encode(0, COUNT, schema_id=7).to_pylist()
    assert all(value.startswith(header(7) + b"\0") for value in values)
    files = compile_files({"set.proto": data.proto_text}, "set.proto")
    record = avro.parse(protobuf_record(files, message_at(files, [0])))
    assert format_of(record).is_native(record)
    decoder = format_of(record).open_decoder(record, native=True, header_bytes=6, scratch="")
    block = decoder.decode(pa.array(values, pa.binary()))
    assert not block.failures
    assert block.rows.to_pylist(maps_as_pydicts="strict") == records(name)
    message_class = message_factory.GetMessageClass(open_pool(files).FindMessageTypeByName(message_at(files, [0])))
    for value, row in zip(values, records(name), strict=True):
        assert message_class.FromString(value[6:]).event_id == row["event_id"]


@pytest.mark.parametrize("name", AVRO_SETS)
def test_events_for_rest_have_three_more_members(name: str) -> None:
    undeclared = {field.name for field in dataset(f"{name}-json-rest").undeclared}
    assert len(undeclared) == 3
    for with_rest, record in zip(json_records(f"{name}-json-rest"), json_records(f"{name}-json"), strict=True):
        assert set(with_rest) - set(record) == undeclared
        assert {member: value for member, value in with_rest.items() if member not in undeclared} == record


@pytest.mark.parametrize("name", AVRO_SETS)
def test_the_declared_columns_are_the_members_of_the_events(name: str) -> None:
    data = dataset(f"{name}-json")
    declared_record(data.declared, "rest", "dead_letter")
    assert {member for record in json_records(f"{name}-json") for member in record} == set(data.declared)


def test_declared_types_are_those_of_the_avro_fields() -> None:
    declared = dataset("nested-json").declared
    assert (declared[TIME_FIELD], declared["event_name"]) == ("timestamp", "string")
    assert declared["device"]["screen"] == {"width": "int", "height": "int"}
    assert declared["items"] == [{"sku": "string", "quantity": "int", "price": "double", "tags": ["string"]}]
    assert declared["counters"] == {"*": "int"}
    with pytest.raises(ValueError, match="no field has the type"):
        declared_type({"type": "fixed", "size": 2})


def test_json_arrays_and_objects_have_a_comma_between_items_only() -> None:
    columns = JsonColumns()
    counts = np.array([0, 3, 0, 1], np.int64)
    items = columns.longs(np.array([5, 6, 7, 8], np.int64))
    assert columns.array(items, counts).to_pylist() == [b"[]", b"[5,6,7]", b"[]", b"[8]"]
    keys = columns.words(["a", "b", "c"], np.array([0, 1, 2, 0], np.int64))
    assert columns.mapping(keys, items, counts).to_pylist() == [b"{}", b'{"a":5,"b":6,"c":7}', b"{}", b'{"a":8}']
    assert columns.array(items.slice(0, 0), np.zeros(2, np.int64)).to_pylist() == [b"[]", b"[]"]


@pytest.mark.parametrize(("name", "size", "columns"), [("200B", 200, 20), ("1KB", 1024, 20), ("4KB", 4096, 20)])
def test_events_are_as_large_as_their_set_is_called(name: str, size: int, columns: int) -> None:
    data = dataset(name)
    values = data.encode(0, COUNT)
    assert values.buffers()[2].size / COUNT == pytest.approx(size, rel=0.05)
    assert len(data.fields) == columns


def test_the_wide_set_has_200_columns() -> None:
    assert len(dataset("200col").fields) == 200


def test_ids_addresses_and_positions_are_distinct() -> None:
    found = records("200B")
    for column in ("event_id", "lat", "lon"):
        assert len({record[column] for record in found}) == COUNT, column
    urls = [record["url"] for record in found if record["url"] is not None]
    assert len(set(urls)) == len(urls) > 0.8 * COUNT
    assert len({record["user_id"] for record in found}) > 0.99 * COUNT
    sessions = Counter(record["session_id"] for record in found)
    assert set(sessions.values()) == {8}


def test_ids_are_distinct_far_apart_too() -> None:
    numbers = np.concatenate([draw(start, 50_000, seed=20).bits("event_id/0") for start in (0, 10**6, 10**9)])
    assert len(np.unique(numbers)) == len(numbers)


def test_event_times_open_about_nine_hourly_buckets_most_of_them_small() -> None:
    times = [record[TIME_FIELD] for record in records("200B")]
    hours = Counter(time.replace(minute=0, second=0, microsecond=0) for time in times)
    assert 7 <= len(hours) <= 10
    assert sum(time >= ANCHOR - timedelta(hours=1) for time in times) > 0.9 * COUNT
    assert max(times) <= ANCHOR + timedelta(seconds=1)


def test_nullable_columns_have_both() -> None:
    found = records("200B")
    for column in ("url", "city", "revenue", "currency", "campaign", "locale"):
        assert 0 < sum(record[column] is None for record in found) < COUNT, column


def test_nested_values_are_empty_and_full() -> None:
    found = records("nested")
    assert {len(record["items"]) for record in found} == set(range(6))
    assert {len(record["attributes"]) for record in found} == set(range(5))
    assert any(record["device"] is None for record in found)
    assert len({item["sku"] for record in found for item in record["items"]}) > COUNT


def test_events_with_headers_have_a_trace_each() -> None:
    data = dataset("200B-headers")
    assert data.encode(0, COUNT).equals(dataset("200B").encode(0, COUNT))
    headers = data.headers(0, COUNT)
    assert data.headers(7, 3) == headers[7:10]
    assert len({parent for (_, parent), _ in headers}) == COUNT
    for (parent_name, parent), (state_name, state) in headers:
        assert (parent_name, state_name) == ("traceparent", "tracestate")
        version, trace, span, flags = parent.decode().split("-")
        assert (version, len(trace), len(span), flags) == ("00", 32, 16, "01")
        assert state.decode() == f"dd=s:1;p:{span};t.dm:-1;t.tid:{trace[:16]}"


def test_mixed_events_are_the_usual_ones_by_three_versions_of_the_schema_in_turn() -> None:
    data = dataset("mixed")
    texts = {7: data.schema_text, **dict(zip((8, 9), data.older_schema_texts, strict=True))}
    schemas = {schema_id: fastavro.parse_schema(json.loads(text)) for schema_id, text in texts.items()}
    values = data.encode(1, COUNT - 1, schema_id=7, older_ids=(8, 9)).to_pylist()
    missing = {7: set(), 8: {"locale"}, 9: {"locale", "currency"}}
    for number, (value, whole) in enumerate(zip(values, records("200B")[1:], strict=True), start=1):
        schema_id = 7 + number % 3
        assert value.startswith(header(schema_id))
        expected = {name: member for name, member in whole.items() if name not in missing[schema_id]}
        assert read(schemas[schema_id], value[5:]) == expected


def test_an_unknown_set_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"no data set '2KB'.*200B.*nested"):
        dataset("2KB")


@pytest.mark.parametrize(
    "values", [[0], [-1, 1], [63, 64, -64, -65], [2**31 - 1, -(2**31)], [2**63 - 1, -(2**63), 0, 8191, 8192]]
)
def test_longs_are_read_back(values: list[int]) -> None:
    encoded = encode.longs(np.array(values, np.int64)).to_pylist()
    assert [read("long", value) for value in encoded] == values
    assert [encode.one_long(value) for value in values] == encoded


def test_optional_values_are_read_back() -> None:
    present = np.array([True, False, True])
    encoded = encode.doubles(np.array([1.5, 2.5, -0.0]), present).to_pylist()
    assert [read(["null", "double"], value) for value in encoded] == [1.5, None, -0.0]


def test_blocks_are_read_back() -> None:
    items = encode.longs(np.array([5, 6, 7, 8], np.int64))
    encoded = encode.blocks(items, np.array([0, 3, 0, 1], np.int64)).to_pylist()
    schema = {"type": "array", "items": "long"}
    assert [read(schema, value) for value in encoded] == [[], [5, 6, 7], [], [8]]


def test_digits_are_those_of_the_numbers() -> None:
    assert encode.decimal(np.array([0, 12_345_678_901], np.int64)).tobytes() == b"000000000000" + b"012345678901"
    assert encode.hexadecimal(np.array([255], np.uint64)).tobytes() == (255).to_bytes(8, "little").hex().encode()


def test_schemas_in_turn_are_the_same_events() -> None:
    (batch,) = batches_in_turn(40, 3)
    values = batch.column("value").to_pylist()
    assert [value[:5] for value in values[:4]] == [header(schema_id) for schema_id in (1, 2, 3, 1)]
    assert [value[5:] for value in values] == [value[5:] for value in dataset("200B").encode(0, 40).to_pylist()]
    found = [(count, task_ns > 0, times) for count, task_ns, times in rounds(200, [1, 2])]
    assert found == [(1, True, 1), (2, True, pytest.approx(1, rel=20))]
