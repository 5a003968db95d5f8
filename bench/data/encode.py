"""Encodes Avro in whole columns: each field of many events becomes one binary array, and a join makes the events.

No event is ever a Python object, so a pinned topic of ten million events is filled in a minute. Encodings are those of
the Avro 1.12 specification, "binary encoding".
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_VARINT_BYTES_MAX = 10
# The two hexadecimal digits of each byte, as one number of 16 bits.
_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), np.uint16)
_FOUR_DIGITS = np.frombuffer(b"".join(b"%04d" % n for n in range(10_000)), np.uint32)


def longs(values: Longs) -> pa.BinaryArray:
    """Encode `int`, `long` and enum indices: zig-zag, then seven bits a byte, the lowest first."""
    return varints(((values << 1) ^ (values >> 63)).view(np.uint64))


def varints(values: npt.NDArray[np.uint64]) -> pa.BinaryArray:
    """Write numbers with seven bits a byte, the lowest first."""
    left = values
    sevens = np.zeros((len(values), _VARINT_BYTES_MAX), np.uint8)
    lengths = np.ones(len(values), np.int64)
    for position in range(_VARINT_BYTES_MAX):
        sevens[:, position] = left & 0x7F
        left = left >> np.uint64(7)
        more = left != 0
        if not more.any():
            return _variable_width_array(sevens[:, : position + 1], lengths)
        sevens[:, position] |= more.view(np.uint8) << 7
        lengths += more
    raise AssertionError("a 64-bit number has at most ten groups of seven bits")


def doubles(values: Doubles, present: Mask | None = None) -> pa.BinaryArray:
    """Encode `double`, or `["null", "double"]` where `present` tells which are not null."""
    raw = values.astype("<f8").view(np.uint8).reshape(-1, 8)
    return fixed_width_array(raw) if present is None else _optional(raw, present)


def booleans(values: Mask) -> pa.BinaryArray:
    """Encode `boolean`."""
    return fixed_width_array(values.view(np.uint8).reshape(-1, 1))


def text(content: Bytes, present: Mask | None = None) -> pa.BinaryArray:
    """Encode `string` of one width, one row of the matrix each; `["null", "string"]` where `present` is given."""
    head = np.frombuffer(one_long(content.shape[1]), np.uint8)
    encoded = np.hstack([np.broadcast_to(head, (len(content), len(head))), content])
    if present is None:
        return fixed_width_array(encoded)
    return _optional(encoded, present)


def prose(words: npt.NDArray[np.uint64], counts: Longs) -> pa.BinaryArray:
    """Encode `string`: text i is the next `counts[i]` words of eight bytes."""
    return join_parts([longs(counts * 8), texts(words, counts)])


def texts(words: npt.NDArray[np.uint64], counts: Longs) -> pa.BinaryArray:
    """Return bytes: value i is the next `counts[i]` words of eight bytes."""
    ends = np.concatenate([[0], np.cumsum(counts * 8)]).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(ends), pa.py_buffer(words)])


def pick_encodings(codes: Longs, encodings: Sequence[bytes]) -> pa.BinaryArray:
    """Pick a ready encoding for each event: for columns of few values."""
    return pa.array(encodings, pa.binary()).take(pa.array(codes))


def blocks(items: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
    """Encode `array` or `map`: value i is one block of the next `counts[i]` items; none is only the end mark."""
    heads = [b"", *(one_long(n) for n in range(1, int(counts.max(initial=0)) + 1))]
    return join_parts([pick_encodings(counts, heads), group_items(items, counts), pa.scalar(b"\0", pa.binary())])


def group_items(items: pa.BinaryArray, counts: Longs) -> pa.BinaryArray:
    """Lay items end to end: value i is the next `counts[i]` items."""
    assert items.offset == 0, "items come fresh from an encoder"
    item_ends = np.frombuffer(items.buffers()[1], np.int32, len(items) + 1)
    ends = item_ends[np.concatenate([[0], np.cumsum(counts)])]
    return pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(ends), items.buffers()[2]])


def join_parts(parts: Sequence[pa.BinaryArray | pa.BinaryScalar]) -> pa.BinaryArray:
    """Lay the parts of each event end to end: a record is its fields and nothing else."""
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))


def fixed_width_array(matrix: Bytes) -> pa.BinaryArray:
    """Take the rows of a matrix as values of one width."""
    count, width = matrix.shape
    ends = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return _array(ends, np.ascontiguousarray(matrix))


def hexadecimal(numbers: npt.NDArray[np.uint64]) -> Bytes:
    """Write each number as 16 hexadecimal digits, one row each."""
    return _HEX[numbers.view(np.uint8)].view(np.uint8).reshape(len(numbers), 16)


def decimal(numbers: Longs) -> Bytes:
    """Write each number below 10^12 as 12 decimal digits, one row each."""
    groups = np.stack([_FOUR_DIGITS[numbers // 10**power % 10_000] for power in (8, 4, 0)], axis=1)
    return groups.view(np.uint8)


def one_long(value: int) -> bytes:
    """Encode one number: a length, a count or a branch."""
    remainder = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while remainder & ~0x7F:
        encoded.append((remainder & 0x7F) | 0x80)
        remainder >>= 7
    encoded.append(remainder)
    return bytes(encoded)


def one_text(value: str) -> bytes:
    """Encode one string."""
    raw = value.encode()
    return one_long(len(raw)) + raw


def one_optional_text(value: str | None) -> bytes:
    """Encode one `["null", "string"]`."""
    return b"\0" if value is None else b"\2" + one_text(value)


def _optional(encoded: Bytes, present: Mask) -> pa.BinaryArray:
    """Put the branch before each value: 0 for null, which has no bytes, 1 (zig-zag 2) for the value."""
    branch = (present.view(np.uint8) * 2).reshape(-1, 1)
    return _variable_width_array(np.hstack([branch, encoded]), np.where(present, encoded.shape[1] + 1, 1))


def _variable_width_array(matrix: Bytes, lengths: Longs) -> pa.BinaryArray:
    """Take the first `lengths[i]` bytes of row i as value i."""
    width = matrix.shape[1]
    if (lengths == width).all():
        return fixed_width_array(matrix)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return _array(ends, matrix[np.arange(width) < lengths[:, None]])


def _array(ends: npt.NDArray[np.int32], content: Bytes) -> pa.BinaryArray:
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(content)])
