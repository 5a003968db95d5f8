"""Runs one task of a micro-batch that fetches its records itself: ranges of offsets in, staged files and counts out."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

import numpy as np
import pyarrow as pa

from writer.avro import schema
from writer.avro.block_decoder import BlockRefused, DecoderUnresponsive
from writer.avro.frame_decoder import FrameDecoder
from writer.avro.schema_plan import WriterSchema
from writer.batch import task
from writer.batch.plan import TaskPlan
from writer.batch.task_report import RangeRead, ReadFailure, Report
from writer.core.offsets import OffsetRange
from writer.kafka_reader.byte_columns import Longs
from writer.kafka_reader.cluster import ClusterAddress
from writer.kafka_reader.columns import ColumnChoice, DecodedRecords, columns, decoded_columns, first_record
from writer.kafka_reader.errors import (
    AccessDenied,
    LogDiverged,
    LostRecords,
    OldRecordFormat,
    TopicGone,
    UnsupportedBroker,
)
from writer.kafka_reader.reader import RangeEvidence, RangeReader, ReadLimits
from writer.kafka_reader.record_buffer import RecordBuffer
from writer.kafka_reader.requests.metadata import Metadata
from writer.storage.disk_space import scratch

_T = TypeVar("_T")
_BATCH_RECORDS_MIN = 8  # in the mean: with fewer, what is laid behind each batch costs more than it gives
_PAUSE_MAX = 64
_DECODERS_MAX = 16  # each keeps memory for a block
_FINAL = (
    LostRecords,
    LogDiverged,
    TopicGone,
    AccessDenied,
    OldRecordFormat,
    UnsupportedBroker,
)  # another try does not help


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
        clock, frames = _Clock(), FrameReader(plan, reading.columns)

        def add_evidence(report: Report) -> None:
            report.ranges_read = [_read(evidence) for evidence in reader.evidence]
            report.seconds["fetch"] = clock.seconds - frames.seconds
            report.seconds["decode"] = report.seconds.get("decode", 0) + frames.seconds

        try:
            yield from task.run(clock.timed(reader.through(frames)), plan, add_evidence, lambda: frames.unresponsive)
        except _FINAL as error:
            failure = ReadFailure(type(error).__name__, str(error))
            yield Report(read_failures=[failure]).to_row()


class FrameReader:
    """Decodes the records of a buffer together with their frames where they are all alike; else gives their columns.

    Alike: one schema id, keys all or none, no headers, no null value, many records in a batch. Where that did not hold,
    it is tried again later and later.
    """

    seconds = 0.0  # of the processor, for decoding

    def __init__(self, plan: TaskPlan, choice: ColumnChoice) -> None:
        self._plan, self._choice = plan, choice
        self._decoders = dict[tuple[int, bool], FrameDecoder]()  # by schema id, and whether there are keys
        self._failures = self._pause = 0  # in a row; buffers that are not tried
        self.unresponsive = False  # a native decoder of this process is lost

    def __call__(self, buffer: RecordBuffer) -> tuple[pa.RecordBatch | DecodedRecords, Longs]:
        """Decode the records of a buffer. Returns how many there are of each batch, too. Raises Corrupt."""
        if self._pause:
            self._pause -= 1
        elif not self._choice.headers and buffer.count >= _BATCH_RECORDS_MIN * len(buffer.kept):
            began_s = time.process_time()
            try:
                found = self._decoded(buffer)
            except (BlockRefused, IndexError, ValueError) as error:
                self.unresponsive |= isinstance(error, DecoderUnresponsive)
                self._failures += 1
                self._pause = min(2**self._failures, _PAUSE_MAX)
            else:
                self._failures = 0
                return found
            finally:
                self.seconds += time.process_time() - began_s
        return columns(buffer, self._choice)

    def _decoded(self, buffer: RecordBuffer) -> tuple[DecodedRecords, Longs]:
        """Raise BlockRefused, IndexError, ValueError where the records are not alike."""
        wire, schemas = self._plan.wire, self._plan.schemas
        keyed, head = first_record(buffer, wire.header_bytes)
        schema_id = wire.read(head)
        known = None if schema_id is None else schemas.schemas.get(schema_id)
        if schema_id is None or not isinstance(known, WriterSchema) or not known.native or schema_id in schemas.since:
            raise BlockRefused("there is no native decoder for the first record")
        if schemas.decryption(schema_id) is not None:
            raise BlockRefused("a value whose fields do not decrypt becomes no row, which frames do not allow for")
        if any(kept.range.start < self._plan.frontier.get(kept.source, 0) for kept in buffer.kept):
            raise BlockRefused("the table has some of the records")
        if (schema_id, keyed) not in self._decoders:
            if len(self._decoders) == _DECODERS_MAX:
                self._decoders.pop(next(iter(self._decoders)))
            self._decoders[schema_id, keyed] = FrameDecoder(
                schema.parse(known.text), scratch=scratch(), head=head, keyed=keyed
            )
        counts = np.array([kept.batch.record_count for kept in buffer.kept])
        framed = self._decoders[schema_id, keyed](memoryview(buffer.bytes()), buffer.batch_ends(), counts)
        return decoded_columns(buffer, self._choice, framed, schema_id)


class _Clock:
    """Counts the processor time that a reader takes."""

    seconds = 0.0

    def timed(self, rows: Iterator[_T]) -> Iterator[_T]:
        """Yield what a reader yields."""
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
