"""Parses and formats durations and sizes such as `10 min` and `128 MiB`."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_INSTANT = datetime.min.replace(tzinfo=UTC)
_LAST_INSTANT = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*$")
_MILLISECONDS = {
    "ms": 1,
    "s": 1_000,
    "sec": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _parse_quantity(text: Any, units: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} needs a number and a unit, such as {example!r} (units: {', '.join(units)})")
    return float(match[1]) * units[match[2].lower()]


def duration(text: Any) -> timedelta:
    """Read `500 ms`, `10 min`, `2 h`, `7 d`. Raises ValueError without a unit or at zero."""
    if isinstance(text, timedelta):
        value = text
    else:
        milliseconds = _parse_quantity(text, _MILLISECONDS, "10 min")
        try:
            value = timedelta(milliseconds=milliseconds)
        except OverflowError as error:
            raise ValueError(f"{text!r} is longer than can be; try '10 min'") from error
    if value <= timedelta(0):
        raise ValueError(f"{text!r} must be longer than zero, such as '10 min'")
    return value


def shift(text: Any) -> timedelta:
    """Read `-1 h`, `+30 min`: a duration with its sign. Raises ValueError without sign or unit, or at zero."""
    sign = text.strip()[:1] if isinstance(text, str) else ""
    if sign not in ("+", "-", "\N{MINUS SIGN}") or not sign:
        raise ValueError(f"{text!r} needs a sign, a number and a unit, such as '-1 h' or '+30 min'")
    value = duration(text.strip()[1:])
    if sign == "+":
        return value
    return -value


def show_shift(value: timedelta) -> str:
    """Write a duration with its sign."""
    sign = "-" if value < timedelta(0) else "+"
    return f"{sign}{show_duration(abs(value))}"


def slack(text: Any) -> timedelta:
    """Read a duration that may be zero: `0 s`."""
    if text == timedelta(0) or (isinstance(text, str) and _parse_quantity(text, _MILLISECONDS, "0 s") == 0):
        return timedelta(0)
    return duration(text)


def size(text: Any) -> int:
    """Read `64 MiB`, `1 GB` as bytes. Raises ValueError without a unit or at zero."""
    value = int(_parse_quantity(text, _BYTES, "128 MiB"))
    if value <= 0:
        raise ValueError(f"{text!r} must be more than zero, such as '128 MiB'")
    return value


def show_duration(value: timedelta) -> str:
    """Write a duration in the largest unit that divides it."""
    if not value:
        return "0 s"
    milliseconds = value / timedelta(milliseconds=1)
    for unit in ("d", "h", "min", "s"):
        if milliseconds % _MILLISECONDS[unit] == 0:
            return f"{milliseconds / _MILLISECONDS[unit]:.0f} {unit}"
    return f"{milliseconds:.0f} ms"


def show_size(value: float) -> str:
    """Write a byte count in a binary unit."""
    if value < 2**10:
        return f"{value:.0f} B"
    for unit in ("KiB", "MiB"):
        value /= 2**10
        if value < 2**10:
            return f"{value:.1f} {unit}"
    value /= 2**10
    return f"{value:.1f} GiB"


def instant(microseconds: int) -> datetime:
    """Return the instant so many microseconds after the beginning of 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_iso(time: datetime | None) -> str | None:
    """Write an instant as ISO 8601, and None as None."""
    return None if time is None else time.isoformat()


def from_iso(text: str | None) -> datetime | None:
    """Read what `to_iso` wrote. Raises ValueError."""
    return None if text is None else datetime.fromisoformat(text)


def parse_instant(value: Any) -> datetime:
    """Return a time that a person wrote: ISO 8601, as screens show it, or a datetime of YAML. UTC where it has no zone.

    Raises ValueError.
    """
    time = value
    if not isinstance(time, datetime):
        # Screens show a time with this zone.
        time = datetime.fromisoformat(str(value).removesuffix(" UTC"))
    if time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    try:
        return time.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{value} is before the year 1 or after the year 9999 in UTC") from error


def microseconds(time: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    return (time - _EPOCH) // _MICROSECOND


def shift_instant(time: datetime, step: timedelta) -> datetime:
    """Return the instant that is `step` later, or earlier; at most the first or the last of the years 1 to 9999."""
    try:
        return time + step
    except OverflowError:
        return _LAST_INSTANT if step > timedelta(0) else _FIRST_INSTANT


Duration = Annotated[timedelta, BeforeValidator(duration), PlainSerializer(show_duration, return_type=str)]
Shift = Annotated[timedelta, BeforeValidator(shift), PlainSerializer(show_shift, return_type=str)]
Slack = Annotated[timedelta, BeforeValidator(slack), PlainSerializer(show_duration, return_type=str)]
Size = Annotated[int, BeforeValidator(size), PlainSerializer(show_size, return_type=str)]
