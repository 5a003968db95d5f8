"""Which message of a Protobuf schema a value is of: four ways to say so, three of them by bytes behind the id. Pure.

`indexes`: of Confluent's serializers (`message_indexes`). `place`: of AWS Glue's, a plain varint: the place of the
message among all of its file, sorted by their full names; compressed with the value. `name`: of Apicurio's, a message
`Ref` with its length before it, whose field 1 is the message's name without its package. `header_name`: of Apicurio's
where the id is in a Kafka header, the same name in another one (`message_header`). Only the one spelling of each that
the serializers write is read. Sources: `MessageIndexFinder` of AWS; `ProtobufSerializer` of Apicurio.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

import pyarrow as pa

from headrace.writer.framing.message_indexes import find_mark, read_indexes, split_by_indexes, split_one_by_one

Style = Literal["indexes", "place", "name", "header_name"]
# Of Kafka: Apicurio's serializers write the name of the message into it, if they write the id into one.
NAME_HEADER = "apicurio.protobuf.type"
# AWS Glue's byte for a value that is one zlib stream, and its place.
ZLIB = 5
COMPRESSION = 1
_MORE = 0x80
# Of a varint: no file has so many messages, and no name so many bytes, that a number needs more.
_VARINT_BYTES_MAX = 3
_NAME_FIELD = 0x0A


def write_place(rank: int) -> bytes:
    """Return the place of a message as AWS Glue's serializers write it."""
    return _write_varint(rank)


def read_place(mark: bytes) -> int | None:
    """Return the place that bytes are which hold nothing else; None where they are none."""
    rank, stop = _read_varint(mark, 0)
    if stop != len(mark):
        return None
    return rank


def find_place(value: bytes, start: int) -> bytes | None:
    """Return the bytes of a value of AWS Glue, from a position on, that are a place; None where there is none.

    Of a compressed value a few bytes are inflated.
    """
    if value[COMPRESSION] == ZLIB:
        try:
            value = value[:start] + zlib.decompressobj().decompress(value[start:], _VARINT_BYTES_MAX)
        except zlib.error:
            return None
    rank, stop = _read_varint(value, start)
    if rank is None:
        return None
    return value[start:stop]


def write_name(name: str) -> bytes:
    """Return the name of a message as Apicurio's serializers write it."""
    text = name.encode()
    ref = bytes([_NAME_FIELD]) + _write_varint(len(text)) + text
    return _write_varint(len(ref)) + ref


def read_name(mark: bytes) -> str | None:
    """Return the name that bytes are which hold nothing else; None where they are none."""
    size, position = _read_varint(mark, 0)
    if size is None or len(mark) != position + size or mark[position : position + 1] != bytes([_NAME_FIELD]):
        return None
    length, position = _read_varint(mark, position + 1)
    if length is None or len(mark) != position + length:
        return None
    try:
        return mark[position:].decode()
    except UnicodeDecodeError:
        return None


def find_name(value: bytes, start: int) -> bytes | None:
    """Return the bytes of a value, from a position on, that are the name of a message; None where there is none."""
    size, position = _read_varint(value, start)
    if size is None:
        return None
    mark = value[start : position + size]
    if read_name(mark) is None:
        return None
    return mark


# Where the name is in a Kafka header, the values alone do not say.
_FIND: Mapping[Style, Callable[[bytes, int], bytes | None]] = {
    "indexes": find_mark,
    "place": find_place,
    "name": find_name,
}


def split_by_mark(
    records: pa.Table, start: int, style: Style, *, is_compressed: bool = False
) -> Iterator[tuple[bytes | None, pa.Table]]:
    """Split records by the messages that their values name from a position on; None where a value names none.

    `is_compressed`: some of the values are. Groups share no memory.
    """
    find = _FIND[style]
    if not is_compressed:
        yield from split_by_indexes(records, start, find)
        return
    # The marks are inside of the compressed values, so no comparison of their bytes finds them.
    yield from split_one_by_one(records, start, find)


def describe_mark(mark: bytes, style: Style) -> str:
    """Write for a person which message bytes name."""
    match style:
        case "indexes":
            return str(list(read_indexes(mark) or ()))
        case "place":
            return f"{read_place(mark)} by name"
        case "name" | "header_name":
            return repr(_name_of(mark))


def lack_of_mark(style: Style) -> str:
    """Say that values name no message."""
    match style:
        case "indexes":
            return "no message indexes stand behind the schema id"
        case "place":
            return "no place of a message stands behind the schema id, or the zlib stream there is damaged"
        case "name":
            return "no name of a message stands behind the schema id"
        case "header_name":
            return f"no Kafka header {NAME_HEADER} has the name of a message"


def lack_of_message(mark: bytes, style: Style) -> str:
    """Say that a schema has no message which values name."""
    match style:
        case "indexes":
            return f"no message has the indexes {list(read_indexes(mark) or ())}"
        case "place":
            return f"no message has the place {read_place(mark)} by name"
        case "name" | "header_name":
            return f"no message has the name {_name_of(mark)!r}"


def _name_of(mark: bytes) -> str:
    """Return the name of a message as Apicurio's serializers write it before a value, or into a Kafka header."""
    return read_name(mark) or mark.decode(errors="replace")


def _read_varint(data: bytes, position: int) -> tuple[int | None, int]:
    """Return a varint and where it ends; None for what is none, or is written longer than it need be."""
    number = 0
    for shift, byte in enumerate(data[position : position + _VARINT_BYTES_MAX]):
        number |= (byte & ~_MORE) << 7 * shift
        if byte & _MORE:
            continue
        stop = position + shift + 1
        is_longer = byte == 0 and shift > 0
        if is_longer:
            return None, stop
        return number, stop
    return None, position


def _write_varint(number: int) -> bytes:
    written = bytearray()
    while number >= _MORE:
        written.append(number & ~_MORE & 0xFF | _MORE)
        number >>= 7
    written.append(number)
    return bytes(written)
