"""Policies for comparison, each as its makers describe it and with their defaults."""

import math
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import mean
from typing import Protocol

from headrace.autoscaler.decision.decide import Decision, tick
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import Policy


@dataclass(frozen=True)
class Busy:
    """What Spark's own allocation looks at: the tasks of the batch that runs, and for how long none has run."""

    tasks: int
    idle_s: float


class Scaler(Protocol):
    """Says now and then how many executors there should be."""

    @property
    def name(self) -> str:
        """As in tables."""

    @property
    def every_s(self) -> float:
        """Seconds between two looks; a tick at least."""

    def choose_executors(self, facts: Facts, busy: Busy, now: datetime) -> int:
        """Return how many executors to ask for."""


@dataclass
class HeadracePolicy:
    """headrace's own policy, through the code that scales for real."""

    policy: Policy
    memory: Memory = field(default_factory=Memory)
    name: str = "headrace"
    last: Decision | None = None
    every_s: float = 0.0

    def choose_executors(self, facts: Facts, busy: Busy, now: datetime) -> int:  # noqa: ARG002
        """Decide as the sidecar does."""
        self.last, self.memory = tick(self.policy, self.memory, facts, now)
        return self.last.executors


@dataclass
class FixedExecutors:
    """A number that never changes."""

    executors: int
    name: str = "static"
    every_s: float = 3600.0

    def choose_executors(self, facts: Facts, busy: Busy, now: datetime) -> int:  # noqa: ARG002
        """Return it."""
        return self.executors


@dataclass
class Dynamic:
    """Spark's dynamic allocation: one, two, four more while tasks wait; an executor goes after a minute without any.

    schedulerBacklogTimeout 1 s, so tasks that wait at a tick have waited; executorIdleTimeout 60 s.
    """

    max_executors: int
    executors: int = 1
    adding: int = 1
    name: str = "Spark's dynamic allocation"
    every_s: float = 0.0
    max_idle_s: float = 60.0
    _spare: dict[int, datetime] = field(default_factory=dict)

    def choose_executors(self, facts: Facts, busy: Busy, now: datetime) -> int:
        """Ask for what the running tasks need; keep what worked in the last minute."""
        assert facts.executors is not None
        needed = math.ceil(busy.tasks / facts.executors.slots)
        if needed > self.executors:
            self.executors = min(self.max_executors, needed, self.executors + self.adding)
            self.adding *= 2
            self._spare.clear()
            return self.executors
        self.adding = 1
        for executor in range(self.executors):
            if executor < needed:
                self._spare.pop(executor, None)
            else:
                self._spare.setdefault(executor, now - timedelta(seconds=busy.idle_s))
        idle = [(now - self._spare.get(executor, now)).total_seconds() for executor in range(self.executors)]
        self.executors = max(1, sum(idle_s <= self.max_idle_s for idle_s in idle))
        self._spare = {executor: since for executor, since in self._spare.items() if executor < self.executors}
        return self.executors


@dataclass
class Threshold:
    """A lag threshold as KEDA hands it to Kubernetes' HPA: ceil(lag / threshold), looked at every 30 s.

    HPA's defaults: no change within 10 %, up at once to the double or four more, down to the most wanted in 300 s.
    KEDA caps replicas at the partitions.
    """

    # Records of lag that one executor is for.
    lag_per_executor: float
    max_executors: int
    name: str = "lag threshold"
    every_s: float = 30.0
    calm_s: float = 300.0
    tolerance: float = 0.1
    executors: int | None = None
    _wants: deque[tuple[datetime, int]] = field(default_factory=deque)

    def choose_executors(self, facts: Facts, busy: Busy, now: datetime) -> int:  # noqa: ARG002
        """Follow the lag."""
        assert facts.executors is not None
        current = facts.executors.wanted if self.executors is None else self.executors
        partitions = facts.pipelines[0].partitions
        wanted_ratio = sum(partition.lag_offsets or 0 for partition in partitions) / self.lag_per_executor
        want = current
        if abs(wanted_ratio / current - 1) > self.tolerance:
            want = math.ceil(wanted_ratio)
        want = max(1, min(want, self.max_executors, len(partitions)))
        self._wants.append((now, want))
        while (now - self._wants[0][0]).total_seconds() > self.calm_s:
            self._wants.popleft()
        if want > current:
            self.executors = min(want, max(2 * current, current + 4))
        else:
            self.executors = min(current, max(earlier_want for _, earlier_want in self._wants))
        return self.executors


@dataclass
class Flink:
    """Flink's autoscaler with its defaults, as if changing the parallelism cost no restart.

    True rate = offsets over busy time, mean of 15 min; target rate = arrivals / 0.7 + lag / 30 min + arrivals * 5 min /
    30 min; a change outside of 0.4 to 1.0 of it, once in 5 min at most; down by 60 % at most, to the most wanted in an
    hour; the parallelism is raised to the next divisor of the partitions.
    """

    max_executors: int
    name: str = "Flink's autoscaler, defaults"
    # The standalone autoscaler's job.autoscaler.interval is 15 s; the window matters more.
    every_s: float = 60.0
    target: float = 0.7
    boundary: float = 0.3
    window_s: float = 900.0
    catch_up_duration_s: float = 1800.0
    restart_s: float = 300.0
    stable_s: float = 300.0
    down_s: float = 3600.0
    down_max: float = 0.6
    # The time of the last change, or of the beginning.
    changed: datetime | None = None
    executors: int | None = None
    _down: list[tuple[datetime, int]] = field(default_factory=list)
    _arrivals: deque[tuple[datetime, float]] = field(default_factory=deque)

    def choose_executors(self, facts: Facts, busy: Busy, now: datetime) -> int:  # noqa: ARG002
        """Evaluate the window."""
        assert facts.executors is not None
        current = facts.executors.wanted if self.executors is None else self.executors
        pipeline = facts.pipelines[0]
        self._arrivals.append((now, pipeline.arriving_lately_per_s or 0.0))
        since = now - timedelta(seconds=self.window_s)
        while self._arrivals[0][0] < since:
            self._arrivals.popleft()
        batches = [batch for batch in pipeline.batches if batch.ended >= since and batch.offsets > 0]
        self.changed = self.changed or now
        if not batches or (now - self.changed).total_seconds() < self.stable_s:
            self.executors = current
            return current
        rate = sum(batch.offsets for batch in batches) / sum(batch.seconds for batch in batches)
        arriving = mean(rate_per_s for _, rate_per_s in self._arrivals)
        lag = sum(partition.lag_offsets or 0 for partition in pipeline.partitions)
        extra = lag / self.catch_up_duration_s + arriving * self.restart_s / self.catch_up_duration_s
        low = arriving / (self.target + self.boundary) + extra
        high = arriving / (self.target - self.boundary) + extra
        goal = arriving / self.target + extra
        want = self._align(math.ceil(max(current * max(goal / rate, 1 - self.down_max), 1)), facts)
        if low <= rate <= high or want == current:
            if want >= current:
                self._down.clear()
            self.executors = current
            return current
        if want > current:
            return self._change(want, now)
        self._down.append((now, want))
        if (now - self._down[0][0]).total_seconds() < self.down_s:
            self.executors = current
            return current
        return self._change(min(current, max(lower_want for _, lower_want in self._down)), now)

    def _change(self, want: int, now: datetime) -> int:
        self.executors = want
        self.changed = now
        self._down.clear()
        return want

    def _align(self, want: int, facts: Facts) -> int:
        """Raise to a number of executors whose slots divide the partitions, where there is one below the most."""
        assert facts.executors is not None
        want = min(want, self.max_executors)
        partitions = len(facts.pipelines[0].partitions)
        slots = facts.executors.slots
        for executors in range(want, self.max_executors + 1):
            if partitions % (executors * slots) == 0:
                return executors
        return want
