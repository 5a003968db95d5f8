"""An Iceberg table beside other clients: nothing is lost or doubled."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo, GreaterThan, IsNaN
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import StringType

from headrace.writer.audit.audit import audit
from headrace.writer.config.sections.bucket_upkeep import Dedupe
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.iceberg.iceberg import SNAPSHOTS_KEPT
from headrace.writer.table.iceberg.metadata.schema import MAPPING
from headrace.writer.table.log.foreign_writes import FilesGone, ForeignChange, LiveDeleteFiles
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.row_removal import count_rows
from headrace.writer.table.table import PipelineTable
from tests.support import oracle
from tests.support.foreign_iceberg import delete_rows_by_file
from tests.support.iceberg_clients import client_table, overwrite_rows
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, Schemas, value
from tests.support.small_files import HOUR as HOUR_OF_EVENTS, carry, close, compact_bucket, fill_table
from tests.support.table_formats import iceberg_table, in_catalog
from tests.support.tables import COLUMNS, P0, batch, begin, create_table, iceberg_table_of, rows, write_file

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


def theirs(table: PipelineTable) -> Table:
    return iceberg_table_of(table.location)


def appended(table: PipelineTable, count: int) -> None:
    other = theirs(table)
    other.append(pa.table({"id": list(range(count)), "hour": [HOUR] * count}, schema=other.schema().as_arrow()))


def test_another_clients_append_stops_the_next_commit_by_a_sentence(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    version = table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    snapshot = table.snapshot()
    appended(table, 5)
    for tried in (
        lambda: table.append(batch(epoch, 10, 20, stage(10)), snapshot),
        lambda: table.commits_since(version),
    ):
        with pytest.raises(ForeignChange, match=r"another client ran INSERT \(version 3\)"):
            tried()
    assert rows(table) == 15
    assert [entry.kind for entry in table.history(2)] == ["client", "batch"]


def test_rows_that_another_client_deletes_stay_gone_and_the_writer_goes_on(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    bucket_files = table.bucket_files(table.snapshot())
    theirs(table).delete(EqualTo("id", 3))
    table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    assert rows(table) == 19
    rows_by_path = {file.path: file.rows for file in table.bucket_files(table.snapshot())}
    assert sorted(rows_by_path.values()) == [9, 10]
    assert not {file.path for file in bucket_files} & set(rows_by_path)
    with pytest.raises(FilesGone):
        table.append(Rewrite("merge", bucket_files, [stage(10)]), table.snapshot())
    assert rows(table) == 19


def test_a_rollback_by_another_client_is_told_from_a_commit(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    before = theirs(table).metadata.current_snapshot_id
    table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    assert before is not None
    snapshot = table.snapshot()
    theirs(table).manage_snapshots().set_current_snapshot(before).commit()
    with pytest.raises(ForeignChange, match="another client ran ROLLBACK"):
        table.append(batch(epoch, 20, 30, stage(10)), snapshot)
    (left,) = table.bucket_files(table.snapshot())
    assert (rows(table), left.rows, left.bucket) == (10, 10, (HOUR,))


def test_columns_that_another_client_adds_are_the_tables_and_a_dropped_one_stops_it(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    with theirs(table).update_schema() as change:
        change.add_column("note", StringType())
    assert table.snapshot().columns().names == [*COLUMNS.names, "note"]
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    table.grow([pa.field("price", pa.float64())], epoch)
    assert theirs(table).schema().column_names == [*COLUMNS.names, "note", "price"]
    with theirs(table).update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("id")
    again = iceberg_table(table.location, "events")
    with pytest.raises(ForeignChange, match="column id was dropped or renamed"):
        again.snapshot()


def test_a_table_that_was_taken_out_of_the_catalog_is_not_made_anew(table: PipelineTable) -> None:
    begin(table)
    catalog_table = in_catalog(table.location)
    load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).drop_table(catalog_table.identifier)
    again = iceberg_table(table.location, "events")
    assert not again.exists()
    with pytest.raises(ForeignChange, match=r"another client dropped or renamed table lake\.lake"):
        table.snapshot()
    with pytest.raises(ConfigError, match=r"holds the log of a table that the catalog does not know as lake\.lake"):
        again.create(COLUMNS, ["hour"])


def test_a_table_without_our_property_is_not_taken_for_ours(table: PipelineTable) -> None:
    begin(table)
    with theirs(table).transaction() as change:
        change.remove_properties("headrace.version")
    with pytest.raises(ForeignChange, match=r"has no property headrace\.version"):
        iceberg_table(table.location, "events").snapshot()


def test_one_name_is_one_location(table: PipelineTable, tmp_path: Path) -> None:
    begin(table)
    other = tmp_path / "elsewhere" / "lake"
    catalog_table = in_catalog(table.location)
    with pytest.raises(ConfigError, match=r"lies at .*lake, and the configuration says .*elsewhere/lake"):
        catalog_client.CatalogClient(catalog_table, str(other)).load()


def test_properties_and_expiry_of_others_change_nothing(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    for offset in range(3):
        table.append(batch(epoch, 10 * offset, 10 * offset + 10, stage(10)), table.snapshot())
    with theirs(table).transaction() as change:
        change.set_properties({"owner": "someone"})
    named = theirs(table).metadata.current_snapshot_id
    old = [snapshot.snapshot_id for snapshot in theirs(table).metadata.snapshots if snapshot.snapshot_id != named]
    theirs(table).maintenance.expire_snapshots().by_ids(old).commit()
    table.append(batch(epoch, 30, 40, stage(10)), table.snapshot())
    assert (rows(table), table.snapshot().frontier(P0)) == (40, 40)


@pytest.mark.parametrize("offset", [None, 60], ids=["without_offset", "to_come"])
def test_a_merge_that_deletes_more_than_it_inserts_is_no_delete(tmp_path: Path, offset: int | None) -> None:
    driver = fill_table(tmp_path, "iceberg")
    overwrite_rows(driver, 3, offset)
    with pytest.raises(ForeignChange, match="another client ran OVERWRITE"):
        carry(driver, 6)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert "another client ran OVERWRITE" in report.problems[0].description


def test_rows_that_another_client_writes_anew_without_some_are_a_delete(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    overwrite_rows(driver, 3, 9)
    carry(driver, 6)
    assert audit(driver.config, "clicks", since=None, deep=False).rows_taken == {"DELETE": 2}
    problems = audit(driver.config, "clicks", since=None, deep=True).problems
    assert "offsets are there more than once" in {problem.description for problem in problems}, (
        "which bounds cannot tell"
    )


def test_a_seal_passes_over_files_whose_rows_delete_files_take(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = fill_table(tmp_path, "iceberg")
    close(driver)
    delete_rows_by_file(client_table(driver))
    (bucket,) = driver.table.buckets()
    files = driver.table.bucket_files(driver.table.snapshot())
    Compactor("clicks", driver.settings, driver.table, None).before_seal(bucket, here)
    assert [line for line in caplog.messages if "rewrite_passed_over" in line and "by delete files" in line]
    assert driver.table.bucket_files(driver.table.snapshot()) == files
    assert len(list(Path(driver.lake).glob("hour=*/*.parquet"))) == len(files), "what was staged is removed"
    dedupe = Dedupe(key=["id"])
    compact = driver.settings.compact.model_copy(update={"dedupe": dedupe})
    settings = driver.settings.model_copy(update={"compact": compact})
    with pytest.raises(LiveDeleteFiles, match="by delete files"):
        Compactor("clicks", settings, driver.table, None).before_seal(bucket, here)


def test_rows_that_another_client_deletes_by_equality_stay_away(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    delete_rows_by_file(client_table(driver), content=DataFileContent.EQUALITY_DELETES, equality_ids=[1])
    carry(driver, 6)
    before = driver.table.bucket_files(driver.table.snapshot())
    with pytest.raises(LiveDeleteFiles, match="by delete files"):
        compact_bucket(driver)
    assert driver.table.bucket_files(driver.table.snapshot()) == before
    (newest,) = (file for file in before if file.event_time_max == max(file.event_time_max or NOW for file in before))
    driver.table.append(Rewrite("merge", [newest], [newest_again(driver, newest)]), driver.table.snapshot())
    carry(driver, 7)
    audited = audit(driver.config, "clicks", since=None, deep=False)
    assert (audited.adds_up, audited.rows_taken) == (True, {}), audited.problems


def newest_again(driver: Driver, file: BucketFile) -> StagedFile:
    """Copy a file, as a rewrite does."""
    path = file.path.replace(".parquet", "-again.parquet")
    shutil.copy(f"{driver.lake}/{file.path}", f"{driver.lake}/{path}")
    size = Path(driver.lake, path).stat().st_size
    stats, at = json.dumps({"numRecords": file.rows}), file.event_time_max or NOW
    return StagedFile(path, file.bucket, file.rows or 0, size, stats, at, at, {("clicks", 0): file.rows or 0})


@pytest.mark.parametrize("values", [[1.5, math.nan], [1.5, -0.5]], ids=["NaN", "numbers"])
def test_a_column_of_floats_has_no_bounds_so_nan_hides_no_row(tmp_path: Path, values: list[float]) -> None:
    schema = {**EVENT, "fields": [*EVENT["fields"], {"name": "ratio", "type": "double"}]}
    driver = Driver(tmp_path, "iceberg", schemas=Schemas({1: schema}, [1]))
    driver.start()
    rows = [{"id": index, "at": HOUR_OF_EVENTS, "note": None, "ratio": value} for index, value in enumerate(values)]
    driver.carry([log({index: value(1, schema, row) for index, row in enumerate(rows)})], {0: len(rows)})
    table = client_table(driver)
    of_ratio, of_id = (table.schema().find_field(name).field_id for name in ("ratio", "id"))
    (task,) = table.scan().plan_files()
    for bounds in (task.file.lower_bounds, task.file.upper_bounds):
        assert of_id in bounds
        assert of_ratio not in bounds
    assert table.scan(GreaterThan("ratio", 1)).to_arrow()["id"].to_pylist() == [0]
    assert table.scan(IsNaN("ratio")).to_arrow()["id"].to_pylist() == [1] * math.isnan(values[1])


def test_a_change_of_the_partitioning_stops_it_until_it_is_changed_back(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    with theirs(table).update_spec() as change:
        change.add_field("id", BucketTransform(4), "by_id")
    with pytest.raises(ForeignChange, match=r"identity\(hour\), bucket\[4\]\(by_id\) now, and headrace's buckets are"):
        table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    with theirs(table).update_spec() as change:
        change.remove_field("by_id")
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    assert rows(table) == 10


def test_properties_that_were_taken_away_are_named_with_their_values(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    properties = theirs(table).properties
    for name in ("headrace.version", "headrace.snapshot"):
        with theirs(table).transaction() as change:
            change.remove_properties(name)
        with pytest.raises(ForeignChange, match=f"has no property {name}.*'{name}'='{properties[name]}'"):
            table.snapshot()
        with theirs(table).transaction() as change:
            change.set_properties({name: properties[name]})
    with theirs(table).transaction() as change:
        change.remove_properties(MAPPING)
    table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    assert theirs(table).properties[MAPPING] == properties[MAPPING], (
        "without it readers take columns by their positions"
    )


# --- what the table keeps --------------------------------------------------------------------------------------------


def test_a_commit_asks_the_catalog_twice(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch, asked = begin(table), list[str]()
    for name in ("load", "commit"):
        of_client = getattr(catalog_client.CatalogClient, name)

        def ask(client: Any, *words: Any, name: str = name, of_client: Any = of_client) -> Any:
            asked.append(name)
            return of_client(client, *words)

        monkeypatch.setattr(catalog_client.CatalogClient, name, ask)
    for offset in range(3):
        table.append(batch(epoch, 10 * offset, 10 * offset + 10, stage(10)), table.snapshot())
    assert asked == ["load", "commit"] * 3


def test_old_snapshots_and_their_metadata_go_and_the_table_stays_small(
    location: str, stage: Callable[[int], StagedFile]
) -> None:
    create_table(location, "iceberg")
    table = iceberg_table(location, "events", checkpoint_interval=25)
    epoch = begin(table)
    for offset in range(120):
        table.append(batch(epoch, offset, offset + 1, stage(1)), table.snapshot())
        table.tidy()
    metadata = Path(theirs(table).metadata_location.removeprefix("file://"))
    assert metadata.stat().st_size < 64 * 2**10
    assert len(theirs(table).metadata.snapshots) <= SNAPSHOTS_KEPT + 26
    assert len(list(metadata.parent.glob("snap-*.avro"))) <= SNAPSHOTS_KEPT + 26
    assert len(theirs(table).inspect.manifests()) < 60
    assert rows(table) == 120


# --- files of other clients ---------------------------------------------------------------------------------------


def test_files_that_another_client_wrote_anew_are_compacted_deleted_from_and_audited(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    other = client_table(driver)
    other.delete(EqualTo("_offset", 33))  # copy-on-write: one file, with Iceberg's names of the columns
    (foreign,) = [file for file in driver.table.bucket_files(driver.table.snapshot()) if file.path.startswith("data/")]
    assert "_kafka_partition" in pq.read_schema(f"{driver.lake}/{foreign.path}").names
    left = [offset for offset in range(60) if offset != 33]
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert count_rows(driver.table.store, foreign, OffsetSet({P0: [(30, 36)]})) == 5
    assert compact_bucket(driver)
    assert oracle.offsets(Path(driver.lake)) == {("clicks", 0): left}
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert report.rows_taken == {"DELETE": 1}
