"""Retention drops whole buckets that are old enough, and the account knows how many rows went."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from hypothesis import given, strategies as st
from typer.testing import CliRunner

from headrace import bucketers
from headrace.writer.audit.audit import audit
from headrace.writer.cli.main import app
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile
from headrace.writer.maintenance import retention
from headrace.writer.maintenance.retention import PeriodicRetention, Retention, due, settle_retentions, table_retentions
from headrace.writer.maintenance.vacuum import find_unneeded
from headrace.writer.sealing.manifest import FOLDER
from headrace.writer.sealing.retention_wait import read_retention
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.log.operations.seals import Closing
from headrace.writer.table.log.snapshot import PipelineSnapshot
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

# A vacuum removes what tasks spilled.
pytestmark = pytest.mark.usefixtures("scratch")
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS = bucketers.build({"type": "event_time", "width": HOUR, "zone": "UTC"})


@pytest.fixture
def driver(form: str, tmp_path: Path) -> Driver:
    """Rows of five hours, some in two files, and a dead letter."""
    new_driver = Driver(tmp_path, form)
    new_driver.start()
    new_driver.carry(
        [log({offset: event(offset, event_time=NOW - offset * HOUR) for offset in range(4)} | {4: b"broken"})], {0: 5}
    )
    new_driver.carry(
        [log({offset: event(offset, event_time=NOW - (offset - 3) * HOUR) for offset in range(5, 8)})], {0: 8}
    )
    return new_driver


def hours(driver: Driver) -> list[str]:
    return sorted(set(driver.table.rows().to_table(columns=["hour"]).column("hour").to_pylist()))


@given(st.lists(st.integers(0, 200), max_size=20), st.integers(1, 100), st.integers(0, 59))
def test_a_bucket_is_due_from_the_instant_on_that_its_end_is_so_old(ages: list[int], kept: int, minute: int) -> None:
    now = datetime(2026, 11, 20, 12, minute, tzinfo=UTC)
    labels = [f"{now - age * HOUR:%Y-%m-%dT%H}" for age in ages]
    files = [BucketFile(f"{n}", (label,), 1, 1) for n, label in enumerate(labels)]
    due_buckets = due(files, lambda bucket: bucketers.interval(HOURS, bucket), kept * HOUR, now)
    ends = {label: datetime.fromisoformat(f"{label}:00:00+00:00") + HOUR for label in labels}
    old = {label for label, end in ends.items() if now - end >= kept * HOUR}
    assert [bucket.bucket[0] for bucket in due_buckets] == sorted(old)
    assert sum(len(bucket.files) for bucket in due_buckets) == sum(label in old for label in labels)


def test_a_bucket_without_an_interval_stays_for_good() -> None:
    files = [BucketFile("a", (None,), 1, 1), BucketFile("b", ("elsewhere",), 1, 1)]
    assert due(files, lambda bucket: bucketers.interval(HOURS, bucket), HOUR, NOW + 9999 * DAY) == []


@pytest.mark.parametrize("deep", [False, True])
def test_old_buckets_go_and_the_audit_still_adds_up(driver: Driver, deep: bool) -> None:
    work = Retention(driver.table, HOURS, 2 * HOUR)
    assert [bucket.bucket[0] for bucket in work.due(NOW)] == ["2026-11-20T08", "2026-11-20T09"]
    (done,) = work.run(NOW)
    assert (done.rows, done.files) == (3, 3)
    assert hours(driver) == ["2026-11-20T10", "2026-11-20T11", "2026-11-20T12"]
    report = audit(driver.config, "clicks", since=None, deep=deep)
    assert report.adds_up, report.problems
    assert report.rows_taken == {"retention": 3}
    assert list(work.run(NOW)) == [], "a second time there is nothing to do"
    driver.carry([log({8: event(8)})], {0: 9})
    driver.start()
    assert audit(driver.config, "clicks", since=None, deep=deep).adds_up


def test_parquet_removes_the_files_at_once_and_the_others_keep_them_until_vacuum(driver: Driver, form: str) -> None:
    before = set(Path(driver.lake).rglob("hour=*/*.parquet"))
    list(Retention(driver.table, HOURS, 2 * HOUR).run(NOW))
    gone = before - set(Path(driver.lake).rglob("hour=*/*.parquet"))
    assert len(gone) == (3 if form == "parquet" else 0)
    if form == "delta":
        removed = DeltaTable(driver.lake).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True)
        assert len(removed) == 3
    if form == "iceberg":
        (location, *_) = find_unneeded(driver.config, "clicks", None, datetime.now(UTC) + 8 * DAY)
        assert [waste.why for waste in location.waste] == ["removed"] * 3


def test_files_that_another_job_removed_before_are_put_right(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "parquet")
    driver.start()
    driver.carry([log({offset: event(offset, event_time=NOW - offset * HOUR) for offset in range(4)})], {0: 4})
    for path in Path(driver.lake).glob("hour=2026-11-20T09/*.parquet"):
        path.unlink()
    with pytest.raises(HeadraceError, match="a file that the table names is gone"):
        audit(driver.config, "clicks", since=None, deep=True)
    list(Retention(driver.table, HOURS, 2 * HOUR).run(NOW))
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert report.rows_taken == {"retention": 1}


def test_each_bucket_gets_a_mark_beside_its_manifests(driver: Driver) -> None:
    list(Retention(driver.table, HOURS, 2 * HOUR).run(NOW))
    mark = driver.table.store.read(f"{FOLDER}/hour=2026-11-20T08/{retention.MARK}")
    assert mark is not None
    assert json.loads(mark.content) == {"bucket": ["2026-11-20T08"], "at": NOW.isoformat(), "why": "retention"}


def test_a_bucket_that_is_rewritten_meanwhile_is_looked_at_again(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, table = Retention(driver.table, HOURS, 2 * HOUR), driver.table
    honest, raced = work._list_expired, []

    def meanwhile(now: datetime, kept_for: timedelta) -> tuple[PipelineSnapshot, list[retention.ExpiredBucket]]:
        due_buckets = honest(now, kept_for)
        if not raced:
            (file, *_) = due_buckets[1][0].files
            raced.append(file)
            table.append(Rewrite("other", [file], (), RemovedRows("delete", file.rows or 0)), table.snapshot())
        return due_buckets

    monkeypatch.setattr(work, "_list_expired", meanwhile)
    (done,) = work.run(NOW)
    assert done.rows == 2
    assert audit(driver.config, "clicks", since=None, deep=True).rows_taken == {"delete": 1, "retention": 2}


def test_the_driver_looks_now_and_then(driver: Driver) -> None:
    clock = [0.0]
    work = Retention(driver.table, HOURS, 2 * HOUR)
    work.accept(NOW)
    step = PeriodicRetention("clicks", [work], seconds=lambda: clock[0])
    step(None, NOW)
    assert hours(driver) == ["2026-11-20T10", "2026-11-20T11", "2026-11-20T12"]
    clock[0] = 3600.0
    step(None, NOW + HOUR)
    assert hours(driver) == ["2026-11-20T11", "2026-11-20T12"]
    version = driver.table.snapshot().version
    clock[0] += retention.EVERY.total_seconds() / 2
    step(None, NOW + 5 * HOUR)
    assert driver.table.snapshot().version == version, "that wall clock stepped ahead"
    clock[0] += retention.EVERY.total_seconds() / 2
    step(None, NOW + 5 * HOUR)
    assert (driver.table.snapshot().version, hours(driver)) == (version + 1, [])


def test_late_rows_in_their_table_grow_old_too(tmp_path: Path, form: str) -> None:
    driver = Driver(tmp_path, form, seal={"late": "late_table"}, retention="30 d")
    driver.start()
    settle_retentions("clicks", driver.config, NOW)
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    driver.carry([log({n: event(n, event_time=NOW - n * HOUR) for n in range(6)})], {0: 6})
    main, late = table_retentions("clicks", driver.config)
    PeriodicRetention("clicks", [main, late])(None, NOW + 30 * DAY - 2 * HOUR)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems
    assert (report.rows_taken, report.late_taken) == ({}, {"retention": 3})


def test_a_pipeline_without_retention_has_nothing_to_do(driver: Driver) -> None:
    assert table_retentions("clicks", driver.config) == []


def test_many_files_go_in_several_entries(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "FILES_AT_ONCE", 1)
    done = list(Retention(driver.table, HOURS, 2 * HOUR).run(NOW))
    assert [bucket.buckets for bucket in done] == [(("2026-11-20T08",),), (("2026-11-20T09",),)]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"retention": "30 d"}, "retention 30 d is shorter than event_time.max_age 365 d"),
        ({"retention": "400 d", "bucket": {"type": "field", "field": "x"}}, "do not go by time"),
    ],
)
def test_a_retention_that_events_would_run_against_is_refused(settings: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Pipeline.model_validate(
            {"topics": ["clicks"], "table": {"location": "/lake"}, "event_time": {"field": "t"}, **settings}
        )


def test_the_verb_shows_first_and_drops_then(driver: Driver) -> None:
    path = Path(driver.lake).parents[1] / "headrace.yaml"
    raw = driver.config.model_dump(mode="json", exclude_unset=True)
    raw["pipelines"]["clicks"] |= {"retention": "30 d"}
    path.write_text(yaml.safe_dump(raw))

    def said(*flags: str) -> str:
        result = CliRunner().invoke(app, ["retention", str(path), *flags])
        assert result.exit_code == 0, result.output
        return result.stdout

    long_ago = datetime(2020, 2, 29, 12, tzinfo=UTC)
    driver.carry([log({offset: event(offset, event_time=long_ago) for offset in range(8, 12)})], {0: 12}, now=long_ago)
    document = json.loads(said("--dry-run", "--json"))["pipelines"]["clicks"]["table"]
    assert document["due"][0]["bucket"] == ["2020-02-29T12"]
    assert (document["due"][0]["rows"], document["rows_dropped"]) == (4, 0)
    assert "Nothing was changed" in said("--dry-run")
    assert "2020-02-29T12" in hours(driver)
    assert "hour=2020-02-29T12" in said("--yes")
    assert "2020-02-29T12" not in hours(driver)
    assert read_retention(driver.table.store) == 30 * DAY
    audited = json.loads(CliRunner().invoke(app, ["audit", str(path), "--json"]).stdout)["pipelines"]["clicks"]
    assert audited["adds_up"]
    assert audited["rows_removed_by"]["retention"] >= 4
    raw["pipelines"]["clicks"].pop("retention")
    path.write_text(yaml.safe_dump(raw))
    assert "no retention is set" in said()
