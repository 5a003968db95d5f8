"""Tasks that fetch for themselves: what each one reads, what it reports, and what the driver makes of the reports."""

import dataclasses
import pickle
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from headrace.writer.batch import range_task
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.range_task import ReadPlan, share_ranges
from headrace.writer.batch.task_report import Counts, RangeRead, Report
from headrace.writer.clients import native_kafka
from headrace.writer.commit.builder import check_ranges_read, merge_reports
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.offsets import OffsetRange, Source, Span, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.errors import Unavailable
from headrace.writer.kafka_reader.protocol import ErrorCode
from headrace.writer.kafka_reader.reader import ReadLimits
from headrace.writer.kafka_reader.requests.metadata import Metadata
from tests.servers.kafka_cluster import Cluster as Fake, PartitionFetch, PartitionReply
from tests.support.kafka_batches import Raw, Rec
from tests.support.task_topic import KAFKA_TIME, Topic, files_below, plan, read as read_files, report_of, written

__all__ = ["plan", "written"]
QUICK = ReadLimits(retry_timeout_s=0.3, fetch_wait_ms=10)
PARTITIONS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400)), max_size=8)


def ranges(*spans: tuple[int, int]) -> list[OffsetRange]:
    return [OffsetRange(TopicPartition("a", 1, p), start, end) for p, (start, end) in enumerate(spans)]


# --- shares


@given(PARTITIONS, st.integers(1, 9))
def test_shares_hold_each_offset_once_and_none_more_than_its_part(sizes: list[tuple[int, int]], tasks: int) -> None:
    wanted = ranges(*[(start, start + size) for start, size in sizes])
    shares = share_ranges(wanted, tasks)
    held = [(r.part.partition, at) for share in shares for r in share for at in range(r.start, r.end)]
    assert held == [(r.part.partition, at) for r in wanted for at in range(r.start, r.end)]
    assert 1 <= len(shares) <= tasks
    part = -(-len(held) // tasks)
    assert all(sum(r.end - r.start for r in share) == part for share in shares[:-1])
    assert all(len({r.part for r in share}) == len(share) for share in shares), "a reader takes a partition once"


# --- the driver's check


def range_read(partition: int, span: Span, records: int, missing: dict[str, int]) -> RangeRead:
    return RangeRead(OffsetRange(TopicPartition("a", 1, partition), *span), records, missing)


def report(*read: RangeRead, counted: int) -> Report:
    return Report(ranges_read=list(read), counts={("a", 0): Counts(read=counted, rows=counted)})


@pytest.mark.parametrize(
    ("read", "counted", "wrong"),
    [
        ([range_read(0, (0, 6), 6, {}), range_read(0, (6, 10), 3, {"control": 1})], 9, None),
        ([range_read(0, (0, 6), 6, {})], 6, r"asked for offsets \[\(0, 10\)\], the tasks read \[\(0, 6\)\]"),
        ([range_read(0, (0, 6), 6, {}), range_read(0, (5, 10), 5, {})], 11, "read twice"),
        ([range_read(0, (0, 10), 10, {}), range_read(1, (0, 2), 2, {})], 10, r"\('a', 1\): asked for offsets \[\]"),
        ([range_read(0, (0, 10), 10, {})], 9, "10 records were fetched, 9 were counted"),
        ([range_read(0, (0, 10), 9, {})], 9, "unaccounted for"),
        ([], 0, "the tasks read"),
    ],
)
def test_each_offset_is_read_once_and_each_record_counted(
    read: list[RangeRead], counted: int, wrong: str | None
) -> None:
    found = report(*read, counted=counted)
    found = Report.from_json(found.to_json())
    if wrong is None:
        check_ranges_read(found, ranges((0, 10), (4, 4)))
    else:
        with pytest.raises(AssertionError, match=wrong):
            check_ranges_read(found, ranges((0, 10), (4, 4)))


# --- a task


def reading(brokers: object, shares: Sequence[Sequence[OffsetRange]], limits: ReadLimits = QUICK) -> ReadPlan:
    address = ClusterAddress(brokers, timeout_s=2)  # type: ignore[arg-type]
    return pickle.loads(pickle.dumps(ReadPlan(address, Metadata(), {}, ColumnChoice(), limits, shares)))


def reported(plan: TaskPlan, what: ReadPlan, task: int) -> Report:
    values = iter(())
    (report,) = range_task.run_partition(task, values, plan, what)
    return Report.from_json(report)


def test_two_tasks_with_half_of_the_offsets_each_report_what_one_with_all_rows_does(
    written: Topic, plan: TaskPlan, tmp_path: Path
) -> None:
    at_ms, held = int(KAFKA_TIME.timestamp() * 1000), dict[Source, list[Rec]]()
    for topic, p, offset, value in sorted(written.records, key=lambda one: one[:3]):
        held.setdefault((topic, p), []).append(Rec(offset, at_ms, f"{p}-{offset}".encode(), value))
    fake = Fake({source: [Raw(tuple(records), 0, len(records), "lz4")] for source, records in held.items()})
    wanted = [OffsetRange(TopicPartition(topic, 1, p), 0, 350) for topic, p in sorted(held)]
    mine = dataclasses.replace(plan, table=str(tmp_path / "mine"), dead_letters=str(tmp_path / "d"))
    with fake.running() as brokers:
        shares = share_ranges(wanted, 2)
        found = merge_reports(reported(mine, reading(brokers, shares), task) for task in range(2))
    check_ranges_read(found, wanted)
    expected = report_of(written, plan)
    assert found.counts == expected.counts
    for mine_at, plan_at, name in (
        (mine.table, plan.table, "files"), (mine.dead_letters, plan.dead_letters, "dead_letter_files"),
    ):  # fmt: skip
        rows, wanted_rows = read_files(mine_at, getattr(found, name)), read_files(plan_at, getattr(expected, name))
        assert sorted(rows.to_pylist(), key=str) == sorted(wanted_rows.to_pylist(), key=str)
    assert found.seconds["fetch"] > 0
    assert [len(share) for share in shares] == [2, 2], "the second of three partitions is in both"


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (ErrorCode.OFFSET_OUT_OF_RANGE, "LostRecords", "the log does not hold it"),
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "AccessDenied", "give the user of kafka.security READ on topic clicks"),
        (ErrorCode.UNKNOWN_TOPIC_ID, "TopicGone", "does not exist"),
    ],
)
def test_a_lasting_error_is_in_the_report_and_leaves_no_staged_file(
    written: Topic, plan: TaskPlan, error: ErrorCode, kind: str, message: str
) -> None:
    at_ms = int(KAFKA_TIME.timestamp() * 1000)
    records = [Rec(o, at_ms, None, value) for t, p, o, value in written.records if (t, p) == ("clicks", 0)]

    def say(asked: PartitionFetch) -> PartitionReply:
        return PartitionReply(error) if asked.offset >= 100 else PartitionReply()

    log = [Raw(tuple(records[at : at + 50]), at, at + 50) for at in range(0, 350, 50)]
    fake = Fake({("clicks", 0): log}, say=say)
    wanted = [OffsetRange(TopicPartition("clicks", 1, 0), 0, 350)]
    limits = dataclasses.replace(QUICK, fetch_bytes=1, rows=20)
    with fake.running() as brokers:
        found = reported(plan, reading(brokers, [wanted], limits), 0)
    (failure,) = found.read_failures
    assert failure.kind == kind
    assert message in failure.message
    assert not found.files
    assert files_below(plan.table) == []


def test_a_passing_error_fails_the_task(plan: TaskPlan) -> None:
    fake = Fake({("a", 0): []}, say=lambda _: PartitionReply(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    with fake.running() as brokers, pytest.raises(Unavailable, match="NOT_LEADER"):
        reported(plan, reading(brokers, [ranges((0, 10))]), 0)


# --- the configuration


def test_the_reader_gets_what_the_configuration_says() -> None:
    options = {"client.rack": "a-1", "client.id": "team", "fetch.max.bytes": 1_000_000}
    kafka = Kafka.model_validate({
        "bootstrap_servers": "one:9092, [::1]:9093", "reader": "native", "options": options, "fetch_max_wait": "50 ms",
        "request_timeout": "5 s",
    })  # fmt: skip
    address, limits = kafka.address, native_kafka.limits(kafka, 777)
    assert [str(one) for one in address.bootstrap] == ["one:9092", "[::1]:9093"]
    assert (address.client_id, address.rack, address.timeout_s) == ("team", "a-1", 5)
    assert (limits.rows, limits.fetch_bytes, limits.fetch_wait_ms) == (777, 1_000_000, 50)
    assert limits.buffer_bytes == 16 * 2**20
    assert native_kafka.limits(kafka, 777, 5).buffer_bytes == 5
    assert limits.retry_timeout_s == 60, "never sooner than a slow broker answers"


def test_an_option_that_only_the_consumer_of_spark_knows_is_refused() -> None:
    settings = {"bootstrap_servers": "a:1", "options": {"max.poll.records": 5}}
    Kafka.model_validate({**settings, "reader": "spark"})
    with pytest.raises(ValidationError, match=r"max\.poll\.records, which only .*`reader: spark`"):
        Kafka.model_validate({**settings, "reader": "native"})


def test_topic_ids_are_read_as_kafka_writes_them() -> None:
    assert native_kafka.topic_ids({"a": "AAAAAAAAAAAAAAAAAAAABw"}) == {"a": UUID(int=7)}


@pytest.mark.parametrize("reader", ["native", "spark"])
@pytest.mark.parametrize("servers", ["one", "one:9092,", "PLAINTEXT://one:9092"])
def test_an_address_that_is_none_is_an_error_of_the_configuration(reader: str, servers: str) -> None:
    with pytest.raises(ValidationError, match="is no broker: write host:port"):
        Kafka.model_validate({"bootstrap_servers": servers, "reader": reader})


@pytest.mark.parametrize("reader", ["native", "spark"])
def test_a_fetch_of_no_bytes_is_one_of_a_record_batch(reader: str) -> None:
    settings = {"bootstrap_servers": "one:9092", "reader": reader, "options": {"fetch.max.bytes": 0}}
    assert native_kafka.limits(Kafka.model_validate(settings), 1).fetch_bytes == 1
