"""Simulates partitions, batches and executors, with a model that policies see only through facts.

Tasks run one after the other on the slots that are free; each has its own luck. Slots get in each other's way, machines
are faster and slower through the day, executors take their time to come, and die now and then. Executors that come
while a batch runs take tasks that wait; those that are too many leave between two batches.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import repeat

import numpy as np
import numpy.typing as npt

from headrace.autoscaler.decision.capacity import window_s
from headrace.autoscaler.decision.facts import Batch, Executors, Facts, Partition, Pipeline
from headrace.autoscaler.decision.policy import DEFAULTS, Policy
from headrace.bench.simulation.trace import Trace

BEGAN = datetime(2026, 1, 5, tzinfo=UTC)
# /status tells as many commits.
_BATCHES_SEEN = 20
# The spread of the times of tasks and driver.
_LUCK = 0.10
_LUCK_OF_START = 0.35
# The share of its rate that a new executor lacks.
_COLD = 0.5
# Machines are so much faster and slower through the day.
_DRIFT = 0.06
# The deaths of each executor in a day.
_DEATHS_PER_DAY = 0.3
# A batch whose executor died takes so many times as long.
_DEATH_COSTS = 1.3
# An outage is reported from this age on.
_FAILING_AFTER_S = 60.0
Numbers = npt.NDArray[np.float64]


class SimulatedPipeline:
    """One pipeline through a trace. `advance` in order of time, `look`, `ask`."""

    def __init__(self, trace: Trace, policy: Policy = DEFAULTS) -> None:
        """Begin at the trace's beginning, with its first executors there and nothing waiting.

        `policy`: over which times who looks takes means.
        """
        self.trace = trace
        self._policy = policy
        self.now_s = 0.0
        self.registered = trace.executors_first
        self.wanted = trace.executors_first
        # The paid seconds of executors that are registered or on their way.
        self.executor_s = 0.0
        self._rng = np.random.default_rng(trace.seed)
        self._fates = np.random.default_rng(trace.seed + 1000)
        self._cumulated = _cumulate(trace)
        self._all = self._cumulated.sum(axis=0)
        # The time at which each executor on its way registers.
        self._coming: list[float] = []
        # The times at which the registered executors came, oldest first.
        self._came = [-trace.warm_s] * trace.executors_first
        self._frontier = np.zeros(trace.partitions)
        # The time at which the log passed each frontier.
        self._oldest_s = np.zeros(trace.partitions)
        # The step of the trace in which each frontier lies.
        self._step = np.zeros(trace.partitions, dtype=int)
        self._running: tuple[Batch, Numbers] | None = None
        self._ends_s = 0.0
        # The slots that work on the current batch.
        self._slots = 0
        self._began_s = -trace.trigger_s
        self.batches: deque[Batch] = deque(maxlen=_BATCHES_SEEN)

    def ask(self, executors: int) -> None:
        """Ask for so many in all: more come after a while, fewer go at the end of the batch."""
        self.wanted = max(1, min(executors, self.trace.max_executors))
        while len(self._coming) > max(0, self.wanted - self.registered):
            self._coming.remove(max(self._coming))
        for _ in range(self.wanted - self.registered - len(self._coming)):
            luck = self._rng.lognormal(0.0, _LUCK_OF_START)
            heapq.heappush(self._coming, self.now_s + max(5.0, self.trace.start_s * luck))
        if self._running is None:
            self._leave()

    def advance(self, until_s: float) -> None:
        """Let time pass."""
        while self.now_s < until_s:
            step = min(until_s, *(instant for instant in self._next() if instant > self.now_s))
            self.executor_s += (self.registered + len(self._coming)) * (step - self.now_s)
            self.now_s = step
            while self._coming and self._coming[0] <= self.now_s:
                heapq.heappop(self._coming)
                self._join()
            if self._running is not None and self._ends_s <= self.now_s:
                self._end()
            if self._running is None and self._due():
                self._begin()
        self._die()

    def _join(self) -> None:
        """One more; of a batch that runs it takes its share of what is left, where tasks wait."""
        self.registered += 1
        self._came.append(self.now_s)
        if self._running is None:
            return
        batch, take = self._running
        working = min(self._slots, batch.tasks)
        more = min(self._slots + self.trace.cores, batch.tasks)
        left = max(0.0, self._ends_s - self.now_s)
        if not self.is_out():
            self._delay_end(left * (working / more - 1))
        self._slots += self.trace.cores
        # The mean over the batch, as who looks at each tick would reckon it.
        slots = batch.slots + self.trace.cores * left / max(left, batch.seconds)
        self._running = replace(self._running[0], slots=round(slots)), take

    def _delay_end(self, by_s: float) -> None:
        """Let the batch that runs end later, or sooner."""
        assert self._running is not None
        batch, take = self._running
        self._ends_s += by_s
        seconds = max(0.1, batch.seconds + by_s)
        tasks_s = max(0.1, batch.tasks_s + by_s)
        self._running = replace(batch, ended=_instant(self._ends_s), seconds=seconds, tasks_s=tasks_s), take

    def _next(self) -> Iterator[float]:
        """Instants at which something may happen."""
        yield self.now_s + 5.0 if self._running is None else self._ends_s
        if self._running is None:
            yield self._began_s + self.trace.trigger_s
        if self._coming:
            yield self._coming[0]

    def _due(self) -> bool:
        waits = self._sum_at(self.now_s) - float(self._frontier.sum())
        since = self.now_s - self._began_s
        enough = waits >= self.trace.offsets_min or since >= self.trace.delay_max_s
        return waits >= 1 and enough and since >= self.trace.trigger_s and self.registered > 0

    def _begin(self) -> None:
        trace = self.trace
        slots = self.registered * self.trace.cores
        waits = self._logs_at(self.now_s) - self._frontier
        take = waits * min(1.0, trace.offsets_max / max(1.0, waits.sum()))
        ranges = _split(take, trace.min_partitions)
        drift = 1 + _DRIFT * np.sin(2 * np.pi * (self.now_s / 86_400 + 0.3))
        cold = sum(self.now_s - came < trace.warm_s for came in self._came)
        warm = 1 - _COLD * cold / self.registered
        speed = trace.per_slot_per_s * drift * warm / (1 + trace.contention * (slots - 1))
        times = trace.task_s + ranges / speed * self._rng.lognormal(0.0, _LUCK, len(ranges))
        tasks_s = _makespan(times, slots)
        overhead_s = (trace.overhead_s + 0.01 * len(ranges)) * self._rng.lognormal(0.0, _LUCK)
        ends_s = self.now_s + tasks_s + overhead_s
        for from_s, until_s in trace.outages:
            if ends_s > from_s and self.now_s < until_s:
                ends_s += until_s - max(self.now_s, from_s)
        self._began_s = self.now_s
        self._ends_s = ends_s
        self._slots = slots
        batch = Batch(
            began=_instant(self.now_s),
            ended=_instant(ends_s),
            offsets=int(take.sum()),
            seconds=ends_s - self.now_s,
            tasks_s=ends_s - self.now_s - overhead_s,
            tasks=len(ranges),
            ranges=len(ranges),
            slots=slots,
            skew=float(times.max() / np.median(times)),
        )
        self._running = batch, take

    def _end(self) -> None:
        assert self._running is not None
        batch, take = self._running
        self._running = None
        self.batches.append(batch)
        self._frontier = self._frontier + take
        self._date()
        self._leave()

    def _date(self) -> None:
        """Find when each log passed its frontier."""
        logs = self._cumulated
        partitions = np.arange(self.trace.partitions)
        last_step = self._cumulated.shape[1] - 2
        while (advanced := (logs[partitions, self._step + 1] <= self._frontier + 0.5) & (self._step < last_step)).any():
            self._step += advanced
        before = logs[partitions, self._step]
        wide = np.maximum(logs[partitions, self._step + 1] - before, 1e-9)
        self._oldest_s = (self._step + np.clip((self._frontier - before) / wide, 0, 1)) * self.trace.step_s

    def _leave(self) -> None:
        self.registered = min(self.registered, self.wanted)
        # The youngest executors go.
        del self._came[self.registered :]

    def _die(self) -> None:
        """Now and then an executor dies while a batch runs; Spark asks for another."""
        # There is one draw for each tick, so that all policies meet the same deaths.
        fate = float(self._fates.random())
        if self._running is None or self.is_out() or self.registered < 2:  # noqa: PLR2004 - the last one stays
            return
        if fate < _DEATHS_PER_DAY * self.registered * 15.0 / 86_400:
            self.registered -= 1
            self._came.pop()
            self._delay_end((self._ends_s - self.now_s) * (_DEATH_COSTS - 1))
            self.ask(self.wanted)

    def late_s(self) -> float:
        """How long the oldest record that waits has waited."""
        waits = self._logs_at(self.now_s) - self._frontier >= 1
        if waits.any():
            return float((self.now_s - self._oldest_s[waits]).max())
        return 0.0

    def is_out(self) -> bool:
        """Return whether an outage is on."""
        return any(from_s <= self.now_s < until_s for from_s, until_s in self.trace.outages)

    def tasks_running(self) -> int:
        """Tasks of the batch that runs; 0 between batches."""
        return 0 if self._running is None else self._running[0].tasks

    def idle_s(self) -> float:
        """Seconds since the last batch ended; 0 while one runs."""
        return 0.0 if self._running is not None else self.now_s - self._ends_s

    def look(self) -> Facts:
        """Tell what a sidecar would be told."""
        trace = self.trace
        instant = _instant(self.now_s)
        waiting = (self._logs_at(self.now_s) - self._frontier).astype(int)
        waits = waiting.tolist()
        lates = np.where(waiting >= 1, self.now_s - self._oldest_s, 0.0).tolist()
        failing = any(a + _FAILING_AFTER_S <= self.now_s < b for a, b in trace.outages)
        pipeline = Pipeline(
            name=trace.name,
            partitions=tuple(map(Partition, repeat(trace.name), range(trace.partitions), waits, lates)),
            arriving_per_s=None,
            arriving_lately_per_s=self._rate(self._policy.short_window_s),
            batches=tuple(self.batches),
            delay_max_s=trace.delay_max_s,
            offsets_max=trace.offsets_max,
            min_partitions=trace.min_partitions,
            trigger_s=trace.trigger_s,
            failing="storage does not answer" if failing else None,
        )
        pipeline = replace(pipeline, arriving_per_s=self._rate(window_s(self._policy, pipeline)))
        executors = Executors(
            wanted=self.wanted,
            registered=self.registered,
            draining=max(0, self.registered - self.wanted),
            cores=trace.cores,
        )
        return Facts(instant, executors, (pipeline,))

    def arriving_per_s(self) -> float:
        """Records a second that arrive, mean of the last minute."""
        return self._rate(60.0)

    def _rate(self, over_s: float) -> float:
        since = max(0.0, self.now_s - over_s)
        return (self._sum_at(self.now_s) - self._sum_at(since)) / max(1.0, self.now_s - since)

    def _sum_at(self, at_s: float) -> float:
        position = at_s / self.trace.step_s
        low = min(int(position), len(self._all) - 2)
        return float(self._all[low] + (self._all[low + 1] - self._all[low]) * (position - low))

    def _logs_at(self, at_s: float) -> Numbers:
        position = at_s / self.trace.step_s
        low = min(int(position), self._cumulated.shape[1] - 2)
        before = self._cumulated[:, low]
        logs: Numbers = before + (self._cumulated[:, low + 1] - before) * (position - low)
        return logs


def _instant(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def _cumulate(trace: Trace) -> Numbers:
    """Sum arrivals up by partition: how long each log is at each step."""
    arriving = np.asarray(trace.arriving_per_s)
    shares = np.tile(np.linspace(1.0, trace.share_max, trace.partitions)[:, None], (1, len(arriving)))
    seconds = np.arange(len(arriving)) * trace.step_s
    for hot in trace.hot:
        shares[hot.partition % trace.partitions, (seconds >= hot.from_s) & (seconds < hot.until_s)] *= hot.factor
    rows = arriving * trace.step_s * shares / shares.sum(axis=0)
    return np.concatenate([np.zeros((trace.partitions, 1)), np.cumsum(rows, axis=1)], axis=1)


def _split(take: Numbers, pieces: int) -> Numbers:
    """Cut partitions into about so many ranges of one size, as Spark does for minPartitions; none is joined."""
    if pieces <= len(take) or take.sum() < pieces:
        return take
    counts = np.maximum(1, np.round(take / take.sum() * pieces)).astype(int)
    return np.repeat(take / counts, counts)


def _makespan(times: Numbers, slots: int) -> float:
    """Seconds until the last task ends, when each takes the slot that is free first."""
    if len(times) <= slots:
        return float(times.max())
    free = [0.0] * slots
    for task_s in times.tolist():
        heapq.heapreplace(free, free[0] + task_s)
    return max(free)
