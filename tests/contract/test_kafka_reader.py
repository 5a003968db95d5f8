"""The native reader against confluent_kafka on a real broker: the same records, whatever the log is like."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition as Where
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.config.sections.kafka_client import Security as Configured
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.errors import AccessDenied, LostRecords, TopicGone, Unavailable
from headrace.writer.kafka_reader.log_marks import LogMarks
from headrace.writer.kafka_reader.reader import RangeEvidence, RangeReader, ReadLimits
from headrace.writer.kafka_reader.record_batches import MissingReason
from headrace.writer.kafka_reader.requests.fetch import PartitionQuestion
from headrace.writer.kafka_reader.security import Security
from tests.servers.secured import PLAIN_PASSWORD, PLAIN_USER, Authority, SecuredBroker, broker

pytestmark = pytest.mark.slow
ALL = ColumnChoice(headers=True, timestamp_type=True)
SMALL = ReadLimits(fetch_bytes=2_000, rows=100)
USER, PASSWORD = "head,race=", 'pass"word,=\\1'
START_MS = 1_700_000_000_000
Row = tuple[Any, ...]
MakeTopic = Callable[..., str]


def send(bootstrap: str, topic: str, records: Sequence[Mapping[str, Any]], **settings: object) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 500, **settings})
    for index, record in enumerate(records):
        producer.produce(topic, **{"partition": 0, "timestamp": START_MS + index, **record})
    assert producer.flush(30) == 0


def mixed(
    count: int, *, keys: float = 0.5, nulls: float = 0.1, headers: float = 0.3, size: int = 60
) -> list[dict[str, Any]]:
    draw, records = random.Random(count), list[dict[str, Any]]()
    for _ in range(count):
        record: dict[str, Any] = {"value": None if draw.random() < nulls else draw.randbytes(draw.randrange(size))}
        if draw.random() < keys:
            record["key"] = draw.randbytes(draw.choice([0, 1, 12, 13, 40]))
        if draw.random() < headers:
            record["headers"] = [("a", b"x" * draw.randrange(30)), ("é", None), ("a", b"")][: draw.randint(1, 3)]
        record["timestamp"] = START_MS + draw.randrange(-(10**9), 10**9)
        records.append(record)
    return records


def theirs(bootstrap: str, topic: str, start: int, end: int) -> list[Row]:
    """What librdkafka reads of partition 0."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": "test", "enable.auto.commit": False, "check.crcs": True,
        "isolation.level": "read_committed", "enable.partition.eof": True, "fetch.wait.max.ms": 20,
    })  # fmt: skip
    consumer.assign([Where(topic, 0, start)])
    rows, is_over = list[Row](), False
    while not is_over:
        for message in consumer.consume(500, 0.1):
            if (error := message.error()) is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                is_over = True
            elif message.offset() >= end:
                is_over = True
            else:
                kind, at_ms = message.timestamp()
                headers = [{"key": key, "value": value} for key, value in message.headers() or []] or None
                rows.append((message.offset(), at_ms, kind - 1, message.key(), message.value(), headers))
    consumer.close()
    return rows


def ours(
    bootstrap: str, topic: str, start: int, end: int, limits: ReadLimits | None = None, **how: Any
) -> tuple[list[Row], RangeEvidence]:
    with ClusterAddress(addresses(bootstrap), **how).open() as cluster:
        reader = RangeReader(cluster, [part(topic, 0, start, end)], ALL, limits=limits)
        rows = [row for batch in reader for row in plain(batch)]
    assert reader.evidence[0].is_complete
    assert reader.evidence[0].records == len(rows)
    return rows, reader.evidence[0]


def plain(batch: pa.RecordBatch) -> list[Row]:
    batch.validate(full=True)
    assert batch.schema == ALL.schema
    at_ms = batch.column("timestamp").cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    columns = [at_ms if name == "timestamp" else batch.column(name) for name in NAMES]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


NAMES = ("offset", "timestamp", "timestampType", "key", "value", "headers")


def part(topic: str, partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(TopicPartition(topic, 1, partition), start, end)


def end_of(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test"})
    end: int = consumer.get_watermark_offsets(Where(topic, 0), timeout=60)[1]
    consumer.close()
    return end


def same(bootstrap: str, topic: str, limits: ReadLimits | None = None) -> RangeEvidence:
    """Compare all of a log, and a part of it. Returns the evidence of all of it."""
    end = end_of(bootstrap, topic)
    everything = theirs(bootstrap, topic, 0, end)
    records, evidence = ours(bootstrap, topic, 0, end, limits)
    assert records == everything
    low, high = end // 3 + 1, end - end // 5
    assert ours(bootstrap, topic, low, high, limits)[0] == [row for row in everything if low <= row[0] < high]
    return evidence


@dataclass(frozen=True)
class Own:
    """A broker of this module's own: with TLS and logins, and a cleaner that does not wait 15 s."""

    broker: SecuredBroker
    authority: Authority


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Own]:
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder / "certificates")
    with broker(folder / "broker", authority, USER, PASSWORD, {"log.cleaner.backoff.ms": "50"}) as running:
        yield Own(running, authority)


def created(bootstrap: str, name: str, config: Mapping[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=dict(config))])[name].result(30)


def test_each_codec_by_librdkafka_and_by_the_broker(bootstrap: str, topic: MakeTopic) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        name = topic(prefix=codec)
        send(bootstrap, name, mixed(2_000), **{"compression.type": codec})
        evidence = same(bootstrap, name)
        assert evidence.by_topic_id
        assert evidence.records == 2_000
        if codec != "none":  # in Java
            recompressed = topic(prefix=f"broker-{codec}", **{"compression.type": codec})
            send(bootstrap, recompressed, mixed(500))
            same(bootstrap, recompressed)


def test_keys_and_headers_of_all_or_none_and_small_answers(bootstrap: str, topic: MakeTopic) -> None:
    for keys, headers in ((0.0, 0.0), (1.0, 1.0)):
        name = topic()
        send(bootstrap, name, mixed(1_000, keys=keys, headers=headers, nulls=0), **{"compression.type": "lz4"})
        same(bootstrap, name)
    same(bootstrap, name, SMALL)
    same(bootstrap, name, ReadLimits(fetch_bytes=1, rows=1))


def test_records_larger_than_an_answer(bootstrap: str, topic: MakeTopic) -> None:
    name = topic()
    send(bootstrap, name, mixed(15, size=900_000), **{"compression.type": "zstd"})
    same(bootstrap, name, ReadLimits(fetch_bytes=100_000))


def test_the_broker_s_time(bootstrap: str, topic: MakeTopic) -> None:
    name = topic(**{"message.timestamp.type": "LogAppendTime"})
    send(bootstrap, name, mixed(500))
    same(bootstrap, name)


def test_interleaved_transactions_some_aborted(bootstrap: str, topic: MakeTopic) -> None:
    name = topic()
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": name + at, "linger.ms": 1}) for at in "ab"
    ]
    for producer in producers:
        producer.init_transactions(30)
    draw = random.Random(7)
    for _ in range(6):
        for producer in producers:
            producer.begin_transaction()
        for _ in range(2):
            for producer in producers:
                for number in range(draw.randrange(1, 50)):
                    producer.produce(name, b"%d" % number, partition=0)
                producer.flush(10)
        for producer in draw.sample(producers, 2):
            producer.commit_transaction(20) if draw.random() < 0.6 else producer.abort_transaction(20)
    for limits in (None, SMALL):
        evidence = same(bootstrap, name, limits)
        assert evidence.missing[MissingReason.CONTROL] == 12
        assert evidence.missing[MissingReason.ABORTED] > 0
        assert evidence.missing[MissingReason.COMPACTED] == 0


def test_a_compacted_log_and_ranges_where_nothing_is_left(own: Own) -> None:
    bootstrap, name = own.broker.bootstrap, "compacted"
    created(bootstrap, name, {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "1048576", "max.compaction.lag.ms": "100",
    })  # fmt: skip
    send(bootstrap, name, [{"key": b"%d" % (offset % 50), "value": b"v" * 100} for offset in range(5_000)])
    deadline = time.monotonic() + 60
    while len(theirs(bootstrap, name, 0, 5_000)) > 2_000:
        assert time.monotonic() < deadline
        send(bootstrap, name, [{"key": b"last", "value": b""}])  # a new segment
        time.sleep(0.2)
    evidence = same(bootstrap, name)
    assert evidence.missing[MissingReason.COMPACTED] > 1_000
    rows, evidence = ours(bootstrap, name, 10, 20)
    assert rows == []
    assert evidence.missing[MissingReason.COMPACTED] == 10
    same(bootstrap, name, SMALL)


def test_a_log_that_begins_later_and_a_range_beyond_its_end(bootstrap: str, topic: MakeTopic) -> None:
    name = topic()
    send(bootstrap, name, mixed(300))
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its futures fail once it is collected
    for future in admin.delete_records([Where(name, 0, 200)]).values():
        future.result(30)
    with pytest.raises(LostRecords, match=rf"{name}/0 at offset 100 of \[100, 300\): the log does not hold it") as lost:
        ours(bootstrap, name, 100, 300)
    assert (lost.value.topic, lost.value.partition, lost.value.offset) == (name, 0, 100)
    assert ours(bootstrap, name, 200, 300)[0] == theirs(bootstrap, name, 200, 300)
    with pytest.raises(LostRecords, match=rf"{name}/0 at offset 400"):
        ours(bootstrap, name, 400, 500)
    quick = ReadLimits(retry_timeout_s=0.5, fetch_wait_ms=50)
    with pytest.raises(Unavailable, match=rf"{name}/0 at offset 300 of \[250, 310\): brokers gave nothing"):
        ours(bootstrap, name, 250, 310, quick)


def test_a_topic_that_is_absent_or_another_incarnation(bootstrap: str, topic: MakeTopic) -> None:
    quick, name = ReadLimits(retry_timeout_s=0.5), topic()
    with pytest.raises(TopicGone, match=r"no-such-topic/0 at offset 0.*UNKNOWN_TOPIC_OR_PARTITION"):
        ours(bootstrap, "no-such-topic", 0, 10, quick)
    send(bootstrap, name, mixed(10))
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        real = cluster.ask_leaders([name]).topic_ids[name]
        for topic_id in (UUID(int=7), real):
            reader = RangeReader(cluster, [part(name, 0, 0, 10)], topic_ids={name: topic_id}, limits=quick)
            if topic_id == real:
                assert sum(batch.num_rows for batch in reader) == 10
            else:
                with pytest.raises(TopicGone, match=rf"{name}/0 at offset 0.*incarnation"):
                    list(reader)


def test_the_broker_itself_refuses_another_incarnation(bootstrap: str, topic: MakeTopic) -> None:
    """A topic that is created again between the plan and the request: the id in the request is the proof."""
    name = topic()
    send(bootstrap, name, mixed(10))
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        leaders = cluster.ask_leaders([name])
        foreign = UUID(int=7)
        planned = type(leaders)(leaders.brokers, leaders.leaders, {name: foreign})
        stale = ClusterAddress(addresses(bootstrap)).open(planned)
        leader = leaders.leaders[name, 0]
        question = PartitionQuestion(name, 0, leader.epoch, 0, 1_000)
        response = stale.fetch(leader.node, [question], {name: foreign}, wait_ms=10, bytes_max=1_000, rack="")
        stale.close()
    assert {answer.error for answer in response.partitions.values()} == {100}


def test_many_partitions_in_one_request_and_several_in_one_arrow_batch(bootstrap: str, topic: MakeTopic) -> None:
    first, second = topic(60), topic(40)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for offset in range(4_000):
        name, partition = (first, offset % 60) if offset % 2 else (second, offset % 40)
        producer.produce(name, b"%s-%d" % (name.encode(), offset), partition=partition)
    assert producer.flush(30) == 0
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        ends = {(name, p): 0 for name, count in ((first, 60), (second, 40)) for p in range(count)}
        for offset in range(4_000):
            ends[(first, offset % 60) if offset % 2 else (second, offset % 40)] += 1
        ranges = [part(*source, 0, end) for source, end in ends.items() if end]
        reader = RangeReader(cluster, ranges)
        batches = list(reader)
    assert len(batches) == 1
    columns = [batches[0].column(name).to_pylist() for name in ("topic", "partition", "offset", "value")]
    rows = list(zip(*columns, strict=True))
    assert len(set(rows)) == 4_000
    assert all(value.startswith(name.encode()) for name, *_, value in rows)
    assert {source: sum(row[:2] == source for row in rows) for source in ends} == ends
    assert all(evidence.is_complete and not sum(evidence.missing.values()) for evidence in reader.evidence)


def test_tls_and_each_login(own: Own, tmp_path: Path) -> None:
    created(own.broker.bootstrap, "events", {})
    send(own.broker.bootstrap, "events", mixed(200))
    client = str(own.authority.certificate("client").both)

    def reads(mechanism: str, word: str = PASSWORD, ca: Path = own.authority.ca) -> list[Row]:
        settings = Configured.model_validate({
            "protocol": "sasl_ssl",
            "login": {"type": "scram", "mechanism": mechanism, "user": USER, "password": word},
            "ca_file": str(ca), "client_cert_file": client,
        })  # fmt: skip
        security = settings.native
        assert word not in repr(security)
        return ours(own.broker.secured, "events", 0, 200, security=security)[0]

    expected = theirs(own.broker.bootstrap, "events", 0, 200)
    for mechanism in ("scram-sha-512", "scram-sha-256"):
        assert reads(mechanism) == expected
        with pytest.raises(AccessDenied, match=r"refuses it.*Check kafka.security") as refused:
            reads(mechanism, "another")
        assert "another" not in str(refused.value)
    plain = Configured.model_validate({
        "protocol": "sasl_ssl", "login": {"type": "plain", "user": USER, "password": PASSWORD},
        "ca_file": str(own.authority.ca), "client_cert_file": client,
    })  # fmt: skip
    with pytest.raises(AccessDenied, match=r"does not take PLAIN; it offers SCRAM"):
        ours(own.broker.secured, "events", 0, 200, security=plain.native)
    with pytest.raises(AccessDenied, match=r"not trusted .*kafka.security.ca_file"):
        reads("scram-sha-512", ca=Authority(tmp_path / "others").ca)


def test_plain_logs_in_and_a_wrong_password_is_refused_without_being_shown(own: Own) -> None:
    created(own.broker.bootstrap, "plainly", {})
    send(own.broker.bootstrap, "plainly", mixed(50))

    def reads(word: str) -> list[Row]:
        settings = {
            "protocol": "sasl_plaintext",
            "login": {"type": "plain", "user": PLAIN_USER, "password": word},
        }
        security = Configured.model_validate(settings).native
        return ours(own.broker.plain, "plainly", 0, 50, security=security)[0]

    assert reads(PLAIN_PASSWORD) == theirs(own.broker.bootstrap, "plainly", 0, 50)
    with pytest.raises(AccessDenied, match=r"refuses it.*Check kafka.security") as refused:
        reads("another")
    assert "another" not in str(refused.value)


def test_the_identity_of_a_log_is_asked_over_tls_and_a_login(own: Own) -> None:
    created(own.broker.bootstrap, "marked", {})
    send(own.broker.bootstrap, "marked", mixed(80))
    settings = Configured.model_validate({
        "protocol": "sasl_ssl", "login": {"type": "scram", "user": USER, "password": PASSWORD},
        "ca_file": str(own.authority.ca), "client_cert_file": str(own.authority.certificate("client").both),
    })  # fmt: skip
    source = ("marked", 0)
    mark_by_address = dict[str, tuple[LogMark, int]]()
    for address, security in ((own.broker.bootstrap, Security()), (own.broker.secured, settings.native)):
        logs = LogMarks(ClusterAddress(addresses(address), security), ReadLimits())
        mark = logs.marks_before({source: 80}, {})[source]
        mark_by_address[address] = mark, logs.epoch_ends({source: mark.leader_epoch})[source].offset
    assert mark_by_address[own.broker.bootstrap] == mark_by_address[own.broker.secured]
    assert mark_by_address[own.broker.bootstrap][1] == 80


def test_the_driver_asks_over_tls_and_a_login_too(own: Own, tmp_path: Path) -> None:
    created(own.broker.bootstrap, "asked", {})
    send(own.broker.bootstrap, "asked", mixed(30))
    client = str(own.authority.certificate("client").both)

    def ask(word: str = PASSWORD, ca: Path = own.authority.ca) -> Cluster:
        kafka = Kafka.model_validate({
            "bootstrap_servers": own.broker.secured,
            "security": {
                "protocol": "sasl_ssl", "login": {"type": "scram", "user": USER, "password": word},
                "ca_file": str(ca), "client_cert_file": client,
            },
        })  # fmt: skip
        return Cluster(kafka.address, timedelta(seconds=20))

    cluster = ask()
    assert cluster.latest(cluster.sources(["asked"])) == {("asked", 0): 30}
    cluster.mirror("group-asked", {("asked", 0): 7})
    assert cluster.committed_offsets("group-asked", [("asked", 0)]) == {("asked", 0): 7}
    began_s = time.monotonic()
    with pytest.raises(BrokerUnreachable, match=r"refuses it.*Check kafka\.security") as refused:
        ask("another").brokers()
    assert "another" not in str(refused.value)
    with pytest.raises(BrokerUnreachable, match=r"not trusted .*kafka\.security\.ca_file"):
        ask(ca=Authority(tmp_path / "others").ca).latest([("asked", 0)])
    assert time.monotonic() - began_s < 15, "it is said, not waited for"
