"""Event times at both ends of what the table's types hold: the years 1 to 9999, in every form, zone and width."""

import json
import struct
import tempfile
from datetime import UTC, date, datetime, timedelta
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import example, given, settings, strategies as st

from headrace.bucketers import EventTime, interval
from headrace.bucketers.timestamps import event_time
from headrace.writer.batch.bucketing import Clock, TimeRule, times_of
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import run
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.units import instant, microseconds
from headrace.writer.maintenance.retention import due
from headrace.writer.sealing.rules import KeepOpen, Unsealed, choose_close
from headrace.writer.sealing.watermark import PartitionEventTime, highest_watermark, watermark
from tests.support.example_counts import share
from tests.support.task_topic import KAFKA_TIME, NOW

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICRO, HOUR, DAY = timedelta(microseconds=1), timedelta(hours=1), timedelta(days=1)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
FIRST_US, LAST_US = microseconds(FIRST), microseconds(LAST)
EVER = 3_000_000 * DAY  # more than the years there are
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo", "Pacific/Kiritimati", "Pacific/Pago_Pago")
WIDTHS = (timedelta(seconds=1), timedelta(minutes=5), HOUR, 6 * HOUR, DAY)
# Near both ends, and anywhere.
INSTANTS = st.one_of(
    st.integers(0, 3 * 86_400_000_000).map(lambda away: FIRST_US + away),
    st.integers(0, 3 * 86_400_000_000).map(lambda away: LAST_US - away),
    st.integers(FIRST_US, LAST_US),
    st.sampled_from([FIRST_US, FIRST_US + 1, LAST_US, LAST_US - 999, LAST_US - 86_399_999_999]),
).map(instant)
BATCHES = st.lists(INSTANTS, min_size=1, max_size=12)
unhurried = settings(deadline=None)  # the first use of a zone scans its years


def times(column: pa.Array, unit: str = "auto") -> list[datetime | None]:
    return event_time(pa.table({"t": column}), "t", unit)[0].to_pylist()


@given(st.sampled_from([("s", 10**6), ("ms", 10**3), ("us", 1)]), BATCHES)
def test_integers_of_every_unit_reach_the_years_1_and_9999(unit, instants):
    name, micros = unit
    numbers = [microseconds(at) // micros for at in instants]
    assert times(pa.array(numbers, pa.int64()), name) == [instant(n * micros) for n in numbers]


@given(st.sampled_from([-(2**63), 2**63 - 1, 0]), st.integers(0, 10**15))
def test_nanoseconds_reach_as_far_as_int64_does(end, away):
    number = end + away if end <= 0 else end - away
    assert times(pa.array([number], pa.int64()), "ns") == [instant(number // 1000)]


@given(BATCHES)
def test_timestamps_dates_and_text_reach_the_years_1_and_9999(instants):
    assert times(pa.array(instants, pa.timestamp("us", "UTC"))) == instants
    assert times(pa.array([at.isoformat() for at in instants])) == instants
    midnights = [at.replace(hour=0, minute=0, second=0, microsecond=0) for at in instants]
    assert times(pa.array([at.date() for at in instants], pa.date32())) == midnights
    assert times(pa.array([at.date().isoformat() for at in instants])) == midnights


@pytest.mark.parametrize("text", ["0001-01-01T00:30:00+01:00", "9999-12-31T23:30:00-01:00", "0000-12-31"])
def test_text_whose_instant_is_beyond_the_years_is_no_time(text):
    assert times(pa.array([text])) == [None]


def test_numbers_beyond_the_years_are_no_time():
    for micros, unit in ((10**6, "s"), (10**3, "ms"), (1, "us")):
        assert times(pa.array([FIRST_US // micros - 1, LAST_US // micros + 1]), unit) == [None, None]
    assert times(pa.array([-719_163, 2_932_897], pa.int32()).cast(pa.date32())) == [None, None]


@unhurried
@given(st.sampled_from(ZONES), st.sampled_from(WIDTHS), BATCHES)
def test_every_zone_has_a_bucket_for_every_instant(zone, width, instants):
    bucketer = EventTime(width, zone)
    found = bucketer.assign(pa.table({}), pa.array(instants, pa.timestamp("us", "UTC")))
    for at, code in zip(instants, found.codes.to_pylist(), strict=True):
        start, end = found.intervals[code]
        assert start <= at
        assert at < end or at == end == LAST  # no datetime is later
        assert interval(bucketer, found.values[code]) == (start, end)
    assert len(set(found.values)) == len(found.values)
    for (_, end), (start, _) in pairwise(sorted(found.intervals)):
        assert end <= start


@given(st.integers(1, 365 * 86_400).map(lambda seconds: timedelta(seconds=seconds)), BATCHES)
def test_in_utc_every_width_has_a_bucket_for_every_instant(width, instants):
    bucketer = EventTime(width)
    found = bucketer.assign(pa.table({}), pa.array(instants, pa.timestamp("us", "UTC")))
    for at, code in zip(instants, found.codes.to_pylist(), strict=True):
        start, end = found.intervals[code]
        assert start <= at <= end
        assert interval(bucketer, found.values[code]) == (start, end)
    assert len(set(found.values)) == len(found.values)


# --- a whole task -----------------------------------------------------------------------------------------------

FORMS: dict[str, Any] = {
    "millis": {"type": "long", "logicalType": "timestamp-millis"},
    "micros": {"type": "long", "logicalType": "timestamp-micros"},
    "date": {"type": "int", "logicalType": "date"},
    "long": "long",
    "text": "string",
}


def write_event(form: str, at: datetime) -> tuple[Any, datetime]:
    """What the producer writes, and the instant that it means."""
    match form:
        case "millis":
            return microseconds(at) // 1000, instant(microseconds(at) // 1000 * 1000)
        case "micros" | "long":
            return microseconds(at), at
        case "date":
            return (at.date() - date(1970, 1, 1)).days, datetime(at.year, at.month, at.day, tzinfo=UTC)
        case _:
            return at.isoformat(), at


def carry_event(
    folder: Path, form: str, values: list[Any], bucket: dict[str, Any], rule: TimeRule, *, hidden: bool
) -> tuple[Report, list[str]]:
    """The report of a task over records with these event times, and the reasons of what it quarantined."""
    schema = {"type": "record", "name": "E", "fields": [{"name": "at", "type": FORMS[form]}]}
    column = EventTime(bucket["width"], bucket["zone"]).columns
    plan = TaskPlan(
        now=NOW, frontier={}, incarnations={"t": 1}, time_rule=rule, bucket=bucket,
        schemas=SchemaPlan(pa.schema([]), frozenset({*PROVENANCE.names, *column})).extend(1, json.dumps(schema)),
        table=str(folder / "table"), dead_letters=str(folder / "letters"), prefix="b0", budget=10**9,
        target_file_size=10**8, hidden=hidden,
    )  # fmt: skip
    parsed, records = parse_schema({"type": "record", "name": "E", "fields": [{"name": "at", "type": raw(form)}]}), []
    for value in values:
        out = BytesIO()
        out.write(struct.pack(">bI", 0, 1))
        schemaless_writer(out, parsed, {"at": value})
        records.append(out.getvalue())
    batch = pa.record_batch({
        "topic": ["t"] * len(values), "partition": pa.array([0] * len(values), pa.int32()),
        "offset": pa.array(range(len(values)), pa.int64()),
        "timestamp": pa.array([KAFKA_TIME] * len(values), pa.timestamp("us", "UTC")),
        "key": pa.array([b""] * len(values)), "value": pa.array(records, pa.binary()),
    })  # fmt: skip
    (told,) = run([batch], plan)
    report = Report.from_json(told.column(0)[0].as_py())
    dead_letters = [pq.read_table(folder / "letters" / file.path) for file in report.dead_letter_files]
    return report, [reason for found in dead_letters for reason in found.column("error").to_pylist()]


def raw(form: str) -> str:
    """Without its logical type, which fastavro would convert within Python's own limits."""
    return FORMS[form]["type"] if isinstance(FORMS[form], dict) else FORMS[form]


@settings(max_examples=share(25))
@given(st.sampled_from(sorted(FORMS)), st.sampled_from(ZONES), st.sampled_from(WIDTHS), BATCHES, st.booleans())
@example("micros", "Asia/Tokyo", HOUR, [LAST, FIRST], False)
@example("date", "America/New_York", DAY, [FIRST, LAST], True)
def test_a_task_carries_every_time_that_the_configuration_believes(form, zone, width, instants, hidden):
    rule = TimeRule("at", "us" if form == "long" else "auto", EVER, EVER)
    meant = [write_event(form, at) for at in instants]
    with tempfile.TemporaryDirectory() as name:
        bucket = {"type": "event_time", "width": width, "zone": zone}
        report, reasons = carry_event(Path(name), form, [value for value, _ in meant], bucket, rule, hidden=hidden)
        assert reasons == []
        assert sum(file.rows for file in report.files) == len(instants)
        for file in report.files:
            path = Path(name) / "table" / (f"_headrace/staged/{Path(file.path).name}.staged" if hidden else file.path)
            found = pq.read_table(path, partitioning=None).column("at")
            stats = json.loads(file.statistics)
            low, high = stats["minValues"].get("at"), stats["maxValues"].get("at")
            if form in ("millis", "micros"):
                assert pc.min_max(found).as_py() == {"min": file.event_time_min, "max": file.event_time_max}
                assert low is None or datetime.fromisoformat(low) <= file.event_time_min
                assert high is None or datetime.fromisoformat(high) >= file.event_time_max
            if form == "date":
                assert (low, high) == tuple(at.as_py().isoformat() for at in (pc.min(found), pc.max(found)))
        (counts,) = report.counts.values()
        assert counts.seen == microseconds(min(max(at for _, at in meant), KAFKA_TIME, NOW))  # the future moves nothing


@pytest.mark.parametrize(
    ("at", "shown"), [(FIRST, "0001-01-01 00:00:00.000000Z"), (LAST, "9999-12-31 23:59:59.999999Z")]
)
def test_a_time_that_is_not_believed_is_named_with_the_window(tmp_path, at, shown):
    bucket = {"type": "event_time", "width": HOUR, "zone": "UTC"}
    rule = TimeRule("at", "auto", 365 * DAY, DAY)
    report, reasons = carry_event(tmp_path, "micros", [microseconds(at)], bucket, rule, hidden=False)
    assert reasons == [f"at is {shown}, outside [2025-11-20T12:00:00Z, 2026-11-21T12:00:00Z]"]
    assert [counts.seen for counts in report.counts.values()] == [None]  # it moves no watermark


def test_a_window_wider_than_the_years_is_all_of_them(tmp_path):
    rule = TimeRule("at", "us", 999_999_999 * DAY, 999_999_999 * DAY)
    _, reasons = carry_event(tmp_path, "long", [2**63 - 1], {"type": "event_time", "width": HOUR, "zone": "UTC"}, rule,
                         hidden=False)  # fmt: skip
    assert reasons == [
        "at is no time in the years 1 to 9999 in us, outside [0001-01-01T00:00:00Z, 9999-12-31T23:59:59Z]"
    ]


@unhurried
@given(st.sampled_from([{"shift": HOUR}, {"shift": -HOUR}, *({"zone": zone} for zone in ZONES)]), INSTANTS)
def test_a_clock_that_is_put_right_beyond_the_years_shows_no_time(how, at):
    rule = TimeRule("at", "auto", EVER, EVER, (Clock(**how),))
    (found,) = times_of(pa.table({"at": pa.array([at], pa.timestamp("us", "UTC"))}), rule, pa.array(["t"]))[
        0
    ].to_pylist()
    assert found is None or abs(found - at) < DAY
    assert found is not None or at < FIRST + DAY or at > LAST - DAY


# --- what is decided by such times ------------------------------------------------------------------------------

PART = TopicPartition("clicks", 1, 0)
POLICY = Seal(out_of_orderness=5 * HOUR, allowed_lateness=5 * HOUR, idle_timeout=HOUR, after=HOUR, reopen_after=HOUR)


@given(INSTANTS, INSTANTS)
def test_buckets_at_the_ends_are_closed_as_any_other(seen, end):
    assert watermark([PartitionEventTime(PART, seen)], DAY).instant == max(FIRST + DAY, seen) - DAY
    assert highest_watermark([PartitionEventTime(PART, seen)], DAY) == max(FIRST + DAY, seen) - DAY
    bucket = Unsealed(("b",), None, end, NOW)
    found = choose_close(POLICY, [bucket], [PartitionEventTime(PART, seen)], None, NOW, caught_up=False)
    due = microseconds(end) + 5 * 3_600_000_000 <= microseconds(seen) - 5 * 3_600_000_000
    assert (not isinstance(found, KeepOpen)) is due


def test_a_bucket_of_the_year_9999_is_never_old():
    bucketer, file = EventTime(HOUR), BucketFile("f", ("9999-12-31T23",), 1, 1, None, None)
    assert due([file], lambda bucket: interval(bucketer, bucket), DAY, NOW) == []
