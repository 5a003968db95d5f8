"""Values that say nothing (0, -1, empty ones) fix no unit and no wire format, and a reason says what fixed it."""

import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from headrace.bucketers.timestamps import event_time
from headrace.writer.batch.bucketing import TimeRule, assign_buckets
from headrace.writer.config.sections.table import EventTime
from headrace.writer.framing.wire_format import CONFLUENT, refusal_reasons
from headrace.writer.schemas.format_detection import DetectedFormat, UnclearWire, detected_unit, judge, unit_of, wire_of
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, Schemas, value
from tests.support.wire_formats import EVERY, record, table

YEAR = timedelta(days=365)
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
NOW_S = int(NOW.timestamp())
FIRST_S = NOW_S - 365 * 86_400
# What producers write for no time: nothing, the ends of types, of the calendar, and of the years that SQL has.
PLACEHOLDERS = (
    0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**8 - 1, 9_999_999, 253_402_300_799, 253_402_300_799_999,
    -62_135_596_800, -62_135_596_800_000, 99_991_231,
)  # fmt: skip
WINDOW_US = (FIRST_S * 10**6, (NOW_S + 86_400) * 10**6)


def detected(values: list[int | None], window_us: tuple[int, int] | None = WINDOW_US) -> str:
    return event_time(pa.table({"at": pa.array(values, pa.int64())}), "at", "auto", window_us)[1]


@given(st.lists(st.none() | st.sampled_from(PLACEHOLDERS), max_size=20))
def test_placeholders_show_no_unit(values: list[int | None]) -> None:
    assert detected(values) == "auto"


@given(
    st.sampled_from(list(UNITS)),
    st.lists(st.integers(FIRST_S, NOW_S), min_size=1, max_size=5),
    st.lists(st.none() | st.sampled_from(PLACEHOLDERS), max_size=20),
    st.randoms(),
)
def test_a_time_that_is_believed_shows_its_unit_among_any_placeholders(
    unit: str, seconds: list[int], placeholders: list[int | None], random: Any
) -> None:
    values = [*(second * UNITS[unit] for second in seconds), *placeholders]
    random.shuffle(values)
    assert detected(values) == unit


@pytest.mark.parametrize("number", [0, -1, 1, 12_345_678, -99_999_999])
def test_a_number_near_zero_shows_no_unit_in_any_window(number: int) -> None:
    assert detected([number] * 3, None) == "auto"
    assert detected([number] * 3, (-(2**62), 2**62)) == "auto"


@pytest.mark.parametrize(("unit", "facts"), [("ms", {"time_unit": "ms"}), ("auto", {"time_unit": ""}), ("auto", {})])
def test_a_commit_without_a_unit_hides_none(unit: str, facts: dict[str, Any]) -> None:
    assert unit_of("auto", [{"time_unit": ""}, {"time_unit": "auto"}, facts]) == unit


# --- a whole pipeline: batch after batch ----------------------------------------------------------------------------

PLAIN = {**EVENT, "fields": [{"name": "id", "type": "long"}, {"name": "at", "type": "long"}]}


def values_of(times: list[int], first: int = 0) -> dict[int, bytes]:
    return {first + n: value(1, PLAIN, {"id": first + n, "at": at}) for n, at in enumerate(times)}


@pytest.mark.parametrize("placeholder", [0, -1, 2**63 - 1, 253_402_300_799])
def test_right_rows_behind_placeholders_are_rows(tmp_path: Path, placeholder: int) -> None:
    driver = Driver(tmp_path, schemas=Schemas({1: PLAIN}, [1]), limits={"max_failed_ratio": 1})
    driver.start()
    driver.carry([log(values_of([placeholder] * 10))], {0: 10})
    assert [facts["time_unit"] for facts in driver.table.recent_commits(10)] == [""]
    driver.carry([log(values_of([NOW_S * 1_000 - n for n in range(30)], 10))], {0: 40})
    newest, first = driver.table.recent_commits(10)
    assert (newest["time_unit"], newest["rows"], first["rows"]) == ("ms", 30, 0)


def test_a_reason_names_what_made_the_unit() -> None:
    def reason(rule: TimeRule, values: list[int]) -> str:
        rows = pa.table({"at": pa.array(values, pa.int64())})
        from headrace.bucketers import build

        bucketer = build({"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"})
        return assign_buckets(rows, rule, bucketer, NOW, pa.array(["t"] * len(values))).quarantined[0]

    auto, fixed = EventTime(field="at"), EventTime(field="at", unit="s")
    milliseconds = NOW_S * 1_000
    assert "in s (as event_time.unit says)" in reason(fixed.rule("s"), [milliseconds])
    of_a_batch = reason(auto.rule("s", "batch 3 of run 1"), [milliseconds])
    assert "in s (detected by batch 3 of run 1; event_time.unit sets another)" in of_a_batch
    assert "in ms (as most values of its batch show)" in reason(auto.rule("auto"), [0, milliseconds])
    assert "no value of its batch shows a unit" in reason(auto.rule("auto"), [0, -1])


def test_the_wire_format_that_a_batch_detects_is_recorded_with_the_batch(tmp_path: Path) -> None:
    from tests.support.sample_records import config

    settings = config(tmp_path)
    found = DetectedFormat("clicks", settings.pipelines["clicks"], settings.kafka)
    found.keep_unit("", "batch 0 of run 1")
    assert (found.unit, found.facts().get("detected")) == ("auto", None)
    found.keep_unit("ms", "batch 1 of run 1")
    found.keep_unit("s", "batch 2 of run 1")
    facts = found.facts()
    assert detected_unit([{"time_unit": "", **facts}, {"time_unit": "ms", **facts}]) == ("ms", "batch 1 of run 1")


# --- wire formats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 20, 100])
def test_empty_values_show_no_format_and_stop_no_start(count: int) -> None:
    verdict = judge(table([(b"", {})] * count), lambda *_: True)
    assert (verdict.wire, verdict.is_sure) == (CONFLUENT, False)


@pytest.mark.parametrize("wire", EVERY, ids=lambda wire: wire.header or wire.format)
@pytest.mark.parametrize("is_known", [True, False])
def test_empty_values_hide_no_format(wire: Any, is_known: bool) -> None:
    rows = [(b"", {})] * 90 + [record(wire, 1)] * 10
    verdict = judge(table(rows), lambda *_: is_known)
    assert (verdict.wire, verdict.is_sure) == (wire, is_known)


def test_a_value_that_is_not_empty_still_needs_a_setting() -> None:
    with pytest.raises(UnclearWire, match="none of 20 values"):
        judge(table([(b"", {})] * 80 + [(b"{}", {})] * 20), lambda *_: True)


def test_a_dead_letter_names_what_made_the_format(tmp_path: Path) -> None:
    from tests.support.sample_records import config

    (empty,) = refusal_reasons(table([(b"", {})]), CONFLUENT)
    assert empty.endswith("for the value is empty")
    for wire, words in (("confluent", "as `wire` says"), ("auto", "assumed while no value shows a format")):
        settings = config(tmp_path, wire=wire)
        found = DetectedFormat("clicks", settings.pipelines["clicks"], settings.kafka)
        (why,) = refusal_reasons(table([(b"x", {})]), found.wire)
        assert words in why
    stored = wire_of([{"wire": {"format": "confluent"}, "detected": {"wire": "a sample of noon"}}])
    assert stored is not None
    assert (
        "(detected by a sample of noon; `wire` sets another)"
        in refusal_reasons(table([(struct.pack(">B", 9), {})]), stored)[0]
    )


def test_a_window_of_all_times_shows_units_by_magnitude() -> None:
    everything = (-62_135_596_800_000_000, 253_402_300_799_999_999)
    for unit, per_second in UNITS.items():
        second = int(datetime(1990, 1, 1, tzinfo=UTC).timestamp())
        assert detected([second * per_second], everything) == unit
