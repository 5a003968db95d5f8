"""Values as AWS Glue's serializers write them, and damages of their frames."""

import random
import struct
import zlib
from collections.abc import Callable, Mapping
from uuid import UUID

from headrace.writer.framing.wire_format import GLUE

# Python counts what comes behind a stream, and what is missing of it, apart.
_HEADER = 18


def plain(version_id: UUID, body: bytes) -> bytes:
    """Return a value without compression."""
    return GLUE.value_header(version_id.int) + body


def compressed(version_id: UUID, body: bytes, level: int = -1) -> bytes:
    """Return a value as one zlib stream."""
    return b"\3\5" + version_id.bytes + zlib.compress(body, level)


def bomb(version_id: UUID, size: int) -> bytes:
    """Return a value that inflates to so many zeros."""
    deflater = zlib.compressobj(9)
    chunk = bytes(2**20)
    stream = b"".join(deflater.compress(chunk) for _ in range(size // len(chunk)))
    return b"\3\5" + version_id.bytes + stream + deflater.compress(bytes(size % len(chunk))) + deflater.flush()


def _cut_stream(value: bytes, rng: random.Random) -> bytes:
    return value[: rng.randrange(_HEADER, len(value))]


def _flip_byte(value: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(_HEADER, len(value))
    return value[:place] + bytes([value[place] ^ rng.randrange(1, 256)]) + value[place + 1 :]


def _wrong_checksum(value: bytes, rng: random.Random) -> bytes:
    (checksum,) = struct.unpack(">I", value[-4:])
    return value[:-4] + struct.pack(">I", checksum ^ rng.randrange(1, 2**32))


def _no_zlib(value: bytes, rng: random.Random) -> bytes:
    return value[:_HEADER] + rng.randbytes(rng.randrange(40))


def _raw_deflate(value: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - as the others
    return value[:_HEADER] + value[_HEADER + 2 : -4]


def _gzip(value: bytes, rng: random.Random) -> bytes:  # noqa: ARG001 - as the others
    deflater = zlib.compressobj(wbits=31)
    return value[:_HEADER] + deflater.compress(zlib.decompress(value[_HEADER:])) + deflater.flush()


# Each makes of a compressed value one that no reader takes.
DAMAGES: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut_stream,
    "a flipped byte": _flip_byte,
    "a wrong checksum": _wrong_checksum,
    "bytes that are no stream": _no_zlib,
    "bytes behind the stream": lambda value, rng: value + rng.randbytes(rng.randrange(1, 9)),
    "two streams": lambda value, _: value + value[_HEADER:],
    "a stream of deflate without zlib": _raw_deflate,
    "a stream of gzip": _gzip,
    "no stream": lambda value, _: value[:_HEADER],
}
