"""No Kafka timestamp stops a pipeline: a broker keeps any number of 64 bits, and -1 means none."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st

from headrace.bucketers.timestamps import kafka_times
from headrace.recovery.backfill.archive_source import _to_timestamps
from headrace.writer.batch.lateness import Lateness, follow_event_times
from headrace.writer.batch.staging.parquet_files import delta_statistics
from headrace.writer.batch.task import _with_kafka_times
from headrace.writer.maintenance.compaction.compactor import Compactor, here
from tests.support import oracle
from tests.support.audits import describe_problems, run_audit
from tests.support.batch_reader import read as read_natively
from tests.support.example_counts import share
from tests.support.kafka_batches import Raw, Rec
from tests.support.kafka_times import EPOCH, expected_instant
from tests.support.local_driver import Driver, log
from tests.support.read_commands import headrace, write
from tests.support.sample_records import NOW, event
from tests.support.writer_process import Site

INT64 = st.integers(-(2**63), 2**63 - 1)
FIRST_MS = -62_135_596_800_000  # the beginning of the year 1
END_MS = 253_402_300_800_000  # that of the year 10,000
ODD_MS = {
    "none": -1,
    "an hour before the year 1": FIRST_MS - 3_600_000,
    "the year 10,000": END_MS,
    "microseconds": 1_795_000_000_000_000,
    "nanoseconds": 1_795_000_000_000_000_000,
    "the least": -(2**63),
    "the greatest": 2**63 - 1,
}
GOOD_MS = int(NOW.timestamp() * 1000)


@given(st.lists(INT64, min_size=1, max_size=20), st.sampled_from(["s", "ms", "us", "ns"]))
@example([FIRST_MS, FIRST_MS - 1, END_MS - 1, END_MS, -1, -2, 0], "ms")
@settings(max_examples=share(300))
def test_any_number_is_an_instant_of_the_calendar_or_null(numbers: list[int], unit: str) -> None:
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    assert kafka_times(pa.array(numbers, pa.int64()), unit).to_pylist() == [
        expected_instant(n, per_second) for n in numbers
    ]


@given(st.lists(INT64, min_size=1, max_size=9))
@settings(max_examples=share(100))
def test_each_reader_gives_any_timestamp_the_same_meaning(numbers: list[int]) -> None:
    oracle = [expected_instant(number) for number in numbers]
    batches = [Raw((Rec(at, number, None, b"v"),), at, at + 1) for at, number in enumerate(numbers)]
    native, _ = read_natively(b"".join(one.encode() for one in batches), 0, len(numbers))
    assert native.column("timestamp").to_pylist() == oracle
    assert _to_timestamps(pa.array(numbers, pa.int64())).to_pylist() == oracle, "of an archive"


@given(st.lists(INT64, min_size=1, max_size=9))
@settings(max_examples=share(100))
def test_of_sparks_rows_what_spark_may_have_moved_is_null(micros: list[int]) -> None:
    batch = pa.record_batch({"timestamp": pa.array(micros, pa.timestamp("us", "UTC"))})
    year_1900 = -2_208_988_800_000_000
    oracle = [expected_instant(number, 1_000_000) if number >= year_1900 else None for number in micros]
    assert _with_kafka_times(batch).column("timestamp").to_pylist() == oracle


@given(INT64, st.integers(-(10**12), 10**12))
@example(1_700_000_000, 0)  # seconds, read as milliseconds: a day of January 1970
@settings(max_examples=share(100))
def test_a_timestamp_that_is_not_believed_does_not_bound_how_far_a_partition_has_come(number: int, ahead: int) -> None:
    window = (NOW - timedelta(days=365), NOW + timedelta(days=1))
    at = min(NOW, max(window[0], NOW + timedelta(microseconds=ahead)))
    rows = pa.table({
        "_topic": ["clicks"], "_partition": pa.array([0], pa.int32()),
        "_kafka_time": kafka_times(pa.array([number], pa.int64())),
    })  # fmt: skip
    seen = follow_event_times(rows, pa.array([at], pa.timestamp("us", "UTC")), window, NOW, Lateness())
    kafka = expected_instant(number)
    believed = kafka is not None and window[0] <= kafka <= window[1]
    reached = min(at, kafka) if believed and kafka is not None else at
    assert seen == {("clicks", 0): (reached - EPOCH) // timedelta(microseconds=1)}


@given(st.lists(st.none() | INT64, min_size=1, max_size=6))
@settings(max_examples=share(50))
def test_instants_beyond_pythons_years_cost_a_file_its_statistics_and_nothing_else(micros: list[int | None]) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"at": pa.array(micros, pa.timestamp("us", "UTC")), "id": range(len(micros))}), sink)
    found = json.loads(delta_statistics(pq.read_metadata(pa.BufferReader(sink.getvalue()))))
    assert found["numRecords"] == len(micros)
    assert found["minValues"]["id"] == 0
    if "at" in found["minValues"]:
        inside = [number for number in micros if number is not None]
        assert FIRST_MS * 1_000 <= min(inside) <= max(inside) < END_MS * 1_000


def stamped(values: dict[int, bytes | None], odd: dict[int, int]) -> pa.RecordBatch:
    """Records of good times, but for some offsets."""
    batch = log(values)
    times = kafka_times(pa.array([odd.get(offset, GOOD_MS) for offset in values], pa.int64()))
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["delta", "iceberg", "parquet"])
def test_rows_dead_letters_and_raw_records_of_odd_timestamps_are_there_and_survive_compaction(
    tmp_path: Path, form: str
) -> None:
    raw_place = {"raw": {"location": str(tmp_path / "lake" / "clicks_raw")}}
    driver = Driver(tmp_path, form, table=raw_place, columns={"key": "string"}, compact={"max_open_files": 2})
    driver.start()
    numbers = list(ODD_MS.values())
    good: dict[int, bytes | None] = {at: event(at) for at in range(10)}
    odd: dict[int, bytes | None] = {10 + at: event(10 + at) for at in range(len(numbers))}
    junk: dict[int, bytes | None] = {30 + at: b"junk" for at in range(len(numbers))}
    values = dict(sorted((good | odd | junk | {40: None}).items()))
    times = {10 + at: number for at, number in enumerate(numbers)}
    times |= {30 + at: number for at, number in enumerate(numbers)}
    driver.carry([stamped(values, times)], {0: 41})
    for offset in range(41, 44):
        driver.carry([stamped({offset: event(1)}, {offset: -1})], {0: offset + 1})
    rows = {row["_offset"]: row["_kafka_time"] for row in driver.table.rows().to_table().to_pylist()}
    assert rows == {**dict.fromkeys(good, NOW), **dict.fromkeys([*odd, 41, 42, 43], None)}
    letters = driver.side(driver.dead_letters).rows().to_table().to_pylist()
    assert {row["_offset"]: row["_kafka_time"] for row in letters} == dict.fromkeys(junk, None)
    raw = driver.side(driver.settings.raw_place).rows().to_table().to_pylist()
    today = NOW.date().isoformat()
    assert {row["_offset"]: (row["_kafka_time"], row["day"]) for row in raw if row["_offset"] in junk} == dict.fromkeys(
        junk, (None, today)
    )
    assert run_audit(driver).adds_up, describe_problems(run_audit(driver))
    Compactor("clicks", driver.settings, driver.table, None).merge_open(here)
    assert {row["_offset"]: row["_kafka_time"] for row in driver.table.rows().to_table().to_pylist()} == rows
    assert run_audit(driver).adds_up, describe_problems(run_audit(driver))


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("reader", ["native", "spark"])
@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_real_broker_keeps_odd_timestamps_and_the_topic_goes_on(
    site: Site, topic: Callable[..., str], form: str, reader: str
) -> None:
    name = topic(1, **{"message.timestamp.after.max.ms": str(2**63 - 1)})
    site.reader = reader
    lake = site.pipeline("events", [name], form=form, raw=True)
    values = site.values(name, 40)
    # Kafka's own client refuses what is below -1; a broker takes it, as the oldest producers send it.
    numbers = [number for number in ODD_MS.values() if number >= -1]
    written = [(0, key, value, GOOD_MS + at) for at, (key, value) in enumerate(values)]
    for at, number in enumerate(numbers):
        written[10 + at] = (*written[10 + at][:3], number)
        written[20 + at] = (0, b"k", b"junk", number)
    write(site.bootstrap, name, written)
    site.once()
    site.once()
    rows = dict(oracle.rows(lake, "_offset, _kafka_time"))
    letters = dict(oracle.rows(lake.with_name("events_dead_letters"), "_offset, _kafka_time"))
    assert sorted([*rows, *letters]) == list(range(40))
    assert {offset for offset, time in rows.items() if time is None} == {10 + at for at in range(len(numbers))}
    assert letters == {20 + at: None for at in range(len(numbers))}
    raw = dict(oracle.rows(lake.with_name("events_raw"), "_offset, _kafka_time"))
    assert raw == rows | letters
    for words in (("preview", "-n", 40), ("dlq", "list"), ("dlq", "show"), ("audit",)):
        assert "Error" not in headrace(*words, site.config)
    assert "none became a row" in headrace("dlq", "replay", "--yes", site.config, code=1)
    starter = site.root / "new.yaml"
    headrace(
        "init", "--output", starter, "--bootstrap-servers", site.bootstrap, "--registry-url", site.registry_url,
        "--topic", name, "--lake", site.root / "other",
    )  # fmt: skip
    assert name in starter.read_text()
