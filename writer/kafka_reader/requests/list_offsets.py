"""The ListOffsets request: where logs begin and end, and which record is the first of an instant.

Source: https://kafka.apache.org/protocol, version 5 (KIP-320: a leader of another epoch refuses).
"""

import struct
from collections.abc import Iterable
from typing import NamedTuple

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.protocol import Api, FieldReader, by_topic
from headrace.writer.kafka_reader.requests.question import Question

# In the place of an instant.
EARLIEST = -2
LATEST = -1
_CONSUMER = -1


class OffsetQuestion(NamedTuple):
    """Which offset of a partition is asked for.

    `leader`: the epoch of the leader that is asked, -1: not known. `time_ms`: an instant, EARLIEST or LATEST.
    """

    topic: str
    partition: int
    leader: int
    time_ms: int


class LogOffset(NamedTuple):
    """An offset, and the timestamp of its record; -1 and -1 where there is no record at or after the instant."""

    error: int
    offset: int
    time_ms: int


def question(questions: Iterable[OffsetQuestion], *, committed: bool) -> Question[dict[Source, LogOffset]]:
    """Return the question to a leader. `committed`: LATEST is the end of what readers of committed records see."""
    body = request_body(questions, committed=committed)
    return Question(Api.LIST_OFFSETS, lambda _: body, lambda reader, _: answer(reader))


def request_body(questions: Iterable[OffsetQuestion], *, committed: bool) -> bytes:
    """Write the question."""
    partitions = ((topic, struct.pack(">iiq", *numbers)) for topic, *numbers in questions)
    return struct.pack(">i?", _CONSUMER, committed) + by_topic(partitions)


def answer(reader: FieldReader) -> dict[Source, LogOffset]:
    """Read the answer. Raises Corrupt."""
    # The request is never throttled for long.
    _throttled_ms = reader.number("i")
    offsets = dict[Source, LogOffset]()
    for topic in reader.short_topics():
        partition, error, time_ms, offset, _epoch = reader.numbers("ihqqi")
        offsets[topic, partition] = LogOffset(error, offset, time_ms)
    return offsets
