"""Which brokers a cluster has, and which of them leads each partition: the question, the answer, and what is kept."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from writer.core.offsets import Source
from writer.kafka_reader.connection import BrokerAddress
from writer.kafka_reader.protocol import NO_TAGS, ErrorCode, FieldReader, array, text

NO_ID = UUID(int=0)
_WITH_IDS = 10  # version of the request from which topics have ids


@dataclass(frozen=True)
class Leader:
    """The broker that leads a partition, in which epoch; -1 where the cluster does not say."""

    node: int
    epoch: int = -1


@dataclass(frozen=True)
class Metadata:
    """What a cluster says of its brokers and of some topics. Can be pickled, so that a driver can ask for all tasks."""

    brokers: Mapping[int, BrokerAddress] = field(default_factory=dict)
    leaders: Mapping[Source, Leader] = field(default_factory=dict)
    topic_ids: Mapping[str, UUID] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)  # of topics that the cluster says nothing else of


def request_body(topics: Iterable[str], version: int) -> bytes:
    """Write the question for some topics. A topic that is not there is not created."""
    names = [(NO_ID.bytes if version >= _WITH_IDS else b"") + text(name) + NO_TAGS for name in topics]
    rights_of_cluster = b"\0" if version <= _WITH_IDS else b""
    return array(names) + b"\0" + rights_of_cluster + b"\0" + NO_TAGS


def answer(reader: FieldReader, version: int) -> Metadata:
    """Read the answer. Raises Corrupt."""
    reader.one("i")  # the request is never throttled for long
    brokers, leaders = dict[int, BrokerAddress](), dict[Source, Leader]()
    ids, errors = dict[str, UUID](), dict[str, int]()
    for _ in reader.count():
        node, host, port = reader.one("i"), reader.text(), reader.one("i")
        reader.text()  # rack
        reader.skip_tags()
        brokers[node] = BrokerAddress(host or "", port)
    reader.text()  # cluster id
    reader.one("i")  # controller
    for _ in reader.count():
        error, topic = reader.one("h"), reader.text() or ""
        topic_id = reader.uuid() if version >= _WITH_IDS else NO_ID
        if error:
            errors[topic] = error
        elif topic_id != NO_ID:
            ids[topic] = topic_id
        reader.one("b")  # internal
        for _ in reader.count():
            partition, leader = _partition(reader)
            if leader.node in brokers:
                leaders[topic, partition] = leader
        reader.one("i")  # rights
        reader.skip_tags()
    return Metadata(brokers, leaders, ids, errors)


def _partition(reader: FieldReader) -> tuple[int, Leader]:
    _error, partition, node, epoch = reader.take("hiii")
    for _ in range(3):  # replicas, those in sync, those offline
        reader.skip_numbers()
    reader.skip_tags()
    return partition, Leader(node, epoch)


def merged(known: Metadata, answered: Metadata) -> Metadata:
    """Return what is known after an answer. A broker that lags may name an earlier leader: the later one stays."""
    leaders = dict(answered.leaders)
    for (topic, partition), leader in known.leaders.items():
        same = known.topic_ids.get(topic) == answered.topic_ids.get(topic) and topic not in answered.errors
        found = leaders.get((topic, partition))
        if same and found is not None and -1 < found.epoch < leader.epoch and leader.node in answered.brokers:
            leaders[topic, partition] = leader
    return Metadata(answered.brokers, leaders, answered.topic_ids, answered.errors)


def is_gone(error: int) -> bool:
    """Return whether an error says that a topic, or its incarnation, is not there."""
    return error in (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID,
    )  # fmt: skip
