"""Record batches as the native reader decodes them."""

from collections.abc import Sequence

import pyarrow as pa

from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.columns import ColumnChoice, columns
from headrace.writer.kafka_reader.record_batches import Batch, EmptyRun, cut_batches
from headrace.writer.kafka_reader.record_buffer import RecordBuffer
from headrace.writer.kafka_reader.requests.fetch import PartitionAnswer

PLACE = ("clicks", 3)


PART = TopicPartition("clicks", 1, 3)


BATCH_BYTES_MAX = 2**20


def answer(data: bytes, aborted: Sequence[tuple[int, int]] = ()) -> PartitionAnswer:
    return PartitionAnswer(0, -1, 0, aborted, -1, memoryview(bytearray(data)))


def read(
    data: bytes, start: int, end: int, aborted: Sequence[tuple[int, int]] = ()
) -> tuple[pa.RecordBatch, list[EmptyRun]]:
    """Read an answer; missing offsets as they are told between batches."""
    buffer = RecordBuffer(BATCH_BYTES_MAX)
    missing = []
    of = OffsetRange(PART, start, end)
    position = start
    for run in cut_batches(answer(data, aborted), PLACE, start, end):
        assert run.after > position
        position = run.after
        if isinstance(run, Batch):
            buffer.add(run, of)
        else:
            missing.append(run)
    choice = ColumnChoice(headers=True, timestamp_type=True)
    if not buffer.batches:
        return pa.RecordBatch.from_pylist([], choice.schema), missing
    rows, _counts = columns(buffer, choice)
    rows.validate(full=True)
    return rows, missing
