"""Reads the event time of records: one column of any supported type, as microseconds in UTC.

Bad data gives null, for the caller to count or replace; a bad configuration raises.
"""

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import column, floor_divide

UNITS: Final = ("auto", "s", "ms", "us", "ns", "logical")

# Where the numbers of a unit begin: in March 1973. Those of the next begin in the year 5138 of this one.
_BEGIN = {"s": 10**8, "ms": 10**11, "us": 10**14, "ns": 10**17}
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_INT64 = np.iinfo(np.int64)
_MICROSECONDS = {"day": 86_400_000_000, "s": 1_000_000, "ms": 1_000, "us": 1}

# The years 1 to 9999, which the table's timestamp and datetime hold.
_FIRST_US = -62_135_596_800_000_000
_END_US = 253_402_300_800_000_000

# Kafka's -1 ms: no timestamp.
_NO_KAFKA_TIME_US = -1_000

# ISO 8601 in its extended form, with exactly the dates that exist: Arrow's cast raises for a single bad one.
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE = (
    r"(?:\d{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1\d|2[0-8])|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    rf"|{_LEAP}-02-29)"
)
_ISO = (
    rf"^{_DATE}(?:[T ](?:[01]\d|2[0-3]):[0-5]\d(?::[0-5]\d(?:\.\d+)?)?"
    r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)?)?$"
)


def event_time(
    rows: pa.Table, field: str, unit: str, window_us: tuple[int, int] | None = None
) -> tuple[pa.TimestampArray, str]:
    """Return the event times of `rows` as timestamp('us', 'UTC'), and the unit they were read with.

    A time is null where the value is null, unparseable or outside the years 1 to 9999. `field` may step into structs
    with dots. By the column's type:

    - timestamp, date, ISO-8601 text: 'auto' or 'logical', for it says what it is; without a zone it is UTC.
    - integer: 's', 'ms', 'us' or 'ns'; 'auto' decides by magnitude, for this batch alone, and returns its unit
      ('auto' if no value shows a unit, such as 0 and -1). Finer than a microsecond is floored.
    - double: 's' or 'auto', rounded to the microsecond, since a double near today is only that exact.

    `window_us`: the times that are believed, in microseconds since 1970, both included; only such a time shows a unit.
    Raises ValueError for an unknown field or unit, or one that does not go with the type.
    """
    if unit not in UNITS:
        raise ValueError(f"unit {unit!r} of field {field!r} is unknown; use one of {', '.join(UNITS)}")
    values = column(rows, field, lambda kind: not find_refusal(kind, unit))
    kind = values.type
    refusal = find_refusal(kind, unit)
    if refusal:
        raise ValueError(f"field {field!r} is {refusal}")
    if pa.types.is_null(kind):
        return values.cast(pa.timestamp("us", "UTC")), unit
    if pa.types.is_integer(kind):
        numbers = _to_int64(values)
        if unit != "auto":
            return _to_instants(numbers, unit), unit
        frequent_unit = _most_frequent_unit(numbers, window_us)
        used_unit = frequent_unit or _most_frequent_unit(numbers) or "s"
        return _to_instants(numbers, used_unit), frequent_unit or "auto"
    if pa.types.is_float64(kind):
        return _parse_seconds(values), "s"
    return _convert_logical(values), "logical"


def find_refusal(kind: pa.DataType, unit: str) -> str:
    """Return why values of a type are no times in a unit, and what to do; empty where they are."""
    refusal = ""
    if pa.types.is_null(kind):
        return ""
    if pa.types.is_integer(kind):
        if unit == "logical":
            refusal = f"a plain {kind} without a logical type; declare s, ms, us or ns"
    elif pa.types.is_float64(kind):
        if unit not in ("auto", "s"):
            refusal = f"{kind}, read as seconds; declare 's' instead of {unit!r}"
    elif not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind) or _is_text(kind)):
        refusal = f"{kind}, which is no time; choose a timestamp, date, integer, double or ISO-8601 text"
    elif unit not in ("auto", "logical"):
        refusal = f"{kind}, which needs no unit; declare 'logical' instead of {unit!r}"
    return refusal


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _convert_logical(values: pa.Array) -> pa.TimestampArray:
    """Return timestamps, dates or texts as instants."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return _to_instants(values.cast(pa.int64()), kind.unit)
    if pa.types.is_date32(kind):
        return _to_instants(values.cast(pa.int32()).cast(pa.int64()), "day")
    return _parse_text(values.cast(pa.string()))


def _to_int64(values: pa.Array) -> pa.Int64Array:
    """Return integers as int64. What only uint64 holds wraps to a negative there, and is null."""
    numbers = values.cast(pa.int64(), safe=False)
    if not pa.types.is_uint64(values.type):
        return numbers
    return pc.if_else(pc.less(numbers, 0), None, numbers)


def _most_frequent_unit(values: pa.Int64Array, window_us: tuple[int, int] | None = None) -> str:
    """Return the unit that most values show by their magnitude; empty where none does.

    A value shows the unit in which it lies between March 1973 and November 5138, and in the window. Of the values
    1_760_000_000, 1_760_000_000_000 and 1_760_000_000_001, one shows seconds and two show milliseconds: the unit is ms.
    """
    numbers = values.drop_null().to_numpy()
    # As int64 the least number has no positive counterpart.
    magnitudes = np.abs(numbers.astype(np.float64))
    # 0 is of no unit, 1 of the first one.
    unit_numbers = np.digitize(magnitudes, list(_BEGIN.values()))
    counts: dict[str, int] = {}
    for unit_number, unit in enumerate(_BEGIN, 1):
        shows_unit = unit_numbers == unit_number
        if window_us is not None:
            first, last = (bound_us * 1_000 // _NANOSECONDS[unit] for bound_us in window_us)
            shows_unit &= numbers >= max(first, _INT64.min)
            shows_unit &= numbers <= min(last, _INT64.max)
        counts[unit] = int(shows_unit.sum())
    most_frequent = max(counts, key=counts.__getitem__)
    return most_frequent if counts[most_frequent] else ""


def _to_instants(values: pa.Int64Array, unit: str) -> pa.TimestampArray:
    """Return numbers since 1970 as instants, null outside the years 1 to 9999."""
    if unit == "ns":
        # An int64 holds the years 1677 to 2262 of them.
        return floor_divide(values, 1_000).cast(pa.timestamp("us", "UTC"))
    scale = _MICROSECONDS[unit]
    is_inside = pc.and_(pc.greater_equal(values, _FIRST_US // scale), pc.less(values, _END_US // scale))
    return pc.multiply(pc.if_else(is_inside, values, None), scale).cast(pa.timestamp("us", "UTC"))


def _parse_seconds(values: pa.DoubleArray) -> pa.TimestampArray:
    """Return seconds since 1970 as instants, null outside the years 1 to 9999 and for NaN."""
    micros = pc.round(pc.multiply(values, 1e6))
    is_inside = pc.and_(pc.greater_equal(micros, float(_FIRST_US)), pc.less(micros, float(_END_US)))
    return pc.if_else(is_inside, micros, None).cast(pa.int64()).cast(pa.timestamp("us", "UTC"))


def _parse_text(values: pa.StringArray) -> pa.TimestampArray:
    """Return ISO-8601 texts as instants; null for other texts.

    It completes what is left out (time, zone), drops digits below the microsecond, and lets Arrow parse. The texts
    2026-11-20, 2026-11-20 05:00:00.1234567 and 2026-11-20T05:00+01:00 become 2026-11-20T00:00Z,
    2026-11-20 05:00:00.123456Z and 2026-11-20T05:00+01:00.
    """
    iso = pc.if_else(pc.match_substring_regex(values, _ISO), values, None)
    exact = pc.replace_substring_regex(iso, r"(\.\d{6})\d+", r"\1")
    is_without_zone = pc.match_substring_regex(exact, r"^.{10}[T ][\d:.]+$")
    is_date = pc.equal(pc.utf8_length(exact), 10)
    completion = pc.if_else(is_date, "T00:00Z", pc.if_else(is_without_zone, "Z", ""))
    times = pc.binary_join_element_wise(exact, completion, "").cast(pa.timestamp("us", "UTC"))
    return within_years(times)


def kafka_times(numbers: pa.Int64Array, unit: str = "ms") -> pa.TimestampArray:
    """Return timestamps of Kafka records as instants. `numbers`: since 1970, of `unit`; any int64.

    Null where Kafka has none, which it writes as -1 ms, and outside the years 1 to 9999.
    """
    bounds = pc.min_max(numbers).as_py()
    least = bounds["min"]
    scale = _MICROSECONDS.get(unit)
    # Nearly every batch has no time that must become null.
    if scale is not None and least is not None and least >= 0 and bounds["max"] < _END_US // scale:
        return pc.multiply(numbers, scale).cast(pa.timestamp("us", "UTC"))
    times = _to_instants(numbers, unit)
    return pc.if_else(pc.equal(times, pa.scalar(_NO_KAFKA_TIME_US, times.type)), None, times)


def within_years(times: pa.TimestampArray) -> pa.TimestampArray:
    """Return instants of microseconds, null where one lies outside the years 1 to 9999."""
    return _to_instants(times.cast(pa.int64()), "us")
