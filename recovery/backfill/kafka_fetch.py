"""Reads exact ranges of a topic completely. Lost offsets raise an error."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, Message, TopicPartition as Where

from recovery.backfill.source import SourceFailed
from writer.avro.wire_format import HEADERS
from writer.clients import native_kafka
from writer.clients.kafka import BrokerUnreachable, consumer
from writer.clients.kafka_sample import times_of
from writer.config.connections import Kafka
from writer.core.offsets import OffsetRange, Source, Span, TopicPartition
from writer.kafka_reader.columns import ColumnChoice
from writer.kafka_reader.errors import LostRecords, OldRecordFormat, UnsupportedBroker
from writer.kafka_reader.reader import RangeReader

_AT_ONCE, _ROWS = 10_000, 25_000  # messages of one call; rows of an Arrow batch
_ANY: Mapping[str, str] = {}
_SETTINGS = {
    "auto.offset.reset": "error",  # an offset that retention took ends the chunk
    "queued.min.messages": 50_000, "queued.max.messages.kbytes": 65_536,
}  # fmt: skip
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001 - its public name


def fetched(
    kafka: Kafka, wanted: Mapping[Source, Span], *, headers: bool, raw: bool = False,
    topic_ids: Mapping[str, str] = _ANY,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Yield the records of these ranges, in order within each partition. Offsets without a record give none.

    `raw`: with all that a record has. `topic_ids`: of the incarnations that the ranges are of, as Kafka writes them;
    others are then not read. Raises SourceFailed for offsets that the log no longer holds, BrokerUnreachable,
    ReadFailed.
    """
    choice = ColumnChoice(headers=headers, raw=raw)
    if kafka.reader == "native":
        yield from _by_tasks_reader(kafka, wanted, choice, topic_ids)
        return
    for source, (start, end) in sorted(wanted.items()):
        offset = start
        try:
            for batch in _by_tasks_reader(kafka, {source: (start, end)}, choice, topic_ids):
                yield batch
                offset = batch.column("offset")[-1].as_py() + 1
        except (OldRecordFormat, UnsupportedBroker):
            yield from _by_consumer(kafka, {source: (offset, end)}, choice)


def _by_tasks_reader(
    kafka: Kafka, wanted: Mapping[Source, Span], choice: ColumnChoice, topic_ids: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    ranges = [
        OffsetRange(TopicPartition(topic, 0, partition), *span) for (topic, partition), span in sorted(wanted.items())
    ]
    with native_kafka.address(kafka).opened() as cluster:
        try:
            yield from RangeReader(
                cluster, ranges, choice, topic_ids=native_kafka.topic_ids(topic_ids),
                limits=native_kafka.limits(kafka, _ROWS), rack=kafka.options.get("client.rack", ""),
            )  # fmt: skip
        except LostRecords as error:
            raise SourceFailed(_lost(f"{error.topic}/{error.partition}", error.offset)) from error


def _by_consumer(kafka: Kafka, wanted: Mapping[Source, Span], choice: ColumnChoice) -> Iterator[pa.RecordBatch]:
    """Yield records of logs in a format from before Kafka 0.11, which have no headers."""
    address, timeout = kafka.address, kafka.request_timeout
    with consumer(address, "headrace-backfill", _SETTINGS) as opened:
        for (topic, partition), (start, end) in sorted(wanted.items()):
            opened.assign([Where(topic, partition, start)])
            at, deadline = start, time.monotonic() + timeout.total_seconds()
            while at < end:
                came = opened.consume(min(_AT_ONCE, end - at), timeout=0.2)
                messages = [m for m in came if m.partition() == partition and m.topic() == topic]
                if not messages and time.monotonic() > deadline:
                    raise BrokerUnreachable(
                        f"{address} sends no records of {topic}/{partition} from offset {at} within "
                        f"{timeout.total_seconds():.0f} s. Check that the partition has a leader."
                    )
                found = [m for m in messages if _is_record(m, at) and m.offset() < end]
                at, ended = _reached(messages, at, end)
                if messages:
                    deadline = time.monotonic() + timeout.total_seconds()
                if found:
                    yield _batch(topic, partition, found, choice)
                if ended:
                    break


def _reached(messages: list[Message], at: int, end: int) -> tuple[int, bool]:
    """Return the next offset after these messages, and whether nothing more of the range will come."""
    for message in messages:
        if message.error() is None:
            at = max(at, message.offset() + 1)
        else:
            return at, True  # the end of the log: the caller has made sure that the range does not reach beyond it
    return at, at >= end


def _is_record(message: Message, at: int) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
        return False
    where = f"{message.topic()}/{message.partition()}"
    if error.code() in _GONE:
        raise SourceFailed(_lost(where, at))
    raise BrokerUnreachable(f"the broker gives no records of {where} at offset {at}: {error.str()}")


def _lost(where: str, offset: int | None) -> str:
    return (
        f"the log of {where} no longer holds offset {offset}: retention was faster. Nothing of it was committed, and "
        "what is left may come from a mirror or an archive."
    )


def _batch(topic: str, partition: int, messages: list[Message], choice: ColumnChoice) -> pa.RecordBatch:
    count = len(messages)
    columns: dict[str, Any] = {
        "topic": pa.repeat(topic, count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array([m.offset() for m in messages], pa.int64()),
        "timestamp": times_of(messages),
        "key": pa.array([m.key() for m in messages], pa.binary()),
        "value": pa.array([m.value() for m in messages], pa.binary()),
    }
    if choice.raw:
        kinds = [kind - 1 if kind else None for kind, _ in (m.timestamp() for m in messages)]
        columns["timestampType"] = pa.array(kinds, pa.int32())
    if choice.headers or choice.raw:
        # Of a name that is no UTF-8, Confluent's client ends the process: its headers are never asked for.
        columns["headers"] = pa.nulls(count, HEADERS)
    return pa.RecordBatch.from_pydict(columns)
