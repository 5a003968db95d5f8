"""Describes what other clients committed to an Iceberg table as entries of headrace's log.

Each catalog commit that another client laid on ours becomes an entry, with the files that it added and removed in all,
and with Delta's word for what it did. So the rest of headrace meets another client's change as on a Delta table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from headrace.writer.core.files import BucketFile
from headrace.writer.storage.damage import FileDamaged, naming_damage
from headrace.writer.table.iceberg.metadata.data_files import canonical_path, describe_add, describe_remove, path_of
from headrace.writer.table.iceberg.metadata.manifests import live_entries, read_entries, read_manifests
from headrace.writer.table.iceberg.metadata.offset_bounds import has_new_rows
from headrace.writer.table.log.entries import parse_commit_info, remove_action
from headrace.writer.table.log.foreign_writes import keeps_offsets, one_line
from headrace.writer.table.log.log import Action

# Keys of an entry's commitInfo: id of the snapshot that it leads to, and ids of those whose delete files came with it.
SNAPSHOT = "snapshot"
DELETES = "deletesRows"
# Tag of a file that another client wrote as headrace reads none: why.
UNREAD = "headrace.unread"
# Operations that have no name in Delta: the table is at a snapshot that does not follow ours.
ROLLBACK = "ROLLBACK"
REPLACED = "REPLACE TABLE"
EXPIRED = "changes whose snapshots expired"
# Several snapshots, of which no metadata file says any more whether one commit brought them.
UNGROUPED = "changes whose metadata files are gone"


@dataclass(frozen=True)
class CatalogCommit:
    """The snapshots that one commit put on `main`, oldest first.

    `is_proven`: metadata files say so. Where some are gone, the snapshots may be those of several commits.
    """

    snapshots: tuple[Snapshot, ...]
    is_proven: bool

    @property
    def newest(self) -> Snapshot:
        """The snapshot that was current after it."""
        return self.snapshots[-1]


@dataclass(frozen=True)
class SnapshotChange:
    """What a snapshot did by itself. `deletes_rows`: it added files that delete rows of others."""

    snapshot: Snapshot
    operation: str
    added: tuple[DataFile, ...]
    removed: tuple[DataFile, ...]
    deletes_rows: bool


def describe_commits(
    table: Table,
    logged_id: int | None,
    location: str,
    columns: Sequence[str],
    list_files: Callable[[], Mapping[str, BucketFile]],
) -> Iterator[list[Action]]:
    """Yield an entry for each catalog commit between ours and the table's current snapshot, oldest first.

    `logged_id`: of the snapshot that the log knows; None: none. `columns`: of the log's buckets. `list_files` returns
    the files that the log names then, by path. Where the current snapshot does not follow ours, one entry describes the
    difference.
    """
    path: list[Snapshot] = []
    snapshot = table.metadata.current_snapshot()
    while snapshot is not None and snapshot.snapshot_id != logged_id:
        path.append(snapshot)
        parent_id = snapshot.parent_snapshot_id
        snapshot = None if parent_id is None else table.metadata.snapshot_by_id(parent_id)
    if snapshot is None and logged_id is not None:
        ours = table.metadata.snapshot_by_id(logged_id)
        yield _describe_jump(table, ours, _jump_operation(path, ours), location, columns, list_files())
        return
    for commit in group_by_commit(table, path[::-1], logged_id):
        yield _describe_commit(table, commit, location)


def _describe_commit(table: Table, commit: CatalogCommit, location: str) -> list[Action]:
    """Return the entry of a catalog commit: a file that one of its snapshots adds and another removes is in neither."""
    changes = [_read_change(table, snapshot) for snapshot in commit.snapshots]
    added = dict[str, DataFile]()
    gone = dict[str, DataFile]()
    for change in changes:
        for file in change.removed:
            if added.pop(file.file_path, None) is None:
                gone[file.file_path] = file
        for file in change.added:
            if gone.pop(file.file_path, None) is None:
                added[file.file_path] = file
    operation = name_operation(changes, [*added.values()], [*gone.values()], is_proven=commit.is_proven)
    deletes = [change.snapshot.snapshot_id for change in changes if change.deletes_rows]
    timestamp_ms = commit.newest.timestamp_ms
    adds = [_add_action(table, file, location, timestamp_ms) for file in added.values()]
    removes = [_remove_action(table, file, location, timestamp_ms) for file in gone.values()]
    return [_commit_info(commit.newest, operation, timestamp_ms, deletes), *removes, *adds]


def name_operation(
    changes: Sequence[SnapshotChange], added: Sequence[DataFile], gone: Sequence[DataFile], *, is_proven: bool
) -> str:
    """Return Delta's name of what the snapshots of a catalog commit did together, oldest first.

    A commit whose snapshots all keep offsets true does so, too. One that moves rows does so as one change: what it took
    away belongs to what it brought. `added`, `gone`: files in all; `is_proven`: as of a `CatalogCommit`.
    """
    if len(changes) == 1:
        return changes[0].operation
    deletes_rows = any(change.deletes_rows for change in changes)
    moves = [change for change in changes if not keeps_offsets(change.operation)]
    if moves and not is_proven:
        return UNGROUPED
    if not moves or not added:
        takes_rows = deletes_rows or any(change.operation == "DELETE" for change in changes)
        if takes_rows or (gone and not added):
            return "DELETE"
        return "OPTIMIZE" if added else "UPDATE TABLE METADATA"
    if not gone and not deletes_rows:
        return "INSERT"
    return "UPDATE" if _row_count(added) == _row_count(gone) else "OVERWRITE"


def _row_count(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _read_change(table: Table, snapshot: Snapshot) -> SnapshotChange:
    added, gone, deletes_rows = _changed_files(table, snapshot)
    brings_rows = bool(added and gone) and has_new_rows(added, gone, table.schema())
    operation = _operation(snapshot, added, gone, deletes_rows=deletes_rows, brings_rows=brings_rows)
    return SnapshotChange(snapshot, operation, tuple(added), tuple(gone), deletes_rows)


def _jump_operation(path: Sequence[Snapshot], ours: Snapshot | None) -> str:
    """Name what brought the table to a snapshot that does not follow ours; `path`: from it to its oldest ancestor.

    A table that was replaced begins again: its first snapshot takes no file of one before it. pyiceberg takes the
    parent's id away where the parent expires, so that alone does not tell.
    """
    if ours is None:
        return EXPIRED
    if path and _sequence(path[-1]) <= _sequence(ours):
        return ROLLBACK
    return REPLACED if not path or _is_first(path[-1]) else EXPIRED


def _is_first(snapshot: Snapshot) -> bool:
    """Return whether a snapshot has its own files alone."""
    if snapshot.parent_snapshot_id is not None:
        return False
    if snapshot.summary is None:
        return True
    return (snapshot.summary["total-data-files"] or "0") == (snapshot.summary["added-data-files"] or "0")


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _describe_jump(
    table: Table,
    ours: Snapshot | None,
    operation: str,
    location: str,
    columns: Sequence[str],
    logged_files: Mapping[str, BucketFile],
) -> list[Action]:
    """Describe a table whose current snapshot does not follow ours: its files now against those that the log names."""
    head = table.metadata.current_snapshot()
    files = {path_of(file, location): file for file in live_files(table, head)}
    timestamp_ms = table.metadata.last_updated_ms
    timestamp = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    removes = [
        remove_action(file, columns, timestamp) for path, file in sorted(logged_files.items()) if path not in files
    ]
    new_paths = sorted(files.keys() - logged_files.keys())
    adds = [_add_action(table, files[path], location, timestamp_ms) for path in new_paths]
    deletes = _delete_entry_snapshots(table, head) - _delete_entry_snapshots(table, ours)
    return [_commit_info(head, operation, timestamp_ms, sorted(filter(None, deletes))), *removes, *adds]


def _delete_entry_snapshots(table: Table, snapshot: Snapshot | None) -> set[int | None]:
    """Return the ids of the snapshots that added the delete files of a snapshot."""
    return {entry.snapshot_id for entry in live_entries(table, snapshot, ManifestContent.DELETES)}


def _changed_files(table: Table, snapshot: Snapshot) -> tuple[list[DataFile], list[DataFile], bool]:
    """Return the data files that a snapshot added and removed, and whether it deleted rows of others."""
    added = list[DataFile]()
    gone = list[DataFile]()
    deletes_rows = False
    for manifest in read_manifests(table, snapshot):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        if manifest.content == ManifestContent.DELETES:
            deletes_rows = deletes_rows or manifest.has_added_files()
            continue
        for entry in read_entries(table, manifest, discard_deleted=False):
            if entry.snapshot_id == snapshot.snapshot_id and entry.status == ManifestEntryStatus.ADDED:
                added.append(entry.data_file)
            elif entry.snapshot_id == snapshot.snapshot_id and entry.status == ManifestEntryStatus.DELETED:
                gone.append(entry.data_file)
    return added, gone, deletes_rows


def live_files(table: Table, snapshot: Snapshot | None) -> Iterator[DataFile]:
    """Yield the data files of a snapshot. Raises OSError."""
    return (entry.data_file for entry in live_entries(table, snapshot, ManifestContent.DATA))


def delete_snapshot_ids(entry: Sequence[Action]) -> list[int]:
    """Return ids of the snapshots whose delete files came with what an entry describes."""
    return list(parse_commit_info(entry)[0].get(DELETES, []))


def _operation(
    snapshot: Snapshot, added: Sequence[DataFile], gone: Sequence[DataFile], *, deletes_rows: bool, brings_rows: bool
) -> str:
    """Return Delta's name of what a snapshot did; OVERWRITE for what may move rows in any way."""
    more = _row_count(added)
    less = _row_count(gone)
    match snapshot.summary.operation if snapshot.summary else None:
        case Operation.REPLACE if more == less:
            return "OPTIMIZE"
        case Operation.REPLACE if more < less and not brings_rows:
            # Files were written anew without rows that delete files had taken.
            return "DELETE"
        case Operation.APPEND if not added:
            return "UPDATE TABLE METADATA"
        case Operation.APPEND:
            return "INSERT"
        case Operation.DELETE if not added:
            return "DELETE"
        case Operation.OVERWRITE if deletes_rows and not added:
            return "DELETE"
        case Operation.OVERWRITE if more < less and not brings_rows:
            # Files were written anew without some rows.
            return "DELETE"
        case Operation.OVERWRITE if more == less:
            return "UPDATE"
    return "OVERWRITE"


def _commit_info(snapshot: Snapshot | None, operation: str, timestamp_ms: int, deletes: Sequence[int]) -> Action:
    summary: Any = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    info = {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "engineInfo": summary.get("engine-name", "unknown"),
        SNAPSHOT: snapshot.snapshot_id if snapshot else None,
    }
    if deletes:
        info[DELETES] = [*deletes]
    return {"commitInfo": info}


def _add_action(table: Table, file: DataFile, location: str, timestamp_ms: int) -> Action:
    """Return the `add` of a data file, with a tag where headrace does not read it."""
    action = describe_add(file, location, table.schema(), table.specs()[file.spec_id], timestamp_ms)
    reason = _unread_reason(file, location)
    return {"add": {**action["add"], "tags": {UNREAD: reason}}} if reason else action


def _unread_reason(file: DataFile, location: str) -> str:
    """Return why headrace does not read a file; empty where it does."""
    if not canonical_path(file.file_path).startswith(f"{location}/"):
        return f"does not lie below {location}"
    if file.file_format != FileFormat.PARQUET:
        return f"is {file.file_format.name}"
    return ""


def _remove_action(table: Table, file: DataFile, location: str, timestamp_ms: int) -> Action:
    return describe_remove(file, location, table.specs()[file.spec_id], timestamp_ms)


def group_by_commit(table: Table, snapshots: Sequence[Snapshot], logged_id: int | None) -> list[CatalogCommit]:
    """Group the snapshots that follow the one that the log knows by the commits that brought them, oldest first.

    A client may put several snapshots into one commit: `upsert` and `overwrite` of pyiceberg put one that takes rows
    and one that adds some. Readers see the table before the commit or after it, so what it did is what all its
    snapshots did. Each commit leaves a metadata file, which names the snapshot that was current then: `metadata-log` of
    https://iceberg.apache.org/spec/#table-metadata-fields.

    `snapshots`: parents and children from the logged snapshot to the current one, oldest first. `logged_id`: of the
    snapshot before them, which the log knows; None: there is none. Metadata files are read where there are several
    snapshots. Raises OSError for a metadata file that exists and cannot be read.
    """
    if len(snapshots) <= 1:
        return [CatalogCommit((snapshot,), is_proven=True) for snapshot in snapshots]
    heads = _collect_heads(table, snapshots[-1].snapshot_id, logged_id)
    return list(_cut_at_heads(snapshots, heads))


def _collect_heads(table: Table, current: int, logged_id: int | None) -> Mapping[int, bool]:
    """Return which snapshots were current since the logged one, and of which the metadata file before is there, too."""
    heads = {current: False}
    newer: int | None = current
    for metadata in _earlier_metadata(table):
        if metadata is None:
            newer = None
            continue
        head = metadata.current_snapshot_id
        if head == newer:
            continue
        if newer is not None:
            heads[newer] = True
        if head == logged_id:
            break
        if head is not None:
            heads.setdefault(head, False)
        newer = head
    return heads


def _cut_at_heads(snapshots: Sequence[Snapshot], heads: Mapping[int, bool]) -> Iterator[CatalogCommit]:
    members: list[Snapshot] = []
    for snapshot in snapshots:
        members.append(snapshot)
        if snapshot.snapshot_id in heads:
            # A snapshot between two that were current came alone, whatever lay between their metadata files.
            is_proven = len(members) == 1 or heads[snapshot.snapshot_id]
            yield CatalogCommit(tuple(members), is_proven)
            members = []


def _earlier_metadata(table: Table) -> Iterator[TableMetadata | None]:
    """Yield what each metadata file before the table's own says, newest first; None for one that is gone or damaged."""
    for entry in reversed(table.metadata.metadata_log):
        try:
            with naming_damage(entry.metadata_file, "a metadata file of Iceberg"):
                yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except (FileNotFoundError, FileDamaged):
            yield None
        except OSError as error:
            raise OSError(
                f"cannot read {entry.metadata_file}, which says what one commit of another client brought: "
                f"{one_line(error).rstrip('.')}. Let the credentials of the table's files read its metadata, too"
            ) from error
