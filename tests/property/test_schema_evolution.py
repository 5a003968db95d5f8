"""Schemas that evolve at random: records of every version are what fastavro says with the table as the reader."""

import json
import random
from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema, conform
from headrace.writer.decoding.decode import decode
from headrace.writer.framing.wire_format import header
from tests.support.example_counts import share
from tests.support.schema_producer import (
    Producer,
)


def value(schema: Any, rng: random.Random) -> Any:
    if isinstance(schema, list):
        return None if rng.random() < 0.4 else value(schema[1], rng)
    match schema["type"] if isinstance(schema, dict) else schema:
        case "boolean":
            return rng.random() < 0.5
        case "int":
            return rng.choice([0, -(2**31), 2**31 - 1, rng.randrange(1000)])
        case "long":
            return rng.choice([0, -(2**63), 2**63 - 1, rng.randrange(1000)])
        case "float" | "double":
            return rng.randrange(-(2**20), 2**20) / 16
        case "string":
            return "".join(rng.choices("abcé€😀", k=rng.randrange(5)))
        case "bytes":
            return rng.randbytes(rng.randrange(5))
        case "enum":
            return rng.choice(schema["symbols"])
        case "array":
            return [value(schema["items"], rng) for _ in range(rng.randrange(3))]
        case "map":
            return {f"k{i}": value(schema["values"], rng) for i in range(rng.randrange(3))}
        case _:
            return {f["name"]: value(f["type"], rng) for f in schema["fields"]}


def encode_value(schema: Any, rng: random.Random) -> bytes:
    out = BytesIO()
    schemaless_writer(out, schema, value(schema, rng))
    return out.getvalue()


def decode_rows(plan: SchemaPlan, schema_id: int, values: list[bytes]) -> pa.Table:
    known = plan.schemas[schema_id]
    assert isinstance(known, WriterSchema), known
    record = avro.parse(known.text)
    framed = pa.array([header(schema_id) + raw for raw in values], pa.binary())
    decoded = decode(framed, NativeDecoder(record) if known.native else None, SingleDecoder(record))
    assert not decoded.failures
    return conform(decoded.rows, known, plan)


@settings(max_examples=share(60))
@given(st.integers(0, 2**32), st.integers(1, 7))
def test_records_of_every_version_are_what_avro_says_with_the_table_as_the_reader(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    producer = Producer(rng)
    texts = [producer.writes()]
    for _ in range(steps):
        producer.evolve()
        texts.append(producer.writes())
    plan = SchemaPlan(pa.schema([]))
    for schema_id, text in enumerate(texts, 1):
        plan = plan.extend(schema_id, text)
    again = SchemaPlan(plan.columns)  # as a start finds the table
    for schema_id, text in enumerate(texts, 1):
        again = again.extend(schema_id, text)
    assert again.columns.equals(plan.columns)
    reader = producer.table()
    assert set(plan.columns.names) == {spec.names[0] for spec in producer.root.fields}
    for schema_id, text in enumerate(texts, 1):
        writer = parse_schema(json.loads(text))
        values = [encode_value(writer, rng) for _ in range(rng.choice([1, 3, 20]))]
        expected = [schemaless_reader(BytesIO(raw), writer, reader) for raw in values]
        rows = decode_rows(plan, schema_id, values)
        assert rows.schema.equals(plan.columns)
        rows.validate(full=True)
        assert rows.to_pylist() == pa.Table.from_pylist(expected, plan.columns).to_pylist()
        assert decode_rows(again, schema_id, values).equals(rows)
