"""Damages to Avro values."""

import random
from collections.abc import Callable

VARINTS = [b"\xff" * 9 + b"\x01", b"\xfe" + b"\xff" * 8 + b"\x01", b"\x80" * 20 + b"\0", b"\xff" * 9 + b"\x7f", b"\x01"]


def cut(value: bytes, rng: random.Random) -> bytes:
    return value[: rng.randrange(len(value) + 1)]


def extend(value: bytes, rng: random.Random) -> bytes:
    return value + rng.randbytes(rng.randrange(1, 9))


def pad(value: bytes, rng: random.Random) -> bytes:
    return value + b"\0" * rng.randrange(1, 40)


def flip(value: bytes, rng: random.Random) -> bytes:
    out = bytearray(value or b"\0")
    for _ in range(rng.randrange(1, 4)):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def swap(value: bytes, rng: random.Random) -> bytes:
    out = bytearray(value or b"\0")
    a = rng.randrange(len(out))
    b = rng.randrange(len(out))
    out[a], out[b] = out[b], out[a]
    return bytes(out)


def scribble(value: bytes, rng: random.Random) -> bytes:
    position = rng.randrange(len(value) + 1)
    junk = rng.choice([rng.randbytes(rng.randrange(1, 6)), rng.choice(VARINTS)])
    return value[:position] + junk + value[position + rng.choice([0, len(junk)]) :]


def empty_block(value: bytes, rng: random.Random) -> bytes:  # noqa: ARG001
    return b""


def double(value: bytes, rng: random.Random) -> bytes:  # noqa: ARG001
    return value + value


DAMAGES: list[Callable[[bytes, random.Random], bytes]] = [
    cut,
    cut,
    extend,
    pad,
    flip,
    flip,
    flip,
    swap,
    scribble,
    empty_block,
    double,
]
