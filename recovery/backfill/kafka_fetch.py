"""Reads exact ranges of a topic completely. Lost offsets raise an error."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, Message, TopicPartition as ClientPartition

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

# Messages of one call of the consumer.
_MESSAGES_AT_ONCE = 10_000
# Rows of an Arrow batch.
_BATCH_ROWS = 25_000
_ANY: Mapping[str, str] = {}
_SETTINGS = {
    # An offset that retention took ends the chunk.
    "auto.offset.reset": "error",
    "queued.min.messages": 50_000,
    "queued.max.messages.kbytes": 65_536,
}
_OFFSET_LOST = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001 - its public name


def fetch_records(
    kafka: Kafka,
    wanted: Mapping[Source, Span],
    *,
    headers: bool,
    raw: bool = False,
    topic_ids: Mapping[str, str] = _ANY,
) -> Iterator[pa.RecordBatch]:
    """Yield the records of these ranges, in order within each partition. Offsets without a record give none.

    `raw`: with all that a record has. `topic_ids`: of the incarnations that the ranges are of, as Kafka writes them;
    others are then not read. Raises SourceFailed for offsets that the log no longer holds, BrokerUnreachable,
    ReadFailed.
    """
    choice = ColumnChoice(headers=headers, raw=raw)
    if kafka.reader == "native":
        yield from _fetch_natively(kafka, wanted, choice, topic_ids)
        return
    for source, span in sorted(wanted.items()):
        offset = span[0]
        try:
            for batch in _fetch_natively(kafka, {source: span}, choice, topic_ids):
                yield batch
                offset = batch.column("offset")[-1].as_py() + 1
        except (OldRecordFormat, UnsupportedBroker):
            yield from _consume(kafka, source, (offset, span[1]), choice)


def _fetch_natively(
    kafka: Kafka, wanted: Mapping[Source, Span], choice: ColumnChoice, topic_ids: Mapping[str, str]
) -> Iterator[pa.RecordBatch]:
    """Yield records as the tasks of the writer read them."""
    ranges = [
        OffsetRange(TopicPartition(topic, 0, partition), *span) for (topic, partition), span in sorted(wanted.items())
    ]
    with native_kafka.address(kafka).open() as cluster:
        try:
            yield from RangeReader(
                cluster,
                ranges,
                choice,
                topic_ids=native_kafka.topic_ids(topic_ids),
                limits=native_kafka.limits(kafka, _BATCH_ROWS),
                rack=kafka.options.get("client.rack", ""),
            )
        except LostRecords as error:
            raise SourceFailed(_lost_message(f"{error.topic}/{error.partition}", error.offset)) from error


def _consume(kafka: Kafka, source: Source, span: Span, choice: ColumnChoice) -> Iterator[pa.RecordBatch]:
    """Yield records of a log in a format from before Kafka 0.11, which have no headers."""
    topic, partition = source
    offset, end_offset = span
    timeout_s = kafka.request_timeout.total_seconds()
    with consumer(kafka.address, "headrace-backfill", _SETTINGS) as client:
        client.assign([ClientPartition(topic, partition, offset)])
        deadline_s = time.monotonic() + timeout_s
        is_log_end = False
        while offset < end_offset and not is_log_end:
            messages = [
                message
                for message in client.consume(min(_MESSAGES_AT_ONCE, end_offset - offset), timeout=0.2)
                if message.partition() == partition and message.topic() == topic
            ]
            if messages:
                deadline_s = time.monotonic() + timeout_s
            elif time.monotonic() > deadline_s:
                raise BrokerUnreachable(
                    f"{kafka.address} sends no records of {topic}/{partition} from offset {offset} within "
                    f"{timeout_s:.0f} s. Check that the partition has a leader."
                )
            records = [message for message in messages if _is_record(message, offset) and message.offset() < end_offset]
            # The caller has made sure that the range does not reach beyond the end of the log.
            is_log_end = any(message.error() is not None for message in messages)
            offsets = [message.offset() + 1 for message in messages if message.error() is None]
            offset = max([offset, *offsets])
            if records:
                yield _to_batch(topic, partition, records, choice)


def _is_record(message: Message, offset: int) -> bool:
    """Return whether a message is a record, not the end of the log. Raises SourceFailed, BrokerUnreachable."""
    error = message.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
        return False
    partition = f"{message.topic()}/{message.partition()}"
    if error.code() in _OFFSET_LOST:
        raise SourceFailed(_lost_message(partition, offset))
    raise BrokerUnreachable(f"the broker gives no records of {partition} at offset {offset}: {error.str()}")


def _lost_message(partition: str, offset: int | None) -> str:
    return (
        f"the log of {partition} no longer holds offset {offset}: retention was faster. Nothing of it was committed, "
        "and what is left may come from a mirror or an archive."
    )


def _to_batch(topic: str, partition: int, messages: list[Message], choice: ColumnChoice) -> pa.RecordBatch:
    count = len(messages)
    columns: dict[str, Any] = {
        "topic": pa.repeat(topic, count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": times_of(messages),
        "key": pa.array([message.key() for message in messages], pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
    }
    if choice.raw:
        client_types = [message.timestamp()[0] for message in messages]
        # The client counts types of timestamps from 1, and 0 is none; Kafka counts them from 0.
        timestamp_types = [client_type - 1 if client_type else None for client_type in client_types]
        columns["timestampType"] = pa.array(timestamp_types, pa.int32())
    if choice.headers or choice.raw:
        # Of a name that is no UTF-8, Confluent's client ends the process: its headers are never asked for.
        columns["headers"] = pa.nulls(count, HEADERS)
    return pa.RecordBatch.from_pydict(columns)
