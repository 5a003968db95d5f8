"""Finds what another client changed of an Iceberg table so that headrace cannot go on with it."""

from collections.abc import Collection, Iterable, Sequence
from urllib.parse import unquote

from pyiceberg.manifest import ManifestContent
from pyiceberg.partitioning import PartitionField
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from headrace.writer.table.iceberg import foreign_snapshots
from headrace.writer.table.iceberg.metadata.manifests import (
    find_file_with_deletes,
    is_live,
    live_entries,
    read_manifests,
)
from headrace.writer.table.iceberg.metadata.schema import name_in_files
from headrace.writer.table.iceberg.metadata.snapshots import DRAFT, SNAPSHOT, TAG, VERSION
from headrace.writer.table.log.foreign_writes import ForeignChange, TableUnwritable
from headrace.writer.table.log.log import Action

# Version of the tables that are written.
FORMAT_VERSION = 2


def check_properties(table: Table) -> tuple[int, str]:
    """Return which entry of the log the table names, and its draft. Raises ForeignChange where they are not there."""
    properties = table.properties
    missing = _missing_properties(table)
    if not missing:
        version = properties[VERSION]
        if version != "0":
            snapshot = table.metadata.snapshot_by_id(int(properties[SNAPSHOT]))
            if snapshot and snapshot.summary:
                # Another client may have set the property.
                version = snapshot.summary[VERSION] or version
        return int(version), properties[DRAFT]
    raise ForeignChange(
        f"{_table_and_location(table)} has no property {missing[0]}: another client made the table, or took the "
        f"property away. {_restore_advice(table, missing)}."
    )


def _missing_properties(table: Table) -> list[str]:
    properties = table.properties
    missing = [name for name in (VERSION, DRAFT) if name not in properties]
    if not properties.get(VERSION, "0").isdecimal():
        missing.append(VERSION)
    # The first entry has no snapshot.
    if not missing and properties[VERSION] != "0" and SNAPSHOT not in properties:
        missing.append(SNAPSHOT)
    return missing


def _restore_advice(table: Table, missing: Collection[str]) -> str:
    """Return how to give a table its properties again."""
    tagged = table.metadata.refs.get(TAG)
    newest = table.metadata.snapshot_by_id(tagged.snapshot_id) if tagged else None
    if newest is None or newest.summary is None or newest.summary[VERSION] is None:
        return "`headrace table adopt` says whether it can be adopted; else give the pipeline another table"
    values = {VERSION: newest.summary[VERSION], DRAFT: "drafts/lost", SNAPSHOT: newest.snapshot_id}
    pairs = ", ".join(f"'{name}'='{value}'" for name, value in values.items() if name in missing)
    return f"Give it what the tag {TAG} says: ALTER TABLE … SET TBLPROPERTIES ({pairs})"


def check_partitions(table: Table, bucket_columns: Sequence[str]) -> None:
    """Raise ForeignChange where the table, or a file of it, is not partitioned by the bucket columns alone."""
    spec = table.spec()
    partition_columns = [_partition_column(table, field) for field in spec.fields]
    if partition_columns != list(bucket_columns):
        transforms = ", ".join(f"{field.transform}({field.name})" for field in spec.fields) or "nothing"
        raise ForeignChange(
            f"another client changed the partitioning of {_table_and_location(table)}: it is by {transforms} now, and "
            f"headrace's buckets are partitions by {', '.join(bucket_columns)}. Change it back with "
            "ALTER TABLE … ADD and DROP PARTITION FIELD, then start again."
        )
    head = table.metadata.current_snapshot()
    for manifest in read_manifests(table, head):
        is_other_spec = manifest.partition_spec_id != spec.spec_id
        if manifest.content == ManifestContent.DATA and is_live(manifest) and is_other_spec:
            raise ForeignChange(
                f"another client wrote files of another partitioning into {_table_and_location(table)}, so their rows "
                "are in no bucket. Write them anew by that of now: CALL …system.rewrite_data_files(table => "
                f"'{'.'.join(table.name())}', options => map('rewrite-all', 'true')). Then start again."
            )


def _partition_column(table: Table, field: PartitionField) -> str:
    """Return the column, by its name in files, whose values a partition field has; empty where it has others."""
    if not isinstance(field.transform, IdentityTransform):
        return ""
    return name_in_files(table.schema().find_column_name(field.source_id) or "")


def check_files(table: Table, entries: Iterable[Sequence[Action]]) -> None:
    """Raise ForeignChange where entries about other clients name files that headrace does not read."""
    reasons: dict[str, str] = {}
    for actions in entries:
        for action in actions:
            match action:
                case {"add": {"path": path, "tags": {foreign_snapshots.UNREAD: reason}}}:
                    reasons[path] = reason
                case {"remove": {"path": path}}:
                    reasons.pop(path, None)
    for path, reason in reasons.items():
        raise ForeignChange(
            f"another client wrote the file {unquote(path)} of {_table_and_location(table)}, which {reason}: headrace "
            "reads Parquet below the table's location alone. Take back its write.data.path or write.format.default, "
            f"and write it anew: CALL …system.rewrite_data_files(table => '{'.'.join(table.name())}', options => "
            "map('rewrite-all', 'true')). Then start again."
        )


def check_format(table: Table) -> None:
    """Raise TableUnwritable where another client raised the table's format version."""
    version = table.metadata.format_version
    if version != FORMAT_VERSION:
        raise TableUnwritable(
            f"another client raised {_table_and_location(table)} to Iceberg's format version {version}; headrace "
            f"writes {FORMAT_VERSION}, and none can be lowered. Start a new pipeline name on a new location."
        )


def check_undo(table: Table, delete_snapshots: Collection[int], before: Snapshot | None, *, had_deletes: bool) -> None:
    """Raise ForeignChange where a rewind that takes changes back would leave rows out, or bring deleted ones back.

    `delete_snapshots`: ids of those of the changes that brought delete files; `before`: the snapshot before the
    changes, None where it expired; `had_deletes`: delete files took rows before.
    """
    head = table.metadata.current_snapshot()
    if delete_snapshots:
        _check_no_deletes_stay(table, head, delete_snapshots)
    if not had_deletes:
        return
    if before is None:
        raise ForeignChange(
            f"delete files took rows of {_table_and_location(table)} before this change, whose snapshot before it "
            "expired: a rewind could bring them back with their files. `headrace table accept` keeps the table as it "
            "is."
        )
    # A file that the rewind adds again is newer than the deletes, which then take none of its rows.
    paths = {entry.data_file.file_path for entry in live_entries(table, head, ManifestContent.DATA)}
    path = find_file_with_deletes(table, before, lambda path: path not in paths)
    if path:
        raise ForeignChange(
            f"delete files took rows of {path} before another client changed {_table_and_location(table)}, and a "
            f"rewind would bring them back with the file. {_rollback_advice(table, before.snapshot_id)}"
        )


def _check_no_deletes_stay(table: Table, head: Snapshot | None, delete_snapshots: Collection[int]) -> None:
    """Raise ForeignChange where delete files of these snapshots are still in the table."""
    deletes = live_entries(table, head, ManifestContent.DELETES)
    for snapshot_id in {entry.snapshot_id for entry in deletes}.intersection(delete_snapshots):
        assert snapshot_id is not None, "the ids of changes are numbers"
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        target = snapshot.parent_snapshot_id if snapshot else "the snapshot before it"
        raise ForeignChange(
            f"delete files of another client's snapshot {snapshot_id} lie on {_table_and_location(table)}, and a "
            "rewind leaves them: the rows that they take would stay away. "
            f"{_rollback_advice(table, target)}"
        )


def _rollback_advice(table: Table, target: int | str | None) -> str:
    name = ".".join(table.name())
    return f"Roll the table back first: CALL …system.rollback_to_snapshot('{name}', {target}). Then rewind again."


def _table_and_location(table: Table) -> str:
    return f"table {'.'.join(table.name())} at {table.location()}"
