"""Computes the watermark of each partition and of the table. Pure.

A part has *seen* an instant when a row of it was committed with an event time that late, bounded by the broker's time
of the record and by the batch's now: one event from the far future moves nothing. The table's watermark is the least of
its parts', less the time that events may be out of order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from writer.core.offsets import Source, TopicPartition
from writer.core.units import shift_instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PartitionEventTime:
    """How far a part has come in event time. `idle`: nothing waits in it, and nothing came for a while."""

    part: TopicPartition
    instant: datetime | None  # None: no row of it was ever committed
    idle: bool = False


@dataclass(frozen=True)
class Watermark:
    """The table's watermark, and what holds it back. `instant` is None where no part that counts has seen a row."""

    instant: datetime | None
    held_by: TopicPartition | None = None
    idle: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class KafkaEnds:
    """Kafka's answer at one instant, after a deadline: where the logs end, and which partitions are idle.

    `quiet`: sources whose end has not moved for `idle_timeout`.
    """

    at: datetime
    ends: Mapping[Source, int]
    quiet: frozenset[Source]

    def caught_up(self, frontier: Mapping[Source, int]) -> bool:
        """Return whether everything that was there is committed."""
        return bool(self.ends) and all(frontier.get(source, 0) >= end for source, end in self.ends.items())

    def idle(self, frontier: Mapping[Source, int]) -> frozenset[Source]:
        """Return the quiet sources that have nothing waiting."""
        return frozenset(s for s in self.quiet if s in self.ends and frontier.get(s, 0) >= self.ends[s])


def watermark(parts: Iterable[PartitionEventTime], out_of_orderness: timedelta) -> Watermark:
    """Return the table's watermark over the parts that it reads.

    An idle part does not hold it back. Are all of them idle, the one that came furthest speaks for them.
    """
    known = sorted(parts, key=lambda seen: seen.part)
    idle = tuple(seen.part for seen in known if seen.idle)
    active = [seen for seen in known if not seen.idle]
    if not active:
        ahead = max((s for s in known if s.instant is not None), key=lambda s: s.instant or _EPOCH, default=None)
        active = [] if ahead is None else [ahead]
    if not active:
        return Watermark(None, None, idle)
    behind = min(active, key=lambda seen: (seen.instant is not None, seen.instant or _EPOCH))
    return Watermark(
        None if behind.instant is None else shift_instant(behind.instant, -out_of_orderness), behind.part, idle
    )


def furthest(parts: Iterable[PartitionEventTime], out_of_orderness: timedelta) -> datetime | None:
    """Return the watermark that there would be if only the part that came furthest counted: an upper bound."""
    instants = [seen.instant for seen in parts if seen.instant is not None]
    return shift_instant(max(instants), -out_of_orderness) if instants else None


def risen(known: Mapping[TopicPartition, int], found: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return what a batch has seen, in microseconds, where that is later than what was known."""
    return {part: at for part, at in found.items() if at > known.get(part, at - 1)}
