"""A text names the same buckets in every command, or is refused with how buckets of the table are named."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace import bucketers
from headrace.bucketers import Bucketer, Composite, EventTime, Field
from headrace.writer.core.errors import ConfigError
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.manifest import bucket_path

HOURS, DAYS = EventTime(timedelta(hours=1)), EventTime(timedelta(days=1))
MINUTES, BERLIN = EventTime(timedelta(minutes=15)), EventTime(timedelta(hours=1), "Europe/Berlin")
BERLIN_MINUTES = EventTime(timedelta(minutes=15), "Europe/Berlin")
SIX_HOURS, WEEKS = EventTime(timedelta(hours=6)), EventTime(timedelta(days=7))
BOTH, BOTH_TURNED = Composite(HOURS, Field("country")), Composite(Field("country"), HOURS)
COUNTRIES = Field("country")


def slot_names(text: str, bucketer: Bucketer) -> list[str]:
    return [slot.name for slot in parse_buckets(text, bucketer).slots(None)]


@pytest.mark.parametrize(
    ("bucketer", "text", "expected"),
    [
        *((HOURS, text, "2026-11-20T05") for text in (
            "2026-11-20T05", "hour=2026-11-20T05", "HOUR=2026-11-20T05", "2026-11-20 05", "2026-11-20T05:00",
            "2026-11-20T05:00:00Z", "2026-11-20T05-00", "2026-11-20T06:00+01:00", " 2026-11-20T05/ ",
            "2026-11-20T05:00:00+00:00",
        )),
        *((DAYS, text, "2026-11-20") for text in (
            "2026-11-20", "day=2026-11-20", "2026-11-20T00:00Z", "2026-11-20 00:00"
        )),
        *((MINUTES, text, "2026-11-20T05-45") for text in (
            "2026-11-20T05-45", "2026-11-20T05:45", "2026-11-20T05:45Z"
        )),
        (MINUTES, "2026-11-20T05:00", "2026-11-20T05-00"),
        (BERLIN, "2026-10-25T02b", "2026-10-25T02b"),
        (BERLIN, "2026-10-25T02:00", "2026-10-25T02"),
        (BERLIN, "2026-10-25T01:00Z", "2026-10-25T02b"),
        (WEEKS, "2026-11-19", "2026-11-19"),
    ],
)  # fmt: skip
def test_a_bucket_is_named_by_its_folder_its_label_or_its_beginning(bucketer: Bucketer, text: str, expected: str):
    selection = parse_buckets(text, bucketer)
    assert selection.key == (expected,)
    assert slot_names(text, bucketer) == [bucket_path(bucketer.columns, (expected,))]


@pytest.mark.parametrize(
    ("bucketer", "text", "count", "first", "last"),
    [
        (HOURS, "2026-11-20", 24, "hour=2026-11-20T00", "hour=2026-11-20T23"),
        (HOURS, "hour=2026-11-20", 24, "hour=2026-11-20T00", "hour=2026-11-20T23"),
        (HOURS, "2026-11-20T05..2026-11-20T09", 5, "hour=2026-11-20T05", "hour=2026-11-20T09"),
        (HOURS, "hour=2026-11-20T05..hour=2026-11-20T09", 5, "hour=2026-11-20T05", "hour=2026-11-20T09"),
        (HOURS, "2026-11-20T05:00Z..2026-11-20T09:00Z", 5, "hour=2026-11-20T05", "hour=2026-11-20T09"),
        (HOURS, "2026-11-20..2026-11-21", 48, "hour=2026-11-20T00", "hour=2026-11-21T23"),
        (HOURS, "2026-11-20T22..2026-11-21", 26, "hour=2026-11-20T22", "hour=2026-11-21T23"),
        (HOURS, "2026-11-20T05..2026-11-20T05", 1, "hour=2026-11-20T05", "hour=2026-11-20T05"),
        (DAYS, "2026-11-20..2026-11-22", 3, "day=2026-11-20", "day=2026-11-22"),
        (SIX_HOURS, "2026-11-20", 4, "hour=2026-11-20T00", "hour=2026-11-20T18"),
        (MINUTES, "2026-11-20T05", 4, "minute=2026-11-20T05-00", "minute=2026-11-20T05-45"),
        (MINUTES, "2026-11-20", 96, "minute=2026-11-20T00-00", "minute=2026-11-20T23-45"),
        # Clocks go back, and forward, in these nights.
        (BERLIN, "2026-10-25", 25, "hour=2026-10-25T00", "hour=2026-10-25T23"),
        (BERLIN, "2026-03-29", 23, "hour=2026-03-29T00", "hour=2026-03-29T23"),
        (BERLIN_MINUTES, "2026-10-25T02", 8, "minute=2026-10-25T02-00", "minute=2026-10-25T02-45b"),
        (BERLIN_MINUTES, "2026-10-25T02b", 4, "minute=2026-10-25T02-00b", "minute=2026-10-25T02-45b"),
        (BOTH, "2026-11-20/DE", 24, "hour=2026-11-20T00/country_bucket=DE", "hour=2026-11-20T23/country_bucket=DE"),
    ],
)  # fmt: skip
def test_a_day_an_hour_and_a_range_are_all_buckets_that_begin_in_them(
    bucketer: Bucketer, text: str, count: int, first: str, last: str
):
    names = slot_names(text, bucketer)
    assert (len(names), names[0], names[-1]) == (count, first, last)


def test_of_several_columns_all_are_named_or_the_time_alone():
    expected = ("2026-11-20T05", "DE")
    for text in ("2026-11-20T05/DE", "hour=2026-11-20T05/country_bucket=DE", "2026-11-20T05:00Z/DE",
                 "country_bucket=DE/hour=2026-11-20T05", "country_bucket=DE/2026-11-20T05"):  # fmt: skip
        assert parse_buckets(text, BOTH).key == expected
    null = parse_buckets("2026-11-20T05/country_bucket=__HIVE_DEFAULT_PARTITION__", BOTH)
    assert null.key == ("2026-11-20T05", None)
    keys = [(country, f"2026-11-20T0{hour}") for country in ("DE", None, "FR") for hour in (6, 5)]
    assert len(parse_buckets("2026-11-20T05", BOTH_TURNED).choose(keys)) == 3
    assert len(parse_buckets("2026-11-20T05..2026-11-20T06", BOTH_TURNED).choose(keys)) == 6
    of_one_country = parse_buckets("country_bucket=DE/hour=2026-11-20T05..2026-11-20T06", BOTH_TURNED)
    assert of_one_country.choose(keys) == [("DE", "2026-11-20T05"), ("DE", "2026-11-20T06")]


def test_a_table_without_a_time_names_its_buckets_by_their_values():
    assert parse_buckets("DE", COUNTRIES).key == ("DE",)
    assert parse_buckets("country_bucket=a%2Fb", COUNTRIES).key == ("a/b",)
    assert parse_buckets("DE..FR", COUNTRIES).choose([("DE",), ("FR",), ("DE..FR",)]) == [("DE..FR",)]
    assert slot_names("DE", COUNTRIES) == ["country_bucket=DE"]
    with pytest.raises(ConfigError, match=r"They go by no time, and are named country_bucket=…"):
        parse_buckets("2026-11-20T05/DE", COUNTRIES)


@pytest.mark.parametrize(
    ("bucketer", "text"),
    [
        (HOURS, "yesterday"), (HOURS, ""), (HOURS, "2026-11-20T05:30"), (HOURS, "2026-11-20T05:30Z"),
        (HOURS, "2026-02-30T05"), (HOURS, "2026-02-30"), (HOURS, "2026-11-20T05/DE"), (HOURS, "2026-11-20T05.."),
        (HOURS, "..2026-11-20T05"), (HOURS, "2026-11-20T05..soon"), (HOURS, "hours=2026-11-20T05"),
        (HOURS, "2026-11"), (DAYS, "2026-11-20T05"), (BERLIN, "2026-03-29T02"), (SIX_HOURS, "2026-11-20T05"),
        (WEEKS, "2026-11-20"), (BOTH, "country_bucket=DE"), (BOTH, "country=DE/hour=2026-11-20T05"),
        (BOTH, "country_bucket=DE..country_bucket=FR"), (BOTH, "2026-11-20T05/DE/FR"),
        (BOTH, "hour=2026-11-20T05/hour=2026-11-20T06"),
    ],
)  # fmt: skip
def test_a_text_that_names_no_bucket_is_refused_with_examples(bucketer: Bucketer, text: str):
    with pytest.raises(
        ConfigError, match=r"names no bucket of this table\. They are named (hour|day)=2026-11-"
    ) as told:
        parse_buckets(text, bucketer)
    examples = str(told.value).partition("They are named ")[2]
    named, _, rest = examples.partition("; ")
    for example in [*named.split(" or ")[1:], rest.rpartition("a range ")[2]]:
        assert slot_names(example, bucketer), "an example is a bucket"


def test_a_range_that_is_turned_is_refused_with_the_range():
    with pytest.raises(ConfigError, match=r"write 2026-11-20T05\.\.2026-11-20T07$"):
        parse_buckets("2026-11-20T07..2026-11-20T05", HOURS)


@given(st.datetimes(), st.sampled_from([HOURS, DAYS, MINUTES, BERLIN, SIX_HOURS]))
def test_every_bucket_is_named_by_its_own_name_and_by_the_instant_it_begins_at(moment: datetime, bucketer: EventTime):
    instant = moment.replace(year=2000 + moment.year % 60, tzinfo=UTC)
    buckets = bucketer.assign(pa.table({"x": [0]}), pa.array([instant], pa.timestamp("us", "UTC")))
    (key,) = buckets.values
    (span,) = buckets.intervals
    assert parse_buckets(bucket_path(bucketer.columns, key), bucketer).key == key
    assert parse_buckets(span[0].isoformat(), bucketer).key == key
    assert bucketers.interval(bucketer, key) == span


@given(
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)),  # noqa: DTZ001 - the test gives it a zone
    st.integers(0, 60),
    st.sampled_from([HOURS, MINUTES, BERLIN, BERLIN_MINUTES, SIX_HOURS]),
)
def test_a_range_is_what_lies_between_by_each_instant(moment: datetime, hours: int, bucketer: EventTime):
    """The oracle assigns each quarter of an hour between the two, one by one."""
    first = moment.replace(minute=0, second=0, microsecond=0, tzinfo=UTC)
    quarters = [first + timedelta(minutes=15) * number for number in range(4 * hours + 1)]
    buckets = bucketer.assign(pa.table({"x": quarters}), pa.array(quarters, pa.timestamp("us", "UTC")))
    labels = [value[0] for value in buckets.values]
    expected = list(dict.fromkeys(labels[code] for code in buckets.codes.to_pylist()))
    text = f"{expected[0]}..{expected[-1]}"
    selection = parse_buckets(text, bucketer)
    assert [slot.values[0] for slot in selection.slots(None)] == expected
    assert [key[0] for key in selection.choose([(label,) for label in reversed(labels)])] == expected
