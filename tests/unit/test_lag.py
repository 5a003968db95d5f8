"""Lag: arithmetic over what Kafka said, the search for the age of a record, and the thread that asks."""

import threading
import time
from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pytest
from hypothesis import given, strategies as st

from headrace.writer.clients.kafka import BrokerUnreachable, Topic as KafkaTopic
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.errors import HeadraceError, TopicMissing
from headrace.writer.kafka_reader.errors import Unavailable
from headrace.writer.status.lag import (
    LagListener,
    date_frontier,
    date_offsets,
    lag_sample,
    partition_lags,
    read_history,
    undated_offsets,
    waiting_since,
)
from headrace.writer.status.lag_sample import Lag
from headrace.writer.status.model import Logs, Sample
from headrace.writer.status.progress import Progress
from tests.support.commits import facts

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
A, B = ("clicks", 0), ("clicks", 1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def logs(*ends: int, **rest) -> Logs:
    """Samples every 15 s, the first at noon."""
    samples = tuple(Sample(at(15 * i), {A: end}) for i, end in enumerate(ends))
    return Logs(samples, **rest)


# --- arithmetic -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ends", "frontier", "expected"),
    [
        ((100, 200), 200, None),  # nothing waits
        ((100, 200), 250, None),  # the frontier is newer than the sample
        ((100, 200), 199, 15),
        ((100, 200), 149, 7.5),  # half-way between the samples
        ((100, 200, 300), 249, 22.5),
        ((100, 100, 100, 200), 100, 30.15),  # a quiet log: it came after the last quiet sample
        ((100, 200), 99, None),  # before the samples
    ],
)
def test_a_record_came_when_the_end_of_the_log_passed_it(ends, frontier, expected):
    found = waiting_since(logs(*ends), A, frontier)
    assert found == (None if expected is None else at(expected))


def test_a_date_that_kafka_gave_is_better_than_the_samples():
    known = logs(100, 200, dated={A: (149, at(3))})
    assert waiting_since(known, A, 149) == at(3)
    assert waiting_since(known, A, 150) > at(3)


def test_a_date_of_an_earlier_offset_serves_until_kafka_is_asked():
    assert waiting_since(logs(100, 200, dated={A: (40, at(-900))}), A, 60) == at(-900)
    assert waiting_since(logs(100, 200, dated={A: (70, at(-900))}), A, 60) is None


def test_a_partition_that_appeared_between_two_samples_grew_from_nothing():
    known = Logs((Sample(at(0), {A: 5}), Sample(at(10), {A: 5, B: 10})))
    assert waiting_since(known, B, 4) == at(5)


def test_lag_is_counted_in_offsets_and_in_seconds_and_headroom_in_both():
    known = logs(100, 200, starts={A: 50}, retention={"clicks": timedelta(seconds=100)})
    assert partition_lags(known, {A: 149}, at(30)) == [Lag("clicks", 0, 51, 22.5, 99, 77.5, 149)]


@pytest.mark.parametrize(
    ("retention", "frontier", "expected"),
    [
        ({"clicks": None}, 149, None),  # kept without a limit
        ({}, 149, None),  # not known
        ({"clicks": timedelta(seconds=100)}, 200, None),  # nothing waits
        ({"clicks": timedelta(seconds=10)}, 149, -12.5),  # it is due
        ({"clicks": timedelta(seconds=100)}, 20, None),  # older than the samples, not dated yet
    ],
)
def test_headroom_is_shown_only_where_records_wait_and_have_a_limit(retention, frontier, expected):
    (lag,) = partition_lags(logs(100, 200, retention=retention), {A: frontier}, at(30))
    assert lag.headroom_seconds == expected


def test_records_that_retention_took_do_not_wait_and_have_a_negative_lag():
    (lag,) = partition_lags(logs(100, 200, starts={A: 150}), {A: 120}, at(30))
    assert (lag.offsets, lag.headroom_offsets) == (50, -30)


def test_a_partition_without_a_frontier_waits_from_its_beginning():
    (lag,) = partition_lags(logs(100, 200, starts={A: 50}), {}, at(30))
    assert lag.offsets == 150


def test_a_frontier_beyond_the_last_sample_is_no_lag():
    (lag,) = partition_lags(logs(100, 200), {A: 210}, at(30))
    assert (lag.offsets, lag.seconds) == (0, 0.0)


def test_without_a_word_from_kafka_nothing_is_known():
    assert partition_lags(Logs(), {A: 5}, NOON) == []
    assert undated_offsets(Logs(), {A: 5}) == {}


@pytest.mark.parametrize(
    ("frontier", "dated", "expected"),
    [
        (99, {}, {A: 99}),
        (100, {}, {}),  # the samples tell
        (99, {A: (99, NOON)}, {}),  # asked already
        (99, {A: (98, NOON)}, {A: 99}),  # it has moved
        (3, {}, {A: 10}),  # what retention took cannot be dated
    ],
)
def test_only_what_the_samples_do_not_tell_is_asked_for(frontier, dated, expected):
    assert undated_offsets(logs(100, 200, starts={A: 10}, dated=dated), {A: frontier}) == expected


def test_a_new_partition_does_not_count_as_a_burst():
    known = Logs().with_history([Sample(at(0), {A: 0}), Sample(at(10), {A: 20, B: 10_000})])
    assert lag_sample(known, {}, at(10)).arriving_per_s(10) == 2.0


# --- the age of a record ----------------------------------------------------------------------------------------


class Topic:
    """A broker's answers by timestamp, from the timestamps of one partition's records, in offset order."""

    def __init__(self, stamps_ms: list[int]) -> None:
        self.stamps = stamps_ms
        self.newest = list(accumulate(stamps_ms, max))
        self.asked = 0

    def first_records(self, instants):
        self.asked += 1
        return {source: self._first(instant) for source, instant in instants.items()}

    def _first(self, instant: int) -> tuple[int, int]:
        offset = bisect_left(self.newest, instant)
        return (offset, self.stamps[offset]) if offset < len(self.stamps) else (-1, -1)


AGES = st.lists(st.integers(2_000, 10**12), min_size=1, max_size=50)


@given(AGES, st.data())
def test_an_age_is_found_to_five_percent_in_few_questions(ages, data):
    now_ms = int(NOON.timestamp() * 1000)
    topic = Topic([now_ms - age for age in ages])
    offset = data.draw(st.integers(0, len(ages) - 1))
    found = date_offsets(topic.first_records, {A: offset}, NOON)
    age = (NOON - found[A]).total_seconds() * 1000
    assert topic.newest[offset] >= now_ms - age - 1, "a record up to the offset is as young as this"
    assert age <= (now_ms - topic.newest[offset]) * 1.05 + 2
    assert topic.asked <= 12


def test_all_partitions_are_asked_about_at_once():
    now_ms = int(NOON.timestamp() * 1000)
    topic = Topic([now_ms - 1000 * age for age in range(5_000, 0, -1)])
    found = date_offsets(topic.first_records, {A: 10, B: 4_000}, NOON)
    assert (NOON - found[A]).total_seconds() == pytest.approx(4_990, rel=0.05)
    assert (NOON - found[B]).total_seconds() == pytest.approx(1_000, rel=0.05)
    assert topic.asked <= 12


def test_a_record_of_this_second_has_no_age():
    now_ms = int(NOON.timestamp() * 1000)
    assert date_offsets(Topic([now_ms - 10]).first_records, {A: 0}, NOON)[A] >= at(-1.1)


OF_2099, MICROSECONDS, SECONDS = 4_070_908_800_000, 1_795_000_000_000_000, 1_795_000_000


@pytest.mark.parametrize("odd", [OF_2099, MICROSECONDS, SECONDS, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("hours", [1, 50])
def test_a_record_of_an_odd_timestamp_dates_none_behind_it_wrongly(odd, hours):
    """Of 1970 and before, the one behind is the newest; of the future, all behind it are hidden."""
    hour_ago = int((NOON - timedelta(hours=hours)).timestamp() * 1000)
    found = date_offsets(Topic([odd, hour_ago]).first_records, {A: 1}, NOON)
    assert found == {} if odd > hour_ago else (NOON - found[A]).total_seconds() == pytest.approx(3600 * hours, rel=0.05)
    assert date_offsets(Topic([odd, odd]).first_records, {A: 1}, NOON) == {}, "none of its own either"


def test_a_record_without_a_timestamp_waits_since_the_first_sample_at_the_latest():
    class Odd(Cluster):
        def first_records(self, instants_ms):
            return dict.fromkeys(instants_ms, (0, OF_2099))

    known = logs(100, 200)
    settled = date_frontier(Odd(), known, {A: 40}, at(60))
    assert settled == {A: (40, NOON)}
    assert waiting_since(logs(100, 200, dated=settled), A, 40) == NOON
    grown = read_history(Odd(), Sample(NOON, {A: 100}))
    assert [sample.ends for sample in grown] == [{A: 100}] * 3, "no burst that there never was"


def test_a_record_without_a_timestamp_is_left_out():
    assert date_offsets(lambda asked: dict.fromkeys(asked, (-1, -1)), {A: 0}, NOON) == {}


# --- the thread -------------------------------------------------------------------------------------------------


class Cluster:
    """A cluster whose answers a test decides."""

    def __init__(self) -> None:
        self.ends, self.down, self.refuses = {A: 10}, False, False
        self.looks, self.groups, self.id, self.gone = 0, [], "uuid-1", None
        self.dates = []

    def topics(self, names):
        return {name: KafkaTopic(name, self.id, 1) for name in names}

    def sources(self, topics):
        assert list(topics) == ["clicks"]
        self.looks += 1
        if self.down:
            raise BrokerUnreachable("no broker answers")
        if self.gone:
            raise self.gone
        return list(self.ends)

    def earliest(self, sources):
        return dict.fromkeys(sources, 0)

    def latest(self, sources):
        return {source: self.ends[source] for source in sources}

    def retention(self, topics):
        return dict.fromkeys(topics, timedelta(days=7))

    def first_records(self, instants_ms):
        self.dates += instants_ms.values()
        return {source: (1, instant) for source, instant in instants_ms.items()}

    def mirror(self, group, frontier):
        if self.refuses:
            raise HeadraceError("the group has members")
        self.groups.append((group, dict(frontier)))


def until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def progress():
    progress = Progress("clicks")
    progress.record_start(epoch=1, run=1, frontier={A: 4}, limits={}, buckets=[], recent=[])
    return progress


def commit(progress: Progress, end: int) -> None:
    progress.begin_batch(0, "look")
    progress.record_commit(1, facts(0, end), {A: end}, [])


def watching(cluster, progress, **settings) -> LagListener:
    watch = LagListener(cluster, {"clicks": "uuid-1"}, progress, interval=timedelta(seconds=0.01), **settings)
    watch.start()
    return watch


def test_the_watch_listens_and_dates_what_waits(progress):
    watch = watching(Cluster(), progress)
    until(lambda: progress.view().logs.dated and progress.view().logs.retention)
    watch.close()
    (lag,) = partition_lags(progress.view().logs, progress.view().frontier, datetime.now(UTC))
    assert lag.offsets == 6
    assert lag.seconds is not None


def test_the_watch_asks_once_how_the_logs_grew_before(progress):
    cluster = Cluster()
    watch = watching(cluster, progress)
    until(lambda: cluster.looks > 3)
    watch.close()
    logs = progress.view().logs
    grown = [(logs.samples[0].at - one.at, one.offsets) for one in logs.appended[:4]]
    assert grown == [
        (timedelta(minutes=10), 0),
        (timedelta(minutes=2), 0),
        (timedelta(minutes=1), 0),
        (timedelta(0), 9),
    ]
    before = [logs.samples[0].at - ago for ago in (timedelta(minutes=10), timedelta(minutes=2), timedelta(minutes=1))]
    assert cluster.dates[:3] == [int(at.timestamp() * 1000) for at in before]
    assert logs.interval == timedelta(seconds=0.01)


def test_a_silent_broker_makes_the_facts_old_and_is_said_once(progress, caplog):
    cluster = Cluster()
    watch = watching(cluster, progress)
    until(lambda: progress.view().logs.samples)
    cluster.down = True
    seen = cluster.looks
    until(lambda: cluster.looks > seen + 5)
    last = progress.view().logs.samples[-1]
    until(lambda: cluster.looks > seen + 8)
    assert progress.view().logs.samples[-1] == last
    assert progress.view().kafka_error == "no broker answers"
    cluster.down = False
    until(lambda: progress.view().logs.samples[-1].at > last.at)
    until(lambda: not progress.view().kafka_error)
    watch.close()
    said = [record.getMessage() for record in caplog.records if "lag_measurement" in record.getMessage()]
    assert len([line for line in said if "lag_measurement_failed" in line]) == 1
    assert progress.view().state == "starting", "the pipeline has not noticed"


def test_a_topic_that_appears_and_matches_the_pattern_is_noticed(progress):
    cluster = Cluster()
    cluster.topic_names = lambda: ["clicks", "views", "other"]
    selection = TopicSelection.model_validate({"pattern": "clicks|views"})
    watch = watching(cluster, progress, selection=selection)
    until(lambda: progress.view().topics_appeared)
    watch.close()
    assert progress.view().topics_appeared == "1 topic to read appeared: views"
    assert progress.view().log_moved == ""


def test_a_log_that_was_cut_is_noticed_while_nothing_is_read(progress):
    watch = watching(Cluster(), progress, log_break=lambda: "the log of clicks/0 was cut below what was read of it")
    until(lambda: progress.view().log_moved)
    watch.close()
    assert progress.view().log_moved == "the log of clicks/0 was cut below what was read of it"


def test_a_comparison_of_logs_that_fails_holds_up_no_lag(progress, caplog):
    def fail() -> str:
        raise Unavailable("no broker says it")

    cluster = Cluster()
    watch = watching(cluster, progress, log_break=fail)
    until(lambda: cluster.looks > 3 and "log_comparison_failed" in caplog.text)
    watch.close()
    assert progress.view().logs.samples
    assert progress.view().log_moved == ""


def test_a_topic_that_was_created_again_is_noticed_while_nothing_is_read(progress):
    cluster = Cluster()
    watch = watching(cluster, progress)
    until(lambda: cluster.looks > 3)
    assert progress.view().log_moved == ""
    cluster.id = "uuid-2"
    until(lambda: progress.view().log_moved)
    watch.close()
    assert progress.view().log_moved == "topic 'clicks' was deleted and created again (id uuid-2, it was uuid-1)"


def test_a_topic_that_is_gone_is_noticed_and_said_once(progress, caplog):
    cluster = Cluster()
    watch = watching(cluster, progress)
    until(lambda: cluster.looks > 3)
    cluster.gone = TopicMissing("topic 'clicks' does not exist on b:9092")
    until(lambda: progress.view().log_moved)
    seen = cluster.looks
    until(lambda: cluster.looks > seen + 3)
    watch.close()
    assert progress.view().log_moved == "topic 'clicks' does not exist on b:9092"
    said = [record.getMessage() for record in caplog.records if "lag_measurement" in record.getMessage()]
    assert len(said) == 1
    assert "topic 'clicks' does not exist" in said[0]


def test_a_log_that_ends_before_the_frontier_is_noticed(progress):
    cluster = Cluster()
    cluster.ends = {A: 3}
    watch = watching(cluster, progress)
    until(lambda: progress.view().log_moved)
    watch.close()
    assert progress.view().log_moved == "the log of clicks/0 ends at 3, 1 offset before the table"


def test_a_stop_does_not_wait_for_a_broker_that_hangs_and_moves_no_later_start(progress):
    cluster = Cluster()
    watch = watching(cluster, progress)
    until(lambda: cluster.looks > 3)
    is_asked = threading.Event()
    may_answer = threading.Event()

    def hang(names):
        is_asked.set()
        assert may_answer.wait(60)
        return {name: KafkaTopic(name, "uuid-2", 1) for name in names}

    cluster.topics = hang
    assert is_asked.wait(60)
    began_s = time.monotonic()
    watch.close()
    assert time.monotonic() - began_s < 1
    may_answer.set()
    assert watch._thread.close(60)
    assert progress.view().log_moved == "", "another start reads the topic that was created again"


def test_the_frontier_is_mirrored_after_each_commit_and_at_the_end(progress):
    cluster = Cluster()
    watch = LagListener(cluster, {"clicks": "uuid-1"}, progress, interval=timedelta(hours=1), mirror="shown")
    watch.start()
    until(lambda: cluster.groups == [("shown", {A: 4})])
    commit(progress, 8)
    until(lambda: cluster.groups[-1] == ("shown", {A: 8}))
    commit(progress, 9)
    watch.close()
    assert cluster.groups[-1] == ("shown", {A: 9})
    assert progress.view().offset_commit_failures == 0


def test_a_mirror_that_fails_is_counted_warned_of_once_and_tried_again(progress, caplog):
    cluster = Cluster()
    cluster.refuses = True
    watch = watching(cluster, progress, mirror="shown")
    until(lambda: progress.view().offset_commit_failures > 3)
    cluster.refuses = False
    until(lambda: cluster.groups)
    watch.close()
    said = [record.getMessage() for record in caplog.records if "mirror_failed" in record.getMessage()]
    assert len(said) == 1
    assert "the group has members" in said[0]


def test_no_offset_is_mirrored_without_the_setting(progress):
    cluster = Cluster()
    watch = watching(cluster, progress)
    until(lambda: cluster.looks > 3)
    watch.close()
    assert cluster.groups == []
