"""Spark's Kafka source as what a batch's tasks read: `kafka.reader: spark`."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from headrace.writer.batch import task
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.clients import native_kafka
from headrace.writer.commit import builder
from headrace.writer.core import logging
from headrace.writer.core.errors import LogMoved
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source, source_name
from headrace.writer.driver.readers.native_reader import NativeReader
from headrace.writer.driver.restart_policy import causes, java_trace
from headrace.writer.kafka_reader.errors import OldRecordFormat, UnsupportedBroker
from headrace.writer.offsets.log_check import LogQuestions

KAFKA_OPTIONS = {
    # Spark asks the broker for both ends of the log at each poll. At Kafka's 500 records a poll that is most of the
    # time a fetch takes; what one poll can hold is bounded by max.partition.fetch.bytes all the same.
    "kafka.max.poll.records": "5000",
    # Records of a transaction that was aborted never become rows; those of an open one wait for its end.
    "kafka.isolation.level": "read_committed",
    # A consumer that asks for a deleted topic must not create it.
    "kafka.allow.auto.create.topics": "false",
}
# Kafka's own request.timeout.ms: what is shorter would fail a slow broker.
_REQUEST_TIMEOUT_MIN = timedelta(seconds=30)
# Three questions of 60 s: Spark's and Kafka's own values, where the driver asks.
_OUTAGE = timedelta(minutes=3)
# Larger ones leave the processor's caches: decoding slows down.
_BATCH_BYTES = 16 * 2**20
_OVERFLOW = "ArithmeticException: long overflow"
# A class of Spark that makes a row of a record.
_ROW_CONVERTER = "KafkaRecordToRowConverter"
# Since Spark 4.2 the overflow has a name of its own.
_MALFORMED_TIMESTAMP = "KAFKA_MALFORMED_RECORD_TIMESTAMP"
# The one value that makes Spark leave out the measuring.
_UNMEASURED = 2**31 - 1


def kafka_timeouts(request_timeout: timedelta) -> dict[str, str]:
    """Return the time-outs of Spark's Kafka consumers, so that a task whose partition is gone ends in bounded time.

    A request may take `request_timeout`, at least 30 s, and so may the question where a log begins and ends. A poll may
    take twice as long: a consumer that has just come asks for the cluster, the leader and the position first. A try of
    a task on a partition that is gone takes one poll and one question: 90 s, and six minutes with Spark's four tries.
    Kafka's and Spark's own values make that three minutes, and twelve. Between batches Spark waits for a silent broker
    as long as it does with these: three minutes or more.
    """
    timeout = max(request_timeout, _REQUEST_TIMEOUT_MIN)
    timeout_ms = int(timeout.total_seconds() * 1000)
    return {
        "kafka.request.timeout.ms": str(timeout_ms),
        # Kafka's client refuses less than the time-out of a request.
        "kafka.default.api.timeout.ms": str(timeout_ms),
        "kafkaConsumer.pollTimeoutMs": str(2 * timeout_ms),
        "fetchOffset.numRetries": str(max(3, math.ceil(_OUTAGE / timeout))),
    }


def arrow_limits(records_max: int, record_bytes: float | None, record_bytes_max: float = 0) -> dict[str, str]:
    """Return Spark's settings for the Arrow batches of one micro-batch.

    `record_bytes` is the mean of the last micro-batch, `record_bytes_max` the mean of its heaviest Arrow batch.

    With a limit in bytes, Spark measures its buffers after every record, for a third of the JVM's processor time
    (docs/adr/0008-bounded-by-count.md). So only the first micro-batch of a start is measured. Later ones are bounded
    by a count at which records may grow a hundredfold within one micro-batch before Arrow's 2 GiB are reached. If they
    do, the tasks fail, nothing is lost, and the next start measures again. Where one topic's records are so much
    heavier than another's that the count for the mean would not hold them, every micro-batch is measured.
    """
    records = max(1, min(records_max, int(_BATCH_BYTES / max(record_bytes or 1, 1))))
    if record_bytes is None or (records > 1 and records * record_bytes_max > _UNMEASURED / 4):
        records = records_max
        batch_bytes = _BATCH_BYTES
    else:
        batch_bytes = _UNMEASURED
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(records),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(batch_bytes),
    }


class SparkReader:
    """Gives the tasks of a batch the rows of Spark's source, and remembers how large records are."""

    cost_by_partition = True

    def __init__(
        self,
        records_max: int,
        logs: LogQuestions,
        topic_ids: Callable[[], Mapping[str, str]],
        build_native_reader: Callable[[], NativeReader],
        *,
        with_topic: bool,
    ) -> None:
        """`records_max`: of an Arrow batch. `with_topic`: the records are of several topics.

        `logs`: is asked what the logs are known by, which Spark's source does not say. `topic_ids`: of the incarnations
        that the pipeline reads now, as Kafka writes them. `build_native_reader`: for batches with a
        timestamp that Spark's source cannot hand over.
        """
        self._logs = logs
        self._topic_ids = topic_ids
        self._records_max = records_max
        self._topic_columns = ["topic"] if with_topic else []
        self._build_native_reader = build_native_reader
        # Mean of the last batch.
        self._record_bytes: float | None = None
        # Mean of the heaviest Arrow batch since the start.
        self._record_bytes_max = 0.0

    def prepare_tasks(
        self,
        frame: Any,
        ranges: Sequence[OffsetRange],
        count: int,
        marks: Mapping[Source, LogMark],
        *,
        headers: bool,
        raw: bool,
    ) -> Callable[[TaskPlan], Report]:
        """Prepare the tasks of a batch. Returns what runs them by a plan, and adds their reports up.

        Raises LogMoved where the logs do not continue what `marks` describe, ReadFailed.
        """
        limits = arrow_limits(self._records_max, self._record_bytes, self._record_bytes_max)
        # These are settings of the query's own session.
        for setting, value in limits.items():
            frame.sparkSession.conf.set(setting, value)
        columns = [*self._topic_columns, "partition", "offset", "timestamp", "key", "value"]
        if raw:
            columns.append("timestampType")
        if headers or raw:
            columns.append("headers")
        records = frame.select(*columns)
        starts = {r.part.source: r.start for r in ranges if r.count}
        ends = {r.part.source: r.end for r in ranges if r.count}
        self._check_log(starts, marks)
        run_by_spark = partial(self._run, records.coalesce(count), ends, self._marks_before(ends))
        run_natively: Callable[[TaskPlan], Report] | None = None

        def run(plan: TaskPlan) -> Report:
            nonlocal run_natively
            if run_natively is not None:
                return run_natively(plan)
            try:
                return run_by_spark(plan)
            except Exception as error:
                if not _is_beyond_spark(error):
                    raise
            # Spark's source counts microseconds, and fails its task where these are beyond int64.
            logging.warning("batch_read_natively", reason="Spark's source cannot count a Kafka timestamp of it")
            native_reader = self._build_native_reader()
            run_natively = native_reader.prepare_tasks(frame, ranges, count, marks, headers=headers, raw=raw)
            return run_natively(plan)

        return run

    def _marks_before(self, offsets: Mapping[Source, int]) -> Mapping[Source, LogMark]:
        """Ask what the logs are known by at some offsets; nothing of brokers or logs that are too old to say it."""
        try:
            return self._logs.marks_before(offsets, native_kafka.topic_ids(self._topic_ids()))
        # Each start logs it.
        except (UnsupportedBroker, OldRecordFormat):
            return {}

    def _check_log(self, offsets: Mapping[Source, int], marks: Mapping[Source, LogMark]) -> set[Source]:
        """Return the partitions whose logs still have the batches that the marks describe.

        Raises LogMoved where a log has another batch before its offset.
        """
        marks_now = self._marks_before({source: offset for source, offset in offsets.items() if source in marks})
        for source, mark in marks_now.items():
            if mark.contradicts(marks[source]):
                raise LogMoved(
                    f"the log of {source[0]}/{source[1]} has other records before offset {offsets[source]} than were "
                    "read"
                )
        return set(marks_now)

    def _run(self, records: Any, ends: Mapping[Source, int], marks: Mapping[Source, LogMark], plan: TaskPlan) -> Report:
        reports = records.mapInArrow(partial(task.run_spark_rows, plan=plan), "report string")
        report = builder.merge_reports(Report.from_json(row.report) for row in reports.collect())
        if report.lacks_schemas:
            return report
        # Asked before and after the tasks: what they read in between is of the same log.
        lost_sources = marks.keys() - self._check_log(ends, marks)
        if lost_sources:
            raise LogMoved(f"the log of {source_name(min(lost_sources))} lost records while they were read")
        report.marks = {source: mark for source, mark in marks.items() if not mark.is_damaged}
        scan = _find_scan(reports)
        builder.check_record_count(report, _scanned_records(scan))
        report.ranges = _count_scan_partitions(scan)
        record_count = sum(counts.read for counts in report.counts.values())
        if record_count:
            self._record_bytes = report.value_bytes / record_count
        self._record_bytes_max = max(self._record_bytes_max, report.record_bytes_max)
        return report


def _is_beyond_spark(error: Exception) -> bool:
    """Return whether Spark's source failed over a timestamp that it cannot count in microseconds."""
    text = causes(error)
    if _MALFORMED_TIMESTAMP in text:
        return True
    return _OVERFLOW in text and _ROW_CONVERTER in f"{text}\n{java_trace(error)}"


def _scanned_records(scan: Any) -> int:
    """Return how many records Spark's scan gave to the tasks of a frame that was collected, by Spark's own count.

    From the metric of the executed plan's leaf. Spark adds up the tasks that succeeded, each partition once, however
    often it was tried.
    """
    return int(scan.metrics().apply("numOutputRows").value())


def _count_scan_partitions(scan: Any) -> int:
    """Return in how many partitions Spark's scan read what it gave to the tasks of a frame that was collected."""
    # It was planned and run before: the partitions are only counted.
    return int(scan.execute().getNumPartitions())


def _find_scan(frame: Any) -> Any:
    plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark shows no metrics
    leaves = plan.collectLeaves()
    assert leaves.size() == 1, f"one scan feeds the tasks, but the plan has {leaves.size()}: {plan}"
    return leaves.apply(0)
