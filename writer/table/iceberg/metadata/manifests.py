"""Writes the manifests of one snapshot: files that it adds, files that it removes, and small manifests merged.

Manifests of one size class are merged when there are many, so their number grows as the logarithm of the commits.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal
from uuid import uuid4

from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.schema import ICEBERG_FIELD_NAME_PROP
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from headrace.writer.storage.damage import naming_damage
from headrace.writer.table.iceberg.metadata.data_files import canonical_path
from headrace.writer.table.log.foreign_writes import FilesGone, LiveDeleteFiles

# So many manifests of one size class are merged.
MERGE_FROM = 50
# Property of a table whose metadata lies apart.
METADATA_PATH = "write.metadata.path"
# Of a manifest. More are planned by several threads of a reader.
_ENTRIES_MAX = 20_000
# Of a manifest that is still merged.
_MERGE_BYTES_MAX = 8 * 2**20
_COMPRESSION: Literal["deflate"] = "deflate"
# Id of the column of position deletes that names a data file, by Iceberg's specification.
_FILE_PATH_ID = 2147483546
_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ODD = re.compile(r"[^A-Za-z0-9_]")
# Field of a manifest's data file.
_PARTITION = "partition"


class ManifestWriter:
    """The manifests of the snapshot that is to follow the one at which the table was loaded."""

    def __init__(self, table: Table, merge_from: int = MERGE_FROM) -> None:
        self._table = table
        self._io = table.io
        self._metadata = table.metadata
        self._merge_from = merge_from
        self._folder = table.properties.get(METADATA_PATH) or f"{table.location().rstrip('/')}/metadata"
        self._name = uuid4().hex
        self.snapshot_id = self._metadata.new_snapshot_id()
        self._parent = self._metadata.current_snapshot()
        # Paths of manifests and of their list.
        self.written: list[str] = []
        self.removed: list[DataFile] = []

    @property
    def parent_id(self) -> int | None:
        """Id of the snapshot that this one follows."""
        return self._parent.snapshot_id if self._parent else None

    def write(self, added: Sequence[DataFile], removed: Collection[str], *, rows_stay: bool = True) -> str:
        """Write manifests and their list. Returns the path of the list. Raises FilesGone, LiveDeleteFiles, OSError.

        `removed`: full paths, as `canonical_path` gives them. `rows_stay`: rows of them are in the files that are
        added, or elsewhere in the lake.
        """
        live = [manifest for manifest in read_manifests(self._table, self._parent) if is_live(manifest)]
        if removed and rows_stay:
            check_deletes(self._table, removed)
        remaining = self._merge_small(self._remove_files(live, removed))
        entries = [
            ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=self.snapshot_id, data_file=file)
            for file in added
        ]
        new = [
            self._write_manifest(entries[start : start + _ENTRIES_MAX], self._metadata.default_spec_id)
            for start in range(0, len(entries), _ENTRIES_MAX)
        ]
        return self._write_list([*new, *remaining])

    def _remove_files(self, manifests: Sequence[ManifestFile], removed: Collection[str]) -> list[ManifestFile]:
        """Write those manifests anew that name removed files. Raises FilesGone where none names one of them."""
        missing = set(removed)
        remaining = []
        for manifest in manifests:
            if not missing or manifest.content != ManifestContent.DATA:
                remaining.append(manifest)
                continue
            entries = self._read_entries(manifest)
            paths = [canonical_path(entry.data_file.file_path) for entry in entries]
            removed_here = missing.intersection(paths)
            if not removed_here:
                remaining.append(manifest)
                continue
            missing -= removed_here
            new_entries = []
            for entry, path in zip(entries, paths, strict=True):
                is_deleted = path in removed_here
                new_entry = self._copy_entry(entry, is_deleted=is_deleted)
                new_entries.append(new_entry)
                if is_deleted:
                    self.removed.append(new_entry.data_file)
            remaining.append(self._write_manifest(new_entries, manifest.partition_spec_id))
        if missing:
            raise FilesGone(f"{len(missing)} files are not in the table any more, such as {min(missing)}")
        return remaining

    def _merge_small(self, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
        """Merge the manifests of a size class where there are many. A merged one comes before all others."""
        classes: dict[tuple[int, int], list[ManifestFile]] = {}
        for manifest in manifests:
            # Only this snapshot may have entries of deleted files.
            has_deletes = manifest.added_snapshot_id == self.snapshot_id
            is_small = manifest.manifest_length < _MERGE_BYTES_MAX
            if manifest.content == ManifestContent.DATA and not has_deletes and is_small:
                files = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
                classes.setdefault((manifest.partition_spec_id, self._size_class(files)), []).append(manifest)
        remaining = list(manifests)
        for (spec_id, _), members in classes.items():
            if len(members) < self._merge_from:
                continue
            entries = list[ManifestEntry]()
            for member in members:
                entries += [self._copy_entry(entry, is_deleted=False) for entry in self._read_entries(member)]
            paths = {member.manifest_path for member in members}
            others = [manifest for manifest in remaining if manifest.manifest_path not in paths]
            remaining = [self._write_manifest(entries, spec_id), *others]
        return remaining

    def _size_class(self, files: int) -> int:
        size_class = 0
        while files >= self._merge_from:
            files //= self._merge_from
            size_class += 1
        return size_class

    def _write_list(self, manifests: Sequence[ManifestFile]) -> str:
        path = f"{self._folder}/snap-{self.snapshot_id}-0-{self._name}.avro"
        with write_manifest_list(
            format_version=self._metadata.format_version,
            output_file=self._io.new_output(path),
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=self.parent_id,
            sequence_number=self._metadata.next_sequence_number(),
            avro_compression=_COMPRESSION,
        ) as writer:
            writer.add_manifests(list(manifests))
        self.written.append(path)
        return path

    def _write_manifest(self, entries: Sequence[ManifestEntry], spec_id: int) -> ManifestFile:
        path = f"{self._folder}/{self._name}-m{len(self.written)}.avro"
        spec = self._metadata.specs()[spec_id]
        output = self._io.new_output(path)
        with _SafeManifestWriter(spec, self._table.schema(), output, self.snapshot_id, _COMPRESSION) as writer:
            for entry in entries:
                writer.add_entry(entry)
        self.written.append(path)
        return writer.to_manifest_file()

    def _read_entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        return read_entries(self._table, manifest)

    def _copy_entry(self, entry: ManifestEntry, *, is_deleted: bool) -> ManifestEntry:
        """Return the entry of a file that stays or goes. Its sequence numbers say which deletes apply to it."""
        status = ManifestEntryStatus.EXISTING
        snapshot_id = entry.snapshot_id
        data_file = entry.data_file
        if is_deleted:
            status = ManifestEntryStatus.DELETED
            snapshot_id = self.snapshot_id
            data_file = _without_bounds(data_file)
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=data_file,
        )


def is_live(manifest: ManifestFile) -> bool:
    """Return whether a manifest names files that are in the table."""
    return bool(manifest.has_added_files() or manifest.has_existing_files())


def check_deletes(table: Table, paths: Collection[str]) -> None:
    """Raise LiveDeleteFiles where a delete file may take rows of one of these files, as the manifests name them.

    What is to replace such a file was read from it as it is: rows that others deleted would be back, or would be
    counted as present. `paths`: full ones, as `canonical_path` gives them.
    """
    snapshot = table.metadata.current_snapshot()
    path = find_file_with_deletes(table, snapshot, lambda path: canonical_path(path) in paths)
    if path:
        raise LiveDeleteFiles(
            f"another client deleted rows of {path} by delete files (merge-on-read), and headrace does not read "
            "those. Write the files anew without the rows: CALL …system.rewrite_data_files(table => "
            f"'{'.'.join(table.name())}', options => map('delete-file-threshold', '1')). Then start again."
        )


def find_file_with_deletes(table: Table, snapshot: Snapshot | None, is_selected: Callable[[str], bool]) -> str:
    """Return the path of a selected data file of which a delete file may take rows; empty where there is none."""
    deletes = list(live_entries(table, snapshot, ManifestContent.DELETES))
    if not deletes:
        return ""
    for entry in live_entries(table, snapshot, ManifestContent.DATA):
        path = entry.data_file.file_path
        if is_selected(path) and any(_may_delete_from(delete, entry) for delete in deletes):
            return path
    return ""


def live_entries(table: Table, snapshot: Snapshot | None, content: ManifestContent) -> Iterator[ManifestEntry]:
    """Yield the entries of data files, or of delete files, of a snapshot. Raises OSError."""
    for manifest in read_manifests(table, snapshot):
        if manifest.content == content:
            yield from read_entries(table, manifest)


def read_manifests(table: Table, snapshot: Snapshot | None) -> list[ManifestFile]:
    """Return the manifests of a snapshot; none where there is none. Raises FileDamaged, OSError."""
    if snapshot is None:
        return []
    with naming_damage(snapshot.manifest_list, "a list of Iceberg's manifests"):
        return snapshot.manifests(table.io)


def read_entries(table: Table, manifest: ManifestFile, *, discard_deleted: bool = True) -> list[ManifestEntry]:
    """Return the entries of a manifest. Raises FileDamaged, OSError."""
    with naming_damage(manifest.manifest_path, "a manifest of Iceberg"):
        return manifest.fetch_manifest_entry(table.io, discard_deleted=discard_deleted)


def _without_bounds(file: DataFile) -> DataFile:
    """Return a file as the snapshot names it that removes it: by its bounds it could say whose rows were deleted."""
    fields = DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields
    values = {field.name: file[index] for index, field in enumerate(fields)}
    copy = DataFile.from_args(**{**values, "lower_bounds": None, "upper_bounds": None})
    copy.spec_id = file.spec_id
    return copy


def _may_delete_from(delete: ManifestEntry, entry: ManifestEntry) -> bool:
    """Return whether a delete file may take rows of a data file.

    Deletes by equality take those of older files alone. Bounds tell which files position deletes name: by the path that
    a manifest has, letter for letter.
    """
    delete_file = delete.data_file
    if delete_file.content == DataFileContent.EQUALITY_DELETES:
        return (entry.sequence_number or 0) < (delete.sequence_number or 0)
    first = (delete_file.lower_bounds or {}).get(_FILE_PATH_ID)
    last = (delete_file.upper_bounds or {}).get(_FILE_PATH_ID)
    return first is None or last is None or first <= entry.data_file.file_path.encode() <= last


def make_avro_names(names: Sequence[str]) -> list[str]:
    """Return a name that Avro allows for each of these distinct names, distinct too. One that it allows stays."""
    taken = {name for name in names if _AVRO_NAME.fullmatch(name)}
    avro_names = []
    for name in names:
        if _AVRO_NAME.fullmatch(name):
            avro_names.append(name)
            continue
        safe = _ODD.sub(_escape, name)
        if safe[:1].isdigit() or not safe:
            safe = f"_{safe}"
        while safe in taken:
            safe += "_"
        taken.add(safe)
        avro_names.append(safe)
    return avro_names


def _escape(character: re.Match[str]) -> str:
    """Write a character as Iceberg's libraries do."""
    return f"_x{ord(character[0]):X}"


class _SafeManifestWriter(ManifestWriterV2):
    """Writes a manifest of data files whose partition fields have names that Avro allows.

    Avro has names of ASCII letters, digits and `_`. pyiceberg and Iceberg's Java library leave any Unicode letter in
    them, at which DuckDB (1.5.5) ends its process. Readers find fields by their ids; `iceberg-field-name` keeps the
    name itself.
    """

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Return the file of the manifest's entries."""
        return _SafeAvroFile(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class _SafeAvroFile(AvroOutputFile[ManifestEntry]):
    """An Avro file whose header has safe names. Values carry none, so they stay as they are."""

    def _write_header(self) -> None:
        schema = AvroSchemaConversion().iceberg_to_avro(self.file_schema, schema_name=self.schema_name)
        assert isinstance(schema, dict), "a manifest's schema is a record"
        _rename_partition_fields(schema)
        metadata = {**self.metadata, "avro.schema": json.dumps(schema)}
        construct_writer(META_SCHEMA).write(self.encoder, AvroFileHeader(MAGIC, metadata, self.sync_bytes))


def _rename_partition_fields(schema: dict[str, Any]) -> None:
    data_file = _field(schema, "data_file")["type"]
    fields: list[dict[str, Any]] = _field(data_file, _PARTITION)["type"]["fields"]
    names = [str(field.get(ICEBERG_FIELD_NAME_PROP, field["name"])) for field in fields]
    for field, name, safe in zip(fields, names, make_avro_names(names), strict=True):
        field["name"] = safe
        if safe != name:
            field[ICEBERG_FIELD_NAME_PROP] = name


def _field(record: dict[str, Any], name: str) -> dict[str, Any]:
    field: dict[str, Any] = next(field for field in record["fields"] if field["name"] == name)
    return field
