"""Iceberg tables that another client made and changes, to be adopted."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from headrace.writer.cli.maintain.table_adopt import run_adopt
from headrace.writer.output.report import Screen
from headrace.writer.table.iceberg import adoption
from headrace.writer.table.iceberg.metadata.manifests import ManifestWriter
from tests.support.foreign_rows import old_rows
from tests.support.local_driver import pipeline_config
from tests.support.sample_records import NOW

START = {"offsets": {"clicks": {0: 100}}}


COLUMNS = (
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "at", TimestamptzType(), required=False),
    NestedField(3, "note", StringType(), required=False),
    NestedField(4, "legacy", LongType(), required=False),
    NestedField(5, "hour", StringType(), required=False),
)


BY_HOUR = PartitionSpec(PartitionField(5, 1000, IdentityTransform(), "hour"))


def in_catalog(root: Path) -> tuple[Catalog, tuple[str, ...]]:
    settings = pipeline_config(root, "iceberg")
    catalog_table = settings.catalog_place("clicks", settings.pipelines["clicks"].table.location)
    assert catalog_table is not None
    return load_catalog(catalog_table.catalog, **dict(catalog_table.settings)), catalog_table.identifier


def foreign_client(root: Path) -> Table:
    catalog, name = in_catalog(root)
    return catalog.load_table(name)


def create_foreign_table(
    root: Path, *more: NestedField, spec: PartitionSpec = BY_HOUR, rows: pa.Table | None = None, **properties: str
) -> Table:
    """A table with six rows of three hours, in files with field ids."""
    root.mkdir(exist_ok=True)
    catalog, name = in_catalog(root)
    catalog.create_namespace_if_not_exists(name[:-1])
    schema = Schema(*COLUMNS, *more)
    location = f"file://{root}/lake/clicks"
    table = catalog.create_table(name, schema, location, spec, properties=properties)
    table_rows = old_rows() if rows is None else rows
    for piece in filter(len, (table_rows.slice(0, 4), table_rows.slice(4))):
        table.append(piece)
    return table


def adopt(root: Path, *, write: bool = True, **settings: Any) -> None:
    config = pipeline_config(root, "iceberg", **{"start": START, **settings})
    Screen(as_json=True, has_lines=False).show(run_adopt(config, "clicks", write=write, now=NOW))


class Deletes(ManifestWriterV2):
    """Writes a manifest of delete files, which pyiceberg does not."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def delete_rows_by_file(table: Table, **of_file: Any) -> None:
    """Commit as a client that deletes rows without writing their files anew; `of_file`: of the delete file."""
    writer = ManifestWriter(table)
    folder = f"{table.location()}/metadata"
    current = table.metadata.current_snapshot()
    (first, *_) = adoption.live_files(table, current)
    file = DataFile.from_args(
        **{
            "content": DataFileContent.POSITION_DELETES,
            "file_path": f"{table.location()}/data/deletes.parquet",
            "file_format": FileFormat.PARQUET,
            "partition": first.partition,
            "record_count": 1,
            "file_size_in_bytes": 1,
            **of_file,
        }
    )
    out = table.io.new_output(f"{folder}/deletes.avro")
    with Deletes(table.spec(), table.schema(), out, writer.snapshot_id, "deflate") as manifest:
        manifest.add_entry(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
    assert current is not None
    listed = writer._write_list([manifest.to_manifest_file(), *current.manifests(table.io)])
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": writer.snapshot_id,
            "parent-snapshot-id": writer.parent_id,
            "manifest-list": listed,
            "sequence-number": table.metadata.next_sequence_number(),
            "schema-id": table.metadata.current_schema_id,
            "timestamp-ms": table.metadata.last_updated_ms + 1,
            "summary": {"operation": "delete"},
        }
    )
    to = SetSnapshotRefUpdate.model_validate({"ref-name": "main", "type": "branch", "snapshot-id": writer.snapshot_id})
    table.catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=snapshot), to))
