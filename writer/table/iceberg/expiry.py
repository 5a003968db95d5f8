"""Expires old snapshots of an Iceberg table, and removes the metadata files that only they had named.

pyiceberg's own expiry asks without a condition, tries again by itself, and removes no file.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from writer.table.iceberg.catalog.catalog_client import CatalogClient
from writer.table.iceberg.catalog.catalog_errors import CommitRefused
from writer.table.iceberg.metadata.data_files import canonical, relative
from writer.table.iceberg.metadata.manifests import read_entries, read_manifests

SNAPSHOTS_KEPT = 30  # newest ones; each has about 640 bytes in the metadata, which has 80 before older ones expire
_NEVER_TOO_OLD = datetime.max.replace(tzinfo=UTC)  # of `before`: the number alone counts


def expire(client: CatalogClient, table: Table, keep: int = SNAPSHOTS_KEPT, before: datetime = _NEVER_TOO_OLD) -> int:
    """Expire all but the newest `keep` snapshots, and those since `before`, and those that a branch or tag names.

    Returns how many went. Data files stay: vacuum removes those that a rewrite replaced. Raises OSError.
    """
    metadata = table.metadata
    known = sorted(metadata.snapshots, key=lambda one: one.sequence_number or 0)
    kept_ids = {one.snapshot_id for one in _kept(table, before)}
    old = [one for one in known[: max(len(known) - keep, 0)] if one.snapshot_id not in kept_ids]
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
    kept = set(map(canonical, _metadata_files((one for one in known if one.snapshot_id not in gone), table)))
    for path in (one for one in _metadata_files(old, table) if canonical(one) not in kept):
        with suppress(OSError):  # what stays is an orphan
            table.io.delete(path)
    return len(old)


def referenced(table: Table, location: str, since: datetime) -> set[str]:
    """Return the paths, below the location, of metadata files, and of the data files of snapshots since this time."""
    metadata, kept = table.metadata, _kept(table, since)
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {one.statistics_path for one in (*metadata.statistics, *metadata.partition_statistics)}
    manifests = {one.manifest_path: one for snapshot in kept for one in read_manifests(table, snapshot)}
    found |= _metadata_files(metadata.snapshots, table)
    for manifest in manifests.values():
        found |= {entry.data_file.file_path for entry in read_entries(table, manifest)}
    return {relative(path, location) for path in found}


def _kept(table: Table, since: datetime) -> list[Snapshot]:
    """Return the snapshots since this time, the current one, and those that a branch or tag names."""
    metadata, at = table.metadata, since.timestamp() * 1000
    named = {metadata.current_snapshot_id, *(ref.snapshot_id for ref in metadata.refs.values())}
    return [one for one in metadata.snapshots if one.timestamp_ms >= at or one.snapshot_id in named]


def _metadata_files(snapshots: Iterable[Snapshot], table: Table) -> set[str]:
    """Return the paths of the manifests of snapshots, and of their lists."""
    found = set()
    for snapshot in snapshots:
        with suppress(FileNotFoundError):  # another process expired it at the same time
            found |= {one.manifest_path for one in read_manifests(table, snapshot)}
        found.add(snapshot.manifest_list)
    return found
