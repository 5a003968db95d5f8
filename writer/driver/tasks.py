"""Runs the tasks of a micro-batch in Spark: their input, their execution, their reports."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import bucketers
from bucketers import Timed, interval
from writer.batch import task
from writer.batch.task_report import Report
from writer.commit import builder
from writer.commit.batch_limits import task_count
from writer.commit.task_plan import build_task_plan
from writer.config import pipelines as config
from writer.core.files import BucketKey
from writer.core.offsets import OffsetRange, Source
from writer.scaling.spark_executors import slots
from writer.schemas.format_detection import DetectedFormat
from writer.schemas.tracker import Schemas
from writer.sealing.rules import is_closed
from writer.status.progress import Progress
from writer.storage.base import S3Settings
from writer.table.table import PipelineTable

KAFKA_OPTIONS = {
    # Spark asks the broker for both ends of the log at each poll. At Kafka's 500 records a poll that is most of the
    # time a fetch takes; what one poll can hold is bounded by max.partition.fetch.bytes all the same.
    "kafka.max.poll.records": "5000",
    # Records of a transaction that was aborted never become rows; those of an open one wait for its end.
    "kafka.isolation.level": "read_committed",
    "kafka.allow.auto.create.topics": "false",  # a consumer that asks for a deleted topic must not create it
}
_PATIENCE_MIN = timedelta(seconds=30)  # Kafka's own request.timeout.ms: what is shorter would fail a slow broker
# Blocks come and go by the megabyte. One heap for Arrow and the decoder, which keeps what is freed for the next block,
# spares the kernel handing out cleared pages over and over: an eighth of a task's processor time. glibc's names.
WORKER_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}
_OUTAGE = timedelta(minutes=3)  # three questions of 60 s: Spark's and Kafka's own values, where the driver asks
_BATCH_BYTES = 16 * 2**20  # larger ones leave the processor's caches: decoding slows down
_UNMEASURED = 2**31 - 1  # the one value that makes Spark leave out the measuring


def kafka_timeouts(request_timeout: timedelta) -> dict[str, str]:
    """Return the time-outs of Spark's Kafka consumers, so that a task whose partition is gone ends in bounded time.

    A request may take `request_timeout`, at least 30 s, and so may the question where a log begins and ends. A poll may
    take twice as long: a consumer that has just come asks for the cluster, the leader and the position first. A try of
    a task on a partition that is gone takes one poll and one question: 90 s, and six minutes with Spark's four tries.
    Kafka's and Spark's own values make that three minutes, and twelve. Between batches Spark waits for a silent broker
    as long as it does with these: three minutes or more.
    """
    timeout = max(request_timeout, _PATIENCE_MIN)
    timeout_ms = int(timeout.total_seconds() * 1000)
    return {
        "kafka.request.timeout.ms": str(timeout_ms),
        "kafka.default.api.timeout.ms": str(timeout_ms),  # of no less than a request, or Kafka's client refuses it
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
        records, size = records_max, _BATCH_BYTES
    else:
        size = _UNMEASURED
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(records),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(size),
    }


def handed_over(frame: Any) -> int:
    """Return how many records Spark's scan gave to the tasks of a frame that was collected, by Spark's own count.

    From the metric of the executed plan's leaf. Spark adds up the tasks that succeeded, each partition once, however
    often it was tried.
    """
    return int(_scan(frame).metrics().apply("numOutputRows").value())


def ranges(frame: Any) -> int:
    """Return in how many pieces Spark's scan read what it gave to the tasks of a frame that was collected."""
    return int(_scan(frame).execute().getNumPartitions())  # planned and run before: only counted


def _scan(frame: Any) -> Any:
    plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark shows no metrics
    leaves = plan.collectLeaves()
    assert leaves.size() == 1, f"one scan feeds the tasks, but the plan has {leaves.size()}: {plan}"
    return leaves.apply(0)


_BYTES_PER_ROW_GUESS = 60  # of Parquet, until a commit has shown it


@dataclass(frozen=True)
class BatchDecision:
    """What is decided once for a batch, so that a task that is tried again decides the same."""

    now: datetime
    epoch: int
    starts: Mapping[Source, int]  # below these offsets the table has the records
    incarnations: Mapping[str, int]
    closed_until: datetime | None  # buckets that end by then are closed


def usable_slots(slots: int, pipelines: int) -> int:
    """Return how many tasks a batch may have at most: where a driver has several pipelines, one slot fewer than all.

    Spark's fair scheduler ends no task to make place for another. So that a pipeline whose tasks hang holds up no other
    one, a slot stays that it cannot take. Of a single slot nothing can stay; two pipelines that hang may take all.
    """
    return max(1, slots - 1) if pipelines > 1 else slots


Turn = Callable[[int, Callable[[], object]], AbstractContextManager[Callable[[float], None]]]


@contextmanager
def _at_once(_slots: int, _on_wait: Callable[[], object]) -> Iterator[Callable[[float], None]]:
    yield lambda _: None


class Tasks:
    """Runs the tasks of one batch after the other, and remembers how large records and rows are."""

    def __init__(
        self, settings: config.Pipeline, tables: Sequence[PipelineTable], schemas: Schemas, found: DetectedFormat,
        progress: Progress, s3: S3Settings | None, pipelines: int = 1, turn: Turn | None = None,
    ) -> None:  # fmt: skip
        """`tables`: the table, and the one of its late rows, where they go there. `pipelines`: of the driver.

        `turn` waits, with Spark's slots and what to call then, until the tasks may run; None: they always may.
        """
        self._turn = turn or _at_once
        self._settings, self._tables, self._schemas, self._found = settings, tables, schemas, found
        self._progress, self._s3, self._pipelines = progress, s3, pipelines
        self._bucketer = bucketers.build(settings.bucket)
        self._only_topic = settings.topics[0] if len(settings.topics) == 1 else None
        self.bytes_per_row: float = _BYTES_PER_ROW_GUESS
        self._record_bytes: float | None = None  # mean of the last batch
        self._record_bytes_max = 0.0  # mean of the heaviest Arrow batch since the start

    def learn(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Learn from commits how large a row is."""
        self.bytes_per_row = builder.bytes_per_row(recent) or self.bytes_per_row

    def run(
        self, frame: Any, frozen: BatchDecision, committing: Sequence[OffsetRange], *, behind: bool = False
    ) -> Report:
        """Run the tasks, and again when they met schemas that the plan does not know yet.

        `behind`: more waits than the batch holds, so every slot that it may take is to work.
        """
        self._schemas.forget_rejected(time.monotonic())
        before, expected = slots(frame.sparkSession), sum(r.end - r.start for r in committing)
        size, partitions = self._settings.roll.target_file_size, sum(r.end > r.start for r in committing)
        usable = usable_slots(before, self._pipelines)
        tasks = task_count(expected * self.bytes_per_row, size, usable, partitions=partitions, behind=behind)
        limits = arrow_limits(self._settings.memory.batch_records, self._record_bytes, self._record_bytes_max)
        for setting, value in limits.items():
            frame.sparkSession.conf.set(setting, value)  # the query's own session
        topic = [] if self._only_topic else ["topic"]
        beside = ["headers"] if self._found.reads_headers() else []
        records = frame.select(*topic, "partition", "offset", "timestamp", "key", "value", *beside).coalesce(tasks)
        while True:
            carried = records.mapInArrow(partial(task.run, plan=self._plan(frozen)), "report string")
            with self._turn(before, partial(self._progress.entered, "queue")) as took:
                self._progress.entered("tasks")
                rows = carried.collect()
                report = builder.merged(Report.from_json(row.report) for row in rows)
                took(sum(report.took_s))
            if not report.lacks_schemas:
                builder.check_handed_over(report, handed_over(carried))
                report.ranges, report.slots = ranges(carried), round((before + slots(frame.sparkSession)) / 2)
                read = sum(counts.read for counts in report.counts.values())
                self._record_bytes = report.value_bytes / read if read else self._record_bytes
                self._record_bytes_max = max(self._record_bytes_max, report.record_bytes_max)
                return report
            self._schemas.learn_from(report)
            self._progress.admitted(self._schemas.plan.schemas)
            self.grow(frozen.epoch)

    def closed_between(self, report: Report, before: datetime | None, after: datetime | None) -> set[BucketKey]:
        """Return the buckets of a report that are closed by `after`, and were not by `before`: their rows are late."""
        spans = {file.bucket: interval(self._bucketer, file.bucket) for file in report.files}
        ends = {bucket: span[1] for bucket, span in spans.items() if span is not None}
        return {bucket for bucket, end in ends.items() if is_closed(end, after) and not is_closed(end, before)}

    def grow(self, epoch: int) -> None:
        """Give the tables the columns that rows have by now, before any file has them. Raises Fenced, CommitFailed."""
        table, *late = self._tables
        table.grow(list(self._schemas.columns()), epoch)
        for one in late:
            one.grow(list(self._schemas.columns()))

    def _plan(self, frozen: BatchDecision) -> task.TaskPlan:
        settings, found = self._settings, self._found
        return build_task_plan(
            settings, self._s3, self._schemas.plan, found.wire, found.unit, now=frozen.now,
            record_columns=self._schemas.record_columns, prefix=f"{frozen.epoch:06d}",
            incarnations=frozen.incarnations, frontier=frozen.starts,
            topic=self._only_topic, hidden=self._tables[0].hidden,
            closed_until=frozen.closed_until if settings.seal.enabled and isinstance(self._bucketer, Timed) else None,
        )  # fmt: skip
