"""Parses and formats durations and sizes such as `10 min` and `128 MiB`."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)\s*$")
_MILLISECONDS = {
    "ms": 1, "s": 1_000, "sec": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000,
}  # fmt: skip
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _quantity(text: Any, units: Mapping[str, float], example: str) -> float:
    match = _QUANTITY.match(text) if isinstance(text, str) else None
    if match is None or match[2].lower() not in units:
        known = ", ".join(units)
        raise ValueError(f"{text!r} needs a number and a unit, such as {example!r} (units: {known})")
    return float(match[1]) * units[match[2].lower()]


def duration(text: Any) -> timedelta:
    """Read `500 ms`, `10 min`, `2 h`, `7 d`. Raises ValueError without a unit or at zero."""
    try:
        value = (
            text if isinstance(text, timedelta) else timedelta(milliseconds=_quantity(text, _MILLISECONDS, "10 min"))
        )
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
    return value if sign == "+" else -value


def show_shift(value: timedelta) -> str:
    """Write a duration with its sign."""
    return f"{'-' if value < timedelta(0) else '+'}{show_duration(abs(value))}"


def slack(text: Any) -> timedelta:
    """Read a duration that may be zero: `0 s`."""
    if text == timedelta(0) or (isinstance(text, str) and _quantity(text, _MILLISECONDS, "0 s") == 0):
        return timedelta(0)
    return duration(text)


def size(text: Any) -> int:
    """Read `64 MiB`, `1 GB` as bytes. Raises ValueError without a unit or at zero."""
    value = int(_quantity(text, _BYTES, "128 MiB"))
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
    for unit in ("B", "KiB", "MiB"):
        if value < 2**10:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 2**10
    return f"{value:.1f} GiB"


def instant(microseconds: int) -> datetime:
    """Return the instant so many microseconds after the beginning of 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


def to_iso(at: datetime | None) -> str | None:
    """Write an instant as ISO 8601, and none as none."""
    return None if at is None else at.isoformat()


def from_iso(text: str | None) -> datetime | None:
    """Read what `to_iso` wrote. Raises ValueError."""
    return None if text is None else datetime.fromisoformat(text)


def microseconds(at: datetime) -> int:
    """Return an instant as microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def shifted(at: datetime, by: timedelta) -> datetime:
    """Return the instant so much later, or earlier; the first or last of the years 1 to 9999 where it is beyond."""
    try:
        return at + by
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if by > timedelta(0) else datetime.min.replace(tzinfo=UTC)


Duration = Annotated[timedelta, BeforeValidator(duration), PlainSerializer(show_duration, return_type=str)]
Shift = Annotated[timedelta, BeforeValidator(shift), PlainSerializer(show_shift, return_type=str)]
Slack = Annotated[timedelta, BeforeValidator(slack), PlainSerializer(show_duration, return_type=str)]
Size = Annotated[int, BeforeValidator(size), PlainSerializer(show_size, return_type=str)]
