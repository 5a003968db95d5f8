"""Marks of a real broker's logs: what changes a log without cutting it is no alarm, and what cuts it is one."""

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicCollection, TopicPartition as Where
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace.writer.clients.native_kafka import topic_ids
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.demo.devstack.stack import Broker
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.log_marks import LogMarks
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.offsets.log_check import CommittedPart, Judgement, LogCheck
from headrace.writer.offsets.log_continuity import Continues, Diverges, Unproven
from headrace.writer.offsets.start_decision import LogRange

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
T = TypeVar("T")
LIMITS = ReadLimits(fetch_wait_ms=50, retry_timeout_s=30)
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": "1048576",
    "max.compaction.lag.ms": "100", "delete.retention.ms": "100",
}  # fmt: skip


class Log:
    """A topic of one partition on a broker of its own, and where a table would have come in it."""

    def __init__(self, broker: Broker, **settings: str) -> None:
        self.broker, self.topic = broker, f"events-{uuid4().hex[:6]}"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(self.topic, 1, 1, config=settings)])[self.topic].result(60)
        self._id = _within_a_minute(lambda: _id_of(admin, self.topic))
        self.ids: Mapping[str, UUID] = topic_ids({self.topic: self._id})
        self.frontier, self.mark = 0, LogMark(-1, 0)

    @property
    def marks(self) -> LogMarks:
        return LogMarks(ClusterAddress(addresses(self.broker.bootstrap), timeout_s=20), LIMITS)

    def send(self, count: int, word: str = "x", **settings: object) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap, "linger.ms": 5, **settings})
        for offset in range(count):
            producer.produce(self.topic, f"{word} {offset}".encode(), key=b"%d" % (offset % 7), partition=0)
        assert producer.flush(60) == 0

    @property
    def held(self) -> LogRange:
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "test"})
        try:
            low, high = consumer.get_watermark_offsets(Where(self.topic, 0), timeout=60)
        finally:
            consumer.close()
        return LogRange(low, high)

    def commit(self, back: int = 0) -> None:
        """Read on as a task does, up to some offsets before the end."""
        start = self.frontier
        end = _within_a_minute(lambda: max(0, self.held.end - back - start)) + start  # a marker comes a little later
        with self.marks.address.open() as cluster:
            wanted = [OffsetRange(TopicPartition(self.topic, 1, 0), start, end)]
            reader = RangeReader(cluster, wanted, topic_ids=self.ids, limits=LIMITS, with_before=True)
            for _ in reader:
                pass
        (evidence,) = reader.evidence
        assert evidence.last is not None
        if start:
            assert evidence.before is not None
            assert evidence.before.continues(self.mark), "the reader itself sees the same log"
        assert self.marks.marks_before({(self.topic, 0): end}, self.ids) == {(self.topic, 0): evidence.last}
        self.frontier, self.mark = end, LogMark(*evidence.last[:2])

    def read(self, limits: ReadLimits) -> int:
        """Read all of it. Returns the number of records."""
        with self.marks.address.open() as cluster:
            wanted = [OffsetRange(TopicPartition(self.topic, 1, 0), 0, self.held.end)]
            reader = RangeReader(cluster, wanted, topic_ids=self.ids, limits=limits, with_before=True)
            return sum(batch.num_rows for batch in reader)

    def judge(self) -> Judgement:
        part = CommittedPart(TopicPartition(self.topic, 1, 0), self.frontier, self.mark, self.held)
        return LogCheck("events", self.marks, list).judge([part], {self.topic: self._id})[part.part]


def _id_of(admin: AdminClient, topic: str) -> str:
    """Return the id of a topic; empty where the broker does not know it yet."""
    with suppress(KafkaException):
        return str(admin.describe_topics(TopicCollection([topic]))[topic].result(60).topic_id)
    return ""


def _within_a_minute(look: Callable[[], T]) -> T:
    """Look until there is something."""
    deadline_s = time.monotonic() + 60
    while not (marks := look()):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    return marks


class Site:
    """A broker with a folder that can be copied and put back."""

    def __init__(self, folder: Path) -> None:
        self.data, self.copy = folder / "kafka" / "data", folder / "copy"
        self.broker = Broker(folder / "kafka", overrides={"log.cleaner.backoff.ms": "50"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("broker"))
    with made.broker:
        yield made


def test_an_event_that_leaves_a_log_whole_is_not_taken_for_a_cut(site: Site) -> None:
    log = Log(site.broker)
    log.send(500)
    log.commit(back=3)
    assert log.judge() == Continues()
    log.commit()
    assert log.judge() == Continues(), "an idle topic"
    site.broker.stop()
    site.broker.start()
    assert log.judge() == Continues(), "another leader's epoch"
    log.send(500, **{"compression.type": "zstd"})
    log.commit()
    log.send(100)
    assert log.judge() == Continues(), "records of a newer epoch"
    assert log.read(ReadLimits(fetch_bytes=2_000, rows=50)) == log.held.end, "in many answers, over two epochs"
    admin = AdminClient({"bootstrap.servers": site.broker.bootstrap})
    admin.create_partitions([NewPartitions(log.topic, 3)])[log.topic].result(60)
    assert log.judge() == Continues(), "more partitions"
    admin.delete_records([Where(log.topic, 0, log.frontier - 1)])[Where(log.topic, 0)].result(60)
    assert log.judge() == Continues(), "retention up to the last record"
    admin.delete_records([Where(log.topic, 0, log.frontier)])[Where(log.topic, 0)].result(60)
    assert log.judge() == Unproven("Kafka no longer holds the record before the frontier")
    admin.delete_records([Where(log.topic, 0, log.frontier + 50)])[Where(log.topic, 0)].result(60)
    assert isinstance(log.judge(), Unproven)


def test_transactions_and_their_markers_are_batches_like_others(site: Site) -> None:
    log = Log(site.broker)
    producer = Producer({"bootstrap.servers": site.broker.bootstrap, "transactional.id": log.topic, "linger.ms": 1})
    producer.init_transactions(60)
    for commits in (True, False, True, False):
        producer.begin_transaction()
        for offset in range(20):
            producer.produce(log.topic, b"%d" % offset, partition=0)
        producer.flush(30)
        _ = producer.commit_transaction(30) if commits else producer.abort_transaction(30)
        log.commit()
        assert log.judge() == Continues()
    assert log.judge() == Continues()


def test_a_compacted_log_is_the_same_and_a_hole_is_not_known(site: Site) -> None:
    log = Log(site.broker, **COMPACTED)
    seen = list[type]()
    for number in range(4):
        log.send(300, word=f"round {number}")
        log.commit(back=number)
        assert log.judge() == Continues()
    first = log.frontier
    deadline_s = time.monotonic() + 60
    while log.marks.marks_before({(log.topic, 0): first}, log.ids).get((log.topic, 0)) == log.mark:
        log.send(50, word="later")  # closes the segment, so that it is compacted
        judgement = log.judge()
        assert not isinstance(judgement, Diverges)
        seen.append(type(judgement))
        assert time.monotonic() < deadline_s, seen
        time.sleep(0.3)
    judgement = log.judge()
    assert judgement in (Continues(), Unproven("compaction removed the record before the frontier"))


@pytest.mark.parametrize("settings", [{}, COMPACTED])
def test_a_volume_that_was_restored_is_another_log_behind_the_copy(tmp_path: Path, settings: Mapping[str, str]) -> None:
    site = Site(tmp_path)
    with site.broker:
        log, untouched = Log(site.broker, **settings), Log(site.broker)
        untouched.send(300)
        untouched.commit()
        log.send(800)
        log.commit()
        before = (log.frontier, log.mark)
        site.broker.stop()
        shutil.copytree(site.data, site.copy)
        site.broker.start()
        log.send(200, word="lost")
        log.commit()
        site.broker.stop()
        shutil.rmtree(site.data)
        shutil.copytree(site.copy, site.data)
        site.broker.start()
        short = log.judge()
        assert isinstance(short, Diverges), "the log ends before the table"
        log.send(700, word="others")
        assert isinstance(log.judge(), Diverges)
        assert untouched.judge() == Continues()
        log.frontier, log.mark = before
        assert not isinstance(log.judge(), Diverges), "what the copy has is as it was"
