"""Buckets against `zoneinfo` and `datetime` as oracles, over zones with awkward clocks."""

import re
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.bucketers import Buckets, Composite, EventTime, Field, interval
from headrace.bucketers.timestamps import _ISO, event_time

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICRO, SECOND, HOUR, DAY = (timedelta(microseconds=n) for n in (1, 10**6, 3600 * 10**6, 86400 * 10**6))
FIRST, LAST = datetime(1990, 1, 1, tzinfo=UTC), datetime(2037, 12, 31, tzinfo=UTC)

AWKWARD = (
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",  # summer time from midnight to midnight
    "Asia/Kolkata",  # half an hour
    "Australia/Lord_Howe",  # shifts by half an hour
    "Pacific/Apia",  # skipped a day
    "Africa/Casablanca",  # winter time in Ramadan
    "America/St_Johns",  # shifted at 00:01 until 2011
    "Asia/Kathmandu",
    "America/Caracas",
    "Antarctica/Casey",  # shifts by hours
    "UTC",
)
ZONES = st.one_of(st.sampled_from(AWKWARD), st.sampled_from(sorted(available_timezones())))
unhurried = settings(deadline=None)  # the first use of a zone scans its years

NARROW = [SECOND, 30 * SECOND, HOUR / 60, HOUR / 12, HOUR / 4, HOUR / 2, HOUR]
WIDE = [2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY]


def offset(instant: datetime, zone: str) -> timedelta:
    return instant.astimezone(ZoneInfo(zone)).utcoffset()


def floored_wall(instant: datetime, bucketer: EventTime) -> datetime:
    wall = instant.astimezone(ZoneInfo(bucketer.zone)).replace(tzinfo=None)
    midnight = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    return midnight + (wall - midnight) // bucketer.width * bucketer.width


@cache
def transitions(zone: str) -> tuple[datetime, ...]:
    """Where the zone's offset changes, to the second."""
    found = []
    for day in range((LAST - FIRST) // DAY):
        before, after = FIRST + day * DAY, FIRST + (day + 1) * DAY
        if offset(before, zone) == offset(after, zone):
            continue
        while after - before > SECOND:
            middle = before + (after - before) // SECOND // 2 * SECOND
            before, after = (middle, after) if offset(middle, zone) == offset(before, zone) else (before, middle)
        found.append(after)
    return tuple(found)


def has_interleaved_labels(instant: datetime, bucketer: EventTime) -> bool:
    """Whether clocks near `instant` were set back across the edge of a bucket wider than an hour.

    Such buckets are no one stretch of time (see EventTime), so what follows cannot hold for them.
    """
    return bucketer.width > HOUR and any(
        abs(instant - shift) < 3 * DAY and floored_wall(shift - MICRO, bucketer) > floored_wall(shift, bucketer)
        for shift in transitions(bucketer.zone)
    )


@st.composite
def batches(draw) -> tuple[EventTime, list[datetime]]:
    bucketer = EventTime(draw(st.sampled_from(NARROW + WIDE)), draw(ZONES))
    anywhere = st.integers(0, (LAST - FIRST) // MICRO).map(lambda us: FIRST + us * MICRO)
    near = [
        st.builds(lambda shift, away: shift + away * MICRO, st.sampled_from(shifts), st.integers(-reach, reach))
        for shifts in [transitions(bucketer.zone)]
        for reach in (2, 2 * 3600 * 10**6, 2 * 86400 * 10**6)
        if shifts
    ]
    drawn = draw(st.lists(st.one_of(anywhere, *near), min_size=1, max_size=30))
    return bucketer, [instant for instant in drawn if not has_interleaved_labels(instant, bucketer)]


def assign(bucketer, instants: list[datetime]) -> Buckets:
    rows = pa.table({"n": list(range(len(instants)))})
    return bucketer.assign(rows, pa.array(instants, pa.timestamp("us", "UTC")))


@unhurried
@given(batches())
def test_every_row_lies_in_the_interval_of_its_bucket(batch):
    bucketer, instants = batch
    assigned = assign(bucketer, instants)
    for instant, code in zip(instants, assigned.codes.to_pylist(), strict=True):
        start, end = assigned.intervals[code]
        assert start <= instant < end


@unhurried
@given(batches())
def test_a_label_alone_tells_the_interval_that_its_rows_were_given(batch):
    bucketer, instants = batch
    buckets = assign(bucketer, instants)
    for values, span in zip(buckets.values, buckets.intervals, strict=True):
        assert interval(bucketer, values) == span
        beside = Composite(Field("country"), bucketer)
        assert interval(beside, ("DE", *values)) == span
    assert interval(bucketer, (None,)) is None
    assert interval(Field("country"), ("DE",)) is None


@unhurried
@given(st.text() | st.from_regex(r"[12]\d{3}-\d\d-\d\d(T\d\d(-\d\d){0,2}[bc]?)?", fullmatch=True), ZONES)
def test_only_a_label_of_its_own_has_an_interval(text, zone):
    bucketer = EventTime(HOUR, zone)
    span = interval(bucketer, (text,))
    if span is not None:
        assert assign(bucketer, [span[0]]).values == ((text,),)


@given(batches())
def test_labels_and_intervals_are_one_to_one_and_intervals_are_disjoint(batch):
    assigned = assign(*batch)
    assert len(set(assigned.values)) == len(assigned.values) == len(set(assigned.intervals))
    for (_, end), (start, _) in pairwise(sorted(assigned.intervals)):
        assert end <= start


@unhurried
@given(batches())
def test_an_interval_holds_exactly_the_instants_of_its_label(batch):
    bucketer, instants = batch
    assigned = assign(bucketer, instants)
    for label, (start, end) in zip(assigned.values, assigned.intervals, strict=True):
        edges = assign(bucketer, [start, end - MICRO, start - MICRO, end])
        first, last, before, after = (edges.values[code] for code in edges.codes.to_pylist())
        assert first == last == label
        assert label not in (before, after)
        assert edges.intervals[edges.codes[0].as_py()] == (start, end)


@unhurried
@given(batches())
def test_a_label_is_the_floored_wall_clock_and_safe_as_a_directory(batch):
    bucketer, instants = batch
    assigned = assign(bucketer, instants)
    form = "%Y-%m-%d" if bucketer.width == DAY else "%Y-%m-%dT%H"
    if bucketer.width < HOUR:
        form = "%Y-%m-%dT%H-%M" if bucketer.width % (HOUR / 60) == timedelta(0) else "%Y-%m-%dT%H-%M-%S"
    for instant, code in zip(instants, assigned.codes.to_pylist(), strict=True):
        (label,) = assigned.values[code]
        repeated = "b" if bucketer.width <= HOUR and was_before(instant, bucketer) else ""
        assert label == floored_wall(instant, bucketer).strftime(form) + repeated
        assert re.fullmatch(r"[0-9A-Za-z_-]+", label)


def was_before(instant: datetime, bucketer: EventTime) -> bool:
    """Whether the bucket's wall clock was already shown under another offset: by its first second or its last."""
    floor = floored_wall(instant, bucketer).replace(tzinfo=UTC)
    earlier = offset(instant - DAY, bucketer.zone)
    shown = (floor - earlier, floor - earlier + bucketer.width - SECOND)
    return earlier != offset(instant, bucketer.zone) and any(
        at < instant and offset(at, bucketer.zone) == earlier for at in shown
    )


@given(
    st.integers(1, 365 * 86400).map(lambda seconds: timedelta(seconds=seconds)),
    st.lists(st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC)), min_size=1),  # noqa: DTZ001
)
def test_in_utc_any_width_floors_toward_the_past(width, instants):
    assigned = assign(EventTime(width), instants)
    for instant, code in zip(instants, assigned.codes.to_pylist(), strict=True):
        start = EPOCH + (instant - EPOCH) // width * width
        assert assigned.intervals[code] == (start, start + width)
    assert len(set(assigned.values)) == len(assigned.values) == len(set(assigned.intervals))


# --- extract ----------------------------------------------------------------------------------------------------

BOUNDS_US = [(year - EPOCH) // MICRO for year in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))]


def extracted(column: pa.Array, unit: str = "auto") -> tuple[list, str]:
    found, used = event_time(pa.table({"t": column}), "t", unit)
    return found.cast(pa.int64()).to_pylist(), used


def admitted(micros: int) -> int | None:
    return micros if BOUNDS_US[0] <= micros <= BOUNDS_US[1] else None


@given(
    st.sampled_from([("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-(10**11), 10**11)),
)
def test_units_are_integer_arithmetic(unit, numbers):
    name, per_second = unit
    expected = [None if n is None else admitted(n * 10**6 // per_second) for n in numbers]
    assert extracted(pa.array(numbers, pa.int64()), name) == (expected, name)


@given(
    st.sampled_from([("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)]),
    st.lists(st.datetimes(datetime(1974, 1, 1), datetime(2261, 1, 1), timezones=st.just(UTC)), min_size=1),  # noqa: DTZ001
)
def test_auto_reads_back_any_time_from_1974_on(unit, instants):
    name, per_second = unit
    numbers = [(instant - EPOCH) // MICRO * per_second // 10**6 for instant in instants]
    assert extracted(pa.array(numbers, pa.int64())) == ([n * 10**6 // per_second for n in numbers], name)


@given(st.lists(st.floats(), min_size=1))
def test_no_double_raises(numbers):
    extracted(pa.array(numbers, pa.float64()))


@given(st.integers(0, 4 * 10**15))
def test_a_double_of_seconds_keeps_its_microseconds(micros):
    assert extracted(pa.array([micros / 10**6])) == ([micros], "s")


@given(st.lists(st.from_regex(re.compile(_ISO, re.ASCII), fullmatch=True), min_size=1))
def test_iso_text_means_what_datetime_says_it_means(texts):
    # fullmatch lets '$' take a final newline, which is no ISO text
    texts = [text.rstrip("\n") for text in texts]
    expected = []
    for text in texts:
        exact = re.sub(r"(\.\d{6})\d+", r"\1", text)
        try:
            when = datetime.fromisoformat(exact if "." not in exact else pad(exact))
        except ValueError:  # the year 0000
            expected.append(None)
            continue
        local = (when.replace(tzinfo=UTC) - EPOCH) // MICRO  # no datetime holds the instants before 0001 or after 9999
        expected.append(admitted(local - (when.utcoffset() or timedelta(0)) // MICRO))
    assert extracted(pa.array(texts))[0] == expected


def pad(text: str) -> str:
    """Python 3.11 reads three or six digits of a second, not one to five."""
    return re.sub(r"\.(\d{1,6})", lambda fraction: "." + fraction[1].ljust(6, "0"), text)


@given(st.lists(st.text() | st.from_regex(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")))
def test_no_text_raises(texts):
    extracted(pa.array(texts, pa.string()))


# --- field, composite -------------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.sampled_from("abcdefg") | st.just("_other")), st.integers(1, 5))
def test_a_field_keeps_its_most_frequent_values(column, cap):
    assigned = Field("f", max_values=cap).assign(pa.table({"f": pa.array(column, pa.string())}), pa.nulls(0))
    named = [value for value in column if value not in (None, "_other")]
    kept = sorted(set(named), key=lambda value: (-named.count(value), value))[:cap]
    expected = [(value if value is None or value in kept else "_other",) for value in column]
    assert [assigned.values[code] for code in assigned.codes.to_pylist()] == expected
    assert set(assigned.values) == set(expected)
    assert len(set(assigned.values)) == len(assigned.values)


@unhurried
@given(batches(), st.data())
def test_a_composite_agrees_with_its_parts(batch, data):
    bucketer, instants = batch
    table = pa.table({
        name: pa.array(data.draw(st.lists(st.sampled_from("abc"), min_size=len(instants), max_size=len(instants))))
        .cast(pa.string())
        for name in ("f", "g")
    })  # fmt: skip
    parts = (Field("f"), bucketer, Field("g", max_values=1))
    times = pa.array(instants, pa.timestamp("us", "UTC"))
    whole, apart = Composite(*parts).assign(table, times), [part.assign(table, times) for part in parts]
    for row in range(len(instants)):
        codes = [assigned.codes[row].as_py() for assigned in apart]
        code = whole.codes[row].as_py()
        assert whole.values[code] == tuple(part.values[c][0] for part, c in zip(apart, codes, strict=True))
        assert whole.intervals[code] == apart[1].intervals[codes[1]]
    assert len(set(whole.values)) == len(whole.values)
