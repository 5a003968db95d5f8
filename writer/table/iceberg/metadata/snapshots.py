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

from writer.table.iceberg.metadata.data_files import data_file, full_paths
from writer.table.iceberg.metadata.manifests import MERGE_FROM, ManifestWriter
from writer.table.iceberg.metadata.schema import MAPPING, mapping_of, renamed
from writer.table.log.entries import parse_commit_info
from writer.table.log.log import Action, State

TAG = "headrace"  # reference to our newest snapshot: no expiry removes it, whoever runs it
VERSION, DRAFT, SNAPSHOT = "headrace.version", "headrace.entry", "headrace.snapshot"  # properties of the table
LOCATION = "headrace.location"  # property: where the files lie, whatever location the catalog gave the table
LOG_LOCATION = "headrace.log-location"  # property of a table whose log does not lie in its own folder


@dataclass(frozen=True)
class PreparedCommit:
    """A commit whose manifests are written, and that the catalog was not asked for yet."""

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: Sequence[str]  # paths of manifests and their list: orphans if the commit does not land


def prepare(
    table: Table, actions: Sequence[Action], location: str, version: int, draft: str, merge_from: int = MERGE_FROM
) -> PreparedCommit:
    """Write the manifests of an entry that is to follow the table's current snapshot. Raises FilesGone, OSError."""
    adds = [action["add"] for action in actions if "add" in action]
    removes = [action["remove"] for action in actions if "remove" in action]
    manifests = ManifestWriter(table, merge_from)
    schema, spec = table.schema(), table.spec()
    added = [data_file(add, location, schema, spec) for add in adds]
    is_read_again = parse_commit_info(actions)[1].get("kind") == "reprocess"  # rows may have become dead letters
    listed = manifests.write(added, full_paths(location, removes), rows_stay=bool(added) or is_read_again)
    metadata = table.metadata
    moves_only = bool(removes) and not any(one["dataChange"] for one in [*adds, *removes])
    summary = _summary(table, added, manifests.removed, moves_only=moves_only, version=version)
    snapshot = Snapshot.model_validate(
        {
            "snapshot-id": manifests.snapshot_id, "parent-snapshot-id": manifests.parent_id, "manifest-list": listed,
            "sequence-number": metadata.next_sequence_number(), "summary": summary,
            "timestamp-ms": max(int(time.time() * 1000), metadata.last_updated_ms + 1),  # others' clocks may be ahead
            "schema-id": metadata.current_schema_id,
        }
    )  # fmt: skip
    is_first = manifests.parent_id is None  # whoever made the table may have died before it knew the columns' ids
    of_columns = column_changes(table, actions, keeps_mapping=not is_first)
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": manifests.parent_id}),
        as_columns_are(table),
    )
    properties = {VERSION: str(version), DRAFT: draft, SNAPSHOT: str(manifests.snapshot_id)}
    updates = (
        *of_columns,
        AddSnapshotUpdate(snapshot=snapshot),
        _reference(MAIN_BRANCH, SnapshotRefType.BRANCH, manifests.snapshot_id),
        _reference(TAG, SnapshotRefType.TAG, manifests.snapshot_id),
        SetPropertiesUpdate(updates=properties),
    )
    return PreparedCommit(requirements, updates, manifests.written)


def takeover(table: Table, actions: Sequence[Action], draft: str, properties: Mapping[str, str]) -> PreparedCommit:
    """Return the commit that names the first entry of a table which another client made. It adds no snapshot."""
    metadata = table.metadata
    head = metadata.current_snapshot_id
    updates = column_changes(table, actions)
    ours = {VERSION: "0", DRAFT: draft, **({SNAPSHOT: str(head)} if head else {})}
    tagged = (_reference(TAG, SnapshotRefType.TAG, head),) if head else ()
    required = AssertRefSnapshotId.model_validate({"ref": MAIN_BRANCH, "snapshot-id": head})
    return PreparedCommit(
        (AssertTableUUID(uuid=metadata.table_uuid), required, as_columns_are(table)),
        (*updates, *tagged, SetPropertiesUpdate(updates={**properties, **ours})), (),
    )  # fmt: skip


def _reference(name: str, kind: SnapshotRefType, snapshot_id: int) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate.model_validate({"ref-name": name, "type": kind, "snapshot-id": snapshot_id})


def column_changes(
    table: Table, actions: Sequence[Action] = (), *, keeps_mapping: bool = True
) -> tuple[TableUpdate, ...]:
    """Return what changes so that an entry's columns are the table's, and the mapping names all.

    Without the mapping a reader takes columns of our files by position, or not at all. `keeps_mapping`: names that it
    has besides. Nothing where all is so already.
    """
    schema, updates = table.schema(), tuple[TableUpdate, ...]()
    described = next((action["metaData"] for action in actions if "metaData" in action), None)
    if described is not None:
        wanted: pa.Schema = renamed(State(0, described).columns())
        changed = UpdateSchema(table.transaction()).union_by_name(wanted)
        schema, (updates, _) = changed._apply(), changed._commit()  # noqa: SLF001 - what its Transaction calls
    known = table.properties.get(MAPPING)
    if (mapping := mapping_of(schema, known if keeps_mapping else None)) != known:
        updates = (*updates, SetPropertiesUpdate(updates={MAPPING: mapping}))
    return updates


def as_columns_are(table: Table) -> TableRequirement:
    """Return the requirement that no client changes columns meanwhile.

    Another process may write an entry about it, in the place of ours, and the mapping would lack the new ones.
    """
    return AssertCurrentSchemaId.model_validate({"current-schema-id": table.metadata.current_schema_id})


def _summary(
    table: Table, added: Sequence[DataFile], removed: Sequence[DataFile], *, moves_only: bool, version: int
) -> dict[str, str]:
    """Return what the snapshot did, and the totals after it: other clients add theirs to them."""
    parent = table.metadata.current_snapshot()
    before: Mapping[str, Any] = parent.summary.additional_properties if parent and parent.summary else {}
    operation = Operation.APPEND
    if removed:
        operation = Operation.REPLACE if moves_only else Operation.OVERWRITE if added else Operation.DELETE
    summary = {"operation": operation.value, "engine-name": "headrace", VERSION: str(version)}
    counts = {
        "data-files": (len(added), len(removed)),
        "records": tuple(sum(file.record_count for file in files) for files in (added, removed)),
        "files-size": tuple(sum(file.file_size_in_bytes for file in files) for files in (added, removed)),
    }
    for name, (more, less) in counts.items():
        summary |= {f"added-{name}": str(more)} if more else {}
        summary |= {f"{'removed' if name == 'files-size' else 'deleted'}-{name}": str(less)} if less else {}
        summary[f"total-{name}"] = str(int(before.get(f"total-{name}", 0)) + more - less)
    for name in ("delete-files", "position-deletes", "equality-deletes"):
        summary[f"total-{name}"] = before.get(f"total-{name}", "0")
    return summary
