"""The autoscaler's memory: earlier decisions and what was learned from them. It survives restarts as JSON.

The names of the fields are the keys of that JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from pydantic import AwareDatetime, ConfigDict

from headrace.autoscaler.decision.capacity import busy_slots, measure_rate
from headrace.autoscaler.decision.facts import Batch, Executors, Facts, Pipeline
from headrace.autoscaler.decision.policy import Policy

_STRICT = ConfigDict(extra="forbid")
# The autoscaler learns from as many of the last changes.
_CHANGES_LEARNED = 5
# Batches before executors are said to have been in vain: the first batch on new executors warms them up.
_SURE_BATCHES = 2
# A share of the slots that worked before: what a smaller change brings drowns in noise.
_STEP_MIN = 0.25


@dataclass(frozen=True)
class Scaling:
    """One change of the number of executors, what was expected of it, and what it brought."""

    __pydantic_config__ = _STRICT

    at: AwareDatetime
    before: int
    after: int
    # The rate of a slot before the change, by pipeline.
    per_slot_per_s: dict[str, float]
    # When all executors were registered, or gone.
    there_at: AwareDatetime | None = None
    # An added slot's work over that of one before; None: not measured yet.
    yield_: float | None = None

    def adds_executors(self) -> bool:
        """Return whether there are more executors after the change than before."""
        return self.after > self.before


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
    """The results of earlier ticks. `desired` is asked for again at every tick, whatever else the facts are."""

    __pydantic_config__ = _STRICT

    # None: nothing was decided yet.
    desired: int | None = None
    # Oldest first.
    scalings: tuple[Scaling, ...] = ()
    # Wants for fewer executors that did not end since; oldest first.
    fewer: tuple[DesiredDecrease, ...] = ()
    block: Block | None = None
    # When storage or Kafka failed last.
    failed_at: AwareDatetime | None = None
    # Partitions by pipeline, and slots of an executor.
    shape: dict[str, int] = field(default_factory=dict)


def without_future(policy: Policy, memory: Memory, now: datetime) -> Memory:
    """Return the memory, none of it from the future: the clock may have stepped back while no process ran."""
    block = memory.block
    if block is not None:
        block = replace(block, until=min(block.until, now + timedelta(seconds=policy.block_s)))
    return replace(
        memory,
        scalings=tuple(
            replace(scaling, at=min(scaling.at, now), there_at=_not_after(scaling.there_at, now))
            for scaling in memory.scalings
        ),
        fewer=tuple(replace(decrease, at=min(decrease.at, now)) for decrease in memory.fewer),
        block=block,
        failed_at=_not_after(memory.failed_at, now),
    )


def shift_instants(memory: Memory, step: timedelta) -> Memory:
    """Return the memory with its instants moved by a step of the wall clock: what waits, waits as long as before."""
    return replace(
        memory,
        scalings=tuple(
            replace(scaling, at=scaling.at + step, there_at=_shift(scaling.there_at, step))
            for scaling in memory.scalings
        ),
        fewer=tuple(replace(decrease, at=decrease.at + step) for decrease in memory.fewer),
        block=None if memory.block is None else replace(memory.block, until=memory.block.until + step),
        failed_at=_shift(memory.failed_at, step),
    )


def _not_after(instant: datetime | None, now: datetime) -> datetime | None:
    return None if instant is None else min(instant, now)


def _shift(instant: datetime | None, step: timedelta) -> datetime | None:
    return None if instant is None else instant + step


def start_s(policy: Policy, memory: Memory) -> float:
    """Return the seconds that executors take to come: the longest of the last that were measured."""
    durations_s = [
        (scaling.there_at - scaling.at).total_seconds()
        for scaling in memory.scalings
        if scaling.adds_executors() and scaling.there_at is not None
    ]
    if not durations_s:
        return policy.start_s
    return min(policy.max_start_s, max(durations_s[-_CHANGES_LEARNED:]))


def slot_yield(policy: Policy, memory: Memory) -> float:
    """Return what an added slot brings, over one at hand: the median of the last that were measured."""
    yields = [scaling.yield_ for scaling in memory.scalings if scaling.yield_ is not None]
    if len(yields) < policy.min_yields:
        return 1.0
    return min(1.0, max(policy.yield_floor, median(yields[-_CHANGES_LEARNED:])))


def count_regrets(policy: Policy, memory: Memory) -> int:
    """Count the removals of executors that were taken back soon."""
    return sum(_is_regret(policy, scaling, following) for scaling, following in pairwise(memory.scalings))


def _is_regret(policy: Policy, scaling: Scaling, following: Scaling) -> bool:
    removes_executors = scaling.after < scaling.before
    between_s = (following.at - scaling.at).total_seconds()
    return removes_executors and following.adds_executors() and between_s < policy.regret_s


def observe(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> Memory:
    """Return the memory with the result of the last change, without what is old or of another shape."""
    executors = facts.executors
    if executors is None:
        return memory
    if facts.pipelines:
        memory = _follow_shape(memory, executors, facts.pipelines)
    if memory.desired is None:
        memory = replace(memory, desired=max(policy.min_executors, executors.wanted))
    if any(pipeline.failing is not None for pipeline in facts.pipelines):
        memory = replace(memory, failed_at=now)
    since = now - timedelta(seconds=policy.history_s)
    memory = replace(memory, scalings=tuple(scaling for scaling in memory.scalings if scaling.at >= since))
    if memory.block is not None and memory.block.until <= now:
        memory = replace(memory, block=None)
    return _measure_last_change(policy, memory, executors, facts.pipelines, now)


def _follow_shape(memory: Memory, executors: Executors, pipelines: Sequence[Pipeline]) -> Memory:
    """Forget yields and wants that were measured with other partitions or executors."""
    shape = {pipeline.name: len(pipeline.partitions) for pipeline in pipelines}
    shape["slots of an executor"] = executors.slots
    if shape == memory.shape:
        return memory
    scalings = memory.scalings
    if memory.shape:
        scalings = tuple(replace(scaling, yield_=None) for scaling in scalings)
    return replace(memory, shape=shape, scalings=scalings, fewer=(), block=None)


def _measure_last_change(
    policy: Policy, memory: Memory, executors: Executors, pipelines: Sequence[Pipeline], now: datetime
) -> Memory:
    """Measure the last change, once its executors are registered and batches ran on them."""
    if not memory.scalings:
        return memory
    last = memory.scalings[-1]
    if last.there_at is None:
        if not _is_complete(last, executors):
            return memory
        last = replace(last, there_at=now)
    block = memory.block
    if last.yield_ is None:
        last = replace(last, yield_=_reliable_yield(policy, last, pipelines, executors.slots))
        if last.yield_ is not None and last.adds_executors() and last.yield_ < policy.min_yield:
            block = Block(last.after, now + timedelta(seconds=policy.block_s), last.yield_)
    return replace(memory, scalings=(*memory.scalings[:-1], last), block=block)


def _is_complete(scaling: Scaling, executors: Executors) -> bool:
    """Return whether all executors of a change are registered, or gone."""
    if scaling.adds_executors():
        return executors.registered >= scaling.after
    return executors.registered <= scaling.after


def _reliable_yield(policy: Policy, scaling: Scaling, pipelines: Sequence[Pipeline], slots_each: int) -> float | None:
    """Return what an added slot brought; a single batch does not prove that it was next to nothing."""
    measured = _measure_yield(policy, scaling, pipelines, slots_each)
    if measured is None or measured >= policy.min_yield:
        return measured
    batches = max((len(batches_after(scaling, pipeline, slots_each)) for pipeline in pipelines), default=0)
    if batches < _SURE_BATCHES:
        return None
    return measured


def batches_after(scaling: Scaling, pipeline: Pipeline, slots_each: int) -> list[Batch]:
    """Return the batches of a pipeline that ran on all executors of a change, and no others."""
    if scaling.there_at is None:
        return []
    slots = scaling.after * slots_each
    return [batch for batch in pipeline.batches if batch.began >= scaling.at and batch.slots == slots]


def _measure_yield(policy: Policy, scaling: Scaling, pipelines: Sequence[Pipeline], slots_each: int) -> float | None:
    """Return what an added slot brought: (r w1 - w0) / (w1 - w0), mean of the pipelines.

    r is the rate of a slot now over the one before, w the slots that work all the time. None until enough batches ran,
    or where a change is too small to be measured.
    """
    yields = []
    for pipeline in pipelines:
        rate_before = scaling.per_slot_per_s.get(pipeline.name)
        batches = [batch for batch in batches_after(scaling, pipeline, slots_each) if _fills_slots(batch)]
        rate = measure_rate(batches)
        if rate_before is None or rate_before <= 0 or rate is None or len(batches) < policy.stable_batches:
            continue
        ranges = batches[-1].ranges
        busy_before = busy_slots(ranges, scaling.before * slots_each)
        busy_after = busy_slots(ranges, scaling.after * slots_each)
        if abs(busy_after - busy_before) >= _STEP_MIN * busy_before:
            gain = rate.per_slot_per_s / rate_before * busy_after - busy_before
            yields.append(gain / (busy_after - busy_before))
    if not yields:
        return None
    return round(sum(yields) / len(yields), 3)


def _fills_slots(batch: Batch) -> bool:
    """Return whether a batch had offsets, and a task for each of its slots or ranges."""
    return batch.offsets > 0 and batch.tasks >= min(batch.ranges, batch.slots)


def stabilization_end(policy: Policy, memory: Memory, facts: Facts) -> datetime | None:
    """Return until when nothing is added after the last change; None without a change.

    It is earlier once enough batches ran on all executors of the change.
    """
    if not memory.scalings or facts.executors is None:
        return None
    last = memory.scalings[-1]
    slots_each = facts.executors.slots
    batches = max((len(batches_after(last, pipeline, slots_each)) for pipeline in facts.pipelines), default=0)
    is_proven = last.there_at is not None and batches >= policy.stable_batches
    wait_s = policy.stable_s if is_proven else policy.max_stable_s
    return (last.there_at or last.at) + timedelta(seconds=wait_s)
