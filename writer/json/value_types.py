"""Types of single JSON values: how Arrow reads a column of them, and how one is read alone.

Both ways give the same value, or none: where Arrow parses the text of a column, the text of one value is parsed by the
same function.
"""

import base64
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.avro import schema as avro
from headrace.writer.json.decimal_texts import native_decimal, parse_number, read_decimal

_STRING = msgspec.json.Decoder(str).decode
_KINDS: Mapping[int, str] = {
    ord('"'): "text",
    ord("{"): "an object",
    ord("["): "an array",
    ord("t"): "true or false",
    ord("f"): "true or false",
    ord("n"): "null",
}
_TIME_UNITS: Mapping[str, int] = {"ms": 1_000, "us": 1}
# Digits by which the point moves to the right, for microseconds.
_TIME_DIGITS: Mapping[str, int] = {"ms": 3, "us": 0, "ns": -3}
# Moves the point of any number without rounding it.
_EXACT = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)
_MICROSECONDS_MIN = -62_135_596_800_000_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
_DAYS_MIN = -719_162
_DAYS_MAX = 2_932_896
_FINER_DIGITS = r"(\.\d{6})\d+"
_HAS_ZONE = r"[T ].*([Zz]|[+-]\d\d(:?\d\d)?)$"
_HAS_TIME = r"[T ]"
_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME = r"[T ]([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d(\.\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?"
# Digits before the point of a number that is written out: no column holds more.
_DIGITS_MAX = 400
# Of an unscaled number of 38 digits.
_DECIMAL_BYTES_MAX = 16


class Unfit(ValueError):
    """A value is not of its column's type. The message names kinds, and no value."""


@dataclass(frozen=True)
class ValueType:
    """A type of single values.

    `native`: type by which Arrow reads JSON; values of a type that `is_sliced` are read alone. `convert`: from a column
    so read to that of the table; raises pa.ArrowInvalid or ValueError. `read`: one value from its JSON text; raises
    Unfit, ValueError.
    """

    table: pa.DataType
    native: pa.DataType
    convert: Callable[[pa.Array], pa.Array]
    read: Callable[[bytes], Any]
    # What a text matches that can be converted, but for few.
    pattern: str = ""
    is_sliced: bool = False


def value_type(schema: Any) -> ValueType:
    """Return the type of single values for a type of a record schema that has no parts."""
    attributes = schema if isinstance(schema, Mapping) else {}
    digits = avro.decimal_digits(schema)
    if digits is not None and attributes.get("headrace.json") == "connect":
        return _connect_decimal(*digits)
    if digits is not None:
        return _decimal(*digits)
    if attributes.get("logicalType") == "date":
        read = _read_with(parse_dates, pa.string(), "an ISO date")
        return ValueType(pa.date32(), pa.string(), parse_dates, read, f"^{_DATE}$")
    if avro.timestamp_unit(schema) is not None:
        return _timestamp(attributes.get("headrace.json", "iso"))
    return _PLAIN[avro.type_name(schema)]


def kind_of(token: bytes) -> str:
    """Return what a JSON text is, in words."""
    return _KINDS.get(token[0], "a number")


def parse_times(texts: pa.Array) -> pa.Array:
    """Return the instants of ISO-8601 texts in UTC, finer digits floored; one without an offset is UTC.

    `2026-11-20T05:37:30.1234567+01:00` is 04:37:30.123456 UTC, and `2026-11-20` is midnight. Raises pa.ArrowInvalid for
    another text, ValueError for a year outside of 1 to 9999.
    """
    try:
        times = texts.cast(avro.TIMESTAMP)
    except pa.ArrowInvalid:
        texts = pc.replace_substring_regex(texts, _FINER_DIGITS, r"\1")
        has_time = pc.match_substring_regex(texts, _HAS_TIME)
        texts = pc.if_else(has_time, texts, pc.binary_join_element_wise(texts, "T00:00:00", ""))
        has_zone = pc.match_substring_regex(texts, _HAS_ZONE)
        texts = pc.if_else(has_zone, texts, pc.binary_join_element_wise(texts, "Z", ""))
        times = texts.cast(avro.TIMESTAMP)
    _check_range(times.cast(pa.int64()), _MICROSECONDS_MIN, _MICROSECONDS_MAX)
    return times


def parse_dates(texts: pa.Array) -> pa.Array:
    """Return the days of ISO-8601 texts. Raises pa.ArrowInvalid, ValueError for a year outside of 1 to 9999."""
    dates = texts.cast(pa.date32())
    _check_range(dates.cast(pa.int32()), _DAYS_MIN, _DAYS_MAX)
    return dates


def decode_base64(texts: pa.Array) -> pa.Array:
    """Return the bytes of base64 texts. Raises ValueError."""
    contents = [None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist()]
    return pa.array(contents, pa.binary())


def _check_range(numbers: pa.Array, least: int, most: int) -> None:
    bounds = pc.min_max(numbers)
    lowest = bounds["min"].as_py()
    if lowest is not None and (lowest < least or bounds["max"].as_py() > most):
        raise ValueError("a time is outside of the years 1 to 9999")


def _check_finite(numbers: pa.Array) -> pa.Array:
    if pc.all(pc.is_finite(numbers)).as_py() is False:
        raise ValueError("NaN and Infinity are no JSON, and a number may be too large")
    return numbers


def _require(token: bytes, kind: str, wanted: str) -> None:
    if kind_of(token) != kind:
        raise Unfit(f"expected {wanted}, not {kind_of(token)}")


def _read_string(token: bytes) -> str:
    _require(token, "text", "text")
    return _STRING(token)


def _read_boolean(token: bytes) -> bool:
    _require(token, "true or false", "true or false")
    return token == b"true"


def _read_integer(token: bytes, bits: int) -> int:
    """Return a whole number; 1.0 and 1e3 are some, as JSON Schema has it."""
    _require(token, "a number", "an integer")
    number = _whole_number(token)
    if number is None:
        raise Unfit("expected an integer, not a number with a fraction")
    bound = 1 << (bits - 1)
    if not -bound <= number < bound:
        raise Unfit(f"expected an integer of {bits} bits, not a larger one")
    return number


def _whole_number(token: bytes) -> int | None:
    """Return a number that has no fraction; None for another. One of too many digits is beyond every column."""
    number = parse_number(token.decode())
    # The exponent of a zero may be any.
    if number and number.adjusted() > _DIGITS_MAX:
        return 1 << 64
    integer = number.to_integral_value()
    if integer != number:
        return None
    return int(integer)


def _read_double(token: bytes) -> float:
    _require(token, "a number", "a number")
    number = float(token)
    if not math.isfinite(number):
        raise Unfit("expected a number of 64 bits, not a larger one")
    return number


def _read_float(token: bytes) -> float:
    _require(token, "a number", "a number")
    # Two roundings, to 64 and then to 32 bits, may give another number than one.
    number: float = pa.array([token.decode()], pa.string()).cast(pa.float32())[0].as_py()
    if not math.isfinite(number):
        raise Unfit("expected a number of 32 bits, not a larger one")
    return number


def _read_with(parse: Callable[[pa.Array], pa.Array], native: pa.DataType, wanted: str) -> Callable[[bytes], Any]:
    """Return what reads one text as a column of them is parsed."""

    def read(token: bytes) -> Any:
        _require(token, "text", wanted)
        try:
            return _plain(parse(pa.array([_STRING(token)], native)))
        except (pa.ArrowInvalid, ValueError) as error:
            raise Unfit(f"expected {wanted}, not another text") from error

    return read


def _plain(array: pa.Array) -> Any:
    """Return the only value as Arrow takes it back: of a time or date its number."""
    if pa.types.is_timestamp(array.type):
        return array.cast(pa.int64())[0].as_py()
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32())[0].as_py()
    return array[0].as_py()


def _decimal(precision: int, scale: int) -> ValueType:
    if precision > avro.DECIMAL_DIGITS_MAX:
        raise avro.UnsupportedSchema(f"a decimal has more than {avro.DECIMAL_DIGITS_MAX} digits; declare a string")
    kind = pa.decimal128(precision, scale)
    # Arrow looks at the digits behind the point alone.
    bound = Decimal(10) ** (precision - scale)

    def convert(numbers: pa.Array) -> pa.Array:
        bounds = pc.min_max(numbers)
        lowest = bounds["min"].as_py()
        if lowest is not None and not (-bound < lowest and bounds["max"].as_py() < bound):
            raise ValueError(f"a number does not fit into {kind}")
        return numbers.cast(kind)

    def read(token: bytes) -> Decimal:
        if kind_of(token) not in ("text", "a number"):
            raise Unfit(f"expected a number, not {kind_of(token)}")
        text = token.decode()
        if token.startswith(b'"'):
            text = _STRING(token)
        number = read_decimal(text, precision, scale)
        if number is None:
            raise Unfit(f"expected a number that fits into {kind}, not another one")
        return number

    return ValueType(kind, native_decimal(precision, scale), convert, read)


def _connect_decimal(precision: int, scale: int) -> ValueType:
    """Return the type of decimals as Kafka Connect writes them: a number, or the base64 of the unscaled number.

    Arrow would take a base64 text of digits for a number.
    """
    number_type = _decimal(precision, scale)

    def read(token: bytes) -> Decimal:
        if kind_of(token) != "text":
            return cast("Decimal", number_type.read(token))
        try:
            content = base64.b64decode(_STRING(token), validate=True)
        except ValueError as error:
            raise Unfit("expected a number, or a decimal in base64, not another text") from error
        number = None
        if 0 < len(content) <= _DECIMAL_BYTES_MAX:
            number = read_decimal(f"{int.from_bytes(content, 'big', signed=True)}e-{scale}", precision, scale)
        if number is None:
            raise Unfit(f"expected a decimal in base64 that fits into {number_type.table}, not another one")
        return number

    return replace(number_type, read=read, is_sliced=True)


def _timestamp(encoding: str) -> ValueType:
    if encoding == "iso":
        read = _read_with(parse_times, pa.string(), "an ISO time")
        return ValueType(avro.TIMESTAMP, pa.string(), parse_times, read, f"^{_DATE}({_TIME})?$")
    if encoding == "s":
        return ValueType(avro.TIMESTAMP, pa.float64(), _seconds_to_times, _read_seconds)

    def convert(numbers: pa.Array) -> pa.Array:
        return _numbers_to_times(numbers, encoding)

    def read_number(token: bytes) -> int:
        _require(token, "a number", "a time as a number")
        return _checked_time(_floor_microseconds(parse_number(token.decode()), _TIME_DIGITS[encoding]))

    return ValueType(avro.TIMESTAMP, pa.int64(), convert, read_number)


def _floor_microseconds(number: Decimal, digits: int) -> int:
    """Return microseconds of a number of 10^`digits` microseconds, floored, however many digits it has.

    One of too many digits before the point is beyond every time.
    """
    if not number:
        return 0
    magnitude = number.adjusted() + digits
    if magnitude < 0:
        return -1 if number.is_signed() else 0
    if magnitude > _DIGITS_MAX:
        return _MICROSECONDS_MAX + 1
    return math.floor(number.scaleb(digits, _EXACT))


def _checked_time(microseconds: int) -> int:
    if not _MICROSECONDS_MIN <= microseconds <= _MICROSECONDS_MAX:
        raise Unfit("expected a time in the years 1 to 9999, not another one")
    return microseconds


def _numbers_to_times(numbers: pa.Array, unit: str) -> pa.Array:
    if unit == "ns":
        # Arrow divides towards zero.
        floored = pc.floor(pc.divide(numbers.cast(pa.decimal128(20, 0)), pa.scalar(1_000, pa.decimal128(4, 0))))
        microseconds = floored.cast(pa.int64())
    else:
        microseconds = pc.multiply_checked(numbers, _TIME_UNITS[unit])
    _check_range(microseconds, _MICROSECONDS_MIN, _MICROSECONDS_MAX)
    return microseconds.cast(avro.TIMESTAMP)


def _seconds_to_times(seconds: pa.Array) -> pa.Array:
    """Return instants of seconds since 1970, rounded to the microsecond: a double near today is only that exact."""
    _check_finite(seconds)
    microseconds = np.rint(pc.fill_null(seconds, 0.0).to_numpy(zero_copy_only=False) * 1e6)
    if (np.abs(microseconds) > _MICROSECONDS_MAX).any():
        raise ValueError("a time is outside of the years 1 to 9999")
    times = pa.array(microseconds.astype(np.int64), mask=seconds.is_null().to_numpy(zero_copy_only=False))
    _check_range(times, _MICROSECONDS_MIN, _MICROSECONDS_MAX)
    return times.cast(avro.TIMESTAMP)


def _read_seconds(token: bytes) -> int:
    _require(token, "a number", "a time as a number")
    microseconds = np.rint(float(token) * 1e6)
    if not abs(microseconds) <= _MICROSECONDS_MAX:
        raise Unfit("expected a time in the years 1 to 9999, not another one")
    return _checked_time(int(microseconds))


def _same(array: pa.Array) -> pa.Array:
    return array


_PLAIN: Mapping[str, ValueType] = {
    "boolean": ValueType(pa.bool_(), pa.bool_(), _same, _read_boolean),
    "int": ValueType(pa.int32(), pa.int32(), _same, lambda token: _read_integer(token, 32)),
    "long": ValueType(pa.int64(), pa.int64(), _same, lambda token: _read_integer(token, 64)),
    "float": ValueType(pa.float32(), pa.float32(), _check_finite, _read_float),
    "double": ValueType(pa.float64(), pa.float64(), _check_finite, _read_double),
    "string": ValueType(pa.string(), pa.string(), _same, _read_string),
    "bytes": ValueType(
        pa.binary(), pa.string(), decode_base64, _read_with(decode_base64, pa.string(), "text in base64")
    ),
}
