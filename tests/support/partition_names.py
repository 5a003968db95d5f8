"""Tables whose partition columns and values have unusual characters."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.writer.batch.staging.parquet_files import Destination, delta_statistics
from headrace.writer.core.files import StagedFile
from headrace.writer.storage.locations import store_at
from tests.support.table_formats import OPENED
from tests.support.tables import P0, P1, batch

NAMES = [
    "straße_bucket",
    "日本",
    "²x",
    "x²",
    "\u0660x",
    "e\u0301",
    "😀",
    "1st",
    "a b",
    "user-id",
    "../x",
    "a/b",
    "a=b",
    "a%b",
]


VALUES = ("DE", "ä/ö", None)


NOW = datetime(2026, 11, 20, 5, tzinfo=UTC)


def stage(location: str, column: str, value: str | None) -> StagedFile:
    """Write a file with one row as a task does."""
    destination = Destination(store_at(location), (column,), "test", 2**20)
    path, sink = destination.open((value,))
    with pq.ParquetWriter(sink, pa.schema([("id", pa.int64())])) as out:
        out.write_table(pa.table({"id": [1]}))
    metadata = out.writer.metadata
    size = sink.tell()
    sink.close()
    return StagedFile(path, (value,), 1, size, delta_statistics(metadata), NOW, NOW, {("clicks", 0): 1})


def write_table(location: str, form: str, column: str) -> list[StagedFile]:
    """Make a table with a bucket column of this name, and commit a file for each value."""
    table = OPENED[form](location, "events")
    table.create(pa.schema([("id", pa.int64()), (column, pa.string())]), [column])
    epoch = table.begin({P0: 0, P1: 0}, {"clicks": ["uuid-1"]})
    files = [stage(location, column, value) for value in VALUES]
    table.append(batch(epoch, 0, len(files), *files), table.snapshot())
    return files
