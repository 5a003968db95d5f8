"""No value that the specification forbids becomes a row, and no neighbour is harmed, whatever is damaged.

The specification, written out in tests/support/avro_specification.py, decides. Avro's Java library is the second
witness.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema
from hypothesis import HealthCheck, Phase, assume, given, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.arrow_types import NOT_A_TIME
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.decoding.block import BlockRefused
from headrace.writer.decoding.decode import decode
from tests.support.avro_damages import DAMAGES, VARINTS
from tests.support.avro_java import AvroJudge
from tests.support.avro_kinds import Kind, accepted_types, records
from tests.support.avro_records import HEAD, HEADER_BYTES, are_equal, encode
from tests.support.avro_specification import Part, forbidden, number, parts_of
from tests.support.example_counts import share

# Values of each example.
DAMAGED = 110 if settings.default.max_examples >= 1_000 else 25
BLOCKS = 5
NUMBERS = ("int", "long", "length", "index", "count", "size")
EXTREMES = [2**31 - 1, -(2**31), 2**31, 2**32, 2**63 - 1, -(2**63), -(2**63) + 1]
# What Java reads although the specification forbids it: it looks at no bit beyond the number's, at no text, at no size
# of a block, takes each byte but 1 for false, and the bytes of a decimal as they are.
LENIENT = {"bits", "text", "size", "boolean", "decimal"}


@pytest.fixture(scope="module")
def judge() -> Iterator[AvroJudge]:
    with AvroJudge() as witness:
        yield witness


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    counts = Counter[str]()
    yield counts
    print(dict(sorted(counts.items())))
    assert counts["damaged"] >= DAMAGED * share(100)


def other_number(rng: random.Random) -> bytes:
    some = [rng.randrange(-4, 5), rng.randrange(-(2**14), 2**14), rng.choice(EXTREMES)]
    return rng.choice(
        [number(rng.choice(some)), number(rng.choice(some), longer=rng.randrange(1, 10)), rng.choice(VARINTS)]
    )


def rewritten_part(value: bytes, parts: list[Part], rng: random.Random) -> bytes:
    """Put another content in the place of one part of a sound value."""
    part = rng.choice(parts)
    if part.kind in NUMBERS:
        content = other_number(rng)
        if part.kind == "count" and rng.random() < 0.3:
            content = number(-rng.randrange(1, 4)) + number(rng.randrange(-2, 30))
    else:
        content = rng.randbytes(part.end - part.start)
    return value[: part.start] + content + value[part.end :]


def damage_value(value: bytes, parsed: avro.Record, rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return rewritten_part(value, parts_of(parsed, value), rng)
    return rng.choice(DAMAGES)(value, rng)


def in_order(value: Any) -> Any:
    """Return what Arrow hands over with the entries of each map in the order of their keys."""
    if isinstance(value, dict):
        return {name: in_order(item) for name, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [(key, in_order(item)) for key, item in sorted(value, key=lambda entry: str(entry[0]))]
    return [in_order(item) for item in value] if isinstance(value, list) else value


def beyond_its_column(reason: str) -> bool:
    return NOT_A_TIME in reason or "a decimal of more than" in reason


class World:
    """A schema with its decoders, and with sound values and their rows."""

    def __init__(self, schema: dict[str, Any], values: list[dict[str, Any]], parsed: avro.Record) -> None:
        self.text = json.dumps(schema)
        self.parsed = parsed
        self.single = SingleDecoder(parsed)
        self.native = NativeDecoder(parsed) if is_native(parsed) else None
        fastavros = parse_schema(schema)
        self.sound = [encode(fastavros, value)[HEADER_BYTES:] for value in values]
        self.rows = self.alone(self.sound)

    def alone(self, values: list[bytes]) -> pa.Table:
        decoded = self.single(pa.array([HEAD + value for value in values], pa.binary()))
        assert not decoded.failures
        return decoded.rows

    def check_native(self, value: bytes) -> bool:
        """Decode a value natively, without a judge behind the decoder. Returns whether it becomes a row."""
        assert self.native is not None
        try:
            _, bad = self.native(pa.array([HEAD + self.sound[0], HEAD + value, HEAD + self.sound[0]], pa.binary()))
        except BlockRefused:
            return False
        is_row = bad is None or not bad[1].is_valid
        assert not is_row or forbidden(self.parsed, value) is None, f"{self.text}: {value!r} is forbidden, and a row"
        return is_row

    def check_block(self, values: list[bytes], sound: dict[int, int], rewritten: list[bytes | None]) -> None:
        """Decode a block. `sound`: position → row; `rewritten`: of all others, what the Java library makes of them."""
        decoded = decode(pa.array([HEAD + value for value in values], pa.binary()), self.native, self.single)
        row_of = {position: row for row, position in enumerate(decoded.positions.to_pylist())}
        assert sorted([*row_of, *decoded.failures]) == list(range(len(values)))
        assert decoded.rows.num_rows == len(row_of)
        neighbours = decoded.rows.take(pa.array([row_of[position] for position in sound], pa.int64()))
        assert are_equal(neighbours, self.rows.take(pa.array(sound.values(), pa.int64())))
        for position, value in enumerate(values):
            if position not in sound:
                row = decoded.rows.slice(row_of[position], 1) if position in row_of else None
                self.check_damaged(value, row, decoded.failures.get(position, ""), rewritten[position])

    def check_damaged(self, value: bytes, row: pa.Table | None, reason: str, rewritten: bytes | None) -> None:
        kind = forbidden(self.parsed, value)
        shown = f"{kind}, {reason}: {value!r} of {self.text}"
        assert kind is None or kind in LENIENT or rewritten is None, f"Java reads {shown}"
        assert kind is not None or rewritten is not None, f"only the specification allows {shown}"
        if row is None:
            assert kind is not None or beyond_its_column(reason), f"refused without need: {shown}"
        else:
            assert kind is None, f"a row of {shown}"
            assert rewritten is not None
            # Java's maps have another order; the text of a row makes NaN equal to NaN.
            assert repr(in_order(row.to_pylist())) == repr(in_order(self.alone([rewritten]).to_pylist())), shown


@pytest.mark.timeout(3_600)  # of the long profile
# Without the phase that shrinks: a seed draws the damage, and a smaller seed is no smaller damage.
@settings(max_examples=share(100), suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(records(), st.integers(0, 2**32))
def test_no_value_that_the_specification_forbids_becomes_a_row(
    judge: AvroJudge, tally: Counter[str], drawn: tuple[Any, dict[str, Kind], list[Any]], seed: int
) -> None:
    schema, _, values = drawn
    parsed = accepted_types(schema)
    assume(parsed is not None)
    assert parsed is not None
    world = World(schema, values, parsed)
    rng = random.Random(seed)
    tally["native schemas" if world.native is not None else "other schemas"] += 1
    for _ in range(BLOCKS):
        block = [damage_value(rng.choice(world.sound), parsed, rng) for _ in range(DAMAGED // BLOCKS)]
        rewritten = dict(enumerate(judge.rewrite(world.text, block)))
        tally["damaged"] += len(block)
        tally["forbidden"] += sum(forbidden(parsed, value) is not None for value in block)
        if world.native is not None:
            tally["rows of the native decoder alone"] += sum(map(world.check_native, block))
        order = [*range(len(block)), *([None] * rng.randrange(20, 60))]
        rng.shuffle(order)
        rows = {position: rng.randrange(len(world.sound)) for position, number in enumerate(order) if number is None}
        world.check_block(
            [world.sound[rows[position]] if number is None else block[number] for position, number in enumerate(order)],
            rows,
            [None if number is None else rewritten[number] for number in order],
        )
