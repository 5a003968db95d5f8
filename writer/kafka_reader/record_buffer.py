"""Decompresses record batches one behind the other into one piece of memory, and finds where their records begin."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.kafka_reader.byte_columns import Longs
from headrace.writer.kafka_reader.errors import Corrupt, damaged_batch
from headrace.writer.kafka_reader.record_batches import Batch
from headrace.writer.kafka_reader.record_starts import RECORD_BYTES_MIN, SECTION_RECORDS, find_starts, walk_records

# Of one batch, decompressed. An Arrow column of a buffer holds less than 2**31 bytes.
BATCH_BYTES_MAX = 2**29
# Bytes of a buffer at its beginning, and at most between two uses.
_CAPACITY = 2**20
_IDLE_CAPACITY_MAX = 64 * 2**20
# Fewer are walked one after the other, because many turns for few sections take as long.
_RECORDS_IN_SECTIONS_MIN = 100 * SECTION_RECORDS
# Of a length, which is a number of 32 bits.
_VARINT_BYTES_MAX = 5
_NO_CODEC = 0
_SNAPPY = 2
_STREAM_CODECS = {1: "gzip", 3: "lz4", 4: "zstd"}
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES = 16
# A byte of a varint up to here is its last one.
_LAST_BYTE_MAX = 0x7F


class BufferedBatch(NamedTuple):
    """A batch whose records lie in the buffer, and the range that they are read for."""

    batch: Batch
    range: OffsetRange

    @property
    def source(self) -> Source:
        """Topic and partition."""
        return self.range.part.topic, self.range.part.partition


class RecordBuffer:
    """The records of many batches, decompressed."""

    def __init__(self, batch_bytes_max: int = BATCH_BYTES_MAX) -> None:
        """`batch_bytes_max`: of one batch, decompressed."""
        self._batch_bytes_max = batch_bytes_max
        self._use_memory(bytearray(_CAPACITY))
        self.clear()

    def clear(self) -> None:
        """Let the records go."""
        # A batch of unusual size may have been in it.
        if len(self._view) > _IDLE_CAPACITY_MAX:
            self._use_memory(bytearray(_CAPACITY))
        self.batches = list[BufferedBatch]()
        self.size = 0
        self.count = 0
        self._batch_ends = list[int]()

    def add(self, batch: Batch, offset_range: OffsetRange) -> None:
        """Decompress a batch behind those before it. Raises Corrupt; the buffer is then as it was before."""
        start = self.size
        buffered = BufferedBatch(batch._replace(body=memoryview(b"")), offset_range)
        try:
            self._decompress(batch)
            _check_count(batch.record_count, self.size - start)
        except (OSError, pa.ArrowException, struct.error, ValueError) as error:
            self.size = start
            raise _unreadable(buffered, error) from error
        self.count += batch.record_count
        self.batches.append(buffered)
        self._batch_ends.append(self.size)

    def bounds(self) -> Longs:
        """Find where each record begins, and where the last one ends. Raises Corrupt."""
        starts = None
        if self.count >= _RECORDS_IN_SECTIONS_MIN:
            starts = find_starts(self._memory, self.size, self.count)
        if starts is None or len(starts) != self.count:
            return self._walk_batches()
        bounds = np.append(starts, self.size)
        ends = bounds[np.cumsum([buffered.batch.record_count for buffered in self.batches])]
        if (ends != self._batch_ends).any():
            return self._walk_batches()
        return bounds

    def bytes(self) -> pa.Buffer:
        """Return the bytes of all records: valid until the next `add` or `clear`."""
        return pa.py_buffer(self._view[: self.size])

    def _walk_batches(self) -> Longs:
        """Find the bounds of records one after the other. Raises Corrupt, which names the batch."""
        bounds = [np.zeros(1, np.int64)]
        for buffered, batch_end in zip(self.batches, self._batch_ends, strict=True):
            position = int(bounds[-1][-1])
            count = buffered.batch.record_count
            try:
                batch_bounds = np.fromiter(walk_records(self._memory, position, count), np.int64, count + 1)
            except (IndexError, ValueError) as error:
                raise _unreadable(buffered, error) from error
            if batch_bounds[-1] != batch_end:
                raise _unreadable(buffered, ValueError("its records do not end where it ends"))
            bounds.append(batch_bounds[1:])
        return np.concatenate(bounds)

    def _decompress(self, batch: Batch) -> None:
        """Append the records of a batch. Raises ArrowException, OSError, ValueError, struct.error."""
        limit = self.size + self._batch_bytes_max
        if batch.codec == _NO_CODEC:
            self._append(batch.body, limit)
        elif batch.codec == _SNAPPY:
            for block, length in _snappy_blocks(batch.body):
                # Before it is decompressed, its length is only claimed.
                self._reserve(length, limit)
                self._append(memoryview(pa.Codec("snappy").decompress(block, length)), limit)
        elif batch.codec in _STREAM_CODECS:
            body = pa.BufferReader(pa.py_buffer(batch.body))
            stream = pa.CompressedInputStream(body, _STREAM_CODECS[batch.codec])
            while size := stream.readinto(self._view[self.size :]):
                self.size += size
                self._reserve(1, limit)
        else:
            raise ValueError(f"codec {batch.codec} is none")

    def _append(self, data: memoryview, limit: int) -> None:
        self._reserve(len(data), limit)
        self._view[self.size : self.size + len(data)] = data.cast("B")
        self.size += len(data)

    def _reserve(self, size: int, limit: int) -> None:
        """Make room. Raises ValueError beyond the limit."""
        new_size = self.size + size
        if new_size > limit:
            raise ValueError(f"more than {self._batch_bytes_max} bytes in one batch: is it a decompression bomb?")
        if new_size >= len(self._view):
            records = self._view[: self.size]
            self._use_memory(bytearray(2 * new_size))
            self._view[: self.size] = records

    def _use_memory(self, memory: bytearray) -> None:
        self._memory = memory
        self._view = memoryview(memory)


def _check_count(count: int, size: int) -> None:
    """Refuse, before memory is taken for them, more records than the bytes can hold. Raises ValueError."""
    if count * RECORD_BYTES_MIN > size:
        raise ValueError(f"{count} records in {size} bytes")


def _unreadable(buffered: BufferedBatch, error: Exception) -> Corrupt:
    return damaged_batch(buffered.source, buffered.batch.base, f"a record batch cannot be read ({error})")


def _snappy_blocks(body: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Yield blocks and their decompressed lengths. Java's producers frame blocks as Xerial does, others send one."""
    is_framed = body[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    position = _XERIAL_HEAD_BYTES if is_framed else 0
    while position < len(body):
        size = len(body)
        if is_framed:
            size = struct.unpack_from(">i", body, position)[0]
            position += 4
        if not 0 <= size <= len(body) - position:
            raise ValueError("a block of Snappy does not end within its batch")
        block = body[position : position + size]
        length = 0
        # A varint before the block is its decompressed length.
        for digit, byte in enumerate(block[:_VARINT_BYTES_MAX]):
            length |= (byte & 0x7F) << (7 * digit)
            if byte <= _LAST_BYTE_MAX:
                break
        yield block, length
        position += size
