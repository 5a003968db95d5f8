"""Requests about a consumer group: which broker coordinates it, the offsets that it has, and new ones for it.

Source: https://kafka.apache.org/protocol; FindCoordinator 2, OffsetFetch 5, OffsetCommit 7.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.protocol import Api, FieldReader, by_topic, short_text
from headrace.writer.kafka_reader.requests.question import Question

_GROUP = 0
# Who commits is no member of the group: no generation, no name, no static name.
_NO_MEMBER = struct.pack(">i", -1) + short_text("") + struct.pack(">h", -1)
_NO_EPOCH = -1
_NO_METADATA = -1


@dataclass(frozen=True)
class Coordinator:
    """The broker that coordinates a group; `address` means nothing where there is an error."""

    error: int
    address: BrokerAddress


@dataclass(frozen=True)
class GroupOffsets:
    """Offsets that a group has committed, where it has. `error` is about the whole group."""

    error: int
    offsets: Mapping[Source, int]


def coordinator_question(group: str) -> Question[Coordinator]:
    """Return the question for the coordinator of a group, which any broker answers."""
    body = short_text(group) + struct.pack(">b", _GROUP)
    return Question(Api.FIND_COORDINATOR, lambda _: body, lambda reader, _: coordinator(reader))


def coordinator(reader: FieldReader) -> Coordinator:
    """Read a coordinator. Raises Corrupt."""
    # The request is never throttled for long.
    _throttled_ms = reader.number("i")
    error = reader.number("h")
    _message = reader.short_text()
    _node = reader.number("i")
    host = reader.short_text() or ""
    return Coordinator(error, BrokerAddress(host, reader.number("i")))


def fetch_question(group: str, sources: Iterable[Source]) -> Question[GroupOffsets]:
    """Return the question for the offsets that a group has committed."""
    body = short_text(group) + by_topic((topic, struct.pack(">i", partition)) for topic, partition in sources)
    return Question(Api.OFFSET_FETCH, lambda _: body, lambda reader, _: offsets(reader))


def offsets(reader: FieldReader) -> GroupOffsets:
    """Read offsets; partitions with an error, or without an offset, are left out. Raises Corrupt."""
    _throttled_ms = reader.number("i")
    committed = dict[Source, int]()
    for topic in reader.short_topics():
        partition, offset, _epoch = reader.numbers("iqi")
        _metadata = reader.short_text()
        error = reader.number("h")
        if not error and offset >= 0:
            committed[topic, partition] = offset
    return GroupOffsets(reader.number("h"), committed)


def commit_question(group: str, new_offsets: Mapping[Source, int]) -> Question[dict[Source, int]]:
    """Return the request that commits offsets as a group without members. The answer: errors of partitions."""
    partitions = (
        (topic, struct.pack(">iqih", partition, offset, _NO_EPOCH, _NO_METADATA))
        for (topic, partition), offset in new_offsets.items()
    )
    body = short_text(group) + _NO_MEMBER + by_topic(partitions)
    return Question(Api.OFFSET_COMMIT, lambda _: body, lambda reader, _: commit_errors(reader))


def commit_errors(reader: FieldReader) -> dict[Source, int]:
    """Read the errors of partitions, 0 where there is none. Raises Corrupt."""
    _throttled_ms = reader.number("i")
    errors = dict[Source, int]()
    for topic in reader.short_topics():
        partition, error = reader.numbers("ih")
        errors[topic, partition] = error
    return errors
