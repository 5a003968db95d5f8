"""The autoscaler's memory: earlier decisions and what was learned from them. It survives restarts as JSON."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from pydantic import AwareDatetime, ConfigDict

from autoscaler.decision.capacity import rate, worth
from autoscaler.decision.facts import Batch, Facts, Pipeline
from autoscaler.decision.policy import Policy

_STRICT = ConfigDict(extra="forbid")
_KEPT = 5  # changes of late from which is learned
_SURE_BATCHES = 2  # before executors are said to have been in vain: the first batch on new ones warms them up
_STEP_MIN = 0.25  # of the slots that worked before: what a smaller change brings drowns in noise


@dataclass(frozen=True)
class Scaling:
    """One change of the number of executors, what was expected of it, and what it brought."""

    __pydantic_config__ = _STRICT

    at: AwareDatetime
    before: int
    after: int
    per_slot_per_s: dict[str, float]  # of each pipeline, as it was before
    there_at: AwareDatetime | None = None  # when all executors were registered, or gone
    yield_: float | None = None  # an added slot's work over that of one before; None: not measured yet


@dataclass(frozen=True)
class DesiredDecrease:
    """Fewer executors, wanted at an instant."""

    __pydantic_config__ = _STRICT

    at: AwareDatetime
    executors: int


@dataclass(frozen=True)
class Block:
    """Executors beyond these were in vain; until then none is added."""

    __pydantic_config__ = _STRICT

    executors: int
    until: AwareDatetime
    yield_: float


@dataclass(frozen=True)
class Memory:
    """All that is remembered. `desired` is asked for again at every tick, whatever else is known."""

    __pydantic_config__ = _STRICT

    desired: int | None = None  # None: nothing was decided yet
    scalings: tuple[Scaling, ...] = ()  # oldest first
    fewer: tuple[DesiredDecrease, ...] = ()  # wants for fewer that did not end since; oldest first
    block: Block | None = None
    failed_at: AwareDatetime | None = None  # when storage or Kafka failed last
    shape: dict[str, int] = field(default_factory=dict)  # partitions by pipeline, and slots of an executor


def without_future(policy: Policy, memory: Memory, now: datetime) -> Memory:
    """Return what is remembered, none of it from the future: the clock may have stepped back while no process ran."""
    block = memory.block
    if block is not None:
        block = replace(block, until=min(block.until, now + timedelta(seconds=policy.block_s)))
    return replace(
        memory,
        scalings=tuple(_bounded(one, now) for one in memory.scalings),
        fewer=tuple(replace(one, at=min(one.at, now)) for one in memory.fewer),
        block=block,
        failed_at=None if memory.failed_at is None else min(memory.failed_at, now),
    )


def moved(memory: Memory, by: timedelta) -> Memory:
    """Return what is remembered, its instants moved along with the wall clock: what waits, waits as long as before."""
    return replace(
        memory,
        scalings=tuple(
            replace(one, at=one.at + by, there_at=None if one.there_at is None else one.there_at + by)
            for one in memory.scalings
        ),
        fewer=tuple(replace(one, at=one.at + by) for one in memory.fewer),
        block=None if memory.block is None else replace(memory.block, until=memory.block.until + by),
        failed_at=None if memory.failed_at is None else memory.failed_at + by,
    )


def _bounded(change: Scaling, now: datetime) -> Scaling:
    there_at = None if change.there_at is None else min(change.there_at, now)
    return replace(change, at=min(change.at, now), there_at=there_at)


def start_s(policy: Policy, memory: Memory) -> float:
    """Seconds that executors take to come: the longest of the last that were seen."""
    seen = [
        (one.there_at - one.at).total_seconds()
        for one in memory.scalings
        if one.after > one.before and one.there_at is not None
    ]
    return min(policy.start_max_s, max(seen[-_KEPT:])) if seen else policy.start_s


def yield_(policy: Policy, memory: Memory) -> float:
    """What an added slot brings, over one that is there: the median of the last that were measured."""
    seen = [one.yield_ for one in memory.scalings if one.yield_ is not None]
    if len(seen) < policy.yields_min:
        return 1.0
    return min(1.0, max(policy.yield_floor, median(seen[-_KEPT:])))


def regrets(policy: Policy, memory: Memory) -> int:
    """Count the goings of executors that were taken back soon."""
    return sum(
        one.after < one.before and other.after > other.before and (other.at - one.at).total_seconds() < policy.regret_s
        for one, other in pairwise(memory.scalings)
    )


def observe(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> Memory:
    """Take in what became of the last change, and forget what is old or of another shape."""
    executors = facts.executors
    if executors is None:
        return memory
    shape = {one.name: len(one.partitions) for one in facts.pipelines} | {"slots of an executor": executors.slots}
    if shape != memory.shape and facts.pipelines:
        forgotten = tuple(replace(one, yield_=None) for one in memory.scalings) if memory.shape else memory.scalings
        memory = replace(memory, shape=shape, scalings=forgotten, fewer=(), block=None)
    if memory.desired is None:
        memory = replace(memory, desired=max(policy.executors_min, executors.wanted))
    if any(one.failing is not None for one in facts.pipelines):
        memory = replace(memory, failed_at=now)
    since = now - timedelta(seconds=policy.history_s)
    memory = replace(memory, scalings=tuple(one for one in memory.scalings if one.at >= since))
    if memory.block is not None and memory.block.until <= now:
        memory = replace(memory, block=None)
    return _measured(policy, memory, facts, now)


def _measured(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> Memory:
    """Measure the last change, once its executors are there and batches ran on them."""
    executors = facts.executors
    if not memory.scalings or executors is None:
        return memory
    last = memory.scalings[-1]
    if last.there_at is None:
        there = executors.registered >= last.after if last.after > last.before else executors.registered <= last.after
        if not there:
            return memory
        last = replace(last, there_at=now)
    if last.yield_ is None:
        last = replace(last, yield_=_believed(policy, last, facts.pipelines, executors.slots))
    block = memory.block
    if last.yield_ is not None and memory.scalings[-1].yield_ is None:
        in_vain = last.after > last.before and last.yield_ < policy.yield_min
        block = Block(last.after, now + timedelta(seconds=policy.block_s), last.yield_) if in_vain else block
    return replace(memory, scalings=(*memory.scalings[:-1], last), block=block)


def _believed(policy: Policy, last: Scaling, pipelines: Iterable[Pipeline], slots_each: int) -> float | None:
    """Return what an added slot brought; that it was next to nothing is not believed of a single batch."""
    pipelines = tuple(pipelines)
    found = _yield(policy, last, pipelines, slots_each)
    ran = max((len(ran_on(last, one, slots_each)) for one in pipelines), default=0)
    return None if found is not None and found < policy.yield_min and ran < _SURE_BATCHES else found


def ran_on(change: Scaling, pipeline: Pipeline, slots_each: int) -> list[Batch]:
    """Return the batches of a pipeline that ran on all executors of a change, and no others."""
    if change.there_at is None:
        return []
    return [one for one in pipeline.batches if one.began >= change.at and one.slots == change.after * slots_each]


def _yield(policy: Policy, last: Scaling, pipelines: Iterable[Pipeline], slots_each: int) -> float | None:
    """Measure what an added slot brought: (r w1 - w0) / (w1 - w0).

    r is the rate of a slot now over the one before, w the slots that work all the time. None until enough batches ran,
    or where a change is too small to be measured.
    """
    found = []
    for pipeline in pipelines:
        before = last.per_slot_per_s.get(pipeline.name)
        ran = ran_on(last, pipeline, slots_each)
        ran = [one for one in ran if one.rows > 0 and one.tasks >= min(one.ranges, one.slots)]
        seen = rate(ran)
        if before is None or before <= 0 or seen is None or len(ran) < policy.stable_batches:
            continue
        ranges = ran[-1].ranges
        w0, w1 = worth(ranges, last.before * slots_each), worth(ranges, last.after * slots_each)
        if abs(w1 - w0) >= _STEP_MIN * w0:
            found.append((seen.per_slot_per_s / before * w1 - w0) / (w1 - w0))
    return round(sum(found) / len(found), 3) if found else None


def settled_at(policy: Policy, memory: Memory, facts: Facts) -> datetime | None:
    """Return until when nothing is added after the last change; None when batches ran on what was asked for."""
    if not memory.scalings or facts.executors is None:
        return None
    last = memory.scalings[-1]
    since = last.there_at or last.at
    ran = [len(ran_on(last, one, facts.executors.slots)) for one in facts.pipelines]
    enough = last.there_at is not None and max(ran, default=0) >= policy.stable_batches
    return since + timedelta(seconds=policy.stable_s if enough else policy.stable_max_s)
