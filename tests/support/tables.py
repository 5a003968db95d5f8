"""Tables of either format in either kind of store, and what is committed to them, for tests of what each promises."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from headrace.writer.batch.staging.parquet_files import Destination, delta_statistics
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.locations import delta_options, store_at
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.iceberg.iceberg import Iceberg
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.parquet import Parquet
from headrace.writer.table.table import PipelineTable
from tests.support import hive_readers
from tests.support.lake_stores import BUCKETS, new_home
from tests.support.table_formats import OPENED, in_catalog

P0 = TopicPartition("clicks", 1, 0)
P1 = TopicPartition("clicks", 1, 1)
LOGS = {"delta": "_delta_log/0.json", "headrace": "_headrace/log/0.json", "iceberg": "metadata/v1.metadata.json"}
COLUMNS = pa.schema([("id", pa.int64()), ("hour", pa.string())])


@pytest.fixture(params=["local", *BUCKETS])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a table may lie, in each kind of store."""
    home = new_home(request, request.param, tmp_path)
    return f"{home}/lake" if request.param == "local" else f"{home}/lake ü +=&"


@pytest.fixture
def table(location: str, form: str) -> PipelineTable:
    return create_table(location, form)


@pytest.fixture
def stage(location: str, form: str) -> Callable[[int], StagedFile]:
    return lambda rows: write_file(location, "2026-11-20T05", rows, form)


@pytest.fixture
def delta(location: str) -> PipelineTable:
    """A table that other clients write to as well."""
    return create_table(location, "delta")


@pytest.fixture
def add(location: str) -> Callable[[int], StagedFile]:
    """Stage a file for that one."""
    return lambda rows: write_file(location, "2026-11-20T05", rows, "delta")


def create_table(location: str, form: str) -> PipelineTable:
    table = OPENED[form](location, "events", retry_timeout=timedelta(seconds=30))
    table.create(COLUMNS, ["hour"])
    return table


def write_file(location: str, hour: str, rows: int, form: str) -> StagedFile:
    """Write a file as a task does."""
    now = datetime(2026, 11, 20, 5, tzinfo=UTC)
    destination = Destination(store_at(location), ("hour",), "test", 2**20, hidden=form == "parquet")
    path, sink = destination.open((hour,))
    with pq.ParquetWriter(sink, pa.schema([("id", pa.int64())])) as out:
        out.write_table(pa.table({"id": list(range(rows))}))
    metadata = out.writer.metadata
    size = sink.tell()
    sink.close()
    return StagedFile(path, (hour,), rows, size, delta_statistics(metadata), now, now, {("clicks", 0): rows})


def delta_client(location: str) -> DeltaTable:
    """Open a table as another client does."""
    return DeltaTable(location, storage_options=delta_options(location))


def iceberg_table_of(location: str, catalog_table: CatalogTable | None = None) -> Table:
    """Open an Iceberg table as another client does. By default a table of tests without a driver."""
    catalog_table = catalog_table or in_catalog(location)
    return load_catalog(
        catalog_table.catalog, **dict(catalog_table.settings), **catalog_client.file_settings(location)
    ).load_table(catalog_table.identifier)


def begin(table: PipelineTable, **starts: int) -> int:
    parts = {P0: starts.get("p0", 0), P1: starts.get("p1", 0)}
    return table.begin(parts, {"clicks": ["uuid-1"]})


def batch(epoch: int, start: int, end: int, *files: StagedFile, part: TopicPartition = P0) -> Batch:
    return Batch(uuid4().hex, epoch, [OffsetRange(part, start, end)], files, facts={"ranges": [], "rows": end - start})


def rows(table: PipelineTable) -> int:
    """Count what a reader sees."""
    if isinstance(table._format, Parquet):
        return int(hive_readers.read_rows(table.location).num_rows)
    if isinstance(table._format, Iceberg):
        return int(iceberg_table_of(table.location).scan().count())
    return int(delta_client(table.location).count())


def put_table(location: str, kind: str) -> None:
    """Put a table of another writer at a location: its log, data files and a draft."""
    store = store_at(location)
    for path in (LOGS[kind], "hour=x/a.parquet", "b.parquet", ".c.parquet.5f.tmp"):
        store.put(path, b"data")
