"""Finds the values of a refused block that do not match their schema, in one pass over all of them.

A suspect is decoded by itself, and the strict reader judges it. All other values have nothing that Avro forbids, and
are decoded in a block, which the nonces prove. A sound value among the suspects costs time and never a record.

The pass takes a step for all values at a time. The few that have many more items than the others are left to the strict
reader, which steps through one value in a hundredth of that time.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.value_reader import Read, compile_reader

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Steps over all values, some 50 us each: hostile arrays of a million items are not followed to their ends.
_ROUNDS_MAX = 20_000
# So few values with further items are left to the strict reader, once so many items of each were skipped.
_FEW_VALUES = 64
_ITEMS_MIN = 64
_INT_BYTES_MAX = 5
_LONG_BYTES_MAX = 10
_GROUP_BITS = 7
_GROUP = 0x7F
_FIXED_BYTES = {"null": 0, "float": 4, "double": 8}


class _TooLong(Exception):
    """The scan would take longer than to read each value by itself."""


def suspects(values: pa.Array, record: avro.Record, header_bytes: int) -> Mask:
    """Return for each value (header included) whether its bytes cannot be one record of the schema."""
    scan = _ValueScan(values, record, header_bytes)
    try:
        scan.skip(record.root, np.arange(len(values)))
    except _TooLong:
        scan.leave_unread(np.flatnonzero(~scan.is_bad))
    is_suspect: Mask = scan.is_bad | (scan.positions != scan.ends)
    unread = np.flatnonzero(scan.is_unread)
    if len(unread):
        read = _compile_root_reader(record.text)
        # Of a refused block alone: the few whose lists are long.
        unread_values = values.take(pa.array(unread)).to_pylist()
        is_suspect[unread] = [not _is_record(read, value, header_bytes) for value in unread_values]
    return is_suspect


@lru_cache(maxsize=64)
def _compile_root_reader(text: str) -> Read:
    record = avro.parse(text)
    return compile_reader(record, record.root)


def _is_record(read: Read, value: bytes, header_bytes: int) -> bool:
    """Return whether the bytes behind a header are one record, whose values a table can hold."""
    try:
        _, position = read(value, header_bytes)
    except (ValueError, IndexError):
        return False
    return position == len(value)


class _ValueScan:
    """Reads all values side by side: a position in each. A value that is corrupt is not read further.

    `rows` are indexes of the values that a method reads on.
    """

    def __init__(self, values: pa.Array, record: avro.Record, header_bytes: int) -> None:
        offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        self._content = values.buffers()[2] or pa.py_buffer(b"")
        self._bytes = np.frombuffer(self._content, np.uint8)
        self._record = record
        self._rounds = 0
        self.ends = offsets[1:].astype(np.int64)
        self.positions = np.minimum(offsets[:-1] + np.int64(header_bytes), self.ends)
        self.is_bad = self.ends - offsets[:-1] < header_bytes
        # Values that are to be read by themselves.
        self.is_unread = np.zeros(len(values), np.bool_)

    def leave_unread(self, rows: Longs) -> None:
        """Read some values no further: whether they are bad is not known."""
        self.is_unread[rows] = True
        self._mark_bad(rows, np.ones(len(rows), np.bool_))

    def skip(self, schema: avro.Schema, rows: Longs) -> None:
        """Step over one part of the values."""
        schema = self._record.resolve(schema)
        if isinstance(schema, list):
            self._skip_union(schema, rows)
            return
        match avro.type_name(schema):
            case "record":
                for field in schema["fields"]:
                    self.skip(field["type"], rows)
            case "array":
                self._skip_items(rows, schema["items"], has_keys=False)
            case "map":
                self._skip_items(rows, schema["values"], has_keys=True)
            case "string":
                self._skip_text(rows)
            case "bytes":
                length = self._read_number(rows)
                if avro.decimal_digits(schema) is not None:
                    self._mark_bad(rows, length == 0)
                self._advance(rows, length)
            case "fixed":
                self._advance(rows, schema["size"])
            case "int":
                self._read_int(rows)
            case "long":
                self._read_number(rows)
            case "enum":
                self._read_index(rows, len(schema["symbols"]))
            case "boolean":
                self._mark_bad(rows, self._read_byte(rows) > 1)
                self._advance(rows, 1)
            case primitive:
                self._advance(rows, _FIXED_BYTES[primitive])

    def _skip_union(self, branches: list[avro.Schema], rows: Longs) -> None:
        indexes = self._read_index(rows, len(branches))
        for index, branch in enumerate(branches):
            if branch != "null":
                self.skip(branch, rows[indexes == index])

    def _skip_items(self, rows: Longs, items: avro.Schema, *, has_keys: bool) -> None:
        """Skip blocks of items: a count, which is negative where the block's bytes follow it; a count of 0 ends them.

        All rows skip a block in step: for counts of 2, 0 and 1, rows 0 and 2 skip an item, then row 0 alone; the next
        blocks are of rows 0 and 2.
        """
        skipped_items = 0
        while len(rows := rows[~self.is_bad[rows]]):
            counts = self._read_number(rows)
            is_sized = counts < 0
            sizes = np.zeros(len(rows), np.int64)
            if is_sized.any():
                sizes[is_sized] = self._read_number(rows[is_sized])
            block_ends = self.positions[rows] + sizes
            # The least number stays negative.
            counts = np.abs(counts)
            remaining_bytes = self.ends[rows] - self.positions[rows]
            self._mark_bad(rows, (sizes < 0) | (counts < 0) | (counts > remaining_bytes))
            remaining = np.where(self.is_bad[rows], 0, counts)
            while (has_item := remaining > 0).any():
                if skipped_items >= _ITEMS_MIN and np.count_nonzero(has_item) <= _FEW_VALUES:
                    self.leave_unread(rows[has_item])
                    break
                skipped_items += 1
                if has_keys:
                    self._skip_text(rows[has_item])
                self.skip(items, rows[has_item])
                remaining = np.where(self.is_bad[rows], 0, remaining - has_item)
            self._mark_bad(rows, is_sized & (self.positions[rows] != block_ends))
            rows = rows[counts > 0]

    def _skip_text(self, rows: Longs) -> None:
        length = self._read_number(rows)
        starts = self.positions[rows]
        self._advance(rows, length)
        self._mark_bad(rows, ~_is_utf8(self._content, starts, self.positions[rows]))

    def _read_int(self, rows: Longs) -> Longs:
        """Read an int of each value, and step over it."""
        starts = self.positions[rows]
        numbers = self._read_number(rows)
        size = self.positions[rows] - starts
        self._mark_bad(rows, (numbers != numbers.astype(np.int32)) | (size > _INT_BYTES_MAX))
        return numbers

    def _read_index(self, rows: Longs, count: int) -> Longs:
        """Read the index of a union or enum of each value, which has so many, and step over it."""
        indexes = self._read_int(rows)
        self._mark_bad(rows, (indexes < 0) | (indexes >= count))
        return indexes

    def _read_number(self, rows: Longs) -> Longs:
        """Read a variable-length number of each value, and step over it.

        The bytes `02`, `01`, `AC 02` give 1, -1, 150.
        """
        self._rounds += 1
        if self._rounds > _ROUNDS_MAX:
            raise _TooLong
        byte = self._read_byte(rows)
        raw = (byte & _GROUP).astype(np.uint64)
        sizes = np.ones(len(rows), np.int64)
        # Indexes into `rows` of the numbers that have a further byte.
        longer = np.flatnonzero(byte >> _GROUP_BITS)
        for byte_index in range(1, _LONG_BYTES_MAX):
            if not len(longer):
                break
            byte = self._read_byte(rows[longer], byte_index)
            raw[longer] |= (byte & _GROUP).astype(np.uint64) << np.uint64(_GROUP_BITS * byte_index)
            sizes[longer] += 1
            if byte_index == _LONG_BYTES_MAX - 1:
                # More than 64 bits, or a further byte.
                self._mark_bad(rows[longer], byte > 1)
            longer = longer[byte >> _GROUP_BITS != 0]
        self._advance(rows, sizes)
        return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)

    def _read_byte(self, rows: Longs, byte_index: int = 0) -> npt.NDArray[np.uint8]:
        """Read a byte of each value, without a step over it."""
        byte: npt.NDArray[np.uint8] = self._bytes.take(self.positions[rows] + byte_index, mode="clip")
        return byte

    def _advance(self, rows: Longs, size: int | Longs) -> None:
        """Step over bytes of each value; one that does not have them is bad."""
        is_beyond = (size > self.ends[rows] - self.positions[rows]) | (np.asarray(size) < 0)
        if is_beyond.any():
            self._mark_bad(rows, is_beyond)
            size = np.where(is_beyond, 0, size)
        self.positions[rows] += size

    def _mark_bad(self, rows: Longs, is_bad: Mask) -> None:
        self.is_bad[rows] |= is_bad


def _is_utf8(content: pa.Buffer, starts: Longs, ends: Longs) -> Mask:
    """Return which ranges of the content, in rising order, are UTF-8: one look at all, halved where one is not.

    Of the content `a FF b`, the ranges (0, 1), (1, 2), (2, 3) give true, false, true.
    """
    # The offsets of: text, gap, text, gap, …
    offsets = np.stack([starts, ends], axis=1).ravel()
    buffers = [None, pa.py_buffer(offsets), content]
    ranges = pa.Array.from_buffers(pa.large_binary(), max(len(offsets) - 1, 0), buffers)
    texts = ranges.take(pa.array(np.arange(0, len(offsets), 2))).view(pa.large_string())
    is_utf8 = np.ones(len(texts), np.bool_)
    pending = [(0, len(texts))]
    while pending:
        first, last = pending.pop()
        try:
            texts.slice(first, last - first).validate(full=True)
        except pa.ArrowInvalid:
            middle = (first + last) // 2
            if last - first == 1:
                is_utf8[first] = False
            else:
                pending += [(first, middle), (middle, last)]
    return is_utf8
