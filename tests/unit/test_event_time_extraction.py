"""Event times: found in a column of any type and unit, or null, or a sentence."""

from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.bucketers.timestamps import event_time

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
NOON_S = int(NOON.timestamp())


def times(values: pa.Array, unit: str = "auto") -> tuple[list, str]:
    found, used = event_time(pa.table({"t": values}), "t", unit)
    assert found.type == pa.timestamp("us", "UTC")
    return found.to_pylist(), used


@pytest.mark.parametrize(("unit", "per_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_auto_finds_the_unit_of_integers(unit, per_second):
    integers = pa.array([NOON_S * per_second, None, NOON_S * per_second, 0])
    assert times(integers) == ([NOON, None, NOON, datetime(1970, 1, 1, tzinfo=UTC)], unit)
    assert times(integers, unit) == times(integers)


def test_auto_goes_by_the_median_so_that_an_outlier_does_not_decide():
    assert times(pa.array([NOON_S, NOON_S, 2**62])) == ([NOON, NOON, None], "s")


def test_auto_without_a_value_decides_nothing():
    assert times(pa.array([None], pa.int64())) == ([None], "auto")
    assert times(pa.array([], pa.int64())) == ([], "auto")
    assert times(pa.nulls(2), "ms") == ([None, None], "ms")


def test_an_event_time_that_cannot_be_represented_is_null():
    assert times(pa.array([2**64 - 1, NOON_S], pa.uint64()), "s") == ([None, NOON], "s")
    assert times(pa.array([2**63 - 1, -(2**63)], pa.int64()), "ms") == ([None, None], "ms")
    assert times(pa.array([float("nan"), float("inf"), 1e300, NOON_S + 0.5], pa.float64()))[0] == [
        *[None] * 3,
        NOON + timedelta(seconds=0.5),
    ]
    assert times(pa.array([2**31 - 1, 0], pa.int32()).cast(pa.date32()))[0][0] is None
    assert times(pa.array([2**62], pa.timestamp("s")))[0] == [None]


def test_nanoseconds_floor_also_before_1970():
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    micro = timedelta(microseconds=1)
    assert times(pa.array([-1, 1999, -1000, -1001]), "ns")[0] == [
        epoch - micro,
        epoch + micro,
        epoch - micro,
        epoch - 2 * micro,
    ]


@pytest.mark.parametrize(
    "kind", [pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "Asia/Kolkata")]
)
def test_a_timestamp_column_needs_no_unit(kind):
    column = pa.array([NOON_S], pa.int64()).cast(pa.timestamp("s", kind.tz)).cast(kind)
    assert times(column, "logical") == times(column) == ([NOON], "logical")


def test_a_date_is_midnight_in_utc():
    assert times(pa.array([date(2026, 11, 20), None])) == ([datetime(2026, 11, 20, tzinfo=UTC), None], "logical")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.string_view()])
def test_iso_text_is_parsed_and_the_rest_is_null(kind):
    good = ["2026-11-20T12:00:00Z", "2026-11-20 12:00", "2026-11-20T17:30:00.0000009+05:30", "2026-11-20T07:00-0500"]
    bad = [
        "",
        "soon",
        "2026-02-29",
        "2026-11-31",
        "2026-11-20T24:00",
        "2026-11-20T12:00:60Z",
        "0000-12-31",
        "+2026-11-20",
        None,
    ]
    assert times(pa.array([*good, *bad], kind)) == ([NOON] * 4 + [None] * len(bad), "logical")


def test_a_field_may_lie_in_a_struct_and_a_null_struct_has_none():
    meta = pa.StructArray.from_arrays([pa.array([NOON_S, 1])], ["ts"], mask=pa.array([False, True]))
    assert event_time(pa.table({"meta": meta}), "meta.ts", "s")[0].to_pylist() == [NOON, None]


@pytest.mark.parametrize(
    ("field", "unit", "sentence"),
    [
        ("evt_time", "auto", "field 'evt_time' is not in the record; did you mean 'event_time'?"),
        ("zzz", "auto", "field 'zzz' is not in the record; there is 'event_time', 'meta.ts', 'ratio'"),
        ("meta.tss", "auto", "field 'meta.tss' is not in the record; did you mean 'meta.ts'?"),
        ("event_time.ts", "auto", "field 'event_time.ts' is not in the record; did you mean 'event_time'?"),
        ("meta", "auto", "field 'meta' is struct<ts: int64>, which is no time; choose"),
        ("flag", "auto", "field 'flag' is bool, which is no time"),
        ("event_time", "ms", "needs no unit; declare 'logical' instead of 'ms'"),
        ("meta.ts", "logical", "field 'meta.ts' is a plain int64 without a logical type; declare s, ms, us or ns"),
        ("ratio", "ms", "field 'ratio' is double, read as seconds; declare 's' instead of 'ms'"),
        ("meta.ts", "sec", "unit 'sec' of field 'meta.ts' is unknown; use one of auto, s, ms"),
    ],
)
def test_a_wrong_field_unit_or_type_is_a_sentence(field, unit, sentence):
    table = pa.table({"event_time": [NOON], "flag": [True], "meta": [{"ts": 1}], "ratio": [0.5]})
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the sentence is compared below
        event_time(table, field, unit)
    assert sentence in str(refused.value)
