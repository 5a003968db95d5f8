"""Runs the tasks of a micro-batch in Spark, again when they met schemas that the plan does not know yet."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from headrace import bucketers
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.commit import builder
from headrace.writer.commit.batch_limits import route_spread_max, task_count
from headrace.writer.commit.closed_buckets import buckets_closed_between, closes_buckets
from headrace.writer.commit.privacy import record_privacy
from headrace.writer.commit.targets import Targets, add_targets
from headrace.writer.commit.task_plan import build_task_plan
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.driver.readers.native_reader import NativeReader
from headrace.writer.driver.readers.spark_reader import SparkReader
from headrace.writer.offsets.log_check import LogQuestions
from headrace.writer.scaling.spark_executors import slots
from headrace.writer.schemas.format_detection import DetectedFormat
from headrace.writer.schemas.tracker import Schemas
from headrace.writer.status.progress import Progress
from headrace.writer.storage.requests.counts import REQUEST_COUNTS
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.log.foreign_writes import PrivacyChanged
from headrace.writer.table.table import PipelineTable

# Of Parquet, until a commit has shown it.
_BYTES_PER_ROW_GUESS = 60


@dataclass(frozen=True)
class BatchDecision:
    """What is decided once for a batch, so that a task that is tried again decides the same.

    `starts`: below these offsets the table has the records. `closed_until`: buckets that end by then are closed;
    `closed_targets`: the same for tables of a route, by number. `seen`: how far the event times of all partitions have
    come, by the table's log. `marks`: what the logs are known by where the table ends.
    """

    now: datetime
    epoch: int
    starts: Mapping[Source, int]
    incarnations: Mapping[str, int]
    closed_until: datetime | None
    closed_targets: Mapping[int, datetime] = field(default_factory=dict)
    seen: datetime | None = None
    marks: Mapping[Source, LogMark] = field(default_factory=dict)


def usable_slots(slots: int, pipelines: int) -> int:
    """Return how many tasks a batch may have at most: where a driver has several pipelines, one slot fewer than all.

    Spark's fair scheduler ends no task to make place for another. So that a pipeline whose tasks hang holds up no other
    one, a slot stays that it cannot take. Of a single slot nothing can stay; two pipelines that hang may take all.
    """
    return max(1, slots - 1) if pipelines > 1 else slots


class Reader(Protocol):
    """Brings records of Kafka to the tasks of a batch.

    `cost_by_partition`: each partition costs a task the same, however few its records are.
    """

    cost_by_partition: bool

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
        """Prepare the tasks of a batch. Returns what runs them by a plan, adds their reports up and checks the sum.

        `frame`: the batch as Spark's source has it. `count`: of tasks. `marks`: what the logs are known by where the
        table ends; what runs the tasks raises LogMoved where they do not continue there. `headers`: the tasks need
        them. `raw`: they need all that a record has.
        """


def build_reader(
    kafka: Kafka, settings: Pipeline, topic_ids: Callable[[], Mapping[str, str]], logs: LogQuestions
) -> Reader:
    """Return the reader that the configuration names. `topic_ids`: of the incarnations that are read, by topic."""
    records_max = settings.arrow_batch_records
    with_topic = settings.topics.only is None
    build_native_reader = partial(
        NativeReader, kafka, records_max, settings.arrow_batch_bytes, topic_ids, with_topic=with_topic
    )
    if kafka.reader == "native":
        return build_native_reader()
    return SparkReader(records_max, logs, topic_ids, build_native_reader, with_topic=with_topic)


Turn = Callable[[int, Callable[[], object]], AbstractContextManager[Callable[[float], None]]]


@contextmanager
def _take_turn_at_once(_slots: int, _on_wait: Callable[[], object]) -> Iterator[Callable[[float], None]]:
    yield lambda _: None


class Tasks:
    """Runs the tasks of one batch after the other, and remembers how large records and rows are."""

    def __init__(
        self,
        settings: Pipeline,
        tables: Sequence[PipelineTable],
        schemas: Schemas,
        detected_format: DetectedFormat,
        progress: Progress,
        stores: StoreSettings | None,
        reader: Reader,
        count_pipelines: Callable[[], int] = lambda: 1,
        turn: Turn | None = None,
        targets: Targets | None = None,
    ) -> None:
        """`tables`: the table, and the one of its late rows, where they go there.

        `count_pipelines` returns how many pipelines the driver has. `turn` waits, with Spark's slots and what to call
        then, until the tasks may run; None: they always may.
        """
        self._settings = settings
        self._tables = tables
        self._schemas = schemas
        self._format = detected_format
        self._progress = progress
        self._stores = stores
        self._reader = reader
        self._count_pipelines = count_pipelines
        self._turn = turn or _take_turn_at_once
        self._targets = targets
        self._bucketer = bucketers.build(settings.bucket)
        self.bytes_per_row: float = _BYTES_PER_ROW_GUESS

    def learn(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Learn from commits how large a row is."""
        self.bytes_per_row = builder.bytes_per_row(recent) or self.bytes_per_row

    def run(
        self,
        frame: Any,
        decision: BatchDecision,
        ranges: Sequence[OffsetRange],
        *,
        behind: bool = False,
        once: bool = False,
    ) -> Report:
        """Run the tasks, and again when they met schemas that the plan does not know yet.

        `behind`: more waits than the batch holds, so every slot that it may take is to work. `once`: it is one of
        `--once`, which spreads a route's batch only as far as its tables keep large files.
        """
        now_s = time.monotonic()
        self._schemas.forget_rejections(now_s)
        if self._targets is not None:
            self._targets.forget_rejected_schemas(now_s)
        slots_before = slots(frame.sparkSession)
        count = self._task_count(ranges, slots_before, behind=behind, once=once)
        run_tasks = self._reader.prepare_tasks(
            frame,
            ranges,
            count,
            decision.marks,
            headers=self._reads_headers,
            raw=self._settings.raw_place is not None,
        )
        while True:
            with self._turn(slots_before, partial(self._progress.enter_phase, "queue")) as add_task_seconds:
                self._progress.enter_phase("tasks")
                report = run_tasks(self._plan(decision))
                REQUEST_COUNTS.add_tally(report.requests)
                add_task_seconds(sum(report.took_s))
            if not report.lacks_schemas:
                report.slots = round((slots_before + slots(frame.sparkSession)) / 2)
                if self._targets is not None:
                    self._targets.keep(report)
                self.count_schemas()
                return report
            self._schemas.learn_from(report)
            if self._targets is not None:
                self._targets.learn_from(report)
            self.grow(decision.epoch)

    def _task_count(self, ranges: Sequence[OffsetRange], slot_count: int, *, behind: bool, once: bool) -> int:
        """Return how many tasks a batch has. `slot_count`: that Spark has now."""
        offsets = sum(r.count for r in ranges)
        partitions = 0
        if self._reader.cost_by_partition:
            partitions = sum(r.end > r.start for r in ranges)
        spread_max: int | None = None
        if once and self._targets is not None:
            spread_max = route_spread_max(offsets, self._targets.count)
        return task_count(
            offsets * self.bytes_per_row,
            self._settings.roll.target_file_size,
            usable_slots(slot_count, self._count_pipelines()),
            partitions=partitions,
            behind=behind,
            spread_max=spread_max,
        )

    def count_schemas(self) -> None:
        """Note the schemas that are known; rejected are those, too, that a table of a route rejects."""
        of_targets = {} if self._targets is None else self._targets.rejected_schemas()
        self._progress.set_schemas({**self._schemas.plan.schemas, **of_targets})

    def count_closed_buckets(self, report: Report, before: BatchDecision, after: BatchDecision) -> int:
        """Count the buckets of a report that are closed by `after`, and were not by `before`: their rows are late."""
        if self._targets is not None:
            return len(self._targets.closed_between(report, before.closed_targets, after.closed_targets))
        return len(buckets_closed_between(report.files, self._bucketer, before.closed_until, after.closed_until))

    def grow(self, epoch: int) -> None:
        """Give the tables the columns that rows have by now, before any file has them. Raises Fenced, CommitFailed.

        And enter in the log what schemas said is to be protected, before rows are.
        """
        table, *late_tables = self._tables
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
        for late_table in late_tables:
            late_table.grow(list(self._schemas.columns()))

    def _plan(self, decision: BatchDecision) -> TaskPlan:
        settings = self._settings
        detected = self._format
        plan = build_task_plan(
            settings,
            self._stores,
            self._schemas.plan,
            detected.wire,
            detected.unit,
            now=decision.now,
            record_columns=self._schemas.record_columns,
            prefix=f"{decision.epoch:06d}",
            incarnations=decision.incarnations,
            frontier=decision.starts,
            topic=settings.topics.only,
            hidden=self._tables[0].hidden,
            folder=self._tables[0].folder,
            raw=settings.raw_place,
            seen=decision.seen,
            unit_origin=detected.unit_origin,
            closed_until=decision.closed_until if closes_buckets(settings, self._bucketer) else None,
        )
        return plan if self._targets is None else add_targets(plan, self._targets, decision.closed_targets)

    @property
    def _reads_headers(self) -> bool:
        return self._format.reads_headers() or (self._targets is not None and self._targets.needs_headers)
