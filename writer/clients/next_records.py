"""Asks Kafka which record comes next: whether offsets that gave no record hold one."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.core.offsets import OffsetRange, Source, Span, TopicPartition, source_name
from headrace.writer.kafka_reader import cluster as kafka_cluster
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.errors import LostRecords, OldRecordFormat, ReadFailed
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits

# One record is enough, and none is waited for.
_LIMITS = ReadLimits(rows=1, fetch_bytes=64 * 1024, fetch_wait_ms=50)


def next_records(
    address: ClusterAddress, timeout: timedelta, questions: Sequence[tuple[Source, Span]]
) -> dict[tuple[Source, Span], int | None]:
    """Return the offset of the first committed record within each span; None where it holds none.

    In a log of a format from before Kafka 0.11 it is the last offset of the record batch. Raises BrokerUnreachable.
    """
    if not questions:
        return {}
    cluster = Cluster(address, timeout)
    sources = {source for source, _ in questions}
    # Nobody can have read further than this.
    ends = cluster.readable(sources)
    starts = cluster.earliest(sources)
    answers = dict[tuple[Source, Span], int | None]()
    with replace(address, timeout_s=timeout.total_seconds()).open() as brokers:
        for source, span in questions:
            left = (max(span[0], starts[source]), min(span[1], ends[source]))
            answers[source, span] = _next_record(cluster, brokers, timeout, source, left)
    return answers


def _next_record(
    cluster: Cluster, brokers: kafka_cluster.Cluster, timeout: timedelta, source: Source, span: Span
) -> int | None:
    topic, partition = source
    start, end = span
    limits = replace(_LIMITS, retry_timeout_s=timeout.total_seconds())
    while start < end:
        offset_range = OffsetRange(TopicPartition(topic, 0, partition), start, end)
        try:
            for rows in RangeReader(brokers, [offset_range], limits=limits):
                # A batch that was compacted may hold records around the range alone.
                if rows.num_rows:
                    return int(rows.column("offset")[0].as_py())
        except OldRecordFormat as error:
            return error.offset
        except LostRecords as error:
            # Retention took the offsets between the question for the first one and the read.
            if (earliest := cluster.earliest([source])[source]) <= start:
                raise _silence_error(source, start, error) from error
            start = earliest
        except ReadFailed as error:
            raise _silence_error(source, start, error) from error
        else:
            break
    return None


def _silence_error(source: Source, offset: int, error: ReadFailed) -> BrokerUnreachable:
    return BrokerUnreachable(f"the broker does not say what {source_name(source)} holds at {offset}: {error}")
