"""Carries records through the steps of a task, and returns what became of each. Makes no table."""

import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import bucketers
from writer.commit.event_specs import check_specs
from writer.config.pipelines import Config
from writer.core.files import StagedFile
from writer.maintenance.local_pipeline import PLACES, LocalPipeline, opened, record_places
from writer.preflight.samples.route_sample import opened_part, split
from writer.preflight.testing.case_file import Exit
from writer.preflight.testing.records import Place
from writer.schemas.saved_sample import SavedSample
from writer.sealing.manifest import bucket_path


@dataclass(frozen=True)
class Outcome:
    """What became of one record."""

    exit: Exit
    table: str | None = None  # of a route: the name whose table it is
    bucket: str | None = None  # as its folder is called
    row: dict[str, Any] | None = None  # with provenance
    reason: str | None = None
    spec: str | None = None
    rule: str | None = None


def outcomes(
    config: Config, name: str, sample: SavedSample, now: datetime, closed_until: datetime | None
) -> dict[Place, Outcome]:
    """Return what becomes of each record. Raises HeadraceError for what a start or a batch of the pipeline refuses."""
    is_routed = config.pipelines[name].route is not None
    walk = opened(name, config, sample.schemas, topics=sample.topics, with_table=False, before_route=is_routed)
    check_specs(name, config.pipelines[name], walk.plan)
    whole = pa.Table.from_batches([sample.records])
    found: dict[Place, Outcome] = dict.fromkeys(record_places(whole), Outcome("tombstone"))
    if sample.records.num_rows == 0:
        return found
    if not is_routed:
        return found | _through(walk, sample.records, None, now, closed_until)
    shares = split(walk, sample.records)
    found |= {one.place: Outcome("dead_letter", reason=one.reason) for one in shares.refused}
    for part in shares.parts:
        table = opened_part(name, part, sample.schemas, with_table=False)
        found |= _through(table, part.records, part.target, now, closed_until)
    return found


def _through(
    walk: LocalPipeline, records: pa.RecordBatch, table: str | None, now: datetime, closed_until: datetime | None
) -> dict[Place, Outcome]:
    """Run a task on the records of one table, and read its files."""
    found, columns = dict[Place, Outcome](), bucketers.build(walk.config.pipelines[walk.name].bucket).columns

    def leave_out(records: pa.Table, schema_id: int | None, spec: str, rule: str) -> None:  # noqa: ARG001 - LeaveOut's
        found.update(dict.fromkeys(record_places(records), Outcome("filtered", spec=spec, rule=rule)))

    with tempfile.TemporaryDirectory(prefix="headrace-test-") as folder:
        report = walk.staged(records, now, Path(folder), closed_until=closed_until, leave_out=leave_out)
        rows, dead_letters, late = (Path(folder) / one for one in PLACES)
        for exit_, place, files in (("row", rows, report.files), ("late", late, report.late_files)):
            for file in files:
                bucket = bucket_path(list(columns), file.bucket)
                found |= {_place(row): Outcome(exit_, table, bucket, row) for row in _rows(place, file)}  # type: ignore[arg-type]
        for row in (row for file in report.dead_letter_files for row in _rows(dead_letters, file)):
            found[_place(row)] = Outcome(row["outcome"], reason=row["error"])
    return found


def _rows(folder: Path, file: StagedFile) -> list[dict[str, Any]]:
    with pq.ParquetFile(folder / file.path) as opened_file:
        rows: list[dict[str, Any]] = opened_file.read().to_pylist(maps_as_pydicts="lossy")  # cold: a test's
        return rows


def _place(row: dict[str, Any]) -> Place:
    return row["_topic"], row["_partition"], row["_offset"]
