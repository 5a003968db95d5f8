"""Carries records through the steps of a task, and returns what became of each. Makes no table."""

import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace import bucketers
from headrace.writer.commit.event_specs import check_specs
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import StagedFile
from headrace.writer.maintenance.local_pipeline import (
    STAGING_FOLDERS,
    LocalPipeline,
    open_local_pipeline,
    record_positions,
)
from headrace.writer.preflight.samples.route_sample import open_part, split
from headrace.writer.preflight.testing.case_file import Exit
from headrace.writer.preflight.testing.records import RecordPosition
from headrace.writer.schemas.saved_sample import SavedSample
from headrace.writer.sealing.manifest import bucket_path


@dataclass(frozen=True)
class Outcome:
    """What became of one record."""

    exit: Exit
    # Of a route: the name whose table it is.
    table: str | None = None
    # The name of the bucket's folder.
    bucket: str | None = None
    # With provenance.
    row: dict[str, Any] | None = None
    reason: str | None = None
    spec: str | None = None
    rule: str | None = None


def outcomes(
    config: Config, name: str, sample: SavedSample, now: datetime, closed_until: datetime | None
) -> dict[RecordPosition, Outcome]:
    """Return what becomes of each record. Raises HeadraceError for what a start or a batch of the pipeline refuses."""
    is_routed = config.pipelines[name].route is not None
    local_pipeline = open_local_pipeline(
        name, config, sample.schemas, topics=sample.topics, with_table=False, before_route=is_routed
    )
    check_specs(name, config.pipelines[name], local_pipeline.plan)
    records = pa.Table.from_batches([sample.records])
    outcomes: dict[RecordPosition, Outcome] = dict.fromkeys(record_positions(records), Outcome("tombstone"))
    if sample.records.num_rows == 0:
        return outcomes
    if not is_routed:
        return outcomes | _run_task(local_pipeline, sample.records, None, now, closed_until)
    route_split = split(local_pipeline, sample.records)
    for dead_letter in route_split.refused:
        outcomes[dead_letter.position] = Outcome("dead_letter", reason=dead_letter.reason)
    for part in route_split.parts:
        table = open_part(name, part, sample.schemas, with_table=False)
        outcomes |= _run_task(table, part.records, part.target, now, closed_until)
    return outcomes


def _run_task(
    local_pipeline: LocalPipeline,
    records: pa.RecordBatch,
    table: str | None,
    now: datetime,
    closed_until: datetime | None,
) -> dict[RecordPosition, Outcome]:
    """Run a task on the records of one table, and read its files."""
    outcomes = dict[RecordPosition, Outcome]()
    columns = bucketers.build(local_pipeline.config.pipelines[local_pipeline.name].bucket).columns

    def leave_out(records: pa.Table, schema_id: int | None, spec: str, rule: str) -> None:  # noqa: ARG001 - LeaveOut's
        outcomes.update(dict.fromkeys(record_positions(records), Outcome("filtered", spec=spec, rule=rule)))

    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder:
        report = local_pipeline.stage(records, now, Path(folder), closed_until=closed_until, leave_out=leave_out)
        table_folder, dead_letters, late_folder = (Path(folder) / folder_name for folder_name in STAGING_FOLDERS)

        def add_rows(exit_: Exit, folder: Path, file: StagedFile) -> None:
            bucket = bucket_path(list(columns), file.bucket)
            for row in _rows(folder, file):
                outcomes[_position(row)] = Outcome(exit_, table, bucket, row)

        for file in report.files:
            add_rows("row", table_folder, file)
        for file in report.late_files:
            add_rows("late", late_folder, file)
        for file in report.dead_letter_files:
            for row in _rows(dead_letters, file):
                outcomes[_position(row)] = Outcome(row["outcome"], reason=row["error"])
    return outcomes


def _rows(folder: Path, file: StagedFile) -> list[dict[str, Any]]:
    with pq.ParquetFile(folder / file.path) as opened_file:
        # A test has few records, so Python objects do no harm.
        rows: list[dict[str, Any]] = opened_file.read().to_pylist(maps_as_pydicts="lossy")
        return rows


def _position(row: dict[str, Any]) -> RecordPosition:
    return row["_topic"], row["_partition"], row["_offset"]
