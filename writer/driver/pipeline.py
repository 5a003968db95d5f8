"""One pipeline of the driver between its start and its end: what the driver's threads ask of it."""

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.clients.notifications import Notifier
from headrace.writer.commit.batch_limits import Limits
from headrace.writer.config.pipelines import Config
from headrace.writer.core import fault_points
from headrace.writer.core.errors import Fenced, HeadraceError, panics_as_errors
from headrace.writer.driver.batches.batch_processor import BatchProcessor
from headrace.writer.driver.batches.batch_queue import BatchQueue
from headrace.writer.driver.batches.pipeline_parts import PipelineParts
from headrace.writer.driver.start.pipeline_takeover import Start, check_pipeline, take_over
from headrace.writer.offsets import start_offsets
from headrace.writer.offsets.log_check import LogWatch
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.status.progress import Progress
from headrace.writer.table.log.foreign_writes import CommitFailed


class PipelineRun:
    """A pipeline between its start and its end. `process` is called by Spark for each micro-batch, one at a time."""

    def __init__(
        self,
        name: str,
        config: Config,
        *,
        schemas: SchemaSource,
        cluster: Cluster,
        progress: Progress | None = None,
        notifier: Notifier | None = None,
        queue: BatchQueue | None = None,
    ) -> None:
        """`queue`: where the batches of the driver's pipelines wait."""
        self.name = name
        self.config = config.pipelines[name]
        self.cluster = cluster
        self.progress = progress or Progress(name)
        self.parts = PipelineParts(
            name,
            config,
            schemas=schemas,
            cluster=cluster,
            progress=self.progress,
            notifier=notifier or Notifier(),
            queue=queue,
        )
        self.gate = self.parts.gate
        self.progress.set(scheduling=self.config.scheduling)
        self.error: BaseException | None = None
        self._state = self.parts.state
        self._processor = BatchProcessor(self.parts)
        # While a batch or a retry of a target runs.
        self._busy = threading.Lock()

    def check(self) -> None:
        """Look at what a start needs, without Spark. Raises as `check_pipeline`."""
        check_pipeline(self.parts)

    def start(self, *, new_run: bool, once: bool = False, lease: int | None = None) -> Start:
        """Take the pipeline over, once it is checked. Raises as `take_over`."""
        return take_over(self.parts, new_run=new_run, once=once, lease=lease)

    @property
    def epoch(self) -> int:
        """Epoch of this start; 0 before its commit."""
        return self._state.epoch

    @property
    def limits(self) -> Limits:
        """When batches end, as of this start."""
        return self._state.endings.limits

    @property
    def topic_ids(self) -> Mapping[str, str]:
        """Topic → the id that this start read under."""
        return self._state.position.topic_ids

    @property
    def numbers(self) -> Mapping[str, int]:
        """Topic → number of the incarnation that this start reads."""
        return self._state.position.numbers

    def needs_headers(self) -> bool:
        """Return whether Spark must hand over the headers of records."""
        targets = self.parts.targets
        is_for_route = targets is not None and targets.needs_headers
        return self.parts.format.needs_headers() or is_for_route or self.config.raw_place is not None

    def drain(self) -> bool:
        """Stop after the batch that is running. True when none is."""
        self.parts.stopping.set()
        self.progress.set_draining()
        is_free = self._busy.acquire(blocking=False)
        if is_free:
            self._busy.release()
        return is_free

    def owns_table(self) -> bool:
        """Return whether no other start came after this one; while the table cannot be read, none did."""
        if not self.epoch:
            return True
        table = self.parts.table
        with suppress(CommitFailed):
            try:
                table.check_owner(table.snapshot(), self.epoch)
            except Fenced:
                return False
        return True

    def find_log_change(self) -> str:
        """Ask Kafka whether its logs are still those of this start; empty if so, or if Kafka does not answer."""
        if not self.epoch:
            return ""
        frontier = self.progress.view().frontier
        with suppress(BrokerUnreachable):
            return start_offsets.find_log_change(self.cluster, self._state.topics, self.topic_ids, frontier)
        return ""

    def log_watch(self) -> LogWatch:
        """Return what compares the logs of this start with the table while it runs."""
        return LogWatch(self.parts.log_check, self.cluster, self.parts.table.snapshot, self.topic_ids, self.numbers)

    def process(self, frame: Any, batch_id: int) -> None:
        """Carry one micro-batch from Kafka into the table. Called by Spark; what it raises ends the query."""
        try:
            with self._busy, panics_as_errors():
                self.parts.throttle.hold(self.parts.stopping)
                self.gate.hold(self.parts.stopping)
                self._processor.process(frame, batch_id)
        except BaseException as error:
            # Spark would hide it behind an error of its own.
            self.error = error
            raise
        fault_points.point("after_batch")

    def catch_up(self) -> None:
        """Try again a target that refused, on a thread of its own, where no batch does. Returns at once."""
        is_due = self.parts.targets is not None and self.parts.tables.is_retry_due
        if is_due and self._busy.acquire(blocking=False):
            threading.Thread(target=self._catch_up, name=f"targets of {self.name}", daemon=True).start()

    def _catch_up(self) -> None:
        try:
            # Of the log: the next batch says it.
            with suppress(HeadraceError, OSError):
                self.parts.apply_side_files()
        finally:
            self._busy.release()
