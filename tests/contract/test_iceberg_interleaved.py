"""An Iceberg table that several processes and clients reach at once, or whose catalog went back: no entry is wrong."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.types import StringType

from headrace.writer.core.files import StagedFile
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.table import PipelineTable
from tests.support.table_formats import iceberg_table, in_catalog
from tests.support.tables import P0, batch, begin, create_table, iceberg_table_of, rows, write_file

HOUR = "2026-11-20T05"


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def table(location: str) -> PipelineTable:
    return create_table(location, "iceberg")


@pytest.fixture
def stage(location: str) -> Callable[[int], StagedFile]:
    return lambda rows: write_file(location, HOUR, rows, "iceberg")


def test_a_batch_is_committed_once_where_another_process_wrote_down_a_new_column_meanwhile(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    snapshot = table.snapshot()
    with iceberg_table_of(table.location).update_schema() as change:
        change.add_column("note", StringType())
    reader = iceberg_table(table.location, "events")
    assert "note" in reader.snapshot().columns().names
    table.append(batch(epoch, 0, 10, stage(10)), snapshot)
    assert (rows(table), table.snapshot().frontier(P0)) == (10, 10)
    assert [entry.kind for entry in table.history()][:2] == ["batch", "client"]


@pytest.mark.parametrize("deletes", [1, 2])
def test_a_process_that_read_the_table_earlier_writes_no_entry_about_it(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch, deletes: int
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    reader = iceberg_table(table.location, "events")
    earlier = [reader._format.table()]
    for offset in range(deletes):
        iceberg_table_of(table.location).delete(EqualTo("id", offset))
        if offset == 0 and deletes == 2:
            earlier = [reader._format.table()]
    table.snapshot()
    honest = reader._log._client.load
    monkeypatch.setattr(reader._log._client, "load", lambda: earlier.pop() if earlier else honest())
    reader.snapshot()
    epoch = begin(table)
    table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    assert (rows(table), table.snapshot().frontier(P0)) == (20 - deletes, 20)
    operations = [entry.facts["operation"] for entry in table.history() if entry.kind == "client"]
    assert operations == ["DELETE"] * deletes


def test_a_process_that_read_the_table_before_a_column_came_finds_none_dropped(
    table: PipelineTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begin(table)
    reader = iceberg_table(table.location, "events")
    earlier = [reader._format.table()]
    table.grow([pa.field("price", pa.float64())], epoch)
    honest = reader._log._client.load
    monkeypatch.setattr(reader._log._client, "load", lambda: earlier.pop() if earlier else honest())
    assert "price" in reader.snapshot().columns().names


def test_a_catalog_that_went_back_is_told(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    backup = iceberg_table_of(table.location).metadata_location
    table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    catalog_table = in_catalog(table.location)
    catalog = load_catalog(catalog_table.catalog, **dict(catalog_table.settings))
    catalog.drop_table(catalog_table.identifier)
    catalog.register_table(catalog_table.identifier, backup)
    assert rows(table) == 10
    with pytest.raises(ForeignChange, match="newest"):
        table.append(batch(epoch, 20, 30, stage(10)), table.snapshot())
    with pytest.raises(ForeignChange, match="newest"):
        iceberg_table(table.location, "events").snapshot()
