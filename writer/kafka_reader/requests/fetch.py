"""The Fetch request: records of many partitions of one broker in one question, and its answer."""

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.errors import Corrupt
from headrace.writer.kafka_reader.protocol import NO_TAGS, FieldReader, array, text
from headrace.writer.kafka_reader.requests.metadata import NO_ID

FIRST_VERSION_BY_ID = 13
_BYTES_MIN = 1
_CONSUMER = -1
_NO_SESSION = (0, -1)
# Only followers say where their log starts.
_NO_LOG_START = -1
# The number of the tagged field.
_DIVERGING_EPOCH = 0


class PartitionQuestion(NamedTuple):
    """From which offset records of a partition are asked for.

    `epoch`: of the leader, -1 where it is not known; a broker that knows a later one refuses. `last_epoch`: of the
    batch before the offset (KIP-595); a broker whose log differs there says so; -1: any.
    """

    topic: str
    partition: int
    epoch: int
    offset: int
    bytes_max: int
    last_epoch: int = -1


class PartitionAnswer(NamedTuple):
    """What a broker gives of one partition. `records` lies in the connection's buffer.

    `aborted`: producer and first offset of transactions that were aborted. `preferred_replica`: the broker to ask
    instead, -1: none. `diverges_at`: from this offset on the log has other records than those that were read before.
    """

    error: int
    high_watermark: int
    log_start: int
    aborted: Sequence[tuple[int, int]]
    preferred_replica: int
    records: memoryview
    diverges_at: int | None = None


@dataclass(frozen=True)
class FetchAnswer:
    """What a broker gives, by partition. `error` is about the whole request.

    `by_id`: topics were asked for by their ids.
    """

    throttled_ms: int
    error: int
    by_id: bool
    partitions: Mapping[Source, PartitionAnswer]


def request_body(
    questions: Iterable[PartitionQuestion],
    version: int,
    topic_ids: Mapping[str, UUID],
    *,
    wait_ms: int,
    bytes_max: int,
    rack: str,
    committed: bool = True,
) -> bytes:
    """Write a request for records, in the order of the questions as far as topics do not mix.

    `committed`: none of a transaction that is still open, nor what is behind it.

    A broker answers as soon as it has a byte, after `wait_ms` otherwise. It gives the first batch of the first
    partition that has one whole, whatever its size; all else within `bytes_max`.
    """
    by_topic = defaultdict[str, list[bytes]](list)
    for question in questions:
        fields = struct.pack(
            ">iiqiqi",
            question.partition,
            question.epoch,
            question.offset,
            question.last_epoch,
            _NO_LOG_START,
            question.bytes_max,
        )
        by_topic[question.topic].append(fields + NO_TAGS)
    topics = [
        (topic_ids[topic].bytes if version >= FIRST_VERSION_BY_ID else text(topic)) + array(partitions) + NO_TAGS
        for topic, partitions in by_topic.items()
    ]
    head = struct.pack(">iiiibii", _CONSUMER, wait_ms, _BYTES_MIN, bytes_max, int(committed), *_NO_SESSION)
    return head + array(topics) + array([]) + text(rack) + NO_TAGS


def answer(reader: FieldReader, version: int, topic_ids: Mapping[str, UUID]) -> FetchAnswer:
    """Read the answer. Raises Corrupt."""
    names = {topic_id: topic for topic, topic_id in topic_ids.items() if topic_id != NO_ID}
    throttled_ms, error, _session = reader.numbers("ihi")
    partitions = dict[Source, PartitionAnswer]()
    for _ in reader.count():
        topic = names.get(reader.uuid()) if version >= FIRST_VERSION_BY_ID else reader.text()
        if topic is None:
            raise Corrupt("a broker answers about a topic that it was not asked for")
        for _ in reader.count():
            partition, partition_answer = _partition(reader)
            partitions[topic, partition] = partition_answer
        reader.skip_tags()
    return FetchAnswer(throttled_ms, error, version >= FIRST_VERSION_BY_ID, partitions)


def _partition(reader: FieldReader) -> tuple[int, PartitionAnswer]:
    partition, error, high_watermark, _stable, log_start = reader.numbers("ihqqq")
    aborted = list[tuple[int, int]]()
    for _ in reader.count():
        producer, first = reader.numbers("qq")
        aborted.append((producer, first))
        reader.skip_tags()
    replica = reader.number("i")
    records = reader.raw(max(reader.length(), 0))
    diverging = reader.tags().get(_DIVERGING_EPOCH)
    diverges_at = None
    if diverging is not None:
        _epoch, diverges_at = FieldReader(diverging).numbers("iq")
    return partition, PartitionAnswer(error, high_watermark, log_start, aborted, replica, records, diverges_at)
