"""The OffsetForLeaderEpoch request: where the records of a leader's epoch end in the log of today.

Source: https://kafka.apache.org/protocol, KIP-101, KIP-320.
"""

import struct
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from writer.core.offsets import Source
from writer.kafka_reader.protocol import (
    NO_TAGS,
    Api,
    FieldReader,
    array,
    is_flexible,
    short_array,
    short_text,
    text,
)

_WITH_REPLICA = 3  # version of the request that says who asks
_CONSUMER = -1


class EpochQuestion(NamedTuple):
    """About which epoch of a partition a leader is asked."""

    topic: str
    partition: int
    leader: int  # the epoch of the leader that is asked, -1 where it is not known; a broker with another one refuses
    epoch: int


class EpochEnd(NamedTuple):
    """Where the largest epoch up to the one that was asked about ends."""

    error: int
    epoch: int  # -1: the log has no epoch as old, or all its epochs are older
    offset: int  # behind its last record; -1 likewise


def request_body(questions: Iterable[EpochQuestion], version: int) -> bytes:
    """Write the question."""
    is_compact = is_flexible(Api.OFFSET_FOR_LEADER_EPOCH, version)
    tags = NO_TAGS if is_compact else b""
    write_array, write_text = (array, text) if is_compact else (short_array, short_text)
    by_topic = defaultdict[str, list[bytes]](list)
    for one in questions:
        by_topic[one.topic].append(struct.pack(">iii", one.partition, one.leader, one.epoch) + tags)
    topics = [write_text(topic) + write_array(partitions) + tags for topic, partitions in by_topic.items()]
    replica = struct.pack(">i", _CONSUMER) if version >= _WITH_REPLICA else b""
    return replica + write_array(topics) + tags


def answer(reader: FieldReader, version: int) -> dict[Source, EpochEnd]:
    """Read the answer. Raises Corrupt."""
    is_compact = is_flexible(Api.OFFSET_FOR_LEADER_EPOCH, version)
    reader.one("i")  # the request is never throttled for long
    found = dict[Source, EpochEnd]()
    for _ in reader.count() if is_compact else reader.short_count():
        topic = (reader.text() if is_compact else reader.short_text()) or ""
        for _ in reader.count() if is_compact else reader.short_count():
            error, partition, epoch, offset = reader.take("hiiq")
            found[topic, partition] = EpochEnd(error, epoch, offset)
            if is_compact:
                reader.skip_tags()
        if is_compact:
            reader.skip_tags()
    return found
