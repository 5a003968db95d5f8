"""What the lag thread asks, asked of a real broker."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.writer.clients.kafka import Cluster
from headrace.writer.core.errors import HeadraceError, TopicMissing
from headrace.writer.status.lag import date_frontier, date_offsets, partition_lags, read_log_bounds
from headrace.writer.status.model import Logs

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


@pytest.fixture
def cluster(bootstrap: str) -> Cluster:
    return Cluster(bootstrap, timedelta(seconds=10))


@pytest.fixture(scope="module")
def gone(bootstrap: str, topic: MakeTopic) -> tuple[Cluster, str]:
    """A cluster that was asked about a topic, and the topic, which was deleted since."""
    cluster = Cluster(bootstrap, timedelta(seconds=60))
    name = topic(1)
    cluster.latest(cluster.sources([name]))
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(timeout=60)
    deadline_s = time.monotonic() + 60
    # A broker lists a topic for a moment after its deletion.
    while name in admin.list_topics(timeout=60).topics:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return cluster, name


def write(bootstrap: str, topic: str, stamps: list[datetime], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for stamp in stamps:
        producer.produce(topic, b"x", partition=partition, timestamp=int(stamp.timestamp() * 1000))
    assert producer.flush(30) == 0


def test_ends_starts_and_retention_are_the_broker_s(cluster: Cluster, bootstrap: str, topic: MakeTopic) -> None:
    week, forever = topic(2, **{"retention.ms": "604800000"}), topic(1, **{"retention.ms": "-1"})
    longest, compacted = topic(1, **{"retention.ms": str(2**63 - 1)}), topic(1, **{"cleanup.policy": "compact"})
    write(bootstrap, week, [datetime.now(UTC)] * 5, partition=1)
    sample, starts = read_log_bounds(cluster, [week, forever], datetime.now(UTC))
    assert sample.ends == {(week, 0): 0, (week, 1): 5, (forever, 0): 0}
    assert starts == {(week, 0): 0, (week, 1): 0, (forever, 0): 0}
    assert cluster.retention([week, forever, longest, compacted]) == {
        week: timedelta(days=7), forever: None, longest: None, compacted: None,
    }  # fmt: skip


def test_the_age_of_a_record_is_found_by_asking(cluster: Cluster, bootstrap: str, topic: MakeTopic) -> None:
    name, now = topic(2, **{"retention.ms": str(7 * 86_400_000)}), datetime.now(UTC)
    write(bootstrap, name, [now - timedelta(minutes=minutes) for minutes in range(120, 0, -1)])
    write(bootstrap, name, [now - timedelta(seconds=30)] * 3, partition=1)
    offsets = date_offsets(cluster.first_records, {(name, 0): 20, (name, 1): 1}, now)
    assert (now - offsets[name, 0]).total_seconds() == pytest.approx(6_000, rel=0.05)
    assert (now - offsets[name, 1]).total_seconds() == pytest.approx(30, rel=0.05)
    sample, starts = read_log_bounds(cluster, [name], now)
    frontier = {(name, 0): 20, (name, 1): 3}
    logs = Logs((sample,), starts, cluster.retention([name]))
    logs = Logs(logs.samples, starts, logs.retention, date_frontier(cluster, logs, frontier, now))
    late, current = partition_lags(logs, frontier, now)
    assert (late.offsets, current.offsets, current.seconds) == (100, 0, 0.0)
    assert late.seconds == pytest.approx(6_000, rel=0.05)
    assert late.headroom_seconds == pytest.approx(7 * 86_400 - 6_000, rel=0.01)


def test_the_frontier_is_seen_as_the_offsets_of_a_group(cluster: Cluster, bootstrap: str, topic: MakeTopic) -> None:
    name, group = topic(2), f"shown-{time.time_ns()}"
    write(bootstrap, name, [datetime.now(UTC)] * 5, partition=1)
    cluster.mirror(group, {(name, 0): 0, (name, 1): 3})
    cluster.mirror(group, {(name, 0): 0, (name, 1): 5})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        offsets = consumer.committed([TopicPartition(name, partition) for partition in (0, 1)], timeout=60)
        assert [tp.offset for tp in offsets] == [0, 5]
    finally:
        consumer.close()


def test_a_group_that_consumes_takes_no_offsets(cluster: Cluster, bootstrap: str, topic: MakeTopic) -> None:
    name, group = topic(1), f"busy-{time.time_ns()}"
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.subscribe([name])
        deadline = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < deadline
            consumer.poll(0.2)
        with pytest.raises(HeadraceError, match=rf"consumer group '{group}' .*offsets"):
            cluster.mirror(group, {(name, 0): 0})
    finally:
        consumer.close()


@pytest.mark.parametrize("question", ["topics", "sources", "retention", "cleanup", "earliest", "latest", "readable"])
def test_a_topic_that_is_gone_is_no_silent_broker(gone: tuple[Cluster, str], question: str) -> None:
    cluster, name = gone
    about = [(name, 0)] if question in ("earliest", "latest", "readable") else [name]
    began_s = time.monotonic()
    with pytest.raises(TopicMissing, match=f"{name}.* does not exist on .*: it was deleted"):
        getattr(cluster, question)(about)
    assert time.monotonic() - began_s < 30, "it is said, not waited for"
