"""An Iceberg table that a catalog knows by name: readers see a file from the catalog's commit on that adds it."""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, RemoveSnapshotsUpdate

from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.storage.base import Store
from headrace.writer.storage.disk_space import TABLE, name_full_disk
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.nesting import METADATA, is_iceberg
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.storage.split import SplitStore
from headrace.writer.table.iceberg.catalog.catalog_client import CatalogClient
from headrace.writer.table.iceberg.catalog.catalog_errors import CommitRefused
from headrace.writer.table.iceberg.journal import Journal
from headrace.writer.table.iceberg.metadata.data_files import canonical_path, relative_path
from headrace.writer.table.iceberg.metadata.manifests import check_deletes, read_entries, read_manifests
from headrace.writer.table.log import file_listing
from headrace.writer.table.log.entries import creation_actions
from headrace.writer.table.log.log import Action, Log, State, TableVersion

if TYPE_CHECKING:
    # It imports pandas, half a second.
    from pyarrow import dataset

LOG = "_headrace/log"
_CONVERT = " (`headrace convert` makes an Iceberg table of it, if it is the pipeline's)"
# The newest ones. Each has about 640 bytes in the metadata, which has 80 snapshots before older ones expire.
SNAPSHOTS_KEPT = 30
# As `before`: the number alone counts.
_NEVER_TOO_OLD = datetime.max.replace(tzinfo=UTC)


class Iceberg:
    """A table in Iceberg's format 2."""

    in_catalog = True
    hidden = False

    def __init__(self, location: str, catalog_table: CatalogTable, stores: StoreSettings | None = None) -> None:
        """Take the location, and the table's name in a catalog."""
        self.location = location
        self.catalog_table = catalog_table
        self.folder = catalog_table.folder
        self.store: Store = store_at(location, stores)
        if catalog_table.log_location:
            self.store = SplitStore(self.store, store_at(catalog_table.log_location, stores))
        self._client = CatalogClient(catalog_table, location, stores)
        self.log_store = store_at(self.store.path(LOG), stores)
        self._journal = Journal(self.log_store, self._client)
        self.log: Log = self._journal
        self._listing: file_listing.Listing | None = None

    def obstacle(self) -> str:
        """Name what lies at the location without being in the catalog."""
        if "_delta_log/" in set(self.store.list()):
            return f"a Delta table{_CONVERT}"
        if self._journal.has_entries():
            if not self.was_in_catalog():
                return f"a table in Parquet format{_CONVERT}"
            return f"the log of a table that the catalog does not know as {self.catalog_table}; register it there again"
        for name in self.store.list(METADATA):
            if is_iceberg(name) and not self._is_leftover(f"{METADATA}/{name}"):
                return f"an Iceberg table that the catalog does not know as {self.catalog_table}"
        return ""

    def create(self, name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> None:
        """Make the table in the catalog, unless there is one."""
        with name_full_disk({self.location: TABLE}):
            self.log.create(creation_actions(name, layout, columns, bucket_columns))

    def register(self, adds: Sequence[Action]) -> None:
        """Make the table in the catalog for the log that lies here. Raises as `Journal.register` does."""
        self._journal.register(adds)

    def table(self) -> Table:
        """Return the table as the catalog has it, any client's. Raises FileNotFoundError."""
        return self._journal.load_table()

    def was_in_catalog(self) -> bool:
        """Return whether the entries that lie there are those of an Iceberg table, whatever the catalog knows."""
        return self._journal.was_in_catalog(any(map(is_iceberg, self.store.list(METADATA))))

    def has_entries(self) -> bool:
        """Return whether a journal lies there, whatever the catalog knows."""
        return self._journal.has_entries()

    def take(self, table: Table, actions: Sequence[Action]) -> bool:
        """Begin the journal of another client's table. As `Journal.take`."""
        return self._journal.take(table, actions)

    def repair(self) -> None:
        """Let the name mapping name all columns, where another client took some out of it."""
        self._journal.map_columns()

    def publish(self, table_version: TableVersion) -> None:
        """Do nothing: the catalog's commit is what readers go by."""

    def buckets(self, state: State) -> list[BucketKey]:
        """Return the buckets that have files."""
        return sorted({file.bucket for file in self.bucket_files(state, None)}, key=str)

    def bucket_files(self, state: State, bucket: BucketKey | None) -> list[BucketFile]:
        """Return the files of a bucket, as all entries add and remove them. The listing stays in memory."""
        listing = file_listing.list_files(self.log, state, self._listing)
        if self._listing is None or listing.table_version.version >= self._listing.table_version.version:
            self._listing = listing
        return [file for file in listing.files.values() if bucket in (None, file.bucket)]

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Raise LiveDeleteFiles where delete files take rows of these files."""
        check_deletes(self._journal.table(), {f"{self.location}/{file.path}" for file in files})

    def expire(self, before: datetime) -> None:
        """Expire snapshots from before this time that no branch or tag names."""
        _expire_snapshots(self._client, self._journal.table(), 0, before)

    def referenced_paths(self, since: datetime) -> set[str]:
        """Return the paths of the table's metadata files, and of the data files of snapshots since this time."""
        return _referenced_paths(self._journal.table(), self.location, since)

    def foreign_paths(self) -> list[str]:
        """Return none: readers see what the catalog's snapshot names."""
        return []

    def rows(self, state: State) -> "dataset.Dataset":
        """Return the rows of the files that the log names."""
        return self.rows_of(self.bucket_files(state, None), state)

    def rows_of(self, files: Sequence[BucketFile], state: State) -> "dataset.Dataset":
        """Return the rows of these files."""
        from pyarrow import compute as pc, dataset

        filesystem, root = self.store.files()
        parquet = dataset.ParquetFileFormat()
        fragments = []
        for file in files:
            is_in_bucket = pc.scalar(True)
            for name, value in zip(state.metadata["partitionColumns"], file.bucket, strict=True):
                column = pc.field(name)
                is_in_bucket = is_in_bucket & (column.is_null() if value is None else column == value)
            path = f"{root}/{file.path}"
            fragments.append(parquet.make_fragment(path, filesystem, partition_expression=is_in_bucket))
        return dataset.FileSystemDataset(fragments, state.columns(), parquet, filesystem)

    def tidy(self, state: State, *, keeps_entries: bool = False) -> None:  # noqa: ARG002
        """Write the log's checkpoint, and expire old snapshots. Entries stay: they are the table's only history."""
        self.log.checkpoint(state)
        _expire_snapshots(self._client, self._journal.table())

    def _is_leftover(self, name: str) -> bool:
        """Return whether a metadata file is that of a start which died before the catalog knew the table."""
        stored = self.store.read(name)
        if stored is None:
            return True
        metadata = json.loads(stored.content)
        return "headrace.entry" in metadata.get("properties", {}) and not metadata.get("snapshots")


def _expire_snapshots(
    client: CatalogClient, table: Table, keep: int = SNAPSHOTS_KEPT, before: datetime = _NEVER_TOO_OLD
) -> int:
    """Expire all but the newest `keep` snapshots, and those since `before`, and those that a branch or tag names.

    Removes the metadata files that only they had named. pyiceberg's own expiry asks without a condition, tries again by
    itself, and removes no file. Returns how many expired. Data files stay: vacuum removes those that a rewrite
    replaced. Raises OSError.
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


def _referenced_paths(table: Table, location: str, since: datetime) -> set[str]:
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
