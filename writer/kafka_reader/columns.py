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

from headrace.bucketers.timestamps import kafka_times
from headrace.writer.framing.wire_format import HEADERS
from headrace.writer.kafka_reader.byte_columns import Bytes, Longs, cut_strings, read_varint, read_varints
from headrace.writer.kafka_reader.errors import Corrupt, damaged_batch
from headrace.writer.kafka_reader.record_buffer import BufferedBatch, RecordBuffer

_COLUMN_TYPES: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": HEADERS,
}
# As few records that have more headers than all others are read one by one.
_FEW_RECORDS = 16
# Length of a name, and of a value.
_HEADER_BYTES_MIN = 2


@dataclass(frozen=True)
class ColumnChoice:
    """Which columns a task needs beside partition, offset, timestamp, key and value.

    `raw`: all that a record has; no column of headers where none of the records has some.
    """

    topic: bool = True
    timestamp_type: bool = False
    headers: bool = False
    raw: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The columns, in the order of Spark's source where a task takes them."""
        choices = {
            "topic": self.topic,
            "timestampType": self.timestamp_type or self.raw,
            "headers": self.headers or self.raw,
        }
        return pa.schema([(name, kind) for name, kind in _COLUMN_TYPES.items() if choices.get(name, True)])


@dataclass(frozen=True)
class _Fields:
    """Where the fields of each record are: positions in the buffer, and lengths (-1: null).

    `batch_index`: of the record's batch in the buffer's list. `headers_position`: behind the count of headers.
    """

    batch_index: Longs
    offset: Longs
    time_ms: Longs
    key_position: Longs
    key_length: Longs
    value_position: Longs
    value_length: Longs
    headers_position: Longs
    header_count: Longs
    record_end: Longs

    def where(self, mask: npt.NDArray[np.bool_]) -> "_Fields":
        """Return those of some records."""
        return _Fields(**{name: array[mask] for name, array in vars(self).items()})


class _Headers(NamedTuple):
    """Headers: of which record each one is, and where its name and value are."""

    row: Longs
    name_position: Longs
    name_length: Longs
    value_position: Longs
    value_length: Longs


def columns(buffer: RecordBuffer, choice: ColumnChoice) -> tuple[pa.RecordBatch, Longs]:
    """Turn the records of a buffer into rows, those of its batches that lie in their ranges, in their order.

    Returns how many rows each of the buffer's batches gave, too. The rows do not need the buffer any more. Raises
    Corrupt.
    """
    assert buffer.batches, "there are records to turn into columns"
    data = np.frombuffer(buffer.bytes(), np.uint8)
    try:
        fields = _read_fields(data, buffer)
    except (IndexError, ValueError) as error:
        raise _corrupt(buffer, 0, f"a number of a record is damaged: {error}") from error
    fields = _select_ranges(fields, buffer)
    row_counts = np.bincount(fields.batch_index, minlength=len(buffer.batches))
    schema = choice.schema
    return pa.RecordBatch.from_arrays(_arrays(fields, buffer, row_counts, schema), schema=schema), row_counts


def _arrays(fields: _Fields, buffer: RecordBuffer, row_counts: Longs, schema: pa.Schema) -> list[pa.Array]:
    """Make the columns of a schema. `row_counts`: of each batch. Raises Corrupt."""
    raw = buffer.bytes()
    data = np.frombuffer(raw, np.uint8)
    batches = buffer.batches
    makers = {
        "partition": lambda: _repeat_numbers([item.range.part.partition for item in batches], row_counts),
        "topic": lambda: _repeat_topics([item.range.part.topic for item in batches], row_counts),
        "offset": lambda: pa.array(fields.offset),
        "timestamp": lambda: kafka_times(pa.array(fields.time_ms)),
        "timestampType": lambda: _repeat_numbers([int(item.batch.append_time) for item in batches], row_counts),
        "key": lambda: cut_strings(raw, fields.key_position, fields.key_length),
        "value": lambda: cut_strings(raw, fields.value_position, fields.value_length),
        "headers": lambda: _header_column(buffer, raw, data, fields),
    }
    return [makers[name]() for name in schema.names]


def _read_fields(data: Bytes, buffer: RecordBuffer) -> _Fields:
    """Read the numbers of all records. Raises Corrupt; IndexError, ValueError where they lead out of the bytes.

    Example: a batch with base offset 100 and time 5,000 ms holds `14 00 02 02 02 6b 06 61 62 63 00` and `0c 00 04 04 01
    00 00`. They give the offsets 101 and 102, the times 5,001 and 5,002 ms, the keys `k` and null, and as values `abc`
    and a text without characters.
    """
    bounds = buffer.bounds()
    record_end = bounds[1:]
    batches = [item.batch for item in buffer.batches]
    batch_index = np.repeat(np.arange(len(batches)), [batch.record_count for batch in batches])
    # A record begins with its length and one byte of attributes, which mean nothing yet.
    _, position = read_varints(data, bounds[:-1])
    time_delta_ms, position = read_varints(data, position + 1)
    offset_delta, position = read_varints(data, position)
    key_length, key_position = read_varints(data, position)
    is_wrong = (key_length < -1) | (key_length > record_end - key_position)
    _check(buffer, batch_index, is_wrong, "a key ends outside its record")
    value_length, value_position = read_varints(data, key_position + np.maximum(key_length, 0))
    is_wrong = (value_length < -1) | (value_length > record_end - value_position)
    _check(buffer, batch_index, is_wrong, "a value ends outside its record")
    header_count, headers_position = read_varints(data, value_position + np.maximum(value_length, 0))
    is_wrong = (header_count < 0) | (headers_position > record_end)
    is_wrong |= (header_count == 0) & (headers_position != record_end)
    _check(buffer, batch_index, is_wrong, "a record does not end where its last field ends")
    span = np.array([batch.after - batch.base for batch in batches])[batch_index]
    falls = np.zeros(len(offset_delta), np.bool_)
    falls[1:] = (np.diff(offset_delta) <= 0) & (np.diff(batch_index) == 0)
    is_wrong = falls | (offset_delta < 0) | (offset_delta >= span)
    _check(buffer, batch_index, is_wrong, "the offsets of its records do not rise within it")
    batch_time_ms = np.array([batch.time_ms for batch in batches])[batch_index]
    has_append_time = np.array([batch.append_time for batch in batches])[batch_index]
    return _Fields(
        batch_index=batch_index,
        offset=np.array([batch.base for batch in batches])[batch_index] + offset_delta,
        time_ms=batch_time_ms + np.where(has_append_time, 0, time_delta_ms),
        key_position=key_position,
        key_length=key_length,
        value_position=value_position,
        value_length=value_length,
        headers_position=headers_position,
        header_count=header_count,
        record_end=record_end,
    )


def _check(buffer: RecordBuffer, batch_index: Longs, is_wrong: npt.NDArray[np.bool_], reason: str) -> None:
    if is_wrong.any():
        raise _corrupt(buffer, int(batch_index[int(np.argmax(is_wrong))]), reason)


def _corrupt(buffer: RecordBuffer, index: int, reason: str) -> Corrupt:
    item = buffer.batches[index]
    return damaged_batch(item.source, item.batch.base, reason)


def _select_ranges(fields: _Fields, buffer: RecordBuffer) -> _Fields:
    """Return the records that lie in the ranges that their batches are read for."""
    if all(_lies_within(item) for item in buffer.batches):
        return fields
    start = np.array([item.range.start for item in buffer.batches])[fields.batch_index]
    end = np.array([item.range.end for item in buffer.batches])[fields.batch_index]
    return fields.where((fields.offset >= start) & (fields.offset < end))


def _lies_within(item: BufferedBatch) -> bool:
    return item.range.start <= item.batch.base and item.batch.after <= item.range.end


def _repeat_numbers(values: list[int], row_counts: Longs) -> pa.Array:
    """Repeat the 32-bit number of each batch for each of its rows."""
    if len(set(values)) == 1:
        return pa.repeat(pa.scalar(values[0], pa.int32()), int(row_counts.sum()))
    return pa.array(np.repeat(np.array(values, np.int32), row_counts), pa.int32())


def _repeat_topics(names: list[str], row_counts: Longs) -> pa.Array:
    """Repeat the topic of each batch for each of its rows."""
    if len(set(names)) == 1:
        return pa.repeat(names[0], int(row_counts.sum()))
    return pa.array(names, pa.string()).take(pa.array(np.repeat(np.arange(len(names)), row_counts)))


def _header_column(buffer: RecordBuffer, raw: pa.Buffer, data: Bytes, fields: _Fields) -> pa.ListArray:
    """Return the headers of each record, null where it has none, as Spark's source gives them. Raises Corrupt."""
    try:
        headers = _read_headers(data, fields)
    except (IndexError, ValueError) as error:
        raise _corrupt(buffer, 0, f"headers of a record of it, or of a later batch, are damaged ({error})") from error
    names = cut_strings(raw, headers.name_position, headers.name_length)
    values = cut_strings(raw, headers.value_position, headers.value_length)
    pairs = pa.StructArray.from_arrays([_decode_names(names), values], fields=list(HEADERS.value_type))
    offsets = np.concatenate([[0], np.cumsum(fields.header_count)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pairs, type=HEADERS, mask=pa.array(fields.header_count == 0))


def _read_headers(data: Bytes, fields: _Fields) -> _Headers:
    """Read all headers, in the order of their records. Raises IndexError, ValueError.

    A turn reads one header of each record that has more, as long as many have. The other records are read one by one.

    Example: of three records with 2, 0 and 1 headers, the first turn reads a header of the records 0 and 2, the second
    one the other header of record 0. The rows of the result are 0, 0 and 2.
    """
    rows = np.flatnonzero(fields.header_count > 0)
    positions = fields.headers_position[rows]
    remaining = fields.header_count[rows]
    turns = [_Headers(*[np.empty(0, np.int64)] * 5)]
    while len(rows) >= _FEW_RECORDS:
        headers, positions = _read_next_headers(data, rows, positions, fields.record_end)
        turns.append(headers)
        remaining = remaining - 1
        is_last = remaining == 0
        if (positions[is_last] != fields.record_end[rows[is_last]]).any():
            raise ValueError("a record does not end where its last header ends")
        has_more = remaining > 0
        rows = rows[has_more]
        positions = positions[has_more]
        remaining = remaining[has_more]
    # These are few, or one that has many headers.
    for row, position, count in zip(rows.tolist(), positions.tolist(), remaining.tolist(), strict=True):
        turns.append(_read_headers_of_row(data.data, row, position, count, int(fields.record_end[row])))
    unordered = _Headers(*(np.concatenate(arrays) for arrays in zip(*turns, strict=True)))
    order = np.argsort(unordered.row, kind="stable")
    return _Headers(*(array[order] for array in unordered))


def _read_next_headers(data: Bytes, rows: Longs, positions: Longs, record_ends: Longs) -> tuple[_Headers, Longs]:
    """Read one header of each of these records. Returns them, and the positions behind them."""
    record_end = record_ends[rows]
    name_length, name_position = read_varints(data, positions)
    if ((name_length < 0) | (name_length > record_end - name_position)).any():
        raise ValueError("the name of a header ends outside its record")
    value_length, value_position = read_varints(data, name_position + name_length)
    if ((value_length < -1) | (value_length > record_end - value_position)).any():
        raise ValueError("the value of a header ends outside its record")
    headers = _Headers(rows, name_position, name_length, value_position, value_length)
    return headers, value_position + np.maximum(value_length, 0)


def _read_headers_of_row(data: memoryview, row: int, position: int, count: int, record_end: int) -> _Headers:
    """Read the headers of one record, one after the other (cold). Raises IndexError, ValueError."""
    if count * _HEADER_BYTES_MIN > record_end - position:
        raise ValueError("a record has more headers than bytes")
    headers = np.empty((5, count), np.int64)
    headers[0] = row
    for number in range(count):
        name_length, name_position = read_varint(data, position)
        if not 0 <= name_length <= record_end - name_position:
            raise ValueError("the name of a header ends outside its record")
        value_length, value_position = read_varint(data, name_position + name_length)
        if not -1 <= value_length <= record_end - value_position:
            raise ValueError("the value of a header ends outside its record")
        position = value_position + max(value_length, 0)
        headers[1:, number] = (name_position, name_length, value_position, value_length)
    if position != record_end:
        raise ValueError("a record does not end where its last header ends")
    return _Headers(*headers)


def _decode_names(names: pa.BinaryArray) -> pa.StringArray:
    """Return texts; bytes that are no UTF-8 are replaced, as Java does (cold)."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in names.to_pylist()], pa.string())
