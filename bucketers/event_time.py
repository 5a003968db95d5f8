"""Buckets by event time. Labels and intervals are computed here, so that they agree in every time zone.

Time zones come from `zoneinfo` alone (`headrace.bucketers.zone_data`). Arrow's `local_timestamp` reads the same files
but not their closing rule, so it knows no summer time after 2037 (pyarrow 26), and a row with such a date would lie
outside its own bucket.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous, floor_divide
from headrace.bucketers.base import Buckets
from headrace.bucketers.zone_data import DAY_S, END_S, EPOCH, FIRST_S, Shift, clock_of, find_shifts, to_datetime

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_WIDTH_MAX = timedelta(days=365)
_MICROSECONDS = 1_000_000
_LABEL = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T(\d{2})(?:-(\d{2})(?:-(\d{2}))?)?([bc]?))?")
# The suffixes of labels that one wall clock shows under several UTC offsets, in order of time.
_SUFFIXES = ("", "b", "c")
# An offset is less than a day either way, so floor * _KEY_STEP + offset is one to one.
_KEY_STEP = 2 * DAY_S
# About 50 MB when full: eleven years of hours.
_PIECES_CACHED = 100_000


@dataclass(frozen=True)
class EventTime:
    """Buckets of equal width on the clock of `zone`.

    In UTC a bucket starts at a multiple of `width` since 1970. In another zone it starts at a multiple of `width` since
    local midnight, so a width is a day or divides one. Intervals are the true instants in either case:

    - Up to an hour wide, a bucket is a stretch of the wall clock under one UTC offset. When autumn repeats an hour, the
      second one is labelled `b` (`2026-10-25T02b`); a transition inside a bucket cuts it in two in the same way.
    - Wider, it is a stretch of the wall clock under whichever offsets apply: a day has 23, 24 or 25 hours. If clocks go
      back across a bucket's edge (St. John's until 2011, from 00:01 to 23:01), two buckets interleave: the interval
      runs from the bucket's first instant to its last, and overlaps its neighbour's.

    What a clock shows before the year 1 or after 9999 lies in its first or last bucket, and no interval goes beyond
    those years in UTC. The last one ends with the last microsecond, which it contains: no datetime is later.

    Labels are `2026-11-20`, `2026-11-20T05`, `2026-11-20T05-37` or `2026-11-20T05-37-30`, as fine as the width needs,
    and safe as the name of a directory. Raises ValueError for a width or a zone that cannot be.
    """

    width: timedelta
    zone: str = "UTC"
    # None: 'day', 'hour' or 'minute', after the width.
    column: str | None = None

    def __post_init__(self) -> None:
        if self.width <= timedelta(0) or self.width % _SECOND:
            raise ValueError(f"width must be a positive number of whole seconds, got {self.width}; try 1 hour or 1 day")
        if self.width > _WIDTH_MAX:
            raise ValueError(f"width must be at most {_WIDTH_MAX.days} days, got {self.width}; choose a smaller one")
        if self.zone != "UTC":
            _check_zone(self.zone)
            _check_width_in_zone(self.width, self.zone)

    @property
    def columns(self) -> tuple[str, ...]:
        """The one partition column."""
        if self.column is not None:
            return (self.column,)
        if self.width < _HOUR:
            return ("minute",)
        return ("hour" if self.width % _DAY else "day",)

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:  # noqa: ARG002 the protocol's
        """Give every row the bucket of its event time, in the years 1 to 9999. Does not read the rows.

        A bucket has a floor: its start on the wall clock, in widths since 1970. Its key is the floor, in a zone with
        the UTC offset. With hours in Berlin, the rows 2026-10-25T00:30Z, 01:30Z and 02:30Z have the offsets 2 h, 1 h
        and 1 h. Their wall clocks show 02:30, 02:30 and 03:30, so their labels are `2026-10-25T02`, `2026-10-25T02b`
        and `2026-10-25T03`.
        """
        assert event_time.type == pa.timestamp("us", "UTC"), event_time.type
        assert not event_time.null_count
        instants = contiguous(event_time).cast(pa.int64())
        if self.zone == "UTC":
            keys = floor_divide(instants, self._width_s * _MICROSECONDS).dictionary_encode()
            buckets = [self._utc_bucket(floor) for floor in keys.dictionary.to_pylist()]
        else:
            keys = self._zone_keys(instants).dictionary_encode()
            buckets = [self._zone_bucket(key) for key in keys.dictionary.to_pylist()]
        return Buckets(
            codes=keys.indices,
            values=tuple((label,) for label, _ in buckets),
            intervals=tuple(interval for _, interval in buckets),
        )

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        """Return the interval of a label; None for a text that is not a label of these buckets."""
        match = _LABEL.fullmatch(values[0] or "")
        if match is None:
            return None
        date, hour, minute, second, suffix = match.groups()
        try:
            wall = datetime.fromisoformat(f"{date}T{hour or '00'}:{minute or '00'}:{second or '00'}+00:00")
        except ValueError:
            return None
        floor = (wall - EPOCH) // _SECOND // self._width_s
        if self.zone == "UTC":
            label, interval = self._utc_bucket(floor)
        else:
            pieces = _pieces(clock_of(self.zone), floor * self._width_s, self._width_s)
            rank = _SUFFIXES.index(suffix or "")
            if rank >= len(pieces):
                # The zone's wall clock never showed this time, or not that often.
                return None
            offset_s = 0 if self.width > _HOUR else pieces[rank].offset_s
            label, interval = self._zone_bucket(floor * _KEY_STEP + offset_s)
        if label != values[0]:
            return None
        return interval

    @property
    def _width_s(self) -> int:
        return self.width // _SECOND

    @property
    def _first_floor(self) -> int:
        return FIRST_S // self._width_s

    @property
    def _last_floor(self) -> int:
        return (END_S - 1) // self._width_s

    def _zone_keys(self, instants: pa.Int64Array) -> pa.Int64Array:
        """Return the key of each instant's bucket: the floor, and up to an hour of width the UTC offset."""
        offsets_s = _offsets_s(instants, self.zone)
        wall_times = pc.add(instants, pc.multiply(offsets_s, _MICROSECONDS))
        floors = floor_divide(wall_times, self._width_s * _MICROSECONDS)
        floors = pc.min_element_wise(pc.max_element_wise(floors, self._first_floor), self._last_floor)
        return pc.add(pc.multiply(floors, _KEY_STEP), 0 if self.width > _HOUR else offsets_s)

    def _utc_bucket(self, floor: int) -> tuple[str, tuple[datetime, datetime]]:
        """Return the label and the interval of a bucket in UTC."""
        start = to_datetime(floor * self._width_s)
        next_start = to_datetime((floor + 1) * self._width_s)
        return self._label(start), (start, next_start)

    def _zone_bucket(self, key: int) -> tuple[str, tuple[datetime, datetime]]:
        """Return the label and the interval of a bucket in a zone."""
        floor, shifted_offset_s = divmod(key + DAY_S, _KEY_STEP)
        wall_s = floor * self._width_s
        pieces = _pieces(clock_of(self.zone), wall_s, self._width_s)
        suffix = ""
        if self.width <= _HOUR:
            rank = [piece.offset_s for piece in pieces].index(shifted_offset_s - DAY_S)
            pieces = pieces[rank : rank + 1]
            suffix = _SUFFIXES[rank]
        start_s = FIRST_S if floor == self._first_floor else pieces[0].start_s
        end_s = END_S if floor == self._last_floor else pieces[-1].end_s
        return self._label(to_datetime(wall_s)) + suffix, (to_datetime(start_s), to_datetime(end_s))

    def _label(self, wall: datetime) -> str:
        if not self.width % _DAY:
            return wall.date().isoformat()
        if self.width % _MINUTE:
            finest = "seconds"
        elif self.width % _HOUR:
            finest = "minutes"
        else:
            finest = "hours"
        return wall.replace(tzinfo=None).isoformat(timespec=finest).replace(":", "-")


def _check_zone(zone: str) -> None:
    """Raise ValueError for a zone that has no data."""
    try:
        clock_of(zone)
    except KeyError as error:
        raise ValueError(
            f"zone {zone!r} is unknown; use an IANA name such as 'UTC', or install data that have it, as the "
            "package tzdata does"
        ) from error
    except (ValueError, OSError) as error:
        raise ValueError(f"zone {zone!r} cannot be used: {error}") from error


def _check_width_in_zone(width: timedelta, zone: str) -> None:
    """Raise ValueError for a width that does not divide the days of a zone."""
    if width > _DAY:
        raise ValueError(f"width {width} is over a day, which only UTC can have; use 1 day in {zone}, or zone UTC")
    if _DAY % width or (_HOUR % width and width % _HOUR):
        raise ValueError(
            f"width {width} does not fit the clock of {zone}: it must divide an hour, or be whole hours that "
            "divide a day; choose such a width, or zone UTC"
        )


def to_instants(wall_times: pa.TimestampArray, zone: str) -> pa.TimestampArray:
    """Return the instants at which clocks of `zone` showed these times, which are given as if they were UTC.

    Null stays null. Of an hour that autumn repeats it is the first one; in the hour that spring leaves out, the offset
    before it counts, as for a clock that was not put forward yet (fold 0 of PEP 495). In Berlin, 2026-10-25 02:30 is
    00:30Z, and 2026-03-29 02:30 is 01:30Z.
    """
    times = wall_times.cast(pa.int64())
    shifts = _shifts_among(times, zone)
    # A clock shows the times under an offset until the later of both readings of the moment at which it changes.
    starts_s = []
    offset_before_s = shifts[0][1] if shifts else 0
    for start_s, offset_s in shifts:
        starts_s.append(start_s + max(offset_s, offset_before_s))
        offset_before_s = offset_s
    offsets_s = _look_up_offsets(times, starts_s, [offset_s for _, offset_s in shifts])
    return pc.subtract(times, pc.multiply(offsets_s, _MICROSECONDS)).cast(wall_times.type)


def _offsets_s(instants: pa.Int64Array, zone: str) -> pa.Int64Array:
    """Return the UTC offset at each instant, from the zone's few shifts in the years that occur."""
    shifts = _shifts_among(instants, zone)
    return _look_up_offsets(instants, [start_s for start_s, _ in shifts], [offset_s for _, offset_s in shifts])


def _shifts_among(times: pa.Int64Array, zone: str) -> list[tuple[int, int]]:
    """Return start and offset of the zone's shifts, in seconds, in the years that occur."""
    years = pc.unique(pc.year(times.cast(pa.timestamp("us")))).drop_null().to_pylist()
    clock = clock_of(zone)
    offsets_s: dict[int, int] = {}
    for year in years:
        offsets_s.update((shift.start_s, shift.offset_s) for shift in find_shifts(clock, year))
    return sorted(offsets_s.items())


def _look_up_offsets(times: pa.Int64Array, starts_s: list[int], offsets_s: list[int]) -> pa.Int64Array:
    """Return the offset that holds from the last start at or before each time on. `times`: in microseconds.

    With the starts 0 s and 10 s and their offsets 3600 and 7200, the times 5 s, 10 s and 11 s have the offsets 3600,
    7200 and 7200.
    """
    starts = pa.array([start_s * _MICROSECONDS for start_s in starts_s], pa.int64())
    starts_before = pc.search_sorted(starts, times, side="right")
    return pa.array(offsets_s, pa.int64()).take(pc.subtract(starts_before, 1))


@lru_cache(maxsize=_PIECES_CACHED)
def _pieces(clock: ZoneInfo, wall_s: int, width_s: int) -> tuple[Shift, ...]:
    """Return the instants whose wall clock lies in [wall_s, wall_s + width_s), one piece per offset, oldest first."""
    pieces = []
    for offset_s, start_s, end_s in find_shifts(clock, to_datetime(wall_s).year):
        piece = Shift(offset_s, max(start_s, wall_s - offset_s), min(end_s, wall_s + width_s - offset_s))
        if piece.start_s < piece.end_s:
            pieces.append(piece)
    return tuple(pieces)
