"""Builds the parts of a pipeline of the driver: its tables, schemas and tasks, and what holds and reports batches."""

import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from headrace import bucketers
from headrace.writer.clients import notifications
from headrace.writer.clients.kafka import Cluster
from headrace.writer.commit.batch_limits import BatchEndings
from headrace.writer.commit.privacy import open_privacy
from headrace.writer.commit.targets import Targets
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.driver.batches.batch_queue import BatchQueue
from headrace.writer.driver.batches.commit_report import CommitReport
from headrace.writer.driver.batches.tasks import Tasks, build_reader
from headrace.writer.offsets.log_check import log_check
from headrace.writer.offsets.run_record import RunRecorder
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.offsets.start_offsets import StartPosition
from headrace.writer.schemas.format_detection import DetectedFormat
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.tracker import Schemas
from headrace.writer.status.pause import PauseGate
from headrace.writer.status.progress import Progress
from headrace.writer.status.rate_limit import Throttle
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.lost_tables import SideTableLost, find_lost_side_tables


@dataclass
class PipelineState:
    """What the newest start of a pipeline decided, and its batches go by. Fields without a default are set by it.

    `epoch`: 0 before the start commit. `lease`: epoch of the lease that a supervisor holds. `topics`: the names of the
    topics that are read. `run`: id of the run. `specs`: version of the event specs. `endings`: when batches end.
    """

    epoch: int = 0
    lease: int | None = None
    topics: Sequence[str] = ()
    run: int = field(init=False)
    specs: int = field(init=False)
    position: StartPosition = field(init=False)
    endings: BatchEndings = field(init=False)

    def topic_partition(self, topic: str, partition: int) -> TopicPartition:
        """Return a partition of the incarnation that this start reads."""
        return TopicPartition(topic, self.position.numbers[topic], partition)


class PipelineParts:
    """The parts of a pipeline that its start and its batches share."""

    def __init__(
        self,
        name: str,
        config: Config,
        *,
        schemas: SchemaSource,
        cluster: Cluster,
        progress: Progress,
        notifier: notifications.Notifier,
        queue: BatchQueue | None,
    ) -> None:
        """`queue`: where the batches of the driver's pipelines wait; None: this one's never wait."""
        self.name = name
        self.config = config
        self.settings = config.pipelines[name]
        self.cluster = cluster
        self.progress = progress
        self.notifier = notifier
        self.state = PipelineState()
        self.stopping = threading.Event()
        self.tables = all_tables(name, config)
        self.table = self.tables.main
        self.checkpoints = Checkpoints(config.checkpoints, name, config.stores)
        self.run_recorder = RunRecorder(name, self.table.location, self.checkpoints, config.recovery)
        self.bucket_columns = bucketers.build(self.settings.bucket).columns
        self.format = DetectedFormat(name, self.settings, config.kafka)
        self.schemas = self._build_schemas(schemas)
        self.targets: Targets | None = None
        if self.settings.route is not None:
            self.targets = Targets(name, config, self.tables, self.schemas)
        self.log_check = log_check(name, config.kafka, lambda: self.table.entries(-1))
        self.tasks = self._build_tasks(queue)
        self.throttle = Throttle(
            self.table.store, name, self.settings.commit, lambda limit: progress.set(rate_limit=limit)
        )
        self.gate = PauseGate(self.table.store, name, lambda pause: progress.set(pause=pause), self.throttle.refresh)
        self.report = CommitReport(name, progress, notifier)

    def apply_side_files(self) -> None:
        """Apply the side files of commits to their tables, and report what became of the targets. Raises OSError."""
        self.tables.apply_side_files()
        if self.targets is not None:
            states = self.targets.states()
            self.report.report_targets(states, self.targets.refused, self.targets.beyond, self.targets.section)

    def check_side_tables(self, snapshot: PipelineSnapshot) -> None:
        """Raise SideTableLost where the thread that counts rows found the dead-letter table lost, and it still is.

        `snapshot`: of the log.
        """
        contents = self.progress.view().contents
        if contents is None or not contents.lost:
            return
        for lost in find_lost_side_tables(self.settings, self.table, self.tables.side, snapshot).values():
            raise SideTableLost(lost.text)

    def _build_schemas(self, source: SchemaSource) -> Schemas:
        is_routed = self.settings.route is not None
        return Schemas(
            self.name,
            source,
            IdMeanings(self.name, self.config.registry_of(self.name), self._transactions),
            decode_only=is_routed,
            bucket_columns=() if is_routed else self.bucket_columns,
            record_columns=self.settings.record_columns,
            rules=self.settings.column_rules,
            unknown_id_timeout=self.settings.schemas.unknown_id_timeout,
            specs=self.settings.record_specs,
            privacy=open_privacy(self.name, self.config),
            value_rules=self.settings.value_rules,
            stopping=self.stopping,
            unknown_ids_store=self.checkpoints.store,
            on_wait=lambda wait: self.progress.set(registry_wait=wait),
            wire=self.format.wire,
            key_wire=self.format.key_wire,
        )

    def _build_tasks(self, queue: BatchQueue | None) -> Tasks:
        tables = [self.table]
        if self.settings.late_table is not None:
            tables.append(self.tables.side(self.settings.late_table))
        reader = build_reader(
            self.config.kafka, self.settings, lambda: self.state.position.topic_ids, self.log_check.logs
        )
        return Tasks(
            self.settings,
            tables,
            self.schemas,
            self.format,
            self.progress,
            self.config.stores,
            reader,
            (lambda: 1) if queue is None else queue.__len__,
            None if queue is None else partial(queue.turn, self.name, stopping=self.stopping),
            self.targets,
        )

    def _transactions(self) -> Mapping[str, int]:
        """Return the `txn` values of the table; none before it is made. What cannot be opened, the start says."""
        if self.state.epoch:
            return self.table.transactions()
        with suppress(CommitFailed):
            return self.table.transactions()
        return {}
