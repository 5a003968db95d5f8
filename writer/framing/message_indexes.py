"""Which message of a Protobuf schema a value is of: the indexes that Confluent's serializers write behind the id. Pure.

Zig-zag varints: how many positions follow, then the position of a message in its file, of a message inside it, and so
on. The single byte 0 stands for [0], the first message. Source: Confluent's serializers, `MessageIndexes`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous

# protoc refuses messages that lie deeper inside one another.
_DEPTH_MAX = 32
# Of a varint: no file has so many messages that a position needs more.
_VARINT_BYTES_MAX = 3
# So many different indexes are looked for at once; the values of all others are read one by one.
_ROUNDS = 8
_MORE = 0x80
_FIRST = b"\0"


def write_indexes(indexes: Sequence[int]) -> bytes:
    """Return message indexes as Confluent's serializers write them."""
    if list(indexes) == [0]:
        return _FIRST
    return b"".join(map(_write_varint, (len(indexes), *indexes)))


def read_indexes(mark: bytes) -> tuple[int, ...] | None:
    """Return the message indexes of the bytes that hold nothing else; None where they hold none."""
    read = _read(mark, 0)
    if read is None:
        return None
    indexes, end = read
    if end < len(mark):
        return None
    return indexes


def find_mark(value: bytes, start: int) -> bytes | None:
    """Return the bytes of a value, from a position on, that are message indexes; None where there are none."""
    read = _read(value, start)
    if read is None:
        return None
    return value[start : read[1]]


def split_by_indexes(
    records: pa.Table, start: int, find: Callable[[bytes, int], bytes | None] = find_mark
) -> Iterator[tuple[bytes | None, pa.Table]]:
    """Split records by the message indexes that their values have from a position on; None where a value has none.

    Indexes come as their bytes, with another group for another spelling. `start`: behind the schema id, which is the
    same in all values. `find`: returns those bytes of a value; none are the begin of others. Groups share no memory.
    """
    remaining = records
    for _ in range(_ROUNDS):
        if remaining.num_rows == 0:
            return
        values = contiguous(remaining.column("value"))
        first = values[0].as_py()
        mark = find(first, start)
        if mark is None:
            break
        # No indexes begin with the bytes of others.
        has_mark = pc.starts_with(values, pattern=first[: start + len(mark)])
        if pc.all(has_mark).as_py():
            yield mark, remaining
            return
        yield mark, remaining.filter(has_mark)
        remaining = remaining.filter(pc.invert(has_mark))
    yield from split_one_by_one(remaining, start, find)


def split_one_by_one(
    records: pa.Table, start: int, find: Callable[[bytes, int], bytes | None]
) -> Iterator[tuple[bytes | None, pa.Table]]:
    """Split records as `split_by_indexes` does, with a look at each value."""
    rows_by_mark: defaultdict[bytes | None, list[int]] = defaultdict(list)
    for row, value in enumerate(records.column("value").to_pylist()):
        rows_by_mark[find(value, start)].append(row)
    for mark, rows in rows_by_mark.items():
        yield mark, records.take(pa.array(rows, pa.int64()))


def _read(data: bytes, start: int) -> tuple[tuple[int, ...], int] | None:
    """Return the indexes at a position and where they end."""
    count, position = _read_varint(data, start)
    if count == 0:
        return (0,), position
    if count is None or count > _DEPTH_MAX:
        return None
    indexes: list[int] = []
    for _ in range(count):
        index, position = _read_varint(data, position)
        if index is None:
            return None
        indexes.append(index)
    return tuple(indexes), position


def _read_varint(data: bytes, position: int) -> tuple[int | None, int]:
    """Return a zig-zag varint that is not negative, and where it ends; None for what is none, or is written longer."""
    number = 0
    for shift, byte in enumerate(data[position : position + _VARINT_BYTES_MAX]):
        number |= (byte & ~_MORE) << 7 * shift
        if byte & _MORE:
            continue
        is_negative = number & 1
        is_longer = byte == 0 and shift > 0
        if is_negative or is_longer:
            break
        return number >> 1, position + shift + 1
    return None, position


def _write_varint(number: int) -> bytes:
    """Return a number as a zig-zag varint."""
    rest = number << 1
    written = bytearray()
    while rest >= _MORE:
        written.append(rest & ~_MORE & 0xFF | _MORE)
        rest >>= 7
    written.append(rest)
    return bytes(written)
