"""Writes a sample as Parquet files to a temporary directory, to show sizes and encodings."""

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.console import Console
from rich.text import Text

from headrace import bucketers
from headrace.writer.batch.task import raw_records, raw_rows
from headrace.writer.batch.task_report import Report as TaskReport
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.core.files import StagedFile
from headrace.writer.core.text import plural
from headrace.writer.core.units import show_size
from headrace.writer.maintenance.local_pipeline import LocalPipeline
from headrace.writer.output import tables
from headrace.writer.output.report import Report
from headrace.writer.output.tables import Column, TextTable, instant, numbers, plain
from headrace.writer.sealing.manifest import bucket_path


@dataclass
class ColumnBytes:
    """What one leaf column costs over several files."""

    path: str
    physical_type: str
    compression: str
    encodings: set[str] = field(default_factory=set)
    bytes: int = 0
    bytes_uncompressed: int = 0
    nulls: int = 0


@dataclass(frozen=True)
class StagedSample(Report):
    """Files of a sample, what their columns cost, and what went in. JSON has a line for each file."""

    report: TaskReport
    # Of the table's files.
    columns: list[ColumnBytes]
    columns_by_file: dict[str, list[ColumnBytes]]
    # The bytes of all values in Kafka.
    value_bytes: int
    # The mean size of a row in memory.
    row_bytes: float
    # Of the buckets, by name.
    bucket_columns: Sequence[str]

    @property
    def rows(self) -> int:
        """Rows of the table's files."""
        return sum(file.rows for file in self.report.files)

    @property
    def bytes(self) -> int:
        """Bytes of the table's files."""
        return sum(file.bytes for file in self.report.files)

    def render(self, out: Console) -> None:
        """Draw the files, what each column costs, and the sum."""
        _render_files(out, self)
        if self.rows:
            out.print()
            _render_columns(out, self)
        out.print()
        message = f"{plural(self.rows, 'row')} in {plural(len(self.report.files), 'file')}: {show_size(self.bytes)}"
        if self.rows:
            message += f", {self.bytes / self.rows:,.1f} B a row"
        if self.value_bytes > self.bytes:
            message += f"; in Kafka {show_size(self.value_bytes)}, {self.value_bytes / self.bytes:.1f} times that"
        tables.sentence(out, message)
        tables.sentence(out, "Written to a temporary directory and removed. Full files need fewer bytes a row.", "dim")

    def lines(self) -> Iterator[Any]:
        """Yield each file, with its columns."""
        for table, files in (("table", self.report.files), ("dead_letters", self.report.dead_letter_files)):
            for file in files:
                yield _document(table, file, self.columns_by_file[file.path])


def stage_sample(local_pipeline: LocalPipeline, records: pa.RecordBatch, now: datetime) -> StagedSample:
    """Carry the records through a task into files, measure them, and remove them."""
    with tempfile.TemporaryDirectory(prefix="headrace-staged-") as directory:
        into = Path(directory)
        report = local_pipeline.stage(records, now, into)
        by_file = {file.path: columns([into / "table" / file.path]) for file in report.files}
        by_file |= {file.path: columns([into / "dead_letters" / file.path]) for file in report.dead_letter_files}
        table_columns = columns(into / "table" / file.path for file in report.files)
    size = pc.sum(pc.binary_length(records.column("value"))).as_py() or 0
    sample = local_pipeline.decode(records)
    in_memory = sum(group.rows.nbytes for group in sample.groups) / max(sample.rows, 1)
    bucket_columns = bucketers.build(local_pipeline.config.pipelines[local_pipeline.name].bucket).columns
    return StagedSample(report, table_columns, by_file, size, in_memory, bucket_columns)


def raw_record_bytes(local_pipeline: LocalPipeline, records: pa.RecordBatch, now: datetime) -> float:
    """Stage the records for the raw table, and remove the files. Returns bytes of one, on the mean."""
    incarnations = dict.fromkeys(pc.unique(records.column("topic")).to_pylist(), 1)
    plan = replace(local_pipeline.task_plan(now, "sample", incarnations), entropy_bits=0, hidden=False, folder="")
    with tempfile.TemporaryDirectory(prefix="headrace-staged-") as directory:
        raw = raw_records(plan, directory)
        raw.add(raw_rows(pa.Table.from_batches([records]), plan))
        return float(sum(file.bytes for file in raw.finish()) / records.num_rows)


def columns(paths: Iterable[Path]) -> list[ColumnBytes]:
    """Add up the column chunks of Parquet files, by leaf column, in the order of the schema."""
    costs: dict[str, ColumnBytes] = {}
    for path in paths:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for column in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(column)
                name = chunk.path_in_schema
                cost = costs.setdefault(name, ColumnBytes(name, chunk.physical_type, chunk.compression))
                cost.encodings |= set(chunk.encodings)
                cost.bytes += chunk.total_compressed_size
                cost.bytes_uncompressed += chunk.total_uncompressed_size
                if chunk.statistics is not None:
                    cost.nulls += chunk.statistics.null_count
    return list(costs.values())


def _render_files(out: Console, staged: StagedSample) -> None:
    figures = numbers("rows", "size", "B/row")
    sheet = TextTable(out, [Column("bucket"), *figures, Column("first event"), Column("last event")])
    rows: list[list[str | Text]] = [
        [
            bucket_path(staged.bucket_columns, file.bucket),
            f"{file.rows:,}",
            show_size(file.bytes),
            f"{file.bytes / file.rows:,.1f}",
            instant(file.event_time_min),
            instant(file.event_time_max),
        ]
        for file in sorted(staged.report.files, key=lambda file: file.path)
    ]
    rows += [
        [Text("dead letters", "red"), f"{file.rows:,}", show_size(file.bytes), f"{file.bytes / file.rows:,.1f}", "", ""]
        for file in staged.report.dead_letter_files
    ]
    sheet.add(rows)


def _render_columns(out: Console, staged: StagedSample) -> None:
    total = sum(column.bytes for column in staged.columns)
    figures = numbers("B/row", "share", "nulls")
    encodings = (Column("compression"), Column("encodings"))
    sheet = TextTable(out, [Column("column"), Column("stored as"), *figures, *encodings])
    provenance = set(PROVENANCE.names)
    sheet.add(
        [
            [
                Text(column.path, "dim" if column.path in provenance else ""),
                column.physical_type.lower(),
                f"{column.bytes / staged.rows:,.2f}",
                f"{column.bytes / total:.1%}",
                f"{column.nulls / staged.rows:.0%}" if column.nulls else "",
                f"{column.compression.lower()} {column.bytes_uncompressed / max(column.bytes, 1):.1f}x",
                ", ".join(sorted(column.encodings)),
            ]
            for column in sorted(staged.columns, key=lambda column: -column.bytes)
        ]
    )


def _document(table: str, file: StagedFile, parts: list[ColumnBytes]) -> dict[str, Any]:
    return {
        "table": table,
        "path": file.path,
        "bucket": list(file.bucket),
        "rows": file.rows,
        "bytes": file.bytes,
        "bytes_per_row": round(file.bytes / file.rows, 2),
        "event_time_min": plain(file.event_time_min),
        "event_time_max": plain(file.event_time_max),
        "columns": [{**vars(part), "encodings": sorted(part.encodings)} for part in parts],
    }
