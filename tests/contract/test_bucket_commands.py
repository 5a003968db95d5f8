"""What `buckets`, `wait` and `hooks` say of a lake: from the lake alone, as a person and as a scheduler ask it."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from headrace.writer.cli.main import app
from headrace.writer.core.errors import ConfigError
from headrace.writer.sealing.bucket_listing import AwaitedBucket, BucketListing, BucketOverview, SealWait
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.sealer import Sealer
from tests.servers.scripted import Reply, serve_script
from tests.support.sealed_lake import DAY, SealedLake


@pytest.fixture
def lake(form: str, tmp_path: Path) -> SealedLake:
    """Hours 3 sealed, 4 reopened, 5 closed, 6 and 7 open."""
    new_lake = SealedLake(tmp_path, form)
    for hour, rows in ((3, 40), (4, 12), (5, 10), (6, 3)):
        new_lake.add(hour, rows)
    new_lake.seal(3)
    new_lake.seal(4)
    new_lake.add(4, 7, minute=20)
    new_lake.close(5)
    new_lake.add(7, 5)
    return new_lake


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Result]:
    """Run a verb on the lake below; hooks as given."""

    def call(verb: str, *arguments: str, form: str = "delta", hooks: Any = ()) -> Result:
        table = {"location": str(tmp_path / "lake" / "clicks"), "format": form}
        clicks = {"topics": ["clicks"], "table": table, "event_time": {"field": "at"}, "hooks": list(hooks)}
        config = {
            "kafka": {"bootstrap_servers": "127.0.0.1:1"}, "registry": {"url": "http://127.0.0.1:1"},
            "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"},
            "checkpoints": str(tmp_path / "checkpoints"), "pipelines": {"clicks": clicks},
        }  # fmt: skip
        path = tmp_path / "headrace.yaml"
        path.write_text(yaml.safe_dump(config))
        return CliRunner().invoke(app, [*verb.split(), str(path), *arguments], catch_exceptions=False)

    return call


def test_each_bucket_is_in_its_state_with_what_it_holds(lake: SealedLake, run: Callable[..., Result]):
    form = lake.settings.table.format
    pipeline_document = json.loads(run("buckets", "--json", form=form).stdout)["pipelines"]["clicks"]
    lines = [
        (b["bucket"][0][-2:], b["state"], b["rows"], b["files"], b["late"], b["version"])
        for b in pipeline_document["buckets"]
    ]
    assert lines == [
        ("03", "sealed", 40, 1, 0, 1), ("04", "reopened", 19, 2, 7, 1), ("05", "closed", 10, 1, 0, None),
        ("06", "open", 3, 1, 0, None), ("07", "open", 5, 1, 0, None),
    ]  # fmt: skip
    assert pipeline_document["closed_until"] == "2026-11-20T06:00:00.000Z"
    assert pipeline_document["watermark"] == {"instant": "2026-11-20T06:55:00.004Z", "held_by": "clicks/0"}
    some = json.loads(run("buckets", "--json", "--state", "open", "--since", "2026-11-20T07:00Z", form=form).stdout)
    assert [b["bucket"] for b in some["pipelines"]["clicks"]["buckets"]] == [["2026-11-20T07"]]
    shown = run("buckets", form=form).stdout
    assert "hour=2026-11-20T04  reopened    19" in shown
    assert "1 closed, 2 open, 1 reopened, 1 sealed" in shown
    assert "held back by clicks/0 unless it is idle; closed until: 2026-11-20 06:00:00 UTC" in shown


def test_looking_changes_nothing(lake: SealedLake, run: Callable[..., Result]):
    form, root = lake.settings.table.format, Path(lake.table.location)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for verb in (["buckets"], ["wait", "--sealed", "2026-11-20T06", "--timeout", "100 ms"]):
        run(*verb, form=form)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


@pytest.mark.parametrize(
    ("bucket", "version", "why"),
    [
        ("2026-11-20T05", "1", "closed: it is about to be sealed"),
        ("2026-11-20T06", "1", "07:00:00 UTC; it stands at 2026-11-20 06:55:00 UTC, held back by clicks/0"),
        ("2026-11-20T22", "1", "open: no row of it came yet; it is closed when the watermark"),
        ("2026-11-20T04", "2", "reopened: rows came after it was sealed; it is sealed again after"),
        ("2026-11-20T03", "2", "sealed: its newest version is 1"),
    ],
)  # fmt: skip
def test_a_wait_that_times_out_says_why(
    lake: SealedLake, run: Callable[..., Result], bucket: str, version: str, why: str
):
    arguments = ["--sealed", bucket, "--version", version, "--timeout", "50 ms"]
    result = run("wait", *arguments, form=lake.settings.table.format)
    assert result.exit_code == 1
    assert why in result.stdout.replace("\n", " ")
    document = json.loads(run("wait", *arguments, "--json", form=lake.settings.table.format).stdout)
    assert (document["complete"], [b["name"] for b in document["buckets"]]) == (False, [f"hour={bucket}"])
    (last,) = document["buckets"]
    assert (last["bucket"], last["manifest"]) == ([bucket], None)
    assert why in f"{last['state']}: {last['why']}"


def test_a_wait_ends_the_moment_the_bucket_is_sealed(lake: SealedLake, run: Callable[..., Result]):
    form = lake.settings.table.format
    at_once = run("wait", "--sealed", "2026-11-20T03:00Z", form=form)
    assert (at_once.exit_code, "40 rows in 1 file" in at_once.stdout) == (0, True)
    timer = threading.Timer(0.3, lambda: lake.seal(5))
    timer.start()
    try:
        result = run("wait", "--sealed", "hour=2026-11-20T05", "--timeout", "30 s", "--json", form=form)
    finally:
        timer.join()
    (bucket,) = json.loads(result.stdout)["buckets"]
    assert (result.exit_code, bucket["state"], bucket["manifest"]["rows"]) == (0, "sealed", 10)


def test_a_closed_bucket_that_never_had_a_row_is_complete(lake: SealedLake, run: Callable[..., Result]):
    result = run("wait", "--sealed", "2026-11-20T01", "--timeout", "1 s", form=lake.settings.table.format)
    assert result.exit_code == 0
    assert "complete, and empty" in result.stdout


def test_a_wait_for_a_day_waits_for_each_bucket_that_it_has_or_may_still_get(
    lake: SealedLake, run: Callable[..., Result]
):
    form = lake.settings.table.format
    day = run("wait", "--sealed", "2026-11-20", "--timeout", "50 ms", "--json", form=form)
    document = json.loads(day.stdout)
    assert (day.exit_code, document["complete"]) == (1, False)
    states = {bucket["bucket"][0][-2:]: bucket["state"] for bucket in document["buckets"]}
    # Hours 0 to 2 are closed, and no row of them came.
    expected = {"03": "sealed", "04": "sealed", "05": "closed", "06": "open", "07": "open"}
    assert states == {**expected, **{f"{hour:02}": "open" for hour in range(8, 24)}}
    shown = " ".join(run("wait", "--sealed", "2026-11-20", "--timeout", "50 ms", form=form).stdout.split())
    assert "2026-11-20 is not sealed after 50 ms: 2 of 21 buckets are; it waits for" in shown
    assert "hour=2026-11-20T05: closed: it is about to be sealed" in shown
    assert "hour=2026-11-20T23: open: no row of it came yet" in shown


def test_a_wait_for_a_range_ends_once_its_last_bucket_is_sealed(lake: SealedLake, run: Callable[..., Result]):
    form = lake.settings.table.format
    early = run("wait", "--sealed", "2026-11-20T00..2026-11-20T04", form=form)
    assert (early.exit_code, early.stdout.strip()) == (
        0,
        "2026-11-20T00..2026-11-20T04 is sealed: 2 buckets with rows, 52 rows",
    )
    timer = threading.Timer(0.3, lambda: lake.seal(5))
    timer.start()
    try:
        later = run("wait", "--sealed", "2026-11-20T03..2026-11-20T05", "--timeout", "30 s", "--json", form=form)
    finally:
        timer.join()
    document = json.loads(later.stdout)
    assert (later.exit_code, document["complete"]) == (0, True)
    assert [bucket["manifest"]["rows"] for bucket in document["buckets"]] == [40, 12, 10]


def test_a_day_that_is_closed_without_a_row_is_complete(lake: SealedLake, run: Callable[..., Result]):
    empty = run("wait", "--sealed", "2026-11-18..2026-11-19", form=lake.settings.table.format)
    assert (empty.exit_code, "is complete, and empty" in empty.stdout) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--sealed", "2026-11-20T05:30"], "names no bucket of this table"),
        (["--sealed", "2026-11-20", "--version", "2"], "--version 2 is of one bucket"),
        (["--sealed", "2026-11-21..2029-11-21"], "more than 10,000 buckets that are not closed"),
    ],
)
def test_a_wait_that_cannot_be_is_refused(tmp_path: Path, run: Callable[..., Result], arguments: list[str], why: str):
    SealedLake(tmp_path).add(3, 5)
    with pytest.raises(ConfigError, match=why):
        run("wait", *arguments)


@pytest.mark.parametrize(
    ("bucket", "hours"),
    [
        (["2026-11-20T04..2026-11-20T06"], ["04", "05", "06"]),
        (["2026-11-20T03", "hour=2026-11-20T07"], ["03", "07"]),
        (["2026-11-20"], ["03", "04", "05", "06", "07"]),
        (["2026-11-21"], []),
    ],
)
def test_only_the_buckets_that_are_named_are_listed(
    lake: SealedLake, run: Callable[..., Result], bucket: list[str], hours: list[str]
):
    options = [option for text in bucket for option in ("--bucket", text)]
    listed = json.loads(run("buckets", "--json", *options, form=lake.settings.table.format).stdout)
    assert [b["bucket"][0][-2:] for b in listed["pipelines"]["clicks"]["buckets"]] == hours


def test_hooks_are_listed_run_and_skipped_by_hand(tmp_path: Path, run: Callable[..., Result]):
    lake = SealedLake(tmp_path)
    for hour in (3, 4):
        lake.add(hour, 10)
        lake.seal(hour)
    with serve_script(lambda _: Reply(500, b"not today")) as server:
        hooks = [{"type": "webhook", "url": f"{server.url}/hidden", "start": "earliest", "timeout": "2 s"}]
        failed = run("hooks run", hooks=hooks)
        assert (failed.exit_code, len(server.asked)) == (1, 2)
        assert "0 delivered, 2 waiting" in failed.stdout
        assert "500: not today" in failed.stdout
        assert "hidden" not in failed.stdout
        assert "  hour=2026-11-20T04" in failed.stdout
        skip = ("hooks skip", "--hook", "webhook", "--bucket", "2026-11-20T03")
        shown = run(*skip, hooks=hooks)
        assert (shown.exit_code, "would not get hour=2026-11-20T03 version 1" in shown.stdout) == (0, True)
        assert "Nothing was changed. The same with --yes does it." in shown.stdout
        assert "0 delivered, 2 waiting" in run("hooks list", hooks=hooks).stdout
        gone = run(*skip, "--yes", hooks=hooks)
        assert (gone.exit_code, "does not get hour=2026-11-20T03 version 1" in gone.stdout) == (0, True)
        assert run(*skip, "--yes", hooks=hooks).exit_code == 1
        server.answer = lambda _: Reply(200)
        assert run("hooks run", hooks=hooks).exit_code == 0
        document = json.loads(run("hooks list", "--json", hooks=hooks).stdout)["pipelines"]["clicks"][0]
        assert (document["delivered"], document["skipped"], document["waiting"]) == (1, 1, [])
        assert run("hooks run", "--bucket", "2026-11-20T03", "--hook", "webhook", hooks=hooks).exit_code == 0
        assert server.asked[-1].json()["bucket"] == ["2026-11-20T03"]
        of_the_day = run("hooks run", "--bucket", "2026-11-20", "--hook", "webhook", hooks=hooks)
        assert of_the_day.exit_code == 0
        assert [asked.json()["bucket"] for asked in server.asked[-2:]] == [["2026-11-20T03"], ["2026-11-20T04"]]
        with pytest.raises(ConfigError, match="2026-11-21 was never sealed"):
            run("hooks run", "--bucket", "2026-11-21", "--hook", "webhook", hooks=hooks)


def test_a_pipeline_without_hooks_says_so(tmp_path: Path, run: Callable[..., Result]):
    SealedLake(tmp_path)
    assert "clicks has no hooks (pipelines.clicks.hooks)" in run("hooks list").stdout


def test_the_page_is_told_the_same_as_who_asks_the_lake(lake: SealedLake, run: Callable[..., Result]) -> None:
    """The grid of the driver's page, against `headrace buckets`, which reads the lake anew."""
    document = json.loads(run("buckets", "--json", form=lake.settings.table.format).stdout)["pipelines"]["clicks"][
        "buckets"
    ]
    overview = BucketOverview(Sealer("clicks", lake.config))
    cells = overview.refresh(lake.sealer.follow(write=False), datetime.now(UTC))
    assert [(c.name.partition("=")[2], c.state.name, c.rows, c.late, c.version or None) for c in cells] == [
        (b["bucket"][0], b["state"], b["rows"], b["late"], b["version"]) for b in document
    ]
    assert {c.state.name for c in cells} == {"sealed", "reopened", "closed", "open"}
    unsealed = {b["bucket"][0]: b["why"] for b in document if b["state"] in ("closed", "reopened")}
    assert {c.key[0]: c.state.why for c in cells if c.key[0] in unsealed} == unsealed
    assert [b["why"] is None for b in document] == [b["state"] == "sealed" for b in document]
    assert all((c.end - c.start) == timedelta(hours=1) for c in cells)


def test_a_look_for_the_page_rests_and_then_sees_what_is_new(lake: SealedLake) -> None:
    clock = iter((1.0, 1.5, 10.9, 11.1, 11.2))  # the first look takes half a second, so it rests for ten
    overview, now = BucketOverview(lake.sealer, lambda: next(clock)), DAY + timedelta(hours=8)
    first = overview.refresh(lake.sealer.follow(write=False), now)
    lake.add(9, 5)
    assert overview.refresh(lake.sealer.follow(write=False), now) is first, "it rests"
    assert len(overview.refresh(lake.sealer.follow(write=False), now)) == len(first) + 1


def test_of_several_columns_a_time_waits_for_every_bucket_of_it(tmp_path: Path):
    parts = [{"type": "event_time", "width": "1 h"}, {"type": "field", "field": "_topic"}]
    lake = SealedLake(tmp_path, bucket={"type": "composite", "parts": parts})
    for hour in (3, 5):
        lake.add(hour, 4)
    lake.close(4)

    def look(text: str) -> list[AwaitedBucket]:
        listing = BucketListing("clicks", lake.config, DAY)
        return SealWait(listing, parse_buckets(text, listing.bucketer), 1).look()

    topic_column = lake.bucketer.columns[1]
    (third,) = look("2026-11-20T03")
    assert (third.name, third.state.name) == (f"hour=2026-11-20T03/{topic_column}=clicks", "closed")
    assert look("2026-11-20T04") == [], "it is closed, and no row of it came"
    (late_hour,) = look("2026-11-20T22")
    assert (late_hour.name, late_hour.key, late_hour.state.name) == ("hour=2026-11-20T22", None, "open")
    day = look("2026-11-20")
    assert [bucket.name[-2:] for bucket in day[2:]] == [f"{hour:02}" for hour in range(6, 24)]
    assert [bucket.key for bucket in day[:2]] == [("2026-11-20T03", "clicks"), ("2026-11-20T05", "clicks")]
    assert [bucket.key for bucket in look("2026-11-20T22/clicks")] == [("2026-11-20T22", "clicks")]
