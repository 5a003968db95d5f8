"""The bucketers at the places where a clock, a type or a configuration surprises."""

import pickle
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa
import pytest

from headrace.bucketers import Buckets, Composite, EventTime, Field, build

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def instants(*times: str) -> pa.Array:
    return pa.array([datetime.fromisoformat(time).astimezone(UTC) for time in times], pa.timestamp("us", "UTC"))


def rows(**columns: list) -> pa.Table:
    return pa.table(columns)


def labels(bucketer, *times: str) -> list[str]:
    assigned = bucketer.assign(rows(), instants(*times))
    return [assigned.values[code][0] for code in assigned.codes.to_pylist()]


def interval(bucketer, time: str) -> tuple[str, str]:
    ((start, end),) = bucketer.assign(rows(), instants(time)).intervals
    return start.strftime("%d %H:%M"), end.strftime("%d %H:%M")


def values(assigned: Buckets) -> list:
    return [assigned.values[code] for code in assigned.codes.to_pylist()]


# --- event time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "column", "label"),
    [
        (DAY, "day", "2026-11-20"),
        (7 * DAY, "day", "2026-11-19"),
        (HOUR, "hour", "2026-11-20T05"),
        (6 * HOUR, "hour", "2026-11-20T00"),
        (timedelta(minutes=90), "hour", "2026-11-20T04-30"),
        (timedelta(minutes=1), "minute", "2026-11-20T05-37"),
        (timedelta(seconds=30), "minute", "2026-11-20T05-37-30"),
    ],
)
def test_a_label_is_as_fine_as_the_width(width, column, label):
    bucketer = EventTime(width)
    assert bucketer.columns == (column,)
    assert labels(bucketer, "2026-11-20T05:37:59.999999Z") == [label]


def test_the_column_can_be_named():
    assert EventTime(DAY, column="date").columns == ("date",)


def test_before_1970_a_bucket_starts_before_its_rows():
    assert labels(EventTime(HOUR), "1969-12-31T23:59:59.999999Z", "1970-01-01T00:00Z") == [
        "1969-12-31T23",
        "1970-01-01T00",
    ]


def test_rows_in_chunks_or_none_at_all_are_assigned():
    chunks = pa.chunked_array([instants("2026-01-01T00:00Z"), instants("2026-01-02T00:00Z", "2026-01-01T05:00Z")])
    assert EventTime(DAY).assign(rows(), chunks).codes.to_pylist() == [0, 1, 0]
    for bucketer in (
        EventTime(DAY),
        EventTime(HOUR, "Europe/Berlin"),
        Field("a"),
        Composite(EventTime(DAY), Field("a")),
    ):
        nothing = bucketer.assign(rows(a=pa.array([], pa.string())), instants())
        assert nothing == Buckets(pa.array([], pa.int32()), (), ())


def test_the_second_of_a_repeated_hour_is_b():
    berlin = EventTime(HOUR, "Europe/Berlin")
    assert labels(berlin, "2026-10-25T00:30Z", "2026-10-25T01:30Z") == ["2026-10-25T02", "2026-10-25T02b"]
    assert interval(berlin, "2026-10-25T01:30Z") == ("25 01:00", "25 02:00")
    assert labels(EventTime(HOUR / 4, "Europe/Berlin"), "2026-10-25T01:37Z") == ["2026-10-25T02-30b"]


def test_a_day_has_23_24_or_25_hours():
    berlin = EventTime(DAY, "Europe/Berlin")
    assert interval(berlin, "2026-03-29T12:00Z") == ("28 23:00", "29 22:00")
    assert interval(berlin, "2026-07-01T12:00Z") == ("30 22:00", "01 22:00")
    assert interval(berlin, "2026-10-25T12:00Z") == ("24 22:00", "25 23:00")


def test_several_hours_take_in_both_offsets():
    assert interval(EventTime(6 * HOUR, "Europe/Berlin"), "2026-10-25T01:30Z") == ("24 22:00", "25 05:00")


def test_a_half_hour_shift_cuts_the_hour_it_falls_in():
    island = EventTime(HOUR, "Australia/Lord_Howe")
    # Autumn: at 02:00 (+11) it is 01:30 (+10:30) again. Spring: at 02:00 it is 02:30.
    assert interval(island, "2026-04-04T14:30Z") == ("04 14:00", "04 15:00")
    assert interval(island, "2026-04-04T15:10Z") == ("04 15:00", "04 15:30")
    assert labels(island, "2026-04-04T14:30Z", "2026-04-04T15:10Z") == ["2026-04-05T01", "2026-04-05T01b"]
    assert interval(island, "2026-10-03T15:45Z") == ("03 15:30", "03 16:00")


def test_a_skipped_day_has_no_bucket():
    assert labels(EventTime(DAY, "Pacific/Apia"), "2011-12-30T09:59:59Z", "2011-12-30T10:00Z") == [
        "2011-12-29",
        "2011-12-31",
    ]


def test_summer_time_goes_on_after_2037():
    berlin = EventTime(HOUR, "Europe/Berlin")
    assert labels(berlin, "2045-07-01T12:00Z", "2026-07-01T12:00Z") == ["2045-07-01T14", "2026-07-01T14"]


def test_clocks_set_back_across_midnight_interleave_two_days():
    newfoundland = EventTime(DAY, "America/St_Johns")
    # On 2010-11-07 at 00:01 it was 23:01 of the 6th again.
    assert interval(newfoundland, "2010-11-07T02:30:30Z") == ("07 02:30", "08 03:30")
    assert interval(newfoundland, "2010-11-07T03:00:00Z") == ("06 02:30", "07 03:30")


def test_a_bucketer_travels_to_an_executor():
    bucketer = EventTime(HOUR, "Europe/Berlin")
    assert pickle.loads(pickle.dumps(bucketer)) == bucketer


@pytest.mark.parametrize(
    ("width", "zone", "sentence"),
    [
        (timedelta(0), "UTC", "width must be a positive number of whole seconds, got 0:00:00; try"),
        (-HOUR, "UTC", "positive"),
        (timedelta(milliseconds=1500), "UTC", "whole seconds, got 0:00:01.500000"),
        (400 * DAY, "UTC", "at most 365 days, got 400 days"),
        (HOUR, "Europe/Berln", "zone 'Europe/Berln' is unknown; use an IANA name"),
        (HOUR, "Europe", "unknown"),
        (HOUR, "../etc/passwd", "unknown"),
        (2 * DAY, "Europe/Berlin", "over a day, which only UTC can have; use 1 day in Europe/Berlin"),
        (timedelta(minutes=7), "Europe/Berlin", "must divide an hour"),
        (timedelta(minutes=90), "Europe/Berlin", "must divide an hour"),
        (5 * HOUR, "Europe/Berlin", "divide a day"),
    ],
)
def test_a_width_or_zone_that_cannot_be_is_refused(width, zone, sentence):
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")):
        EventTime(width, zone)


# --- field ------------------------------------------------------------------------------------------------------


def by_field(column: pa.Array, **options) -> Buckets:
    return Field("country", **options).assign(
        pa.table({"country": column}), instants(*["2026-01-01T00:00Z"] * len(column))
    )


def test_a_field_is_bucketed_as_text_with_null_apart():
    assigned = by_field(pa.array(["DE", None, "FR", "DE", ""]))
    assert values(assigned) == [("DE",), (None,), ("FR",), ("DE",), (None,)]
    assert assigned.intervals == (None,) * 3
    assert assigned.codes.type == pa.int32()


def test_the_cap_keeps_the_most_frequent_and_the_rest_is_other():
    assigned = by_field(pa.array(["c", "b", "a", "c", None, "a", "b", "d", "d", "d"]), max_values=2)
    assert values(assigned) == [(v,) for v in ["_other", "_other", "a", "_other", None, "a", "_other", "d", "d", "d"]]
    assert len(set(assigned.values)) == len(assigned.values)


def test_a_value_that_is_called_other_joins_the_others():
    assigned = by_field(pa.array(["_other", "a", "_other", "b", "a"]), max_values=1)
    assert values(assigned) == [("_other",), ("a",), ("_other",), ("_other",), ("a",)]
    assert set(assigned.values) == {("a",), ("_other",)}


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([7]), "7"),
        (pa.array([True]), "true"),
        (pa.array([date(2026, 11, 20)]), "2026-11-20"),
        (pa.array(["DE"]).dictionary_encode(), "DE"),
        (pa.array(["DE"], pa.string_view()), "DE"),
        (pa.nulls(1), None),
    ],
)
def test_any_scalar_type_has_text(column, text):
    assert by_field(column).values == ((text,),)


@pytest.mark.parametrize("column", [pa.array([b"\xff"]), pa.array([[1]]), pa.array([{"a": 1}])])
def test_a_type_without_text_is_refused(column):
    with pytest.raises(ValueError, match=r"field 'country' is .*, which has no text to bucket by; choose"):
        by_field(column)


def test_a_nested_field_names_its_column_with_underscores():
    bucketer = Field("meta.geo.country")
    assert bucketer.columns == ("meta_geo_country_bucket",)
    assert Field("a", column="b").columns == ("b",)
    table = rows(meta=[{"geo": {"country": "DE"}}, {"geo": None}, None])
    assert values(bucketer.assign(table, instants())) == [("DE",), (None,), (None,)]


def test_an_absent_field_or_a_cap_of_none_is_refused():
    with pytest.raises(ValueError, match=r"field 'county' is not in the record; did you mean 'country'\?"):
        Field("county").assign(rows(country=["DE"]), instants())
    with pytest.raises(ValueError, match="max_values must be at least 1, got 0"):
        Field("country", max_values=0)


# --- composite --------------------------------------------------------------------------------------------------


def test_a_composite_has_the_combinations_that_occur():
    table = rows(country=["DE", "FR", "DE", None], kind=["x", "x", "y", "x"])
    when = instants("2026-01-01T05:00Z", "2026-01-02T05:00Z", "2026-01-01T06:00Z", "2026-01-02T05:00Z")
    bucketer = Composite(Field("country"), EventTime(DAY), Field("kind"))
    assigned = bucketer.assign(table, when)
    assert bucketer.columns == ("country_bucket", "day", "kind_bucket")
    assert values(assigned) == [
        ("DE", "2026-01-01", "x"),
        ("FR", "2026-01-02", "x"),
        ("DE", "2026-01-01", "y"),
        (None, "2026-01-02", "x"),
    ]
    assert [span[0].day for span in assigned.intervals] == [1, 2, 1, 2]
    assert assigned.codes.type == pa.int32()


def test_the_first_interval_is_the_composite_s():
    assigned = Composite(Field("a"), EventTime(HOUR), EventTime(DAY)).assign(rows(a=[1]), instants("2026-01-01T05:00Z"))
    assert assigned.intervals[0][1] - assigned.intervals[0][0] == HOUR
    assert Composite(Field("a")).assign(rows(a=[1]), instants("2026-01-01T05:00Z")).intervals == (None,)


def test_a_composite_of_nothing_or_of_equal_columns_is_refused():
    with pytest.raises(ValueError, match="at least one part"):
        Composite()
    with pytest.raises(ValueError, match="two parts write the column 'Day'"):
        Composite(EventTime(DAY, column="Day"), EventTime(DAY))


# --- registry ---------------------------------------------------------------------------------------------------


class Everything:
    """A stranger's bucketer: one bucket for all rows."""

    columns = ("all",)

    def __init__(self, label: str = "all") -> None:
        self.label = label

    def assign(self, rows, event_time) -> Buckets:  # noqa: ARG002
        return Buckets(pa.array([0] * len(event_time), pa.int32()), ((self.label,),), (None,))


class NoColumns:
    def assign(self, rows, event_time): ...


class NoAssign:
    columns = ("a",)


NOT_A_CLASS = 5


def test_a_bucketer_is_built_from_its_configuration():
    assert build({"type": "event_time", "width": HOUR, "zone": "UTC"}) == EventTime(HOUR)
    assert build({"type": "field", "field": "a", "max_values": 3}) == Field("a", max_values=3)
    nested = {"type": "composite", "parts": [{"type": "event_time", "width": DAY}, {"type": "field", "field": "a"}]}
    assert build(nested) == Composite(EventTime(DAY), Field("a"))


def test_a_stranger_s_bucketer_is_imported_and_given_its_options():
    made = build({"type": f"{__name__}:Everything", "label": "x"})
    assert made.assign(rows(), instants("2026-01-01T00:00Z")).values == (("x",),)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "bucketer {} has no 'type'; set it to one of event_time, field, composite, or 'my_module:MyClass'"),
        ("field", "bucketer 'field' has no 'type'"),
        (
            {"type": "event-time"},
            "type 'event-time' is neither 'my_module:MyClass' nor known; did you mean 'event_time'?",
        ),
        ({"type": "event_time"}, "missing a required argument: 'width'; its options are width, zone, column"),
        ({"type": "event_time", "widht": HOUR}, "its options are width, zone, column"),
        ({"type": "event_time", "width": "1h"}, "bucketer 'event_time' cannot be made of {'width': '1h'}"),
        ({"type": "composite", "parts": [{"type": "feild"}]}, "did you mean 'field'?"),
        ({"type": "no_such_module:A"}, "No module named 'no_such_module'; install the module where the writer runs"),
        ({"type": ":A"}, "install the module"),
        ({"type": f"{__name__}:Everythin"}, "has no class 'Everythin'; did you mean 'Everything'?"),
        ({"type": f"{__name__}:Everything", "lable": 1}, "unexpected keyword argument 'lable'; its options are label"),
        ({"type": f"{__name__}:NoColumns"}, "has columns None; make it a tuple"),
        ({"type": f"{__name__}:NoAssign"}, "has no method 'assign'"),
        ({"type": f"{__name__}:NOT_A_CLASS"}, "has no class 'NOT_A_CLASS'"),
    ],
)
def test_a_wrong_configuration_is_a_sentence(spec, sentence):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 the sentence is compared below
        build(spec)
    assert sentence in str(refused.value)
