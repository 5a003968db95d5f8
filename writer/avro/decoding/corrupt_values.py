"""Finds the values of a refused block that do not match their schema, in one pass over all of them.

What is named here is decoded one by one, and the strict reader judges it. What is not named has nothing that Avro
forbids, and is decoded in a block, which the nonces prove. A sound value that is named costs time and never a record.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from writer.avro import schema as avro

Positions = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
ROUNDS_MAX = 20_000  # steps over all values, some 50 us each: one hostile array of a million items is not followed
_INT_BYTES_MAX = 5
_LONG_BYTES_MAX = 10
_FIXED_BYTES = {"null": 0, "float": 4, "double": 8}


class _TooLong(Exception):
    """The walk would take longer than halving does."""


def suspects(values: pa.Array, record: avro.Record, header_bytes: int) -> Mask | None:
    """Return for each value (header included) whether its bytes cannot be one record of the schema; None: not known."""
    walk = _Walk(values, record, header_bytes)
    try:
        walk.step(record.root, np.arange(len(values)))
    except _TooLong:
        return None
    found: Mask = walk.bad | (walk.at != walk.end)
    return found


class _Walk:
    """The position at which each value is read. A value that is found corrupt is not read further."""

    def __init__(self, values: pa.Array, record: avro.Record, header_bytes: int) -> None:
        ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        self._content = values.buffers()[2] or pa.py_buffer(b"")
        self._body = np.frombuffer(self._content, np.uint8)
        self._record = record
        self._rounds = 0
        self.end = ends[1:].astype(np.int64)
        self.at = np.minimum(ends[:-1] + np.int64(header_bytes), self.end)
        self.bad = self.end - ends[:-1] < header_bytes

    def step(self, schema: avro.Schema, rows: Positions) -> None:
        """Step over one part of the values `rows`."""
        schema = self._record.resolve(schema)
        if isinstance(schema, list):
            self._union(schema, rows)
            return
        match schema["type"] if isinstance(schema, dict) else schema:
            case "record":
                for field in schema["fields"]:
                    self.step(field["type"], rows)
            case "array":
                self._items(rows, schema["items"], keyed=False)
            case "map":
                self._items(rows, schema["values"], keyed=True)
            case "string":
                self._text(rows)
            case "bytes":
                length = self._number(rows)
                if avro.decimal_digits(schema) is not None:
                    self._blame(rows, length == 0)
                self._over(rows, length)
            case "fixed":
                self._over(rows, schema["size"])
            case "int":
                self._int(rows)
            case "long":
                self._number(rows)
            case "enum":
                self._index(rows, len(schema["symbols"]))
            case "boolean":
                self._blame(rows, self._byte(rows) > 1)
                self._over(rows, 1)
            case primitive:
                self._over(rows, _FIXED_BYTES[primitive])

    def _union(self, branches: list[avro.Schema], rows: Positions) -> None:
        index = self._index(rows, len(branches))
        for at, branch in enumerate(branches):
            if branch != "null":
                self.step(branch, rows[index == at])

    def _items(self, rows: Positions, items: avro.Schema, *, keyed: bool) -> None:
        """Blocks of items: a count, which is negative where the block's bytes follow it; a count of 0 ends them."""
        while len(rows := rows[~self.bad[rows]]):
            counts = self._number(rows)
            is_sized = counts < 0
            sizes = np.zeros(len(rows), np.int64)
            if is_sized.any():
                sizes[is_sized] = self._number(rows[is_sized])
            block_ends = self.at[rows] + sizes
            counts = np.abs(counts)  # the least number stays negative
            self._blame(rows, (sizes < 0) | (counts < 0) | (counts > self.end[rows] - self.at[rows]))
            left = np.where(self.bad[rows], 0, counts)
            while (more := left > 0).any():
                if keyed:
                    self._text(rows[more])
                self.step(items, rows[more])
                left = np.where(self.bad[rows], 0, left - more)
            self._blame(rows, is_sized & (self.at[rows] != block_ends))
            rows = rows[counts > 0]

    def _text(self, rows: Positions) -> None:
        length = self._number(rows)
        start = self.at[rows]
        self._over(rows, length)
        self._blame(rows, ~_readable(self._content, start, self.at[rows]))

    def _int(self, rows: Positions) -> Positions:
        """Read an int of each value, and step over it."""
        before = self.at[rows]
        number = self._number(rows)
        self._blame(rows, (number != number.astype(np.int32)) | (self.at[rows] - before > _INT_BYTES_MAX))
        return number

    def _index(self, rows: Positions, count: int) -> Positions:
        """Read the index of a union or enum of each value, which has so many, and step over it."""
        index = self._int(rows)
        self._blame(rows, (index < 0) | (index >= count))
        return index

    def _number(self, rows: Positions) -> Positions:
        """Read a variable-length number of each value, and step over it."""
        self._rounds += 1
        if self._rounds > ROUNDS_MAX:
            raise _TooLong
        byte = self._byte(rows)
        raw = (byte & 0x7F).astype(np.uint64)
        taken = np.ones(len(rows), np.int64)
        going = np.flatnonzero(byte >> 7)
        for place in range(1, _LONG_BYTES_MAX):
            if not len(going):
                break
            byte = self._byte(rows[going], place)
            raw[going] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            taken[going] += 1
            if place == _LONG_BYTES_MAX - 1:
                self._blame(rows[going], byte > 1)  # more than 64 bits, or a further byte
            going = going[byte >> 7 != 0]
        self._over(rows, taken)
        return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64)

    def _byte(self, rows: Positions, further: int = 0) -> npt.NDArray[np.uint8]:
        found: npt.NDArray[np.uint8] = self._body.take(self.at[rows] + further, mode="clip")
        return found

    def _over(self, rows: Positions, size: int | Positions) -> None:
        """Step over bytes of each value; one that does not have them is bad."""
        too_few = (size > self.end[rows] - self.at[rows]) | (np.asarray(size) < 0)
        if too_few.any():
            self._blame(rows, too_few)
            size = np.where(too_few, 0, size)
        self.at[rows] += size

    def _blame(self, rows: Positions, which: Any) -> None:
        self.bad[rows] |= which


def _readable(content: pa.Buffer, start: Positions, end: Positions) -> Mask:
    """Return which stretches of the content, in rising order, are UTF-8: one look at all, halved where one is not."""
    around = np.stack([start, end], axis=1).ravel()  # text, gap, text, gap, …
    pieces = pa.Array.from_buffers(pa.large_binary(), max(len(around) - 1, 0), [None, pa.py_buffer(around), content])
    texts = pieces.take(pa.array(np.arange(0, len(around), 2))).view(pa.large_string())
    sound = np.ones(len(texts), np.bool_)
    pending = [(0, len(texts))]
    while pending:
        first, last = pending.pop()
        try:
            texts.slice(first, last - first).validate(full=True)
        except pa.ArrowInvalid:
            middle = (first + last) // 2
            if last - first == 1:
                sound[first] = False
            else:
                pending += [(first, middle), (middle, last)]
    return sound
