"""Reads varints and cuts byte strings out of a buffer, at many positions at once."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Longs = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_INLINE = 12  # bytes of a string that lie in Arrow's view of it
_VARINT_BYTES_MAX = 10
_MORE = 0x80  # a varint goes on
_INT64_MAX = np.int64(2**63 - 1)


def varints(data: Bytes, at: Longs) -> tuple[Longs, Longs]:
    """Read a zig-zag varint at each position. Returns the values, and the positions behind them.

    Raises IndexError outside the bytes, ValueError for more than ten bytes.
    """
    byte = data[at]
    value, at, shift = (byte & 0x7F).astype(np.int64), at + 1, 7
    if len(byte) and byte.min() >= _MORE:  # all go on, as lengths do: no need to find which
        byte = data[at]
        value, at, shift = value | ((byte & 0x7F).astype(np.int64) << shift), at + 1, 14
    more = np.flatnonzero(byte >= _MORE)
    while len(more):
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise ValueError("a number of more than ten bytes")
        byte = data[at[more]]
        value[more] |= (byte & 0x7F).astype(np.int64) << shift
        at[more] += 1
        more, shift = more[byte >= _MORE], shift + 7
    return ((value >> 1) & _INT64_MAX) ^ -(value & 1), at


def varint(data: Bytes, at: int) -> tuple[int, int]:
    """Read one zig-zag varint. Returns its value, and the position behind it. Raises as `varints`."""
    values, after = varints(data, np.array([at]))
    return int(values[0]), int(after[0])


def strings(raw: pa.Buffer, data: Bytes, at: Longs, lengths: Longs) -> pa.BinaryArray:
    """Make a column of pieces of a buffer; a length of -1 is null. `data`: the same bytes. All pieces lie within.

    Views of the pieces first (Arrow's layout: length, four bytes of prefix, which buffer, position; or up to twelve
    bytes themselves), then one native copy. The copy reads no prefix, so none is written.
    """
    null = lengths < 0
    if null.all():
        return pa.nulls(len(at), pa.binary())
    views = np.zeros((len(at), 4), np.int32)
    views[:, 0], views[:, 3] = np.where(null, 0, lengths), at
    short = np.flatnonzero(lengths <= _INLINE)
    if len(short):
        within, last = np.arange(_INLINE), len(data) - 1
        pieces = data[np.minimum(at[short, None] + within, last)]
        views.view(np.uint8).reshape(-1, 16)[short, 4:] = pieces * (within < lengths[short, None])
    valid = pa.py_buffer(np.packbits(~null, bitorder="little")) if null.any() else None
    views_of = pa.Array.from_buffers(pa.binary_view(), len(at), [valid, pa.py_buffer(views), raw])
    return views_of.cast(pa.binary())
