"""Records of many schema versions in one batch: one file a bucket, and an incompatible writer parks its own only."""

import json
import struct
from dataclasses import replace
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
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
AT = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}}


def version(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Event", "fields": [AT, *fields]}


def spot(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"name": "spot", "type": {"type": "record", "name": "Spot", "fields": list(fields)}}


X, X_WIDE, Y = {"name": "x", "type": "int"}, {"name": "x", "type": "long"}, {"name": "y", "type": "int", "default": 7}
SIDES = {"name": "side", "type": [
    {"type": "record", "name": "L", "fields": [{"name": "l", "type": "int"}]},
    {"type": "record", "name": "R", "fields": [{"name": "r", "type": "int"}]},
]}  # fmt: skip
VERSIONS = {
    1: version({"name": "n", "type": "int"}, spot(X)),
    2: version(spot(X_WIDE, Y), {"name": "n", "type": "int"}),
    3: version({"name": "count", "type": "double", "aliases": ["n"]}, SIDES),  # a union that only fastavro reads
    4: version({"name": "n", "type": "string"}, spot(X)),  # parked: double by now
    5: version({"name": "country", "type": "string", "default": "unknown"}),
}
VALUES = {
    1: {"n": 1, "spot": {"x": 10}}, 2: {"n": 2, "spot": {"x": 20, "y": 21}},
    3: {"count": 0.5, "side": ("R", {"r": 30})}, 4: {"n": "text", "spot": {"x": 40}}, 5: {"country": "PT"},
}  # fmt: skip
ROWS = {
    1: {"n": 1.0, "spot": {"x": 10, "y": 7}, "side": None, "country": "unknown"},
    2: {"n": 2.0, "spot": {"x": 20, "y": 21}, "side": None, "country": "unknown"},
    3: {"n": 0.5, "spot": None, "side": {"member0": None, "member1": {"r": 30}}, "country": "unknown"},
    5: {"n": None, "spot": None, "side": None, "country": "PT"},
}
COUNT = 1_000


@pytest.fixture
def plan(tmp_path: Path) -> TaskPlan:
    schemas = SchemaPlan(pa.schema([]), frozenset({*PROVENANCE.names, "hour"}))
    for schema_id, schema in VERSIONS.items():
        schemas = schemas.extend(schema_id, json.dumps(schema))
    return TaskPlan(
        now=NOW, frontier={}, incarnations={"clicks": 1}, schemas=schemas,
        time_rule=TimeRule("at", "auto", timedelta(days=30), timedelta(hours=1)),
        bucket={"type": "event_time", "width": timedelta(hours=1)},
        table=str(tmp_path / "table"), dead_letters=str(tmp_path / "dead"), prefix="000001",
        budget=2**20, target_file_size=2**20,
    )  # fmt: skip


def record(offset: int) -> bytes:
    """Versions alternate from record to record, hours from ten to ten."""
    schema_id = 1 + offset % len(VERSIONS)
    out = BytesIO(struct.pack(">bI", 0, schema_id))
    out.seek(0, 2)
    at = NOW - timedelta(hours=offset // 10 % 6)
    schemaless_writer(out, parse_schema(VERSIONS[schema_id]), {"at": at, **VALUES[schema_id]})
    return out.getvalue()


def carried(plan: TaskPlan, size: int) -> Report:
    def batches():
        for first in range(0, COUNT, size):
            offsets = range(first, min(first + size, COUNT))
            columns = {
                "topic": pa.array(["clicks"] * len(offsets)), "partition": pa.array([0] * len(offsets), pa.int32()),
                "offset": pa.array(offsets, pa.int64()), "timestamp": pa.array([NOW] * len(offsets)),
                "key": pa.nulls(len(offsets), pa.binary()), "value": pa.array(map(record, offsets), pa.binary()),
            }  # fmt: skip
            yield pa.record_batch(columns)

    (found,) = run(batches(), plan)
    return Report.from_json(found["report"][0].as_py())


@pytest.mark.parametrize("budget", [10_000, 2**20], ids=["spilling", "ample"])
@pytest.mark.parametrize("size", [COUNT, 77])
def test_versions_that_alternate_give_one_file_a_bucket_with_one_schema(plan, size, budget):
    report = carried(replace(plan, budget=budget), size)
    assert (report.spilled_bytes > 0) == (budget == 10_000)
    assert sorted(file.bucket for file in report.files) == [(f"2026-11-20T{hour:02}",) for hour in range(7, 13)]
    rows = 0
    for file in report.files:
        table = pq.ParquetFile(Path(plan.table) / file.path).read()
        assert table.schema.names == ["at", "n", "spot", "side", "country", *PROVENANCE.names]
        for row in table.to_pylist():
            assert {name: row[name] for name in ROWS[1]} == ROWS[1 + row["_offset"] % len(VERSIONS)]
        rows += table.num_rows
    assert rows == COUNT * 4 // 5


def test_an_incompatible_writer_parks_its_own_records_only(plan):
    report = carried(plan, COUNT)
    dead_letters = pa.concat_tables(
        pq.ParquetFile(Path(plan.dead_letters) / f.path).read() for f in report.dead_letter_files
    )
    assert dead_letters["_offset"].to_pylist() == [offset for offset in range(COUNT) if offset % 5 == 3]
    assert set(dead_letters["schema_id"].to_pylist()) == {4}
    assert set(dead_letters["error"].to_pylist()) == {"schema id 4: field 'n' is string, but column 'n' holds double"}
