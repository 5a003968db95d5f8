"""Decompresses record batches one behind the other into memory that is kept, and finds where their records begin.

The loop in `_find` is all that Python does for each single record; everything else is done for all records of a buffer
at once, in `columns`.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from writer.core.offsets import OffsetRange, Source
from writer.kafka_reader.byte_columns import Longs
from writer.kafka_reader.errors import Corrupt, damaged_batch
from writer.kafka_reader.record_batches import Batch

BATCH_BYTES_MAX = 2**29  # of one batch, decompressed; an Arrow column of a buffer holds less than 2**31 bytes
_CAPACITY, _KEPT_MAX = 2**20, 64 * 2**20  # at the beginning, and between two uses
_RECORD_BYTES_MIN = 7  # length, attributes, two deltas, two lengths, count of headers
_VARINT_BYTES_MAX = 5  # of a length, which is a number of 32 bits
_NONE, _SNAPPY = 0, 2
_STREAMS = {1: "gzip", 3: "lz4", 4: "zstd"}
_XERIAL, _XERIAL_HEAD = b"\x82SNAPPY\x00", 16
# A record's length is a zig-zag varint, mostly of two bytes: two look-ups and a sum give it, with its own two bytes.
_OTHER = -(2**40)  # makes the sum negative where the length has not two bytes
_LOW = [(byte & 0x7F) // 2 + 2 if byte > 0x7F else _OTHER for byte in range(256)]  # noqa: PLR2004 - a varint goes on
_HIGH = [byte << 6 if byte <= 0x7F else _OTHER for byte in range(256)]  # noqa: PLR2004


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
        self._take(bytearray(_CAPACITY))
        self.clear()

    def clear(self) -> None:
        """Let the records go."""
        if len(self._view) > _KEPT_MAX:  # after a batch of unusual size
            self._take(bytearray(_CAPACITY))
        self.kept, self.size, self.count, self._ends = list[BufferedBatch](), 0, 0, list[int]()

    def add(self, batch: Batch, of: OffsetRange) -> None:
        """Decompress a batch behind those before it. Raises Corrupt; the buffer is then as it was before."""
        began, kept = self.size, BufferedBatch(batch._replace(body=memoryview(b"")), of)
        try:
            self._decompress(batch)
            _check_count(batch.record_count, self.size - began)
        except (OSError, pa.ArrowException, struct.error, ValueError) as error:
            self.size = began
            raise _unreadable(kept, error) from error
        self.count += batch.record_count
        self.kept.append(kept)
        self._ends.append(self.size)

    def bounds(self) -> Longs:
        """Find where each record begins, and where the last one ends. Raises Corrupt."""
        starts, at = list[int](), 0
        for kept, end in zip(self.kept, self._ends, strict=True):
            try:
                self._find(starts, at, end, kept.batch.record_count)
            except (IndexError, ValueError) as error:
                raise _unreadable(kept, error) from error
            at = end
        starts.append(self.size)
        return np.fromiter(starts, np.int64, len(starts))

    def bytes(self) -> pa.Buffer:
        """Return the bytes of all records: valid until the next `add` or `clear`."""
        return pa.py_buffer(self._view[: self.size])

    def _decompress(self, batch: Batch) -> None:
        """Append the records of a batch. Raises ArrowException, OSError, ValueError, struct.error."""
        limit = self.size + self._batch_bytes_max
        if batch.codec == _NONE:
            self._put(batch.body, limit)
        elif batch.codec == _SNAPPY:
            for piece, length in _snappy(batch.body):
                self._reserve(length, limit)  # before it is decompressed: its length is only claimed
                self._put(memoryview(pa.Codec("snappy").decompress(piece, length)), limit)
        elif batch.codec in _STREAMS:
            stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(batch.body)), _STREAMS[batch.codec])
            while got := stream.readinto(self._view[self.size :]):
                self.size += got
                self._reserve(1, limit)
        else:
            raise ValueError(f"codec {batch.codec} is none")

    def _put(self, data: memoryview, limit: int) -> None:
        self._reserve(len(data), limit)
        self._view[self.size : self.size + len(data)] = data.cast("B")
        self.size += len(data)

    def _reserve(self, more: int, limit: int) -> None:
        """Make room. Raises ValueError beyond the limit."""
        if self.size + more > limit:
            raise ValueError(f"more than {self._batch_bytes_max} bytes in one batch: is it a decompression bomb?")
        if self.size + more >= len(self._view):
            known = self._view[: self.size]
            self._take(bytearray(2 * (self.size + more)))
            self._view[: self.size] = known

    def _take(self, memory: bytearray) -> None:
        self._memory, self._view = memory, memoryview(memory)

    def _find(self, starts: list[int], at: int, end: int, count: int) -> None:
        """Append where the records of a batch begin. Raises ValueError, IndexError."""
        add, low, high, data = starts.append, _LOW, _HIGH, self._memory
        for _ in range(count):
            add(at)
            step = low[data[at]] + high[data[at + 1]]  # `_reserve` keeps room for a look-up behind the last byte
            if step < 0:
                step = _length(data, at)
            at += step
        if at != end:
            raise ValueError("its records do not end where it ends")


def _check_count(count: int, size: int) -> None:
    """Refuse, before memory is taken for them, more records than the bytes can hold. Raises ValueError."""
    if count * _RECORD_BYTES_MIN > size:
        raise ValueError(f"{count} records in {size} bytes")


def _unreadable(kept: BufferedBatch, error: Exception) -> Corrupt:
    return damaged_batch(kept.source, kept.batch.base, f"a record batch cannot be read ({error})")


def _length(data: bytearray, at: int) -> int:
    """Return the bytes of a record with those of its length. Raises ValueError for a length that is none."""
    value = 0
    for digit in range(_VARINT_BYTES_MAX):
        byte = data[at + digit]
        value |= (byte & 0x7F) << (7 * digit)
        if byte <= 0x7F:  # noqa: PLR2004 - the last byte of a varint
            if value & 1:
                break
            return (value >> 1) + digit + 1
    raise ValueError("the length of a record is negative, or no number of 32 bits")


def _snappy(body: memoryview) -> Iterator[tuple[memoryview, int]]:
    """Yield blocks and their decompressed lengths. Java's producers frame blocks as Xerial does, others send one."""
    framed = body[: len(_XERIAL)] == _XERIAL
    at = _XERIAL_HEAD if framed else 0
    while at < len(body):
        size = struct.unpack_from(">i", body, at)[0] if framed else len(body)
        at += 4 if framed else 0
        if not 0 <= size <= len(body) - at:
            raise ValueError("a block of Snappy does not end within its batch")
        block = body[at : at + size]
        length = 0
        for digit, byte in enumerate(block[:_VARINT_BYTES_MAX]):  # its decompressed length stands before it, a varint
            length |= (byte & 0x7F) << (7 * digit)
            if byte <= 0x7F:  # noqa: PLR2004 - the last byte of a varint
                break
        yield block, length
        at += size
