"""Compressed values of AWS Glue's serializers, damaged and sound, plain ones between them. zlib alone is the oracle."""

import json
import random
import zlib
from io import BytesIO
from typing import Any
from uuid import UUID

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings, strategies as st

from headrace.writer.batch.schema_reader import SchemaReader
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.framing import compression
from headrace.writer.framing.wire_format import GLUE, split_by_schema_id
from headrace.writer.json.envelope import envelope
from headrace.writer.storage.disk_space import scratch
from tests.support.example_counts import share
from tests.support.glue_values import DAMAGES, compressed, plain
from tests.support.wire_formats import table

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"]}],
}
JSON = {"type": "object", "title": "Event", "properties": {"id": {"type": "integer"}, "note": {"type": "string"}}}
IDS = {
    "avro": UUID("89791762-2336-4186-9674-299b90a802e2"),
    "json_schema": UUID("f9791762-2336-4186-9674-299b90a802e3"),
}
RULES = ValueRules(("avro", "json_schema"))
PLAN = (
    SchemaPlan(pa.schema([]))
    .extend(IDS["avro"].int, RULES.record_text(json.dumps(AVRO)))
    .extend(IDS["json_schema"].int, RULES.record_text(envelope(json.dumps(JSON), {})))
)


def body(form: str, number: int, note: str | None) -> bytes:
    row = {"id": number, "note": note}
    if form == "json_schema":
        return json.dumps(row).encode()
    out = BytesIO()
    schemaless_writer(out, parse_schema(AVRO), row)
    return out.getvalue()


def inflated(value: bytes) -> bytes | None:
    """Return what zlib makes of a compressed value; None where it is not one stream."""
    inflater = zlib.decompressobj()
    try:
        payload = inflater.decompress(value[18:])
    except zlib.error:
        return None
    return payload if inflater.eof and not inflater.unused_data else None


@st.composite
def value_lists(draw: st.DrawFn) -> list[tuple[str, str, int, str | None, int]]:
    kinds = st.sampled_from(["plain", "zlib", "zlib", *DAMAGES])
    notes = st.none() | st.text(max_size=50) | st.integers(0, 2_000).map(lambda count: "a" * count)
    value = st.tuples(st.sampled_from(list(IDS)), kinds, st.integers(0, 2**40), notes, st.integers(0, 2**32))
    return draw(st.lists(value, min_size=1, max_size=40))


@given(values=value_lists(), part_bytes=st.sampled_from([1, 200, 2**20]))
@settings(max_examples=share(150), deadline=None)
def test_each_sound_value_is_its_own_row_and_each_damaged_one_its_own_reason(
    values: list[tuple[str, str, int, str | None, int]], part_bytes: int
) -> None:
    rows: list[tuple[bytes, dict[str, bytes]]] = []
    expected: list[tuple[int, str | None] | None] = []
    for form, kind, number, note, seed in values:
        payload = body(form, number, note)
        value = plain(IDS[form], payload) if kind == "plain" else compressed(IDS[form], payload)
        if kind in DAMAGES:
            value = DAMAGES[kind](value, random.Random(seed))
        is_sound = kind in ("plain", "zlib") or inflated(value) == payload
        rows.append((value, {}))
        expected.append((number, note) if is_sound else None)
    reader = SchemaReader(PLAN, GLUE, scratch())
    found: dict[int, tuple[int, str | None]] = {}
    failed: set[int] = set()
    part_bytes_before = compression.PART_BYTES
    compression.PART_BYTES = part_bytes
    try:
        for schema_id, group in split_by_schema_id(table(rows), GLUE):
            assert schema_id is not None
            writer_schema = PLAN.schemas[schema_id]
            assert isinstance(writer_schema, WriterSchema)
            offsets = group.column("offset").to_pylist()
            last = 0
            group_values = group.column("value").combine_chunks()
            for start, stop, block in reader.decode_parts(group_values, schema_id, writer_schema):
                assert start == last
                last = stop
                part = offsets[start:stop]
                assert sorted([*block.positions.to_pylist(), *block.failures]) == list(range(stop - start))
                failed.update(part[position] for position in block.failures)
                for position, row in zip(block.positions.to_pylist(), block.rows.to_pylist(), strict=True):
                    found[part[position]] = (row["id"], row["note"])
            assert last == len(offsets)
    finally:
        compression.PART_BYTES = part_bytes_before
    assert found == {offset: row for offset, row in enumerate(expected) if row is not None}
    assert failed == {offset for offset, row in enumerate(expected) if row is None}
