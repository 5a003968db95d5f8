"""A reprocess beside the writer, a compaction, a delete or another reprocess; and one that dies at an effect."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.recovery.reprocess.run import SourceChoice
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from tests.support.audits import describe_problems, run_audit
from tests.support.effect_failures import Died, die_after
from tests.support.local_driver import Driver, log
from tests.support.reprocess_lake import (
    BERLIN,
    ONE,
    Between,
    check_equal,
    check_sound,
    dead_letter_rows,
    delete,
    mixed_values,
    offset_key,
    open_writer,
    reprocess_run,
    rows,
    run_reprocess,
    start_writer,
    table_pair,
    write_history,
)
from tests.support.sample_records import NOW


@pytest.fixture
def pair(tmp_path: Path, form: str) -> tuple[Driver, Driver]:
    return table_pair(tmp_path, form, {}, BERLIN, write_history)


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_the_writer_commits_between_read_and_swap_and_both_stand(pair: tuple[Driver, Driver]) -> None:
    driver, wanted = pair
    epoch = driver.table.snapshot().epoch
    run_reprocess(driver, source=Between(lambda: write_history(driver, 60, 80)))
    write_history(wanted, 60, 80)
    assert driver.table.snapshot().epoch == epoch
    check_equal(driver, wanted)


@pytest.mark.parametrize("form", ["delta", "iceberg"])
def test_a_bucket_that_is_compacted_between_read_and_swap_is_done_again(pair: tuple[Driver, Driver]) -> None:
    driver, wanted = pair

    def compact() -> None:
        compactor = Compactor("clicks", driver.settings, driver.table, None)
        snapshot = driver.table.snapshot()
        for pieces in compactor.plan(snapshot, compactor.buckets(snapshot), open_too=True).values():
            list(compactor.carry_out(snapshot, pieces, here))

    between = Between(compact)
    before = driver.table.snapshot().version
    run_reprocess(driver, source=between)
    kinds = [entry.kind for entry in driver.table.history() if entry.version > before]
    assert between.done
    assert "rewrite" in kinds
    check_equal(driver, wanted)


def test_rows_that_are_deleted_between_read_and_swap_stay_out(pair: tuple[Driver, Driver]) -> None:
    driver, wanted = pair
    run_reprocess(driver, source=Between(lambda: delete(driver, "id IN (10, 12, 14)")))
    delete(wanted, "id IN (10, 12, 14)")
    check_equal(driver, wanted)


@pytest.mark.parametrize("form", ["delta"])
def test_two_at_once_swap_each_row_once(pair: tuple[Driver, Driver]) -> None:
    driver, wanted = pair
    run_reprocess(driver, source=Between(lambda: run_reprocess(driver)))
    check_equal(driver, wanted)


@pytest.mark.parametrize("form", ["delta"])
def test_rows_whose_records_are_not_there_stay_as_they_are(pair: tuple[Driver, Driver]) -> None:
    driver, _ = pair
    raw = driver.side(driver.settings.table.raw.location)
    first, *_ = raw.bucket_files(raw.snapshot())
    raw.append(Rewrite("r", [first], (), RemovedRows("retention", first.rows or 0), {"buckets": []}), raw.snapshot())
    before = {offset_key(row): row["hour"] for row in rows(driver)}
    look = reprocess_run(driver).preview()
    done = run_reprocess(driver)
    absent = sum(bucket.absent for bucket in done.buckets)
    assert 0 < absent < len(before)
    assert sum(bucket.rows - bucket.available for bucket in look.buckets) == absent
    same = [row for row in rows(driver) if before.get(offset_key(row)) == row["hour"]]
    assert len(same) == absent
    check_sound(driver)


@pytest.mark.parametrize("form", ["delta"])
def test_the_rest_of_another_clients_file_has_the_event_times_of_its_rows(pair: tuple[Driver, Driver]) -> None:
    driver, _ = pair
    DeltaTable(driver.lake).delete("id = 10")  # it does not say the times of what it writes
    raw = driver.side(driver.settings.raw_place or "")
    snapshot = raw.snapshot()
    with raw.stage_without_offsets(snapshot, OffsetSet({TopicPartition("clicks", 1, 0): [(14, 15)]})) as left:
        raw.append(Rewrite("r", left.removed, left.rewritten, RemovedRows("delete", left.rows)), snapshot)
    assert sum(bucket.absent for bucket in run_reprocess(driver).buckets) == 1
    files = [file for file in driver.table.bucket_files(driver.table.snapshot()) if file.event_time_max]
    assert files
    assert max(file.event_time_max for file in files if file.event_time_max) <= NOW
    check_sound(driver)


@pytest.mark.parametrize("form", ["delta"])
def test_from_an_archive_of_whole_records_and_from_no_other(pair: tuple[Driver, Driver], tmp_path: Path) -> None:
    driver, wanted = pair
    table = pa.Table.from_batches([log(mixed_values(0, 60)), log(mixed_values(0, 30), 1)])
    (tmp_path / "archive").mkdir()
    pq.write_table(table, tmp_path / "archive" / "one.parquet")
    source = SourceChoice("archive", (str(tmp_path / "archive"),))
    assert sum(bucket.absent for bucket in run_reprocess(driver, source=source).buckets) == 0
    check_equal(driver, wanted)
    pq.write_table(table.drop_columns(["key"]), tmp_path / "archive" / "one.parquet")
    with pytest.raises(ConfigError, match="has no column of the key of records"):
        reprocess_run(driver, source=source).preview()


def test_a_reprocess_may_die_at_any_effect_and_is_run_again(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = "2026-11-20T10..2026-11-20T11"

    def anew(root: Path) -> Driver:
        before = start_writer(root, form, schemas=ONE)
        write_history(before, 0, 20)
        delete(before, "id = 1")
        return start_writer(root, form, **BERLIN)

    whole = anew(tmp_path / "whole")
    run_reprocess(whole, two)
    wanted, ended = (rows(whole), dead_letter_rows(whole)), False
    for after in range(1_000):
        driver = anew(tmp_path / str(after))
        death = die_after(monkeypatch, after)
        next(death)
        with suppress(Died):
            run_reprocess(driver, two)
            ended = True
        next(death)
        driver = open_writer(tmp_path / str(after), form)
        seen = [offset_key(row) for row in rows(driver)]
        assert len(seen) == len(set(seen)), f"a row is there twice after {after} effects"
        run_reprocess(driver, two)
        assert (rows(driver), dead_letter_rows(driver)) == wanted, f"after {after} effects"
        report = run_audit(driver)
        assert report.adds_up, f"after {after} effects: {describe_problems(report)}"
        if ended:
            break
    assert after > 4, "it has several effects"


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_raw_table_whose_files_are_merged_while_they_are_read_is_read_again(tmp_path: Path, form: str) -> None:
    merged = {"table": {"raw": {"location": str(tmp_path / "old" / "lake" / "clicks_raw"), "max_open_files": 2}}}
    before = start_writer(tmp_path / "old", form, schemas=ONE)
    write_history(before)
    driver, wanted = (
        start_writer(tmp_path / "old", form, **merged, **BERLIN),
        start_writer(tmp_path / "new", form, **BERLIN),
    )
    write_history(wanted)

    def merge() -> None:
        raw = driver.side(driver.settings.table.raw.location)
        Compactor("clicks", driver.config.at_raw("clicks").pipelines["clicks"], raw, None).merge_open(here)
        assert len(raw.bucket_files(raw.snapshot())) == 1

    between = Between(merge, early=True)
    run_reprocess(driver, source=between)
    assert between.done
    check_equal(driver, wanted)


@pytest.mark.parametrize("form", ["delta"])
def test_an_archive_that_does_not_say_which_incarnation_it_has_is_refused_where_there_are_two(
    pair: tuple[Driver, Driver], tmp_path: Path
) -> None:
    driver, _ = pair
    (tmp_path / "archive").mkdir()
    archive = tmp_path / "archive" / "one.parquet"
    table = pa.Table.from_batches([log(mixed_values(0, 60)), log(mixed_values(0, 30), 1)])
    pq.write_table(table, archive)
    driver.table.begin({TopicPartition("clicks", 2, 0): 0}, {"clicks": ["uuid-1", "uuid-2"]})
    source = SourceChoice("archive", (str(archive.parent),))
    with pytest.raises(ConfigError, match="of which incarnation of topic 'clicks'"):
        reprocess_run(driver, source=source).preview()
    ones = pa.repeat(pa.scalar(1, pa.int32()), table.num_rows)
    pq.write_table(table.append_column("incarnation", ones), archive)
    names = "topic=topic,partition=partition,offset=offset,time=timestamp,key=key,value=value,headers=headers,"
    names += "incarnation=incarnation"
    assert reprocess_run(driver, source=SourceChoice("archive", (str(archive.parent),), names)).preview().buckets
