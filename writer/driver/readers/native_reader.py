"""Tasks that fetch their records from Kafka themselves, without the JVM: `kafka.reader: native`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from headrace.writer.batch import range_task
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.range_task import ReadPlan, share_ranges
from headrace.writer.batch.task_report import Report
from headrace.writer.clients import native_kafka
from headrace.writer.commit import builder
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core.errors import HeadraceError, LogMoved
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.errors import LogDiverged, LostRecords, TopicGone
from headrace.writer.kafka_reader.requests.metadata import Metadata
from headrace.writer.offsets.log_continuity import find_break, last_marks

# After these a new start finds out what the log is now.
_LOG_CHANGES = (LostRecords.__name__, LogDiverged.__name__, TopicGone.__name__)


class NativeReader:
    """Gives each task of a batch its share of the ranges, and checks that all of them were read to their ends."""

    cost_by_partition = False

    def __init__(
        self,
        kafka: Kafka,
        records_max: int,
        bytes_max: int,
        topic_ids: Callable[[], Mapping[str, str]],
        *,
        with_topic: bool,
    ) -> None:
        """`topic_ids`: of the incarnations that the pipeline reads now, as Kafka writes them.

        `records_max`, `bytes_max`: of an Arrow batch. `with_topic`: the records are of several topics.
        """
        self._cluster = kafka.address
        self._limits = native_kafka.limits(kafka, records_max, bytes_max)
        self._topic_ids = topic_ids
        self._with_topic = with_topic
        # Empty RDDs, by their number of partitions.
        self._rdds = dict[int, Any]()

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
        """Prepare the tasks of a batch. Raises Unavailable, AccessDenied where no broker says who leads."""
        filled_ranges = [r for r in ranges if r.count]
        with self._cluster.open() as cluster:
            leaders = cluster.ask_leaders({r.part.topic for r in filled_ranges})
        ordered_ranges = sorted(filled_ranges, key=partial(_broker_order, leaders))
        shares = share_ranges(ordered_ranges, count)
        read_plan = ReadPlan(
            self._cluster,
            leaders,
            native_kafka.topic_ids(self._topic_ids()),
            ColumnChoice(topic=self._with_topic, headers=headers, raw=raw),
            self._limits,
            shares,
        )
        return partial(_run, self._tasks(frame.sparkSession.sparkContext, len(shares)), read_plan, ranges, marks)

    def _tasks(self, context: Any, count: int) -> Any:
        """Return an RDD that has an empty partition for each task: a plan of Spark SQL costs as much as a small batch.

        It is made once, as a file of Spark's is written for it.
        """
        if count not in self._rdds:
            self._rdds[count] = context.parallelize([], count)
        return self._rdds[count]


def _broker_order(metadata: Metadata, offset_range: OffsetRange) -> tuple[int, str, int]:
    """Order ranges so that a task asks few brokers."""
    source = offset_range.part.source
    leader = metadata.leaders.get(source)
    return -1 if leader is None else leader.node, *source


def _run(
    tasks: Any,
    read_plan: ReadPlan,
    ranges: Sequence[OffsetRange],
    marks: Mapping[Source, LogMark],
    plan: TaskPlan,
) -> Report:
    """Run the tasks, add their reports up, and check the sum. Raises LogMoved, HeadraceError."""
    run_partition = partial(range_task.run_partition, plan=plan, read_plan=read_plan)
    reports = tasks.mapPartitionsWithIndex(run_partition, preservesPartitioning=True).collect()
    report = builder.merge_reports(map(Report.from_json, reports))
    if report.read_failures:
        failure = report.read_failures[0]
        error = LogMoved if failure.kind in _LOG_CHANGES else HeadraceError
        raise error(failure.message)
    if not report.lacks_schemas:
        builder.check_ranges_read(report, ranges)
        log_break = find_break(report.ranges_read, marks)
        if log_break:
            raise LogMoved(log_break)
        report.marks = last_marks(report.ranges_read)
        report.ranges = len(read_plan.shares)
    return report
