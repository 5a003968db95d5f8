"""Reads varints and cuts byte strings out of a buffer, at many positions at once."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# Bytes of a string that lie in Arrow's view of it.
_INLINE_BYTES = 12
_VARINT_BYTES_MAX = 10
# A byte of a varint from which on another byte follows.
_CONTINUES = 0x80
_INT64_MAX = np.int64(2**63 - 1)


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


def read_varint(data: Bytes, position: int) -> tuple[int, int]:
    """Read one zig-zag varint. Returns its value, and the position behind it. Raises as `read_varints`."""
    values, after = read_varints(data, np.array([position]))
    return int(values[0]), int(after[0])


def cut_strings(raw: pa.Buffer, data: Bytes, positions: Longs, lengths: Longs) -> pa.BinaryArray:
    """Make a column of pieces of a buffer; a length of -1 is null. `data`: the same bytes. All pieces lie within.

    Views of the pieces first (Arrow's layout: length, four bytes of prefix, which buffer, position; or up to twelve
    bytes themselves), then one native copy. The copy reads no prefix, so none is written.

    Example: of the bytes `abcde`, the positions 0, 2 and 0 with the lengths 2, 3 and -1 give `ab`, `cde` and null.
    """
    is_null = lengths < 0
    if is_null.all():
        return pa.nulls(len(positions), pa.binary())
    views = np.zeros((len(positions), 4), np.int32)
    views[:, 0] = np.where(is_null, 0, lengths)
    views[:, 3] = positions
    short = np.flatnonzero(lengths <= _INLINE_BYTES)
    if len(short):
        inline = np.arange(_INLINE_BYTES)
        pieces = data[np.minimum(positions[short, None] + inline, len(data) - 1)]
        views.view(np.uint8).reshape(-1, 16)[short, 4:] = pieces * (inline < lengths[short, None])
    valid = None
    if is_null.any():
        valid = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    view_column = pa.Array.from_buffers(pa.binary_view(), len(positions), [valid, pa.py_buffer(views), raw])
    return view_column.cast(pa.binary())
