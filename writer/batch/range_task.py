"""Runs one task of a micro-batch that fetches its records itself: ranges of offsets in, staged files and counts out."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from writer.batch import task
from writer.batch.plan import TaskPlan
from writer.batch.task_report import RangeRead, ReadFailure, Report
from writer.core.offsets import OffsetRange
from writer.kafka_reader.cluster import ClusterAddress
from writer.kafka_reader.columns import ColumnChoice
from writer.kafka_reader.errors import (
    AccessDenied,
    LogDiverged,
    LostRecords,
    OldRecordFormat,
    TopicGone,
    UnsupportedBroker,
)
from writer.kafka_reader.reader import RangeEvidence, RangeReader, ReadLimits
from writer.kafka_reader.requests.metadata import Metadata

# Another try does not help.
_FINAL = (LostRecords, LogDiverged, TopicGone, AccessDenied, OldRecordFormat, UnsupportedBroker)


@dataclass(frozen=True)
class ReadPlan:
    """What each task of a batch reads, and from where."""

    cluster: ClusterAddress
    leaders: Metadata  # as the driver found them
    topic_ids: Mapping[str, UUID]  # of the incarnations that the ranges are of
    columns: ColumnChoice
    limits: ReadLimits
    shares: Sequence[Sequence[OffsetRange]]  # by the number of the task


def run(batches: Iterator[pa.RecordBatch], plan: TaskPlan, reading: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Run the task whose number is the only value of the batches. Yields one report, as one row of JSON.

    A failure that another try would meet again stands in the report. Raises Corrupt, Unavailable for the others.
    """
    (number,) = (value for batch in batches for value in batch.column(0).to_pylist())
    with reading.cluster.opened(reading.leaders) as cluster:
        reader = RangeReader(
            cluster, reading.shares[number], reading.columns, topic_ids=reading.topic_ids, limits=reading.limits,
            rack=reading.cluster.rack, with_before=True,
        )  # fmt: skip
        clock = _Clock()

        def add_evidence(report: Report) -> None:
            report.ranges_read = [_read(evidence) for evidence in reader.evidence]
            report.seconds["fetch"] = clock.seconds

        try:
            yield from task.run(clock.timed(reader), plan, add_evidence)
        except _FINAL as error:
            failure = ReadFailure(type(error).__name__, str(error))
            yield Report(read_failures=[failure]).to_row()


class _Clock:
    """Counts the processor time that a reader takes."""

    seconds = 0.0

    def timed(self, reader: RangeReader) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a reader."""
        rows = iter(reader)
        is_over = False
        while not is_over:
            began_s = time.process_time()
            batch = next(rows, None)
            self.seconds += time.process_time() - began_s
            is_over = batch is None
            if batch is not None:
                yield batch


def _read(evidence: RangeEvidence) -> RangeRead:
    part, missing = evidence.range.part, {reason.name.lower(): count for reason, count in evidence.missing.items()}
    return RangeRead(
        part.topic, part.partition, evidence.range.start, evidence.range.end, evidence.records,
        {reason: count for reason, count in missing.items() if count}, evidence.before, evidence.last,
    )  # fmt: skip
