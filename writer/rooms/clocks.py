"""Event times of sources whose clocks are not UTC: moved by a constant, or read as a wall clock of their zone."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrays import column, contiguous
from bucketers.event_time import instants


class ClockFieldMissing(ValueError):
    """A rule names a field that the rows have not, or that has no text to compare."""


@dataclass(frozen=True)
class Clock:
    """Whose clock it is, and how it goes: `shift` is added to its times, or they are wall clocks of `zone`."""

    topic: str | None = None  # None: of any
    field: str | None = None  # with `values`: rows in which it is one of them, as text; None: any
    values: tuple[str, ...] = ()
    shift: timedelta | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        if (self.shift is None) == (self.zone is None):
            raise ValueError(f"a clock has a shift or a zone, got {self}")

    def right(self, times: pa.TimestampArray) -> pa.TimestampArray:
        """Return the instants of times that this clock showed."""
        if self.zone is not None:
            return instants(times, self.zone)
        return pc.add(times, pa.scalar(self.shift, pa.duration("us")))

    def owns(self, rows: pa.Table, topics: pa.ChunkedArray | pa.Array) -> pa.BooleanArray | None:
        """Tell of each row whether it was made by this clock; None: every row. Raises ClockFieldMissing."""
        of_topic = None if self.topic is None else contiguous(pc.equal(topics, self.topic))
        if self.field is None:
            return of_topic
        try:
            text = column(rows, self.field).cast(pa.string())
        except (ValueError, pa.ArrowException) as error:
            raise ClockFieldMissing(f"clocks: {error}. Name a field that has a text, a number or a date.") from error
        of_value = pc.is_in(text, value_set=pa.array(self.values, pa.string()))
        return of_value if of_topic is None else pc.and_(of_topic, of_value)


def corrected(
    times: pa.TimestampArray, rows: pa.Table, topics: pa.ChunkedArray | pa.Array, clocks: Sequence[Clock]
) -> pa.TimestampArray:
    """Return the event times by true clocks. Of the clocks that own a row, the first counts; without one it stays.

    `topics`: of each row. Raises ClockFieldMissing.
    """
    found = times
    for clock in reversed(clocks):  # the first is applied last, and so has the last word
        mine = clock.owns(rows, topics)
        if mine is None:
            found = clock.right(times)
        elif pc.any(mine).as_py():
            found = pc.if_else(mine, clock.right(times), found)
    return found
