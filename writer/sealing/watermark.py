"""Computes the watermark of each partition and of the table. Pure.

A part has *seen* an instant when a row of it was committed with an event time that late, bounded by the broker's time
of the record and by the batch's now: one event from the far future moves nothing. The table's watermark is the least of
its parts', less the time that events may be out of order.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter

from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.core.units import shift_instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class PartitionEventTime:
    """How far a part has come in event time. `idle`: nothing waits in it, and nothing came for a while."""

    part: TopicPartition
    # None: no row of it was ever committed.
    instant: datetime | None
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

    def has_caught_up(self, frontier: Mapping[Source, int]) -> bool:
        """Return whether everything that was there is committed."""
        return bool(self.ends) and all(frontier.get(source, 0) >= end for source, end in self.ends.items())

    def idle_sources(self, frontier: Mapping[Source, int]) -> frozenset[Source]:
        """Return the quiet sources that have nothing waiting."""
        return frozenset(
            source for source in self.quiet if source in self.ends and frontier.get(source, 0) >= self.ends[source]
        )


def watermark(parts: Iterable[PartitionEventTime], out_of_orderness: timedelta) -> Watermark:
    """Return the table's watermark over the parts that it reads.

    An idle part does not hold it back. Are all of them idle, the one that came furthest speaks for them.
    """
    parts_in_order = sorted(parts, key=attrgetter("part"))
    idle = tuple(part.part for part in parts_in_order if part.idle)
    active = [part for part in parts_in_order if not part.idle]
    if not active:
        with_rows = [part for part in parts_in_order if part.instant is not None]
        if not with_rows:
            return Watermark(None, None, idle)
        active = [max(with_rows, key=lambda part: part.instant or _EPOCH)]
    behind = min(active, key=lambda part: (part.instant is not None, part.instant or _EPOCH))
    if behind.instant is None:
        return Watermark(None, behind.part, idle)
    return Watermark(shift_instant(behind.instant, -out_of_orderness), behind.part, idle)


def highest_watermark(parts: Iterable[PartitionEventTime], out_of_orderness: timedelta) -> datetime | None:
    """Return the watermark that there would be if only the part that came furthest counted: an upper bound."""
    instants = [part.instant for part in parts if part.instant is not None]
    if instants:
        return shift_instant(max(instants), -out_of_orderness)
    return None


def advanced_event_times(
    before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the newest event times of a batch, in microseconds, where they are later than those before it."""
    return {part: time_us for part, time_us in after.items() if part not in before or time_us > before[part]}
