"""A block of any schema and any values reads as fastavro reads it, and comes back from Parquet."""

import json
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fastavro import parse_schema, schemaless_reader
from hypothesis import HealthCheck, given, settings

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.batch.staging.parquet_files import parquet_writer
from headrace.writer.decoding.decode import decode
from tests.support.avro_kinds import (
    accepted_types,
    records,
)
from tests.support.avro_records import HEADER_BYTES, are_equal, encode
from tests.support.example_counts import share

ARROW = {"boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "bytes": pa.binary(), "string": pa.string()}


def without_logical_type(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "logicalType"}


@settings(max_examples=share(120), suppress_health_check=list(HealthCheck))
@given(records())
def test_a_block_of_any_schema_reads_as_fastavro_and_comes_back_from_parquet(drawn):
    schema, members, values = drawn
    parsed = accepted_types(schema)
    if parsed is None:
        return
    native = NativeDecoder(parsed) if is_native(parsed) else None
    single = SingleDecoder(parsed)
    fastavros = parse_schema(schema)
    raw = parse_schema(json.loads(json.dumps(schema), object_hook=without_logical_type))
    block = pa.array([encode(fastavros, value) for value in values], pa.binary())
    decoded = decode(block, native, single)
    assert not decoded.failures
    assert decoded.positions.to_pylist() == list(range(len(values)))
    assert are_equal(decoded.rows, single(block).rows)
    assert decoded.rows.schema.equals(pa.schema(list(avro.table_fields(parsed).items())))
    for name, kind in members.items():
        if kind.simple:
            read = [schemaless_reader(BytesIO(value.as_py()[HEADER_BYTES:]), raw, None)[name] for value in block]
            assert repr(decoded.rows[name].to_pylist()) == repr(read)
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, decoded.rows.schema) as writer:
        writer.write_table(decoded.rows)
    assert are_equal(pq.read_table(pa.BufferReader(sink.getvalue())), decoded.rows)
