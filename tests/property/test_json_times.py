"""Times of JSON that are numbers: floored to the microsecond, or refused. Python's fractions are the oracle."""

import math
import random
from fractions import Fraction

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.formats.formats import FORMATS
from headrace.writer.json.block_decoder import JsonDecoder
from headrace.writer.json.declared import declared_record
from tests.support.example_counts import share

MICROSECONDS = {"ms": Fraction(1_000), "us": Fraction(1), "ns": Fraction(1, 1_000)}
LEAST = -62_135_596_800_000_000
MOST = 253_402_300_799_999_999
# Larger exponents have too many digits for fractions: such times are 0, just before it, or in no year.
EXPONENT_MAX = 400


def open_decoder(unit: str) -> JsonDecoder:
    text = declared_record({"a": f"timestamp({unit})", "s": "string"}, "rest", "dead_letter")
    decoder = FORMATS["json"].open_decoder(avro.parse(text), native=True, header_bytes=0, scratch="")
    assert isinstance(decoder, JsonDecoder)
    return decoder


def draw_number(rng: random.Random) -> str:
    digits = rng.choice([0, 1, rng.randrange(10 ** rng.randrange(1, 24))])
    text = f"{rng.choice(['', '-'])}{digits}"
    if rng.random() < 0.5:
        text += "." + "".join(rng.choices(rng.choice(["09", "9", "0", "0000001"]), k=rng.randrange(1, 45)))
    if rng.random() < 0.4:
        exponent = rng.randrange(rng.choice([3, 12, 50, 2_000, 10**9, 10**22]))
        text += f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{exponent}"
    return text


def floored(text: str, unit: str) -> int | None:
    """The microseconds of a number, where a column holds them."""
    significand, _, exponent = text.lower().partition("e")
    number = Fraction(significand)
    if number and int(exponent or 0) > EXPONENT_MAX:
        return None
    if number and int(exponent or 0) < -EXPONENT_MAX:
        return -1 if number < 0 else 0
    if number:
        number *= Fraction(10) ** int(exponent or 0)
    microseconds = math.floor(number * MICROSECONDS[unit])
    return microseconds if LEAST <= microseconds <= MOST else None


@pytest.mark.parametrize("unit", MICROSECONDS)
def test_a_number_is_the_floored_time_or_refused_in_a_block_and_alone(unit: str) -> None:
    rng = random.Random(unit)
    decoder = open_decoder(unit)
    for _ in range(max(2, share(30))):
        texts = [draw_number(rng) for _ in range(200)]
        values = pa.array([f'{{"a":{text}}}'.encode() for text in texts], pa.binary())
        expected = {position: floored(text, unit) for position, text in enumerate(texts)}
        for decode in (decoder.decode, decoder.single):
            block = decode(values)
            times = block.rows.column("a").cast(pa.int64()).to_pylist()
            assert dict.fromkeys(range(200)) | dict(zip(block.positions.to_pylist(), times, strict=True)) == expected


@pytest.mark.parametrize(
    ("unit", "text", "microseconds"),
    [
        ("ms", "1795176000000." + "9" * 40, 1_795_176_000_000_999),
        ("ns", "1795176000000000999." + "9" * 40, 1_795_176_000_000_000),
        ("us", "-0." + "0" * 40 + "1", -1),
        ("ms", "1e-999999999", 0),
        ("ms", "-1e-9999999999999999999", -1),
        ("ms", "0e500", 0),
    ],
)
def test_a_number_of_any_digits_is_floored(unit: str, text: str, microseconds: int) -> None:
    block = open_decoder(unit).decode(pa.array([f'{{"a":{text}}}'.encode()], pa.binary()))
    assert block.rows.column("a").cast(pa.int64()).to_pylist() == [microseconds]
