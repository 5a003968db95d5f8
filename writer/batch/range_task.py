"""Runs one task of a micro-batch that fetches its records itself: ranges of offsets in, staged files and counts out."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa

from headrace.writer.batch import task
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task_report import RangeRead, ReadFailure, Report
from headrace.writer.core.offsets import OffsetRange, cut_ranges
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.errors import (
    AccessDenied,
    LogDiverged,
    LostRecords,
    OldRecordFormat,
    TopicGone,
    UnsupportedBroker,
)
from headrace.writer.kafka_reader.reader import RangeEvidence, RangeReader, ReadLimits
from headrace.writer.kafka_reader.requests.metadata import Metadata

# Another try does not help.
_FINAL = (LostRecords, LogDiverged, TopicGone, AccessDenied, OldRecordFormat, UnsupportedBroker)


@dataclass(frozen=True)
class ReadPlan:
    """What each task of a batch reads, and from where.

    `leaders`: as the driver found them. `topic_ids`: of the incarnations that the ranges are of. `shares`: ranges by
    the number of the task.
    """

    cluster: ClusterAddress
    leaders: Metadata
    topic_ids: Mapping[str, UUID]
    columns: ColumnChoice
    limits: ReadLimits
    shares: Sequence[Sequence[OffsetRange]]


def share_ranges(ranges: Iterable[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Cut ranges into at most so many shares of equal numbers of offsets, in their order; at least one share.

    A partition may be in several shares, so that a heavy one does not hold a batch.
    """
    filled = [r for r in ranges if r.count]
    share_size = max(1, math.ceil(sum(r.count for r in filled) / tasks))
    return cut_ranges(filled, share_size) or [[]]


def run(number: int, plan: TaskPlan, read_plan: ReadPlan) -> Iterator[pa.RecordBatch]:
    """Run the task of a number. Yields one report, as one row of JSON.

    A failure that another try would meet again stands in the report. Raises Corrupt, Unavailable for the others.
    """
    with read_plan.cluster.open(read_plan.leaders) as cluster:
        reader = RangeReader(
            cluster,
            read_plan.shares[number],
            read_plan.columns,
            topic_ids=read_plan.topic_ids,
            limits=read_plan.limits,
            rack=read_plan.cluster.rack,
            with_before=True,
        )
        clock = _Clock()

        def add_evidence(report: Report) -> None:
            report.ranges_read = [_range_read(evidence) for evidence in reader.evidence]
            report.seconds["fetch"] = clock.seconds

        try:
            yield from task.run(clock.time_batches(reader), plan, add_evidence)
        except _FINAL as error:
            failure = ReadFailure(type(error).__name__, str(error))
            yield Report(read_failures=[failure]).to_row()


def run_partition(number: int, values: Iterator[object], plan: TaskPlan, read_plan: ReadPlan) -> Iterator[str]:
    """Run the task of a partition of an empty RDD, as `run` does. Yields its report, as JSON.

    `number`: of the partition. `values`: of the partition, which has none.
    """
    # A worker whose input was not read to its end is not used again.
    assert not list(values), "the partition is empty"
    for rows in run(number, plan, read_plan):
        yield from rows.column(0).to_pylist()


class _Clock:
    """Counts the processor time that a reader takes."""

    seconds = 0.0

    def time_batches(self, reader: RangeReader) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a reader."""
        batches = iter(reader)
        while True:
            began_s = time.process_time()
            batch = next(batches, None)
            self.seconds += time.process_time() - began_s
            if batch is None:
                return
            yield batch


def _range_read(evidence: RangeEvidence) -> RangeRead:
    return RangeRead(
        range=evidence.range,
        records=evidence.records,
        missing={reason.name.lower(): count for reason, count in evidence.missing.items() if count},
        before=evidence.before,
        last=evidence.last,
    )
