"""The native reader when brokers do what a single healthy one never does."""

import pickle
import random
import socket
import threading
import time
from collections.abc import Callable
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.errors import (
    AccessDenied,
    LostRecords,
    ReadFailed,
    TopicGone,
    Unavailable,
    UnsupportedBroker,
)
from headrace.writer.kafka_reader.protocol import Api, ErrorCode
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.record_batches import MissingReason
from headrace.writer.kafka_reader.requests.metadata import Leader
from tests.servers.kafka_cluster import VERSIONS, Cluster as Fake, PartitionFetch, PartitionReply
from tests.support.kafka_batches import Raw, batch, marker

QUICK = ReadLimits(retry_timeout_s=0.3, fetch_wait_ms=10)
PATIENT = ReadLimits(retry_timeout_s=10, fetch_wait_ms=10)


def log(count: int = 6, size: int = 10) -> list[Raw]:
    return [batch(at * size, [b"%d" % (at * size + n) for n in range(size)]) for at in range(count)]


def ranges(*sources: tuple[str, int], start: int = 0, end: int = 60) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition(topic, 1, p), start, end) for topic, p in sources]


def read(
    fake: Fake, wanted: list[OffsetRange], limits: ReadLimits = QUICK, **how: object
) -> list[tuple[str, int, int]]:
    """Read all; holds the evidence against the rows."""
    with fake.running() as brokers, ClusterAddress(brokers, timeout_s=2).open() as cluster:
        reader = RangeReader(cluster, wanted, limits=limits, **how)  # type: ignore[arg-type]
        rows = [row for one in reader for row in plain(one)]
    assert all(evidence.is_complete for evidence in reader.evidence)
    assert sum(evidence.records for evidence in reader.evidence) == len(rows)
    return rows


def plain(one: pa.RecordBatch) -> list[tuple[str, int, int]]:
    assert one.column("value").to_pylist() == [b"%d" % at for at in one.column("offset").to_pylist()]
    names = ("topic", "partition", "offset")
    return list(zip(*(one.column(name).to_pylist() for name in names), strict=True))


def whole(*sources: tuple[str, int]) -> list[tuple[str, int, int]]:
    return [(topic, p, at) for topic, p in sources for at in range(60)]


def once(
    given: PartitionReply, condition: Callable[[PartitionFetch], bool] = lambda _: True, times: int = 1
) -> Callable[[PartitionFetch], PartitionReply]:
    """Say something to the first questions that fulfil a condition, nothing afterwards."""
    left = [times]

    def say(asked: PartitionFetch) -> PartitionReply:
        if condition(asked) and left[0] > 0:
            left[0] -= 1
            return given
        return PartitionReply()

    return say


def test_partitions_of_two_leaders_are_read_with_one_question_about_leaders_and_one_request_each() -> None:
    sources = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    fake = Fake({source: log() for source in sources}, leaders={("a", 1): (2, 1), ("b", 1): (2, 1)})
    assert sorted(read(fake, ranges(*sources))) == whole(*sources)
    assert fake.metadata_requests == 1
    assert [len(questions) for questions in fake.fetches] == [2, 2]


def test_a_leader_that_moves_in_the_middle_is_followed() -> None:
    fake = Fake({("a", 0): log()})

    def move(asked: PartitionFetch) -> PartitionReply:
        if asked.node == 1 and asked.offset >= 10:
            fake.leaders["a", 0] = (2, 2)
        return PartitionReply()

    fake.say = move
    assert read(fake, ranges(("a", 0)), ReadLimits(fetch_bytes=150, fetch_wait_ms=10)) == whole(("a", 0))
    assert {(one.node, one.epoch) for questions in fake.fetches for one in questions} == {(1, 1), (2, 2)}


def test_a_broker_that_goes_down_in_the_middle_is_replaced() -> None:
    fake = Fake({("a", 0): log()})

    def die(asked: PartitionFetch) -> PartitionReply:
        if asked.node == 1:
            fake.down.add(1)
            fake.leaders["a", 0] = (2, 2)
        return PartitionReply(records=b"")

    fake.say = lambda asked: die(asked) if asked.node == 1 else PartitionReply()
    assert read(fake, ranges(("a", 0)), PATIENT) == whole(("a", 0))


@pytest.mark.parametrize("error", [
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN,
])  # fmt: skip
def test_an_error_that_passes_is_tried_again_and_one_that_stays_is_named(error: ErrorCode) -> None:
    fake = Fake({("a", 0): log()}, say=once(PartitionReply(error), times=2))
    assert read(fake, ranges(("a", 0)), PATIENT) == whole(("a", 0))
    fake = Fake({("a", 0): log()}, say=lambda _: PartitionReply(error))
    with pytest.raises(ReadFailed, match=rf"a/0 at offset 0 of \[0, 60\): .*{error.name}") as failed:
        read(fake, ranges(("a", 0)))
    assert isinstance(failed.value, TopicGone if error == ErrorCode.UNKNOWN_TOPIC_ID else Unavailable)


def test_a_log_that_begins_later_is_no_error_that_passes() -> None:
    fake = Fake({("a", 0): log()}, say=lambda _: PartitionReply(ErrorCode.OFFSET_OUT_OF_RANGE, log_start=40))
    with pytest.raises(LostRecords, match=r"a/0 at offset 0 of \[0, 60\): the log does not hold it and begins at 40"):
        read(fake, ranges(("a", 0)), PATIENT)
    assert len(fake.fetches) == 1


def test_rights_that_lack_are_said_at_once() -> None:
    fake = Fake({("a", 0): log()}, say=lambda _: PartitionReply(ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(AccessDenied, match=r"give the user of kafka\.security READ on topic a"):
        read(fake, ranges(("a", 0)), PATIENT)


def test_a_replica_that_the_leader_names_is_read_and_left_when_it_fails() -> None:
    def say(asked: PartitionFetch) -> PartitionReply:
        if asked.node == 1:
            return PartitionReply(replica=2) if asked.rack else PartitionReply()
        if asked.offset >= 30:
            return PartitionReply(ErrorCode.OFFSET_OUT_OF_RANGE)
        return PartitionReply(records=b"".join(batch.encode() for batch in log()[:3]))

    fake = Fake({("a", 0): log()}, say=say)
    assert read(fake, ranges(("a", 0)), PATIENT, rack="zone-1") == whole(("a", 0))
    asked = [(one.node, one.offset, one.rack) for questions in fake.fetches for one in questions]
    assert asked == [(1, 0, "zone-1"), (2, 0, "zone-1"), (2, 30, "zone-1"), (1, 30, "")]


def test_a_replica_that_is_behind_is_left_for_the_leader() -> None:
    fake = Fake({("a", 0): log()})
    fake.say = lambda asked: PartitionReply(records=b"") if asked.node == 2 else PartitionReply()
    fake.say = chain(once(PartitionReply(replica=2), lambda asked: asked.node == 1), fake.say)
    assert read(fake, ranges(("a", 0)), PATIENT, rack="zone-1") == whole(("a", 0))


def chain(*says: Callable[[PartitionFetch], PartitionReply]) -> Callable[[PartitionFetch], PartitionReply]:
    return lambda asked: next((given for say in says if (given := say(asked)) != PartitionReply()), PartitionReply())


def test_a_throttled_reader_waits_as_long_as_the_broker_says() -> None:
    fake = Fake({("a", 0): log()}, say=once(PartitionReply(throttled_ms=700, records=b"")))
    began = time.monotonic()
    assert read(fake, ranges(("a", 0)), ReadLimits(retry_timeout_s=0.2)) == whole(("a", 0))
    assert time.monotonic() - began > 0.7


def test_a_batch_larger_than_what_is_asked_for_is_asked_for_whole() -> None:
    big = [batch(0, [b"%d" % n for n in range(60)], codec="none")]
    values = [b"x" * 100_000 if n == 30 else b"%d" % n for n in range(60)]
    fake = Fake({("a", 0): big, ("b", 0): [batch(0, values)]})
    with fake.running() as brokers, ClusterAddress(brokers).open() as cluster:
        found = list(RangeReader(cluster, ranges(("a", 0), ("b", 0)), limits=ReadLimits(fetch_bytes=70_000)))
    assert sum(one.num_rows for one in found) == 120
    assert [one.bytes_max for questions in fake.fetches for one in questions if one.topic == "b"][-1] > 100_000


def test_sparse_partitions_share_requests_and_arrow_batches() -> None:
    sources = [("a", p) for p in range(1_500)]
    fake = Fake({source: [batch(0, [b"0", b"1"])] for source in sources})
    with fake.running() as brokers, ClusterAddress(brokers).open() as cluster:
        found = list(RangeReader(cluster, ranges(*sources, end=2)))
    assert [len(questions) for questions in fake.fetches] == [1_000, 500]
    assert [one.num_rows for one in found] == [3_000]


def test_a_dense_partition_is_asked_for_by_few_at_a_time() -> None:
    sources = [("a", p) for p in range(100)]
    values = {source: [batch(0, [b"x" * 1_000] * 60)] for source in sources}
    fake = Fake(values)
    with fake.running() as brokers, ClusterAddress(brokers).open() as cluster:
        found = list(RangeReader(cluster, ranges(*sources), limits=ReadLimits(fetch_bytes=200_000)))
    assert sum(one.num_rows for one in found) == 6_000
    assert max(len(questions) for questions in fake.fetches[1:]) < 20


def test_leaders_that_the_driver_learnt_are_asked_without_a_question() -> None:
    fake = Fake({("a", 0): log()})
    with fake.running() as brokers:
        with ClusterAddress(brokers).open() as cluster:
            known = pickle.loads(pickle.dumps(cluster.ask_leaders(["a"])))
        with ClusterAddress([BrokerAddress("127.0.0.1", 1)]).open(known) as cluster:
            assert sum(one.num_rows for one in RangeReader(cluster, ranges(("a", 0)))) == 60
    assert fake.metadata_requests == 1


def test_the_next_bootstrap_address_is_asked_when_one_is_silent() -> None:
    fake = Fake({("a", 0): log()})
    with fake.running() as brokers, ClusterAddress([BrokerAddress("127.0.0.1", 1), *brokers]).open() as cluster:
        assert cluster.ask_leaders(["a"]).leaders == {("a", 0): Leader(1, 1)}
    with pytest.raises(Unavailable, match=r"no Kafka broker answers at 127.0.0.1:1 .*bootstrap_servers"):
        ClusterAddress([BrokerAddress("127.0.0.1", 1)]).open().ask_leaders(["a"])


def test_a_broker_without_topic_ids_is_asked_by_name_and_an_older_one_is_refused_with_the_way_out() -> None:
    fake = Fake({("a", 0): log()}, versions={**VERSIONS, Api.FETCH: (0, 12), Api.METADATA: (0, 9)})
    with fake.running() as brokers, ClusterAddress(brokers).open() as cluster:
        reader = RangeReader(cluster, ranges(("a", 0)))
        assert sum(one.num_rows for one in reader) == 60
        assert not reader.evidence[0].by_topic_id
    fake = Fake({("a", 0): log()}, versions={**VERSIONS, Api.FETCH: (0, 11)})
    with pytest.raises(UnsupportedBroker, match=r"FETCH in versions 0 to 11, .*in versions 12 to 13\. Use Kafka 2.7"):
        read(fake, ranges(("a", 0)))


def test_another_incarnation_is_not_read() -> None:
    fake = Fake({("a", 0): log()}, topic_ids={"a": UUID(int=1)})
    with pytest.raises(TopicGone, match=r"a/0 at offset 0 .*incarnation"):
        read(fake, ranges(("a", 0)), topic_ids={"a": UUID(int=2)})
    assert fake.fetches == []


def test_aborted_records_and_markers_are_counted() -> None:
    held = [batch(0, [b"0", b"1"], producer=4, transactional=True), marker(2, 4), batch(3, [b"3"])]
    data = b"".join(one.encode() for one in held)
    fake = Fake({("a", 0): held}, say=lambda _: PartitionReply(aborted=[(4, 0)], records=data))
    with fake.running() as brokers, ClusterAddress(brokers).open() as cluster:
        reader = RangeReader(cluster, ranges(("a", 0), start=1, end=4))
        assert [one.column("offset").to_pylist() for one in reader] == [[3]]
    missing = reader.evidence[0].missing
    assert (missing[MissingReason.ABORTED], missing[MissingReason.CONTROL], missing[MissingReason.COMPACTED]) == (
        1,
        1,
        0,
    )


def test_a_silent_broker_fails_within_the_time_limit() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        ClusterAddress([BrokerAddress(*server.getsockname())], timeout_s=0.2).open() as cluster,
    ):
        began = time.monotonic()
        with pytest.raises(Unavailable, match=r"does not answer within 0\.2 s"):
            cluster.ask_leaders(["a"])
        assert time.monotonic() - began < 15


def test_damaged_fetch_answers_end_in_an_error_or_the_right_records() -> None:
    """Flips and cuts anywhere but in base offsets, which here are those of the only batch."""
    draw = random.Random(5)
    fake = Fake({("a", 0): log(1)})
    base = (0).to_bytes(8, "big") + (len(log(1)[0].encode()) - 12).to_bytes(4, "big")

    def garbled(answer: bytes) -> bytes:
        raw, at = bytearray(answer), draw.randrange(len(answer))
        if not 0 <= at - answer.index(base) < 8:
            raw[at] ^= draw.randint(1, 255)
        return bytes(raw[: draw.choice([len(raw), draw.randrange(len(raw))])])

    fake.garble, outcomes = garbled, set[str]()
    with fake.running() as brokers, ClusterAddress(brokers, timeout_s=0.2).open() as cluster:
        for _ in range(150):
            reader = RangeReader(
                cluster, ranges(("a", 0), end=10), limits=ReadLimits(retry_timeout_s=0.01, fetch_wait_ms=1)
            )
            try:
                rows = [row for one in reader for row in plain(one)]
            except ReadFailed as error:
                outcomes.add(type(error).__name__)
            else:
                assert rows == [("a", 0, at) for at in range(10)]
                outcomes.add("read")
    assert {"read", "Corrupt"} <= outcomes


def test_two_ranges_of_one_partition_are_refused() -> None:
    with pytest.raises(ValueError, match="one range of each partition"):
        RangeReader(ClusterAddress([BrokerAddress("a", 1)]).open(), ranges(("a", 0), ("a", 0)))


def test_the_columns_are_those_of_spark_s_source() -> None:
    every = ColumnChoice(headers=True, timestamp_type=True).schema.names
    assert every == ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
    assert ColumnChoice(topic=False).schema.names == ["partition", "offset", "timestamp", "key", "value"]


def test_readers_in_two_threads_do_not_meet() -> None:
    fake, found = Fake({("a", 0): log(), ("b", 0): log()}), list[int]()

    def run(brokers: list[BrokerAddress], topic: str) -> None:
        with ClusterAddress(brokers).open() as cluster:
            found.append(sum(one.num_rows for one in RangeReader(cluster, ranges((topic, 0)))))

    with fake.running() as brokers:
        threads = [threading.Thread(target=run, args=(brokers, topic)) for topic in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == [60, 60]
