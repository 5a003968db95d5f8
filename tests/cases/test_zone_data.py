"""Data of time zones: the log has the version by which labels are made, a change is said, a writer goes by one."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, strategies as st

from headrace import bucketers
from headrace.bucketers.zone_data import ZoneData, find_differences, find_zone_data, install_zone_data, read_zone_data
from headrace.writer.batch.record_steps import RecordSteps
from headrace.writer.config.pipeline import zones_of
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.output.entry_text import describe_entry
from headrace.writer.preflight.checks.host_checks import zone_data as check_zone_data
from headrace.writer.table.log.entries import Entry, parse_entry
from headrace.writer.table.log.zone_records import find_zone_changes, format_zone_data, parse_zone_data
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, config, event
from tests.support.time_zones import (
    HOURLY,
    MEXICO,
    NEW,
    NO_SUMMER_TIME,
    OLD,
    SUMMER_TIME,
    label,
    tzif,
    write_zones,
    zone_data,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _own_zones() -> Iterator[None]:
    before = find_zone_data(MEXICO)
    yield
    install_zone_data([before])


def carry(driver: Driver, start: int) -> None:
    driver.carry([log({offset: event(offset) for offset in range(start, start + 5)})], {0: start + 5})


def entries_since(driver: Driver, version: int) -> list[Entry]:
    return [parse_entry(number, actions) for number, actions in driver.table.entries(version)]


def test_a_label_is_that_of_the_data_which_the_process_was_given() -> None:
    install_zone_data([OLD])
    assert label() == "2023-07-15T01"
    install_zone_data([NEW])
    assert label() == "2023-07-15T00"
    install_zone_data([OLD])
    assert label() == "2023-07-15T01"


@pytest.mark.parametrize(("data", "expected"), [(OLD, "2023-07-15T01"), (NEW, "2023-07-15T00")])
def test_the_folder_that_zoneinfo_reads_is_the_one_that_counts_and_tells_its_version(
    tmp_path: Path, data: ZoneData, expected: str
) -> None:
    program = (
        "from zoneinfo import ZoneInfo; from headrace.bucketers.zone_data import *; "
        "from tests.support.time_zones import *; "
        "data = read_zone_data(MEXICO); print(data.version, label(), "
        "ZoneInfo(MEXICO).utcoffset(JULY) == data.clock().utcoffset(JULY))"
    )
    environment = {**os.environ, "PYTHONTZPATH": str(write_zones(tmp_path, data)), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [data.version, expected, "True"]


def test_a_process_without_folders_reads_the_package() -> None:
    program = "from headrace.bucketers.zone_data import *; print(read_zone_data('Europe/Berlin').version)"
    environment = {**os.environ, "PYTHONTZPATH": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    import tzdata

    assert done.stdout.strip() == tzdata.IANA_VERSION


def run_with_zones(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that finds the data of zones in a folder, and then in the package tzdata."""
    environment = {**os.environ, "PYTHONTZPATH": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )


def test_a_file_that_was_cut_anywhere_is_no_clock() -> None:
    content = read_zone_data("Europe/Berlin").tzif
    for size in range(len(content)):
        with pytest.raises(ValueError, match=r"it ends in|its last line is cut|a header is none"):
            ZoneData("Europe/Berlin", "", content[:size]).clock()


def test_a_file_with_other_bytes_is_a_clock_or_refused(tmp_path: Path) -> None:
    # In a process of its own: what reads beyond an array ends one.
    program = """
import random
from datetime import UTC, datetime
from headrace.bucketers.zone_data import ZoneData, find_shifts, read_zone_data
content = read_zone_data("Europe/Berlin").tzif
choose = random.Random(7)
places = [*range(44), *range(len(content) - 40, len(content)), *choose.sample(range(len(content)), 200)]
clocks = refused = 0
for _ in range(3_000):
    damaged = bytearray(content)
    for _ in range(choose.randint(1, 3)):
        damaged[choose.choice(places)] = choose.randrange(256)
    try:
        clock = ZoneData("Europe/Berlin", "", bytes(damaged)).clock()
    except ValueError:
        refused += 1
        continue
    clocks += 1
    datetime(2050, 7, 1, tzinfo=UTC).astimezone(clock)
    find_shifts(clock, 1950)
print(clocks > 100, refused > 100)
"""
    assert run_with_zones(tmp_path, program).stdout.split() == ["True", "True"]


@pytest.mark.parametrize("size", [0, 100, -30, -1])
def test_a_damaged_file_is_named_and_nothing_waits_for_its_end(tmp_path: Path, size: int) -> None:
    content = read_zone_data("Europe/Berlin").tzif
    write_zones(tmp_path, ZoneData("Europe/Berlin", "2026b", content[:size]))
    program = """
from datetime import timedelta
from headrace import bucketers
from headrace.autoscaler.decision.policy import Policy
from headrace.writer.core.errors import ConfigError
ZONE = "Europe/Berlin"
for use in (lambda: bucketers.EventTime(timedelta(hours=1), ZONE), lambda: Policy(excluded_zone=ZONE)):
    try:
        use()
    except (ValueError, ConfigError) as error:
        print(error)
"""
    lines = run_with_zones(tmp_path, program).stdout.splitlines()
    assert len(lines) == 2
    assert all(f"{tmp_path}/Europe/Berlin is damaged" in line and "cannot be used" in line for line in lines)


@pytest.mark.parametrize(
    "zone", ["Europe/Berln", "Europe", "", "..", "../zoneinfo/Europe/Berlin", "/etc/localtime", "a\0b"]
)
def test_a_text_that_names_no_zone_is_unknown(zone: str) -> None:
    with pytest.raises(ValueError, match="is unknown; use an IANA name such as 'UTC', or install data that have it"):
        bucketers.EventTime(timedelta(hours=1), zone)


@given(
    st.sampled_from(sorted(available_timezones() - {"localtime"})),
    st.datetimes(datetime.fromisoformat("1970-01-01"), datetime.fromisoformat("2100-01-01")),
)
def test_the_data_of_a_zone_are_those_of_zoneinfo(zone: str, wall: datetime) -> None:
    instant = wall.replace(tzinfo=UTC)
    assert read_zone_data(zone).clock().utcoffset(instant) == ZoneInfo(zone).utcoffset(instant)


@given(
    st.sampled_from(["Europe/Berlin", "America/Mexico_City", "Africa/Casablanca", "Australia/Lord_Howe"]),
    st.sampled_from(["Europe/London", "America/Chicago", "America/St_Johns", "Europe/Berlin"]),
    st.datetimes(datetime.fromisoformat("2019-12-31"), datetime.fromisoformat("2025-01-02")),
)
def test_clocks_differ_within_the_spans_and_nowhere_else(one: str, other: str, wall: datetime) -> None:
    before, after = read_zone_data(one), replace(read_zone_data(other), zone=one)
    spans = find_differences(before, after, range(2020, 2025))
    assert all(start < end for start, end in spans)
    assert [start for start, _ in spans] == sorted(start for start, _ in spans)
    instant = wall.replace(tzinfo=UTC)
    differs = before.clock().utcoffset(instant) != after.clock().utcoffset(instant)
    assert any(start <= instant < end for start, end in spans) == differs


def test_a_change_names_versions_and_the_newest_span() -> None:
    (change,) = find_zone_changes({MEXICO: OLD}, [NEW], datetime(2024, 1, 1, tzinfo=UTC))
    assert (change.version_before, change.version) == ("2022a", "2026b")
    assert change.spans[-1] == (datetime(2026, 4, 5, 8, tzinfo=UTC), datetime(2026, 10, 25, 7, tzinfo=UTC))
    assert "labels differ in 57 spans of time, the newest from 2026-04-05 08:00:00 UTC" in change.phrase


def test_a_version_without_another_label_is_said_as_such() -> None:
    (change,) = find_zone_changes({MEXICO: OLD}, [zone_data(SUMMER_TIME, "2022b")], NOW)
    assert change.phrase.endswith("2022a became 2022b, no label differs")
    assert find_zone_changes({MEXICO: OLD}, [OLD, zone_data(SUMMER_TIME, "2022a", "America/Cancun")], NOW) == []


def test_zone_data_of_a_log_is_read_as_it_was_written() -> None:
    assert parse_zone_data(format_zone_data([OLD])) == {MEXICO: OLD}
    assert parse_zone_data(None) == {}


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_a_start_records_the_data_and_a_start_with_others_says_the_change(
    tmp_path: Path, form: str, caplog: pytest.LogCaptureFixture
) -> None:
    install_zone_data([OLD])
    driver = Driver(tmp_path, form, bucket=HOURLY)
    driver.start()
    carry(driver, 0)
    assert driver.table.snapshot().zone_data == {MEXICO: OLD}
    version = driver.table.snapshot().version
    driver.start()
    assert [entry.kind for entry in entries_since(driver, version)] == ["start"]
    assert "zone_data" not in caplog.text
    (finding,) = check_zone_data(driver.settings, driver.table, NOW)
    assert finding.status == "ok"
    install_zone_data([NEW])
    (finding,) = check_zone_data(driver.settings, driver.table, NOW)
    assert finding.status == "warning"
    assert "2022a became 2026b" in finding.message
    driver.start()
    assert "zone_data_changed" in caplog.text
    assert "2022a became 2026b" in caplog.text
    entry = entries_since(driver, version)[-1]
    assert (entry.kind, entry.facts["versions"]) == ("zones", {MEXICO: "2026b"})
    assert "America/Mexico_City (2026b)" in describe_entry("zones", entry.facts)
    assert entry.facts["changes"][0]["spans"][-1][1].startswith("20")
    assert driver.table.snapshot().zone_data == {MEXICO: NEW}
    carry(driver, 5)


def test_a_command_that_writes_rows_says_that_its_data_are_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install_zone_data([OLD])
    driver = Driver(tmp_path, bucket=HOURLY)
    driver.start()
    install_zone_data([NEW])
    open_local_pipeline("clicks", driver.config, driver.schemas, tables=driver.tables)
    assert "zone_data_differs" in caplog.text


def test_a_table_in_utc_has_no_such_entry(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    assert driver.table.snapshot().zone_data == {}
    assert "zones" not in {entry.kind for entry in entries_since(driver, -1)}


def test_zones_are_those_of_buckets_clocks_and_targets(tmp_path: Path) -> None:
    parts = [{"type": "field", "field": "note"}, {"type": "event_time", "width": "1 d", "zone": "Asia/Kolkata"}]
    clocks = [{"topic": "clicks", "zone": "Europe/Berlin"}, {"topic": "clicks", "shift": "-1 h"}]
    event_time = {"field": "at", "max_age": "30 d", "clocks": clocks}
    settings = config(tmp_path, bucket={"type": "composite", "parts": parts}, event_time=event_time)
    assert zones_of(settings.pipelines["clicks"]) == ["Asia/Kolkata", "Europe/Berlin"]
    target = {"location": str(tmp_path / "lake" / "events"), "bucket": {**HOURLY, "width": "1 h"}}
    routed = config(tmp_path, route={"targets": {"Event": target}})
    assert zones_of(routed.pipelines["clicks"]) == [MEXICO]


def test_a_task_goes_by_the_drivers_data_whatever_its_machine_has(tmp_path: Path) -> None:
    install_zone_data([OLD])
    driver = Driver(tmp_path, bucket=HOURLY)
    driver.start()
    plan = open_local_pipeline("clicks", driver.config, driver.schemas).task_plan(NOW, "test", {"clicks": 1})
    assert plan.zones == (OLD,)
    path = tmp_path / "plan.pickle"
    path.write_bytes(pickle.dumps(plan.zones))
    program = (
        "import pickle, sys; from pathlib import Path; from headrace.bucketers.zone_data import install_zone_data; "
        "from tests.support.time_zones import label; "
        "before = label(); install_zone_data(pickle.loads(Path(sys.argv[1]).read_bytes())); print(before, label())"
    )
    environment = {**os.environ, "PYTHONTZPATH": str(write_zones(tmp_path / "zones", NEW)), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2023-07-15T00", "2023-07-15T01"]
    install_zone_data([NEW])
    RecordSteps(plan, lambda *_: None)
    assert label() == "2023-07-15T01"


def test_rules_of_the_tests_are_those_of_the_real_zone() -> None:
    real = ZoneInfo(MEXICO)
    for rule, at in (
        (SUMMER_TIME, datetime(2021, 7, 1, tzinfo=UTC)),
        (NO_SUMMER_TIME, datetime(2024, 7, 1, tzinfo=UTC)),
    ):
        assert ZoneData(MEXICO, "", tzif(rule)).clock().utcoffset(at) == real.utcoffset(at)
