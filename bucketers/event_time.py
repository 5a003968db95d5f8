"""Buckets by event time. Labels and intervals are computed here, so that they agree in every time zone.

Time zones come from `zoneinfo` alone (`bucketers.zone_data`). Arrow's `local_timestamp` reads the same files but not
their closing rule, so it knows no summer time after 2037 (pyarrow 26), and a row with such a date would lie outside its
own bucket.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous, floor_divide
from bucketers.base import Buckets
from bucketers.zone_data import DAY_S, END_S, EPOCH, FIRST_S, Shift, clock_of, find_shifts, moment

_SECOND, _MINUTE, _HOUR, _DAY = (timedelta(seconds=n) for n in (1, 60, 3_600, 86_400))
_WIDTH_MAX = timedelta(days=365)
_LABEL = re.compile(r"(\d{4}-\d{2}-\d{2})(?:T(\d{2})(?:-(\d{2})(?:-(\d{2}))?)?([bc]?))?")
_SPAN_S = 2 * DAY_S  # an offset is less than a day either way: wall * _SPAN_S + offset is one to one


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
    column: str | None = None  # None: 'day', 'hour' or 'minute', after the width

    def __post_init__(self) -> None:
        width, zone = self.width, self.zone
        if width <= timedelta(0) or width % _SECOND:
            raise ValueError(f"width must be a positive number of whole seconds, got {width}; try 1 hour or 1 day")
        if width > _WIDTH_MAX:
            raise ValueError(f"width must be at most {_WIDTH_MAX.days} days, got {width}; choose a smaller one")
        if zone == "UTC":
            return
        try:
            clock_of(zone)
        except KeyError as error:
            raise ValueError(
                f"zone {zone!r} is unknown; use an IANA name such as 'UTC', or install data that have it, as the "
                "package tzdata does"
            ) from error
        except (ValueError, OSError) as error:
            raise ValueError(f"zone {zone!r} cannot be used: {error}") from error
        if width > _DAY:
            raise ValueError(f"width {width} is over a day, which only UTC can have; use 1 day in {zone}, or zone UTC")
        if _DAY % width or (_HOUR % width and width % _HOUR):
            raise ValueError(
                f"width {width} does not fit the clock of {zone}: it must divide an hour, or be whole hours that "
                "divide a day; choose such a width, or zone UTC"
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The one partition column."""
        if self.column is not None:
            return (self.column,)
        return ("minute" if self.width < _HOUR else "hour" if self.width % _DAY else "day",)

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:  # noqa: ARG002 the protocol's
        """Give every row the bucket of its event time, in the years 1 to 9999. Does not read the rows."""
        assert event_time.type == pa.timestamp("us", "UTC"), event_time.type
        assert not event_time.null_count
        instants, width_us = contiguous(event_time).cast(pa.int64()), self._width_s * 1_000_000
        if self.zone == "UTC":
            keys = floor_divide(instants, width_us).dictionary_encode()
            buckets = [self._in_utc(key) for key in keys.dictionary.to_pylist()]
        else:
            offsets_s = _offsets_s(instants, self.zone)
            floors = floor_divide(pc.add(instants, pc.multiply(offsets_s, 1_000_000)), width_us)
            floors = pc.min_element_wise(pc.max_element_wise(floors, self._first_floor), self._last_floor)
            split_s = 0 if self.width > _HOUR else offsets_s
            keys = pc.add(pc.multiply(floors, _SPAN_S), split_s).dictionary_encode()
            buckets = [self._in_zone(key) for key in keys.dictionary.to_pylist()]
        return Buckets(keys.indices, tuple((label,) for label, _ in buckets), tuple(span for _, span in buckets))

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        """Return the interval of a label; None for a text that is not a label of these buckets."""
        found = _LABEL.fullmatch(values[0] or "")
        if found is None:
            return None
        date, hour, minute, second, suffix = found.groups()
        try:
            wall = datetime.fromisoformat(f"{date}T{hour or '00'}:{minute or '00'}:{second or '00'}+00:00")
        except ValueError:
            return None
        wall_s, rank = (wall - EPOCH) // _SECOND, ("", "b", "c").index(suffix or "")
        floor = wall_s // self._width_s
        if self.zone == "UTC":
            label, span = self._in_utc(floor)
            return span if label == values[0] else None
        pieces = _pieces(clock_of(self.zone), floor * self._width_s, self._width_s)
        if rank >= len(pieces):  # a wall clock that the zone never showed, or not that often
            return None
        label, span = self._in_zone(floor * _SPAN_S + (0 if self.width > _HOUR else pieces[rank].offset_s))
        return span if label == values[0] else None

    @property
    def _width_s(self) -> int:
        return self.width // _SECOND

    @property
    def _first_floor(self) -> int:
        return FIRST_S // self._width_s

    @property
    def _last_floor(self) -> int:
        return (END_S - 1) // self._width_s

    def _in_utc(self, floor: int) -> tuple[str, tuple[datetime, datetime]]:
        start, end = moment(floor * self._width_s), moment((floor + 1) * self._width_s)
        return self._label(start), (start, end)

    def _in_zone(self, key: int) -> tuple[str, tuple[datetime, datetime]]:
        floor, shifted_s = divmod(key + DAY_S, _SPAN_S)
        wall_s = floor * self._width_s
        pieces, suffix = _pieces(clock_of(self.zone), wall_s, self._width_s), ""
        if self.width <= _HOUR:
            rank = [piece.offset_s for piece in pieces].index(shifted_s - DAY_S)
            pieces, suffix = pieces[rank : rank + 1], ("", "b", "c")[rank]
        start_s = FIRST_S if floor == self._first_floor else pieces[0].start_s
        end_s = END_S if floor == self._last_floor else pieces[-1].end_s
        return self._label(moment(wall_s)) + suffix, (moment(start_s), moment(end_s))

    def _label(self, wall: datetime) -> str:
        if not self.width % _DAY:
            return wall.date().isoformat()
        finest = "seconds" if self.width % _MINUTE else "minutes" if self.width % _HOUR else "hours"
        return wall.replace(tzinfo=None).isoformat(timespec=finest).replace(":", "-")


def instants(wall: pa.TimestampArray, zone: str) -> pa.TimestampArray:
    """The instants at which clocks of `zone` showed these times, which are given as if they were UTC. Null stays null.

    Of an hour that autumn repeats it is the first one; in the hour that spring leaves out, the offset before it counts,
    as for a clock that was not put forward yet (fold 0 of PEP 495).
    """
    shown = wall.cast(pa.int64())
    shifts = _shifts_among(shown, zone)
    # A clock shows the times under an offset until the later of both readings of the moment at which it changes.
    starts = [
        start_s + max(offset_s, shifts[max(at - 1, 0)][1]) for at, (start_s, offset_s) in enumerate(shifts)
    ]  # fmt: skip
    offsets_s = _looked_up(shown, starts, [offset_s for _, offset_s in shifts])
    return pc.subtract(shown, pc.multiply(offsets_s, 1_000_000)).cast(wall.type)


def _offsets_s(instants: pa.Int64Array, zone: str) -> pa.Int64Array:
    """The UTC offset at each instant, from the zone's few shifts in the years that occur."""
    shifts = _shifts_among(instants, zone)
    return _looked_up(instants, [start_s for start_s, _ in shifts], [offset_s for _, offset_s in shifts])


def _shifts_among(times: pa.Int64Array, zone: str) -> list[tuple[int, int]]:
    """Start and offset of the zone's shifts, in seconds, in the years that occur."""
    years = pc.unique(pc.year(times.cast(pa.timestamp("us")))).drop_null().to_pylist()
    clock = clock_of(zone)
    return sorted({shift.start_s: shift.offset_s for year in years for shift in find_shifts(clock, year)}.items())


def _looked_up(times: pa.Int64Array, starts_s: list[int], offsets_s: list[int]) -> pa.Int64Array:
    """The offset that holds from the last start at or before each time on."""
    starts = pa.array([start_s * 1_000_000 for start_s in starts_s], pa.int64())
    after = pc.search_sorted(starts, times, side="right")
    return pa.array(offsets_s, pa.int64()).take(pc.subtract(after, 1))


@lru_cache(maxsize=100_000)  # about 50 MB when full: eleven years of hours
def _pieces(clock: ZoneInfo, wall_s: int, width_s: int) -> tuple[Shift, ...]:
    """The instants whose wall clock lies in [wall_s, wall_s + width_s), one piece per offset, in order of time."""
    pieces = (
        Shift(offset_s, max(start_s, wall_s - offset_s), min(end_s, wall_s + width_s - offset_s))
        for offset_s, start_s, end_s in find_shifts(clock, moment(wall_s).year)
    )
    return tuple(piece for piece in pieces if piece.start_s < piece.end_s)
