"""Turns the records of a buffer into Arrow columns, in the shape in which Spark's Kafka source gives them to a task.

A record of format 2 is: length, attributes, time delta, offset delta, length of the key, key, length of the value,
value, count of headers, headers; all numbers but the attributes are zig-zag varints. numpy reads each number for all
records at once, and Arrow cuts keys and values out of the bytes. A header is: length of its name, name, length of its
value (-1: null), value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bucketers.timestamps import kafka_times
from writer.avro.wire_format import HEADERS
from writer.kafka_reader.byte_columns import Bytes, Longs, strings, varint, varints
from writer.kafka_reader.errors import Corrupt, damaged_batch
from writer.kafka_reader.record_buffer import BufferedBatch, RecordBuffer

_FULL: Mapping[str, pa.DataType] = {
    "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(), "key": pa.binary(), "value": pa.binary(), "headers": HEADERS,
}  # fmt: skip
_FEW = 16  # records with more headers than all others: read one by one


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns a task needs beside partition, offset, timestamp, key and value."""

    topic: bool = True
    timestamp_type: bool = False
    headers: bool = False
    raw: bool = False  # all that a record has; no column of headers where none of the records has some

    @property
    def schema(self) -> pa.Schema:
        """The columns, in the order of Spark's source where a task takes them."""
        wanted = {
            "topic": self.topic, "timestampType": self.timestamp_type or self.raw, "headers": self.headers or self.raw,
        }  # fmt: skip
        return pa.schema([(name, kind) for name, kind in _FULL.items() if wanted.get(name, True)])


@dataclass(frozen=True)
class _Fields:
    """Where the fields of each record are: positions in the buffer, and lengths (-1: null)."""

    kept: Longs  # position of its batch in the buffer's list
    offset: Longs
    time_ms: Longs
    key_at: Longs
    key_length: Longs
    value_at: Longs
    value_length: Longs
    headers_at: Longs  # behind the count of headers
    headers: Longs  # how many
    end: Longs

    def where(self, keep: npt.NDArray[np.bool_]) -> "_Fields":
        """Return those of some records."""
        return _Fields(**{name: array[keep] for name, array in vars(self).items()})


class _Entries(NamedTuple):
    """Headers: of which record each one is, and where its name and value are."""

    row: Longs
    name_at: Longs
    name_length: Longs
    value_at: Longs
    value_length: Longs


def columns(buffer: RecordBuffer, choice: ColumnChoice) -> tuple[pa.RecordBatch, Longs]:
    """Turn the records of a buffer into rows, those of its batches that lie in their ranges, in their order.

    Returns how many rows each of the buffer's batches gave, too. The rows do not need the buffer any more. Raises
    Corrupt.
    """
    assert buffer.kept, "there are records to turn into columns"
    data = np.frombuffer(buffer.bytes(), np.uint8)
    try:
        fields = _fields(data, buffer)
    except (IndexError, ValueError) as error:
        raise _corrupt(buffer, 0, f"a number of a record is damaged: {error}") from error
    fields = _within_ranges(fields, buffer)
    rows = np.bincount(fields.kept, minlength=len(buffer.kept))
    schema = choice.schema
    return pa.RecordBatch.from_arrays(_arrays(fields, buffer, rows, schema), schema=schema), rows


def _arrays(fields: _Fields, buffer: RecordBuffer, rows: Longs, schema: pa.Schema) -> list[pa.Array]:
    """Make the columns of a schema. `rows`: of each batch. Raises Corrupt."""
    raw = buffer.bytes()
    data = np.frombuffer(raw, np.uint8)
    made = {
        "partition": lambda: _repeated([kept.range.part.partition for kept in buffer.kept], rows, pa.int32()),
        "topic": lambda: _topics(buffer, rows),
        "offset": lambda: pa.array(fields.offset),
        "timestamp": lambda: kafka_times(pa.array(fields.time_ms)),
        "timestampType": lambda: _repeated([int(kept.batch.append_time) for kept in buffer.kept], rows, pa.int32()),
        "key": lambda: strings(raw, data, fields.key_at, fields.key_length),
        "value": lambda: strings(raw, data, fields.value_at, fields.value_length),
        "headers": lambda: _headers(buffer, raw, data, fields),
    }
    return [made[name]() for name in schema.names]


def _fields(data: Bytes, buffer: RecordBuffer) -> _Fields:
    """Read the numbers of all records. Raises Corrupt; IndexError, ValueError where they lead out of the bytes."""
    bounds = buffer.bounds()
    batches = [kept.batch for kept in buffer.kept]
    owner = np.repeat(np.arange(len(batches)), [batch.record_count for batch in batches])
    at, end = varints(data, bounds[:-1])[1], bounds[1:]
    time_delta, at = varints(data, at + 1)  # behind the attributes, which mean nothing yet
    delta, at = varints(data, at)
    key_length, key_at = varints(data, at)
    _check(buffer, owner, (key_length < -1) | (key_length > end - key_at), "a key ends outside its record")
    value_length, value_at = varints(data, key_at + np.maximum(key_length, 0))
    _check(buffer, owner, (value_length < -1) | (value_length > end - value_at), "a value ends outside its record")
    headers, headers_at = varints(data, value_at + np.maximum(value_length, 0))
    wrong = (headers < 0) | (headers_at > end) | ((headers == 0) & (headers_at != end))
    _check(buffer, owner, wrong, "a record does not end where its last field ends")
    span = np.array([batch.after - batch.base for batch in batches])[owner]
    falls = np.zeros(len(delta), np.bool_)
    falls[1:] = (np.diff(delta) <= 0) & (np.diff(owner) == 0)
    _check(buffer, owner, falls | (delta < 0) | (delta >= span), "the offsets of its records do not rise within it")
    times = np.array([batch.time_ms for batch in batches])[owner]
    times = times + np.where(np.array([batch.append_time for batch in batches])[owner], 0, time_delta)
    offset = np.array([batch.base for batch in batches])[owner] + delta
    return _Fields(owner, offset, times, key_at, key_length, value_at, value_length, headers_at, headers, end)


def _check(buffer: RecordBuffer, owner: Longs, wrong: npt.NDArray[np.bool_], what: str) -> None:
    if wrong.any():
        raise _corrupt(buffer, int(owner[int(np.argmax(wrong))]), what)


def _corrupt(buffer: RecordBuffer, position: int, reason: str) -> Corrupt:
    kept = buffer.kept[position]
    return damaged_batch(kept.source, kept.batch.base, reason)


def _within_ranges(fields: _Fields, buffer: RecordBuffer) -> _Fields:
    """Return the records that lie in the ranges that their batches are read for."""
    if all(_lies_within(kept) for kept in buffer.kept):
        return fields
    start = np.array([kept.range.start for kept in buffer.kept])[fields.kept]
    end = np.array([kept.range.end for kept in buffer.kept])[fields.kept]
    return fields.where((fields.offset >= start) & (fields.offset < end))


def _lies_within(kept: BufferedBatch) -> bool:
    return kept.range.start <= kept.batch.base and kept.batch.after <= kept.range.end


def _repeated(values: list[int], rows: Longs, kind: pa.DataType) -> pa.Array:
    """Repeat the value of each batch for each of its rows."""
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], kind), int(rows.sum()))
    return pa.array(np.repeat(np.array(values, np.int32), rows), kind)


def _topics(buffer: RecordBuffer, rows: Longs) -> pa.Array:
    names = [kept.range.part.topic for kept in buffer.kept]
    if len(set(names)) == 1:
        return pa.repeat(names[0], int(rows.sum()))
    return pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(len(names)), rows)))


def _headers(buffer: RecordBuffer, raw: pa.Buffer, data: Bytes, fields: _Fields) -> pa.ListArray:
    """Return the headers of each record, null where it has none, as Spark's source gives them. Raises Corrupt."""
    try:
        entries = _entries(data, fields)
    except (IndexError, ValueError) as error:
        raise _corrupt(buffer, 0, f"headers of a record of it, or of a later batch, are damaged ({error})") from error
    names = strings(raw, data, entries.name_at, entries.name_length)
    pairs = pa.StructArray.from_arrays(
        [_decoded(names), strings(raw, data, entries.value_at, entries.value_length)], fields=list(HEADERS.value_type)
    )
    offsets = np.concatenate([[0], np.cumsum(fields.headers)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS, mask=pa.array(fields.headers == 0))


def _entries(data: Bytes, fields: _Fields) -> _Entries:
    """Find all headers: one of each record in a turn, as long as many have more. Raises IndexError, ValueError."""
    rows = np.flatnonzero(fields.headers > 0)
    at, left, found = fields.headers_at[rows], fields.headers[rows], [_Entries(*[np.empty(0, np.int64)] * 5)]
    while len(rows) >= _FEW:
        entries, at = _next_entries(data, rows, at, fields.end)
        found.append(entries)
        left = left - 1
        if (at[left == 0] != fields.end[rows[left == 0]]).any():
            raise ValueError("a record does not end where its last header ends")
        rows, at, left = rows[left > 0], at[left > 0], left[left > 0]
    for row, position, count in zip(rows.tolist(), at.tolist(), left.tolist(), strict=True):  # few, or one with many
        found.append(_entries_of(data, row, position, count, int(fields.end[row])))
    whole = _Entries(*(np.concatenate(arrays) for arrays in zip(*found, strict=True)))
    order = np.argsort(whole.row, kind="stable")
    return _Entries(*(array[order] for array in whole))


def _next_entries(data: Bytes, rows: Longs, at: Longs, ends: Longs) -> tuple[_Entries, Longs]:
    """Read one header of each of these records. Returns them, and the positions behind them."""
    end = ends[rows]
    name_length, name_at = varints(data, at)
    if ((name_length < 0) | (name_length > end - name_at)).any():
        raise ValueError("the name of a header ends outside its record")
    value_length, value_at = varints(data, name_at + name_length)
    if ((value_length < -1) | (value_length > end - value_at)).any():
        raise ValueError("the value of a header ends outside its record")
    return _Entries(rows, name_at, name_length, value_at, value_length), value_at + np.maximum(value_length, 0)


def _entries_of(data: Bytes, row: int, at: int, count: int, end: int) -> _Entries:
    """Read the headers of one record, one after the other (cold)."""
    found = list[tuple[int, ...]]()
    for _ in range(count):
        name_length, name_at = varint(data, at)
        if not 0 <= name_length <= end - name_at:
            raise ValueError("the name of a header ends outside its record")
        value_length, value_at = varint(data, name_at + name_length)
        if not -1 <= value_length <= end - value_at:
            raise ValueError("the value of a header ends outside its record")
        at = value_at + max(value_length, 0)
        found.append((row, name_at, name_length, value_at, value_length))
    if at != end:
        raise ValueError("a record does not end where its last header ends")
    return _Entries(*np.array(found, np.int64).T)


def _decoded(names: pa.BinaryArray) -> pa.StringArray:
    """Return texts; bytes that are no UTF-8 are replaced, as Java does (cold)."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
