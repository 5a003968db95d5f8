"""Decides which batch's tasks run next where a driver has more pipelines than task slots.

Spark's fair scheduler compares only the tasks that run at this moment. Of pools that run none it takes the first by
name: with more pipelines than slots, weights mean nothing and the last names starve. So the driver gives Spark one
batch more than there are slots, and chooses the next one itself: first those with a minimum share, then the one whose
tasks took the least time so far for its weight (start-time fair queueing, Goyal, Vin and Cheng 1996).
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from headrace.writer.config.sections.resource_limits import Scheduling
from headrace.writer.core.errors import Draining

# Batches beyond the slots: the tasks of such a batch are planned before a slot is free.
_SPARE_BATCHES = 1
# Seconds between two looks at whether a stop is asked for.
_LOOK_S = 1.0


@dataclass(frozen=True)
class FairOrder:
    """Which batches run and wait, and how far each pipeline is.

    `spent`: seconds of tasks over the pipeline's weight. `last_s`: seconds that the tasks of each pipeline's last turn
    took. `virtual_time`: how far the pipelines are whose batches were started last.
    """

    spent: Mapping[str, float] = field(default_factory=dict)
    last_s: Mapping[str, float] = field(default_factory=dict)
    virtual_time: float = 0.0
    waiting: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()

    def add(self, pipeline: str) -> "FairOrder":
        """Add a batch that waits. A pipeline that had nothing to do gets no credit for more than its last turn.

        While that turn ran, the virtual time went on: without the credit, those that always have work would lose it.
        """
        earliest = self.virtual_time - self.last_s.get(pipeline, 0.0)
        spent = max(self.spent.get(pipeline, 0.0), earliest)
        return replace(self, waiting=self.waiting | {pipeline}, spent={**self.spent, pipeline: spent})

    def start(self, shares: Mapping[str, Scheduling], running_max: int) -> "FairOrder":
        """Let as many batches run as may."""
        order = self
        while order.waiting and len(order.running) < running_max:
            order = order._start_next(shares)
        return order

    def _start_next(self, shares: Mapping[str, Scheduling]) -> "FairOrder":
        def rank(pipeline: str) -> tuple[bool, float, str]:
            return shares[pipeline].min_share == 0, self.spent[pipeline], pipeline

        pipeline = min(self.waiting, key=rank)
        virtual_time = max(self.virtual_time, min(self.spent[name] for name in self.waiting))
        return replace(
            self,
            virtual_time=virtual_time,
            waiting=self.waiting - {pipeline},
            running=self.running | {pipeline},
        )

    def finish(self, pipeline: str, share: Scheduling, task_seconds: float) -> "FairOrder":
        """Take a batch out whose tasks took so long together.

        The shorter of its last two turns counts, and the first is free: one turn that was slow, because the JVM was
        cold or an executor was lost, is not paid for with minutes of waiting.
        """
        counted_s = min(task_seconds, self.last_s.get(pipeline, 0.0))
        return replace(
            self,
            running=self.running - {pipeline},
            last_s={**self.last_s, pipeline: task_seconds},
            spent={**self.spent, pipeline: self.spent[pipeline] + counted_s / share.weight},
        )

    def withdraw(self, pipeline: str) -> "FairOrder":
        """Take a batch out that waits."""
        return replace(self, waiting=self.waiting - {pipeline})


class BatchQueue:
    """The batches of one driver. A batch waits here before its tasks are given to Spark."""

    def __init__(self) -> None:
        self._shares = dict[str, Scheduling]()
        self._order = FairOrder()
        self._slots = 1
        self._changed = threading.Condition()

    def join(self, pipeline: str, share: Scheduling) -> None:
        """Add a pipeline that the driver runs, or give it another share."""
        with self._changed:
            self._shares[pipeline] = share

    def leave(self, pipeline: str) -> None:
        """Take a pipeline out that has ended for good."""
        with self._changed:
            self._shares.pop(pipeline, None)

    def __len__(self) -> int:
        return len(self._shares)

    @contextmanager
    def turn(
        self, pipeline: str, slots: int, on_wait: Callable[[], object], *, stopping: threading.Event
    ) -> Iterator[Callable[[float], None]]:
        """Wait for the turn of a pipeline's batch, which lasts while inside. `slots`: that Spark has now.

        Yields a function that takes the seconds of the batch's tasks, added up; without it the wall time counts.
        `on_wait` is called when it has to wait. Raises Draining when a stop is asked for meanwhile.
        """
        task_seconds: list[float] = []
        self._wait(pipeline, slots, on_wait, stopping)
        began_s = time.monotonic()
        try:
            yield task_seconds.append
        finally:
            wall_s = time.monotonic() - began_s
            self._finish(pipeline, sum(task_seconds) if task_seconds else wall_s)

    def _wait(self, pipeline: str, slots: int, on_wait: Callable[[], object], stopping: threading.Event) -> None:
        with self._changed:
            self._slots = slots
            self._order = self._order.add(pipeline)
            self._start_batches()
            if pipeline not in self._order.running:
                on_wait()
            while pipeline not in self._order.running:
                self._changed.wait(_LOOK_S)
                if stopping.is_set() and pipeline in self._order.waiting:
                    self._order = self._order.withdraw(pipeline)
                    raise Draining(f"pipeline {pipeline!r} was asked to stop while its batch waited for others")

    def _finish(self, pipeline: str, task_seconds: float) -> None:
        with self._changed:
            self._order = self._order.finish(pipeline, self._shares[pipeline], task_seconds)
            self._start_batches()

    def _start_batches(self) -> None:
        self._order = self._order.start(self._shares, self._slots + _SPARE_BATCHES)
        self._changed.notify_all()
