"""Asks the broker where its next records are: a second client's word on offsets that gave Spark none."""

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from writer.kafka import BrokerUnreachable, client
from writer.rooms.report import Source, Span
from writer.security import Address

_GROUP = "headrace-audit"  # required by the client; it joins no group and commits nothing


def next_records(
    address: Address | str, timeout: timedelta, questions: Sequence[tuple[Source, Span]]
) -> dict[tuple[Source, Span], int | None]:
    """Return the offset of the first committed record at or after the start of each span; None where the log ends.

    Raises BrokerUnreachable.
    """
    if not questions:
        return {}
    settings = {
        "group.id": _GROUP, "enable.auto.commit": False, "enable.partition.eof": True,
        "auto.offset.reset": "earliest",  # retention may have taken the hole meanwhile: then it holds nothing
        "isolation.level": "read_committed", "queued.min.messages": 1, "fetch.message.max.bytes": 16_384,
        "fetch.wait.max.ms": 50,
    }  # fmt: skip
    consumer = Consumer(client(address) | settings)
    try:
        return {(source, span): _next(consumer, timeout, source, span[0]) for source, span in questions}
    finally:
        consumer.close()


def _next(consumer: Any, timeout: timedelta, source: Source, start: int) -> int | None:
    topic, partition = source
    consumer.assign([TopicPartition(topic, partition, start)])
    deadline = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is None or (message.topic(), message.partition()) != source:
            continue
        error = message.error()
        if error is None:
            return int(message.offset())
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
            return None
        raise BrokerUnreachable(f"the broker does not say what {topic}/{partition} holds at {start}: {error.str()}")
    raise BrokerUnreachable(
        f"the broker does not say within {timeout.total_seconds():.0f} s what {topic}/{partition} holds at {start}. "
        "Check that the partition has a leader."
    )
