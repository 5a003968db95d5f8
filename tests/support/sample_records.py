"""Records and schemas for tests of the verbs that look: no broker, no registry, no Spark."""

import json
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
from fastavro import parse_schema, schemaless_writer

from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.config.pipelines import Config
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.schemas.registry import SchemaNotFound

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
# Facts that each entry of a gap has.
GAP_FACTS: Mapping[str, Any] = {"run": 1, "at": NOW.isoformat(), "hints": [], "topic_ids": {}}
TIME = {"type": "long", "logicalType": "timestamp-millis"}
EVENT: dict[str, Any] = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": TIME},
        {"name": "note", "type": ["null", "string"]},
    ],
}
WIDER = {**EVENT, "fields": [*EVENT["fields"], {"name": "extra", "type": "int"}]}


class Schemas:
    """Schemas by id, some of them under the topic's subjects of values and of keys."""

    def __init__(self, schemas: Mapping[int, Any], registered: Sequence[int], keys: Sequence[int] = ()) -> None:
        self._schemas = schemas
        self._registered = registered
        self._keys = keys

    def of_keys(self) -> "Schemas":
        return Schemas(self._schemas, self._keys)

    def schema(self, schema_id: int) -> str:
        if schema_id not in self._schemas:
            raise SchemaNotFound(f"schema id {schema_id} is not here")
        return json.dumps(self._schemas[schema_id])

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - one subject serves all
        return {schema_id: self.schema(schema_id) for schema_id in self._registered}


def config(root: Path, *, sections: Mapping[str, Any] | None = None, **pipeline: Any) -> Config:
    """A configuration whose tables lie below `root`; `sections`: beside the pipeline, in place of those here."""
    clicks = {
        "topics": ["clicks"],
        "table": {"location": str(root / "lake" / "clicks")},
        "event_time": {"field": "at", "max_age": "30 d"},
        **pipeline,
    }
    catalog = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db"}
    return Config.model_validate(
        {
            "catalog": catalog,
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"},
            "registry": {"url": "http://127.0.0.1:1"},
            "http": {"port": 0},
            "checkpoints": str(root / "checkpoints"),
            "pipelines": {"clicks": clicks},
            **(sections or {}),
        }
    )


def value(schema_id: int, schema: Mapping[str, Any], row: Mapping[str, Any]) -> bytes:
    """An Avro value behind Confluent's header."""
    out = BytesIO()
    out.write(struct.pack(">bI", 0, schema_id))
    schemaless_writer(out, parse_schema(dict(schema)), dict(row))
    return out.getvalue()


def event(number: int, *, event_time: datetime | None = None, schema_id: int = 1) -> bytes:
    """A value of EVENT."""
    time = event_time or NOW - timedelta(minutes=number)
    return value(schema_id, EVENT, {"id": number, "at": time, "note": None if number % 3 else f"note {number}"})


def records(
    values: Sequence[bytes | None],
    *,
    partitions: int = 1,
    kafka_time: datetime = NOW,
    headers: Mapping[str, bytes] | None = None,
) -> pa.RecordBatch:
    """The values as a task gets them, dealt out to the partitions one after the other."""
    kafka_headers = [{"key": key, "value": value} for key, value in (headers or {}).items()]
    rows = sorted((index % partitions, index // partitions, value) for index, value in enumerate(values))
    return pa.record_batch(
        [
            pa.array(["clicks"] * len(rows), pa.string()),
            pa.array([row[0] for row in rows], pa.int32()),
            pa.array([row[1] for row in rows], pa.int64()),
            pa.array([kafka_time] * len(rows), pa.timestamp("us", "UTC")),
            pa.array([f"k{row[1]}".encode() for row in rows], pa.binary()),
            pa.array([row[2] for row in rows], pa.binary()),
            pa.array([kafka_headers or None] * len(rows), HEADERS),
        ],
        schema=RECORDS,
    )


def tree(root: Path) -> list[str]:
    """Name all that lies below a folder."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))
