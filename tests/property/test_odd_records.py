"""No property of one record ends a batch: keys, headers, times, offsets, holes, markers and codecs of any sort.

A task fetches the records from brokers in this process, and the batch is committed: rows, dead letters and raw records
are those that were sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.batch import range_task
from headrace.writer.batch.range_task import ReadPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.commit import builder
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.reader import ReadLimits
from headrace.writer.kafka_reader.requests.metadata import Metadata
from tests.servers.kafka_cluster import Cluster as Fake, PartitionReply
from tests.support.audits import describe_problems, run_audit
from tests.support.example_counts import share
from tests.support.kafka_batches import Header, Raw, Rec, marker
from tests.support.kafka_times import expected_instant
from tests.support.local_driver import Driver
from tests.support.sample_records import NOW, event

PRODUCER, ABORTING = 7, 8
CODECS = ["none", "gzip", "snappy", "snappy-xerial", "lz4", "zstd"]
GOOD_MS = int(NOW.timestamp() * 1000)
NAMES = st.sampled_from(
    [b"", b"trace", b"trace", "é\u202e\0".encode(), b"\xff\xfe", b"\xed\xa0\x80", b"'; --", b"x" * 300]
)
HEADER = st.tuples(NAMES, st.sampled_from([None, b"", b"\xff", b"v" * 2_000]))
MANY_HEADERS = ((b"trace", b"first"),) * 10_000
HUGE_HEADER = ((b"huge", b"\xfe" * 900_000),)
HEADERS = st.lists(HEADER, max_size=4).map(tuple) | st.sampled_from([(), MANY_HEADERS, HUGE_HEADER])
KEYS = st.sampled_from([None, b"", b"k1", b"\xff\xfe\0", b"\xed\xa0\x80", b"k" * 100_000])
VALUES = st.sampled_from([
    None, b"", b"\0", b"\0\0\0\0\1", b"junk", b"\0\0\0\0\x63" + b"stray", event(1), event(2), event(3), event(2)[:-1],
    event(2) + b"\0", b"\xff" * 200_000,
])  # fmt: skip
TIMES = st.sampled_from([GOOD_MS, GOOD_MS, -1, -2, 0, 10**15, 2**62]) | st.integers(-(2**63), 2**63 - 1)
BASES = st.sampled_from([0, 1, 2**31 - 5, 2**40, 2**53 - 3, 2**63 - 2_000])
GOOD_VALUES = {event(number): number for number in (1, 2, 3)}


@st.composite
def logs(draw: st.DrawFn) -> list[Raw]:
    """Batches with holes between and within them, of transactions that are committed and aborted, too."""
    offset = draw(BASES)
    log = list[Raw]()
    for _ in range(draw(st.integers(1, 4))):
        offset += draw(st.integers(0, 3))
        base = offset
        records = list[Rec]()
        for _ in range(draw(st.integers(1, 4))):
            record = Rec(offset, draw(TIMES), draw(KEYS), draw(VALUES), draw(HEADERS))
            records.append(record)
            offset += draw(st.integers(1, 3))
        append_ms = draw(st.none() | TIMES)
        producer = draw(st.sampled_from([-1, PRODUCER, ABORTING]))
        batch = Raw(
            tuple(records), base, offset, draw(st.sampled_from(CODECS)), append_time_ms=append_ms, producer=producer,
            transactional=producer >= 0,
        )  # fmt: skip
        log.append(batch)
        if producer >= 0:
            log.append(marker(offset, producer))
            offset += 1
    return log


def aborted_ranges(log: Sequence[Raw]) -> list[tuple[int, int]]:
    """Return producer and first offset of each transaction that is aborted."""
    return [(batch.producer, batch.base) for batch in log if batch.producer == ABORTING and not batch.control]


def committed_records(log: Sequence[Raw]) -> dict[int, tuple[Rec, int]]:
    """Return the records that a reader gets, by offset, with the time that counts."""
    return {
        record.offset: (record, record.time_ms if batch.append_time_ms is None else batch.append_time_ms)
        for batch in log
        if not batch.control and batch.producer != ABORTING
        for record in batch.records
    }


class Native(Driver):
    """A pipeline whose tasks fetch the records themselves."""

    log: Sequence[Raw] = ()

    def _tasks(
        self, records: Sequence[pa.RecordBatch], frontier: Mapping[Any, int], now: datetime, closed: Mapping[str, Any]
    ) -> Report:
        assert not records, "they come from the brokers"
        wanted = [[OffsetRange(TopicPartition("clicks", 1, 0), frontier["clicks", 0], self.log[-1].after)]]
        fake = Fake({("clicks", 0): list(self.log)}, say=lambda _: PartitionReply(aborted=aborted_ranges(self.log)))
        with fake.running() as brokers:
            reading = ReadPlan(
                ClusterAddress(brokers, timeout_s=5), Metadata(), dict[str, UUID](), ColumnChoice(raw=True),
                ReadLimits(fetch_wait_ms=10, retry_timeout_s=5), wanted,
            )  # fmt: skip
            while True:
                plan = replace(
                    self._pipeline.task_plan(now, "000001", {"clicks": 1}),
                    frontier=frontier, budget=self.budget, target_file_size=2**20, raw=self.settings.raw_place,
                    **closed,
                )  # fmt: skip
                (row,) = range_task.run(0, plan, reading)
                report = builder.merge_reports([Report.from_json(row["report"][0].as_py())])
                assert not report.read_failures, report.read_failures
                if not report.lacks_schemas:
                    return report
                self._pipeline.schemas.learn_from(report)


def decode_text(data: bytes) -> str | None:
    """Return a text; None where the bytes are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def last_of_each(headers: Sequence[Header]) -> dict[str, bytes | None] | None:
    return {name.decode(errors="replace"): value for name, value in headers} or None


@given(log=logs())
@settings(
    max_examples=share(25), deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)  # fmt: skip
def test_odd_records_become_rows_dead_letters_and_raw_records(
    log: list[Raw], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("odd")
    raw_place = {"raw": {"location": str(root / "lake" / "clicks_raw")}}
    driver = Native(
        root, table=raw_place, columns={"key": "string", "headers": "_headers", "header_columns": {"tr": "trace"}}
    )
    driver.log = log
    driver.start(offset=log[0].base)
    driver.carry([], {0: log[-1].after})
    sent = committed_records(log)
    rows = {row["_offset"]: row for row in driver.table.rows().to_table().to_pylist()}
    letters = {row["_offset"]: row for row in driver.side(driver.dead_letters).rows().to_table().to_pylist()}
    raw = {row["_offset"]: row for row in driver.side(driver.settings.raw_place).rows().to_table().to_pylist()}
    assert raw.keys() == sent.keys()
    for offset, (record, time_ms) in sent.items():
        check_raw(raw[offset], record, time_ms)
        if record.value is None:
            assert offset not in rows.keys() | letters.keys(), "a tombstone is neither"
        elif is_row(record):
            check_row(rows.pop(offset), record, time_ms)
        else:
            letter = letters.pop(offset)
            assert letter["error"]
            assert (letter["key"], letter["value"]) == (record.key, record.value)
            assert letter["_kafka_time"] == expected_instant(time_ms)
    assert not rows
    assert not letters
    assert run_audit(driver).adds_up, describe_problems(run_audit(driver))


def is_row(record: Rec) -> bool:
    """Return whether value, key and the header of a column can be read."""
    texts = [record.key, dict(record.headers).get(b"trace")]
    return record.value in GOOD_VALUES and all(text is None or decode_text(text) is not None for text in texts)


def check_row(row: Mapping[str, Any], record: Rec, time_ms: int) -> None:
    assert record.value is not None
    assert row["id"] == GOOD_VALUES[record.value]
    assert row["_key"] == (None if record.key is None else record.key.decode())
    assert dict(row["_headers"] or {}) == (last_of_each(record.headers) or {})
    trace = dict(record.headers).get(b"trace")
    assert row["tr"] == (None if trace is None else trace.decode())
    assert row["_kafka_time"] == expected_instant(time_ms)


def check_raw(row: Mapping[str, Any], record: Rec, time_ms: int) -> None:
    assert (row["key"], row["value"]) == (record.key, record.value)
    headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
    assert headers == [(name.decode(errors="replace"), value) for name, value in record.headers]
    assert row["_kafka_time"] == expected_instant(time_ms)
