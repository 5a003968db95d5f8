"""Writes the manifests of one snapshot: files that it adds, files that it removes, and small manifests merged.

Manifests of one size class are merged when there are many, so their number grows as the logarithm of the commits.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Literal
from uuid import uuid4

from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from writer.table.iceberg.metadata.avro_names import SafeManifestWriter
from writer.table.iceberg.metadata.data_files import canonical
from writer.table.log.foreign_writes import FilesGone, LiveDeleteFiles

MERGE_FROM = 50  # manifests of one size class
METADATA_PATH = "write.metadata.path"  # property of a table whose metadata lies apart
_ENTRIES_MAX = 20_000  # of a manifest; more are planned by several threads of a reader
_MERGE_BYTES_MAX = 8 * 2**20  # of a manifest that is still merged
_COMPRESSION: Literal["deflate"] = "deflate"
_FILE_PATH = 2147483546  # id of the column of position deletes that names a data file, by Iceberg's specification


class ManifestWriter:
    """The manifests of the snapshot that is to follow the one at which the table was loaded."""

    def __init__(self, table: Table, merge_from: int = MERGE_FROM) -> None:
        self._table, self._io, self._metadata, self._merge_from = table, table.io, table.metadata, merge_from
        self._folder = table.properties.get(METADATA_PATH) or f"{table.location().rstrip('/')}/metadata"
        self._name = uuid4().hex
        self.snapshot_id = self._metadata.new_snapshot_id()
        self._parent = self._metadata.current_snapshot()
        self.written: list[str] = []  # paths
        self.removed: list[DataFile] = []

    @property
    def parent_id(self) -> int | None:
        """Id of the snapshot that this one follows."""
        return self._parent.snapshot_id if self._parent else None

    def write(self, added: Sequence[DataFile], removed: Collection[str], *, rows_stay: bool = True) -> str:
        """Write manifests and their list. Returns the path of the list. Raises FilesGone, LiveDeleteFiles, OSError.

        `removed`: whole paths, as `canonical` gives them. `rows_stay`: rows of them are in the files that are added, or
        elsewhere in the lake.
        """
        found = self._parent.manifests(self._io) if self._parent else []
        live = [one for one in found if one.has_added_files() or one.has_existing_files()]
        if removed and rows_stay:
            check_deletes(self._table, removed)
        kept = self._merged(self._without(live, removed))
        entries = [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file)
            for file in added
        ]
        new = (entries[at : at + _ENTRIES_MAX] for at in range(0, len(entries), _ENTRIES_MAX))
        return self._listed([*(self._written(some, self._metadata.default_spec_id) for some in new), *kept])

    def _without(self, manifests: Sequence[ManifestFile], removed: Collection[str]) -> list[ManifestFile]:
        """Write those manifests anew that name files that go."""
        left, kept = set(removed), []
        for manifest in manifests:
            entries = self._entries(manifest) if left and manifest.content == ManifestContent.DATA else []
            named = [canonical(entry.data_file.file_path) for entry in entries]
            touched = left & set(named)
            if not touched:
                kept.append(manifest)
                continue
            left -= touched
            anew = [self._entry(one, is_deleted=path in touched) for one, path in zip(entries, named, strict=True)]
            self.removed += [one.data_file for one in anew if one.status == ManifestEntryStatus.DELETED]
            kept.append(self._written(anew, manifest.partition_spec_id))
        if left:
            raise FilesGone(f"{len(left)} files are not in the table any more, such as {min(left)}")
        return kept

    def _merged(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        classes: dict[tuple[int, int], list[ManifestFile]] = {}
        for one in manifests:
            has_deletes = one.added_snapshot_id == self.snapshot_id  # which only this snapshot may
            if one.content == ManifestContent.DATA and not has_deletes and one.manifest_length < _MERGE_BYTES_MAX:
                files = (one.added_files_count or 0) + (one.existing_files_count or 0)
                classes.setdefault((one.partition_spec_id, self._size_class(files)), []).append(one)
        found = list(manifests)
        for (spec_id, _), many in classes.items():
            if len(many) >= self._merge_from:
                entries = [self._entry(entry, is_deleted=False) for one in many for entry in self._entries(one)]
                paths = {one.manifest_path for one in many}
                found = [
                    self._written(entries, spec_id), *(one for one in found if one.manifest_path not in paths),
                ]  # fmt: skip
        return found

    def _size_class(self, files: int) -> int:
        size = 0
        while files >= self._merge_from:
            files, size = files // self._merge_from, size + 1
        return size

    def _listed(self, manifests: Sequence[ManifestFile]) -> str:
        path = f"{self._folder}/snap-{self.snapshot_id}-0-{self._name}.avro"
        with write_manifest_list(
            format_version=self._metadata.format_version, output_file=self._io.new_output(path),
            snapshot_id=self.snapshot_id, parent_snapshot_id=self.parent_id,
            sequence_number=self._metadata.next_sequence_number(), avro_compression=_COMPRESSION,
        ) as out:  # fmt: skip
            out.add_manifests(list(manifests))
        self.written.append(path)
        return path

    def _written(self, entries: Sequence[ManifestEntry], spec_id: int) -> ManifestFile:
        path = f"{self._folder}/{self._name}-m{len(self.written)}.avro"
        spec, output = self._metadata.specs()[spec_id], self._io.new_output(path)
        with SafeManifestWriter(spec, self._table.schema(), output, self.snapshot_id, _COMPRESSION) as out:
            for entry in entries:
                out.add_entry(entry)
        self.written.append(path)
        return out.to_manifest_file()

    def _entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._io, discard_deleted=True)

    def _entry(self, entry: ManifestEntry, *, is_deleted: bool) -> ManifestEntry:
        """Return the entry of a file that stays or goes. Its sequence numbers say which deletes apply to it."""
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_deleted else ManifestEntryStatus.EXISTING,
            snapshot_id=self.snapshot_id if is_deleted else entry.snapshot_id, sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=_without_bounds(entry.data_file) if is_deleted else entry.data_file,
        )  # fmt: skip


def check_deletes(table: Table, paths: Collection[str]) -> None:
    """Raise LiveDeleteFiles where a delete file may take rows of one of these files, as the manifests name them.

    What is to stand for such a file was read from it as it is: rows that others deleted would be back, or
    would count as being there. `paths`: whole ones, as `canonical` gives them.
    """
    if path := deleted_from(table, table.metadata.current_snapshot(), lambda path: canonical(path) in paths):
        raise LiveDeleteFiles(
            f"another client deleted rows of {path} by delete files (merge-on-read), and headrace does not read "
            "those. Write the files anew without the rows: CALL …system.rewrite_data_files(table => "
            f"'{'.'.join(table.name())}', options => map('delete-file-threshold', '1')). Then start again."
        )


def deleted_from(table: Table, snapshot: Snapshot | None, is_meant: Callable[[str], bool]) -> str:
    """Return the path of a meant data file of a snapshot of whose rows a delete file may take some; empty: of none."""
    deletes = list(live_entries(table, snapshot, ManifestContent.DELETES))
    files = live_entries(table, snapshot, ManifestContent.DATA) if deletes else ()
    meant = (one for one in files if is_meant(one.data_file.file_path))
    found = (one.data_file.file_path for one in meant if any(_may_delete_from(by, one) for by in deletes))
    return next(found, "")


def live_entries(table: Table, snapshot: Snapshot | None, content: ManifestContent) -> Iterator[ManifestEntry]:
    """Yield the entries of data files, or of delete files, of a snapshot. Raises OSError."""
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        if manifest.content == content:
            yield from manifest.fetch_manifest_entry(table.io, discard_deleted=True)


def _without_bounds(file: DataFile) -> DataFile:
    """Return a file as the snapshot names it that removes it: by its bounds it could say whose rows were deleted."""
    fields = DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields
    known = {field.name: file[at] for at, field in enumerate(fields)} | {"lower_bounds": None, "upper_bounds": None}
    found = DataFile.from_args(**known)
    found.spec_id = file.spec_id
    return found


def _may_delete_from(deletes: ManifestEntry, file: ManifestEntry) -> bool:
    """Return whether a delete file may take rows of a data file.

    Deletes by equality take those of older files alone. Bounds tell which files position deletes name: by the path that
    a manifest has, letter for letter.
    """
    found, path = deletes.data_file, file.data_file.file_path.encode()
    if found.content == DataFileContent.EQUALITY_DELETES:
        return (file.sequence_number or 0) < (deletes.sequence_number or 0)
    low, high = ((bounds or {}).get(_FILE_PATH) for bounds in (found.lower_bounds, found.upper_bounds))
    return low is None or high is None or low <= path <= high
