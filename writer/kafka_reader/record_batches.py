"""Cuts the bytes of an answer into record batches (format 2), and says of each offset without a record why it has none.

Source: "Message Format" in Kafka's documentation. The checksum (CRC-32C) covers a batch from its attributes on. Its
base offset stands before that: a batch must lie behind the one before it, all else about it is the broker's word.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

import google_crc32c
import numpy as np

from headrace.writer.core.log_mark import LogMark, mark_of_header
from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.errors import SPARK_READER, OldRecordFormat, damaged_batch
from headrace.writer.kafka_reader.requests.fetch import PartitionAnswer

_HEAD = struct.Struct(">qiibIhiqqqhii")
# A batch's length counts the bytes behind these.
_BYTES_BEFORE_LENGTH_COUNTS = 12
# The checksum covers the bytes behind these.
_BYTES_BEFORE_CHECKSUM_COVERS = 21
# The format that is read here, and the position where each format has its number.
_FORMAT = 2
_FORMAT_POSITION = 16
# Bits of a batch's attributes.
_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_DELETE_HORIZON = 0x40


class MissingReason(IntEnum):
    """Why an offset has no record for a reader of committed records.

    CONTROL: the marker at the end of a transaction is there. ABORTED: its record is of a transaction that was aborted.
    COMPACTED: compaction removed its record, or it was never written.
    """

    CONTROL = 0
    ABORTED = 1
    COMPACTED = 2


class EmptyRun(NamedTuple):
    """Offsets from the last one up to `after` have no record.

    `leader_epoch`: of the batch that ends there; -1: no batch does.
    """

    after: int
    reason: MissingReason
    leader_epoch: int = -1


class Batch(NamedTuple):
    """A record batch with records for us, still compressed.

    `base`: offset that the deltas of its records are added to. `after`: the offset behind its last one. `time_ms`: the
    time that deltas are added to. With `append_time` it is the broker's, and the time of all records. `leader_epoch`:
    of the leader that appended it.
    """

    base: int
    after: int
    time_ms: int
    append_time: bool
    record_count: int
    codec: int
    body: memoryview
    leader_epoch: int = -1


def cut_batches(answer: PartitionAnswer, source: Source, start: int, end: int) -> Iterator[Batch | EmptyRun]:
    """Yield the batches and empty runs of an answer in their order, from the offset asked for up to `end`.

    The last batch may be incomplete: it is left out. `source`: for messages. Raises Corrupt, OldRecordFormat.
    """
    data = answer.records
    data_array = np.frombuffer(data, np.uint8)
    aborted = _AbortedProducers(answer.aborted)
    next_batch = 0
    offset = start
    while offset < end and next_batch + _FORMAT_POSITION < len(data):
        if data[next_batch + _FORMAT_POSITION] != _FORMAT:
            raise _other_format(data[next_batch + _FORMAT_POSITION], source, _first_message(data[next_batch:], offset))
        if next_batch + _HEAD.size > len(data):
            return
        head = _HEAD.unpack_from(data, next_batch)
        (base, size, epoch, _, crc, attributes, last, first_ms, max_ms, producer, _, _, count) = head
        # All offsets up to the end are missing.
        if base >= end:
            yield EmptyRun(end, MissingReason.COMPACTED)
            return
        begin = next_batch
        next_batch = begin + _BYTES_BEFORE_LENGTH_COUNTS + size
        if size < _HEAD.size - _BYTES_BEFORE_LENGTH_COUNTS or last < 0 or count < 0:
            raise damaged_batch(source, base, f"a record batch of {size} bytes and {count} records")
        if next_batch > len(data):
            return
        if google_crc32c.value(data_array[begin + _BYTES_BEFORE_CHECKSUM_COVERS : next_batch]) != crc:
            raise damaged_batch(source, base, "the checksum of a record batch does not fit")
        after = base + last + 1
        # A broker may begin with a batch that ends before what was asked for.
        if after <= start:
            continue
        if offset > start and base < offset:
            raise damaged_batch(source, base, "a record batch lies before the end of the one before it")
        if base > offset:
            yield EmptyRun(base, MissingReason.COMPACTED)
        offset = after
        if attributes & _CONTROL:
            aborted.end(producer, after)
            yield EmptyRun(after, MissingReason.CONTROL, epoch)
        elif attributes & _TRANSACTIONAL and aborted.has(producer, after):
            yield EmptyRun(after, MissingReason.ABORTED, epoch)
        elif count == 0:
            yield EmptyRun(after, MissingReason.COMPACTED, epoch)
        else:
            append_time = bool(attributes & _LOG_APPEND_TIME)
            time_ms = max_ms if append_time else first_ms
            body = data[begin + _HEAD.size : next_batch]
            yield Batch(base, after, time_ms, append_time, count, attributes & _CODEC, body, epoch)


def whole_batch_bytes(records: memoryview) -> int:
    """Return how long the first batch is, where all of it is there; 0 otherwise."""
    if len(records) < _HEAD.size:
        return 0
    size = _BYTES_BEFORE_LENGTH_COUNTS + int(struct.unpack_from(">i", records, 8)[0])
    return size if _HEAD.size <= size <= len(records) else 0


def mark_at(records: memoryview, source: Source, offset: int) -> LogMark | None:
    """Return the mark of the batch that holds an offset, whatever is in it; None where no whole batch does.

    Only its header is read. A batch that compaction wrote anew has fewer records than offsets, or a time at which its
    tombstones go. `source`: for messages. Raises Corrupt, OldRecordFormat.
    """
    while size := whole_batch_bytes(records):
        head = _HEAD.unpack_from(records)
        (
            base,
            _,
            epoch,
            record_format,
            crc,
            attributes,
            last,
            _,
            max_ms,
            producer_id,
            producer_epoch,
            sequence,
            count,
        ) = head
        if record_format != _FORMAT:
            raise _other_format(record_format, source, base)
        if base > offset:
            return None
        if offset <= base + last:
            return mark_of_header(
                leader_epoch=epoch,
                offsets=(base, base + last),
                producer=(producer_id, producer_epoch, sequence),
                newest_ms=max_ms,
                checksum=crc,
                is_compacted=count != last + 1 or bool(attributes & _DELETE_HORIZON),
                is_damaged=google_crc32c.value(np.frombuffer(records, np.uint8)[_BYTES_BEFORE_CHECKSUM_COVERS:size])
                != crc,
            )
        records = records[size:]
    return None


class _AbortedProducers:
    """Knows which producers are within a transaction that will be aborted, while batches are read in order.

    A transaction's first offset begins it, and the next marker of its producer ends it: a marker that commits cannot
    come in between, because it would be of the same transaction.
    """

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._waiting = sorted(transactions, key=lambda transaction: transaction[1], reverse=True)
        self._open: set[int] = set()

    def has(self, producer: int, after: int) -> bool:
        """Return whether a transactional batch of the producer that ends at `after` is aborted."""
        self._begin(after)
        return producer in self._open

    def end(self, producer: int, after: int) -> None:
        """Take the marker at the end of a transaction, whose records may lie before what was asked for."""
        self._begin(after)
        self._open.discard(producer)

    def _begin(self, after: int) -> None:
        while self._waiting and self._waiting[-1][1] < after:
            self._open.add(self._waiting.pop()[0])


def incomplete_bytes(answer: PartitionAnswer) -> int:
    """Return how long the first batch of an answer is, where the answer does not hold all of it; 0 otherwise."""
    if len(answer.records) < _HEAD.size:
        return _HEAD.size if len(answer.records) else 0
    size = _BYTES_BEFORE_LENGTH_COUNTS + int(struct.unpack_from(">i", answer.records, 8)[0])
    return size if size > len(answer.records) else 0


def _first_message(messages: memoryview, start: int) -> int:
    """Return the offset of the first message of format 0 or 1 from `start` on; of compressed ones that of the last."""
    position = 0
    while position + _BYTES_BEFORE_LENGTH_COUNTS <= len(messages):
        offset, size = struct.unpack_from(">qi", messages, position)
        if offset >= start:
            return int(offset)
        position += _BYTES_BEFORE_LENGTH_COUNTS + max(size, 0)
    return start


def _other_format(record_format: int, source: Source, base: int) -> Exception:
    """Return the error for a batch in a format that is not read here."""
    if record_format not in (0, 1):
        return damaged_batch(source, base, f"message format {record_format} is none")
    return OldRecordFormat(
        f"{source[0]}/{source[1]} at offset {base}: records of message format {record_format}, from before Kafka 0.11, "
        f"which the native reader does not read: {SPARK_READER}",
        *source,
        base,
    )
