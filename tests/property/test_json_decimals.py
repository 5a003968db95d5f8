"""Decimals of JSON: every number text gives the exact number, or none. Python's fractions are the oracle.

Arrow's own reader returns other numbers for some of these texts, and ends the process for others.
"""

import random
import time
from fractions import Fraction

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.formats.formats import FORMATS
from headrace.writer.json.block_decoder import JsonDecoder
from headrace.writer.json.declared import declared_record
from tests.support.example_counts import share

TYPES = [(10, 2), (38, 0), (38, 10), (5, 5), (38, 18), (38, 19), (38, 38)]
# Fractions of larger exponents have too many digits; all such numbers are 0, or beyond every column.
EXPONENT_MAX = 400


def open_decoder(precision: int, scale: int) -> JsonDecoder:
    text = declared_record({"a": f"decimal({precision}, {scale})", "s": "string"}, "rest", "dead_letter")
    decoder = FORMATS["json"].open_decoder(avro.parse(text), native=True, header_bytes=0, scratch="")
    assert isinstance(decoder, JsonDecoder)
    return decoder


def draw_number(rng: random.Random) -> str:
    digits = rng.choice([0, 1, rng.randrange(10 ** rng.randrange(1, rng.choice([5, 20, 42])))])
    text = f"{rng.choice(['', '-'])}{digits}"
    if rng.random() < 0.5:
        text += "." + "".join(rng.choices("0000001", k=rng.choice([1, 2, rng.randrange(1, 45)])))
    if rng.random() < 0.5:
        exponent = rng.randrange(rng.choice([3, 12, 50, 90, 2_000, 10**9, 10**22]))
        text += f"{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.choice(['', '0', '00'])}{exponent}"
    return text


def exact(text: str, precision: int, scale: int) -> Fraction | None:
    """The number, where a column holds it."""
    significand, _, exponent = text.lower().partition("e")
    number = Fraction(significand)
    if number and abs(int(exponent or 0)) > EXPONENT_MAX:
        return None
    if number:
        number *= Fraction(10) ** int(exponent or 0)
    is_whole = (number * 10**scale).denominator == 1
    return number if is_whole and abs(number) < 10 ** (precision - scale) else None


@pytest.mark.parametrize(("precision", "scale"), TYPES)
def test_a_decimal_is_exact_or_refused_in_a_block_and_alone(precision: int, scale: int) -> None:
    rng = random.Random(f"{precision} {scale}")
    decoder = open_decoder(precision, scale)
    for _ in range(max(2, share(30))):
        texts = [draw_number(rng) for _ in range(200)]
        quoted = [f'"{text}"' if rng.random() < 0.3 else text for text in texts]
        values = pa.array([f'{{"a":{text}{rng.choice(["", " "])}}}'.encode() for text in quoted], pa.binary())
        expected = {position: exact(text, precision, scale) for position, text in enumerate(texts)}
        for decode in (decoder.decode, decoder.single):
            block = decode(values)
            numbers = [Fraction(number) for number in block.rows.column("a").to_pylist()]
            read = dict.fromkeys(range(200)) | dict(zip(block.positions.to_pylist(), numbers, strict=True))
            assert read == expected


@pytest.mark.parametrize(
    "text",
    [
        "1e-39", "0e-999999999", "1e-999999999", "1.01e33", '"1\\u0065-99"', '"\\u0031e33"', '"1e\\u002d99"',
        '"\\u002B1e-99"', '"1e\\u002b99"', '"1e-\\u0039\\u0039"', "0." + "0" * 60 + "1", "1" + "0" * 34,
    ],
)  # fmt: skip
def test_what_arrow_does_not_read_exactly_does_not_come_to_it(text: str) -> None:
    decoder = open_decoder(38, 10)
    values = [b'{"a":1.5}'] * 20 + [f'{{"a":{text}}}'.encode()] + [b'{"a":1.5}'] * 20
    block = decoder.decode(pa.array(values, pa.binary()))
    assert set(block.failures) <= {20}
    assert set(block.rows.column("a").to_pylist()) <= {0, Fraction(3, 2)}


LONG_NUMBERS = {
    "zeros behind the point": "1." + "0" * 1_000_000,
    "zeros before the point": "0" * 1_000_000 + "1",
    "digits": "1" * 1_000_000,
    "digits and points": "1." * 500_000,
    "an exponent": "1" * 1_000_000 + "e-1",
    "text": '"1.' + "0" * 1_000_000 + '"',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", LONG_NUMBERS)
@pytest.mark.parametrize("place", ["%s", '"x", "items": [{"a": %s}, null]'])
def test_a_number_of_a_million_digits_costs_time_by_its_length(number: str, place: str) -> None:
    declared = {"a": "decimal(10, 2)", "items": [{"a": "decimal(10, 2)"}]}
    record = avro.parse(declared_record(declared, "rest", "null"))
    decoder = FORMATS["json"].open_decoder(record, native=True, header_bytes=0, scratch="")
    assert isinstance(decoder, JsonDecoder)
    value = ('{"a": ' + place % LONG_NUMBERS[number] + "}").encode()
    values = pa.array([b'{"a":1.5}'] * 20 + [value] + [b'{"a":1.5}'] * 20, pa.binary())
    began_s = time.process_time()
    block = decoder.decode(values)
    assert time.process_time() - began_s < 10
    alone = decoder.single(values)
    assert block.failures == alone.failures
    assert block.rows.equals(alone.rows)


def test_other_numbers_may_be_any() -> None:
    declared = {"price": "decimal(10, 2)", "d": "double", "items": [{"price": "decimal(10, 2)", "d": "double"}]}
    record = avro.parse(declared_record(declared, "rest", "dead_letter"))
    decoder = FORMATS["json"].open_decoder(record, native=True, header_bytes=0, scratch="")
    assert isinstance(decoder, JsonDecoder)
    values = [b'{"price":1.5,"d":1.5E300,"items":[{"price":2,"d":5e-324},null,{}]}'] * 20
    rows, _ = decoder.block(pa.array(values, pa.binary()))
    assert rows.equals(decoder.single(pa.array(values, pa.binary())).rows)
    values[5] = b'{"price":1.5,"d":1,"items":[{"price":1e-999999999,"d":1},null,{}]}'
    assert list(decoder.decode(pa.array(values, pa.binary())).failures) == [5]


@pytest.mark.parametrize(
    "text", ['"9b2e4f1e-1234-4c3e-9e1f-123456789012"', '"DE89370400440532013000"', "1.5e-7", '"a\\u002Bb"', "1e5"]
)
def test_usual_text_and_numbers_keep_a_block_whole(text: str) -> None:
    decoder = open_decoder(38, 10)
    values = [f'{{"a":12345678901234567890.25,"x":{text}}}'.encode()] * 20
    rows, reasons = decoder.block(pa.array(values, pa.binary()))
    assert rows.num_rows == 20
    assert reasons is None
