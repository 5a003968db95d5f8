"""A bucket is found by whatever a scheduler calls it, or refused with how buckets are named."""

from datetime import UTC, timedelta

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import bucketers
from bucketers import Composite, EventTime, Field
from writer.core.errors import ConfigError
from writer.output.bucket_names import bucket_of
from writer.sealing.manifest import bucket_path

HOURS, DAYS = EventTime(timedelta(hours=1)), EventTime(timedelta(days=1))
MINUTES, BERLIN = EventTime(timedelta(minutes=15)), EventTime(timedelta(hours=1), "Europe/Berlin")
BOTH = Composite(HOURS, Field("country"))


@pytest.mark.parametrize(
    ("bucketer", "text", "expected"),
    [
        *((HOURS, text, "2026-11-20T05") for text in (
            "2026-11-20T05", "hour=2026-11-20T05", "2026-11-20 05", "2026-11-20T05:00", "2026-11-20T05:00:00Z",
            "2026-11-20T05-00", "2026-11-20T06:00+01:00", " 2026-11-20T05/ ", "2026-11-20T05:00:00+00:00",
        )),
        *((DAYS, text, "2026-11-20") for text in (
            "2026-11-20", "day=2026-11-20", "2026-11-20T00:00Z", "2026-11-20 00:00"
        )),
        *((MINUTES, text, "2026-11-20T05-45") for text in (
            "2026-11-20T05-45", "2026-11-20T05:45", "2026-11-20T05:45Z"
        )),
        (MINUTES, "2026-11-20T05", "2026-11-20T05-00"),
        (BERLIN, "2026-10-25T02b", "2026-10-25T02b"),
        (BERLIN, "2026-10-25T02:00", "2026-10-25T02"),
        (BERLIN, "2026-10-25T01:00Z", "2026-10-25T02b"),
    ],
)  # fmt: skip
def test_a_bucket_is_found_by_its_folder_its_label_or_its_beginning(bucketer, text: str, expected: str):
    assert bucket_of(text, bucketer) == (expected,)


def test_of_several_columns_all_are_named():
    expected = ("2026-11-20T05", "DE")
    for text in ("2026-11-20T05/DE", "hour=2026-11-20T05/country_bucket=DE", "2026-11-20T05:00Z/DE"):
        assert bucket_of(text, BOTH) == expected
    assert bucket_of("2026-11-20T05/country_bucket=__HIVE_DEFAULT_PARTITION__", BOTH) == ("2026-11-20T05", None)
    assert bucket_of("country_bucket=a%2Fb", Field("country")) == ("a/b",)
    assert bucket_path(BOTH.columns, ("2026-11-20T05", None)).startswith("hour=2026-11-20T05/country_bucket=__HIVE")


@pytest.mark.parametrize(
    ("bucketer", "text"),
    [
        (HOURS, "yesterday"), (HOURS, ""), (HOURS, "2026-11-20T05:30"), (HOURS, "2026-11-20T05:30Z"),
        (HOURS, "2026-02-30T05"), (HOURS, "2026-11-20T05/DE"), (BOTH, "2026-11-20T05"), (DAYS, "2026-11-20T05"),
        (BERLIN, "2026-03-29T02"),
    ],
)  # fmt: skip
def test_what_no_bucket_is_named_is_refused_with_how_they_are(bucketer, text: str):
    with pytest.raises(ConfigError, match=r"named (hour|day)=2026-11-20"):
        bucket_of(text, bucketer)


@given(st.datetimes(), st.sampled_from([HOURS, DAYS, MINUTES, BERLIN]))
def test_every_bucket_is_found_by_its_own_name_and_by_the_instant_it_begins_at(moment, bucketer):
    at = moment.replace(year=2000 + moment.year % 60, tzinfo=UTC)
    found = bucketer.assign(pa.table({"x": [0]}), pa.array([at], pa.timestamp("us", "UTC")))
    (key,), (span,) = found.values, found.intervals
    assert bucket_of(bucket_path(bucketer.columns, key), bucketer) == key
    assert bucket_of(span[0].isoformat(), bucketer) == key
    assert bucketers.interval(bucketer, key) == span
