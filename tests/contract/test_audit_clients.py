"""What other clients did to the tables, as the audit finds it."""

import json
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.writer.core.errors import HeadraceError
from headrace.writer.table.log.operations.seals import Closing
from tests.support.audits import describe_problems, driver, form, mixed_values, run_audit
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

__all__ = ["driver", "form"]


@pytest.mark.parametrize("deep", [False, True])
def test_a_late_row_that_another_client_deletes_has_a_term_of_its_own(tmp_path, deep):
    driver = Driver(tmp_path, seal={"late": "late_table"})
    driver.start(1)
    driver.table.append(Closing("c", NOW + timedelta(days=1), {"reason": "command"}), driver.table.snapshot())
    driver.carry([log({offset: event(offset) for offset in range(10)})], {0: 10})
    assert run_audit(driver).adds_up
    DeltaTable(driver.settings.late_place).delete("_offset = 3")
    report = run_audit(driver, deep=deep)
    assert report.adds_up, describe_problems(report)
    assert (report.rows_taken, report.late_taken) == ({}, {"DELETE": 1})


def compacted(location: str) -> tuple[Path, list[Path]]:
    """Let another client write the rows of a bucket into one file. Returns it, and the files that it then removes."""
    (folder,) = {path.parent for path in Path(location).rglob("*.parquet")}
    old = sorted(folder.glob("*.parquet"))
    pq.write_table(pa.concat_tables(pq.ParquetFile(path).read() for path in old), folder / "part-0.parquet")
    return folder / "part-0.parquet", old


@pytest.mark.parametrize("form", ["parquet"])
def test_deep_what_readers_of_a_parquet_tables_folders_see_is_counted_from_every_writer(driver):
    for end in (20, 40):
        driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(end)})], {0: end})
    new, old = compacted(driver.lake)
    report = run_audit(driver)
    assert ((0, 40),) in [p.spans for p in report.problems if "more than once" in p.description], "it died half-way"
    for path in old:
        path.unlink()
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)
    driver.carry([log({offset: event(offset, event_time=NOW) for offset in range(60)})], {0: 60})
    assert run_audit(driver).adds_up, "the writer goes on"
    pq.write_table(pq.ParquetFile(new).read().filter(pc.field("_offset") >= 4), new)
    report = run_audit(driver)
    assert ((0, 4),) in [p.spans for p in report.problems if "4 rows are not there" in p.description], (
        describe_problems(report)
    )
    pq.write_table(pa.table({"id": [1]}), new.with_name("part-1.parquet"))
    with pytest.raises(HeadraceError, match=r"part-1\.parquet was not written by headrace"):
        run_audit(driver)


@pytest.mark.parametrize("form", ["parquet"])
def test_dead_letters_of_a_parquet_table_that_another_client_compacted_are_counted(driver):
    for end in (20, 40):
        driver.carry([log(mixed_values(0, end))], {0: end})
    for path in compacted(driver.dead_letters)[1]:
        path.unlink()
    report = run_audit(driver)
    assert report.adds_up, describe_problems(report)


@pytest.mark.parametrize("deep", [False, True])
def test_rows_that_another_client_deletes_have_a_term_of_their_own(driver, deep):
    driver.carry([log(mixed_values(0, 40)), log(mixed_values(0, 10), 1)], {0: 40, 1: 10})
    DeltaTable(driver.lake).delete("_offset < 8")
    DeltaTable(driver.dead_letters).delete("_offset = 5 and _partition = 0")
    report = run_audit(driver, deep=deep)
    assert report.adds_up, describe_problems(report)
    assert (report.rows_taken, report.dead_letters_taken) == ({"DELETE": 10}, {"DELETE": 1})


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_rows_that_a_client_deletes_without_a_word_are_counted_by_the_files(tmp_path, deep, checkpointed):
    driver = Driver(tmp_path, interval=1 if checkpointed else 50)
    driver.start()
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    driver.carry([log(mixed_values(0, 40))], {0: 40})
    DeltaTable(driver.lake).delete("_offset < 8")
    entry = max(Path(driver.lake, "_delta_log").glob("*[0-9].json"))
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    assert any(action["commitInfo"].pop("operationMetrics", None) for action in lines if "commitInfo" in action)
    entry.write_text("".join(json.dumps(action) + "\n" for action in lines))
    report = run_audit(driver, deep=deep)
    assert report.adds_up, describe_problems(report)
    assert report.rows_taken == {"DELETE": 5}
    driver.carry([log(mixed_values(0, 60))], {0: 60})
    assert run_audit(driver, deep=deep).rows_taken == {"DELETE": 5}, "the page of the ledger says it as well"


def test_a_client_that_says_nothing_of_rows_at_all_is_named(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    DeltaTable(driver.lake).delete("_offset < 8")
    for entry in Path(driver.lake, "_delta_log").glob("*[0-9].json"):
        lines = [json.loads(line) for line in entry.read_text().splitlines()]
        for action in lines:
            action.get("commitInfo", {}).pop("operationMetrics", None)
            if "add" in action:
                action["add"].pop("stats", None)
        entry.write_text("".join(json.dumps(action) + "\n" for action in lines))
    report = run_audit(driver, deep=False)
    assert "DELETE of another client" in describe_problems(report)
    assert "does not say how many rows it took" in describe_problems(report)


def test_a_restore_is_what_an_account_does_not_survive(driver):
    first = driver.carry([log(mixed_values(0, 20))], {0: 20})
    driver.carry([log(mixed_values(0, 40))], {0: 40})
    DeltaTable(driver.lake).restore(first)
    report = run_audit(driver, deep=False)
    assert "another client ran RESTORE" in describe_problems(report)


def test_dead_letters_that_another_client_adds_are_not_ours(driver):
    driver.carry([log(mixed_values(0, 20))], {0: 20})
    dead_letters = DeltaTable(driver.dead_letters)
    write_deltalake(dead_letters, dead_letters.to_pyarrow_table().slice(0, 1), mode="append")
    report = run_audit(driver)
    assert (
        f"another client ran WRITE (version 2): rows moved, offsets did not in {driver.dead_letters}"
        in describe_problems(report)
    )
    assert "offsets are there more than once" in describe_problems(report)
