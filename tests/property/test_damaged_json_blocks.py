"""Damaged and odd JSON values between sound ones. Each value alone, and Python's `json`, are the oracles."""

import json
import random
import resource
import time
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.formats.formats import FORMATS
from headrace.writer.json import native_reader
from headrace.writer.json.block_decoder import JsonDecoder
from headrace.writer.json.declared import declared_record
from tests.support.example_counts import share
from tests.support.json_damages import FLAT, ODD, WITH_SLICES, damage, sound_value

HEADER = b"\x00\x00\x00\x00\x07"
SIZES = (3, 40, 120, 300)


def decoder(declared: dict[str, Any], undeclared: str, misfit: str, header_bytes: int = 0) -> JsonDecoder:
    record = avro.parse(declared_record(declared, undeclared, misfit))  # type: ignore[arg-type]
    opened = FORMATS["json"].open_decoder(record, native=True, header_bytes=header_bytes, scratch="")
    assert isinstance(opened, JsonDecoder)
    return opened


def is_object(value: bytes) -> bool:
    """Whether Python's parser reads a JSON object."""
    try:
        return isinstance(json.loads(value.decode()), dict)
    except (ValueError, RecursionError):
        return False


def values_of(rng: random.Random, *, with_slices: bool) -> list[bytes]:
    bad = rng.choice([0, 0.01, 0.1, 0.3])
    others = rng.choice([0, 0.3])
    values = []
    for _ in range(rng.choice(SIZES)):
        value = sound_value(rng, with_slices=with_slices, others=others)
        chance = rng.random()
        if chance < bad / 2:
            value = rng.choice(ODD)
        elif chance < bad:
            value = damage(value, rng)
        values.append(value)
    if rng.random() < 0.1:
        values = [indent(value) for value in values]
    return values


def indent(value: bytes) -> bytes:
    """Write a value over several lines, where it is an object."""
    try:
        return json.dumps(json.loads(value.decode()), indent=1).encode() if is_object(value) else value
    except (ValueError, RecursionError):
        return value


def check_block(decode: JsonDecoder, values: list[bytes], header: bytes, *, is_slice: bool) -> int:
    """Compare a block with its values, each decoded alone. Returns how many fail."""
    column = pa.array([header + value for value in values], pa.binary())
    if is_slice:
        column = pa.concat_arrays([pa.array([b"before"], pa.binary()), column]).slice(1)
    block = decode.decode(column)
    alone = decode.single(column)
    block.rows.validate(full=True)
    assert block.positions.to_pylist() == alone.positions.to_pylist()
    assert block.failures == alone.failures
    assert dict(block.unfit) == dict(alone.unfit)
    assert block.rows.equals(alone.rows)
    for position, value in enumerate(values):
        if not is_object(value):
            assert position in block.failures, value
    return len(block.failures)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("declared", [FLAT, WITH_SLICES], ids=["flat", "with_slices"])
def test_a_damaged_value_fails_alone_and_as_it_does_by_itself(
    declared: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    values_count = 0
    failures_count = 0
    began_s = time.process_time()
    # 40 blocks of 115 values in `make check`; in the long profile more than 100,000 values for each case.
    for seed in range(max(10, share(23))):
        rng = random.Random(f"{len(declared)} {seed}")
        undeclared = rng.choice(["rest", "drop", "dead_letter"])
        header = rng.choice([b"", HEADER])
        decode = decoder(declared, undeclared, rng.choice(["dead_letter", "null"]), len(header))
        for _ in range(4):
            # From one value to all values of the block are read at once.
            monkeypatch.setattr(native_reader, "_PIECE_BYTES", rng.choice([1, 3_000, 2**20]))
            monkeypatch.setattr(native_reader, "_PIECE_BYTES_WITH_SUSPECTS", rng.choice([1, 1_000, 2**20]))
            values = values_of(rng, with_slices=declared is WITH_SLICES)
            values_count += len(values)
            failures_count += check_block(decode, values, header, is_slice=rng.random() < 0.3)
    print(f"{values_count:,} values, {failures_count:,} failed, {time.process_time() - began_s:.1f} s")
    assert failures_count > 0


@pytest.mark.parametrize("value", ODD, ids=lambda value: value[:24].decode(errors="replace"))
def test_no_odd_value_harms_its_neighbours(value: bytes) -> None:
    rng = random.Random(1)
    sound = [sound_value(rng, with_slices=True, others=0.2) for _ in range(40)]
    decode = decoder(WITH_SLICES, "rest", "dead_letter")
    expected = decode.single(pa.array(sound, pa.binary()))
    assert not expected.failures
    block = decode.decode(pa.array([*sound[:20], value, *sound[20:]], pa.binary()))
    positions = block.positions.to_pylist()
    others = [row for row, position in enumerate(positions) if position != 20]
    assert block.rows.take(pa.array(others)).equals(expected.rows)


@pytest.mark.parametrize(
    "value",
    [
        b'{"payload":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"s":"' + b"x" * 20_000_000 + b'"}',
        b'{"id":' + b"9" * 1_000_000 + b"}",
        b'{"price":' + b"1e" + b"9" * 1_000 + b"}",
        b'{"tags":[' + b'"",' * 1_000_000 + b'""]}',
        b"{" + b",".join(b'"a%d":1' % number for number in range(100_000)) + b"}",
    ],
    ids=["deep", "long text", "long number", "large exponent", "many items", "many members"],
)
def test_a_hostile_value_costs_neither_time_nor_memory(value: bytes) -> None:
    rng = random.Random(2)
    sound = [sound_value(rng, with_slices=True, others=0) for _ in range(30)]
    decode = decoder(WITH_SLICES, "rest", "dead_letter")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.process_time()
    block = decode.decode(pa.array([*sound[:15], value, *sound[15:]], pa.binary()))
    assert time.process_time() - began_s < 20
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) * 1024
    assert grown_bytes < 200 * 2**20 + 40 * len(value)
    assert set(range(31)) - {15} <= set(block.positions.to_pylist())
