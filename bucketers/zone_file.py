"""The compiled file of a time zone (RFC 8536): whether it is whole.

`zoneinfo` does not look: a file that was cut keeps it reading for ever, and an index out of range ends the process.
"""

import re
import struct
from itertools import pairwise
from typing import NamedTuple

_HEADER = struct.Struct(">4sc15x6l")
# UTC offset in seconds, daylight saving, index of its name.
_TYPE = struct.Struct(">lBB")
# Between the line ends stands a rule as POSIX writes it, which may be empty.
_FOOTER = re.compile(rb"\n[^\n]*\n")
_DAY_S = 86_400


class _Block(NamedTuple):
    """One of the two blocks of a file: the first has times of 4 bytes, the second, of a newer version, of 8."""

    version: bytes
    # The offset at which the next block or the footer begins.
    end_offset: int


def check_zone_file(content: bytes) -> None:
    """Raise ValueError for bytes that are no whole file of a zone."""
    block = _check_block(content, 0, "l")
    if block.version != b"\0":
        block = _check_block(content, block.end_offset, "q")
        footer = content[block.end_offset :]
        if not _FOOTER.fullmatch(footer):
            raise ValueError("its last line is cut")


def _check_block(content: bytes, start: int, time_format: str) -> _Block:
    """Return the block at an offset. Raises ValueError for one that is not whole."""
    if len(content) < start + _HEADER.size:
        raise ValueError("it ends in a header")
    magic, version, *counts = _HEADER.unpack_from(content, start)
    if magic != b"TZif" or min(counts) < 0:
        raise ValueError("a header is none of a zone")
    in_utc, standard, leaps, times, types, characters = counts
    time_size = struct.calcsize(f">{time_format}")
    indices_start = start + _HEADER.size + times * time_size
    types_start = indices_start + times
    names_start = types_start + types * _TYPE.size
    end_offset = names_start + characters + leaps * (time_size + 4) + standard + in_utc
    if len(content) < end_offset:
        raise ValueError("it ends in a block")
    if any(index >= types for index in content[indices_start:types_start]):
        raise ValueError("a time has a type that is not there")
    moments = struct.unpack_from(f">{times}{time_format}", content, start + _HEADER.size)
    if any(earlier >= later for earlier, later in pairwise(moments)):
        raise ValueError("its times are in no order")
    for offset_s, _, name in _TYPE.iter_unpack(content[types_start:names_start]):
        if abs(offset_s) >= _DAY_S or name >= characters:
            raise ValueError("a type is none of a clock")
    return _Block(version, end_offset)
