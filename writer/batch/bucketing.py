"""Assigns a bucket to each row, and finds rows whose event time is not believable."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from bucketers import Bucketer, Buckets
from bucketers.arrow import column, contiguous, has_text
from bucketers.event_time import instants
from bucketers.timestamps import event_time, within_years
from writer.core.units import shifted


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
        """Return for each row whether it was made by this clock; None: every row. Raises ClockFieldMissing."""
        of_topic = None if self.topic is None else contiguous(pc.equal(topics, self.topic))
        if self.field is None:
            return of_topic
        try:
            text = column(rows, self.field, has_text).cast(pa.string())
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


@dataclass(frozen=True)
class TimeRule:
    """The event time's column and the accepted window: `[now - age_max, now + ahead_max]`."""

    field: str
    unit: str
    age_max: timedelta
    ahead_max: timedelta
    clocks: tuple[Clock, ...] = ()  # of sources whose clocks are not UTC
    unit_origin: str = ""  # the setting, or the detection, that made the unit; for a person

    def unit_words(self, unit: str) -> str:
        """Say by which unit numbers were read, and what made it; nothing of times that need none."""
        if unit == "auto":
            return " (event_time.unit is auto, and no value of its batch shows a unit)"
        if unit == "logical":
            return ""
        origin = "as most values of its batch show" if self.unit == "auto" else self.unit_origin
        return f" in {unit} ({origin})" if origin else f" in {unit}"

    def window(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the first and the last time that is believed."""
        return shifted(now, -self.age_max), shifted(now, self.ahead_max)


@dataclass(frozen=True)
class BucketAssignment:
    """Rows with their event times and buckets, and the positions of the rows left out with the reason."""

    rows: pa.Table
    event_time: pa.Array
    buckets: Buckets
    kept: pa.BooleanArray | None  # None: every row
    quarantined: dict[int, str]
    unit: str


def times_of(
    rows: pa.Table, rule: TimeRule, topics: pa.ChunkedArray | pa.Array, now: datetime | None = None
) -> tuple[pa.TimestampArray, str]:
    """Return the rows' event times by true clocks, and the unit they were read with; 'auto' where none is shown.

    A time is null where there is none, or not in the years 1 to 9999. `topics`: of each row. `now`: the batch's time;
    with it, only a time that is believed shows a unit. Raises ValueError when the field is no time, or a clock names a
    field that is not there.
    """
    window_us = None if now is None else _microseconds(rule.window(now))
    found, unit = event_time(rows, rule.field, rule.unit, window_us)
    times = contiguous(found)
    return (within_years(corrected(times, rows, topics, rule.clocks)) if rule.clocks else times), unit


def _microseconds(window: tuple[datetime, datetime]) -> tuple[int, int]:
    first, last = (pa.scalar(bound, pa.timestamp("us", "UTC")).value for bound in window)
    return first, last


def believable(times: pa.TimestampArray, rule: TimeRule, now: datetime) -> pa.BooleanArray:
    """Return which times lie in the accepted window."""
    first, last = (pa.scalar(bound, times.type) for bound in rule.window(now))
    return pc.fill_null(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)), False)


def assign(
    rows: pa.Table, rule: TimeRule, bucketer: Bucketer, now: datetime, topics: pa.ChunkedArray | pa.Array,
    known: tuple[pa.TimestampArray, str] | None = None,
) -> BucketAssignment:  # fmt: skip
    """Split off unbelievable times and map the rest to buckets. Raises ValueError as `times_of` does.

    `known`: times and unit, where the rows may not have the field any more.
    """
    times, unit = known or times_of(rows, rule, topics, now)
    first, last = (pa.scalar(bound, times.type) for bound in rule.window(now))
    good = believable(times, rule, now)
    if pc.all(good).as_py() in (True, None):
        return BucketAssignment(rows, times, bucketer.assign(rows, times), None, {}, unit)
    at = pc.indices_nonzero(pc.invert(good))
    from_, until = (f"{bound.as_py().replace(tzinfo=None).isoformat(timespec='seconds')}Z" for bound in (first, last))
    texts = pc.fill_null(pc.cast(times.take(at), pa.string()), "no time in the years 1 to 9999")
    by = rule.unit_words(unit) + (" by event_time.clocks" if rule.clocks else "")
    quarantined = {
        int(i): f"{rule.field} is {text}{by}, outside [{from_}, {until}]"
        for i, text in zip(at.to_pylist(), texts.to_pylist(), strict=True)  # cold: only the unbelievable ones
    }
    rows, times = rows.filter(good), times.filter(good)
    return BucketAssignment(rows, times, bucketer.assign(rows, times), good, quarantined, unit)
