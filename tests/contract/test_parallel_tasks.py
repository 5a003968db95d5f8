"""What several processes make of records that are read again is what one makes: the same rows, the same counts."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.recovery.backfill.throttle import BackfillPace
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import Read
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.task_pool import TaskPool, TaskProcessEnded
from tests.support import oracle
from tests.support.audits import describe_problems, run_audit
from tests.support.backfill_gaps import (
    GivenRead,
    fill_from_archives,
    only_gap,
    skip_offsets,
    task_processes,
    values,
    write_archive,
)
from tests.support.local_driver import Driver, log
from tests.support.reprocess_lake import (
    ALL,
    BERLIN,
    HOUR,
    check_equal,
    dead_letter_rows,
    reprocess_run,
    rows,
    table_pair,
    wider,
    write_history,
)
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event

pytestmark = pytest.mark.slow
# An eighth of it is two rows: what comes again is enough for two tasks.
SMALL_FILES: dict[str, Any] = {"roll": {"target_file_size": "1 KiB"}}


@pytest.fixture
def pool() -> Iterator[TaskPool]:
    with TaskPool(2) as two_tasks:
        yield two_tasks
    assert not task_processes()


def admit_all(_: pa.RecordBatch) -> None:
    """Let a task take all records at once."""


def gap_driver(root: Path, form: str) -> Driver:
    """Return a table that ends at 20, with a gap up to 200."""
    driver = Driver(root, form, schemas=Schemas({1: EVENT, 2: WIDER}, [1]), **SMALL_FILES)
    driver.start(2)
    driver.carry([log(values(0, 20)), log(values(0, 20), 1)], {0: 20, 1: 20})
    skip_offsets(driver, 200, 60)
    return driver


def archive_of_gap(root: Path, last: Callable[[int], bytes] = event) -> Path:
    """Write the records of the gap. `last`: makes the last ones of a partition, which only one of two tasks gets."""
    write_archive(root, values(20, 190))
    write_archive(root, {offset: last(offset) for offset in range(190, 200)})
    return write_archive(root, values(20, 60), partition=1)


def fill_facts(driver: Driver) -> list[Any]:
    """Return what the entries of a backfill say of offsets and rows."""
    fills = [entry.facts for entry in driver.table.history() if entry.kind == "fill"]
    return [(fill["ranges"], fill["rows"], fill["unplaced"]) for fill in fills]


@pytest.mark.parametrize("last", [event, wider], ids=["one schema", "a schema that only one of them meets"])
def test_a_backfill_by_two_tasks_gives_the_rows_and_counts_of_one(
    tmp_path: Path, form: str, last: Callable[[int], bytes], pool: TaskPool
) -> None:
    two, one = gap_driver(tmp_path / "two", form), gap_driver(tmp_path / "one", form)
    archive = archive_of_gap(tmp_path, last)
    (outcome,) = fill_from_archives(two, archive, pool=pool)
    assert len(task_processes()) == 2
    fill_from_archives(one, archive)
    assert outcome.gap_record.state == "done"
    assert (rows(two), dead_letter_rows(two)) == (rows(one), dead_letter_rows(one))
    assert fill_facts(two) == fill_facts(one)
    assert unnamed_files(two) == []
    oracle.check(Path(two.lake), "clicks")
    assert run_audit(two, deep=True).adds_up, describe_problems(run_audit(two, deep=True))


def unnamed_files(driver: Driver) -> list[str]:
    """Return the files of rows that the table does not name."""
    lake = Path(driver.lake)
    named = {file.path for file in driver.table.bucket_files(driver.table.snapshot())}
    paths = (path.relative_to(lake) for suffix in ("parquet", "staged") for path in lake.rglob(f"*.{suffix}"))
    return sorted(str(path) for path in paths if path.parts[0][0] != "_" and str(path) not in named)


def test_a_reprocess_by_two_tasks_gives_what_the_new_rules_give_from_the_start(
    tmp_path: Path, form: str, pool: TaskPool
) -> None:
    driver, wanted = table_pair(tmp_path, form, SMALL_FILES, {**SMALL_FILES, **BERLIN}, write_history)
    result = reprocess_run(driver, ALL, pool=pool).run(NOW)
    assert len(task_processes()) == 2
    assert sum(outcome.moved for outcome in result.buckets) > 0
    check_equal(driver, wanted)


def test_a_task_process_that_is_killed_commits_nothing_and_the_next_run_is_exact(
    tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = gap_driver(tmp_path, form)
    archive = archive_of_gap(tmp_path)
    before = rows(driver)
    monkeypatch.setenv("HEADRACE_FAULT", "in_decode:1")
    with TaskPool(2) as pool, pytest.raises(TaskProcessEnded, match=r"was ended by SIGKILL; .*fewer --tasks"):
        fill_from_archives(driver, archive, pool=pool)
    assert not task_processes()
    assert (rows(driver), only_gap(driver).unfilled_offsets.count) == (before, 220)
    monkeypatch.delenv("HEADRACE_FAULT")
    with TaskPool(2) as pool:
        fill_from_archives(driver, archive, pool=pool)
    oracle.check(Path(driver.lake), "clicks")
    assert run_audit(driver, deep=True).adds_up, describe_problems(run_audit(driver, deep=True))


def staged(driver: Driver, **changes: Any) -> TaskPlan:
    pipeline = open_local_pipeline("clicks", driver.config, driver.schemas)
    return replace(pipeline.task_plan(NOW, "again", {"clicks": 1}, timedelta(days=1)), **changes)


def test_what_fails_in_a_task_fails_in_the_command_with_its_own_sentence(tmp_path: Path) -> None:
    driver = gap_driver(tmp_path, "delta")
    (tmp_path / "file").touch()
    plan = staged(driver, table=f"{tmp_path}/file/table")
    groups = [[GivenRead({offset: event(offset)})] for offset in (20, 21)]
    with TaskPool(2) as pool, pytest.raises(OSError, match=r"file/table"):
        pool.run(plan, 100, groups, admit_all)
    assert not task_processes()


def test_an_error_of_the_source_and_an_interrupt_remove_what_was_staged(tmp_path: Path) -> None:
    driver = gap_driver(tmp_path, "delta")
    plan = staged(driver, budget=1)

    def broken(error: BaseException) -> Iterator[Read]:
        yield GivenRead({offset: event(offset) for offset in range(20, 40)})
        yield GivenRead({offset: event(offset) for offset in range(40, 60)})
        deadline = time.monotonic() + 60
        while not unnamed_files(driver):
            assert time.monotonic() < deadline, "no task stages"
            time.sleep(0.02)
        raise error

    for error in (ValueError("the source"), KeyboardInterrupt()):
        reads = broken(error)
        with TaskPool(2) as pool, pytest.raises(type(error)):
            pool.run(plan, 5, [reads, reads], admit_all)
        assert unnamed_files(driver) == []
        assert not task_processes()


def test_a_task_process_tells_nobody_what_it_works_on(tmp_path: Path, pool: TaskPool) -> None:
    driver = gap_driver(tmp_path, "delta")
    groups = [[GivenRead({offset: event(offset, event_time=NOW - HOUR)})] for offset in (20, 21)]
    reports = pool.run(staged(driver), 100, groups, admit_all)
    assert sum(file.rows for report in reports for file in report.files) == 2
    for process in task_processes():
        assert driver.lake not in " ".join(process.cmdline())
        assert process.environ() == dict(os.environ)


def test_a_rate_holds_for_all_tasks_together(tmp_path: Path, pool: TaskPool) -> None:
    driver = gap_driver(tmp_path, "delta")
    now_s = [0.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    pace = BackfillPace(
        lambda: None, timedelta(minutes=1), 100.0, alive=lambda: None, clock=lambda: now_s[0], sleep=sleep
    )
    reads = [
        GivenRead({offset: event(offset, event_time=NOW - HOUR) for offset in range(start, start + 20)})
        for start in (20, 40, 60, 80)
    ]
    reports = pool.run(staged(driver), 100, [reads[:2], reads[2:]], pace.admit_records)
    assert sum(file.rows for report in reports for file in report.files) == 80
    # The last piece waits until the 60 records before it are within the rate.
    assert now_s[0] == pytest.approx(0.6)


def test_a_command_that_takes_some_records_gets_their_rows_alone(tmp_path: Path, pool: TaskPool) -> None:
    driver = gap_driver(tmp_path, "delta")
    groups = [
        [GivenRead({offset: event(offset, event_time=NOW - HOUR) for offset in range(start, start + 20)})]
        for start in (20, 30)
    ]
    taken: set[int] = set()

    def take_once(records: pa.RecordBatch) -> pa.BooleanArray:
        offsets = records.column("offset").to_pylist()
        mask = pa.array([offset not in taken for offset in offsets])
        taken.update(offsets)
        return mask

    reports = pool.run(staged(driver), 100, groups, take_once)
    assert sum(file.rows for report in reports for file in report.files) == 30
    assert taken == set(range(20, 50))
