"""The driver's questions when brokers move, lag, go silent and refuse."""

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.recovery.backfill.kafka_source import KafkaRead, LogReading, Segment
from headrace.recovery.backfill.source import SourceFailed
from headrace.writer.clients import kafka_sample, native_kafka
from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.clients.next_records import next_records
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.errors import HeadraceError, TopicMissing
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.kafka_reader import connection_pool
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.protocol import Api, ErrorCode
from tests.servers.kafka_cluster import VERSIONS, Cluster as Fake, PartitionFetch, PartitionReply
from tests.support.kafka_batches import Rec, batch, marker

A, B, C = ("a", 0), ("a", 1), ("b", 0)
SOURCES = [A, B, C]


def fake_cluster(**fields: object) -> Fake:
    """Return two brokers: 1 leads a/0 and b/0, which hold 10 records, 2 leads a/1."""
    logs = {source: [batch(0, [b"v"] * 10)] for source in SOURCES}
    return Fake(logs, leaders={B: (2, 1)}, **fields)  # type: ignore[arg-type]


@contextmanager
def asking(fake: Fake, seconds: float = 5) -> Iterator[Cluster]:
    with fake.running() as brokers:
        yield Cluster(ClusterAddress(brokers), timedelta(seconds=seconds))


def test_each_leader_is_asked_once_for_its_partitions_and_leaders_are_remembered() -> None:
    fake = fake_cluster()
    with asking(fake) as cluster:
        assert cluster.latest(SOURCES) == dict.fromkeys(SOURCES, 10)
        assert cluster.earliest(SOURCES) == dict.fromkeys(SOURCES, 0)
        assert list(cluster.latest([C, A])) == [C, A], "in the order of the question"
        assert cluster.latest([]) == {}
    assert fake.metadata_requests == 1
    assert sorted(fake.offset_requests[:2]) == [(1, [A, C]), (2, [B])]
    assert fake.connections <= 3, "they are used again"


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN,
    ],
)  # fmt: skip
def test_an_error_that_passes_is_asked_again_and_one_that_stays_is_named(error: ErrorCode) -> None:
    fake = fake_cluster(offset_errors={B: [error, error]})
    with asking(fake) as cluster:
        assert cluster.latest(SOURCES) == dict.fromkeys(SOURCES, 10)
    assert [asked for _, asked in fake.offset_requests].count([B]) == 3, "the others are not asked again"
    fake = fake_cluster(offset_errors={B: [error] * 1_000})
    name = error.name.replace("_", " ").capitalize()
    sentence = "a/1 does not exist" if error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION else rf"about a/1 \({name}\)"
    with asking(fake, 0.3) as cluster, pytest.raises(HeadraceError, match=sentence):
        cluster.latest(SOURCES)


def test_a_leader_that_moves_or_dies_is_followed() -> None:
    fake = fake_cluster()
    with asking(fake) as cluster:
        assert cluster.latest([B]) == {B: 10}
        fake.leaders[B] = (1, 2)
        assert cluster.latest([B]) == {B: 10}, "the one before says that it leads no longer"
        fake.leaders[A] = fake.leaders[C] = (2, 2)
        fake.down.add(1)
        fake.leaders[B] = (2, 3)
        assert cluster.latest(SOURCES) == dict.fromkeys(SOURCES, 10)
        assert set(cluster.topics(["a"])) == {"a"}


def test_a_leader_of_an_earlier_epoch_is_not_believed() -> None:
    fake = fake_cluster()
    with asking(fake) as cluster:
        fake.leaders[A] = (1, 7)
        cluster.topics(["a"])
        fake.leaders[A] = (1, 6)
        answered = threading.Timer(0.5, lambda: fake.leaders.update({A: (1, 8)}))
        answered.start()
        assert cluster.latest([A]) == {A: 10}
        answered.join()
    assert len(fake.offset_requests) > 1


def test_a_silent_leader_is_named_with_its_partitions_once_the_deadline_is_over() -> None:
    fake = fake_cluster(silent={2})
    with asking(fake, 1) as cluster:
        began_s = time.monotonic()
        sentence = r"^broker 2 at {}, which leads a/1, does not answer within 1 s, while others of .* do\."
        with pytest.raises(BrokerUnreachable, match=sentence.format(fake.addresses[2])):
            cluster.latest(SOURCES)
        assert time.monotonic() - began_s < 4
        assert cluster.latest([A, C]) == {A: 10, C: 10}, "who asks nothing of it gets an answer"
        assert cluster.brokers() == 2
        fake.silent.clear()


def test_of_two_silent_leaders_that_of_the_first_partition_is_named_with_its_own_partitions() -> None:
    fake = Fake(
        {source: [batch(0, [b"v"])] for source in (A, B, C)}, nodes=(1, 2, 3), leaders={A: (2, 1), B: (3, 1), C: (2, 1)}
    )
    with asking(fake, 1) as cluster:
        cluster.sources(["a", "b"])
        fake.silent |= {2, 3}
        with pytest.raises(BrokerUnreachable, match=r"^broker 2 at .*, which leads a/0 and 1 more partition, does not"):
            cluster.latest(SOURCES)
        fake.silent.clear()


def test_a_leader_that_takes_no_connection_is_named() -> None:
    fake = fake_cluster(down={2})
    with (
        asking(fake, 0.5) as cluster,
        pytest.raises(BrokerUnreachable, match=r"^broker 2 at .*, which leads a/1, does"),
    ):
        cluster.latest(SOURCES)


def test_a_leader_that_is_slow_with_offsets_alone_is_no_silent_broker() -> None:
    fake = fake_cluster(slow={2})
    with asking(fake, 0.5) as cluster:
        with pytest.raises(
            BrokerUnreachable, match=r"do not tell offsets within 0.5 s .*while each leader answers other"
        ):
            cluster.latest(SOURCES)
        fake.slow.clear()


def test_a_partition_without_a_leader_is_waited_for_and_named() -> None:
    fake = fake_cluster()
    fake.leaders[B] = (-1, 1)
    with asking(fake, 0.5) as cluster:
        with pytest.raises(BrokerUnreachable, match=r"^the leader of a/1 does not answer within 0.5 s, while others"):
            cluster.latest(SOURCES)
        assert cluster.topics(["a"])["a"].partitions == 2, "it counts"
        elected = threading.Timer(0.2, lambda: fake.leaders.update({B: (2, 2)}))
        elected.start()
        assert cluster.latest(SOURCES) == dict.fromkeys(SOURCES, 10)
        elected.join()


def test_a_cluster_that_answers_nothing_is_named_by_its_address() -> None:
    fake = fake_cluster(silent={1, 2})
    with asking(fake, 0.5) as cluster:
        began_s = time.monotonic()
        for question in (cluster.brokers, lambda: cluster.latest([A]), lambda: cluster.committed_offsets("g", [A])):
            with pytest.raises(
                BrokerUnreachable, match=r"^no Kafka broker answers at 127.*,127.* within 0.5 s \(.*Check"
            ):
                question()
        assert time.monotonic() - began_s < 4
        fake.silent.clear()


def test_a_silent_broker_holds_up_no_question_that_another_one_answers() -> None:
    fake = fake_cluster(silent={1})
    with asking(fake, 2) as cluster:
        for _ in range(4):
            assert cluster.topics(["a"])["a"].partitions == 2
        began_s = time.monotonic()
        assert cluster.brokers() == 2
        assert time.monotonic() - began_s < 1, "the broker that answered is asked first"
        fake.silent.clear()


def test_a_topic_that_appears_in_time_is_waited_for_and_one_that_is_gone_is_not() -> None:
    fake = fake_cluster(topic_errors={"a": [ErrorCode.LEADER_NOT_AVAILABLE] * 2})
    with asking(fake, 30) as cluster:
        assert cluster.topics(["a"])["a"].partitions == 2
        cluster.latest(SOURCES)
        began_s = time.monotonic()
        for source in (A, B):
            del fake.leaders[source]
        for question in (cluster.latest, cluster.earliest, cluster.readable):
            with pytest.raises(TopicMissing, match=r"^a/. does not exist on .*: it was deleted"):
                question([A, B])
        with pytest.raises(TopicMissing, match=r"^topic 'a' does not exist .*take it out of `topics`; known here: b"):
            cluster.topics(["b", "a"])
        with pytest.raises(TopicMissing, match=r"^b/3 does not exist"):
            cluster.latest([C, ("b", 3)])
        assert time.monotonic() - began_s < 10, "it is said, not waited for"
        assert cluster.topic_names() == ["b"]


def test_an_instant_before_1970_is_no_word_of_the_protocol() -> None:
    with asking(fake_cluster()) as cluster:
        for milliseconds in (1, 2):
            instant = datetime(1970, 1, 1, tzinfo=UTC) - timedelta(milliseconds=milliseconds)
            assert cluster.offsets_at(instant, [A]) == {A: 10}, "the end, as no record has a time"
            assert cluster.first_records({A: -milliseconds}) == {A: (-1, -1)}


def test_a_topic_id_is_written_as_tables_have_it() -> None:
    topic_id = UUID(bytes=b"\xfb\xff" * 8)
    with asking(fake_cluster(topic_ids={"a": topic_id})) as cluster:
        written = cluster.topics(["a"])["a"].id
    assert written == "+//7//v/+//7//v/+//7/w", "as confluent_kafka wrote it"
    assert native_kafka.topic_ids({"a": written}) == {"a": topic_id}


def test_a_list_of_all_topics_waits_for_none_of_them() -> None:
    fake = fake_cluster(topic_errors={"a": [int(ErrorCode.LEADER_NOT_AVAILABLE)] * 1_000})
    with asking(fake, 60) as cluster:
        assert cluster.topic_names() == ["b", "a"]
    assert fake.metadata_requests == 1


@pytest.mark.parametrize("question", ["topics", "sources", "latest"])
def test_a_right_that_lacks_is_named_at_once(question: str) -> None:
    denied = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    fake = fake_cluster(topic_errors={"a": [denied] * 9})
    about: list[str] | list[Source] = SOURCES if question == "latest" else ["a", "b"]
    sentence = r"refuse an answer about .*a.* \(Topic authorization failed\)\. .* the right Describe on it\.$"
    with asking(fake) as cluster, pytest.raises(BrokerUnreachable, match=sentence):
        getattr(cluster, question)(about)


def test_settings_of_topics_are_retention_and_cleanup() -> None:
    settings: dict[str, str | None] = {"retention.ms": "60000", "cleanup.policy": "delete"}
    fake = fake_cluster(configs={"a": settings, "b": {**settings, "cleanup.policy": "compact"}})
    with asking(fake) as cluster:
        assert cluster.retention(["a", "b"]) == {"a": timedelta(minutes=1), "b": None}
        assert cluster.cleanup(["b", "a"]) == {"b": "compact", "a": "delete"}
        assert cluster.retention([]) == {}
        with pytest.raises(TopicMissing, match=r"^topic 'c' does not exist"):
            cluster.cleanup(["a", "c"])


@pytest.mark.parametrize(
    "error", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR]
)
def test_a_coordinator_that_starts_or_moves_is_asked_again_and_one_that_stays_away_is_named(error: ErrorCode) -> None:
    fake = fake_cluster(coordinator_errors=[error], group_errors=[error, error], coordinator=2)
    with asking(fake) as cluster:
        cluster.mirror("g", {A: 3, C: 0})
        fake.group_errors.append(error)
        assert cluster.committed_offsets("g", SOURCES) == {A: 3, C: 0}
        assert cluster.committed_offsets("g", []) == {}
        cluster.mirror("g", {})
    for where in ("coordinator_errors", "group_errors"):
        fake = fake_cluster(**{where: [error] * 1_000})
        sentence = rf"^no broker of .* coordinates the group 'g' within 0.3 s \({error.name}\)"
        with asking(fake, 0.3) as cluster, pytest.raises(BrokerUnreachable, match=sentence):
            cluster.committed_offsets("g", SOURCES)


def test_a_coordinator_that_dies_is_replaced() -> None:
    fake = fake_cluster(coordinator=2, down={2})
    with asking(fake) as cluster:
        moved = threading.Timer(0.3, lambda: setattr(fake, "coordinator", 1))
        moved.start()
        cluster.mirror("g", {A: 3})
        moved.join()
    assert fake.group_offsets == {A: 3}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, r"^consumer group 'g' takes no offsets \(Unknown member id\)\. Nothing may"),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, r"refuses offsets of 2 partitions, .* a/0 \(Group .* Read on the group"),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, r"^a/0 does not exist"),
    ],
)
def test_a_group_that_takes_no_offsets_says_why(error: ErrorCode, sentence: str) -> None:
    fake = fake_cluster(group_errors=[error])
    with asking(fake) as cluster, pytest.raises(HeadraceError, match=sentence):
        cluster.mirror("g", {A: 3, C: 0})


def test_a_group_that_may_not_be_described_names_the_right() -> None:
    denied = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
    sentence = r"refuse an answer about group 'g' \(Group authorization failed\)\. .* the right Describe on it\.$"
    for where in ("coordinator_errors", "group_errors"):
        fake = fake_cluster(**{where: [denied]})
        with asking(fake) as cluster, pytest.raises(BrokerUnreachable, match=sentence):
            cluster.committed_offsets("g", SOURCES)


def test_a_broker_that_is_too_old_is_refused_by_a_sentence() -> None:
    fake = fake_cluster(versions={**VERSIONS, Api.LIST_OFFSETS: (0, 4)})
    sentence = "knows LIST_OFFSETS in versions 0 to 4, and headrace needs it in version 5. Use Kafka 2.7 or newer."
    with asking(fake) as cluster, pytest.raises(BrokerUnreachable, match=sentence):
        cluster.latest([A])


def test_a_connection_that_the_broker_closed_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_cluster()
    with asking(fake) as cluster:
        cluster.latest([A])
        fake.down.add(1)
        with pytest.raises(BrokerUnreachable):
            Cluster(str(fake.addresses[1]), timedelta(seconds=0.2)).brokers()
        fake.down.clear()
        assert cluster.latest([A]) == {A: 10}
        opened = fake.connections
        cluster.latest([A])
        assert fake.connections == opened
        monkeypatch.setattr(connection_pool, "_IDLE_S_MAX", 0.0)
        cluster.latest([A])
        assert fake.connections == opened + 1, "one that was idle for long is not trusted"


def test_threads_share_a_cluster_and_wait_for_no_silent_broker_of_another_one() -> None:
    fake = fake_cluster()
    answers = list[object]()

    def ask(cluster: Cluster) -> None:
        for _ in range(20):
            answers.append(cluster.latest([A, C]))

    with asking(fake, 30) as cluster:
        cluster.latest(SOURCES)
        fake.silent.add(2)
        late_answers = list[object]()
        waiting = threading.Thread(target=lambda: late_answers.append(cluster.latest([B])))
        waiting.start()
        began_s = time.monotonic()
        threads = [threading.Thread(target=ask, args=(cluster,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began_s < 25
        assert waiting.is_alive(), "it still waits"
        assert answers == [{A: 10, C: 10}] * 80
        fake.silent.clear()
        waiting.join()
        assert late_answers == [{B: 10}]


def test_a_cluster_that_is_let_go_closes_its_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    fake = fake_cluster()
    with fake.running() as brokers:
        cluster = Cluster(ClusterAddress([*brokers, BrokerAddress("127.0.0.1", port)]), timedelta(seconds=5))
        cluster.latest([A])
        (idle,) = [each for each in cluster._client._pool._idle.values() if each][:1]
        opened = idle[0].connection
        del cluster
        assert opened._socket.fileno() == -1


def test_the_next_record_is_the_first_committed_one_of_a_span() -> None:
    log = [
        batch(0, [b"a"] * 3), batch(5, [b"b"], producer=7, transactional=True), marker(6, 7), batch(7, [b"c"]),
    ]  # fmt: skip
    fake = Fake({A: log}, say=lambda _: PartitionReply(aborted=[(7, 5)]))
    spans = [(A, (0, 9)), (A, (2, 3)), (A, (3, 5)), (A, (3, 7)), (A, (3, 8)), (A, (8, 20))]
    with fake.running() as brokers:
        answers = next_records(ClusterAddress(brokers), timedelta(seconds=5), spans)
        assert next_records(ClusterAddress(brokers), timedelta(seconds=5), []) == {}
    assert answers == dict(zip(spans, [0, 2, None, None, 7, None], strict=True))


def test_a_batch_with_records_around_a_span_alone_has_none_for_it() -> None:
    fake = Fake({A: [replace(batch(0, [b"v"] * 10), records=tuple(Rec(at, 0, None, b"v") for at in (0, 7)))]})
    spans = [(A, (0, 1)), (A, (1, 7)), (A, (1, 8)), (A, (8, 10))]
    with fake.running() as brokers:
        answers = next_records(ClusterAddress(brokers), timedelta(seconds=5), spans)
    assert answers == dict(zip(spans, [0, None, 7, None], strict=True))


def test_the_next_record_of_a_log_in_an_old_format_is_that_of_its_message() -> None:
    messages = b"".join(
        struct.pack(">qiIbbqii", offset, 22, 0, 1, 0, 0, -1, -1) for offset in (0, 4, 9)
    )  # none has a key or a value
    fake = Fake({A: [batch(0, [b"v"] * 10)]}, say=lambda _: PartitionReply(records=messages))
    spans = [(A, (0, 9)), (A, (1, 4)), (A, (5, 9)), (A, (9, 10))]
    with fake.running() as brokers:
        answers = next_records(ClusterAddress(brokers), timedelta(seconds=5), spans)
    assert answers == dict(zip(spans, [0, 4, 9, 9], strict=True))


def test_offsets_that_retention_takes_while_they_are_asked_for_have_no_record() -> None:
    fake = Fake({A: [batch(0, [b"v"] * 5), batch(5, [b"v"] * 5)]})

    def take_first_batch(asked: PartitionFetch) -> PartitionReply:
        del fake.logs[A][:-1]
        return PartitionReply(ErrorCode.OFFSET_OUT_OF_RANGE, log_start=5) if asked.offset < 5 else PartitionReply()

    fake.say = take_first_batch
    spans = [(A, (0, 4)), (A, (0, 7))]
    with fake.running() as brokers:
        answers = next_records(ClusterAddress(brokers), timedelta(seconds=5), spans)
    assert answers == {spans[0]: None, spans[1]: 5}


def test_a_broker_that_does_not_say_what_comes_next_is_unreachable() -> None:
    fake = Fake({A: [batch(0, [b"v"])]}, say=lambda _: PartitionReply(ErrorCode.KAFKA_STORAGE_ERROR))
    sentence = "^the broker does not say what a/0 holds at 0: a/0 .*KAFKA_STORAGE_ERROR"
    with fake.running() as brokers, pytest.raises(BrokerUnreachable, match=sentence):
        next_records(ClusterAddress(brokers), timedelta(seconds=0.3), [(A, (0, 1))])


def test_a_sample_of_a_log_in_an_old_format_names_what_reads_it() -> None:
    fake = Fake({A: [batch(0, [b"v"], form=1)]})
    sentence = r"^a/0 has records in a format from before Kafka 0\.11 at offset 0\..* `kafka\.reader: spark` reads them"
    with fake.running() as brokers:
        kafka = Kafka.model_validate({"bootstrap_servers": ",".join(map(str, brokers))})
        with pytest.raises(HeadraceError, match=sentence):
            kafka_sample.read(kafka, {A: (0, 1)})
        segment = Segment(OffsetRange(TopicPartition("a", 1, 0), 0, 1), A, 0)
        reading = LogReading(kafka.address, native_kafka.limits(kafka, 100), {}, ColumnChoice())
        with pytest.raises(SourceFailed, match=r"a/0 has records in a format .* which a backfill does not read"):
            list(KafkaRead(reading, [segment])(SchemaPlan(pa.schema([]), ())))
