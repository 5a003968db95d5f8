"""Avro schemas in a line, values as Kafka holds them, and what it means that two tables are the same."""

from io import BytesIO
from typing import Any

import pyarrow as pa
from fastavro import schemaless_writer

from headrace.writer.framing.wire_format import CONFLUENT, header

HEAD = header(7)
HEADER_BYTES = CONFLUENT.header_bytes


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def logical(kind: str, base: str, /, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


MILLIS = logical("timestamp-millis", "long")
MICROS = logical("timestamp-micros", "long")
MONEY = logical("decimal", "bytes", precision=9, scale=2)


def encode(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    out.write(HEAD)
    schemaless_writer(out, schema, value)
    return out.getvalue()


def are_equal(left: pa.Table, right: pa.Table) -> bool:
    """Equal, NaN to NaN."""
    return left.schema.equals(right.schema) and (
        left.equals(right) or repr(left.to_pylist()) == repr(right.to_pylist())
    )
