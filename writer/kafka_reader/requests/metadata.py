"""The Metadata request: which brokers a cluster has, and which of them leads each partition."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.protocol import NO_TAGS, Api, ErrorCode, FieldReader, array, text
from headrace.writer.kafka_reader.requests.question import Question

NO_ID = UUID(int=0)
_FIRST_VERSION_WITH_IDS = 10
# A null in the place of the list.
_ALL_TOPICS = b"\0"


@dataclass(frozen=True)
class Leader:
    """The broker that leads a partition, in which epoch; -1 where the cluster does not say."""

    node: int
    epoch: int = -1


@dataclass(frozen=True)
class Metadata:
    """What a cluster says of its brokers and of some topics. Can be pickled, so that a driver can ask for all tasks.

    `partitions`: how many each topic has, with a leader or without. `errors`: of topics that the cluster says nothing
    else of.
    """

    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    leaders: Mapping[Source, Leader] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, int] = field(default_factory=dict)


def question(topics: Iterable[str] | None) -> Question[Metadata]:
    """Return the question for some topics, None for all, which any broker answers."""
    names = None if topics is None else sorted(topics)
    return Question(Api.METADATA, partial(request_body, names), answer)


def request_body(topics: Iterable[str] | None, version: int) -> bytes:
    """Write the question for some topics, None for all. A topic that is not there is not created."""
    no_id = NO_ID.bytes if version >= _FIRST_VERSION_WITH_IDS else b""
    names = _ALL_TOPICS
    if topics is not None:
        names = array(no_id + text(name) + NO_TAGS for name in topics)
    rights_of_cluster = b"\0" if version <= _FIRST_VERSION_WITH_IDS else b""
    return names + b"\0" + rights_of_cluster + b"\0" + NO_TAGS


def answer(reader: FieldReader, version: int) -> Metadata:
    """Read the answer. Raises Corrupt."""
    # The request is never throttled for long.
    _throttled_ms = reader.number("i")
    brokers = dict[int, BrokerAddress]()
    leaders = dict[Source, Leader]()
    ids = dict[str, UUID]()
    errors = dict[str, int]()
    partitions = dict[str, int]()
    for _ in reader.count():
        node = reader.number("i")
        host = reader.text()
        port = reader.number("i")
        _rack = reader.text()
        reader.skip_tags()
        brokers[node] = BrokerAddress(host or "", port)
    _cluster_id = reader.text()
    _controller = reader.number("i")
    for _ in reader.count():
        error = reader.number("h")
        topic = reader.text() or ""
        topic_id = reader.uuid() if version >= _FIRST_VERSION_WITH_IDS else NO_ID
        if error:
            errors[topic] = error
        elif topic_id != NO_ID:
            ids[topic] = topic_id
        _is_internal = reader.number("b")
        partition_indexes = reader.count()
        if not error:
            partitions[topic] = len(partition_indexes)
        for _ in partition_indexes:
            partition, leader = _partition(reader)
            if leader.node in brokers:
                leaders[topic, partition] = leader
        _rights = reader.number("i")
        reader.skip_tags()
    return Metadata(brokers, leaders, ids, errors, partitions)


def _partition(reader: FieldReader) -> tuple[int, Leader]:
    _error, partition, node, epoch = reader.numbers("hiii")
    # All replicas, those in sync, those offline.
    for _ in range(3):
        reader.skip_numbers()
    reader.skip_tags()
    return partition, Leader(node, epoch)


def merge_metadata(earlier: Metadata, answer: Metadata) -> Metadata:
    """Return what is known after an answer. A broker that lags may name an earlier leader: the later one stays."""
    leaders = dict(answer.leaders)
    for (topic, partition), leader in earlier.leaders.items():
        if earlier.topic_ids.get(topic) != answer.topic_ids.get(topic) or topic in answer.errors:
            continue
        new_leader = leaders.get((topic, partition))
        is_older = new_leader is not None and -1 < new_leader.epoch < leader.epoch
        if is_older and leader.node in answer.brokers:
            leaders[topic, partition] = leader
    return replace(answer, leaders=leaders)


def is_gone(error: int) -> bool:
    """Return whether an error says that a topic, or its incarnation, is not there."""
    return error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    )
