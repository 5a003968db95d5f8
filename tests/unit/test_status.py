"""`headrace status`: one shape from the driver and from the lake, and what a person sees of it."""

import json
import re
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from headrace.writer.cli.look.status import StatusReport
from headrace.writer.clients.driver_endpoint import Driver, announce, this_driver
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.text import plural, span
from headrace.writer.output.report import Screen
from headrace.writer.output.status_screen import block, line, screen
from headrace.writer.output.tables import show
from headrace.writer.status import from_table
from headrace.writer.status.collection import collect_status, exit_code, open_cluster
from headrace.writer.status.document import document
from headrace.writer.status.model import Sample
from headrace.writer.status.progress import Progress
from headrace.writer.status.table_facts import GapFacts, TableContents
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.web.endpoints import serving
from tests.support.commits import LIMITS, PARTS, Lake, account, facts
from tests.support.executor_status import EXECUTORS
from tests.support.sample_records import GAP_FACTS
from tests.support.status_cluster import NOON, A, B, Cluster


@pytest.fixture(params=["delta", "parquet"])
def config(tmp_path, request):
    clicks = {
        "topics": ["clicks"], "table": {"location": str(tmp_path / "lake"), "format": request.param},
        "event_time": {"field": "at"},
    }  # fmt: skip
    return Config.model_validate(
        {
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"},
            "registry": {"url": "http://127.0.0.1:1"},
            "checkpoints": str(tmp_path / "checkpoints"),
            "pipelines": {"clicks": clicks},
        }
    )


@pytest.fixture
def written(config):
    made = Lake(config.pipelines["clicks"].table.location, config.pipelines["clicks"].table.format)
    made.begin()
    return made


def seen(config, cluster=None, now=NOON):
    return document([from_table.view("clicks", config, cluster or Cluster(), now)], now, "lake")["pipelines"]["clicks"]


# --- from the lake ----------------------------------------------------------------------------------------------


def test_a_table_that_does_not_exist_is_not_started(config):
    found = seen(config)
    assert (found["state"], found["error"], found["epoch"], found["last_commit"]) == ("not started", "", None, None)
    assert found["lag"]["offsets"] == 2_000, "all that there is waits"


def test_the_lake_tells_frontier_commits_and_sums_since_the_last_start(config, written):
    written.commit(0, 100)
    written.begin()
    written.commit(100, 300, batch=1)
    last = written.commit(300, 350, hour="y", batch=2, reason="timeout")
    found = seen(config)
    assert (found["state"], found["epoch"], found["run"], found["buckets"]) == ("unknown", 2, 1, 2)
    assert (found["last_commit"]["version"], found["last_commit"]["reason"]) == (last, "timeout")
    assert [commit["batch"] for commit in found["commits"]] == [2, 1, 0]
    assert found["totals"]["records"]["rows"] == 250, "of this start"
    assert found["totals"]["commits"] == {"size": 1, "timeout": 1}
    assert [p["frontier"] for p in found["lag"]["partitions"]] == [350, 0]
    assert found["lag"]["offsets"] == 650 + 1_000
    assert found["event_time_newest_age_seconds"] == 3600


def test_gaps_are_shown_for_the_life_of_the_table(config, written):
    written.commit(0, 100)
    assert "gaps" not in drawn(seen(config))
    for start, end in ((100, 350), (350, 400)):
        lost = Gap(f"ticket-{start}", written.epoch, [OffsetRange(PARTS[0], start, end)], "retention", GAP_FACTS)
        written.table.append(lost, written.table.snapshot())
    written.begin()
    found = seen(config)
    assert (found["gaps"]["count"], found["gaps"]["offsets"], found["gaps"]["last"]["id"]) == (2, 300, "ticket-350")
    assert found["totals"]["commits"] == {}, "of this start"
    assert (
        "2 gaps open, 300 offsets, Kafka holds them, `headrace backfill` brings them; the last at "
        "2026-11-20 12:00:00 UTC, clicks/0 [350, 400)" in drawn(found)
    )
    assert found["gaps"]["in_kafka"] == 300
    short = seen(config, Cluster(ends=200))
    assert "Kafka holds 100 of them, `headrace backfill` brings these" in drawn(short)
    recreated = seen(config, Cluster(topic_id="uuid-2"))
    assert "Kafka holds none of them: a mirror or an archive may" in drawn(recreated)
    silent = seen(config, Cluster(up=False))
    assert "whether Kafka holds them is not known" in drawn(silent)


def drawn(found):
    out = Console(width=200, file=StringIO())
    out.print(block("clicks", {**found, "driver": None}))
    return out.file.getvalue()


def test_the_lag_in_seconds_is_asked_of_kafka(config, written):
    written.commit(0, 900)
    found = seen(config)
    partitions = {p["partition"]: p for p in found["lag"]["partitions"]}
    assert partitions[0]["seconds"] == pytest.approx(100, rel=0.06)
    assert found["lag"]["seconds"] == pytest.approx(1_000, rel=0.06)
    assert found["lag"]["worst"]["partition"] == 1
    assert found["lag"]["headroom_seconds"] == pytest.approx(86_400 - 1_000, rel=0.06)
    assert found["rates"]["arriving_per_second"] is None, "no driver carries them"


def test_without_a_driver_a_silent_partition_is_idle_too(config, written):
    written.commit(0, 1_000)
    idle = [seen(config, now=NOON + timedelta(minutes=m))["seals"]["idle"] for m in (9, 11)]
    assert idle == [[], [{"topic": "clicks", "partition": 0}]], "and nothing waits in it"
    silent = seen(config, Cluster(up=False), NOON + timedelta(minutes=11))
    assert (silent["seals"]["idle"], silent["error"]) == ([], "no Kafka broker answers")


def test_without_kafka_the_table_still_tells(config, written):
    written.commit(0, 100)
    found = seen(config, Cluster(up=False))
    assert found["error"] == "no Kafka broker answers"
    assert (found["state"], found["last_commit"]["rows"], found["lag"]["offsets"]) == ("unknown", 100, None)
    assert exit_code({"pipelines": {"clicks": found}}) == 0


def test_pipelines_share_one_wait_for_a_silent_broker(config, written, tmp_path):
    written.commit(0, 100)
    other = {
        "topics": ["installs"], "table": {"location": str(tmp_path / "other")}, "event_time": {"field": "at"},
    }  # fmt: skip
    pipelines = {"clicks": config.pipelines["clicks"], "installs": Pipeline.model_validate(other)}
    both, cluster = config.model_copy(update={"pipelines": pipelines}), Cluster(up=False)
    found = collect_status(both, ["clicks", "installs"], cluster, NOON)["pipelines"]
    assert {one["error"] for one in found.values()} == {"no Kafka broker answers"}
    assert cluster.waits == 1
    collect_status(both, ["clicks", "installs"], cluster, NOON)
    assert cluster.waits == 2, "each look asks again"


def test_a_topic_that_was_created_again_has_no_frontier(config, written):
    written.commit(0, 100)
    found = seen(config, Cluster(topic_id="uuid-2"))
    assert [p["frontier"] for p in found["lag"]["partitions"]] == [None, None]
    assert found["lag"]["offsets"] == 2_000


def test_a_table_that_cannot_be_read_is_said_and_is_exit_1(config, written, tmp_path):
    written.commit(0, 100)
    for entry in Path(written.table.log_location).glob("*.json"):
        entry.write_text("not a log")
    found = seen(config)
    assert found["state"] == "unreadable"
    assert str(tmp_path / "lake") in found["error"]
    assert exit_code({"pipelines": {"clicks": found}}) == 1


# --- from the driver --------------------------------------------------------------------------------------------


@pytest.fixture
def progress():
    progress = Progress("clicks", now=lambda: NOON, seconds=lambda: 0.0)
    progress.record_start(epoch=1, run=1, frontier={A: 0, B: 0}, limits=LIMITS, buckets=[("x",)], recent=[])
    progress.set_running()
    return progress


def commit(progress, number, start, end, **changes):
    progress.begin_batch(number, "look")
    for phase in ("tasks", "commit", "redo"):
        progress.enter_phase(phase, offsets=end - start)
    progress.record_commit(number + 5, facts(start, end, batch=number, **changes), {A: end}, [("x",)])


def test_the_driver_and_the_lake_tell_in_one_shape(config, written, progress):
    written.commit(0, 100)
    commit(progress, 0, 0, 100)
    driver = document([progress.view()], NOON)["pipelines"]["clicks"]

    def shape(value):
        return {key: shape(item) for key, item in value.items()} if isinstance(value, dict) else None

    varies = {"schemas", "batch"}  # only a driver knows
    of_driver, of_lake = shape(driver), shape(seen(config))
    assert of_driver.keys() == of_lake.keys()
    for key in of_driver.keys() - varies:
        if isinstance(of_driver[key], dict) and isinstance(of_lake[key], dict):
            assert of_driver[key].keys() == of_lake[key].keys(), key
    assert (driver["source"], seen(config)["source"]) == ("driver", "lake")


@pytest.mark.usefixtures("written")
def test_a_running_driver_is_asked_before_the_lake(config, progress):
    told = {"executors": EXECUTORS}
    with serving(config.http.model_copy(update={"port": 0}), {"clicks": progress}, more=lambda: told) as url:
        announce(config.checkpoints, "clicks", this_driver(url, 1))
        found = collect_status(config, ["clicks"], Cluster(), NOON)["pipelines"]["clicks"]
    assert (found["source"], found["state"]) == ("driver", "running")
    assert found["executors"] == EXECUTORS
    assert found["driver"]["url"] == url
    assert found["driver"]["answers"]


@pytest.mark.usefixtures("written")
def test_a_stale_announcement_is_no_error(config):
    announce(config.checkpoints, "clicks", Driver("http://127.0.0.1:1", 1, "2026-11-20T12:00:00+00:00", 1))
    found = collect_status(config, ["clicks"], Cluster(), NOON)["pipelines"]["clicks"]
    assert (found["source"], found["state"], found["error"]) == ("lake", "unknown", "")
    assert found["executors"] is None
    assert found["driver"]["answers"] is False
    assert "no driver answers at http://127.0.0.1:1" in shown({"clicks": found})


@pytest.mark.parametrize(
    ("epoch", "state"),
    [(1, "failed"), (None, "failed"), (0, "unknown")],
    ids=["of this start", "before a start", "of a start that another one followed"],
)
def test_a_driver_of_other_pipelines_says_why_one_failed(config, written, epoch, state):
    written.commit(0, 100)
    views = Progress("views")
    views.record_start(epoch=5, run=1, frontier={}, limits={}, buckets=[], recent=[])
    failed = Progress("clicks")
    failed.set(epoch=epoch)
    failed.record_failure("another client ran WRITE")
    both = config.model_copy(update={"pipelines": {**config.pipelines, "views": config.pipelines["clicks"]}})
    with serving(config.http.model_copy(update={"port": 0}), {"clicks": failed, "views": views}) as url:
        announce(config.checkpoints, "views", this_driver(url, 5))
        status = collect_status(both, ["clicks"], Cluster(), NOON)
    found = status["pipelines"]["clicks"]
    assert (found["source"], found["state"]) == ("lake", state)
    assert found["table"]["files"] == 1, "all else is from the table"
    assert ("another client ran WRITE" in drawn(found)) is (state == "failed")
    assert (found["health"]["level"], exit_code(status)) == (("critical", 1) if state == "failed" else ("warning", 0))


def test_a_failed_pipeline_is_exit_1(progress):
    assert exit_code(document([progress.view()], NOON)) == 0
    progress.record_failure("the disk is full")
    told = document([progress.view()], NOON)
    assert exit_code(told) == 1
    assert "the disk is full" in shown(told["pipelines"])


# --- what a person sees -----------------------------------------------------------------------------------------


def shown(pipelines, width=100) -> str:
    out = StringIO()
    show(screen({"pipelines": pipelines}), Console(file=out, width=width, highlight=False))
    return out.getvalue()


def told(progress, now=NOON):
    return document([progress.view()], now)["pipelines"]


def test_a_running_pipeline_on_the_screen(progress):
    commit(progress, 0, 0, 100, ranges=[account(0, 100, rows=90, read=98, dead_letters=6, quarantined=2)])
    progress.add_sample(Sample(NOON - timedelta(seconds=5), {A: 100, B: 0}), {A: 0, B: 0})
    progress.add_sample(Sample(NOON, {A: 1_100, B: 0}), {A: 0, B: 0})
    progress.set_lag_history(timedelta(seconds=15), (Sample(NOON - timedelta(minutes=1), {A: 0, B: 0}),))
    progress.set_retention({"clicks": timedelta(hours=10)})
    progress.begin_batch(1, "tasks")
    text = shown(told(progress, NOON + timedelta(seconds=30)))
    assert text.splitlines()[0] == "clicks  running  driver up 30 s"
    said = {left.strip(): right for left, right in re.findall(r"^  (\w[\w ]{11})  (.*)$", text, re.MULTILINE)}
    assert said["lag"] == "1,000 offsets, the oldest waits 35 s; worst clicks/0 with 1,000"
    assert said["flow"] == "18 offsets/s in, 2 offsets/s out, mean of 1 min"
    assert said["batch"] == "1, tasks for 30 s (began 30 s ago)"
    assert said["epoch"] == "1, since 2026-11-20 12:00:00 UTC; run 1"
    assert said["last commit"] == "version 5, 30 s ago: 90 rows, 1 file, 4.9 KiB in 0.0 s"
    assert said["reason"] == "enough waited"
    assert said["this start"] == "90 rows in 1 commit, 1 file, 4.9 KiB"
    assert said["no record"] == "2 offsets gave no record"
    assert said["table"] == "not known yet"
    assert said["gaps"] == "not known"
    assert said["dead letters"] == "not known in their table, 6, and 2 quarantined since the start: 8.16% of all read"
    assert said["buckets"] == "1 with rows, newest event 1 h ago"
    assert said["retention"] == "takes the oldest that waits in 9 h 59 min"


def test_zero_waiting_and_zero_broken_are_shown_as_none(progress):
    commit(progress, 0, 0, 100)
    progress.add_sample(Sample(NOON, {A: 100, B: 0}), {A: 0, B: 0})
    text = shown(told(progress))
    assert re.search(r"lag +none$", text, re.MULTILINE)
    assert re.search(r"dead letters +not known in their table, none since the start$", text, re.MULTILINE)
    progress.set(contents=TableContents(NOON, 90, 1, 5_000, 0), gaps=GapFacts(0, 0, 0, ()))
    text = shown(told(progress))
    assert re.search(r"dead letters +none in their table, none since the start$", text, re.MULTILINE)
    assert "gaps" not in text


def test_an_unknown_lag_is_shown_as_not_known(progress):
    assert re.search(r"lag +not known$", shown(told(progress)), re.MULTILINE)
    progress.add_sample(Sample(NOON, {A: 0, B: 0}), {A: 0, B: 0})
    text = shown(told(progress, NOON + timedelta(minutes=5)))
    assert re.search(r"lag +not known since 2026-11-20 12:00:00 UTC, 5 min ago$", text, re.MULTILINE)


def test_records_that_retention_takes_are_said(progress):
    progress.add_sample(Sample(NOON - timedelta(hours=1), {A: 0, B: 0}), {A: 0, B: 0})
    progress.add_sample(Sample(NOON, {A: 100, B: 0}), {A: 0, B: 0})
    progress.set_retention({"clicks": timedelta(minutes=30)})
    assert "over since 29 min 24 s: records are being lost" in shown(told(progress))


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_every_width_shows_every_line_and_none_ends_in_blanks(progress, width):
    commit(progress, 0, 0, 100)
    text = shown(told(progress), width)
    assert all(len(row) <= width and row == row.rstrip() for row in text.splitlines())
    for label in ("lag", "last commit", "this start", "dead letters", "buckets"):
        assert f"  {label}" in text


def test_a_pipe_that_watches_gets_one_line_each_time(progress):
    commit(progress, 0, 0, 100)
    progress.add_sample(Sample(NOON, {A: 150, B: 0}), {A: 0, B: 0})
    pipeline = told(progress)["clicks"]
    text = line("clicks", pipeline, "2026-11-20T12:00:00Z")
    assert text == (
        "2026-11-20T12:00:00Z clicks state=running health=ok lag_offsets=50 committed_per_second=1.667 "
        "rate_window_seconds=60 version=5 commit_age_seconds=0"
    )


def test_json_is_one_document(config, written, capsys):
    written.commit(0, 100)
    report = StatusReport(collect_status(config, ["clicks"], open_cluster(config), datetime.now(UTC)))
    Screen(as_json=True, has_lines=False).show(report)
    found = json.loads(capsys.readouterr().out)
    assert report.exit_code == 0
    assert found["pipelines"]["clicks"]["source"] == "lake"
    assert "no Kafka broker answers" in found["pipelines"]["clicks"]["error"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min"), (185, "3 min 5 s"),
        (3_600, "1 h"), (7_830, "2 h 10 min"), (86_400 * 6 + 3 * 3_600 + 59, "6 d 3 h"), (-90, "-1 min 30 s"),
    ],
)  # fmt: skip
def test_a_span_has_two_units_at_most(seconds, text):
    assert span(seconds) == text


def test_counts_have_their_nouns():
    assert [plural(n, "file") for n in (0, 1, 2_000)] == ["0 files", "1 file", "2,000 files"]
