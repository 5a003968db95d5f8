"""Encodes JSON in whole columns, as `encode` does Avro: each field of many events becomes one binary array.

Texts of the data sets hold nothing that JSON escapes. Nulls are written; times are ISO-8601 text in UTC.
"""

import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bench.data.encode import Bytes, Doubles, Longs, Mask, fixed_width_array, group_items, join_parts, texts


class JsonColumns:
    """Columns of JSON values."""

    def longs(self, values: Longs) -> pa.BinaryArray:
        """Encode whole numbers."""
        return _as_binary(pa.array(values))

    def times(self, milliseconds: Longs) -> pa.BinaryArray:
        """Encode instants, such as `"2026-11-20T12:40:00.123Z"`."""
        instants = pa.array(milliseconds).cast(pa.timestamp("ms"))
        return _quote(pc.strftime(instants, format="%Y-%m-%dT%H:%M:%SZ").cast(pa.binary()))

    def symbols(self, symbols: Sequence[str], codes: Longs) -> pa.BinaryArray:
        """Encode the names of an enum."""
        return self.words(symbols, codes)

    def doubles(self, values: Doubles, present: Mask | None = None) -> pa.BinaryArray:
        """Encode numbers in their shortest text; null where `present` is false."""
        return _optional(_as_binary(pa.array(values)), present)

    def booleans(self, values: Mask) -> pa.BinaryArray:
        """Encode `true` and `false`."""
        return _as_binary(pa.array(values))

    def text(self, content: Bytes, present: Mask | None = None) -> pa.BinaryArray:
        """Encode texts of one width, one row of the matrix each; null where `present` is false."""
        return _optional(_quote(fixed_width_array(content)), present)

    def prose(self, words: npt.NDArray[np.uint64], counts: Longs) -> pa.BinaryArray:
        """Encode texts: text i is the next `counts[i]` words of eight bytes."""
        return _quote(texts(words, counts))

    def words(self, values: Sequence[str | None], codes: Longs) -> pa.BinaryArray:
        """Pick one of few texts for each event."""
        encodings = [json.dumps(value, ensure_ascii=False).encode() for value in values]
        return pa.array(encodings, pa.binary()).take(pa.array(codes))

    def array(self, items: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
        """Encode arrays: value i has the next `counts[i]` items."""
        return _enclose("[", _with_commas(items, counts), counts, "]")

    def mapping(self, keys: pa.BinaryArray, values: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
        """Encode objects: value i has the next `counts[i]` keys and values. Keys come from `words`."""
        members = join_parts([keys, _scalar(":"), values])
        return _enclose("{", _with_commas(members, counts), counts, "}")

    def record(self, names: Sequence[str], columns: Sequence[pa.BinaryArray]) -> pa.BinaryArray:
        """Encode objects with a member for each column."""
        parts: list[pa.BinaryArray | pa.BinaryScalar] = []
        for index, (name, column) in enumerate(zip(names, columns, strict=True)):
            before = "," if index else "{"
            parts += [_scalar(f"{before}{json.dumps(name)}:"), column]
        return join_parts([*parts, _scalar("}")])

    def optional(self, column: pa.BinaryArray, present: Mask) -> pa.BinaryArray:
        """Put null where `present` is false."""
        return _optional(column, present)


def _scalar(text: str) -> pa.BinaryScalar:
    return pa.scalar(text.encode(), pa.binary())


def _as_binary(values: pa.Array) -> pa.BinaryArray:
    return values.cast(pa.string()).cast(pa.binary())


def _quote(content: pa.BinaryArray) -> pa.BinaryArray:
    return join_parts([_scalar('"'), content, _scalar('"')])


def _optional(column: pa.BinaryArray, present: Mask | None) -> pa.BinaryArray:
    if present is None:
        return column
    return pc.if_else(pa.array(present), column, _scalar("null"))


def _with_commas(items: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
    """Put a comma before each item that is not the first of its value."""
    is_first = np.zeros(len(items), np.bool_)
    starts = np.cumsum(counts) - counts
    is_first[starts[counts > 0]] = True
    commas = pc.if_else(pa.array(is_first), _scalar(""), _scalar(","))
    return join_parts([commas, items])


def _enclose(before: str, items: pa.BinaryArray, counts: Longs, behind: str) -> pa.BinaryArray:
    return join_parts([_scalar(before), group_items(items, counts), _scalar(behind)])
