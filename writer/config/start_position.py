"""Where a new pipeline begins to read: `start` of the configuration."""

from datetime import UTC, datetime
from typing import Any

from writer.core.units import parse_instant

_POSITIONS = "must be earliest, latest, {timestamp: 2026-11-20T05:00:00Z} or {offsets: {topic: {0: 17}}}"


def start_position(value: Any) -> Any:
    """Read where a new pipeline begins; timestamps are aware UTC then. Raises ValueError."""
    match value:
        case "earliest" | "latest":
            return value
        case {"timestamp": when, **rest} if not rest:
            return {"timestamp": _instant(when)}
        case {"offsets": dict() as topics, **rest} if not rest:
            return {"offsets": {str(topic): _offsets(partitions) for topic, partitions in topics.items()}}
    raise ValueError(_POSITIONS)


def _instant(when: Any) -> datetime:
    try:
        instant = parse_instant(when)
    except ValueError as error:
        raise ValueError(f"timestamp {when!r} is none; it {_POSITIONS}") from error
    if instant.tzinfo is None:
        raise ValueError(f"timestamp {when} has no zone; write {instant.isoformat()}Z for UTC")
    return instant.astimezone(UTC)


def _offsets(partitions: Any) -> dict[int, int]:
    try:
        found = {int(partition): int(offset) for partition, offset in partitions.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"offsets {partitions!r} are not numbers by partition; it {_POSITIONS}") from error
    if min([*found, *found.values()], default=0) < 0:
        raise ValueError(f"offsets {partitions!r} are below zero; it {_POSITIONS}")
    return found
