"""Expires old snapshots of an Iceberg table, and removes the metadata files that only they had named.

pyiceberg's own expiry asks without a condition, tries again by itself, and removes no file.
"""

from collections.abc import Iterable
from contextlib import suppress

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from writer.table.iceberg.catalog import CatalogClient
from writer.table.iceberg.catalog_errors import CommitRefused

SNAPSHOTS_KEPT = 50  # newest ones; each has about 620 bytes in the metadata that every commit writes anew


def expire(client: CatalogClient, table: Table, keep: int = SNAPSHOTS_KEPT) -> int:
    """Expire all but the newest snapshots and those that a branch or tag names. Returns how many went.

    Data files stay: vacuum removes those that a rewrite replaced. Raises OSError.
    """
    metadata = table.metadata
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    known = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    old = [one for one in known[: max(len(known) - keep, 0)] if one.snapshot_id not in named]
    head = metadata.current_snapshot_id
    if not old or head is None:
        return 0
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": head}),
    )
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": [one.snapshot_id for one in old]})
    try:
        client.commit(table, requirements, (update,))
    except CommitRefused:  # a commit came before: the next time will do
        return 0
    gone = {one.snapshot_id for one in old}
    kept = _metadata_files((one for one in known if one.snapshot_id not in gone), table)
    for path in _metadata_files(old, table) - kept:
        with suppress(OSError):  # what stays is an orphan
            table.io.delete(path)
    return len(old)


def _metadata_files(snapshots: Iterable[Snapshot], table: Table) -> set[str]:
    """Return the paths of the manifests of snapshots, and of their lists."""
    found = set()
    for snapshot in snapshots:
        with suppress(FileNotFoundError):  # another process expired it at the same time
            found |= {one.manifest_path for one in snapshot.manifests(table.io)}
        found.add(snapshot.manifest_list)
    return found
