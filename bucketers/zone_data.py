"""The data of time zones by which labels are made: where they come from, and in what two versions of them differ.

`zoneinfo` reads the folders of PYTHONTZPATH, or the system's, and then the package tzdata. A process that gets the data
of another one (`install_zone_data`) uses those, so that all processes of a writer give an instant the same label.
"""

import re
import struct
import zoneinfo
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from importlib import resources
from importlib.util import find_spec
from io import BytesIO
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_S = 86_400
# The years 1 to 9999, as `timestamps.event_time` admits them.
FIRST_S = -62_135_596_800
END_S = 253_402_300_800
_SECOND = timedelta(seconds=1)
# The file in a folder of zones whose first line tells the version of the database.
_VERSION_FILE = "tzdata.zi"
_VERSION_MARK = "# version "
_PACKAGE = "tzdata"
# The shifts of one year cost about 0.5 ms to find.
_YEARS_CACHED = 4_096
_HEADER = struct.Struct(">4sc15x6l")
# UTC offset in seconds, daylight saving, index of its name.
_TYPE = struct.Struct(">lBB")
# Between the line ends stands a rule as POSIX writes it, which may be empty.
_FOOTER = re.compile(rb"\n[^\n]*\n")


@dataclass(frozen=True)
class ZoneData:
    """What a version of the IANA database says of one zone."""

    zone: str
    # Of the database, such as 2025b; empty: the files do not say it.
    version: str
    # The compiled file (RFC 8536).
    tzif: bytes = field(repr=False)

    def clock(self) -> ZoneInfo:
        """Return the clock of the zone. Raises ValueError for what is no whole file of one."""
        _check_zone_file(self.tzif)
        return ZoneInfo.from_file(BytesIO(self.tzif), key=self.zone)


class Shift(NamedTuple):
    """A UTC offset and the instants it holds for, in seconds since 1970."""

    offset_s: int
    start_s: int
    end_s: int


# The data by which this process makes labels, by zone.
_data: dict[str, ZoneData] = {}
# The clocks of these data, one for each: caches are keyed by the clock object.
_clocks: dict[str, ZoneInfo] = {}


def clock_of(zone: str) -> ZoneInfo:
    """Return the clock by which this process makes labels. Raises as `read_zone_data`."""
    if zone not in _clocks:
        _clocks[zone] = find_zone_data(zone).clock()
    return _clocks[zone]


def find_zone_data(zone: str) -> ZoneData:
    """Return the data by which this process makes labels. Raises as `read_zone_data`."""
    if zone not in _data:
        _data[zone] = read_zone_data(zone)
    return _data[zone]


def install_zone_data(data: Iterable[ZoneData]) -> None:
    """Make labels of these zones by these data from now on, whatever the files of this machine have."""
    for zone_data in data:
        if _data.get(zone_data.zone) != zone_data:
            _data[zone_data.zone] = zone_data
            _clocks[zone_data.zone] = zone_data.clock()


def read_zone_data(zone: str) -> ZoneData:
    """Read the data of the file that `zoneinfo` takes for a zone.

    Raises ZoneInfoNotFoundError where there is none, ValueError for one that is damaged.
    """
    name = PurePosixPath(zone)
    if name.is_absolute() or ".." in name.parts:
        raise ZoneInfoNotFoundError(f"{zone!r} is no name of a zone")
    folders = [*map(Path, zoneinfo.TZPATH)]
    if find_spec(_PACKAGE) is not None:
        folders.append(Path(str(resources.files(_PACKAGE) / "zoneinfo")))
    for folder in folders:
        if (folder / name).is_file():
            return _read_file(folder, zone)
    raise ZoneInfoNotFoundError(f"no file of zone {zone!r} in {', '.join(map(str, folders))}")


def _read_file(folder: Path, zone: str) -> ZoneData:
    path = folder / zone
    data = ZoneData(zone, _read_version(folder), path.read_bytes())
    try:
        data.clock()
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); install the data of time zones anew") from error
    return data


def _check_zone_file(content: bytes) -> None:
    """Raise ValueError for bytes that are no whole file of a zone (RFC 8536).

    `zoneinfo` does not look: a file that was cut keeps it reading for ever, and an index out of range ends the process.
    """
    block = _check_block(content, 0, "l")
    if block.version != b"\0":
        block = _check_block(content, block.end_offset, "q")
        footer = content[block.end_offset :]
        if not _FOOTER.fullmatch(footer):
            raise ValueError("its last line is cut")


class _Block(NamedTuple):
    """One of the two blocks of a file: the first has times of 4 bytes, the second, of a newer version, of 8."""

    version: bytes
    # The offset at which the next block or the footer begins.
    end_offset: int


def _check_block(content: bytes, start: int, time_format: str) -> _Block:
    """Return the block at an offset. Raises ValueError for one that is not whole."""
    if len(content) < start + _HEADER.size:
        raise ValueError("it ends in a header")
    magic, version, *counts = _HEADER.unpack_from(content, start)
    if magic != b"TZif" or min(counts) < 0:
        raise ValueError("a header is none of a zone")
    in_utc, standard, leaps, times, types, characters = counts
    time_size = struct.calcsize(f">{time_format}")
    indices_start = start + _HEADER.size + times * time_size
    types_start = indices_start + times
    names_start = types_start + types * _TYPE.size
    end_offset = names_start + characters + leaps * (time_size + 4) + standard + in_utc
    if len(content) < end_offset:
        raise ValueError("it ends in a block")
    if any(index >= types for index in content[indices_start:types_start]):
        raise ValueError("a time has a type that is not there")
    moments = struct.unpack_from(f">{times}{time_format}", content, start + _HEADER.size)
    if any(earlier >= later for earlier, later in pairwise(moments)):
        raise ValueError("its times are in no order")
    for offset_s, _, name in _TYPE.iter_unpack(content[types_start:names_start]):
        if abs(offset_s) >= DAY_S or name >= characters:
            raise ValueError("a type is none of a clock")
    return _Block(version, end_offset)


def _read_version(folder: Path) -> str:
    try:
        with (folder / _VERSION_FILE).open(encoding="utf-8") as file:
            line = file.readline()
    except OSError:
        return ""
    if not line.startswith(_VERSION_MARK):
        return ""
    return line.removeprefix(_VERSION_MARK).strip()


def find_differences(before: ZoneData, after: ZoneData, years: range) -> list[tuple[datetime, datetime]]:
    """Return the spans of these UTC years in which the clocks of a zone show another time, oldest first."""
    if before.tzif == after.tzif:
        return []
    old_clock = before.clock()
    new_clock = after.clock()
    instants_s: set[int] = set()
    for year in years:
        for shift in (*find_shifts(old_clock, year), *find_shifts(new_clock, year)):
            instants_s |= {shift.start_s, shift.end_s}
    spans: list[tuple[datetime, datetime]] = []
    for start_s, end_s in pairwise(sorted(instants_s)):
        if _offset_s(old_clock, start_s) == _offset_s(new_clock, start_s):
            continue
        start = to_datetime(start_s)
        if spans and spans[-1][1] == start:
            start, _ = spans.pop()
        spans.append((start, to_datetime(end_s)))
    return spans


def to_datetime(instant_s: int) -> datetime:
    """Return an instant in seconds since 1970 as a datetime; before or after all datetimes, the first or last one."""
    if instant_s >= END_S:
        return datetime.max.replace(tzinfo=UTC)
    instant_s = max(instant_s, FIRST_S)
    return EPOCH + timedelta(seconds=instant_s)


@lru_cache(maxsize=_YEARS_CACHED)
def find_shifts(clock: ZoneInfo, year: int) -> tuple[Shift, ...]:
    """Return the shifts of a UTC year and two days around it, the reach of a wall clock that shows this year.

    Looks once a day: no zone in the IANA database has ever changed its offset twice within three.
    """

    def has_other_offset(offset_s: int, instant_s: int) -> bool:
        return _offset_s(clock, instant_s) != offset_s

    first_s = (datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // _SECOND
    days = range(first_s - 2 * DAY_S, first_s + (366 + 2) * DAY_S + 1, DAY_S)
    starts = [days[0]]
    for day_s, next_s in pairwise(days):
        offset_s = _offset_s(clock, day_s)
        if has_other_offset(offset_s, next_s):
            seconds = range(day_s, next_s)
            starts.append(day_s + bisect_left(seconds, True, key=partial(has_other_offset, offset_s)))
    return tuple(Shift(_offset_s(clock, start_s), start_s, end_s) for start_s, end_s in pairwise([*starts, days[-1]]))


def _offset_s(clock: ZoneInfo, instant_s: int) -> int:
    # There the reading of every clock is a datetime.
    inside_s = min(max(instant_s, FIRST_S + DAY_S), END_S - DAY_S)
    offset = to_datetime(inside_s).astimezone(clock).utcoffset()
    assert offset is not None
    return offset // _SECOND
