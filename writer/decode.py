"""Avro values to Arrow rows, with a proof that each record consumed exactly its own bytes.

A block of Avro values laid end to end is byte for byte the body of an Avro object-container block. A random nonce is
laid after each value; a schema that names header and nonce as fields makes a native container reader decode the lot.
Where every row's nonce reads back, every record began and ended where it should: a record that consumed more or less
would have shifted its own nonce, and no producer can know it. (docs/adr/0002-arrow-data-plane.md)

What the proof cannot see: an index of a nullable union that is out of range (2 and up, or negative) but consumes the
same bytes is read as the second branch.
"""

import os
import struct
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from fastavro import schemaless_reader, schemaless_writer

from writer import avro
from writer.normalise import (
    DATE_RANGE_DAYS,
    NOT_A_TIME,
    TIMESTAMP_RANGE_US,
    Normalised,
    any_bad,
    decimal_value,
    normalise,
    too_many_digits,
)

HEADER_BYTES = 5  # Confluent's wire format: magic 0, then the schema id as 4 bytes, big end first
NONCE_BYTES = 8
BLOCK_BYTES_MAX = 2**30  # Arrow's binary arrays end at 2 GiB; half of it leaves room for the nonces
SINGLY = 16  # this few records are decoded one by one: a native call costs as much
_SYNC = b"headrace-sync-16"


class BlockRefused(Exception):
    """The native decoder could not prove this block. Which record is to blame is not known yet."""


class DecoderHung(BlockRefused):
    """The native decoder used more processor time than the block's size can explain. Its thread is lost."""


@dataclass(frozen=True)
class Decoded:
    """Outcome of one block: rows in table types, which of the block's values they are, and what failed.

    `taken` holds the position of each row's value in the block; `failures` maps the other positions to a reason.
    """

    rows: pa.Table
    taken: pa.Int64Array
    failures: dict[int, str]


class BlockDecoder(Protocol):
    """Decodes a block of framed values (binary array, header included) all at once, or raises BlockRefused."""

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Return n rows in table types, and why a row holds a value that the table cannot (null: it does not)."""


def header(schema_id: int) -> bytes:
    """Five bytes that stand before each value of this schema."""
    return struct.pack(">bI", 0, schema_id)


@dataclass
class NativeDecoder:
    """DataFusion's Avro reader over one in-memory container file. One for each writer schema of a task."""

    record: avro.Record
    deadline: Callable[[int], float] = lambda size: 10 + size / 1e6  # processor seconds; 1 MB/s is 1/300 of usual
    scratch: str | None = None  # directory for the scratch file's name; Spark's own is cleared with the application
    _hung: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._schema, self._head, self._tail = avro.framed(
            self.record, header_bytes=HEADER_BYTES, nonce_bytes=NONCE_BYTES
        )
        self._file = _Scratch(self.scratch)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="avro")
        self._context: tuple[int, Any] | None = None

    @property
    def hung(self) -> bool:
        """A thread of this process is lost in the reader: end the process after the task."""
        return self._hung

    def __call__(self, values: pa.Array) -> tuple[pa.Table, pa.StringArray | None]:
        """Decode all, prove all. Raises BlockRefused when a record is bad, DecoderHung when the reader spins."""
        if self._hung:
            raise BlockRefused("the native decoder of this process is lost")
        nonce = os.urandom(NONCE_BYTES)
        framed = pc.binary_join_element_wise(values, pa.scalar(nonce, values.type), pa.scalar(b"", values.type))
        body = _bytes_of(framed)
        self._file.write(_container(self._schema, len(values), body))
        table = self._watched(len(values), len(body))
        if table.num_rows != len(values) or not _all_equal(table.column(self._tail), nonce):
            raise BlockRefused("a record did not end where its value ends")
        try:
            return self._in_table_types(table)
        except pa.ArrowException as error:
            raise BlockRefused(str(error)) from error

    def _watched(self, count: int, size: int) -> pa.Table:
        limit = time.process_time() + self.deadline(size)
        future = self._pool.submit(self._read, count)
        while True:
            try:
                return future.result(timeout=0.5)
            except StillRunning:
                if time.process_time() > limit:
                    self._hung = True
                    raise DecoderHung(f"no end after {self.deadline(size):.0f} s on {size} bytes") from None
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

    def _in_table_types(self, table: pa.Table) -> tuple[pa.Table, pa.StringArray | None]:
        columns: dict[str, Normalised] = {}
        for spec in self.record.fields:
            column = table.column(spec["name"])
            done = normalise(self.record, spec["type"], _one_chunk(column))
            if done is not None:
                columns[spec["name"]] = done
        rows = pa.table({name: done.values for name, done in columns.items()})
        return rows, any_bad(list(columns.values()))


class SingleDecoder:
    """fastavro, one record at a time: for what the native decoder refuses, and to name the culprit."""

    def __init__(self, record: avro.Record) -> None:
        self._record = record
        self._schema = avro.plain_schema(record)
        self._types = pa.schema(list(avro.table_fields(record).items()))
        self._by_name = {f["name"]: f["type"] for f in record.fields if f["name"] in self._types.names}

    def __call__(self, values: pa.Array) -> Decoded:
        """Decode each value (header included) on its own; never raises for what a value holds."""
        read: dict[int, dict[str, Any]] = {}
        failures: dict[int, str] = {}
        for position, value in enumerate(values):
            try:
                read[position] = self._read(value.as_py())
            except Exception as error:  # noqa: BLE001 - whatever a hostile value provokes is a fact about that value
                failures[position] = _reason(error)
        try:
            rows = pa.Table.from_pylist(list(read.values()), self._types)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):  # a value that its column cannot hold
            rows = self._those_that_fit(read, failures)
        taken = [position for position in read if position not in failures]
        return Decoded(rows, pa.array(taken, pa.int64()), dict(sorted(failures.items())))

    def _those_that_fit(self, read: Mapping[int, dict[str, Any]], failures: dict[int, str]) -> pa.Table:
        rows: list[pa.Table] = []
        for position, row in read.items():
            try:
                rows.append(pa.Table.from_pylist([row], self._types))
            except Exception as error:  # noqa: BLE001
                failures[position] = _reason(error)
        return pa.concat_tables([self._types.empty_table(), *rows]).combine_chunks()

    def _read(self, value: bytes) -> dict[str, Any]:
        source = BytesIO(value)
        source.seek(HEADER_BYTES)
        fields = schemaless_reader(source, self._schema, None, return_record_name=True)
        left = len(value) - source.tell()
        if left:
            raise ValueError(f"{left} surplus bytes after the record")
        return {name: _python_value(self._record, kind, fields[name]) for name, kind in self._by_name.items()}


def decode(values: pa.Array, native: BlockDecoder | None, singly: SingleDecoder) -> Decoded:
    """Decode a block of values that carry the same header. Bad values fail alone; the rest keeps its order.

    `values`: binary array without nulls, every value with its header. `native` None: the schema is not native.
    A block that is refused is halved until the culprits stand alone.
    """
    if native is None:
        return singly(values)
    done: list[tuple[int, Decoded]] = []
    pending = [(0, len(values))]
    while pending:
        start, stop = pending.pop()
        block = values.slice(start, stop - start)
        few = stop - start <= SINGLY
        outcome = None
        if block.nbytes <= BLOCK_BYTES_MAX and not (few and done):
            outcome = _natively(block, native, singly)
        if outcome is None and few:
            outcome = singly(block)
        if outcome is not None:
            done.append((start, outcome))
        else:
            middle = (start + stop) // 2
            pending += [(middle, stop), (start, middle)]
    return _joined(done)


def _natively(block: pa.Array, native: BlockDecoder, singly: SingleDecoder) -> Decoded | None:
    """Decode the block at once; None when it is refused."""
    try:
        return _without_bad(*native(block))
    except DecoderHung:
        return singly(block)
    except BlockRefused:
        return None


def is_native(record: avro.Record) -> bool:
    """Probe the native decoder with records through every branch of the schema; fastavro's answer is the judge."""
    schema_id, probe = 1, []
    plain = avro.plain_schema(record)
    for sample in avro.samples(record, 24):
        out = BytesIO()
        out.write(header(schema_id))
        schemaless_writer(out, plain, sample)
        probe.append(out.getvalue())
    values = pa.array(probe, pa.binary())
    expected = SingleDecoder(record)(values)
    if expected.failures:
        return False
    try:
        rows, bad = NativeDecoder(record, deadline=lambda _: 5)(values)
    except BlockRefused:
        return False
    return bad is None and bool(rows.equals(expected.rows))


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

    def write(self, parts: list[bytes | memoryview]) -> None:
        os.ftruncate(self._file, 0)
        os.lseek(self._file, 0, os.SEEK_SET)
        for part in parts:
            view = memoryview(part)
            while view.nbytes:
                view = view[os.write(self._file, view) :]

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)


def _container(schema: str, count: int, body: memoryview) -> list[bytes | memoryview]:
    """Avro 1.12, object container files: magic, metadata map, sync marker; then count, size, body, sync marker."""
    meta = [b"avro.schema", schema.encode(), b"avro.codec", b"null"]
    head = b"Obj\x01" + _long(2) + b"".join(_long(len(part)) + part for part in meta) + _long(0) + _SYNC
    return [head + _long(count) + _long(len(body)), body, _SYNC]


def _long(value: int) -> bytes:
    """Avro's zig-zag variable-length integer."""
    rest, out = (value << 1) ^ (value >> 63), bytearray()
    while rest & ~0x7F:
        out.append((rest & 0x7F) | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _bytes_of(values: pa.Array) -> memoryview:
    offsets = memoryview(values.buffers()[1]).cast("i")
    return memoryview(values.buffers()[2])[offsets[values.offset] : offsets[values.offset + len(values)]]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1 and column.chunk(0).offset == 0:
        return column.chunk(0)
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _all_equal(column: pa.ChunkedArray, value: bytes) -> bool:
    return column.null_count == 0 and bool(
        pc.all(pc.equal(column, pa.scalar(value, column.type))).as_py() in (True, None)
    )


def _without_bad(rows: pa.Table, bad: pa.StringArray | None) -> Decoded:
    positions = pa.arange(0, rows.num_rows)
    if bad is None:
        return Decoded(rows, positions, {})
    good = bad.is_null()
    at = positions.filter(bad.is_valid()).to_pylist()  # cold: only the bad ones
    return Decoded(rows.filter(good), positions.filter(good), dict(zip(at, bad.drop_null().to_pylist(), strict=True)))


def _joined(parts: list[tuple[int, Decoded]]) -> Decoded:
    if len(parts) == 1:
        return parts[0][1]
    parts.sort(key=lambda part: part[0])
    rows = pa.concat_tables([part.rows for _, part in parts])
    taken = pa.concat_arrays([pc.add(part.taken, start) for start, part in parts])
    return Decoded(rows, taken, {start + at: why for start, part in parts for at, why in part.failures.items()})


def _reason(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "the value ends before the record does"
    text = str(error) or type(error).__name__
    return text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"


def _python_value(record: avro.Record, schema: avro.Schema, value: Any) -> Any:
    """One value as fastavro reads it without logical types, in the shape of the table's type."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _python_union(record, schema, value)
    if value is None:
        return None
    digits = avro.decimal_digits(schema)
    if digits is not None:
        unscaled = int.from_bytes(value, "big", signed=True)
        if abs(unscaled) >= 10 ** digits[0]:
            raise ValueError(too_many_digits(digits[0]))
        number = decimal_value(unscaled, digits[1])
        return number if digits[0] <= avro.DECIMAL_DIGITS_MAX else str(number)
    unit = avro.timestamp_unit(schema)
    if unit is not None:
        return _believable(value // 1000 if unit == "ns" else value * {"ms": 1000, "us": 1}[unit], TIMESTAMP_RANGE_US)
    if isinstance(schema, dict) and schema.get("logicalType") == "date":
        return _believable(value, DATE_RANGE_DAYS)
    if avro.is_uuid(schema):
        return str(UUID(bytes=value))
    match schema["type"] if isinstance(schema, dict) else schema:
        case "record":
            kinds = {f["name"]: f["type"] for f in schema["fields"]}
            return {name: _python_value(record, kinds[name], item) for name, item in value.items()}
        case "array":
            return [_python_value(record, schema["items"], item) for item in value]
        case "map":
            return {key: _python_value(record, schema["values"], item) for key, item in value.items()}
        case _:
            return value


def _believable(value: int, limits: tuple[int, int]) -> int:
    if not limits[0] <= value <= limits[1]:
        raise ValueError(NOT_A_TIME)
    return value


def _python_union(record: avro.Record, schema: list[Any], value: Any) -> Any:
    if value is None:
        return None
    branches = [record.resolve(branch) for branch in schema]
    if sum(branch != "null" for branch in branches) == 1:
        (branch,) = (branch for branch in branches if branch != "null")
        return _python_value(record, branch, value[1] if isinstance(value, tuple) else value)
    at, content = avro.tagged_branch(value)
    item = _python_value(record, branches[at], content)
    if not pa.types.is_struct(avro.table_type(record, schema)):
        return item
    return {f"member{sum(branch != 'null' for branch in branches[:at])}": item}
