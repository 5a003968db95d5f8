"""Reads a Parquet file of a table, with headrace's names of its columns, whoever wrote it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.writer.batch.staging.parquet_files import open_file
from headrace.writer.storage.base import Store
from headrace.writer.storage.damage import naming_damage

# What Iceberg's clients write for a column whose name Iceberg reserves, and its name in files of headrace.
NAMES_IN_ICEBERG = {"_partition": "_kafka_partition"}
_PARQUET = "a Parquet file"
_PLAIN_TYPES = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_HEADRACE_NAMES = {written: name for name, written in NAMES_IN_ICEBERG.items()}


class TableFile:
    """An open Parquet file of a table."""

    def __init__(self, source: Any, path: str = "a file") -> None:
        """`path` names the file in errors. Raises FileDamaged, OSError."""
        self._path = path
        with naming_damage(path, _PARQUET):
            self._file = pq.ParquetFile(source)
        self._written_names = {_HEADRACE_NAMES.get(name, name): name for name in self._file.schema_arrow.names}

    @property
    def metadata(self) -> pq.FileMetaData:
        """The file's footer; its columns have the names that they were written by."""
        return self._file.metadata

    @property
    def names(self) -> list[str]:
        """Names of the columns."""
        return list(self._written_names)

    def iter_batches(
        self, size: int, columns: Sequence[str] | None = None, row_groups: Sequence[int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows, at most `size` at a time; `columns`: those that are wanted, all of which are there.

        Raises FileDamaged, OSError.
        """
        written_names = None if columns is None else [self._written_names[name] for name in columns]
        batches = self._file.iter_batches(size, columns=written_names, row_groups=row_groups)
        while True:
            with naming_damage(self._path, _PARQUET):
                batch = next(batches, None)
            if batch is None:
                return
            names = [_HEADRACE_NAMES.get(name, name) for name in batch.schema.names]
            yield _without_views(batch.rename_columns(names))


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return texts and bytes in the types that headrace writes: delta-rs has views, which Arrow does not compare."""
    for position, field in enumerate(batch.schema):
        plain_type = _PLAIN_TYPES.get(field.type)
        if plain_type is not None:
            batch = batch.set_column(position, field.with_type(plain_type), batch.column(position).cast(plain_type))
    return batch


@contextmanager
def open_parquet(store: Store, path: str) -> Iterator[TableFile]:
    """Open a file of a table, where it lies: in its place, or still staged. Raises OSError."""
    with open_file(store, path) as source:
        yield TableFile(source, f"{store.location}/{path}")


def read_footer(store: Store, path: str) -> pq.FileMetaData:
    """Return the footer of a file of a table. Raises FileDamaged, OSError."""
    with open_parquet(store, path) as file:
        return file.metadata
