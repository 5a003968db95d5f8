"""Reads files of archives, oldest partition first, several in parallel: Parquet, Avro, and Delta tables."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from writer.core.errors import ConfigError
from writer.storage.base import S3Settings
from writer.storage.locations import delta_options, store_at

_ROWS_AT_ONCE = 50_000
_KNOWN = (".parquet", ".avro")


@dataclass(frozen=True)
class File:
    """One file of an archive."""

    location: str
    path: str  # relative to it
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
                for batch in pq.ParquetFile(source).iter_batches(_ROWS_AT_ONCE):
                    yield pa.Table.from_batches([batch])
                return
            from fastavro import reader

            records = iter(reader(source))
            while some := list(islice(records, _ROWS_AT_ONCE)):
                yield pa.Table.from_pylist(some)


def files(locations: Sequence[str], s3: S3Settings | None) -> list[File]:
    """Return the files of archives, oldest partition first, the archives in step. Raises ConfigError for none."""
    found = []
    for location in locations:
        system, root = store_at(location, s3).files()
        paths = _list(location, system, root, s3)
        if not paths:
            raise ConfigError(f"--from-archive {location} holds no Parquet, Avro or Delta files")
        found += [File(location, path, system, root) for path in paths]
    return sorted(found, key=lambda file: (file.partition, locations.index(file.location), file.path))


def partitions(found: Sequence[File]) -> Iterator[tuple[str, list[File]]]:
    """Yield the partitions with their files."""
    for partition, group in groupby(found, key=lambda file: file.partition):
        yield partition, list(group)


def _list(location: str, system: fs.FileSystem, root: str, s3: S3Settings | None) -> list[str]:
    if system.get_file_info(f"{root}/_delta_log").type == fs.FileType.Directory:
        from deltalake import DeltaTable

        named = DeltaTable(location, storage_options=delta_options(location, s3)).file_uris()
        return [_relative(uri, root) for uri in named]
    selector: Any = fs.FileSelector(root, recursive=True, allow_not_found=True)
    paths = [info.path for info in system.get_file_info(selector) if info.is_file]
    inner = [path.removeprefix(root).lstrip("/") for path in paths]
    return [path for path in inner if path.endswith(_KNOWN) and not _hidden(path)]


def _relative(uri: str, root: str) -> str:
    """Return a file's path below its table; delta-rs names it by a URL, or by a path."""
    plain = uri.split("://", 1)[-1]
    at = plain.find(root.lstrip("/"))
    return unquote(plain[at + len(root.lstrip("/")) :].lstrip("/"))


def _hidden(path: str) -> bool:
    return any(name[0] in "_." for name in path.split("/"))
