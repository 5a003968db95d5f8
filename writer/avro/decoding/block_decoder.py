"""Decodes a block of Avro values at once, and proves that each record consumed exactly its own bytes.

A block of Avro values laid end to end is byte for byte the body of an Avro object-container block. A random nonce is
laid after each value; a schema that names header and nonce as fields makes a native container reader decode the lot.
Where every row's nonce reads back, every record began and ended where it should: a record that consumed more or less
would have shifted its own nonce, and no producer can know it. (docs/adr/0002-arrow-data-plane.md)

The reader takes some bytes that Avro forbids for other values. So the bytes of each value are held against the shortest
encoding of its row; where they differ, the value is walked by its schema. (docs/adr/0050-strict-decoding.md)
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError as StillRunning
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.avro import schema as avro
from writer.avro.decoding.arrow_types import Normalised, any_bad, normalise
from writer.avro.decoding.corrupt_values import suspects
from writer.avro.decoding.shortest_bytes import rows_of_other_bytes
from writer.avro.decoding.value_writer import write_long
from writer.avro.wire_format import CONFLUENT

NONCE_BYTES = 8
_SYNC = b"headrace-sync-16"


class BlockRefused(Exception):
    """The native decoder could not prove this block. Which record is to blame is not known yet."""


class DecoderUnresponsive(BlockRefused):
    """The native decoder used more processor time than the block's size can explain. Its thread is lost."""


class _ContainerReader:
    """DataFusion's Avro reader over one container file in memory, which is written anew for each block.

    All decoders of a process share it, its file and its thread: with fifty schemas in turn, one of each for each of
    them costs three times as much.
    """

    def __init__(self, scratch: str | None) -> None:
        self._scratch, self._lock = scratch, Lock()
        self._begin()

    def _begin(self) -> None:
        self._file, self._pool = _Scratch(self._scratch), ThreadPoolExecutor(1, thread_name_prefix="avro")
        self._context: tuple[int, Any] | None = None

    def read(self, parts: Sequence[memoryview], count: int, cpu_seconds_max: float) -> pa.Table:
        """Read so many records of a file. Raises BlockRefused, and DecoderUnresponsive when the reader spins."""
        with self._lock:
            self._file.write(parts)
            try:
                return self._watched(count, cpu_seconds_max)
            except DecoderUnresponsive:
                self._begin()  # the thread that spins keeps its file
                raise

    def _watched(self, count: int, cpu_seconds_max: float) -> pa.Table:
        limit = time.process_time() + cpu_seconds_max
        future = self._pool.submit(self._read, count)
        while True:
            try:
                return future.result(timeout=0.5)
            except StillRunning:
                if time.process_time() > limit:
                    raise DecoderUnresponsive(f"no end after {cpu_seconds_max:.0f} s") from None
            except Exception as error:
                raise BlockRefused(str(error)) from error
            except BaseException as error:
                if type(error).__name__ != "PanicException":  # a panic of the Rust code is no Exception
                    raise
                raise BlockRefused(str(error)) from error

    def _read(self, count: int) -> pa.Table:
        # batch_size == count together with limit(count) makes the reader stop at the last record, also when bytes are
        # left over, where it would spin for ever.
        if self._context is None or self._context[0] != count:
            from datafusion import SessionConfig, SessionContext

            config = SessionConfig().with_target_partitions(1).with_batch_size(max(count, 1))
            self._context = (count, SessionContext(config))
        return self._context[1].read_avro(self._file.path).limit(count).to_arrow_table()


_READERS = WeakValueDictionary[tuple[int, str | None], _ContainerReader]()  # by process: a fork has no threads


def _shared_reader(scratch: str | None) -> _ContainerReader:
    """Return the reader of the decoders that live in this process; it goes with the last of them."""
    key = os.getpid(), scratch
    reader = _READERS.get(key)
    if reader is None:
        reader = _READERS[key] = _ContainerReader(scratch)
    return reader


@dataclass
class NativeDecoder:
    """Decodes a column of values, each behind its header, by the process's reader. One for each writer schema."""

    record: avro.Record
    deadline: Callable[[int], float] = lambda size: 10 + size / 1e6  # processor seconds; 1 MB/s is 1/300 of usual
    scratch: str | None = None  # directory for the scratch file's name; Spark's own is cleared with the application
    header_bytes: int = CONFLUENT.header_bytes  # before each value
    unresponsive: bool = field(default=False, init=False)  # a thread is lost: end the process after the task

    def __post_init__(self) -> None:
        self._reader = _shared_reader(self.scratch)
        header = {"_hdr": avro.fixed_type("Head", self.header_bytes)} if self.header_bytes else {}
        self._schema, names = avro.frame_schema(self.record, header, {"_end": avro.fixed_type("Tail", NONCE_BYTES)})
        self._tail = names["_end"]

    def read(self, schema: str, count: int, body: Sequence[memoryview]) -> pa.Table:
        """Read so many records of a schema. Raises BlockRefused, and DecoderUnresponsive when the reader spins."""
        if self.unresponsive:
            raise BlockRefused("the native decoder of this process is lost")
        size = sum(part.nbytes for part in body)
        parts = [_head(schema, count, size), *body, memoryview(_SYNC)]
        try:
            table = self._reader.read(parts, count, self.deadline(size))
        except DecoderUnresponsive as error:
            self.unresponsive = True
            raise DecoderUnresponsive(f"{error} on {size} bytes") from None
        if table.num_rows != count:
            raise BlockRefused(f"{table.num_rows} records were read of {count}")
        return table

    def columns_of(self, table: pa.Table) -> dict[str, pa.Array]:
        """Return what was read of each field of the record. Raises BlockRefused."""
        try:
            return {field["name"]: _one_chunk(table.column(field["name"])) for field in self.record.fields}
        except pa.ArrowException as error:
            raise BlockRefused(str(error)) from error

    def in_table_types(self, read: Mapping[str, pa.Array]) -> tuple[pa.Table, pa.StringArray | None]:
        """Return the record's columns as a table holds them, and what is wrong with each row. Raises BlockRefused."""
        columns: dict[str, Normalised] = {}
        try:
            for spec in self.record.fields:
                done = normalise(self.record, spec["type"], read[spec["name"]])
                if done is not None:
                    columns[spec["name"]] = done
        except pa.ArrowException as error:
            raise BlockRefused(str(error)) from error
        rows = pa.table({name: done.values for name, done in columns.items()})
        return rows, any_bad(list(columns.values()))

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all, prove all. Raises BlockRefused when a record is bad, DecoderUnresponsive as `read` does."""
        nonce = os.urandom(NONCE_BYTES)
        framed = pc.binary_join_element_wise(values, pa.scalar(nonce, values.type), pa.scalar(b"", values.type))
        table = self.read(self._schema, len(values), [_bytes_of(framed)])
        if not all_equal(table.column(self._tail), nonce):
            raise BlockRefused("a record did not end where its value ends")
        read = self.columns_of(table)
        if self._holds_forbidden(values, read):
            raise BlockRefused("a value has bytes that Avro forbids")
        return self.in_table_types(read)

    def _holds_forbidden(self, values: pa.Array, read: Mapping[str, pa.Array]) -> bool:
        """Tell whether a value that was decoded has bytes that Avro forbids, or may have some."""
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        ends = offsets.astype(np.int64)
        starts = ends[:-1] + self.header_bytes
        block = np.frombuffer(values.buffers()[2] or b"", np.uint8)
        to_judge = rows_of_other_bytes(self.record, read, block, starts, ends[1:] - starts)
        if not to_judge.any():
            return False
        damaged = suspects(values.filter(pa.array(to_judge)), self.record, self.header_bytes)
        return damaged is None or bool(damaged.any())


class _Scratch:
    """A file in memory, rewritten for each block, under a name that ends in .avro as the reader insists."""

    def __init__(self, directory: str | None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-avro-", dir=directory)
        self.path = os.path.join(self._folder.name, "block.avro")  # noqa: PTH118 - the reader takes text
        if hasattr(os, "memfd_create"):
            self._file = os.memfd_create("headrace-avro")
            os.symlink(f"/proc/{os.getpid()}/fd/{self._file}", self.path)  # noqa: PTH211
        else:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        finalize(self, os.close, self._file)

    def write(self, parts: Sequence[memoryview]) -> None:
        os.lseek(self._file, 0, os.SEEK_SET)
        written = os.writev(self._file, parts)
        for part in parts:
            left = part.cast("B")[written:]
            written = max(written - part.nbytes, 0)
            # Cold: the kernel took less.
            while left.nbytes:
                left = left[os.write(self._file, left) :]
        os.ftruncate(self._file, sum(part.nbytes for part in parts))  # last: its pages are used again


def _head(schema: str, count: int, size: int) -> memoryview:
    """What precedes the body of a file with one block.

    Avro 1.12, object container files: magic, metadata map, sync marker; then count, size, body, sync marker.
    """
    meta = [b"avro.schema", schema.encode(), b"avro.codec", b"null"]
    head = b"Obj\x01" + write_long(2) + b"".join(write_long(len(part)) + part for part in meta) + write_long(0) + _SYNC
    return memoryview(head + write_long(count) + write_long(size))


def _bytes_of(values: pa.Array) -> memoryview:
    offsets = memoryview(values.buffers()[1]).cast("i")
    return memoryview(values.buffers()[2])[offsets[values.offset] : offsets[values.offset + len(values)]]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1 and column.chunk(0).offset == 0:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def all_equal(column: pa.ChunkedArray, value: bytes) -> bool:
    """Tell whether each value of a column is this one."""
    return column.null_count == 0 and bool(
        pc.all(pc.equal(column, pa.scalar(value, column.type))).as_py() in (True, None)
    )
