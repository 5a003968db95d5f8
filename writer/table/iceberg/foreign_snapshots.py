"""Describes what other clients committed to an Iceberg table as entries of headrace's log.

Each snapshot that another client laid on ours becomes an entry with the files that it added and removed, and with
Delta's word for what it did. So the rest of headrace meets another client's change as it does on a Delta table.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from writer.core.files import BucketFile
from writer.table.iceberg.metadata.data_files import add_of, canonical, path_of, remove_of
from writer.table.iceberg.metadata.manifests import live_entries
from writer.table.iceberg.metadata.offset_bounds import brings_rows
from writer.table.log.entries import parse_commit_info, removed
from writer.table.log.log import Action

# Keys of an entry's commitInfo: id of the snapshot that it describes, and ids of those whose delete files came with it.
SNAPSHOT, DELETES = "snapshot", "deletesRows"
UNREAD = "headrace.unread"  # tag of a file that another client wrote as headrace reads none: why
# Operations that have no name in Delta: the table is at a snapshot that does not follow ours.
ROLLBACK, REPLACED, EXPIRED = "ROLLBACK", "REPLACE TABLE", "changes whose snapshots expired"


def entries(
    table: Table, known: int | None, location: str, columns: Sequence[str],
    listed: Callable[[], Mapping[str, BucketFile]],
) -> Iterator[list[Action]]:  # fmt: skip
    """Yield an entry for each snapshot between ours and the table's current one, oldest first.

    `known`: id of the snapshot that the log knows; None: none. `columns`: of the log's buckets. `listed`: files that
    the log names then, by path. Where the current snapshot does not follow ours, one entry says what became of them.
    """
    head = table.metadata.current_snapshot()
    path: list[Snapshot] = []
    at = head
    while at is not None and at.snapshot_id != known:
        path.append(at)
        at = table.metadata.snapshot_by_id(at.parent_snapshot_id) if at.parent_snapshot_id is not None else None
    if at is None and known is not None:
        ours = table.metadata.snapshot_by_id(known)
        yield _elsewhere(table, head, ours, _jump(path, ours), location, columns, listed())
        return
    for snapshot in reversed(path):
        yield _entry(table, snapshot, location)


def _entry(table: Table, snapshot: Snapshot, location: str) -> list[Action]:
    added, gone, deletes_rows = _changes(table, snapshot)
    at = snapshot.timestamp_ms
    adds = [_add(table, file, location, at) for file in added]
    removes = [_remove(table, file, location, at) for file in gone]
    brings = bool(added and gone) and brings_rows(added, gone, table.schema())
    operation = _operation(snapshot, added, gone, deletes_rows=deletes_rows, brings=brings)
    return [_info(snapshot, operation, at, [snapshot.snapshot_id] if deletes_rows else []), *removes, *adds]


def _jump(path: Sequence[Snapshot], ours: Snapshot | None) -> str:
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
    total, added = (
        snapshot.summary[name] if snapshot.summary else None for name in ("total-data-files", "added-data-files")
    )
    return snapshot.parent_snapshot_id is None and (total or "0") == (added or "0")


def _sequence(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _elsewhere(
    table: Table, head: Snapshot | None, ours: Snapshot | None, operation: str, location: str, columns: Sequence[str],
    listed: Mapping[str, BucketFile],
) -> list[Action]:  # fmt: skip
    """Describe a table whose current snapshot does not follow ours: what it names now against what the log names."""
    now = {path_of(file, location): file for file in live_files(table, head)}
    at = table.metadata.last_updated_ms
    when = datetime.fromtimestamp(at / 1000, UTC)
    gone = [removed(file, columns, when) for path, file in sorted(listed.items()) if path not in now]
    adds = [_add(table, now[path], location, at) for path in sorted({*now} - listed.keys())]
    deletes = {one.snapshot_id for one in live_entries(table, head, ManifestContent.DELETES)}
    deletes -= {one.snapshot_id for one in live_entries(table, ours, ManifestContent.DELETES)}
    return [_info(head, operation, at, sorted(filter(None, deletes))), *gone, *adds]


def _changes(table: Table, snapshot: Snapshot) -> tuple[list[DataFile], list[DataFile], bool]:
    """Return the data files that a snapshot added and removed, and whether it deleted rows of others."""
    added, gone, deletes_rows = [], [], False
    for manifest in snapshot.manifests(table.io):
        if manifest.added_snapshot_id != snapshot.snapshot_id:
            continue
        if manifest.content == ManifestContent.DELETES:
            deletes_rows = deletes_rows or manifest.has_added_files()
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
            if entry.snapshot_id == snapshot.snapshot_id and entry.status == ManifestEntryStatus.ADDED:
                added.append(entry.data_file)
            elif entry.snapshot_id == snapshot.snapshot_id and entry.status == ManifestEntryStatus.DELETED:
                gone.append(entry.data_file)
    return added, gone, deletes_rows


def live_files(table: Table, snapshot: Snapshot | None) -> Iterator[DataFile]:
    """Yield the data files of a snapshot. Raises OSError."""
    return (entry.data_file for entry in live_entries(table, snapshot, ManifestContent.DATA))


def deleters(entry: Sequence[Action]) -> list[int]:
    """Return ids of the snapshots whose delete files came with what an entry describes."""
    return list(parse_commit_info(entry)[0].get(DELETES, []))


def _operation(
    snapshot: Snapshot, added: Sequence[DataFile], gone: Sequence[DataFile], *, deletes_rows: bool, brings: bool
) -> str:
    """Return Delta's name of what a snapshot did; OVERWRITE for what may move rows in any way."""
    more, less = (sum(file.record_count for file in files) for files in (added, gone))
    match snapshot.summary.operation if snapshot.summary else None:
        case Operation.REPLACE if more == less:
            return "OPTIMIZE"
        case Operation.REPLACE if more < less and not brings:
            return "DELETE"  # written anew without rows that delete files had taken
        case Operation.APPEND if not added:
            return "UPDATE TABLE METADATA"
        case Operation.APPEND:
            return "INSERT"
        case Operation.DELETE if not added:
            return "DELETE"
        case Operation.OVERWRITE if deletes_rows and not added:
            return "DELETE"
        case Operation.OVERWRITE if more < less and not brings:
            return "DELETE"  # written anew without some rows
        case Operation.OVERWRITE if more == less:
            return "UPDATE"
    return "OVERWRITE"


def _info(snapshot: Snapshot | None, operation: str, at: int, deletes: Sequence[int]) -> Action:
    summary: Any = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    info = {
        "timestamp": at, "operation": operation, "operationParameters": {}, "isBlindAppend": False,
        "engineInfo": summary.get("engine-name", "unknown"), SNAPSHOT: snapshot.snapshot_id if snapshot else None,
        **({DELETES: [*deletes]} if deletes else {}),
    }  # fmt: skip
    return {"commitInfo": info}


def _add(table: Table, file: DataFile, location: str, at: int) -> Action:
    found = add_of(file, location, table.schema(), table.specs()[file.spec_id], at)
    if not canonical(file.file_path).startswith(f"{location}/"):
        why = f"does not lie below {location}"
    elif file.file_format != FileFormat.PARQUET:
        why = f"is {file.file_format.name}"
    else:
        return found
    return {"add": {**found["add"], "tags": {UNREAD: why}}}


def _remove(table: Table, file: DataFile, location: str, at: int) -> Action:
    return remove_of(file, location, table.specs()[file.spec_id], at)
