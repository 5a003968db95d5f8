"""The OffsetForLeaderEpoch request: where the records of a leader's epoch end in the log of today.

Source: https://kafka.apache.org/protocol, KIP-101, KIP-320.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.protocol import (
    NO_TAGS,
    Api,
    FieldReader,
    array,
    is_flexible,
    short_array,
    short_text,
    text,
)

# The first version of the request that says who asks.
_FIRST_VERSION_WITH_REPLICA = 3
_CONSUMER = -1


class EpochQuestion(NamedTuple):
    """About which epoch of a partition a leader is asked.

    `leader`: the epoch of the leader that is asked, -1 where it is not known; a broker with another one refuses.
    """

    topic: str
    partition: int
    leader: int
    epoch: int


class EpochEnd(NamedTuple):
    """Where the largest epoch up to the one that was asked about ends: `offset` lies behind its last record.

    `epoch`, `offset`: -1 where the log has no epoch as old, or all its epochs are older.
    """

    error: int
    epoch: int
    offset: int


def request_body(questions: Iterable[EpochQuestion], version: int) -> bytes:
    """Write the question."""
    is_compact = is_flexible(Api.OFFSET_FOR_LEADER_EPOCH, version)
    tags = NO_TAGS if is_compact else b""
    write_array = array if is_compact else short_array
    write_text = text if is_compact else short_text
    by_topic = defaultdict[str, list[bytes]](list)
    for question in questions:
        numbers = struct.pack(">iii", question.partition, question.leader, question.epoch)
        by_topic[question.topic].append(numbers + tags)
    topics = [write_text(topic) + write_array(partitions) + tags for topic, partitions in by_topic.items()]
    replica = struct.pack(">i", _CONSUMER) if version >= _FIRST_VERSION_WITH_REPLICA else b""
    return replica + write_array(topics) + tags


def answer(reader: FieldReader, version: int) -> dict[Source, EpochEnd]:
    """Read the answer. Raises Corrupt."""
    is_compact = is_flexible(Api.OFFSET_FOR_LEADER_EPOCH, version)
    # The request is never throttled for long.
    _throttled_ms = reader.number("i")
    ends = dict[Source, EpochEnd]()
    for _ in reader.count() if is_compact else reader.short_count():
        topic = (reader.text() if is_compact else reader.short_text()) or ""
        for _ in reader.count() if is_compact else reader.short_count():
            error, partition, epoch, offset = reader.numbers("hiiq")
            ends[topic, partition] = EpochEnd(error, epoch, offset)
            if is_compact:
                reader.skip_tags()
        if is_compact:
            reader.skip_tags()
    return ends
