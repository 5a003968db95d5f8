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

from writer.config.pipeline_sections import Scheduling
from writer.core.errors import Draining

_SPARE = 1  # batches beyond the slots: its tasks are planned before a slot is free
_LOOK_S = 1.0  # between two looks at whether a stop is asked for


@dataclass(frozen=True)
class FairOrder:
    """Which batches run and wait, and how far each pipeline is: seconds of tasks over its weight."""

    spent: Mapping[str, float] = field(default_factory=dict)
    last_s: Mapping[str, float] = field(default_factory=dict)  # what the tasks of each pipeline's last turn took
    at: float = 0.0  # how far the batches are that were let run last: the virtual time
    waiting: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()

    def joined(self, pipeline: str) -> "FairOrder":
        """Add a batch that waits. A pipeline that had nothing to do gets no credit for more than its last turn.

        While that turn ran, the virtual time went on: without the credit, those that always have work would lose it.
        """
        begin = max(self.spent.get(pipeline, 0.0), self.at - self.last_s.get(pipeline, 0.0))
        return replace(self, waiting=self.waiting | {pipeline}, spent={**self.spent, pipeline: begin})

    def admitted(self, shares: Mapping[str, Scheduling], most: int) -> "FairOrder":
        """Let as many run as may."""
        turns = self
        while turns.waiting and len(turns.running) < most:
            name = min(turns.waiting, key=lambda one: (shares[one].min_share == 0, turns.spent[one], one))
            at = max(turns.at, min(turns.spent[one] for one in turns.waiting))
            turns = replace(turns, at=at, waiting=turns.waiting - {name}, running=turns.running | {name})
        return turns

    def left(self, pipeline: str, share: Scheduling, task_seconds: float) -> "FairOrder":
        """Take a batch out whose tasks took so long together.

        The shorter of its last two turns counts, and the first is free: one turn that was slow, because the JVM was
        cold or an executor was lost, is not paid for with minutes of waiting.
        """
        counted_s = min(task_seconds, self.last_s.get(pipeline, 0.0))
        return replace(
            self, running=self.running - {pipeline}, last_s={**self.last_s, pipeline: task_seconds},
            spent={**self.spent, pipeline: self.spent[pipeline] + counted_s / share.weight},
        )  # fmt: skip

    def gave_up(self, pipeline: str) -> "FairOrder":
        """Take a batch out that waits."""
        return replace(self, waiting=self.waiting - {pipeline})


class BatchQueue:
    """The batches of one driver. A batch waits here before its tasks are given to Spark."""

    def __init__(self) -> None:
        self._shares, self._turns, self._slots = dict[str, Scheduling](), FairOrder(), 1
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
        took: list[float] = []
        self._wait(pipeline, slots, on_wait, stopping)
        began_s = time.monotonic()
        try:
            yield took.append
        finally:
            self._leave(pipeline, sum(took) if took else time.monotonic() - began_s)

    def _wait(self, pipeline: str, slots: int, on_wait: Callable[[], object], stopping: threading.Event) -> None:
        with self._changed:
            self._slots = slots
            self._turns = self._turns.joined(pipeline)
            self._admit()
            if pipeline not in self._turns.running:
                on_wait()
            while pipeline not in self._turns.running:
                self._changed.wait(_LOOK_S)
                if stopping.is_set() and pipeline in self._turns.waiting:
                    self._turns = self._turns.gave_up(pipeline)
                    raise Draining(f"pipeline {pipeline!r} was asked to stop while its batch waited for others")

    def _leave(self, pipeline: str, task_seconds: float) -> None:
        with self._changed:
            self._turns = self._turns.left(pipeline, self._shares[pipeline], task_seconds)
            self._admit()

    def _admit(self) -> None:
        self._turns = self._turns.admitted(self._shares, self._slots + _SPARE)
        self._changed.notify_all()
