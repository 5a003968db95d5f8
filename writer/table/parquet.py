"""A Parquet table: files in Hive's folders, and a hidden log that names those that count.

The log is like Delta's, below `_headrace/log`. A task writes a file below `_headrace/staged`; an entry adds
it; then it is moved to its path, where readers see all of it. No entry follows before all files of the newest one are
moved: the next writer, this process or the next start, first ends what a crash broke off. So every file that a reader
sees is committed, and every committed file is seen, but for those of the newest entry, for a moment.
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

from headrace.writer.batch.staging.bucket_folders import hive_value
from headrace.writer.core import fault_points
from headrace.writer.core.files import BucketFile, BucketKey, staged_name
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import in_bucket, on_azure
from headrace.writer.storage.nesting import is_below, table_folders
from headrace.writer.table.log import file_listing
from headrace.writer.table.log.entries import creation_actions
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.log.log import Log, State, TableVersion

if TYPE_CHECKING:
    # It imports pandas, half a second.
    from pyarrow import dataset

LOG = "_headrace/log"
# Id and version of the newest entry whose files were all seen at their paths.
_PUBLISHED = "_headrace/published.json"
# S3 copies some hundred MB a second for each request.
_MOVE_THREADS = 16


class Parquet:
    """A table of Parquet files: readers see a file from the moment on that it is at its path."""

    in_catalog = False
    hidden = True
    folder = ""

    def __init__(self, store: Store, log: Store) -> None:
        """Take the store of the table, and the one of its log."""
        self.location = store.location
        self.store = store
        self.log = Log(log)
        self._listing: file_listing.Listing | None = None
        # This process knows that all files up to this table and version are published.
        self._published: TableVersion | None = None

    def obstacle(self) -> str:
        """Name what readers would take for rows of the table, or a table of another format."""
        names = set(self.store.list())
        if "_delta_log/" in names:
            return "a Delta table"
        visible = sorted(name for name in names if not name.startswith(("_", ".")))
        return f"{visible[0]}, which readers would take for a part of the table" if visible else ""

    def create(self, name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> None:
        """Write the first entry, unless there is one."""
        self.log.create(creation_actions(name, layout, columns, bucket_columns))

    def repair(self) -> None:
        """Do nothing: readers go by the log, or by the files alone."""

    def publish(self, table_version: TableVersion) -> None:
        """Move the files of an entry to their paths. Raises ForeignChange when one is neither there nor staged."""
        if table_version == self._published or self._is_published(table_version):
            return
        table_id, version = table_version
        actions = self.log.entry(version) or ()
        removed = [unquote(action["remove"]["path"]) for action in actions if "remove" in action]
        added = [unquote(action["add"]["path"]) for action in actions if "add" in action]
        # Removals come first: a row that is out of sight for a moment harms less than one that is there twice.
        for path in removed:
            self.store.delete(path)
        if removed or added:
            with ThreadPoolExecutor(_MOVE_THREADS if in_bucket(self.location) else 1) as threads:
                list(threads.map(lambda path: self._publish_file(path, version), added))
            fault_points.point("after_publish")
            self.store.put(_PUBLISHED, json.dumps({"table": table_id, "version": version}).encode())
        self._published = table_version

    def buckets(self, state: State) -> list[BucketKey]:
        """Return the buckets that have files, read from the folders."""
        folders: dict[str, BucketKey] = {"": ()}
        for _ in state.metadata["partitionColumns"]:
            inner = dict[str, BucketKey]()
            for folder, key in folders.items():
                for name in self.store.list(folder):
                    if name.endswith("/") and not name.startswith(("_", ".")):
                        inner[folder + name] = (*key, hive_value(name))
            folders = inner
        # A folder of S3 or Google exists by its files alone. To ask for each would be a request each. In an account of
        # Azure that has a hierarchical namespace, a folder outlives its files.
        if in_bucket(self.location) and not on_azure(self.location):
            return list(folders.values())
        return [key for folder, key in folders.items() if any(self.store.list(folder))]

    def bucket_files(self, state: State, bucket: BucketKey | None) -> list[BucketFile]:
        """Return the files of a bucket, as all entries add and remove them. The listing stays in memory."""
        self._listing = file_listing.list_files(self.log, state, self._listing)
        return [file for file in self._listing.files.values() if bucket in (None, file.bucket)]

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Do nothing: what the log names is there as it is."""

    def expire(self, before: datetime) -> None:
        """Do nothing: the log alone knows versions."""

    def referenced_paths(self, since: datetime) -> set[str]:  # noqa: ARG002
        """Return none: what a reader needs is named by entries."""
        return set()

    def foreign_paths(self) -> list[str]:
        """Return files in the folders that no entry ever named. Reads the folders, then every entry."""
        paths = set[str]()
        folders = [""]
        while folders:
            folder = folders.pop()
            names = [folder + name for name in self.store.list(folder) if not name.startswith(("_", "."))]
            folders += [name for name in names if name.endswith("/")]
            paths.update(name for name in names if name.endswith(".parquet"))
        for _, actions in self.log.entries_after(-1):
            paths.difference_update(unquote(action["add"]["path"]) for action in actions if "add" in action)
        return sorted(paths)

    def rows(self, state: State) -> "dataset.Dataset":
        """Return the rows, read from the folders, but for those of other tables below."""
        from pyarrow import dataset

        filesystem, root = self.store.files()
        columns = state.columns()
        buckets = pa.schema([columns.field(name) for name in state.metadata["partitionColumns"]])
        partitioning = dataset.partitioning(buckets, flavor="hive")
        rows = dataset.dataset(root, schema=columns, filesystem=filesystem, format="parquet", partitioning=partitioning)
        infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
        other_tables = table_folders(info.path.removeprefix(f"{root}/") for info in infos if info.is_file) - {""}
        if not other_tables:
            return rows
        fragments = [
            fragment
            for fragment in rows.get_fragments()
            if not is_below(fragment.path.removeprefix(f"{root}/"), other_tables)
        ]
        return dataset.FileSystemDataset(fragments, columns, rows.format, filesystem)

    def tidy(self, state: State, *, keeps_entries: bool = False) -> None:  # noqa: ARG002
        """Write the log's checkpoint. Entries stay: they are the table's only history."""
        self.log.checkpoint(state)

    def _publish_file(self, path: str, version: int) -> None:
        fault_points.point("publish")
        if self.store.move(staged_name(path), path) or self.store.mark(path) is not None:
            return
        # Where another entry follows, another writer published the file, and may have removed it since.
        if self.log.entry(version + 1) is None:
            raise ForeignChange(
                f"{self.location}/{path} is committed, but it is neither there nor staged: it was removed. "
                "Bring it back, or its rows are lost; then start again."
            )

    def _is_published(self, table_version: TableVersion) -> bool:
        """Return whether the files were seen at their paths; removing one after that is on purpose."""
        table_id, version = table_version
        stored = self.store.read(_PUBLISHED)
        if stored is None:
            return False
        try:
            published: dict[str, Any] = json.loads(stored.content)
            return bool(published.get("table") == table_id and published["version"] >= version)
        except (ValueError, KeyError, TypeError, AttributeError):
            # Nonsense: to look at the files again costs little.
            return False
