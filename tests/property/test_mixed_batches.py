"""What lies beside a record changes nothing about its row: schemas of neighbours, headers, key, transaction.

A task reads logs from brokers in this process. Its rows, dead letters and counts are those that each record has by
itself, however the log is cut into Arrow batches.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.batch import range_task
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.range_task import ReadPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.reader import ReadLimits
from headrace.writer.kafka_reader.requests.metadata import Metadata
from tests.servers.kafka_cluster import Cluster as Fake, PartitionReply
from tests.support.example_counts import share
from tests.support.kafka_batches import Raw, Rec, marker
from tests.support.task_topic import BAD, KAFKA_TIME, NOW, SCHEMAS, Topic, ms, place, read

SOURCE = ("clicks", 0)
PRODUCER, ABORTING = 7, 8
# Mostly sound, so that blocks of several schemas come together.
KINDS = st.sampled_from([*["event", "wider", "pair"] * 6, *BAD])
KEYS = st.sampled_from([None, b"", b"k1", b"\xff"])
TRACE = ((b"traceparent", b"00-" + b"a" * 32 + b"-01"), (b"tracestate", b"dd=s:1"))
HEADERS = st.sampled_from([(), TRACE, TRACE[:1], ((b"", None), *TRACE)])


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Raw], Topic]:
    """Batches of all sorts of records, some of aborted transactions, and what should become of the committed ones."""
    log = list[Raw]()
    topic = Topic()
    for _ in range(draw(st.integers(1, 5))):
        base = len(topic.records)
        records = list[Rec]()
        for kind in draw(st.lists(KINDS, min_size=1, max_size=60)):
            topic.put(*SOURCE, kind)
            *_, offset, value = topic.records[-1]
            records.append(Rec(offset, ms(KAFKA_TIME), draw(KEYS), value, draw(HEADERS)))
        producer = draw(st.sampled_from([-1, -1, PRODUCER, ABORTING]))
        log.append(Raw(tuple(records), base, base + len(records), "lz4", producer, transactional=producer >= 0))
        if producer >= 0:
            # The marker takes an offset.
            log.append(marker(base + len(records), producer))
            topic.put(*SOURCE, "tombstone")
            topic.tombstones.pop()
    return log, topic


def read_log(log: Sequence[Raw], plan: TaskPlan, columns: ColumnChoice, limits: ReadLimits) -> Report:
    """Run one task on all of a log."""
    aborted = [(batch.producer, batch.base) for batch in log if batch.producer == ABORTING and not batch.control]
    fake = Fake({SOURCE: list(log)}, say=lambda _: PartitionReply(aborted=aborted))
    shares = [[OffsetRange(TopicPartition(SOURCE[0], 1, SOURCE[1]), 0, log[-1].after)]]
    with fake.running() as brokers:
        address = ClusterAddress(brokers, timeout_s=5)
        reading = ReadPlan(address, Metadata(), dict[str, UUID](), columns, limits, shares)
        (row,) = range_task.run(0, plan, reading)
    report = Report.from_json(row["report"][0].as_py())
    assert not report.read_failures, report.read_failures
    return report


def aborted_offsets(log: Sequence[Raw]) -> Iterator[int]:
    for batch in log:
        if batch.producer == ABORTING and not batch.control:
            yield from (record.offset for record in batch.records)


@given(
    written=logs(),
    rows=st.integers(1, 200),
    headers=st.booleans(),
    budget=st.sampled_from([1_000, 2**20]),
)
@settings(max_examples=share(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_record_becomes_what_it_is_by_itself(
    written: tuple[list[Raw], Topic], rows: int, headers: bool, budget: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log, topic = written
    root = tmp_path_factory.mktemp("mixed")
    plan = task_plan(root, budget)
    columns = ColumnChoice(headers=headers)
    report = read_log(log, plan, columns, ReadLimits(rows=rows, fetch_wait_ms=10, retry_timeout_s=5))
    aborted = set(aborted_offsets(log))
    counts = report.counts.get(SOURCE)
    kept = [
        {at for at in wanted if at[2] not in aborted}
        for wanted in (topic.rows, topic.dead_letters, topic.quarantined, topic.tombstones)
    ]
    if counts is None:
        assert not any(kept)
        return
    assert [counts.rows, counts.dead_letters, counts.quarantined, counts.tombstones] == list(map(len, kept))

    found = read(plan.table, report.files).to_pylist() if report.files else []
    assert Counter(map(place, found)) == Counter(kept[0])
    for row in found:
        mine = {name: row[name] for name in SCHEMAS.columns.names}
        assert mine == dict.fromkeys(SCHEMAS.columns.names) | topic.rows[place(row)]

    letters = read(plan.dead_letters, report.dead_letter_files).to_pylist() if report.dead_letter_files else []
    assert Counter(map(place, letters)) == Counter(kept[1] | kept[2])
    keys = {record.offset: record.key for batch in log for record in batch.records}
    values = {at[:3]: at[3] for at in topic.records}
    for row in letters:
        assert (row["key"], row["value"]) == (keys[row["_offset"]], values[place(row)])
        assert {**topic.dead_letters, **topic.quarantined}[place(row)] in row["error"]


def task_plan(root: Path, budget: int) -> TaskPlan:
    return TaskPlan(
        now=NOW, frontier={}, incarnations={SOURCE[0]: 1}, schemas=SCHEMAS,
        time_rule=TimeRule("at", "auto", timedelta(days=30), timedelta(hours=1)),
        bucket={"type": "event_time", "width": timedelta(hours=1)}, table=str(root / "table"),
        dead_letters=str(root / "dead"), prefix="000001", budget=budget, target_file_size=2**20,
    )  # fmt: skip
