"""Runs the tasks of a micro-batch in Spark, again when they met schemas that the plan does not know yet."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import bucketers
from writer.batch.plan import TaskPlan
from writer.batch.task_report import Report
from writer.commit import builder
from writer.commit.batch_limits import task_count
from writer.commit.closed_buckets import buckets_closed_between, closes_buckets
from writer.commit.privacy import record_privacy
from writer.commit.targets import Targets, add_targets
from writer.commit.task_plan import build_task_plan
from writer.config.connections import Kafka
from writer.config.pipeline import Pipeline
from writer.core.offsets import LogMark, OffsetRange, Source
from writer.driver.readers.native_reader import NativeReader
from writer.driver.readers.spark_reader import SparkReader
from writer.offsets.log_check import LogQuestions
from writer.scaling.spark_executors import slots
from writer.schemas.format_detection import DetectedFormat
from writer.schemas.tracker import Schemas
from writer.status.progress import Progress
from writer.storage.base import S3Settings
from writer.table.log.foreign_writes import PrivacyChanged
from writer.table.table import PipelineTable

_BYTES_PER_ROW_GUESS = 60  # of Parquet, until a commit has shown it


@dataclass(frozen=True)
class BatchDecision:
    """What is decided once for a batch, so that a task that is tried again decides the same."""

    now: datetime
    epoch: int
    starts: Mapping[Source, int]  # below these offsets the table has the records
    incarnations: Mapping[str, int]
    closed_until: datetime | None  # buckets that end by then are closed
    closed_targets: Mapping[int, datetime] = field(default_factory=dict)  # the same for tables of a route, by number
    seen: datetime | None = None  # how far the event times of all partitions have come, by the table's log
    marks: Mapping[Source, LogMark] = field(default_factory=dict)  # what the logs are known by where the table ends


def usable_slots(slots: int, pipelines: int) -> int:
    """Return how many tasks a batch may have at most: where a driver has several pipelines, one slot fewer than all.

    Spark's fair scheduler ends no task to make place for another. So that a pipeline whose tasks hang holds up no other
    one, a slot stays that it cannot take. Of a single slot nothing can stay; two pipelines that hang may take all.
    """
    return max(1, slots - 1) if pipelines > 1 else slots


class Reader(Protocol):
    """Brings records of Kafka to the tasks of a batch."""

    cost_by_partition: bool  # each partition costs a task the same, however few its records are

    def tasks_of(
        self,
        frame: Any,
        committing: Sequence[OffsetRange],
        count: int,
        marks: Mapping[Source, LogMark],
        *,
        headers: bool,
        raw: bool,
    ) -> Callable[[TaskPlan], Report]:
        """Prepare the tasks of a batch. Returns what runs them by a plan, adds their reports up and checks the sum.

        `frame`: the batch as Spark's source has it. `count`: of tasks. `marks`: what the logs are known by where the
        table ends; what runs the tasks raises LogMoved where they do not continue there. `headers`: the tasks need
        them. `raw`: they need all that a record has.
        """


def reader_of(
    kafka: Kafka, settings: Pipeline, topic_ids: Callable[[], Mapping[str, str]], logs: LogQuestions
) -> Reader:
    """Return the reader that the configuration names. `topic_ids`: of the incarnations that are read, by topic."""
    records, with_topic = settings.arrow_batch_records, settings.topics.only is None
    natively = partial(NativeReader, kafka, records, topic_ids, with_topic=with_topic)
    if kafka.reader == "native":
        return natively()
    return SparkReader(records, logs, topic_ids, natively, with_topic=with_topic)


Turn = Callable[[int, Callable[[], object]], AbstractContextManager[Callable[[float], None]]]


@contextmanager
def _at_once(_slots: int, _on_wait: Callable[[], object]) -> Iterator[Callable[[float], None]]:
    yield lambda _: None


class Tasks:
    """Runs the tasks of one batch after the other, and remembers how large records and rows are."""

    def __init__(
        self, settings: Pipeline, tables: Sequence[PipelineTable], schemas: Schemas, found: DetectedFormat,
        progress: Progress, s3: S3Settings | None, reader: Reader, pipelines: Callable[[], int] = lambda: 1,
        turn: Turn | None = None,
        targets: Targets | None = None,
    ) -> None:  # fmt: skip
        """`tables`: the table, and the one of its late rows, where they go there. `pipelines`: how many the driver has.

        `turn` waits, with Spark's slots and what to call then, until the tasks may run; None: they always may.
        """
        self._turn, self._targets = turn or _at_once, targets
        self._settings, self._tables, self._schemas, self._found = settings, tables, schemas, found
        self._progress, self._s3, self._reader, self._pipelines = progress, s3, reader, pipelines
        self._bucketer = bucketers.build(settings.bucket)
        self.bytes_per_row: float = _BYTES_PER_ROW_GUESS

    def learn(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Learn from commits how large a row is."""
        self.bytes_per_row = builder.bytes_per_row(recent) or self.bytes_per_row

    def run(
        self, frame: Any, frozen: BatchDecision, committing: Sequence[OffsetRange], *, behind: bool = False
    ) -> Report:
        """Run the tasks, and again when they met schemas that the plan does not know yet.

        `behind`: more waits than the batch holds, so every slot that it may take is to work.
        """
        now_s = time.monotonic()
        self._schemas.forget_rejected(now_s)
        if self._targets is not None:
            self._targets.forget_rejected_schemas(now_s)
        before, expected = slots(frame.sparkSession), sum(r.end - r.start for r in committing)
        size = self._settings.roll.target_file_size
        partitions = sum(r.end > r.start for r in committing) if self._reader.cost_by_partition else 0
        usable = usable_slots(before, self._pipelines())
        count = task_count(expected * self.bytes_per_row, size, usable, partitions=partitions, behind=behind)
        raw = self._settings.raw_place is not None
        tasks = self._reader.tasks_of(frame, committing, count, frozen.marks, headers=self._reads_headers, raw=raw)
        while True:
            with self._turn(before, partial(self._progress.entered, "queue")) as took:
                self._progress.entered("tasks")
                report = tasks(self._plan(frozen))
                took(sum(report.took_s))
            if not report.lacks_schemas:
                report.slots = round((before + slots(frame.sparkSession)) / 2)
                if self._targets is not None:
                    self._targets.keep(report)
                self.count_schemas()
                return report
            self._schemas.learn_from(report)
            if self._targets is not None:
                self._targets.learn_from(report)
            self.grow(frozen.epoch)

    def count_schemas(self) -> None:
        """Note the schemas that are known; rejected are those, too, that a table of a route rejects."""
        of_targets = {} if self._targets is None else self._targets.rejected_schemas()
        self._progress.admitted({**self._schemas.plan.schemas, **of_targets})

    def closed_between(self, report: Report, before: BatchDecision, after: BatchDecision) -> int:
        """Count the buckets of a report that are closed by `after`, and were not by `before`: their rows are late."""
        if self._targets is not None:
            return len(self._targets.closed_between(report, before.closed_targets, after.closed_targets))
        return len(buckets_closed_between(report.files, self._bucketer, before.closed_until, after.closed_until))

    def grow(self, epoch: int) -> None:
        """Give the tables the columns that rows have by now, before any file has them. Raises Fenced, CommitFailed.

        And enter in the log what schemas said is to be protected, before rows are.
        """
        table, *late = self._tables
        while True:
            try:
                record_privacy(table, self._schemas, epoch)
                break
            except PrivacyChanged:
                snapshot = table.snapshot()
                self._schemas.remember(snapshot.protected_paths, snapshot.privacy)
        if self._targets is not None:
            self._targets.grow()
            return
        table.grow(list(self._schemas.columns()), epoch)
        for one in late:
            one.grow(list(self._schemas.columns()))

    def _plan(self, frozen: BatchDecision) -> TaskPlan:
        settings, found = self._settings, self._found
        plan = build_task_plan(
            settings, self._s3, self._schemas.plan, found.wire, found.unit, now=frozen.now,
            record_columns=self._schemas.record_columns, prefix=f"{frozen.epoch:06d}",
            incarnations=frozen.incarnations, frontier=frozen.starts,
            topic=settings.topics.only, hidden=self._tables[0].hidden, folder=self._tables[0].folder,
            raw=settings.raw_place, seen=frozen.seen, unit_origin=found.unit_origin,
            closed_until=frozen.closed_until if closes_buckets(settings, self._bucketer) else None,
        )  # fmt: skip
        return plan if self._targets is None else add_targets(plan, self._targets, frozen.closed_targets)

    @property
    def _reads_headers(self) -> bool:
        return self._found.reads_headers() or (self._targets is not None and self._targets.needs_headers)
