"""Decimals in JSON: read exactly, and found where Arrow's reader would not be exact.

Arrow looks up a power of ten for the difference of two scales, in a table of 39 entries, without a look at its end:
`1e-39` becomes 0, or any number, and `1e-999999999` ends the process. It multiplies without a look at the overflow, so
`1.01e33` may become another number of the column (https://github.com/apache/arrow/issues/50964). None of that can be
seen in what it returns, so texts that lead there do not come to it.
"""

import re
from collections.abc import Iterable
from decimal import Decimal, InvalidOperation

import pyarrow as pa

# Up to this scale, 128 bits hold every number of 20 digits before the point.
_SCALE_OF_128_MAX = 18
_DIGITS_OF_256 = 76
# Digits of which 128 bits do not hold all numbers.
_DIGITS_OF_128 = 39
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# Text before a number, and text behind it; a sign may be escaped.
_BEGIN = r'(?:[\s:,\["+.-]|\\u002[bB])'
_PLUS = r"(?:\+|\\u002[bB])?"
_END = r'[\s,}\]"]'
# An exponent beside many digits, or a large one.
_EXPONENTS = (
    rf"[\d.]*[eE]-0*(?:\d{{3,}}|[2-9]\d){_END}"
    rf"|[\d.]*\d{{20}}[\d.]*[eE]-\d+{_END}"
    rf"|[\d.]*[eE]{_PLUS}0*(?:\d{{3,}}|[1-9]\d){_END}"
    rf"|\d{{12}}[\d.]*[eE]{_PLUS}\d+{_END}"
)
# Digits, signs and exponents that are escaped: a text may be any number.
_ESCAPED = r"\\u00(?:2[dDeE]|3\d|[46]5)"
# Numbers that Decimal does not hold are as good as these.
_HUGE = "1e999999"
_TINY = "1e-999999"


def inexact_pattern(scales: Iterable[int]) -> str | None:
    """Return what matches a value with a number, or a text that is one, which Arrow may not read exactly.

    Of all others, its steps stay inside its table and its bits. `scales`: of the columns. None: there are none.
    """
    digits = [_DIGITS_OF_128 - (scale if scale <= _SCALE_OF_128_MAX else 0) for scale in scales]
    if not digits:
        return None
    return rf"{_BEGIN}(?:\d{{{min(digits)}}}|{_EXPONENTS})|{_ESCAPED}"


def native_decimal(precision: int, scale: int) -> pa.DataType:
    """Return the type by which Arrow reads such decimals exactly, but for what `inexact_pattern` matches."""
    if scale <= _SCALE_OF_128_MAX:
        return pa.decimal128(precision, scale)
    return pa.decimal256(_DIGITS_OF_256, scale)


def parse_number(text: str) -> Decimal:
    """Return the number of a text; of an exponent that no Decimal has, a number that is as huge or as tiny."""
    try:
        return Decimal(text)
    except InvalidOperation:
        significand, _, exponent = text.lower().partition("e")
        if not Decimal(significand):
            return Decimal(0)
        return Decimal(_TINY if exponent.startswith("-") else _HUGE).copy_sign(Decimal(significand))


def read_decimal(text: str, precision: int, scale: int) -> Decimal | None:
    """Return the decimal of a text, with so many digits behind the point; None where it is none, or does not fit."""
    if _NUMBER.fullmatch(text) is None:
        return None
    sign, digits, exponent = parse_number(text).as_tuple()
    assert isinstance(exponent, int), "a number has an exponent"
    significand = "".join(map(str, digits)).lstrip("0")
    stripped = significand.rstrip("0")
    if not stripped:
        return Decimal((0, (0,), -scale))
    # Zeros behind the number that the scale asks for.
    zeros = exponent + len(significand) - len(stripped) + scale
    if zeros < 0 or len(stripped) + zeros > precision:
        return None
    return Decimal((sign, tuple(map(int, stripped + "0" * zeros)), -scale))
