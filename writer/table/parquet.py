"""A Parquet table: files in Hive's folders, and a hidden log that names those that count.

The log is like Delta's, below `_headrace/log`. A task writes a file below `_headrace/staged`; an entry adds
it; then it is moved to its place, where readers see it, whole. No entry follows before all files of the newest one are
in their place: the next writer, this process or the next start, first ends what a crash broke off. So every file
that a reader sees is committed, and every committed file is seen, but for those of the newest entry, for a moment.
(docs/adr/0013-parquet-tables.md)
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from writer.batch.staging.bucket_folders import hive_value
from writer.batch.staging.parquet_files import staged_name
from writer.core import fault_points
from writer.core.files import BucketFile, BucketKey
from writer.storage.base import Store
from writer.storage.locations import on_s3
from writer.storage.nesting import is_below, table_folders
from writer.table.log import file_listing
from writer.table.log.entries import creation_actions
from writer.table.log.foreign_writes import ForeignChange
from writer.table.log.log import Log, State, TableVersion

if TYPE_CHECKING:
    from pyarrow import dataset  # imports pandas, half a second

LOG = "_headrace/log"
_PUBLISHED = "_headrace/published.json"  # id and version of the newest entry whose files were all seen in their place
_FILES = ("remove", "add")
_MOVES_AT_ONCE = 16  # S3 copies some hundred MB a second for each request


class Parquet:
    """A table of Parquet files: readers see a file from the moment on that it is in its place."""

    in_catalog, hidden, folder = False, True, ""

    def __init__(self, store: Store, log: Store) -> None:
        """Take the store of the table, and the one of its log."""
        self.location, self.log = store.location, Log(log)
        self.store = store
        self._listing: file_listing.Listing | None = None
        self._published: tuple[str, int] | None = None  # where this process knows that nothing is left to do

    def obstacle(self) -> str:
        """Name what readers would take for rows of the table, or a table of another format."""
        found = sorted(name for name in self.store.list() if name == "_delta_log/" or not name.startswith(("_", ".")))
        if "_delta_log/" in found:
            return "a Delta table"
        return f"{found[0]}, which readers would take for a part of the table" if found else ""

    def create(self, name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> None:
        """Write the first entry, unless there is one."""
        self.log.create(creation_actions(name, layout, columns, bucket_columns))

    def repair(self) -> None:
        """Do nothing: readers go by the log, or by the files alone."""

    def publish(self, table_version: TableVersion) -> None:
        """Move the files of an entry to their place. Raises ForeignChange when one is in neither place."""
        if table_version == self._published or self._noted(table_version):
            return
        actions = self.log.entry(table_version.version) or ()
        gone, paths = ([unquote(action[kind]["path"]) for action in actions if kind in action] for kind in _FILES)
        for path in gone:  # first: a row that is out of sight for a moment harms less than one that is there twice
            self.store.delete(path)
        if gone or paths:
            with ThreadPoolExecutor(_MOVES_AT_ONCE if on_s3(self.location) else 1) as threads:
                list(threads.map(lambda path: self._place(path, table_version.version), paths))
            fault_points.point("after_publish")
            self.store.put(_PUBLISHED, json.dumps(dict(zip(("table", "version"), table_version, strict=True))).encode())
        self._published = table_version

    def buckets(self, state: State) -> list[BucketKey]:
        """Buckets that have files, read from the folders."""
        folders: list[tuple[str, BucketKey]] = [("", ())]
        for _ in state.metadata["partitionColumns"]:
            folders = [
                (at + name, (*key, hive_value(name)))
                for at, key in folders
                for name in self.store.list(at)
                if name.endswith("/") and not name.startswith(("_", "."))
            ]
        # A folder of S3 is there by its files alone; to ask each would be a request each.
        return [key for at, key in folders if on_s3(self.location) or any(self.store.list(at))]

    def bucket_files(self, state: State, bucket: BucketKey | None) -> list[BucketFile]:
        """Files by bucket, as all entries add and remove them. They are kept in memory, and followed from there."""
        self._listing = file_listing.list_files(self.log, state, self._listing)
        return [file for file in self._listing.files.values() if bucket in (None, file.bucket)]

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Do nothing: what the log names is there as it is."""

    def expire(self, before: datetime) -> None:
        """Do nothing: the log alone knows versions."""

    def referenced_paths(self, since: datetime) -> set[str]:  # noqa: ARG002 - of the protocol
        """None: what a reader needs is named by entries."""
        return set()

    def foreign_paths(self) -> list[str]:
        """Files in the folders that no entry ever named: another client's. Reads the folders, then every entry."""
        seen, folders = [], [""]
        while folders:
            at = folders.pop()
            names = [at + name for name in self.store.list(at) if not name.startswith(("_", "."))]
            folders += [name for name in names if name.endswith("/")]
            seen += [name for name in names if name.endswith(".parquet")]
        ours = {unquote(a["add"]["path"]) for _, actions in self.log.entries_after(-1) for a in actions if "add" in a}
        return sorted(set(seen) - ours)

    def rows(self, state: State) -> "dataset.Dataset":
        """Return the rows, read from the folders, but for those of other tables below."""
        from pyarrow import dataset

        filesystem, root = self.store.files()
        columns = state.columns()
        buckets = pa.schema([columns.field(name) for name in state.metadata["partitionColumns"]])
        by = dataset.partitioning(buckets, flavor="hive")
        found = dataset.dataset(root, schema=columns, filesystem=filesystem, format="parquet", partitioning=by)
        listed = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        others = table_folders(one.path.removeprefix(f"{root}/") for one in listed if one.is_file) - {""}
        if not others:
            return found
        own = [one for one in found.get_fragments() if not is_below(one.path.removeprefix(f"{root}/"), others)]
        return dataset.FileSystemDataset(own, columns, found.format, filesystem)

    def tidy(self, state: State, *, keeps_entries: bool = False) -> None:  # noqa: ARG002 - of the protocol
        """Write the log's checkpoint. Entries stay: they are the table's only history."""
        self.log.checkpoint(state)

    def _place(self, path: str, version: int) -> None:
        fault_points.point("publish")
        if self.store.move(staged_name(path), path) or self.store.mark(path) is not None:
            return
        if self.log.entry(version + 1) is None:  # else another writer saw to it, and the file may be gone by right
            raise ForeignChange(
                f"{self.location}/{path} is committed, but it is neither there nor staged: it was removed. "
                "Bring it back, or its rows are lost; then start again."
            )

    def _noted(self, table_version: TableVersion) -> bool:
        """Return whether the files were seen in their place; removing one after that is on purpose."""
        found = self.store.read(_PUBLISHED)
        try:
            noted: dict[str, Any] = {} if found is None else json.loads(found.content)
            return bool(noted.get("table") == table_version.table_id and noted["version"] >= table_version.version)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False  # nonsense: to look again costs little
