"""An Iceberg table that another client made and fills, as `headrace table adopt` looks at it and takes it over.

The adoption is one commit of the catalog: it adds the columns that are missing, and names the first entry of a journal,
which has all files of the current snapshot. No snapshot is added, and no file is written anew.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema, index_name_by_id
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform

from headrace.writer.config.sections.table import ICEBERG_RESERVED
from headrace.writer.core.files import BucketFile
from headrace.writer.table.iceberg.compatibility import FORMAT_VERSION
from headrace.writer.table.iceberg.foreign_snapshots import live_files
from headrace.writer.table.iceberg.iceberg import Iceberg
from headrace.writer.table.iceberg.metadata.data_files import canonical_path, describe_add
from headrace.writer.table.iceberg.metadata.manifests import is_live, read_manifests
from headrace.writer.table.iceberg.metadata.schema import schema_of
from headrace.writer.table.iceberg.metadata.snapshots import VERSION
from headrace.writer.table.log.entries import added_file, creation_actions
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.log import Action, State
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.takeover import takeover_actions

if TYPE_CHECKING:
    # It imports pandas, half a second.
    from pyarrow import dataset

# Columns of headrace, by their names in files and in Iceberg.
_OWN_COLUMNS = frozenset({"_partition", "_kafka_partition"})


class ForeignTable:
    """A table that the catalog knows, and that has no journal yet."""

    def __init__(self, form: Iceberg, pipeline: str) -> None:
        self.location = form.location
        self.store = form.store
        self._form = form
        self._pipeline = pipeline

    def exists(self) -> bool:
        """Return whether the catalog knows the table. Raises ConfigError where it knows the name at another place."""
        return self._form.log.exists()

    def snapshot(self) -> PipelineSnapshot:
        """Return what the table says of itself, as a log would; of one that has a journal, what that says."""
        self._table = self._form.table()
        if VERSION in self._table.properties:
            return PipelineSnapshot(self._form.log.state(), self._pipeline)
        return PipelineSnapshot(_state(self._table), self._pipeline)

    def obstacles(self) -> list[str]:
        """Return what keeps Iceberg's side of the table from being taken over, each as a sentence with its fix."""
        if VERSION in self._table.properties:
            # The owner says whose it is.
            return []
        if self._form.has_entries():
            return [f"A journal of headrace lies there: another client took its property {VERSION} away. Set it again."]
        return [
            *_metadata_obstacles(self._table),
            *_column_obstacles(self._table),
            *_file_obstacles(self._table, self.location),
        ]

    def bucket_files(self, snapshot: PipelineSnapshot) -> list[BucketFile]:
        """Return the files of the current snapshot, in the order of their paths."""
        columns = snapshot.state.metadata["partitionColumns"]
        files = [added_file(columns, action["add"]) for action in self._add_actions()]
        return sorted(files, key=lambda file: file.path)

    def rows(self) -> "dataset.Dataset":
        """Return the rows of the current snapshot, by the names that columns have in files."""
        snapshot = self.snapshot()
        return self._form.rows_of(self.bucket_files(snapshot), snapshot.state)

    def take(
        self, snapshot: PipelineSnapshot, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
    ) -> int:
        """Make the table the pipeline's, on exactly this snapshot. Returns the version that holds it: 0.

        Raises CommitFailed when something was written meanwhile, or nobody knows.
        """
        info, *actions = takeover_actions(self._pipeline, snapshot.state.metadata, 0, columns, layout, facts)
        protocol = {"protocol": snapshot.state.protocol}
        try:
            is_taken = self._form.take(self._table, [info, protocol, *actions, *self._add_actions()])
        except OSError as error:
            raise CommitFailed(
                f"whether the table at {self.location} is adopted is unknown: {error}. Look again."
            ) from error
        if not is_taken:
            raise CommitFailed(
                f"the table at {self.location} was written to meanwhile; nothing was adopted. Stop who writes it, then "
                "look again."
            )
        return 0

    def _add_actions(self) -> list[Action]:
        table = self._table
        schema = table.schema()
        specs = table.specs()
        timestamp_ms = table.metadata.last_updated_ms
        return [
            describe_add(file, self.location, schema, specs[file.spec_id], timestamp_ms)
            for file in live_files(table, table.metadata.current_snapshot())
        ]


def _state(table: Table) -> State:
    schema = table.schema()
    names = [field.name for field in schema.fields if _is_supported(schema, field.name)]
    columns = schema_to_pyarrow(schema.select(*names), include_field_ids=False)
    actions = creation_actions("", "", columns, [_partition_name(schema, field) for field in table.spec().fields])
    actions[-1]["metaData"]["id"] = str(table.metadata.table_uuid)
    return State(-1).apply(-1, actions)


def _partition_name(schema: Schema, field: PartitionField) -> str:
    """Return a partition field as a column, where it is one, and else as what it makes of a column."""
    source = schema.find_column_name(field.source_id) or "a column that was dropped"
    return source if isinstance(field.transform, IdentityTransform) else f"{field.transform} of {source}"


def _is_supported(schema: Schema, name: str) -> bool:
    """Return whether headrace writes a column's type, and Iceberg then finds the one that it has."""
    try:
        arrow = schema_to_pyarrow(schema.select(name), include_field_ids=False)
        delta = pa.schema(DeltaSchema.from_arrow(arrow).to_arrow())
        iceberg = schema_to_pyarrow(schema_of(delta), include_field_ids=False)
        return bool(iceberg.field(0).type == arrow.field(0).type)
    except Exception:  # noqa: BLE001 - delta-rs raises just that for a type that it does not have
        return False


def _metadata_obstacles(table: Table) -> Iterator[str]:
    version = table.metadata.format_version
    if version != FORMAT_VERSION:
        fix = "Set format-version to 2" if version < FORMAT_VERSION else "Copy its rows into a table of format 2"
        yield f"Its format version is {version}; headrace writes {FORMAT_VERSION}. {fix}."
    for field in table.spec().fields:
        if field.name != table.schema().find_column_name(field.source_id):
            yield (
                f"Its partition field {field.name} is not a column as it is. Partition it by the identity of a bucket "
                "column."
            )


def _column_obstacles(table: Table) -> Iterator[str]:
    schema = table.schema()
    for field in schema.fields:
        if field.name.lower() in ICEBERG_RESERVED | _OWN_COLUMNS:
            yield f"Its column {field.name} has a name that Iceberg or headrace keeps for itself. Drop it."
        elif not _is_supported(schema, field.name):
            yield f"Its column {field.name} is {field.field_type}, which headrace does not write. Drop it."
    yield from _renamed_column(table)


def _renamed_column(table: Table) -> Iterator[str]:
    """Yield the obstacle of the first column that had another name, or whose name another column had."""
    names_by_id = index_name_by_id(table.schema())
    names = set(names_by_id.values())
    for older_schema in table.metadata.schemas:
        for field_id, older_name in index_name_by_id(older_schema).items():
            name = names_by_id.get(field_id, older_name)
            is_other_field = older_name in names and field_id not in names_by_id
            if name != older_name or is_other_field:
                before = "another one of that name" if is_other_field else older_name
                yield (
                    f"Its column {name} was {before} before, and files may have that still: headrace reads them by "
                    "names. Copy the rows into a new table."
                )
                return


def _file_obstacles(table: Table, location: str) -> Iterator[str]:
    current = table.metadata.current_snapshot()
    manifests = read_manifests(table, current)
    if any(manifest.content == ManifestContent.DELETES and is_live(manifest) for manifest in manifests):
        yield "Row deletes lie on its files, which headrace does not read. Rewrite them (rewrite_data_files)."
    for file in live_files(table, current):
        if not canonical_path(file.file_path).startswith(f"{location}/"):
            yield f"Its file {file.file_path} does not lie below {location}. Copy the rows into a new table."
            return
        if file.file_format != FileFormat.PARQUET:
            yield f"Its file {file.file_path} is {file.file_format.name}, and headrace reads Parquet. Write it anew."
            return
        if file.spec_id != table.spec().spec_id:
            yield f"Its file {file.file_path} is partitioned in an older way. Write it anew (rewrite_data_files)."
            return
