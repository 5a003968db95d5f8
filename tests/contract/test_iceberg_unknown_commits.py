"""Commits to an Iceberg table whose outcome is unknown, and files that a snapshot names: nothing is taken away."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog import Catalog
from requests.exceptions import ConnectionError as Broken

from headrace.writer.batch.staging.parquet_files import Destination, delta_statistics
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.vacuum import find_unneeded, remove
from headrace.writer.storage.base import OutcomeUnknown
from headrace.writer.storage.locations import store_at
from headrace.writer.table.factory import table_at
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.entries import SideEntry
from headrace.writer.table.log.foreign_writes import CommitFailed, ForeignChange, LiveDeleteFiles
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from tests.support.catalog_faults import FAULTS, fail
from tests.support.foreign_iceberg import START, adopt, create_foreign_table, foreign_client
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.sample_records import event
from tests.support.small_files import carry, compact_bucket, fill_table
from tests.support.table_formats import iceberg_table, in_catalog
from tests.support.tables import P0, batch, begin, create_table, iceberg_table_of, rows, write_file
from tests.support.vacuum_time import days_ahead

OFFSETS = pa.schema(
    [("_topic", pa.string()), ("_incarnation", pa.int32()), ("_partition", pa.int32()), ("_offset", pa.int64())]
)

# A vacuum removes what it finds on this machine, too.
pytestmark = pytest.mark.usefixtures("scratch")
HOUR, NOON = "2026-11-20T05", datetime(2026, 11, 20, 12, tzinfo=UTC)


def opened(place: CatalogTable | None) -> Catalog:
    assert place is not None
    return catalog_client.open_catalog(place.catalog, tuple(sorted(place.settings)))


def with_offsets(location: str, rows: int) -> StagedFile:
    """Write a file of rows that say their offsets."""
    path, sink = Destination(store_at(location), (), "test", 2**20).open(())
    rows_ = {"_topic": ["clicks"] * rows, "_incarnation": [1] * rows, "_partition": [0] * rows}
    with pq.ParquetWriter(sink, OFFSETS) as out:
        out.write_table(pa.table({**rows_, "_offset": list(range(rows))}, schema=OFFSETS))
    metadata, size = out.writer.metadata, sink.tell()
    sink.close()
    return StagedFile(path, (), rows, size, delta_statistics(metadata), NOON, NOON, {("clicks", 0): rows})


def test_a_rewritten_file_stays_where_the_catalog_was_lost_after_it_took_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "lake")
    catalog_table = replace(in_catalog(location), retry_timeout=timedelta(milliseconds=300))
    table = table_at("iceberg", location, "events", catalog=catalog_table)
    table.create(OFFSETS, [])
    table.apply_side(SideEntry(1, [with_offsets(location, 10)]))
    client, lost = opened(catalog_table), False
    commit, load = client.commit_table, client.load_table

    def forgetting(*given: Any) -> Any:
        nonlocal lost
        commit(*given)
        lost = True
        raise Broken("the connection was reset")

    def gone(*given: Any) -> Any:
        if lost:
            raise Broken("no connection")
        return load(*given)

    with monkeypatch.context() as patched:
        patched.setattr(client, "commit_table", forgetting)
        patched.setattr(client, "load_table", gone)
        with pytest.raises(CommitFailed, match="did not answer"):
            table.apply_side(SideEntry(2, withdrawn=OffsetSet({P0: [(3, 5)]})))
    assert iceberg_table(location, "events").snapshot().applied == 2
    assert sorted(iceberg_table_of(location).scan().to_arrow()["_offset"].to_pylist()) == [0, 1, 2, 5, 6, 7, 8, 9]


def test_a_rewritten_file_stays_where_another_entry_follows_a_commit_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "lake")
    catalog_table = in_catalog(location)
    table = table_at("iceberg", location, "events", catalog=catalog_table)
    table.create(OFFSETS, [])
    table.apply_side(SideEntry(1, [with_offsets(location, 10)]))
    client = opened(catalog_table)
    commit = client.commit_table
    is_lost = False

    def lose_answer(*given: Any) -> Any:
        nonlocal is_lost
        answer = commit(*given)
        if not is_lost:
            is_lost = True
            # Another process places our entry, and follows it.
            iceberg_table(location, "events").apply_side(SideEntry(3))
            raise Broken("the connection was reset")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(client, "commit_table", lose_answer)
        table.apply_side(SideEntry(2, withdrawn=OffsetSet({P0: [(3, 5)]})))
    assert [entry.kind for entry in table.history()] == ["side", "side", "side", "create"]
    assert sorted(iceberg_table_of(location).scan().to_arrow()["_offset"].to_pylist()) == [0, 1, 2, 5, 6, 7, 8, 9]


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_catalog_does_to_an_adoption_the_table_has_its_first_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    create_foreign_table(tmp_path)
    settings = pipeline_config(tmp_path, "iceberg")
    client = opened(settings.catalog_place("clicks", settings.pipelines["clicks"].table.location))
    with fail(monkeypatch, client, fault), suppress(CommitFailed):
        adopt(tmp_path)
    if "headrace.version" not in foreign_client(tmp_path).properties:
        adopt(tmp_path)
    driver = Driver(tmp_path, "iceberg", start=START)
    driver.start(offset=100)
    driver.carry([log({offset: event(offset) for offset in range(100, 104)})], {0: 104})
    assert foreign_client(tmp_path).scan().count() == 10


def test_files_of_snapshots_that_the_catalog_did_not_let_expire_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = fill_table(tmp_path, "iceberg")
    compact_bucket(driver)
    carry(driver, 6)
    catalog_table = driver.config.catalog_place("clicks", driver.lake)
    waste = find_unneeded(driver.config, "clicks", None, days_ahead())
    with fail(monkeypatch, opened(catalog_table), "it refuses"):
        remove(waste)
    table = iceberg_table_of(driver.lake, catalog_table)
    for snapshot in table.metadata.snapshots:
        assert table.scan(snapshot_id=snapshot.snapshot_id).to_arrow().num_rows >= 0


def test_a_tag_that_is_set_while_vacuum_looks_keeps_its_files(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    compact_bucket(driver)
    carry(driver, 6)
    catalog_table = driver.config.catalog_place("clicks", driver.lake)
    waste = find_unneeded(driver.config, "clicks", None, days_ahead())
    table = iceberg_table_of(driver.lake, catalog_table)
    table.manage_snapshots().create_tag(table.metadata.snapshots[-3].snapshot_id, "month").commit()
    remove(waste)
    assert iceberg_table_of(driver.lake, catalog_table).scan().use_ref("month").to_arrow().num_rows == 60


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_an_entry_without_an_answer_is_ours_whatever_another_client_did_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    location = str(tmp_path / "lake")
    rows_of_others = pa.table({"id": [1], "hour": [HOUR]})
    table = create_table(location, form)
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, write_file(location, HOUR, 10, form)), table.snapshot())
    honest = table._log.append

    def forgetting(*given: Any) -> bool:
        honest(*given)
        if form == "delta":
            write_deltalake(location, rows_of_others, mode="append")
        else:
            iceberg_table_of(location).append(rows_of_others)
        raise OutcomeUnknown("put", location, "no answer", "Look.")

    monkeypatch.setattr(table._log, "append", forgetting)
    bucket_files, rest = table.bucket_files(table.snapshot()), write_file(location, HOUR, 9, form)
    assert table.append(Rewrite("some", bucket_files, [rest], RemovedRows("delete", 1)), table.snapshot()) == 3
    assert rows(table) == 10
    monkeypatch.undo()
    with pytest.raises(ForeignChange, match="another client ran"):
        table.commits_since(3)


def test_an_entry_without_an_answer_is_not_refused_for_what_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = str(tmp_path / "lake")
    table = create_table(location, "iceberg")
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, write_file(location, HOUR, 10, "iceberg")), table.snapshot())
    append = table._log.append
    failures: list[Exception] = []

    def lose_answer(*given: Any) -> bool:
        is_written = append(*given)
        if not failures:
            failures.extend([LiveDeleteFiles("of another client"), CommitFailed("no answer")])
            raise OutcomeUnknown("put", location, "no answer", "Look.")
        return is_written

    def fail_once(call: Callable[..., Any], error: type[Exception]) -> Callable[..., Any]:
        def fails(*given: Any) -> Any:
            if failures and isinstance(failures[-1], error):
                raise failures.pop()
            return call(*given)

        return fails

    files = table.bucket_files(table.snapshot())
    rest = write_file(location, HOUR, 9, "iceberg")
    rewrite = Rewrite("some", files, [rest], RemovedRows("dedupe", 1), by=files)
    snapshot = table.snapshot()
    monkeypatch.setattr(table._log, "append", lose_answer)
    monkeypatch.setattr(table, "snapshot", fail_once(table.snapshot, CommitFailed))
    monkeypatch.setattr(table, "check_deletes", fail_once(table.check_deletes, LiveDeleteFiles))
    assert table.append(rewrite, snapshot) == snapshot.version + 1
    assert rows(table) == 9
