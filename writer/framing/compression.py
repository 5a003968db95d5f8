"""Inflates values that AWS Glue's serializers have compressed, a few at a time: a kilobyte may hold a megabyte.

Pure. Source: AWS's serializers, where the byte behind 03 says whether what follows the header is one zlib stream.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.core.units import show_size
from headrace.writer.framing.wire_format import GLUE_PLAIN, GLUE_ZLIB, WIDTHS, Wire

# One value may inflate to so much. Kafka's brokers take a value of 1 MiB by default, and text shrinks to a tenth.
INFLATED_BYTES_MAX = 64 * 2**20
# So may one key, and so many are inflated at once: the column of the keys of some rows is in memory as a whole.
INFLATED_KEY_BYTES_MAX = 64 * 2**10
KEYS_AT_ONCE = 1024
# Values that were inflated to so much are decoded before others are.
PART_BYTES = 32 * 2**20
_HEADER = WIDTHS["glue"]
_COMPRESSION = 1


@dataclass(frozen=True)
class PlainPart:
    """Some values that stand one behind the other in a block, inflated.

    `start`, `stop`: positions of the first and behind the last in the block. `values`: of those that could be inflated,
    with the header that they would have without compression. `positions`: of these among the values of the part; None:
    all. `failures`: why others could not, by their positions among the values of the part.
    """

    start: int
    stop: int
    values: pa.Array
    positions: pa.Int64Array | None = None
    failures: dict[int, str] = field(default_factory=dict)


def split_plain(values: pa.Array, wire: Wire, bytes_max: int = INFLATED_BYTES_MAX) -> Iterator[PlainPart]:
    """Yield values of a wire format in parts, all in order, none compressed. Of other formats than Glue's it is one.

    A part is inflated when it is asked for, and holds PART_BYTES and one value at most, or values that need no memory
    of their own. `bytes_max`: to which one value may inflate.

    Of a plain value, a compressed one and a damaged one, the part has the values 0 and 1, and a failure of 2.
    """
    if wire.format != "glue" or not has_compressed(values):
        yield PlainPart(0, len(values), values)
        return
    start = 0
    while start < len(values):
        part = _inflate_part(values, start, bytes_max)
        yield part
        start = part.stop


def has_compressed(values: pa.Array | pa.ChunkedArray) -> bool:
    """Return whether one of the values has Glue's mark of compression in its place."""
    compression = pc.binary_slice(values, _COMPRESSION, _COMPRESSION + 1)
    return bool(pc.any(pc.equal(compression, bytes([GLUE_ZLIB]))).as_py())


def _inflate_part(values: pa.Array, start: int, bytes_max: int) -> PlainPart:
    """Inflate values from a position on, until they hold PART_BYTES."""
    plain_values: list[bytes] = []
    positions: list[int] = []
    failures: dict[int, str] = {}
    part_bytes = 0
    stop = start
    while stop < len(values) and part_bytes < PART_BYTES:
        value = values[stop].as_py()
        position = stop - start
        stop += 1
        try:
            plain = inflate_value(value, bytes_max)
        except ValueError as error:
            failures[position] = str(error)
            continue
        part_bytes += len(plain)
        plain_values.append(plain)
        positions.append(position)
    return PlainPart(start, stop, pa.array(plain_values, pa.binary()), pa.array(positions, pa.int64()), failures)


def inflate_value(value: bytes, bytes_max: int = INFLATED_BYTES_MAX) -> bytes:
    """Return one value of Glue's wire format as it would be without compression. Raises ValueError with the reason."""
    if value[_COMPRESSION] == GLUE_PLAIN:
        return value
    inflater = zlib.decompressobj()
    try:
        # One byte more than is allowed tells a value that is too large from one that just fits.
        payload = inflater.decompress(memoryview(value)[_HEADER:], bytes_max + 1)
    except zlib.error as error:
        raise ValueError(f"the zlib stream is damaged ({error})") from error
    if len(payload) > bytes_max:
        raise ValueError(f"the zlib stream holds more than {show_size(bytes_max)}")
    if not inflater.eof:
        raise ValueError("the zlib stream is cut off")
    if inflater.unused_data:
        raise ValueError("bytes follow the zlib stream")
    return b"".join((value[:_COMPRESSION], bytes([GLUE_PLAIN]), value[_COMPRESSION + 1 : _HEADER], payload))
