"""Assigns a bucket to each row, and finds rows whose event time is not believable."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers import Bucketer, Buckets
from headrace.bucketers.arrow import column, contiguous, has_text
from headrace.bucketers.event_time import to_instants
from headrace.bucketers.timestamps import event_time, within_years
from headrace.writer.core.units import microseconds, shift_instant

# Column of the time that Kafka has of a record, which every row gets.
KAFKA_TIME = "_kafka_time"
_TIMESTAMP = pa.timestamp("us", "UTC")


class ClockFieldMissing(ValueError):
    """A rule names a field that the rows have not, or that has no text to compare."""


@dataclass(frozen=True)
class Clock:
    """Whose clock it is, and how it goes.

    `topic`: None for any. `field`: with `values`, it owns rows in which the field is one of them, as text; None for
    any. `shift` is added to its times, or they are wall clocks of `zone`.
    """

    topic: str | None = None
    field: str | None = None
    values: tuple[str, ...] = ()
    shift: timedelta | None = None
    zone: str | None = None

    def __post_init__(self) -> None:
        if (self.shift is None) == (self.zone is None):
            raise ValueError(f"a clock has a shift or a zone, got {self}")

    def correct_times(self, times: pa.TimestampArray) -> pa.TimestampArray:
        """Return the instants of times that this clock showed."""
        if self.zone is not None:
            return to_instants(times, self.zone)
        return pc.add(times, pa.scalar(self.shift, pa.duration("us")))

    def owns(self, rows: pa.Table, topics: pa.ChunkedArray | pa.Array) -> pa.BooleanArray | None:
        """Return for each row whether it was made by this clock; None: every row. Raises ClockFieldMissing."""
        is_of_topic = None if self.topic is None else contiguous(pc.equal(topics, self.topic))
        if self.field is None:
            return is_of_topic
        try:
            texts = column(rows, self.field, has_text).cast(pa.string())
        except (ValueError, pa.ArrowException) as error:
            raise ClockFieldMissing(f"clocks: {error}. Name a field that has a text, a number or a date.") from error
        has_value = pc.is_in(texts, value_set=pa.array(self.values, pa.string()))
        if is_of_topic is None:
            return has_value
        return pc.and_(is_of_topic, has_value)


def correct_times(
    times: pa.TimestampArray, rows: pa.Table, topics: pa.ChunkedArray | pa.Array, clocks: Sequence[Clock]
) -> pa.TimestampArray:
    """Return the event times by true clocks. Of the clocks that own a row, the first counts; without one it stays.

    `topics`: of each row. Raises ClockFieldMissing.
    """
    corrected = times
    # The first clock is applied last, and so decides.
    for clock in reversed(clocks):
        mask = clock.owns(rows, topics)
        if mask is None:
            corrected = clock.correct_times(times)
        elif pc.any(mask).as_py():
            corrected = pc.if_else(mask, clock.correct_times(times), corrected)
    return corrected


@dataclass(frozen=True)
class TimeRule:
    """The event time's column and the accepted window: `[now - max_age, now + max_ahead]`.

    `clocks`: of sources whose clocks are not UTC. `unit_origin`: the setting, or the detection, that made the unit, for
    a person.
    """

    field: str
    unit: str
    max_age: timedelta
    max_ahead: timedelta
    clocks: tuple[Clock, ...] = ()
    unit_origin: str = ""

    def describe_unit(self, unit: str) -> str:
        """Say by which unit numbers were read, and what made it; nothing of times that need none."""
        if unit == "auto":
            return " (event_time.unit is auto, and no value of its batch shows a unit)"
        if unit == "logical":
            return ""
        origin = "as most values of its batch show" if self.unit == "auto" else self.unit_origin
        return f" in {unit} ({origin})" if origin else f" in {unit}"

    def window(self, now: datetime) -> tuple[datetime, datetime]:
        """Return the first and the last time that is believed."""
        return shift_instant(now, -self.max_age), shift_instant(now, self.max_ahead)


@dataclass(frozen=True)
class BucketAssignment:
    """Rows with their event times and buckets, and the positions of the rows left out with the reason.

    `mask`: which of the rows before are among them; None: every row.
    """

    rows: pa.Table
    event_time: pa.Array
    buckets: Buckets
    mask: pa.BooleanArray | None
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
    window_us = None
    if now is not None:
        first, last = rule.window(now)
        window_us = (microseconds(first), microseconds(last))
    values, unit = event_time(rows, rule.field, rule.unit, window_us)
    times = contiguous(values)
    if rule.clocks:
        times = within_years(correct_times(times, rows, topics, rule.clocks))
    return times, unit


def with_kafka_time(rows: pa.Table, records: pa.Table, field: str) -> pa.Table:
    """Return rows with the column of the time that Kafka has of their records, where that is the field that is read."""
    if field != KAFKA_TIME or KAFKA_TIME in rows.column_names:
        return rows
    return rows.append_column(KAFKA_TIME, records.column("timestamp").cast(_TIMESTAMP))


def times_of_columns(columns: pa.Schema, rule: TimeRule, record_columns: pa.Schema) -> pa.TimestampArray:
    """Return the event times of no rows with these columns, those of keys and headers, and Kafka's time.

    Raises ValueError when the field is none of them, or no time.
    """
    beside = [field for field in record_columns if field.name not in columns.names]
    all_columns = pa.schema([*columns, *beside, pa.field(KAFKA_TIME, _TIMESTAMP)])
    times, _ = times_of(all_columns.empty_table(), rule, pa.array([], pa.string()))
    return times


def is_believable(times: pa.TimestampArray, rule: TimeRule, now: datetime) -> pa.BooleanArray:
    """Return which times lie in the accepted window."""
    first, last = (pa.scalar(bound, times.type) for bound in rule.window(now))
    return pc.fill_null(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)), False)


def assign_buckets(
    rows: pa.Table,
    rule: TimeRule,
    bucketer: Bucketer,
    now: datetime,
    topics: pa.ChunkedArray | pa.Array,
    times_and_unit: tuple[pa.TimestampArray, str] | None = None,
) -> BucketAssignment:
    """Split off unbelievable times and map the rest to buckets. Raises ValueError as `times_of` does.

    `times_and_unit`: of the rows, where they may not have the field any more.
    """
    times, unit = times_and_unit or times_of(rows, rule, topics, now)
    mask = is_believable(times, rule, now)
    if pc.all(mask).as_py() in (True, None):
        return BucketAssignment(rows, times, bucketer.assign(rows, times), None, {}, unit)
    quarantined = _quarantine_reasons(times, pc.indices_nonzero(pc.invert(mask)), rule, now, unit)
    rows = rows.filter(mask)
    times = times.filter(mask)
    return BucketAssignment(rows, times, bucketer.assign(rows, times), mask, quarantined, unit)


def _quarantine_reasons(
    times: pa.TimestampArray, positions: pa.Array, rule: TimeRule, now: datetime, unit: str
) -> dict[int, str]:
    """Return for the rows at some positions why their times are not believed (cold: few are not)."""
    bounds = (pa.scalar(bound, times.type).as_py() for bound in rule.window(now))
    first, last = (f"{bound.replace(tzinfo=None).isoformat(timespec='seconds')}Z" for bound in bounds)
    texts = pc.fill_null(pc.cast(times.take(positions), pa.string()), "no time in the years 1 to 9999")
    origin = rule.describe_unit(unit)
    if rule.clocks:
        origin += " by event_time.clocks"
    return {
        int(position): f"{rule.field} is {text}{origin}, outside [{first}, {last}]"
        for position, text in zip(positions.to_pylist(), texts.to_pylist(), strict=True)
    }
