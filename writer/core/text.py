"""Formats numbers, instants, lengths of time and lists for people."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.units import show_size

_MINUTE = 60
_HOUR = 3600
_DAY = 86_400
# Larger unit and its seconds, then the smaller unit and its seconds.
_UNIT_PAIRS = (("d", _DAY, "h", _HOUR), ("h", _HOUR, "min", _MINUTE), ("min", _MINUTE, "s", 1))
_TENTHS_BELOW_S = 10
# Characters of what a server says, in a message.
WORDS_MAX = 200


def span(seconds: float) -> str:
    """Write a length of time with two units at most: 0.4 s, 12 s, 3 min 5 s, 2 h 10 min, 6 d 3 h."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if round(seconds, 1) < _TENTHS_BELOW_S:
        return f"{seconds:.1f} s"
    total_s = round(seconds)
    for unit, unit_s, smaller_unit, smaller_s in _UNIT_PAIRS:
        if total_s < unit_s:
            continue
        text = f"{total_s // unit_s} {unit}"
        smaller_count = total_s % unit_s // smaller_s
        if smaller_count:
            text += f" {smaller_count} {smaller_unit}"
        return text
    return f"{total_s} s"


def instant(time: datetime | str | None) -> str:
    """Write an instant for a person, to the second: 2026-11-20 05:00:00 UTC. `time`: aware, or its ISO 8601 text.

    None is written `no time`: a record may have no timestamp.
    """
    if time is None:
        return "no time"
    utc = _parse_instant(time).astimezone(UTC)
    return f"{utc.replace(tzinfo=None).isoformat(' ', 'seconds')} UTC"


def iso(time: datetime | str) -> str:
    """Write an instant for a machine, to the millisecond: 2026-11-20T05:00:00.000Z. `time`: as of `instant`."""
    utc = _parse_instant(time).astimezone(UTC)
    return utc.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _parse_instant(time: datetime | str) -> datetime:
    return datetime.fromisoformat(time) if isinstance(time, str) else time


def one_line(message: str, longest: int = WORDS_MAX) -> str:
    """Return what a server says on one line. What a terminal would obey becomes a question mark.

    `longest`: characters of it; then comes an ellipsis.
    """
    # Blanks that follow each other count as one. There are not so many of them.
    text = " ".join(message[: 20 * longest].split())
    printable = "".join(character if character.isprintable() else "?" for character in text)
    if len(printable) > longest:
        return f"{printable[:longest]}…"
    return printable


def plural(count: int, noun: str) -> str:
    """Write a count with its noun: 1 file, 2,000 files."""
    text = f"{count:,} {noun}"
    if count != 1:
        text += "s"
    return text


def join_first(names: Sequence[str], count: int, separator: str = ", ") -> str:
    """Join the first `count` names, and say how many more there are: a, b, c and 4 more."""
    text = separator.join(names[:count])
    if len(names) > count:
        text += f" and {len(names) - count:,} more"
    return text


def name_ranges(ranges: Sequence[Mapping[str, Any]], count: int) -> str:
    """Name the first `count` ranges of offsets: clicks/0 [5, 9), clicks/1 [7, 8) of incarnation 2.

    The first incarnation is not named.
    """
    names = []
    for offset_range in ranges:
        part = TopicPartition.from_dict(offset_range)
        name = f"{part.name} [{offset_range['start']:,}, {offset_range['end']:,})"
        if part.incarnation > 1:
            name += f" of incarnation {part.incarnation}"
        names.append(name)
    return join_first(names, count)


def describe_limit(limit: Mapping[str, Any]) -> str:
    """Write a rate limit for a person: 5,000 records/s and 10.0 MiB/s. `limit`: as in a commit or a status."""
    records = limit["records_per_second"]
    size = limit["bytes_per_second"]
    rates = []
    if records is not None:
        rates.append(f"{records:,.0f} records/s")
    if size is not None:
        rates.append(f"{show_size(size)}/s")
    return " and ".join(rates) or "no limit"
