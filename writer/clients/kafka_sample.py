"""Reads sample records of a pipeline's topics without Spark. Changes nothing, not even a group's offsets."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.clients import native_kafka
from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.offsets import OffsetRange, Source, Span, TopicPartition
from headrace.writer.core.units import parse_instant, show_size
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.errors import LostRecords, OldRecordFormat, Unavailable
from headrace.writer.kafka_reader.reader import RangeReader

# What Spark hands to a task, in the types that it has there; the headers only where the wire format needs them.
RECORDS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
Position = Literal["earliest", "latest"] | datetime
# Records that are taken at once.
_AT_ONCE = 1_000
# The size of all values in one sample.
_BYTES_MAX = 512 * 2**20
_ANSWER_WITHIN = timedelta(seconds=10)
# How long a tail waits for more before it shows what has come.
_FOLLOW_S = 0.3


class TooLarge(ConfigError):
    """The sample would take more memory than a look should."""


def open_cluster(kafka: Kafka) -> Cluster:
    """Open the cluster with a short time-out, for a command whose user waits."""
    return Cluster(kafka.address, min(kafka.request_timeout, _ANSWER_WITHIN))


def position(text: str) -> Position:
    """Read `earliest`, `latest` or a time such as 2026-11-20T05:00Z; UTC where it has no zone. Raises ConfigError."""
    match text:
        case "earliest" | "latest":
            return text
    try:
        return parse_instant(text)
    except ValueError as error:
        raise ConfigError(
            f"--from {text} is no position; write earliest, latest or a time such as 2026-11-20T05:00Z"
        ) from error


def spread(available: Mapping[Source, int], count: int) -> dict[Source, int]:
    """Share `count` records out over the partitions: equal shares, and what one does not hold goes to the others."""
    shares: dict[Source, int] = {}
    remaining = count
    for index, source in enumerate(sorted(available, key=lambda source: (available[source], source))):
        partitions = len(available) - index
        shares[source] = min(available[source], -(-remaining // partitions))
        remaining -= shares[source]
    return shares


def spans(cluster: Cluster, topics: list[str], count: int, start: Position = "latest") -> dict[Source, Span]:
    """Choose `count` offsets of the topics: the newest, or those from a position on. Raises as Cluster does."""
    described = cluster.topics(topics).values()
    sources = [(topic.name, partition) for topic in described for partition in range(topic.partitions)]
    first = cluster.earliest(sources)
    latest = cluster.latest(sources)
    if isinstance(start, datetime):
        first = cluster.offsets_at(start, sources)
    shares = spread({source: max(0, latest[source] - first[source]) for source in sources}, count)
    if start == "latest":
        return {source: (latest[source] - shares[source], latest[source]) for source in sources}
    return {source: (first[source], first[source] + shares[source]) for source in sources}


def read(kafka: Kafka, wanted: Mapping[Source, Span]) -> pa.RecordBatch:
    """Read the records at these offsets, by topic, partition and offset, in the shape a task gets (RECORDS).

    Offsets without a record (compacted away, a transaction's mark, or one that is open) give none. Raises
    BrokerUnreachable when the broker stops answering, HeadraceError when it refuses, TooLarge beyond `_BYTES_MAX`, and
    for records in a format from before Kafka 0.11.
    """
    spans = {source: span for source, span in wanted.items() if span[0] < span[1]}
    table = pa.Table.from_batches(_read_batches(kafka, spans), RECORDS)
    order = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]
    rows = table.take(pc.sort_indices(table, order)).combine_chunks().to_batches()
    return rows[0] if rows else pa.RecordBatch.from_pylist([], RECORDS)


def _read_batches(kafka: Kafka, spans: Mapping[Source, Span]) -> list[pa.RecordBatch]:
    """Read by the tasks' reader. Raises as `read` does."""
    cluster = Cluster(kafka.address, kafka.request_timeout)
    while spans:
        ends = cluster.readable(spans)
        ranges = [
            OffsetRange(TopicPartition(topic, 0, partition), start, min(stop, ends[topic, partition]))
            for (topic, partition), (start, stop) in spans.items()
            if start < ends[topic, partition]
        ]
        try:
            return list(_bounded_batches(kafka, ranges))
        except LostRecords:
            # Retention took the first records between the question for them and the read.
            first = cluster.earliest(spans)
            spans = {
                source: (max(start, first[source]), stop)
                for source, (start, stop) in spans.items()
                if first[source] < stop
            }
        except Unavailable as error:
            raise _silent_broker(kafka, silent_partition(error, spans)) from error
        except OldRecordFormat as error:
            raise HeadraceError(
                f"{error.topic}/{error.partition} has records in a format from before Kafka 0.11 at offset "
                f"{error.offset}. No command shows them; a pipeline with `kafka.reader: spark` reads them."
            ) from error
    return []


def silent_partition(error: Unavailable, spans: Iterable[Source]) -> Source:
    """Return the partition whose records did not come; the first one, where the error is about them all."""
    if error.topic is None or error.partition is None:
        return min(spans)
    return error.topic, error.partition


def _bounded_batches(kafka: Kafka, ranges: Sequence[OffsetRange]) -> Iterator[pa.RecordBatch]:
    """Yield the records of ranges. Raises ReadFailed, TooLarge."""
    limits = replace(
        native_kafka.limits(kafka, _AT_ONCE), retry_timeout_s=kafka.request_timeout.total_seconds(), fetch_wait_ms=100
    )
    count = 0
    value_bytes = 0
    with kafka.address.open() as cluster:
        for batch in RangeReader(cluster, ranges, ColumnChoice(headers=True), limits=limits):
            count += batch.num_rows
            value_bytes += batch.nbytes
            if value_bytes > _BYTES_MAX:
                raise _too_large(count)
            yield batch


def _too_large(records: int) -> TooLarge:
    return TooLarge(f"{records:,} records are over {show_size(_BYTES_MAX)} already; ask for fewer records")


def _silent_broker(kafka: Kafka, source: Source) -> BrokerUnreachable:
    return BrokerUnreachable(
        f"{kafka.bootstrap_servers} sends no records of {source[0]}/{source[1]} within "
        f"{kafka.request_timeout.total_seconds():.0f} s. Check that the partition has a leader, or give "
        "kafka.request_timeout more."
    )


def follow(kafka: Kafka, start: Mapping[Source, int]) -> Iterator[pa.RecordBatch]:
    """Yield records from these offsets on as they come, for ever. Raises as `read` does."""
    cluster = Cluster(kafka.address, kafka.request_timeout)
    position = dict(start)
    while True:
        ends = cluster.readable(position)
        spans = {
            source: (offset, min(ends[source], offset + _AT_ONCE))
            for source, offset in position.items()
            if offset < ends[source]
        }
        batch = read(kafka, spans)
        position |= {source: stop for source, (_, stop) in spans.items()}
        if batch.num_rows:
            yield batch
        else:
            time.sleep(_FOLLOW_S)


def age(records: pa.RecordBatch, now: datetime) -> timedelta | None:
    """How long ago the newest record came to the broker; None without records."""
    # A sample has some hundred records.
    times = [time for time in records.column("timestamp").to_pylist() if time is not None]
    return now - max(times) if times else None
