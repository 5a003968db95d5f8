"""Event times of sources whose clocks are not UTC."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace import bucketers
from headrace.bucketers.event_time import to_instants
from headrace.writer.batch.bucketing import Clock, ClockFieldMissing, TimeRule, assign_buckets, correct_times
from headrace.writer.config.sections.table import EventTime
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, config, event

HOUR = timedelta(hours=1)
US = pa.timestamp("us", "UTC")
ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca", "UTC"]


def at(*times: str | None) -> pa.TimestampArray:
    return pa.array([None if t is None else datetime.fromisoformat(t).replace(tzinfo=UTC) for t in times], US)


def by(clocks: list[Clock], times: pa.TimestampArray, topics: list[str], **columns: list) -> list:
    rows = pa.table({"at": times, **columns})
    return correct_times(times, rows, pa.chunked_array([topics], pa.string()), clocks).to_pylist()


@given(
    st.lists(
        st.datetimes(datetime.fromisoformat("1975-01-01"), datetime.fromisoformat("2060-01-01")),
        min_size=1,
        max_size=20,
    ),
    st.sampled_from(ZONES),
)
def test_a_wall_clock_is_read_as_zoneinfo_reads_it(walls: list[datetime], zone: str) -> None:
    found = to_instants(pa.array([wall.replace(tzinfo=UTC) for wall in walls], US), zone)
    expected = [wall.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) for wall in walls]
    assert found.to_pylist() == expected


@given(st.integers(0, 4 * 3600), st.sampled_from(["2026-03-29", "2026-10-25"]))
def test_a_wall_clock_around_both_shifts_of_a_year_is_read_as_zoneinfo_reads_it(second: int, day: str) -> None:
    wall = datetime.fromisoformat(day) + timedelta(seconds=second)
    (found,) = to_instants(pa.array([wall.replace(tzinfo=UTC)], US), "Europe/Berlin").to_pylist()
    assert found == wall.replace(tzinfo=ZoneInfo("Europe/Berlin")).astimezone(UTC)


def test_the_hour_that_autumn_repeats_is_the_first_and_the_one_that_spring_leaves_out_has_the_offset_before() -> None:
    found = to_instants(at("2026-10-25T02:30:00", "2026-03-29T02:30:00", None), "Europe/Berlin")
    assert found.equals(at("2026-10-25T00:30:00", "2026-03-29T01:30:00", None))


def test_of_the_rules_that_fit_the_first_counts_and_a_row_that_none_fits_stays() -> None:
    clocks = [
        Clock("a", "site", ("7",), shift=-HOUR), Clock("a", zone="Asia/Kolkata"), Clock(None, "site", ("9",), HOUR),
    ]  # fmt: skip
    noon = at(*["2026-11-20T12:00:00"] * 5)
    found = by(clocks, noon, ["a", "a", "b", "b", "a"], site=[7, 9, 9, 7, None])
    assert [t.strftime("%H:%M") for t in found] == ["11:00", "06:30", "13:00", "12:00", "06:30"]


def test_a_rule_without_conditions_is_for_all_that_none_before_it_fits() -> None:
    found = by([Clock("a", shift=HOUR), Clock(shift=-HOUR)], at(*["2026-11-20T12:00:00"] * 2), ["a", "b"])
    assert [t.hour for t in found] == [13, 11]


def test_a_field_that_is_not_there_is_said() -> None:
    with pytest.raises(ClockFieldMissing, match="field 'sight' is not in the record; did you mean 'site'"):
        by([Clock(None, "sight", ("7",), HOUR)], at("2026-11-20T12:00:00"), ["a"], site=[7])


def test_bucket_and_believed_window_follow_the_corrected_time_and_the_column_stays() -> None:
    rows = pa.table({"at": at("2026-11-20T12:30:00", "2026-11-20T10:30:00")})
    rule = TimeRule("at", "auto", HOUR, HOUR, (Clock(shift=-HOUR),))
    hours = bucketers.build({"type": "event_time", "width": HOUR, "zone": "UTC"})
    found = assign_buckets(rows, rule, hours, NOW, pa.chunked_array([["a", "a"]]))
    assert found.buckets.values == (("2026-11-20T11",),)
    assert found.rows.column("at").to_pylist() == [datetime(2026, 11, 20, 12, 30, tzinfo=UTC)]
    assert found.event_time.to_pylist() == [datetime(2026, 11, 20, 11, 30, tzinfo=UTC)]
    assert found.quarantined == {
        1: "at is 2026-11-20 09:30:00.000000Z by event_time.clocks, "
        "outside [2026-11-20T11:00:00Z, 2026-11-20T13:00:00Z]"
    }


def test_a_pipeline_s_rows_lie_in_the_bucket_of_the_true_time(tmp_path) -> None:
    rule = {"field": "at", "max_age": "30 d", "clocks": [{"field": "id", "values": ["1"], "zone": "Europe/Berlin"}]}
    driver = Driver(tmp_path, event_time=rule)
    driver.start()
    driver.carry([log({0: event(0, event_time=NOW), 1: event(1, event_time=NOW)})], {0: 2})
    found = driver.table.rows().to_table(columns=["id", "at", "hour"]).sort_by("id").to_pylist()
    assert [row["hour"] for row in found] == ["2026-11-20T12", "2026-11-20T11"]
    assert [row["at"] for row in found] == [NOW, NOW]


@pytest.mark.parametrize(
    ("clock", "said"),
    [
        ({"topic": "a"}, "a clock has either 'shift' or 'zone'"),
        ({"shift": "-1 h", "zone": "UTC"}, "a clock has either 'shift' or 'zone'"),
        ({"shift": "1 h"}, "'1 h' needs a sign, a number and a unit"),
        ({"shift": "-1 h", "field": "site"}, "'field' and 'values' together"),
        ({"zone": "Europe/Bärlin"}, "zone 'Europe/Bärlin' is unknown"),
    ],
)
def test_a_clock_that_says_too_little_or_too_much_is_refused(clock: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EventTime.model_validate({"field": "at", "clocks": [clock]})


def test_a_clock_of_a_topic_that_the_pipeline_does_not_read_is_refused(tmp_path) -> None:
    clocks = [{"topic": "klicks", "shift": "-1 h"}]
    with pytest.raises(ValueError, match="clocks: the pipeline reads no topic 'klicks'; did you mean 'clicks'"):
        config(tmp_path, event_time={"field": "at", "clocks": clocks})
