"""A shorter retention drops nothing before a person accepts it, however it came into force."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from headrace import bucketers
from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.maintenance.retention import (
    WAIT_EVERY,
    PeriodicRetention,
    Retention,
    pipeline_retentions,
    settle_retentions,
)
from headrace.writer.preflight.checks.retention_check import check_retention
from headrace.writer.sealing.retention_wait import RECORD, RetentionWait, read_retention
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

# A vacuum removes what tasks spilled.
pytestmark = pytest.mark.usefixtures("scratch")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS = bucketers.build({"type": "event_time", "width": HOUR, "zone": "UTC"})


@pytest.fixture
def driver(form: str, tmp_path: Path) -> Driver:
    """A table without rows."""
    driver = Driver(tmp_path, form)
    driver.start()
    return driver


def add_rows(driver: Driver) -> None:
    """Bring a row for each of the five hours until now."""
    driver.carry([log({n: event(n, event_time=NOW - n * HOUR) for n in range(5)})], {0: 5})


def run_driver(driver: Driver, kept_for: timedelta) -> RetentionWait | None:
    """Start with a retention, and look once. Returns what waits."""
    retention = Retention(driver.table, HOURS, kept_for)
    retention.settle(NOW)
    reports: list[RetentionWait | None] = []
    PeriodicRetention("clicks", [retention], lambda wait: reports.extend(wait.values()))(None, NOW)
    (wait,) = reports
    return wait


def count_hours(driver: Driver) -> int:
    return len(set(driver.table.rows().to_table(columns=["hour"]).column("hour").to_pylist()))


def test_a_first_start_takes_what_the_file_says(driver: Driver) -> None:
    assert run_driver(driver, 2 * HOUR) is None
    add_rows(driver)
    assert run_driver(driver, 2 * HOUR) is None
    assert count_hours(driver) == 3


def test_a_shorter_one_drops_nothing_until_it_is_accepted(driver: Driver) -> None:
    run_driver(driver, 10 * HOUR)
    add_rows(driver)
    for _ in range(2):
        wait = run_driver(driver, 2 * HOUR)
        assert wait is not None
        assert (wait.configured, wait.in_force, wait.buckets, wait.rows) == (2 * HOUR, 10 * HOUR, 2, 2)
        assert wait.oldest == NOW.replace(minute=0) - 4 * HOUR
        assert wait.bytes > 0
        assert count_hours(driver) == 5
    Retention(driver.table, HOURS, 2 * HOUR).accept(NOW)
    assert run_driver(driver, 2 * HOUR) is None
    assert count_hours(driver) == 3
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_buckets_that_the_longer_retention_drops_go_meanwhile(driver: Driver) -> None:
    run_driver(driver, 3 * HOUR)
    add_rows(driver)
    wait = run_driver(driver, HOUR)
    assert wait is not None
    assert (wait.buckets, count_hours(driver)) == (2, 4)


def test_a_retention_for_a_table_that_had_none_waits_too(driver: Driver) -> None:
    add_rows(driver)
    wait = run_driver(driver, 2 * HOUR)
    assert wait is not None
    assert (wait.in_force, count_hours(driver)) == (None, 5)
    assert "every bucket is kept" in wait.text


def test_one_that_was_taken_out_of_the_file_is_accepted_anew(driver: Driver) -> None:
    run_driver(driver, 2 * HOUR)
    settle_retentions("clicks", driver.config, NOW)
    add_rows(driver)
    assert run_driver(driver, 2 * HOUR) is not None
    assert count_hours(driver) == 5


def test_a_record_that_cannot_be_read_accepts_nothing(driver: Driver) -> None:
    run_driver(driver, 2 * HOUR)
    add_rows(driver)
    driver.table.store.put(RECORD, b"{")
    assert run_driver(driver, 2 * HOUR) is not None
    assert count_hours(driver) == 5


def test_a_running_driver_notices_the_acceptance(driver: Driver) -> None:
    add_rows(driver)
    clock = [0.0]
    retention = Retention(driver.table, HOURS, 2 * HOUR)
    step = PeriodicRetention("clicks", [retention], seconds=lambda: clock[0])
    step(None, NOW)
    retention.accept(NOW)
    clock[0] += WAIT_EVERY.total_seconds()
    step(None, NOW)
    assert count_hours(driver) == 3


STEPS = st.lists(st.tuples(st.sampled_from(["start", "accept"]), st.integers(1, 6)), min_size=1, max_size=6)


@pytest.mark.parametrize("form", ["parquet"])
@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_no_start_drops_more_than_was_accepted(tmp_path_factory: pytest.TempPathFactory, form: str, steps) -> None:
    driver = Driver(tmp_path_factory.mktemp("lake"), form)
    driver.start()
    add_rows(driver)
    shortest = None
    for kind, hours in steps:
        retention = Retention(driver.table, HOURS, hours * HOUR)
        if kind == "accept":
            retention.accept(NOW)
            shortest = hours if shortest is None else min(shortest, hours)
        run_driver(driver, hours * HOUR)
        days = 5 if shortest is None else min(5, shortest + 1)
        assert count_hours(driver) >= days


def test_the_status_and_its_health_say_that_one_waits(driver: Driver) -> None:
    run_driver(driver, 10 * HOUR)
    add_rows(driver)
    progress = Progress("clicks")
    retention = Retention(driver.table, HOURS, 2 * HOUR)
    step = PeriodicRetention("clicks", [retention], progress.set_retention_waits)
    step(None, NOW)
    pipeline = document([progress.view()], NOW)["pipelines"]["clicks"]
    (wait,) = pipeline["retention_waits"]
    assert (wait["retention_seconds"], wait["in_force_seconds"], wait["buckets"]) == (7200, 36000, 2)
    assert "a shorter retention waits for `headrace retention --yes`" in pipeline["health"]["reasons"]
    retention.accept(NOW)
    PeriodicRetention("clicks", [retention], progress.set_retention_waits)(None, NOW)
    assert document([progress.view()], NOW)["pipelines"]["clicks"]["retention_waits"] == []


class File:
    """The configuration file of a table with rows of 2020, kept for 30,000 days."""

    def __init__(self, driver: Driver, tmp_path: Path) -> None:
        self.path = tmp_path / "headrace.yaml"
        self._raw = driver.config.model_dump(mode="json", exclude_unset=True)
        long_ago = NOW.replace(year=2020)
        self.set("30000 d")
        settle_retentions("clicks", self.config, NOW)
        driver.carry([log({n: event(n, event_time=long_ago - n * HOUR) for n in range(5)})], {0: 5}, now=long_ago)

    def set(self, retention: str) -> None:
        clicks = self._raw["pipelines"]["clicks"] | {"retention": retention}
        clicks["event_time"] = {**clicks["event_time"], "max_age": "1 d"}
        self.path.write_text(yaml.safe_dump({**self._raw, "pipelines": {"clicks": clicks}}))

    @property
    def config(self) -> Config:
        return Config.model_validate(yaml.safe_load(self.path.read_text()))


def test_validate_says_what_a_shorter_one_would_drop(driver: Driver, tmp_path: Path) -> None:
    file = File(driver, tmp_path)
    (finding,) = check_retention("clicks", file.config, NOW, offline=False)
    assert (finding.status, finding.message) == ("ok", "as configured, for 2 tables")
    file.set("400 d")
    (finding,) = check_retention("clicks", file.config, NOW, offline=False)
    assert finding.status == "warning"
    assert "retention 400 d would drop 5 buckets (5 rows, " in finding.message
    assert ", from 2020-11-20 08:00:00 UTC on) of " in finding.message
    assert "30,000 d stays in force" in finding.message or "30000 d stays in force" in finding.message
    assert "headrace retention" in finding.fix


def test_the_command_shows_that_it_waits_and_accepts_it(driver: Driver, tmp_path: Path) -> None:
    file = File(driver, tmp_path)
    file.set("400 d")

    def retention(*flags: str) -> str:
        run = CliRunner().invoke(app, ["retention", str(file.path), *flags])
        assert run.exit_code == 0, run.output
        return run.stdout

    assert "stays in force until --yes; 5 buckets of these would not go before" in " ".join(retention().split())
    assert json.loads(retention("--json"))["pipelines"]["clicks"]["table"]["waits"] is True
    assert count_hours(driver) == 5
    assert "The retention of 400 d is in force now." in retention("--yes")
    assert (count_hours(driver), read_retention(driver.table.store)) == (0, 400 * DAY)
    assert all(each.find_wait(NOW) is None for each in pipeline_retentions("clicks", file.config))


@pytest.mark.parametrize("form", ["delta"])
def test_what_is_due_and_what_was_dropped_is_shown_where_the_next_table_fails(driver: Driver, tmp_path: Path) -> None:
    file = File(driver, tmp_path)
    file.set("400 d")
    document = yaml.safe_load(file.path.read_text())
    absent = {**document["pipelines"]["clicks"], "table": {"location": str(tmp_path / "absent")}}
    file.path.write_text(yaml.safe_dump({**document, "pipelines": {**document["pipelines"], "other": absent}}))
    shown = CliRunner().invoke(app, ["retention", str(file.path)])
    assert shown.stdout.startswith("clicks: 5 buckets ended by")
    assert (isinstance(shown.exception, HeadraceError), count_hours(driver)) == (True, 5)
    done = CliRunner().invoke(app, ["retention", str(file.path), "--yes"])
    assert "5 rows were dropped" in " ".join(done.stdout.split())
    assert isinstance(done.exception, HeadraceError)
    assert count_hours(driver) == 0


def test_reload_accepts_with_yes_alone(driver: Driver, tmp_path: Path) -> None:
    file = File(driver, tmp_path)
    file.set("400 d")
    # No writer runs, so the file is not read; what was said with --yes holds.
    without = CliRunner().invoke(app, ["reload", str(file.path)])
    assert isinstance(without.exception, HeadraceError)
    assert read_retention(driver.table.store) == 30000 * DAY
    assert CliRunner().invoke(app, ["reload", str(file.path), "--yes", "--timeout", "soon"]).exit_code == 2
    assert read_retention(driver.table.store) == 30000 * DAY
    CliRunner().invoke(app, ["reload", str(file.path), "--yes"])
    assert read_retention(driver.table.store) == 400 * DAY
