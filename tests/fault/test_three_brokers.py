"""Three real brokers change while they are read: in the middle of a range, and under a running writer."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.requests.list_offsets import EARLIEST, LATEST
from tests.servers.three_brokers import ThreeBrokers, three_brokers
from tests.support import oracle
from tests.support.confluent_answers import ConfluentAnswers
from tests.support.writer_process import NOW, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
RECORDS, RECORD_BYTES = 4_000, 1_000
IN_PIECES = ReadLimits(rows=200, fetch_bytes=100_000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeBrokers]:
    with three_brokers(tmp_path_factory.mktemp("brokers")) as brokers:
        yield brokers


def create_filled_topic(cluster: ThreeBrokers, *replicas: int) -> str:
    """Create a topic of one partition, and fill it."""
    topic = f"events-{uuid4().hex[:6]}"
    cluster.create(topic, [replicas])
    producer = Producer({  # one that keeps the order when it tries again
        "bootstrap.servers": cluster.bootstrap, "batch.size": 50_000, "linger.ms": 20, "enable.idempotence": True,
    })  # fmt: skip
    for at in range(RECORDS):
        producer.produce(topic, at.to_bytes(RECORD_BYTES, "big"), partition=0)
    assert producer.flush(60) == 0
    return topic


Read = Callable[..., None]


@pytest.fixture
def read_and_record(cluster: ThreeBrokers, record: Callable[..., None]) -> Read:
    """Read all of a topic, and put it down."""

    def whole(
        fault: str, topic: str, amid: Callable[[RangeReader], None], limits: ReadLimits = IN_PIECES, **how: str
    ) -> None:
        values = read_all(cluster, topic, amid, limits, **how)
        lost, twice = RECORDS - len(set(values)), len(values) - len(set(values))
        record(
            fault=fault, moment="while a task reads a range", on="native reader, three brokers", times=1, seen_twice=0,
            records=RECORDS, lost=lost, twice=twice,
        )  # fmt: skip

    return whole


def read_all(
    cluster: ThreeBrokers, topic: str, amid: Callable[[RangeReader], None], limits: ReadLimits, **how: str
) -> list[int]:
    """Read all of a topic; `amid` is called once a quarter of it has come. Asserts that each record came once."""
    values, called = list[int](), False
    address = ClusterAddress(addresses(cluster.bootstrap), timeout_s=10, **how)  # type: ignore[arg-type]
    with address.open() as opened:
        reader = RangeReader(
            opened, [OffsetRange(TopicPartition(topic, 1, 0), 0, RECORDS)], limits=limits, rack=address.rack
        )
        for batch in reader:
            values += [int.from_bytes(value.as_py(), "big") for value in batch.column("value")]
            if not called and len(values) >= RECORDS // 4:
                called = True
                amid(reader)
    assert values == list(range(RECORDS))
    assert called
    assert reader.evidence[0].records == RECORDS
    return values


def test_a_partition_that_moves_to_another_broker_is_followed(cluster: ThreeBrokers, read_and_record: Read) -> None:
    topic = create_filled_topic(cluster, 2)
    read_and_record("a partition is reassigned", topic, lambda _: cluster.reassign(topic, 0, [3]))
    assert cluster.leader(topic) == 3


def test_a_leader_that_stops_or_is_killed_is_replaced_and_one_that_comes_back_is_read(
    cluster: ThreeBrokers, read_and_record: Read
) -> None:
    stopped, killed = create_filled_topic(cluster, 2, 3), create_filled_topic(cluster, 3, 2)
    read_and_record("the leader changes", stopped, lambda _: cluster.brokers[1].stop())
    assert cluster.leader(stopped) == 3
    cluster.brokers[1].start()
    deadline = time.monotonic() + 60
    while cluster.in_sync(killed) != {2, 3}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    read_and_record("a broker is killed", killed, lambda _: cluster.kill(3))
    assert cluster.leader(killed) == 2
    cluster.brokers[2].start()


def test_the_only_replica_is_waited_for(cluster: ThreeBrokers, read_and_record: Read) -> None:
    topic = create_filled_topic(cluster, 3)

    def restart(_: RangeReader) -> None:
        cluster.kill(3)
        cluster.brokers[2].launch()  # it answers some seconds later

    read_and_record("the broker restarts", topic, restart)


def test_a_quota_slows_the_reader_down_and_fails_it_not(cluster: ThreeBrokers, read_and_record: Read) -> None:
    topic, limits = create_filled_topic(cluster, 2), ReadLimits(rows=200, fetch_bytes=100_000, retry_timeout_s=1)
    cluster.throttle("slow-team", 350_000)  # over ten seconds: the last half of a megabyte is held back
    began_s = time.monotonic()
    read_and_record("a quota throttles the reader", topic, lambda _: None, limits, client_id="slow-team")
    assert time.monotonic() - began_s > 1, "the quota goes by the client id, and holds"
    cluster.throttle("slow-team", None)


def test_a_replica_in_the_reader_s_rack_is_read_until_it_is_gone(cluster: ThreeBrokers, read_and_record: Read) -> None:
    topic = create_filled_topic(cluster, 2, 3)
    asked = list[int | None]()

    def end(reader: RangeReader) -> None:
        asked.append(reader._positions[0].replica)
        cluster.kill(3)

    read_and_record("a replica in the reader's rack is killed", topic, end, rack="3")
    assert asked == [3]
    cluster.brokers[2].start()


def test_questions_follow_leaders_and_coordinators_and_get_the_answers_of_confluent_kafka(
    cluster: ThreeBrokers, topic_of_three: str
) -> None:
    asked = Cluster(cluster.bootstrap, timedelta(seconds=30))
    confluent = ConfluentAnswers(cluster.bootstrap)
    sources = asked.sources([topic_of_three])

    def ask() -> None:
        assert asked.latest(sources) == asked.readable(sources) == dict.fromkeys(sources, 40)
        assert asked.earliest(sources) == dict.fromkeys(sources, 0)

    def compare() -> None:
        ask()
        # Groups have different coordinators.
        for number in range(6):
            group = f"group-{number}-{uuid4().hex[:6]}"
            asked.mirror(group, dict.fromkeys(sources, number))
            assert asked.committed_offsets(group, sources) == confluent.group_offsets(group, sources)
            assert asked.committed_offsets(group, sources) == dict.fromkeys(sources, number)
        for time_ms, offsets in ((LATEST, asked.latest(sources)), (EARLIEST, asked.earliest(sources))):
            answers = confluent.offsets(dict.fromkeys(sources, time_ms))
            assert offsets == {source: offset for source, (offset, _) in answers.items()}

    assert asked.brokers() == 3
    compare()
    cluster.reassign(topic_of_three, 0, [1, 3])
    compare()
    cluster.kill(3)
    # Others lead within the deadline what it led. Confluent's client waits for it in vain.
    ask()
    cluster.brokers[2].start()
    compare()
    topic = asked.topics([topic_of_three])[topic_of_three]
    assert (topic.id, topic.partitions) == confluent.topics([topic_of_three])[topic_of_three]


@pytest.fixture
def topic_of_three(cluster: ThreeBrokers) -> str:
    """A topic whose partitions have different leaders, with 40 records each."""
    topic = f"events-{uuid4().hex[:6]}"
    cluster.create(topic, [[2, 3], [3, 2], [1, 2]])
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(120):
        producer.produce(topic, b"v", partition=number % 3)
    assert producer.flush(60) == 0
    return topic


def test_a_leader_that_is_silent_while_others_answer_is_named_and_no_offset_is_made_up(cluster: ThreeBrokers) -> None:
    topic = create_filled_topic(cluster, 3)
    sources = [(create_filled_topic(cluster, 2), 0), (topic, 0)]
    asked, third = Cluster(cluster.bootstrap, timedelta(seconds=5)), cluster.brokers[2]
    assert asked.latest(sources) == dict.fromkeys(sources, RECORDS)
    assert third.pid is not None
    os.kill(third.pid, signal.SIGSTOP)
    try:
        # Some seconds later the cluster knows that it is silent, and names no leader any more.
        silence = rf"^(the leader of|broker 3 at {third.bootstrap}, which leads) {topic}/0,? does not answer within 5 s"
        for question in (asked.latest, asked.earliest, asked.readable, lambda parts: asked.offsets_at(NOW, parts)):
            with pytest.raises(BrokerUnreachable, match=silence):
                question(sources)
        assert set(asked.topics([topic])) == {topic}, "what any broker can answer is answered"
        assert asked.latest(sources[:1]) == {sources[0]: RECORDS}, "who asks nothing of it gets an answer"
    finally:
        os.kill(third.pid, signal.SIGCONT)
    # The cluster takes it for one that is gone, for some seconds more.
    deadline = time.monotonic() + 60
    while cluster.leader(topic) != 3:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_partition_without_a_leader_is_named(cluster: ThreeBrokers) -> None:
    topic = create_filled_topic(cluster, 3)
    asked = Cluster(cluster.bootstrap, timedelta(seconds=3))
    cluster.kill(3)
    deadline = time.monotonic() + 30
    while cluster.leader(topic) >= 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    with pytest.raises(BrokerUnreachable, match=rf"^the leader of {topic}/0 does not answer within 3 s, while others"):
        asked.latest([(topic, 0)])
    cluster.brokers[2].start()


@pytest.mark.parametrize("reader", ["native", "spark"])
def test_a_writer_on_three_brokers_loses_nothing_and_writes_nothing_twice(
    cluster: ThreeBrokers, tmp_path: Path, registry_url: str, record: Callable[..., None], reader: str
) -> None:
    topic = f"clicks-{reader}"
    cluster.create(topic, [[2, 3], [3, 2]])
    kafka = {
        "bootstrap_servers": cluster.bootstrap, "reader": reader,
        "options": {"client.id": topic},
    }  # fmt: skip
    site = Site(tmp_path, cluster.bootstrap, registry_url, overrides={"kafka": kafka})
    lake = site.pipeline("events", [topic], commit={"max_delay": "2 s", "max_offsets": 2_000})
    before, sent = oracle.tally.copy(), site.fill(topic, 20_000)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    steps: list[Callable[[], None]] = [
        lambda: cluster.reassign(topic, 0, [1, 3]), lambda: cluster.kill(3), cluster.brokers[2].start,
        lambda: cluster.throttle(topic, 100_000), lambda: cluster.reassign(topic, 1, [1, 2]),
        lambda: cluster.throttle(topic, None),
    ]  # fmt: skip
    for number, step in enumerate(steps):
        step()
        sent += site.fill(topic, 5_000, seed=20 + number)
        oracle.check_rows(lake, "events")
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == sent)
    output = writer.stop()
    assert "gap_recorded" not in output
    assert "log_cut" not in output
    oracle.check(lake, "events", site.ends(topic))
    tally = oracle.tally.since(before)
    record(
        fault="partitions are reassigned, a broker is killed, a quota throttles", moment="while a writer runs",
        on=f"Spark, {reader} reader, three brokers", times=len(steps), seen_twice=tally.seen_twice,
        records=tally.records, lost=tally.lost, twice=tally.twice,
    )  # fmt: skip
