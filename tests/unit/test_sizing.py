"""The arithmetic of sizing: by hand, at its edges, and as the page shows it."""

import importlib.util
import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from headrace.writer.commit.batch_limits import task_count
from headrace.writer.driver.batches.tasks import usable_slots
from headrace.writer.output.report import json_value
from headrace.writer.preflight.capacity import sizing
from headrace.writer.preflight.capacity.sizing import MeasuredCost, Rates, Traffic, rate, rates, size, steady_batch
from headrace.writer.preflight.samples.traffic import arrival_pace, buckets_per_day
from tests.support.sample_records import NOW, config

ROOT = Path(__file__).parents[2]
MIB = 2**20
RATES = Rates("a test", "no machine", 1.0, [
    MeasuredCost("small", 200, 20, 100_000), MeasuredCost("large", 1_000, 20, 50_000),
    MeasuredCost("wide", 1_000, 200, 10_000),
])  # fmt: skip
TRAFFIC = Traffic(
    events_per_s=100_000, events_how="given", event_bytes=200, columns=20, row_bytes=250, row_bytes_parquet=64,
    sampled_how="made up", bucket_shares=[0.9, 0.1], buckets_per_day=24,
)  # fmt: skip


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return config(tmp_path_factory.mktemp("lake")).pipelines["clicks"]


def test_the_whole_arithmetic_by_hand(settings):
    found = size(TRAFFIC, settings, RATES)
    by_hand = {
        "events per second": 100_000,
        "Kafka to read": 20e6,  # 100,000 x 200 B
        "Kafka a day": 1.728e12,
        "lake a day": 100_000 * 64 * 86_400 / 2**30,
        "events a processor second": 100_000,  # as measured with 200 B
        "busy": 1.0,
        "cores": 2,  # 1 / 0.6, rounded up
        # One file of 128 MiB is 2,097,152 rows of 64 B. One task carries them in 1 + 20.97 s, but they come in 20.97 s.
        # So the batch grows until it is worth 2 tasks, from 1.5 files on: 3,145,728 records in steps of 1 %.
        "records in a commit": 2_097_152 * 1.01**41,
        "a commit every": 2_097_152 * 1.01**41 / 100_000,
        "files in a commit": 4,  # 2 tasks x 2 buckets
        "small ones of them": 2,  # of the smaller bucket
        "files a day": 4 * 86_400 / (2_097_152 * 1.01**41 / 100_000),
        "files in a bucket": 4 * 86_400 / (2_097_152 * 1.01**41 / 100_000) / 24,
        "a task's Python": (256 + 128 + 200) * MIB + 3 * settings.memory.batch_records * 200,
        "or as executors": 1,
        "an executor's heap": 1024 * MIB,
        # Two cores with a task and its heap each, and the driver's own Python once.
        "on one machine": 2 * ((256 + 128 + 200 + 512) * MIB + 3 * settings.memory.batch_records * 200) + 300 * MIB,
    }
    assert {name: found.value(name) for name in by_hand} == pytest.approx(by_hand)


def test_one_core_has_the_memory_that_a_run_in_one_slot_was_measured_to_take(settings):
    found = size(replace(TRAFFIC, events_per_s=1_000), settings, RATES)
    assert found.value("cores") == 1
    # bench/README.md: `headrace bench --slots 1` takes 1.2 to 1.3 GiB.
    assert 1.3 * 2**30 <= found.value("on one machine") <= 1.5 * 2**30


def test_a_raw_table_has_its_bytes_files_memory_and_processor_time(settings):
    without, known = size(TRAFFIC, settings, RATES), replace(RATES, raw_cost=1.25)
    found = size(replace(TRAFFIC, raw_bytes=150), settings, known)
    per_day, commits = 100_000 * 86_400 / 2**30, 86_400 / found.value("a commit every")
    raw_files = max(2, math.ceil(found.value("records in a commit") * 150 / (128 * MIB)))
    by_hand = {
        "events a processor second": 80_000, "busy": 1.25, "cores": 3, "lake a day": per_day * (64 + 150),
        "a record in the raw table": 150, "raw table a day": per_day * 150, "raw files in a commit": raw_files,
        "files a day": (found.value("files in a commit") + raw_files) * commits,
        "files in a bucket": found.value("files in a commit") * commits / 24,
        "a task's Python": without.value("a task's Python") + 64 * MIB,
    }  # fmt: skip
    assert {name: found.value(name) for name in by_hand} == pytest.approx(by_hand)
    assert found.value("writes a day") > found.value("files a day")
    assert "÷ 1.25 for the raw table" in {line.name: line for line in found.lines}["events a processor second"].how
    assert size(replace(TRAFFIC, raw_bytes=150), settings, known, 50_000).value("busy") == 2, "--rate has it in it"
    assert not [line.name for line in without.lines if "raw" in line.name]


def test_a_quiet_topic_commits_by_the_delay(settings):
    quiet = steady_batch(replace(TRAFFIC, events_per_s=10), settings, 100_000, 1, 1.0)
    assert (quiet.records, quiet.every_s, quiet.tasks) == (6_000, 600, 1)
    assert quiet.why.startswith("commit.max_delay, before 2,097,152 wait")


def test_a_quiet_topic_of_many_partitions_has_tasks_for_them(settings):
    found = steady_batch(replace(TRAFFIC, events_per_s=10, partitions_for_spark=1_000), settings, 100_000, 4, 1.0)
    assert (found.records, found.tasks, found.busy_s) == (6_000, 10, pytest.approx(1 + 6_000 / 400_000))


def test_a_busy_topic_commits_by_size(settings):
    busy = steady_batch(replace(TRAFFIC, events_per_s=50_000), settings, 100_000, 1, 1.0)
    assert (busy.records, busy.every_s) == (2_097_152, pytest.approx(41.94304))
    assert busy.why.startswith("roll.target_file_size")


def test_too_much_for_the_settings_is_said_with_the_mend(settings):
    small = settings.model_copy(update={"commit": settings.commit.model_copy(update={"max_offsets": 1_000_000})})
    found = size(replace(TRAFFIC, events_per_s=500_000), small, RATES)
    assert found.value("cores") == 9
    assert "carry 100,000 events per second, less than come" in found.warnings[0]
    assert "set commit.max_offsets to 19,000,000 or more" in found.warnings[0]  # 9 cores x 2,097,152 rows of a file
    assert "an hour's outage is caught up in" not in {line.name for line in found.lines}


def test_small_files_are_said_with_what_helps(settings):
    (said,) = size(replace(TRAFFIC, events_per_s=10), settings, RATES).warnings
    assert "2 of 2 files in a commit are small" in said
    assert "A longer commit.max_delay (10 min)" in said
    many = replace(TRAFFIC, events_per_s=50_000, bucket_shares=[0.01] * 100)
    assert any("compaction" in warning for warning in size(many, settings, RATES).warnings)


@pytest.mark.parametrize(
    ("event_bytes", "columns", "expected"),
    [
        (200, 20, 100_000), (100, 20, 100_000),  # below the smallest, the events
        (1_000, 20, 50_000), (2_000, 20, 25_000),  # beyond the largest, the bytes
        (600, 20, 1 / (0.5 / 100_000 + 0.5 / 50_000)),  # half-way, the mean cost of an event
        (1_000, 120, 10_000), (1_000, 50, 50_000),  # the nearer number of columns
    ],
)  # fmt: skip
def test_a_rate_is_measured_or_between_or_on_the_careful_side(event_bytes, columns, expected):
    assert rate(RATES, event_bytes, columns)[0] == pytest.approx(expected)


@pytest.mark.parametrize(("mebibytes", "tasks"), [(0, 1), (128, 1), (193, 2), (640, 5), (10_000, 8)])
def test_a_batch_has_as_many_tasks_as_it_fills_files_and_at_most_the_cores(mebibytes, tasks):
    assert task_count(mebibytes * MIB, 128 * MIB, 8, partitions=4) == tasks


@pytest.mark.parametrize(("mebibytes", "slots", "tasks"), [(300, 8, 8), (300, 40, 19), (10, 8, 1), (300, 2, 2)])
def test_while_more_waits_every_slot_works_for_files_of_an_eighth(mebibytes, slots, tasks):
    assert task_count(mebibytes * MIB, 128 * MIB, slots, partitions=4, behind=True) == tasks


@pytest.mark.parametrize(("slots", "pipelines", "usable"), [(8, 1, 8), (8, 2, 7), (8, 20, 7), (2, 2, 1), (1, 2, 1)])
def test_a_pipeline_leaves_a_slot_to_the_others(slots, pipelines, usable):
    assert usable_slots(slots, pipelines) == usable


def test_tables_of_a_route_share_cores_and_commits_and_add_up_in_files(settings):
    """200 tables of one event a second are a pipeline of 200 events a second, not 200 pipelines."""
    alone = replace(TRAFFIC, events_per_s=1, bucket_shares=[1.0])
    whole = replace(TRAFFIC, events_per_s=200, bucket_shares=[1 / 200] * 200)
    found = size(whole, settings, RATES, tables={f"t{n}": (alone, settings) for n in range(200)})
    assert (found.value("cores"), found.value("commits a day")) == (1, 144)
    assert found.value("on one machine") < 2 * 2**30
    for name in ("lake a day", "files in a commit", "small ones of them", "files a day"):
        assert sum(one.value(name) for one in found.tables.values()) == pytest.approx(found.value(name)), name
    assert found.value("writes a day") == found.value("files a day") + 144 * (3 + 200) + 201 * 2 * 144 / 50
    assert len(json_value(found)["tables"]) == 200


def test_pipelines_of_one_application_share_its_cores(settings):
    quiet = size(replace(TRAFFIC, events_per_s=1_000), settings, RATES)
    lines = {line.name: line.value for line in sizing.add_up([quiet] * 50)}
    assert lines["busy"] == pytest.approx(0.5)
    assert lines["cores"] == 1
    assert lines["on one machine"] == pytest.approx(quiet.value("on one machine"))
    assert lines["commits a day"] == pytest.approx(50 * quiet.value("commits a day"))


def test_a_task_of_a_route_holds_records_until_others_of_their_schema_come(settings):
    plain = size(TRAFFIC, settings, RATES)
    routed = size(TRAFFIC, settings.model_copy(update={"route": SimpleNamespace()}), RATES)
    # Arrow batches of 64 MiB, three times in memory, and as much again that waits.
    arrow = 3 * settings.memory.batch_records * 200
    assert routed.value("a task's Python") == plain.value("a task's Python") - arrow + 4 * 64 * MIB


def test_the_driver_of_many_busy_pipelines_is_counted_once(settings):
    busy = size(TRAFFIC, settings, RATES)
    lines = {line.name: line.value for line in sizing.add_up([busy] * 4)}
    assert (busy.value("cores"), lines["cores"]) == (2, 7)
    core = (busy.value("on one machine") - 300 * MIB) / 2
    assert lines["on one machine"] == pytest.approx(7 * core + 300 * MIB)


def test_a_given_rate_wins(settings):
    found = size(TRAFFIC, settings, RATES, 10_000)
    assert (found.value("busy"), found.value("cores")) == (10, 17)


@given(
    st.floats(0.01, 1e7), st.floats(20, 1e5), st.floats(5, 2e4), st.lists(st.floats(1e-4, 1), min_size=1, max_size=30)
)
def test_the_arithmetic_holds_for_any_traffic(per_s, event, parquet, weights):
    settings = config(Path("/nowhere")).pipelines["clicks"]
    shares = sorted((weight / sum(weights) for weight in weights), reverse=True)
    traffic = replace(
        TRAFFIC, events_per_s=per_s, event_bytes=event, row_bytes_parquet=parquet, bucket_shares=shares,
    )  # fmt: skip
    found = size(traffic, settings, RATES)
    json.dumps(json_value(found), allow_nan=False)
    assert all(line.value >= 0 and line.shown and line.how for line in found.lines)
    assert found.value("records in a commit") <= settings.commit.max_offsets * (1 + 1e-9)
    assert found.value("files in a commit") >= 1
    assert found.value("small ones of them") <= found.value("files in a commit")
    batch = steady_batch(traffic, settings, rate(RATES, event, 20)[0], int(found.value("cores")), 1.0)
    assert batch.records <= batch.every_s * per_s * (1 + 1e-9)  # no more is carried than comes
    keeps_up = batch.every_s > batch.busy_s
    assert not keeps_up or batch.records == pytest.approx(batch.every_s * per_s)


def test_the_rates_that_are_packaged_are_measured_somewhere():
    known = rates()
    assert known.source
    assert known.machine
    assert known.raw_cost > 1
    assert all(m.events_per_cpu_second > 0 and m.bytes_per_event > 0 and m.columns > 0 for m in known.measured)


@pytest.mark.parametrize(
    ("spec", "keys", "expected"),
    [
        ({"type": "event_time", "width": timedelta(hours=1)}, [("a",), ("b",)], 24),
        ({"type": "event_time", "width": timedelta(days=7)}, [("a",)], 1 / 7),
        ({"type": "field", "field": "country"}, [("DE",), ("US",)], None),
        (
            {"type": "composite", "parts": [
                {"type": "field", "field": "country"}, {"type": "event_time", "width": timedelta(days=1)},
            ]},
            [("DE", "1"), ("US", "1"), ("DE", "2"), ("US", "2")], 2,
        ),
    ],
)  # fmt: skip
def test_buckets_of_a_day_come_from_their_width_and_the_other_parts(spec, keys, expected):
    assert buckets_per_day(spec, keys) == (None if expected is None else pytest.approx(expected))


class Log:
    """A cluster of one partition whose records came at these times."""

    def __init__(self, *came):
        self.came = sorted(came)

    def sources(self, topics):
        return [(topics[0], 0)]

    def first_records(self, instants_ms):
        first = [(0, int(self.came[0].timestamp() * 1000))] if self.came else [(-1, -1)]
        return dict.fromkeys(instants_ms, first[0])

    def offsets_at(self, when, sources):
        return {source: sum(came < when for came in self.came) for source in sources}

    def latest(self, sources):
        return {source: len(self.came) for source in sources}


def test_the_pace_is_that_of_the_last_hour_and_its_busiest_twelfth():
    hours = [NOW - timedelta(seconds=second) for second in range(1, 7_200, 2)]
    burst = [NOW - timedelta(minutes=32, milliseconds=n) for n in range(3_000)]
    found = arrival_pace(Log(*hours, *burst), ["clicks"], NOW - timedelta(seconds=1), NOW)
    assert (found.end, found.seconds, found.offsets) == (NOW, 3_600, 1_800 + 3_000)
    assert found.per_s == pytest.approx(4_800 / 3_600)
    assert found.busiest_per_s == pytest.approx((150 + 3_000) / 300)


def test_a_young_topic_is_measured_over_its_life():
    found = arrival_pace(
        Log(*(NOW - timedelta(seconds=s) for s in range(1, 61))), ["clicks"], NOW - timedelta(seconds=1), NOW
    )
    assert (found.offsets, found.seconds) == (60, 60)


def test_a_topic_that_went_quiet_is_measured_as_it_was_then():
    last = NOW - timedelta(days=2)
    found = arrival_pace(Log(*(last - timedelta(seconds=s) for s in range(7_200))), ["clicks"], last, NOW)
    assert found.end == last + timedelta(milliseconds=1)
    assert found.per_s == pytest.approx(1, rel=0.01)


def test_numbers_are_shown_with_their_unit():
    shown = {
        (0.004, "cores"): "under 0.01 cores", (1, "cores"): "1 core", (1.26, "cores"): "1.3 cores",
        (41.6e6, "bytes/s"): "41.6 MB/s", (50e12, "bytes/day"): "50 TB/day", (3.5e12, "bytes/day"): "3.5 TB/day",
        (1536, "bytes"): "1.5 KiB", (1234567, ""): "1,234,567", (600, "s"): "10 min", (0.25, "GiB/day"): "0.25 GiB/day",
    }  # fmt: skip
    assert {given: sizing.Line("", "", *given, "").shown for given in shown} == shown


def test_the_page_is_what_the_code_says():
    spec = importlib.util.spec_from_file_location("sizing", ROOT / "docs" / "sizing.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "SIZING.md").read_text() == module.text(), "stale: run `make reference`"


def test_the_page_is_about_200_000_events_and_50_terabytes():
    page = (ROOT / "docs" / "SIZING.md").read_text()
    assert "| events per second | 200,000 |" in page
    assert "| Kafka a day | 3.5 TB/day | 50 TB/day |" in page
    assert math.isclose(50e12 / 86_400 / 200_000, 2_893.5, rel_tol=1e-4)
    assert "2,893.5 B" in page
    assert datetime.now(UTC).strftime("%Y-%m-%d") not in page
