"""Encodes Avro in whole columns, by type; `encode` has the bytes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.data import encode
from headrace.bench.data.encode import Bytes, Doubles, Longs, Mask


class AvroColumns:
    """Columns of Avro values."""

    def longs(self, values: Longs) -> pa.BinaryArray:
        """Encode `int` and `long`."""
        return encode.longs(values)

    def times(self, milliseconds: Longs) -> pa.BinaryArray:
        """Encode `timestamp-millis`."""
        return encode.longs(milliseconds)

    def symbols(self, symbols: Sequence[str], codes: Longs) -> pa.BinaryArray:  # noqa: ARG002 - the schema has them
        """Encode `enum`."""
        return encode.longs(codes)

    def doubles(self, values: Doubles, present: Mask | None = None) -> pa.BinaryArray:
        """Encode `double`, or `["null", "double"]`."""
        return encode.doubles(values, present)

    def booleans(self, values: Mask) -> pa.BinaryArray:
        """Encode `boolean`."""
        return encode.booleans(values)

    def text(self, content: Bytes, present: Mask | None = None) -> pa.BinaryArray:
        """Encode `string`, or `["null", "string"]`, of one width."""
        return encode.text(content, present)

    def prose(self, words: npt.NDArray[np.uint64], counts: Longs) -> pa.BinaryArray:
        """Encode `string`."""
        return encode.prose(words, counts)

    def words(self, values: Sequence[str | None], codes: Longs) -> pa.BinaryArray:
        """Encode `string`; `["null", "string"]` where None is among the values."""
        if None in values:
            return encode.pick_encodings(codes, [encode.one_optional_text(value) for value in values])
        return encode.pick_encodings(codes, [encode.one_text(value) for value in values if value is not None])

    def array(self, items: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
        """Encode `array`."""
        return encode.blocks(items, counts)

    def mapping(self, keys: pa.BinaryArray, values: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
        """Encode `map`."""
        return encode.blocks(encode.join_parts([keys, values]), counts)

    def record(self, names: Sequence[str], columns: Sequence[pa.BinaryArray]) -> pa.BinaryArray:  # noqa: ARG002
        """Encode `record`, whose names the schema has."""
        return encode.join_parts(columns)

    def optional(self, column: pa.BinaryArray, present: Mask) -> pa.BinaryArray:
        """Encode `["null", type]`."""
        present_values = encode.join_parts([pa.scalar(b"\2", pa.binary()), column])
        return pa.compute.if_else(pa.array(present), present_values, pa.scalar(b"\0", pa.binary()))
