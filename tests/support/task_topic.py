"""A topic with records of all sorts, and the task that carries it, for tests of tasks."""

import json
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer

from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import run
from headrace.writer.batch.task_report import ROW, Report
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


KAFKA_TIME = datetime(2026, 11, 20, 12, 0, 1, tzinfo=UTC)


EVENT = {
    "type": "record",
    "name": "Event",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"]},
    ],
}


WIDER = {**EVENT, "fields": [*EVENT["fields"], {"name": "extra", "type": "int"}]}


PAIR = {  # a union of two records, which only fastavro reads
    "type": "record",
    "name": "Pair",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "body",
            "type": [
                {"type": "record", "name": "L", "fields": [{"name": "l", "type": "int"}]},
                {"type": "record", "name": "R", "fields": [{"name": "r", "type": "int"}]},
            ],
        },
    ],
}


UNKNOWN = 77


SCHEMAS = (
    SchemaPlan(pa.schema([]), frozenset({*PROVENANCE.names, "hour"}))
    .extend(1, json.dumps(EVENT))
    .extend(2, json.dumps(WIDER))
    .extend(3, json.dumps(PAIR))
    .extend(4, json.dumps({**EVENT, "fields": [{"name": "id", "type": "string"}]}))
)


TEXT = {1: EVENT, 2: WIDER, 3: PAIR}


def ms(when: datetime) -> int:
    return int(when.timestamp() * 1000)


def avro_value(schema_id: int, row: dict[str, Any]) -> bytes:
    out = BytesIO()
    out.write(struct.pack(">bI", 0, schema_id))
    schemaless_writer(out, parse_schema(TEXT[schema_id]), row)
    return out.getvalue()


@dataclass
class Topic:
    """What a producer wrote, and what should become of it, by (topic, partition, offset)."""

    records: list[tuple[str, int, int, bytes | None]] = field(default_factory=list)
    rows: dict[tuple[str, int, int], dict[str, Any]] = field(default_factory=dict)
    dead_letters: dict[tuple[str, int, int], str] = field(default_factory=dict)
    quarantined: dict[tuple[str, int, int], str] = field(default_factory=dict)
    tombstones: list[tuple[str, int, int]] = field(default_factory=list)
    _ends: Counter[tuple[str, int]] = field(default_factory=Counter)

    def put(self, topic: str, partition: int, kind: str) -> None:
        offset = self._ends[topic, partition]
        self._ends[topic, partition] += 1
        key = (topic, partition, offset)
        when = NOW - timedelta(minutes=7 * offset)
        row = {"id": offset, "at": when, "note": None if offset % 3 else f"note {offset}"}
        value: bytes | None = None
        match kind:
            case "event":
                value = avro_value(1, row)
                self.rows[key] = row
            case "wider":
                value = avro_value(2, {**row, "extra": offset})
                self.rows[key] = {**row, "extra": offset}
            case "pair":
                side = "L" if offset % 2 else "R"
                value = avro_value(3, {"id": offset, "at": when, "body": (side, {side.lower(): offset})})
                body = {
                    "member0": {"l": offset} if offset % 2 else None,
                    "member1": None if offset % 2 else {"r": offset},
                }
                self.rows[key] = {"id": offset, "at": when, "body": body}
            case "old" | "future":
                when = NOW + (timedelta(hours=2) if kind == "future" else timedelta(days=-40))
                value = avro_value(1, {**row, "at": when})
                self.quarantined[key] = f"at is {when:%Y-%m-%d %H:%M:%S}.000000Z"
            case "bare":
                value = b"{}"
                self.dead_letters[key] = "no Confluent header"
            case "json":
                value = b'{"id": 5}'
                self.dead_letters[key] = "no Confluent header"
            case "empty":
                value = b""
                self.dead_letters[key] = "no Confluent header"
            case "cut":
                value = avro_value(1, row)[:-1]
                self.dead_letters[key] = "the value ends before the record does"
            case "surplus":
                value = avro_value(1, row) + b"??"
                self.dead_letters[key] = "2 surplus bytes after the record"
            case "never":
                sound = avro_value(1, row)[:5]
                value = sound + b"\2" + b"\xff" * 9 + b"\1\0"
                self.dead_letters[key] = "years 1 to 9999"
            case "rejected":
                value = struct.pack(">bI", 0, 4) + b"\2x"
                self.dead_letters[key] = "schema id 4: field 'id' is string, but column 'id' holds int64"
            case "unknown":
                value = struct.pack(">bI", 0, UNKNOWN) + b"\2x"
            case "tombstone":
                self.tombstones.append(key)
        self.records.append((topic, partition, offset, value))

    def batches(self, size: int = 97) -> Iterator[pa.RecordBatch]:
        """As Spark reads: one partition after the other, in batches that do not care where one ends."""
        ordered = sorted(self.records, key=lambda r: r[:3])
        for start in range(0, len(ordered), size):
            part = ordered[start : start + size]
            yield pa.record_batch(
                {
                    "topic": pa.array([r[0] for r in part], pa.string()),
                    "partition": pa.array([r[1] for r in part], pa.int32()),
                    "offset": pa.array([r[2] for r in part], pa.int64()),
                    "timestamp": pa.array([KAFKA_TIME] * len(part), pa.timestamp("us", "UTC")),
                    "key": pa.array([f"{r[1]}-{r[2]}".encode() for r in part], pa.binary()),
                    "value": pa.array([r[3] for r in part], pa.binary()),
                }
            )


GOOD = ["event", "event", "event", "wider", "event", "event", "pair"]


BAD = ["bare", "cut", "old", "tombstone", "surplus", "rejected", "never", "future", "json", "empty"]


@pytest.fixture
def written() -> Topic:
    topic = Topic()
    for i in range(350):
        for name, partition in (("clicks", 0), ("clicks", 2), ("views", 0)):
            kind = BAD[i // 11 % len(BAD)] if i % 11 == partition else GOOD[i % len(GOOD)]
            topic.put(name, partition, kind)
    return topic


@pytest.fixture
def plan(tmp_path) -> TaskPlan:
    return TaskPlan(
        now=NOW,
        frontier={},
        incarnations={"clicks": 1, "views": 3},
        schemas=SCHEMAS,
        time_rule=TimeRule("at", "auto", timedelta(days=30), timedelta(hours=1)),
        bucket={"type": "event_time", "width": timedelta(hours=1)},
        table=str(tmp_path / "table"),
        dead_letters=str(tmp_path / "dead"),
        prefix="000001",
        budget=2**20,
        target_file_size=2**20,
    )


def report_of(topic: Topic, plan: TaskPlan, size: int = 97) -> Report:
    (batch,) = run(topic.batches(size), plan)
    assert batch.schema.equals(ROW)
    return Report.from_json(batch["report"][0].as_py())


def read(folder: str, files: list[Any]) -> pa.Table:
    return pa.concat_tables([pq.ParquetFile(Path(folder) / file.path).read() for file in files])


def place(row: dict[str, Any]) -> tuple[str, int, int]:
    return row["_topic"], row["_partition"], row["_offset"]


def files_below(folder: str) -> list[Path]:
    return [path for path in Path(folder).rglob("*") if path.is_file()]
