"""Reads varints and cuts byte strings out of a buffer, at many positions at once."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]

# The most bytes of a string that lie in Arrow's view of it.
_INLINE_BYTES = 12
_VARINT_BYTES_MAX = 10
# A byte of a varint from which on another byte follows.
_CONTINUES = 0x80
_INT64_MAX = np.int64(2**63 - 1)
_UINT64_MAX = 2**64 - 1


def read_varints(data: Bytes, positions: Longs) -> tuple[Longs, Longs]:
    """Read a zig-zag varint at each position. Returns the values, and the positions behind them.

    Raises IndexError outside the bytes, ValueError for more than ten bytes.

    Example: in the bytes `02 ac 02 01`, the positions 0, 1 and 3 give the values 1, 150 and -1, and the positions 1, 3
    and 4.
    """
    byte = data[positions]
    unsigned = (byte & 0x7F).astype(np.int64)
    after = positions + 1
    shift = 7
    # Where all numbers have a second byte, as lengths do, no selection is needed to read it.
    if len(byte) and byte.min() >= _CONTINUES:
        byte = data[after]
        unsigned = unsigned | ((byte & 0x7F).astype(np.int64) << shift)
        after = after + 1
        shift = 14
    longer = np.flatnonzero(byte >= _CONTINUES)
    while len(longer):
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a number of more than ten bytes")
        byte = data[after[longer]]
        unsigned[longer] |= (byte & 0x7F).astype(np.int64) << shift
        after[longer] += 1
        longer = longer[byte >= _CONTINUES]
        shift += 7
    return ((unsigned >> 1) & _INT64_MAX) ^ -(unsigned & 1), after


def read_varint(data: memoryview, position: int) -> tuple[int, int]:
    """Read one zig-zag varint of bytes. Returns its value, and the position behind it. Raises as `read_varints`."""
    raw = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < _CONTINUES:
            raw &= _UINT64_MAX
            return (raw >> 1) ^ -(raw & 1), position
    raise ValueError("a number of more than ten bytes")


def cut_strings(raw: pa.Buffer, positions: Longs, lengths: Longs) -> pa.BinaryArray:
    """Make a column of pieces of a buffer, which lie within it one behind the other; a length of -1 is null.

    Example: of the bytes `abcde`, the positions 0, 2 and 2 with the lengths 2, -1 and 3 give `ab`, null and `cde`.
    """
    is_null = lengths < 0
    if is_null.all():
        return pa.nulls(len(positions), pa.binary())
    is_valid = None
    if is_null.any():
        is_valid = ~is_null
        lengths = np.where(is_null, 0, lengths)
    if ((lengths > 0) & (lengths <= _INLINE_BYTES)).any():
        return _take_pieces(raw, positions, lengths, is_valid)
    return _copy_views(raw, positions, lengths, is_valid)


def _copy_views(raw: pa.Buffer, positions: Longs, lengths: Longs, is_valid: Bools | None) -> pa.BinaryArray:
    """Cut pieces of no bytes, or of more than Arrow keeps within a view of them.

    Views of the pieces first (length, four bytes of prefix, which buffer, position), then one native copy. The copy
    reads no prefix, so none is written.
    """
    views = np.zeros((len(positions), 4), np.int32)
    views[:, 0] = lengths
    views[:, 3] = positions
    buffers = [_bitmap(is_valid), pa.py_buffer(views), raw]
    return pa.Array.from_buffers(pa.binary_view(), len(positions), buffers).cast(pa.binary())


def _take_pieces(raw: pa.Buffer, positions: Longs, lengths: Longs, is_valid: Bools | None) -> pa.BinaryArray:
    """Cut pieces of any length: make a column of the pieces and of what lies between them, and take every second value.

    Example: the pieces `bc` and `e` of `abcde` are the first and the third value of the column `bc`, `d`, `e`, ``.
    """
    count = 2 * len(positions)
    offsets = np.empty(count + 1, np.int32)
    offsets[:-1:2] = positions
    offsets[1::2] = positions + lengths
    offsets[-1] = offsets[-2]
    if is_valid is not None:
        is_valid = np.repeat(is_valid, 2)
    buffers = [_bitmap(is_valid), pa.py_buffer(offsets), raw]
    column = pa.Array.from_buffers(pa.binary(), count, buffers)
    return column.take(pa.array(np.arange(0, count, 2)))


def _bitmap(is_valid: Bools | None) -> pa.Buffer | None:
    return None if is_valid is None else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
