"""The driver's questions to a real broker: headrace's own client and confluent_kafka get the same answers."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.clients.kafka import Cluster, Topic
from headrace.writer.clients.next_records import next_records
from headrace.writer.core.errors import TopicMissing
from headrace.writer.core.offsets import Source, Span
from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.requests.list_offsets import EARLIEST, LATEST
from tests.support.confluent_answers import ConfluentAnswers
from tests.support.read_commands import write

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
START_MS = 1_700_000_000_000


@pytest.fixture
def cluster(bootstrap: str) -> Cluster:
    return Cluster(bootstrap, timedelta(seconds=30))


@pytest.fixture
def confluent(bootstrap: str) -> ConfluentAnswers:
    return ConfluentAnswers(bootstrap)


def assert_same_offsets(cluster: Cluster, confluent: ConfluentAnswers, sources: Sequence[Source]) -> None:
    """Compare where logs begin and end, and the records at and around the times of this test."""
    for ask, time_ms, committed in (
        (cluster.earliest, EARLIEST, False),
        (cluster.latest, LATEST, False),
        (cluster.readable, LATEST, True),
    ):
        answers = confluent.offsets(dict.fromkeys(sources, time_ms), committed=committed)
        assert ask(sources) == {source: offset for source, (offset, _) in answers.items()}
    ends = cluster.latest(sources)
    for time_ms in (0, START_MS - 1, START_MS, START_MS + 7, START_MS + 10_000, START_MS + 10**9):
        answers = confluent.offsets(dict.fromkeys(sources, time_ms))
        assert cluster.first_records(dict.fromkeys(sources, time_ms)) == answers
        at_instant = {source: ends[source] if offset < 0 else offset for source, (offset, _) in answers.items()}
        assert cluster.offsets_at(datetime.fromtimestamp(time_ms / 1000, UTC), sources) == at_instant


def transact(bootstrap: str, topic: str, values: int, end: str) -> Producer:
    """Write to partition 0 in a transaction, and end it, or leave it open."""
    name = f"{topic}-{end}-{random.random()}"
    messages = [(0, None, b"v", START_MS + index) for index in range(values)]
    producer = write(bootstrap, topic, messages, **{"transactional.id": name})
    if end == "commit":
        producer.commit_transaction(30)
    if end == "abort":
        producer.abort_transaction(30)
    return producer


def test_offsets_of_a_log_with_committed_aborted_and_open_transactions(
    cluster: Cluster, confluent: ConfluentAnswers, bootstrap: str, topic: MakeTopic
) -> None:
    name = topic(3)
    write(bootstrap, name, [(1, None, b"v", START_MS + index) for index in range(20)])
    for end in ("commit", "abort", "commit"):
        transact(bootstrap, name, 5, end)
    still_open = transact(bootstrap, name, 5, "open")
    write(bootstrap, name, [(0, None, b"v", START_MS + 20_000)])
    sources = cluster.sources([name])
    assert sources == [(name, 0), (name, 1), (name, 2)]
    assert_same_offsets(cluster, confluent, sources)
    assert (cluster.readable(sources)[name, 0], cluster.latest(sources)[name, 0]) == (18, 24)
    spans = [(start, end) for start in range(18) for end in (start + 1, start + 7)]
    records = assert_same_next_records(bootstrap, (name, 0), spans)
    assert set(records) == {None, *range(5), *range(12, 17)}
    still_open.abort_transaction(30)


@pytest.fixture(scope="module")
def compacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose cleaner does not wait 15 s."""
    with Broker(tmp_path_factory.mktemp("compacting"), overrides={"log.cleaner.backoff.ms": "50"}) as broker:
        yield broker.bootstrap


def assert_same_next_records(bootstrap: str, source: Source, spans: Sequence[Span]) -> list[int | None]:
    """Compare the first records of spans. Returns them."""
    address = ClusterAddress(addresses(bootstrap))
    answers = next_records(address, timedelta(seconds=30), [(source, span) for span in spans])
    confluent = ConfluentAnswers(bootstrap)
    assert answers == {(source, span): confluent.next_record(source, span) for span in spans}
    return list(answers.values())


def test_offsets_of_a_log_that_was_compacted(compacting: str) -> None:
    source = ("compacted", 0)
    settings = {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "1048576", "max.compaction.lag.ms": "100",
    }  # fmt: skip
    admin = AdminClient({"bootstrap.servers": compacting})
    admin.create_topics([NewTopic("compacted", 1, 1, config=settings)])["compacted"].result(30)
    write(compacting, "compacted", [(0, b"%d" % (index % 3), b"v", START_MS + index) for index in range(300)])
    confluent = ConfluentAnswers(compacting)
    deadline_s = time.monotonic() + 60
    time_ms = START_MS
    while confluent.next_record(source, (0, 300)) == 0:
        assert time.monotonic() < deadline_s
        # A new segment.
        time_ms += 1_000
        write(compacting, "compacted", [(0, b"last", b"", time_ms)])
        time.sleep(0.2)
    assert_same_offsets(Cluster(compacting, timedelta(seconds=30)), confluent, [source])
    spans = [(start, start + size) for start in (0, 1, 150, 296, 297, 298, 299) for size in (1, 10, 400)]
    assert {None, 297} <= set(assert_same_next_records(compacting, source, spans))


def test_offsets_of_a_log_whose_first_records_were_deleted(
    cluster: Cluster, confluent: ConfluentAnswers, bootstrap: str, topic: MakeTopic
) -> None:
    name = topic(1)
    write(bootstrap, name, [(0, None, b"v", START_MS + index) for index in range(50)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.delete_records([TopicPartition(name, 0, 20)]).values():
        future.result(30)
    assert cluster.earliest([(name, 0)]) == {(name, 0): 20}
    assert_same_offsets(cluster, confluent, [(name, 0)])
    spans = [(0, 20), (0, 21), (5, 50), (49, 60), (50, 60)]
    assert assert_same_next_records(bootstrap, (name, 0), spans) == [None, 20, 20, 49, None]


def test_a_topic_of_a_thousand_partitions(
    cluster: Cluster, confluent: ConfluentAnswers, bootstrap: str, topic: MakeTopic
) -> None:
    name = topic(1_000)
    sources = cluster.sources([name])
    assert sources == [(name, partition) for partition in range(1_000)]
    producer = Producer({"bootstrap.servers": bootstrap})
    for partition in range(0, 1_000, 3):
        producer.produce(name, b"v", partition=partition, timestamp=START_MS)
    assert producer.flush(120) == 0
    assert_same_offsets(cluster, confluent, sources)
    assert sum(cluster.latest(sources).values()) == 334
    group = f"group-{name}"
    cluster.mirror(group, {source: source[1] for source in sources})
    assert cluster.committed_offsets(group, sources) == confluent.group_offsets(group, sources)
    assert cluster.committed_offsets(group, sources) == {source: source[1] for source in sources}


def test_ids_and_partitions_of_topics_and_of_one_that_is_created_anew(
    cluster: Cluster, confluent: ConfluentAnswers, bootstrap: str, topic: MakeTopic
) -> None:
    name, other = topic(3), topic(2)
    write(bootstrap, name, [(0, None, b"v", START_MS)] * 9)
    before = cluster.topics([other, name])
    assert list(before) == [other, name]
    assert before == {key: Topic(key, *answer) for key, answer in confluent.topics([name, other]).items()}
    assert {name, other} <= set(cluster.topic_names())
    assert cluster.latest([(name, 2), (name, 0)]) == {(name, 2): 0, (name, 0): 9}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(timeout=60)
    with pytest.raises(TopicMissing, match=f"{name}.* does not exist"):
        cluster.topics([other, name])
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(timeout=60)
    deadline_s = time.monotonic() + 30
    # A broker hears of it a moment later.
    while name not in cluster.topic_names():
        assert time.monotonic() < deadline_s
    after = cluster.topics([name])
    assert after == {name: Topic(name, *confluent.topics([name])[name])}
    assert after[name].id != before[name].id
    assert cluster.latest([(name, 0)]) == {(name, 0): 0}, "of the log of today"
    with pytest.raises(TopicMissing, match=f"^{name}/2 does not exist"):
        cluster.latest([(name, 0), (name, 2)])


def test_settings_of_topics(cluster: Cluster, confluent: ConfluentAnswers, topic: MakeTopic) -> None:
    names = [topic(1), topic(1, **{"cleanup.policy": "compact,delete", "retention.ms": "12345678"})]
    settings = confluent.settings(names)
    assert cluster.cleanup(names) == {name: settings[name]["cleanup.policy"] for name in names}
    kept_ms = {name: int(settings[name]["retention.ms"]) for name in names}
    expected = {name: timedelta(milliseconds=ms) if ms >= 0 else None for name, ms in kept_ms.items()}
    assert cluster.retention(names) == expected


def test_offsets_of_groups(cluster: Cluster, confluent: ConfluentAnswers, topic: MakeTopic) -> None:
    name = topic(4)
    group = f"group-{name}"
    sources = cluster.sources([name])
    assert cluster.committed_offsets(group, sources) == confluent.group_offsets(group, sources) == {}
    cluster.mirror(group, {(name, 0): 7, (name, 3): 0})
    cluster.mirror(group, {(name, 0): 8})
    asked = [*sources, (name, 9)]
    assert cluster.committed_offsets(group, asked) == confluent.group_offsets(group, asked)
    assert cluster.committed_offsets(group, sources) == {(name, 0): 8, (name, 3): 0}


def test_threads_ask_one_cluster_at_once(cluster: Cluster, bootstrap: str, topic: MakeTopic) -> None:
    name = topic(50)
    write(bootstrap, name, [(partition, None, b"v", START_MS) for partition in range(50)])
    sources = cluster.sources([name])
    answers = list[dict[Source, int]]()

    def ask() -> None:
        answers.extend(cluster.latest(sources) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [dict.fromkeys(sources, 1)] * 160
