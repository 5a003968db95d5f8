"""How a table's columns grow: older files stay, and every reader at hand reads them as what the columns are now."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder

from headrace.writer.batch.staging.parquet_files import delta_statistics, parquet_writer
from headrace.writer.core.errors import Fenced
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.table import PipelineTable
from tests.support import oracle
from tests.support.table_formats import delta_table

P0 = TopicPartition("clicks", 1, 0)


def point(*parts: tuple[str, pa.DataType]) -> pa.DataType:
    return pa.struct([pa.field(name, kind) for name, kind in parts])


def listed(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))


OLD_TYPES = {
    "n": pa.int32(), "ratio": pa.float32(), "share": pa.int32(), "price": pa.decimal128(9, 2),
    "spot": point(("x", pa.int32()), ("deep", point(("z", pa.string())))), "spots": listed(point(("x", pa.int32()))),
    "counts": pa.map_(pa.string(), pa.int32()), "notes": pa.map_(pa.string(), point(("x", pa.int32()))),
}  # fmt: skip
NEW_TYPES = {
    "n": pa.int64(), "ratio": pa.float64(), "share": pa.float64(), "price": pa.decimal128(12, 4),
    "spot": point(("x", pa.int64()), ("deep", point(("z", pa.string()), ("more", pa.bool_()))), ("y", pa.string())),
    "spots": listed(point(("x", pa.int64()), ("y", pa.string()))),
    "counts": pa.map_(pa.string(), pa.int64()),
    "notes": pa.map_(pa.string(), point(("x", pa.int32()), ("y", pa.int32()))),
}  # fmt: skip
OLD_ROW = {
    "n": 7, "ratio": 0.5, "share": 3, "price": Decimal("1.25"),
    "spot": {"x": 1, "deep": {"z": "z"}}, "spots": [{"x": 2}], "counts": [("k", 3)], "notes": [("k", {"x": 4})],
}  # fmt: skip
NEW_ROW = {
    "n": 2**40, "ratio": 1e300, "share": 0.25, "price": Decimal("12345678.1234"),
    "spot": {"x": 2**40, "deep": {"z": "z", "more": True}, "y": "y"}, "spots": [{"x": 2**40, "y": "y"}],
    "counts": [("k", 2**40)], "notes": [("k", {"x": 4, "y": 5})],
}  # fmt: skip
OLD_ROW_READ = {
    "n": 7, "ratio": 0.5, "share": 3.0, "price": Decimal("1.2500"),
    "spot": {"x": 1, "deep": {"z": "z", "more": None}, "y": None}, "spots": [{"x": 2, "y": None}],
    "counts": [("k", 3)], "notes": [("k", {"x": 4, "y": None})],
}  # fmt: skip


def batch(epoch: int, start: int, file: StagedFile) -> Batch:
    return Batch(uuid4().hex, epoch, [OffsetRange(P0, start, start + 1)], [file])


@pytest.fixture
def table(tmp_path: Path) -> PipelineTable:
    new_table = delta_table(str(tmp_path / "lake"), "events")
    new_table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    return new_table


@pytest.fixture
def widened(tmp_path: Path) -> PipelineTable:
    """A table with a file from before its columns grew, and one from after, and a checkpoint of the log between."""
    table = delta_table(str(tmp_path / "lake"), "events", checkpoint_interval=1)
    table.create(pa.schema([*OLD_TYPES.items(), ("hour", pa.string())]), ["hour"])
    epoch = table.begin({P0: 0}, {})
    table.append(batch(epoch, 0, written(tmp_path / "lake", OLD_TYPES, OLD_ROW)), table.snapshot())
    table.tidy()
    table = delta_table(str(tmp_path / "lake"), "events", checkpoint_interval=1)
    table.grow([pa.field(name, kind) for name, kind in NEW_TYPES.items()], epoch)
    table.append(batch(epoch, 1, written(tmp_path / "lake", NEW_TYPES, NEW_ROW)), table.snapshot())
    table.tidy()
    return table


def written(lake: Path, types: dict[str, pa.DataType], row: dict[str, object]) -> StagedFile:
    path = f"hour=x/{uuid4().hex}.parquet"
    (lake / path).parent.mkdir(exist_ok=True)
    rows = pa.Table.from_pylist([row], pa.schema(list(types.items())))
    with (lake / path).open("wb") as sink, parquet_writer(sink, rows.schema) as writer:
        writer.write_table(rows)
    metadata, now = pq.read_metadata(lake / path), datetime(2026, 11, 20, 5, tzinfo=UTC)
    size = (lake / path).stat().st_size
    return StagedFile(path, ("x",), 1, size, delta_statistics(metadata), now, now, {("clicks", 0): 1})


def test_files_from_before_a_column_grew_read_as_what_it_is_now(widened: PipelineTable) -> None:
    columns = pa.schema([*NEW_TYPES.items(), ("hour", pa.string())])
    assert widened.snapshot().columns().equals(columns)
    theirs = DeltaTable(widened.location)
    assert pa.schema(theirs.schema().to_arrow()).equals(columns)
    named = list(NEW_TYPES)
    rows = theirs.to_pyarrow_table().sort_by("n").select(named).to_pylist()
    assert rows == [OLD_ROW_READ, NEW_ROW]
    files = [str(Path(widened.location) / path) for path in oracle.replay(Path(widened.location)).files]
    query = f"SELECT {', '.join(named)} FROM read_parquet($1, union_by_name=true) ORDER BY n"
    by_duckdb = duckdb.sql(query, params=[files]).to_arrow_table()
    assert by_duckdb.to_pylist() == [OLD_ROW_READ, NEW_ROW]


def test_statistics_of_older_files_hide_no_row_of_a_wider_column(widened: PipelineTable) -> None:
    table = DeltaTable(widened.location)
    for where, rows in {
        "n = 7": 1,
        "n > 7": 1,
        "share = 3": 1,
        "share < 0.5": 1,
        "price > 1": 2,
        "ratio = 0.5": 1,
    }.items():
        counts = QueryBuilder().register("t", table).execute(f"SELECT count(*) AS c FROM t WHERE {where}").read_all()
        assert pa.table(counts).to_pylist() == [{"c": rows}], where


def test_growing_is_one_entry_and_the_second_time_none(widened: PipelineTable) -> None:
    version = widened.snapshot().version
    widened.grow([pa.field(name, kind) for name, kind in NEW_TYPES.items()], 1)
    assert widened.snapshot().version == version
    grown = [json.loads(entry) for entry in _said(widened) if '"columns"' in entry]
    assert [entry["kind"] for entry in grown] == ["columns"]
    assert grown[0]["changes"] == {
        "n": "integer → long", "ratio": "float → double", "share": "integer → double",
        "price": "decimal(9,2) → decimal(12,4)", "spot.x": "integer → long", "spot.deep.more": "new, boolean",
        "spot.y": "new, string", "spots.element.x": "integer → long", "spots.element.y": "new, string",
        "counts.value": "integer → long", "notes.value.y": "new, integer",
    }  # fmt: skip


def _said(table: PipelineTable) -> list[str]:
    log = Path(table.location) / "_delta_log"
    lines = [json.loads(line) for entry in sorted(log.glob("*.json")) for line in entry.read_text().splitlines()]
    return [line["commitInfo"]["headrace"] for line in lines if "headrace" in line.get("commitInfo", {})]


def test_an_older_start_grows_no_columns(table: PipelineTable) -> None:
    first = table.begin({P0: 0}, {})
    table.begin({P0: 0}, {})
    with pytest.raises(Fenced):
        table.grow([pa.field("price", pa.float64())], first)
    assert "price" not in table.snapshot().columns().names


def test_a_column_that_another_client_made_otherwise_is_told(table: PipelineTable) -> None:
    epoch = table.begin({P0: 0}, {})
    DeltaTable(table.location).alter.add_columns([Field("price", "string")])
    with pytest.raises(CommitFailed, match="column price is string by now, and not double"):
        table.grow([pa.field("price", pa.float64())], epoch)
    with pytest.raises(CommitFailed, match="column id is long by now, and not integer"):
        table.grow([pa.field("id", pa.int32())], epoch)


def test_settings_of_other_clients_for_a_column_stay_when_it_grows(table: PipelineTable) -> None:
    epoch = table.begin({P0: 0}, {})
    DeltaTable(table.location).alter.set_column_metadata("id", {"comment": "whose it is"})
    table.grow([pa.field("price", pa.float64())], epoch)
    assert DeltaTable(table.location).schema().fields[0].metadata == {"comment": "whose it is"}
