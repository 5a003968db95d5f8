"""Expires old snapshots of an Iceberg table, and removes the metadata files that only they had named.

pyiceberg's own expiry asks without a condition, tries again by itself, and removes no file.
"""

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from writer.table.iceberg.catalog.catalog_client import CatalogClient
from writer.table.iceberg.catalog.catalog_errors import CommitRefused
from writer.table.iceberg.metadata.data_files import canonical_path, relative_path
from writer.table.iceberg.metadata.manifests import read_entries, read_manifests

# The newest ones. Each has about 640 bytes in the metadata, which has 80 snapshots before older ones expire.
SNAPSHOTS_KEPT = 30
# As `before`: the number alone counts.
_NEVER_TOO_OLD = datetime.max.replace(tzinfo=UTC)


def expire_snapshots(
    client: CatalogClient, table: Table, keep: int = SNAPSHOTS_KEPT, before: datetime = _NEVER_TOO_OLD
) -> int:
    """Expire all but the newest `keep` snapshots, and those since `before`, and those that a branch or tag names.

    Returns how many expired. Data files stay: vacuum removes those that a rewrite replaced. Raises OSError.
    """
    metadata = table.metadata
    snapshots = sorted(metadata.snapshots, key=lambda snapshot: snapshot.sequence_number or 0)
    needed_ids = {snapshot.snapshot_id for snapshot in _needed_snapshots(table, before)}
    candidates = snapshots[: max(len(snapshots) - keep, 0)]
    expired = [snapshot for snapshot in candidates if snapshot.snapshot_id not in needed_ids]
    head = metadata.current_snapshot_id
    if not expired or head is None:
        return 0
    expired_ids = {snapshot.snapshot_id for snapshot in expired}
    requirements = (
        AssertTableUUID(uuid=metadata.table_uuid),
        AssertRefSnapshotId.model_validate({"ref": "main", "snapshot-id": head}),
    )
    update = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": sorted(expired_ids)})
    try:
        client.commit(table, requirements, (update,))
    except CommitRefused:
        # A commit came before; the next time will do.
        return 0
    remaining = [snapshot for snapshot in snapshots if snapshot.snapshot_id not in expired_ids]
    needed_paths = set(map(canonical_path, _metadata_files(remaining, table)))
    for path in _metadata_files(expired, table):
        if canonical_path(path) not in needed_paths:
            # A file that stays is an orphan.
            with suppress(OSError):
                table.io.delete(path)
    return len(expired)


def referenced_paths(table: Table, location: str, since: datetime) -> set[str]:
    """Return the paths, below the location, of metadata files, and of the data files of snapshots since this time."""
    metadata = table.metadata
    paths = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    paths.update(statistics.statistics_path for statistics in metadata.statistics)
    paths.update(statistics.statistics_path for statistics in metadata.partition_statistics)
    manifests = dict[str, ManifestFile]()
    for snapshot in _needed_snapshots(table, since):
        manifests |= {manifest.manifest_path: manifest for manifest in read_manifests(table, snapshot)}
    paths |= _metadata_files(metadata.snapshots, table)
    for manifest in manifests.values():
        paths |= {entry.data_file.file_path for entry in read_entries(table, manifest)}
    return {relative_path(path, location) for path in paths}


def _needed_snapshots(table: Table, since: datetime) -> list[Snapshot]:
    """Return the snapshots since this time, the current one, and those that a branch or tag names."""
    metadata = table.metadata
    since_ms = since.timestamp() * 1000
    named_ids = {metadata.current_snapshot_id, *(reference.snapshot_id for reference in metadata.refs.values())}
    return [
        snapshot
        for snapshot in metadata.snapshots
        if snapshot.timestamp_ms >= since_ms or snapshot.snapshot_id in named_ids
    ]


def _metadata_files(snapshots: Iterable[Snapshot], table: Table) -> set[str]:
    """Return the paths of the manifests of snapshots, and of their lists."""
    paths = set()
    for snapshot in snapshots:
        # Another process may expire it at the same time.
        with suppress(FileNotFoundError):
            paths |= {manifest.manifest_path for manifest in read_manifests(table, snapshot)}
        paths.add(snapshot.manifest_list)
    return paths
