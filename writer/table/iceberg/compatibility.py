"""Finds what another client changed of an Iceberg table so that headrace cannot go on with it."""

from collections.abc import Collection, Iterable, Sequence
from urllib.parse import unquote

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform

from writer.table.iceberg import foreign_snapshots
from writer.table.iceberg.metadata.manifests import deleted_from, live_entries, read_manifests
from writer.table.iceberg.metadata.schema import in_files
from writer.table.iceberg.metadata.snapshots import DRAFT, SNAPSHOT, TAG, VERSION
from writer.table.log.foreign_writes import ForeignChange
from writer.table.log.log import Action

FORMAT_VERSION = 2  # version of the tables that are written


def check_properties(table: Table) -> tuple[int, str]:
    """Return which entry of the log the table names, and its draft. Raises ForeignChange where they are not there."""
    properties = table.properties
    missing = [name for name in (VERSION, DRAFT) if name not in properties]
    missing += [VERSION] if not properties.get(VERSION, "0").isdecimal() else []
    if not missing and properties[VERSION] != "0" and SNAPSHOT not in properties:
        missing = [SNAPSHOT]  # the first entry has none
    if not missing:
        version = properties[VERSION]
        if version != "0" and (ours := table.metadata.snapshot_by_id(int(properties[SNAPSHOT]))) and ours.summary:
            version = ours.summary[VERSION] or version  # another client may have set the property
        return int(version), properties[DRAFT]
    tagged = table.metadata.refs.get(TAG)
    newest = table.metadata.snapshot_by_id(tagged.snapshot_id) if tagged else None
    if newest is None or newest.summary is None or newest.summary[VERSION] is None:
        advice = "`headrace table adopt` says whether it can be adopted; else give the pipeline another table"
    else:
        values = {VERSION: newest.summary[VERSION], DRAFT: "drafts/lost", SNAPSHOT: newest.snapshot_id}
        pairs = ", ".join(f"'{name}'='{value}'" for name, value in values.items() if name in missing)
        advice = f"Give it what the tag {TAG} says: ALTER TABLE … SET TBLPROPERTIES ({pairs})"
    raise ForeignChange(
        f"{_named(table)} has no property {missing[0]}: another client made the table, or took the property away. "
        f"{advice}."
    )


def check_partitions(table: Table, bucket_columns: Sequence[str]) -> None:
    """Raise ForeignChange where the table, or a file of it, is not partitioned by the bucket columns alone."""
    spec, schema = table.spec(), table.schema()
    known = [
        in_files(schema.find_column_name(field.source_id) or "")
        if isinstance(field.transform, IdentityTransform)
        else ""
        for field in spec.fields
    ]
    if known != list(bucket_columns):
        by = ", ".join(f"{field.transform}({field.name})" for field in spec.fields) or "nothing"
        raise ForeignChange(
            f"another client changed the partitioning of {_named(table)}: it is by {by} now, and headrace's buckets "
            f"are partitions by {', '.join(bucket_columns)}. Change it back with ALTER TABLE … ADD and DROP PARTITION "
            "FIELD, then start again."
        )
    head = table.metadata.current_snapshot()
    for manifest in read_manifests(table, head):
        is_live = manifest.has_added_files() or manifest.has_existing_files()
        if manifest.content == ManifestContent.DATA and is_live and manifest.partition_spec_id != spec.spec_id:
            raise ForeignChange(
                f"another client wrote files of another partitioning into {_named(table)}, so their rows are in no "
                "bucket. Write them anew by that of now: CALL …system.rewrite_data_files(table => "
                f"'{'.'.join(table.name())}', options => map('rewrite-all', 'true')). Then start again."
            )


def check_files(table: Table, entries: Iterable[Sequence[Action]]) -> None:
    """Raise ForeignChange where entries about other clients name files that headrace does not read."""
    there = dict[str, str]()
    for action in (action for actions in entries for action in actions):
        match action:
            case {"add": {"path": path, "tags": {foreign_snapshots.UNREAD: why}}}:
                there[path] = why
            case {"remove": {"path": path}}:
                there.pop(path, None)
    for path, why in there.items():
        raise ForeignChange(
            f"another client wrote the file {unquote(path)} of {_named(table)}, which {why}: headrace reads Parquet "
            "below the table's location alone. Take back its write.data.path or write.format.default, and write it "
            f"anew: CALL …system.rewrite_data_files(table => '{'.'.join(table.name())}', options => "
            "map('rewrite-all', 'true')). Then start again."
        )


def check_format(table: Table) -> None:
    """Raise ForeignChange where another client raised the table's format version."""
    if (version := table.metadata.format_version) != FORMAT_VERSION:
        raise ForeignChange(
            f"another client raised {_named(table)} to Iceberg's format version {version}; headrace writes "
            f"{FORMAT_VERSION}, and none can be lowered. Start a new pipeline name on a new location."
        )


def check_undo(table: Table, snapshots: Collection[int], before: Snapshot | None, *, rows_went: bool) -> None:
    """Raise ForeignChange where a rewind that takes changes back would leave rows out, or bring deleted ones back.

    `snapshots`: ids of those of the changes that brought delete files; `before`: the snapshot before the changes, None
    where it expired; `rows_went`: delete files took rows before.
    """
    head = table.metadata.current_snapshot()
    deletes = live_entries(table, head, ManifestContent.DELETES) if snapshots else ()
    for at in {*snapshots} & {entry.snapshot_id for entry in deletes}:
        theirs = table.metadata.snapshot_by_id(at)
        back = theirs.parent_snapshot_id if theirs else "the snapshot before it"
        raise ForeignChange(
            f"delete files of another client's snapshot {at} lie on {_named(table)}, and a rewind leaves them: "
            f"the rows that they take would stay away. {_roll_back(table, back)}"
        )
    if not rows_went:
        return
    if before is None:
        raise ForeignChange(
            f"delete files took rows of {_named(table)} before this change, whose snapshot before it expired: a rewind "
            "could bring them back with their files. `headrace table accept` keeps the table as it is."
        )
    now = {entry.data_file.file_path for entry in live_entries(table, head, ManifestContent.DATA)}
    if path := deleted_from(table, before, lambda path: path not in now):  # added again, it is newer than the deletes
        raise ForeignChange(
            f"delete files took rows of {path} before another client changed {_named(table)}, and a rewind would bring "
            f"them back with the file. {_roll_back(table, before.snapshot_id)}"
        )


def _roll_back(table: Table, snapshot: int | str | None) -> str:
    name = ".".join(table.name())
    return f"Roll the table back first: CALL …system.rollback_to_snapshot('{name}', {snapshot}). Then rewind again."


def _named(table: Table) -> str:
    return f"table {'.'.join(table.name())} at {table.location()}"
