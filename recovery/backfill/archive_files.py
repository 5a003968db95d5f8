"""Reads files of archives, oldest partition first, several in parallel: Parquet, Avro, and Delta tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.writer.core.errors import ConfigError
from headrace.writer.storage.locations import delta_options, store_at
from headrace.writer.storage.settings import StoreSettings

_BATCH_ROWS = 50_000
_SUFFIXES = (".parquet", ".avro")


@dataclass(frozen=True)
class File:
    """One file of an archive."""

    location: str
    # Relative to the location.
    path: str
    system: fs.FileSystem
    root: str

    @property
    def partition(self) -> str:
        """Its folder: what is called a partition of the archive, in the order of the names."""
        return self.path.rpartition("/")[0]

    def batches(self) -> Iterator[pa.Table]:
        """Yield its rows, some at a time."""
        with self.system.open_input_file(f"{self.root}/{self.path}") as source:
            if self.path.endswith(".parquet"):
                for batch in pq.ParquetFile(source).iter_batches(_BATCH_ROWS):
                    yield pa.Table.from_batches([batch])
                return
            from fastavro import reader

            records = iter(reader(source))
            while batch_records := list(islice(records, _BATCH_ROWS)):
                yield pa.Table.from_pylist(batch_records)


def files(locations: Sequence[str], stores: StoreSettings | None) -> list[File]:
    """Return the files of archives, oldest partition first, the archives in step. Raises ConfigError for none."""
    archive_files = []
    for location in locations:
        system, root = store_at(location, stores).files()
        paths = _list_paths(location, system, root, stores)
        if not paths:
            raise ConfigError(f"--from-archive {location} holds no Parquet, Avro or Delta files")
        archive_files += [File(location, path, system, root) for path in paths]
    return sorted(archive_files, key=lambda file: (file.partition, locations.index(file.location), file.path))


def partitions(archive_files: Sequence[File]) -> Iterator[tuple[str, list[File]]]:
    """Yield the partitions with their files."""
    for partition, group in groupby(archive_files, key=lambda file: file.partition):
        yield partition, list(group)


def _list_paths(location: str, system: fs.FileSystem, root: str, stores: StoreSettings | None) -> list[str]:
    """Return the paths of an archive's files: by its log if it is a Delta table, else those in its folders."""
    if system.get_file_info(f"{root}/_delta_log").type == fs.FileType.Directory:
        from deltalake import DeltaTable

        uris = DeltaTable(location, storage_options=delta_options(location, stores)).file_uris()
        return [_relative_path(uri, root) for uri in uris]
    selector: Any = fs.FileSelector(root, recursive=True, allow_not_found=True)
    paths = [info.path for info in system.get_file_info(selector) if info.is_file]
    relative_paths = [path.removeprefix(root).lstrip("/") for path in paths]
    return [path for path in relative_paths if path.endswith(_SUFFIXES) and not _is_hidden(path)]


def _relative_path(uri: str, root: str) -> str:
    """Return a file's path below its table; delta-rs names it by a URL, or by a path."""
    path = uri.split("://", 1)[-1]
    folder = root.lstrip("/")
    start = path.find(folder) + len(folder)
    return unquote(path[start:].lstrip("/"))


def _is_hidden(path: str) -> bool:
    return any(name[0] in "_." for name in path.split("/"))
