"""Makes the commit of one log entry: its snapshot, what must hold for it to land, and what the table then says.

pyiceberg's Transaction is not used: it tries again by itself, and lays an append on whatever came meanwhile.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema

from headrace.writer.table.iceberg.metadata.data_files import data_file, full_paths
from headrace.writer.table.iceberg.metadata.manifests import MERGE_FROM, ManifestWriter
from headrace.writer.table.iceberg.metadata.schema import MAPPING, mapping_of, with_iceberg_names
from headrace.writer.table.log.entries import SEALED_END, parse_commit_info
from headrace.writer.table.log.log import Action, State

# Reference to our newest snapshot: no expiry removes it, whoever runs it.
TAG = "headrace"
# Properties of the table.
VERSION = "headrace.version"
DRAFT = "headrace.entry"
SNAPSHOT = "headrace.snapshot"
# In the summary of a snapshot that seals buckets: where the last of them ends.
SEALED = "headrace.sealed-end"
# Property: where the files lie, whatever location the catalog gave the table.
LOCATION = "headrace.location"
# Property of a table whose log does not lie in its own folder.
LOG_LOCATION = "headrace.log-location"


@dataclass(frozen=True)
class PreparedCommit:
    """A commit whose manifests are written, and that the catalog was not asked for yet.

    `written`: paths of manifests and their list. They are orphans if the commit does not land.
    """

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: Sequence[str]


def prepare_commit(
    table: Table, actions: Sequence[Action], location: str, version: int, draft: str, merge_from: int = MERGE_FROM
) -> PreparedCommit:
    """Write the manifests of an entry that is to follow the table's current snapshot. Raises FilesGone, OSError."""
    adds = [action["add"] for action in actions if "add" in action]
    removes = [action["remove"] for action in actions if "remove" in action]
    manifests = ManifestWriter(table, merge_from)
    schema = table.schema()
    spec = table.spec()
    added = [data_file(add, location, schema, spec) for add in adds]
    # Rows may have become dead letters.
    info, facts = parse_commit_info(actions)
    is_reprocess = facts.get("kind") == "reprocess"
    manifest_list = manifests.write(added, full_paths(location, removes), rows_stay=bool(added) or is_reprocess)
    moves_only = bool(removes) and not any(action["dataChange"] for action in [*adds, *removes])
    summary = _summary(table, added, manifests.removed, moves_only=moves_only, version=version)
    sealed_end = info.get("operationParameters", {}).get(SEALED_END)
    if sealed_end is not None:
        summary[SEALED] = sealed_end
    snapshot = _make_snapshot(table, manifests, manifest_list, summary)
    # Whoever made the table may have died before it knew the columns' ids.
    is_first = manifests.parent_id is None
    updates = (
        *column_changes(table, actions, keeps_mapping=not is_first),
        AddSnapshotUpdate(snapshot=snapshot),
        _set_reference(MAIN_BRANCH, SnapshotRefType.BRANCH, manifests.snapshot_id),
        _set_reference(TAG, SnapshotRefType.TAG, manifests.snapshot_id),
        SetPropertiesUpdate(updates={VERSION: str(version), DRAFT: draft, SNAPSHOT: str(manifests.snapshot_id)}),
    )
    return PreparedCommit(_requirements(table, manifests.parent_id), updates, manifests.written)


def _make_snapshot(table: Table, manifests: ManifestWriter, manifest_list: str, summary: Mapping[str, str]) -> Snapshot:
    metadata = table.metadata
    # Clocks of other clients may be ahead.
    timestamp_ms = max(int(time.time() * 1000), metadata.last_updated_ms + 1)
    return Snapshot.model_validate(
        {
            "snapshot-id": manifests.snapshot_id,
            "parent-snapshot-id": manifests.parent_id,
            "manifest-list": manifest_list,
            "sequence-number": metadata.next_sequence_number(),
            "summary": summary,
            "timestamp-ms": timestamp_ms,
            "schema-id": metadata.current_schema_id,
        }
    )


def prepare_takeover(
    table: Table, actions: Sequence[Action], draft: str, properties: Mapping[str, str]
) -> PreparedCommit:
    """Return the commit that names the first entry of a table which another client made. It adds no snapshot."""
    head = table.metadata.current_snapshot_id
    updates = list(column_changes(table, actions))
    own_properties = {VERSION: "0", DRAFT: draft}
    if head:
        own_properties[SNAPSHOT] = str(head)
        updates.append(_set_reference(TAG, SnapshotRefType.TAG, head))
    updates.append(SetPropertiesUpdate(updates={**properties, **own_properties}))
    return PreparedCommit(_requirements(table, head), tuple(updates), ())


def _requirements(table: Table, head: int | None) -> tuple[TableRequirement, ...]:
    """Return the requirements of a commit: it is the same table, at this snapshot, with the same columns."""
    return (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head}),
        require_columns(table),
    )


def _set_reference(name: str, kind: SnapshotRefType, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": kind, "snapshot-id": snapshot_id})


def column_changes(
    table: Table, actions: Sequence[Action] = (), *, keeps_mapping: bool = True
) -> tuple[TableUpdate, ...]:
    """Return what changes so that an entry's columns are the table's, and the mapping names all.

    Without the mapping a reader takes columns of our files by position, or not at all. `keeps_mapping`: names that it
    has besides. Nothing where all is so already.
    """
    schema = table.schema()
    updates: tuple[TableUpdate, ...] = ()
    metadata = next((action["metaData"] for action in actions if "metaData" in action), None)
    if metadata is not None:
        wanted: pa.Schema = with_iceberg_names(State(0, metadata).columns())
        update = UpdateSchema(table.transaction()).union_by_name(wanted)
        # pyiceberg's Transaction calls these.
        schema = update._apply()  # noqa: SLF001
        updates, _ = update._commit()  # noqa: SLF001
    current = table.properties.get(MAPPING)
    mapping = mapping_of(schema, current if keeps_mapping else None)
    if mapping != current:
        updates = (*updates, SetPropertiesUpdate(updates={MAPPING: mapping}))
    return updates


def require_columns(table: Table) -> TableRequirement:
    """Return the requirement that no client changes columns meanwhile.

    Another process may write an entry about such a change before ours, and the mapping would lack the new columns.
    """
    return AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})


def _summary(
    table: Table, added: Sequence[DataFile], removed: Sequence[DataFile], *, moves_only: bool, version: int
) -> dict[str, str]:
    """Return what the snapshot did, and the totals after it: other clients add theirs to them."""
    parent = table.metadata.current_snapshot()
    before: Mapping[str, Any] = parent.summary.additional_properties if parent and parent.summary else {}
    operation = _operation(is_added=bool(added), is_removed=bool(removed), moves_only=moves_only)
    summary = {"operation": operation.value, "engine-name": "headrace", VERSION: str(version)}
    counts = {
        "data-files": (len(added), len(removed)),
        "records": (_sum_rows(added), _sum_rows(removed)),
        "files-size": (_sum_bytes(added), _sum_bytes(removed)),
    }
    for name, (more, less) in counts.items():
        if more:
            summary[f"added-{name}"] = str(more)
        if less:
            verb = "removed" if name == "files-size" else "deleted"
            summary[f"{verb}-{name}"] = str(less)
        summary[f"total-{name}"] = str(int(before.get(f"total-{name}", 0)) + more - less)
    for name in ("delete-files", "position-deletes", "equality-deletes"):
        summary[f"total-{name}"] = before.get(f"total-{name}", "0")
    return summary


def _operation(*, is_added: bool, is_removed: bool, moves_only: bool) -> Operation:
    """Return Iceberg's name of what a snapshot does that adds files, removes some, or moves rows between them."""
    if not is_removed:
        return Operation.APPEND
    if moves_only:
        return Operation.REPLACE
    return Operation.OVERWRITE if is_added else Operation.DELETE


def _sum_rows(files: Sequence[DataFile]) -> int:
    return sum(file.record_count for file in files)


def _sum_bytes(files: Sequence[DataFile]) -> int:
    return sum(file.file_size_in_bytes for file in files)
