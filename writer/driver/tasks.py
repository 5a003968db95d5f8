"""The tasks of a micro-batch, as the driver sees them: what they are told, how they run in Spark, what they report."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import bucketers
from bucketers import Timed, interval
from writer import commit, config
from writer.ending import task_count
from writer.found import Found
from writer.progress import Progress
from writer.rooms import task
from writer.rooms.columnar import BucketKey
from writer.rooms.report import Report, Source
from writer.scaling.cluster import slots
from writer.schemas import Schemas
from writer.seals.seal import is_closed
from writer.stores.base import S3Settings
from writer.tables.parts import Range
from writer.tables.table import PipelineTable
from writer.transfer import arrow_limits, handed_over, ranges

_BYTES_PER_ROW_GUESS = 60  # of Parquet, until a commit has shown it


@dataclass(frozen=True)
class Frozen:
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


class Tasks:
    """Runs the tasks of one batch after the other, and remembers how large records and rows are."""

    def __init__(
        self, settings: config.Pipeline, tables: Sequence[PipelineTable], schemas: Schemas, found: Found,
        progress: Progress, s3: S3Settings | None, bucket_columns: Sequence[str], pipelines: int = 1,
    ) -> None:  # fmt: skip
        """`tables`: the table, and the one of its late rows, where they go there. `pipelines`: of the driver."""
        self._settings, self._tables, self._schemas, self._found = settings, tables, schemas, found
        self._progress, self._s3, self._bucket_columns = progress, s3, tuple(bucket_columns)
        self._pipelines = pipelines
        self._bucketer = bucketers.build(settings.bucket)
        self._only_topic = settings.topics[0] if len(settings.topics) == 1 else None
        self.bytes_per_row: float = _BYTES_PER_ROW_GUESS
        self._record_bytes: float | None = None  # mean of the last batch
        self._record_bytes_max = 0.0  # mean of the heaviest Arrow batch since the start

    def learn(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Learn from commits how large a row is."""
        self.bytes_per_row = commit.bytes_per_row(recent) or self.bytes_per_row

    def run(self, frame: Any, frozen: Frozen, committing: Sequence[Range], *, behind: bool = False) -> Report:
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
        beside = [] if self._found.wire.header is None else ["headers"]
        records = frame.select(*topic, "partition", "offset", "timestamp", "key", "value", *beside).coalesce(tasks)
        while True:
            carried = records.mapInArrow(partial(task.run, plan=self._plan(frozen)), "report string")
            rows = carried.collect()
            report = commit.merged(Report.from_json(row.report) for row in rows)
            if not report.unknown_schemas:
                commit.check_handed_over(report, handed_over(carried))
                report.ranges, report.slots = ranges(carried), round((before + slots(frame.sparkSession)) / 2)
                read = sum(counts.read for counts in report.counts.values())
                self._record_bytes = report.value_bytes / read if read else self._record_bytes
                self._record_bytes_max = max(self._record_bytes_max, report.record_bytes_max)
                return report
            self._schemas.learn(report.unknown_schemas)
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

    def _plan(self, frozen: Frozen) -> task.TaskPlan:
        settings = self._settings
        return task.TaskPlan(
            now=frozen.now, wire=self._found.wire, frontier=frozen.starts, incarnations=frozen.incarnations,
            schemas=self._schemas.plan,
            time_rule=settings.event_time.rule(self._found.unit),
            bucket=settings.bucket, bucket_columns=self._bucket_columns,
            table=settings.table.location, dead_letters=settings.dead_letters,
            prefix=f"{frozen.epoch:06d}", budget=settings.memory.buffer,
            target_file_size=settings.roll.target_file_size,
            topic=self._only_topic, entropy_bits=settings.table.entropy_bits,
            hidden=self._tables[0].hidden, s3=self._s3,
            closed_until=frozen.closed_until if settings.seal.enabled and isinstance(self._bucketer, Timed) else None,
            late=settings.seal.late,
            late_table=settings.late_table,
        )  # fmt: skip
