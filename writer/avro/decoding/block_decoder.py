"""Decodes a block of Avro values at once, and proves that each record consumed exactly its own bytes.

A block of Avro values laid end to end is byte for byte the body of an Avro object-container block. A random nonce is
laid after each value; a schema that names header and nonce as fields makes a native container reader decode them all.
Where every row's nonce reads back, every record began and ended where it should: a record that consumed more or less
would have shifted its own nonce, and no producer can know it. (docs/adr/0002-arrow-data-plane.md)

The reader takes some bytes that Avro forbids for other values. So the bytes of each value are compared with the
shortest encoding of its row; where they differ, the value is scanned by its schema. (docs/adr/0050-strict-decoding.md)
"""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, TimeoutError as StillRunning
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.arrow_types import TableColumn, convert_column, first_reasons
from headrace.writer.avro.decoding.corrupt_values import suspects
from headrace.writer.avro.decoding.shortest_bytes import find_other_bytes
from headrace.writer.avro.decoding.value_writer import write_long
from headrace.writer.core.errors import panics_as_errors
from headrace.writer.decoding.block import BlockRefused, DecoderUnresponsive, Mask
from headrace.writer.framing.wire_format import CONFLUENT

NONCE_BYTES = 8
_SYNC = b"headrace-sync-16"
# Processes that used DataFusion. Its threads are not in a child of one, where a read would wait for ever.
_PROCESSES = set[int]()
_POLL_S = 0.5


class _ContainerReader:
    """DataFusion's Avro reader over one container file in memory, which is written anew for each block.

    All decoders of a process share it, its file and its thread: with fifty schemas in turn, a reader for each of them
    costs three times as much.
    """

    def __init__(self, scratch: str | None) -> None:
        self._scratch = scratch
        self._lock = Lock()
        self._open()

    def _open(self) -> None:
        self._file = _ScratchFile(self._scratch)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="avro")
        # The number of records in a batch, and the session that reads so many.
        self._context: tuple[int, Any] | None = None

    def read(self, parts: Sequence[memoryview], count: int, cpu_seconds_max: float) -> pa.Table:
        """Read so many records of a file. Raises BlockRefused, and DecoderUnresponsive when the reader spins."""
        process_id = os.getpid()
        if _PROCESSES and process_id not in _PROCESSES:
            raise DecoderUnresponsive("a process used it before it was forked into this one")
        _PROCESSES.add(process_id)
        with self._lock:
            self._file.write(parts)
            try:
                return self._wait_for_table(count, cpu_seconds_max)
            except DecoderUnresponsive:
                # The thread that spins keeps its file.
                self._open()
                raise

    def _wait_for_table(self, count: int, cpu_seconds_max: float) -> pa.Table:
        limit = time.process_time() + cpu_seconds_max
        future = self._pool.submit(self._read, count)
        while True:
            try:
                with panics_as_errors("datafusion"):
                    return future.result(timeout=_POLL_S)
            except StillRunning:
                if time.process_time() > limit:
                    raise DecoderUnresponsive(f"no end after {cpu_seconds_max:.0f} s") from None
            except Exception as error:
                raise BlockRefused(str(error)) from error

    def _read(self, count: int) -> pa.Table:
        # batch_size == count together with limit(count) makes the reader stop at the last record, also when bytes are
        # left over, where it would spin for ever.
        if self._context is None or self._context[0] != count:
            from datafusion import SessionConfig, SessionContext

            config = SessionConfig().with_target_partitions(1).with_batch_size(max(count, 1))
            self._context = (count, SessionContext(config))
        return self._context[1].read_avro(self._file.path).limit(count).to_arrow_table()


# By process, because a fork has no threads.
_READERS = WeakValueDictionary[tuple[int, str | None], _ContainerReader]()


def _shared_reader(scratch: str | None) -> _ContainerReader:
    """Return the reader of the decoders that live in this process; it goes with the last of them."""
    key = os.getpid(), scratch
    reader = _READERS.get(key)
    if reader is None:
        reader = _ContainerReader(scratch)
        _READERS[key] = reader
    return reader


@dataclass
class NativeDecoder:
    """Decodes a column of values, each behind its header, by the process's reader. One for each writer schema."""

    record: avro.Record
    # Processor seconds for a block of so many bytes; 1 MB/s is 1/300 of usual.
    deadline: Callable[[int], float] = lambda size: 10 + size / 1e6
    # Directory for the scratch file's name; Spark's own is cleared with the application.
    scratch: str | None = None
    # Before each value.
    header_bytes: int = CONFLUENT.header_bytes
    # A thread is lost: end the process after the task.
    unresponsive: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._reader = _shared_reader(self.scratch)
        self._schema, self._tail = _frame_schema(self.record.text, self.header_bytes)

    def read(self, schema: str, count: int, body: Sequence[memoryview]) -> pa.Table:
        """Read so many records of a schema. Raises BlockRefused, and DecoderUnresponsive when the reader spins."""
        if self.unresponsive:
            raise BlockRefused("the native decoder of this process is lost")
        size = sum(part.nbytes for part in body)
        parts = [_file_header(schema, count, size), *body, memoryview(_SYNC)]
        try:
            table = self._reader.read(parts, count, self.deadline(size))
        except DecoderUnresponsive as error:
            self.unresponsive = True
            raise DecoderUnresponsive(f"{error} on {size} bytes") from None
        if table.num_rows != count:
            raise BlockRefused(f"{table.num_rows} records were read of {count}")
        return table

    def decoded_columns(self, table: pa.Table) -> dict[str, pa.Array]:
        """Return what was read of each field of the record. Raises BlockRefused."""
        try:
            return {field["name"]: _combine_chunks(table.column(field["name"])) for field in self.record.fields}
        except pa.ArrowException as error:
            raise BlockRefused(str(error)) from error

    def convert_columns(self, decoded: Mapping[str, pa.Array]) -> tuple[pa.Table, pa.StringArray | None]:
        """Return the record's columns as a table has them, and what is wrong with each row. Raises BlockRefused."""
        columns: dict[str, TableColumn] = {}
        try:
            for spec in self.record.fields:
                column = convert_column(self.record, spec["type"], decoded[spec["name"]])
                if column is not None:
                    columns[spec["name"]] = column
        except pa.ArrowException as error:
            raise BlockRefused(str(error)) from error
        rows = pa.table({name: column.values for name, column in columns.items()})
        return rows, first_reasons(list(columns.values()))

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all, prove all. Raises BlockRefused when a record is bad, DecoderUnresponsive as `read` does."""
        nonce = os.urandom(NONCE_BYTES)
        frames = pc.binary_join_element_wise(values, pa.scalar(nonce, values.type), pa.scalar(b"", values.type))
        table = self.read(self._schema, len(values), [_content(frames)])
        if not has_only(table.column(self._tail), nonce):
            raise BlockRefused("a record did not end where its value ends")
        decoded = self.decoded_columns(table)
        if self._has_forbidden_bytes(values, decoded):
            raise BlockRefused("a value has bytes that Avro forbids")
        return self.convert_columns(decoded)

    def take_unfit(self) -> Mapping[str, int]:
        """Return that all fits: the columns are those of the schema."""
        return {}

    def find_suspects(self, values: pa.Array, refusal: BlockRefused) -> Mask:  # noqa: ARG002 - of a refused block
        """Return which values do not match the schema."""
        return suspects(values, self.record, self.header_bytes)

    def _has_forbidden_bytes(self, values: pa.Array, decoded: Mapping[str, pa.Array]) -> bool:
        """Tell whether a value that was decoded has bytes that Avro forbids, or may have some."""
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        ends = offsets.astype(np.int64)
        starts = ends[:-1] + self.header_bytes
        block = np.frombuffer(values.buffers()[2] or b"", np.uint8)
        has_other_bytes = find_other_bytes(self.record, decoded, block, starts, ends[1:] - starts)
        if not has_other_bytes.any():
            return False
        return bool(suspects(values.filter(pa.array(has_other_bytes)), self.record, self.header_bytes).any())


@lru_cache(maxsize=1024)
def _frame_schema(text: str, header_bytes: int) -> tuple[str, str]:
    """Return the schema of a record with its header and its nonce, as JSON, and the name of the nonce's field."""
    header: dict[str, avro.Schema] = {}
    if header_bytes:
        header["_hdr"] = avro.fixed_type("Head", header_bytes)
    schema, names = avro.frame_schema(avro.parse(text), header, {"_end": avro.fixed_type("Tail", NONCE_BYTES)})
    return schema, names["_end"]


class _ScratchFile:
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
            remainder = part.cast("B")[written:]
            written = max(written - part.nbytes, 0)
            # Rare: the kernel took less.
            while remainder.nbytes:
                remainder = remainder[os.write(self._file, remainder) :]
        # The file is cut last, so that its pages are used again.
        os.ftruncate(self._file, sum(part.nbytes for part in parts))


def _file_header(schema: str, count: int, size: int) -> memoryview:
    """Return what precedes the body of a file with one block.

    Avro 1.12, object container files: magic, metadata map, sync marker; then count, size, body, sync marker.
    """
    entries = [b"avro.schema", schema.encode(), b"avro.codec", b"null"]
    metadata = write_long(2) + b"".join(write_long(len(entry)) + entry for entry in entries) + write_long(0)
    return memoryview(b"Obj\x01" + metadata + _SYNC + write_long(count) + write_long(size))


def _content(values: pa.Array) -> memoryview:
    """Return the bytes of all values, end to end."""
    offsets = memoryview(values.buffers()[1]).cast("i")
    return memoryview(values.buffers()[2])[offsets[values.offset] : offsets[values.offset + len(values)]]


def _combine_chunks(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1 and column.chunk(0).offset == 0:
        return column.chunk(0)
    combined = column.combine_chunks()
    # Some types stay chunked, with one chunk.
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0)
    return combined


def has_only(column: pa.ChunkedArray, value: bytes) -> bool:
    """Return whether each value of a column is this one."""
    if column.null_count:
        return False
    is_equal = pc.equal(column, pa.scalar(value, column.type))
    # Of no values the answer is None.
    return pc.all(is_equal).as_py() in (True, None)
