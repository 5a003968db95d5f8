"""The raw table keeps every record as Kafka has it, exactly once, and loses those of rows that are deleted."""

import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.cli.fix.delete_rows import DeletionReport, run_deletion
from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.cli.maintain.retention import run_retention
from headrace.writer.core.errors import ConfigError
from headrace.writer.driver.start.pipeline_start import make_tables
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.vacuum import find_unneeded
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.status.model import Totals
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.operations.seals import Closing
from tests.support import oracle
from tests.support.audits import OLD, describe_problems, run_audit
from tests.support.local_driver import Died, Driver, log, pipeline_config
from tests.support.process import run_code_until
from tests.support.raw_table import DAY, HEADERS, KEYS, VALUES, carry_values, raw_records, start_writer
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW, event

# A vacuum removes what tasks spilled.
pytestmark = pytest.mark.usefixtures("scratch")
SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC"))])


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    return start_writer(tmp_path, form)


def test_every_record_is_kept_as_it_came_and_the_audit_adds_up(driver: Driver) -> None:
    carry_values(driver, VALUES, headers=HEADERS, keys=KEYS)
    result_rows = raw_records(driver)
    assert {offset: row["value"] for offset, row in result_rows.items()} == VALUES
    assert {offset: row["key"] for offset, row in result_rows.items()} == KEYS
    assert {offset: row["headers"] for offset, row in result_rows.items()} == {
        offset: [{"key": k, "value": v} for k, v in HEADERS[offset].items()] if offset in HEADERS else None
        for offset in VALUES
    }
    assert {(row["_topic"], row["_incarnation"], row["_kafka_time"], row["day"]) for row in result_rows.values()} == {
        ("clicks", 1, NOW, NOW.date().isoformat())
    }
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
    assert (seen.reconciliation.raw, seen.raw_taken) == (len(VALUES), {})
    sums = Totals()
    sums.add(driver.table.recent_commits(1)[0])
    raw = driver.side(driver.settings.raw_place).bucket_files(driver.side(driver.settings.raw_place).snapshot())
    assert (sums.raw_records, sums.raw_files) == (len(VALUES), len(raw))
    assert sums.raw_bytes == sum(file.bytes for file in raw) > 0


@pytest.mark.parametrize("form", ["delta"])
def test_a_timestamp_that_is_not_believable_is_kept_under_the_day_at_which_it_was_read(driver: Driver) -> None:
    carry_values(driver, {0: event(0)}, came=NOW - 3 * DAY)
    carry_values(driver, {1: event(1)}, came=NOW.replace(year=9000))
    days = {offset: (row["_kafka_time"].year, row["day"]) for offset, row in raw_records(driver).items()}
    assert days == {0: (2026, (NOW - 3 * DAY).date().isoformat()), 1: (9000, NOW.date().isoformat())}


def test_side_files_that_a_dead_writer_did_not_apply_are_applied_once(tmp_path: Path, form: str) -> None:
    driver = start_writer(tmp_path, form)
    with pytest.raises(Died):
        driver.carry([log(VALUES)], {0: 8}, die="after_commit")
    assert run_audit(driver).adds_up, "what waits is counted"
    for _ in range(2):
        start_writer(tmp_path, form)
    again = start_writer(tmp_path, form)
    carry_values(again, VALUES | {8: event(8)})
    assert sorted(raw_records(again)) == list(range(9))
    assert run_audit(again).adds_up


KILLED = """
import sys
from pathlib import Path
from tests.support.raw_table import VALUES, carry_values, start_writer
carry_values(start_writer(Path(sys.argv[1]), sys.argv[2]), VALUES)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "point"),
    [
        *(("delta", point) for point in ("after_commit:1", "before_apply:1", "after_apply:1")),
        *((form, "before_apply:2") for form in ("delta", "iceberg")),  # the second is the raw table
    ],
)
def test_killed_between_commit_and_application_it_loses_and_doubles_no_raw_record(
    tmp_path: Path, form: str, point: str
) -> None:
    run_code_until(KILLED, str(tmp_path), form, point=point)
    again = start_writer(tmp_path, form)
    assert sorted(raw_records(again)) in ([], sorted(VALUES))
    for _ in range(2):
        carry_values(again, VALUES)
    assert {offset: row["value"] for offset, row in raw_records(again).items()} == VALUES
    seen = run_audit(again)
    assert (seen.adds_up, seen.waiting) == (True, 0), describe_problems(seen)


@pytest.mark.parametrize("form", ["delta"])
def test_records_of_a_batch_that_was_not_committed_are_not_there(tmp_path: Path, form: str) -> None:
    driver = start_writer(tmp_path, form)
    with pytest.raises(Died):
        driver.carry([log(VALUES)], {0: 8}, die="after_stage")
    again = start_writer(tmp_path, form)
    assert raw_records(again) == {}
    carry_values(again, VALUES)
    assert sorted(raw_records(again)) == sorted(VALUES)


@pytest.mark.parametrize("form", ["delta"])
def test_the_audit_names_a_raw_record_that_is_missing_and_one_that_is_twice(driver: Driver) -> None:
    carry_values(driver, VALUES)
    raw = driver.side(driver.settings.table.raw.location)
    (file,) = raw.bucket_files(raw.snapshot())
    carry_values(driver, {8: event(8)})
    one, two = raw.bucket_files(raw.snapshot())
    path = Path(raw.location) / file.path
    other = next(f for f in (one, two) if f.path != file.path)
    (Path(raw.location) / other.path).write_bytes(path.read_bytes())
    found = describe_problems(run_audit(driver))
    assert "raw records are there more than once" in found
    assert "raw records more than expected" in found


def test_deleted_rows_take_their_raw_records_and_those_of_dead_letters_with_them(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta", seal={"late": "late_table"})
    carry_values(driver, VALUES)  # id 1 at offsets 1 and 7
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    carry_values(driver, {8: event(1), 9: event(9), 10: event(1, event_time=OLD)})  # late, late, quarantined

    def delete(*, write: bool) -> DeletionReport:
        request = DeletionRequest("clicks", where("id = 1"), NOW)
        return run_deletion(driver.config, request, driver.schemas, write=write)

    assert delete(write=False).raw_records == 4
    assert sorted(raw_records(driver)) == list(range(11))
    result = delete(write=True)
    assert (result.raw_records, len(result.raw_versions)) == (4, 3)
    assert sorted(raw_records(driver)) == [0, 2, 3, 4, 5, 6, 9]
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
    assert seen.raw_taken == {"delete": 4}
    assert delete(write=True).raw_records == 0


@pytest.mark.parametrize("form", ["delta"])
def test_a_delete_that_dies_before_the_rows_went_finds_them_again(driver: Driver, monkeypatch) -> None:
    carry_values(driver, {n: event(n % 3) for n in range(9)})

    def run() -> None:
        run_deletion(driver.config, DeletionRequest("clicks", where("id = 1"), NOW), driver.schemas, write=True)

    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise Died

        patched.setattr("headrace.writer.maintenance.deletion.row_deletion.RowDeletion._erase", die)
        with pytest.raises(Died):
            run()
    assert sorted(raw_records(driver)) == [0, 2, 3, 5, 6, 8]
    assert run_audit(driver).adds_up
    run()
    assert sorted(driver.table.rows().to_table(columns=["_offset"]).column(0).to_pylist()) == [0, 2, 3, 5, 6, 8]
    assert run_audit(driver).adds_up


@pytest.mark.parametrize("form", ["delta"])
def test_a_rewind_takes_the_raw_records_back_and_they_come_again(driver: Driver) -> None:
    carry_values(driver, {n: event(n) for n in range(4)})
    good = driver.table.snapshot().version
    carry_values(driver, {n: None if n == 5 else event(n) for n in range(4, 8)})
    doing = RewindExecution(driver.config, "clicks", Cluster(8))
    look = doing.preview(good)
    assert look.raw_records == 4
    doing.write(look, NOW)
    assert sorted(raw_records(driver)) == [0, 1, 2, 3]
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
    assert seen.raw_taken == {"rewind": 4}
    driver.start()
    carry_values(driver, {n: event(n) for n in range(4, 8)})
    assert sorted(raw_records(driver)) == list(range(8))
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)


def test_days_are_dropped_by_their_own_retention(tmp_path: Path, form: str) -> None:
    driver = start_writer(tmp_path, form, raw={"retention": "7 d"})
    carry_values(driver, {n: event(n) for n in range(4)}, came=NOW - 9 * DAY)
    carry_values(driver, {n: event(n) for n in range(4, 6)})
    report = run_retention([ChosenTable("clicks", None, driver.config, driver.config)], write=True, now=NOW)
    raw_table = report.pipelines["clicks"].raw_table
    assert raw_table is not None
    assert (raw_table.rows_dropped, [bucket.bucket for bucket in raw_table.due]) == (4, [("2026-11-11",)])
    assert sorted(raw_records(driver)) == [4, 5]
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
    assert (seen.raw_taken, seen.rows_taken) == ({"retention": 4}, {})


def test_small_files_of_a_day_are_merged(tmp_path: Path, form: str) -> None:
    driver = start_writer(tmp_path, form, raw={"max_open_files": 3})
    for offset in range(6):
        carry_values(driver, {offset: event(offset)}, headers={offset: {"n": b"1"}})
    config = driver.config.at_raw("clicks")
    raw = driver.side(driver.settings.table.raw.location)
    assert len(raw.bucket_files(raw.snapshot())) == 6
    Compactor("clicks", config.pipelines["clicks"], raw, None).merge_open(here)
    assert len(raw.bucket_files(raw.snapshot())) == 1
    assert {offset: row["headers"] for offset, row in raw_records(driver).items()} == {
        offset: [{"key": "n", "value": b"1"}] for offset in range(6)
    }
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)


def test_vacuum_knows_the_raw_table_when_the_configuration_does_not_any_more(tmp_path: Path) -> None:
    driver = start_writer(tmp_path, "delta")
    carry_values(driver, VALUES)
    orphan = Path(driver.settings.table.raw.location) / "day=2026-11-20" / "old.parquet"
    orphan.write_bytes(b"x")
    without = Driver(tmp_path, "delta")
    waste = find_unneeded(without.config, "clicks", None, NOW + 400 * DAY)
    assert [w.path for location in waste if location.location.endswith("_raw") for w in location.waste] == [
        "day=2026-11-20/old.parquet"
    ]


def test_a_pipeline_that_keeps_no_records_any_more_is_still_audited_and_deleted_from(tmp_path: Path) -> None:
    carry_values(start_writer(tmp_path, "delta"), VALUES)
    driver = Driver(tmp_path, "delta")
    driver.start()
    carry_values(driver, VALUES | {8: event(8)})
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
    assert seen.reconciliation.raw == len(VALUES)


def test_the_raw_table_of_another_tables_log_is_refused(tmp_path: Path) -> None:
    carry_values(start_writer(tmp_path, "delta"), VALUES)
    with pytest.raises(ConfigError, match="has the records of another table"):
        Driver(tmp_path, "delta", table={
            "location": str(tmp_path / "lake" / "anew"), "raw": str(tmp_path / "lake" / "clicks_raw"),
        })  # fmt: skip


@pytest.mark.parametrize("beside", ["dead_letters", "late"])
def test_a_table_beside_one_that_was_made_again_is_refused(tmp_path: Path, beside: str) -> None:
    """Its newest version is above those of the new log, whose dead letters and late rows it would take for known."""
    settings = {"late": "late_table", "allowed_lateness": "0 s"}
    driver = Driver(tmp_path, "delta", seal=settings)
    driver.start()
    carry_values(driver, VALUES)
    driver.table.append(Closing("c1", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    driver.carry([log({8: event(8), 9: b"cut"})], {0: 10})
    shutil.rmtree(driver.lake)
    location = driver.dead_letters if beside == "dead_letters" else driver.settings.late_table
    other = driver.settings.late_table if beside == "dead_letters" else driver.dead_letters
    shutil.rmtree(other)
    tables = all_tables("clicks", driver.config)
    with pytest.raises(ConfigError, match=f"Move {re.escape(location)} away, or give (table|seal)"):
        make_tables(driver.settings, tables, SCHEMA, driver.columns)
    shutil.move(location, tmp_path / "away")
    make_tables(driver.settings, all_tables("clicks", driver.config), SCHEMA, driver.columns)


def test_without_a_raw_table_nothing_is_other_than_it_was(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "delta")
    driver.start()
    carry_values(driver, VALUES)
    (facts,) = driver.table.recent_commits(1)
    assert not [key for key in ("raw", *facts["ranges"][0]) if key == "raw" and key in facts]
    assert oracle.rows(Path(driver.lake), "count(*)") == [(4,)]


def test_a_raw_table_becomes_an_iceberg_table_with_its_table(tmp_path: Path) -> None:
    carry_values(start_writer(tmp_path, "delta"), VALUES)
    table = {"raw": {"location": str(tmp_path / "lake" / "clicks_raw")}}
    settings = pipeline_config(tmp_path, "iceberg", table=table)
    assert run_convert(settings, "clicks", write=True, now=NOW).has_changes
    driver = start_writer(tmp_path, "iceberg")
    carry_values(driver, VALUES | {8: None})
    assert sorted(raw_records(driver)) == list(range(9))
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
