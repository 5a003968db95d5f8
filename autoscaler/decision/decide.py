"""Decides the number of executors and the reason. Pure: policy, memory, facts and the time in; a decision out.

Up fast, down slowly: what is missing costs lag at once, what is too much costs a little money for ten minutes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from autoscaler.decision.capacity import Growth, Load, Rate, capacity, least, need, ranges_max, rate, used, window_s
from autoscaler.decision.facts import Executors, Facts, Pipeline
from autoscaler.decision.history import (
    DesiredDecrease,
    Memory,
    Scaling,
    observe,
    regrets,
    settled_at,
    start_s,
    without_future,
    yield_,
)
from autoscaler.decision.policy import Policy
from autoscaler.decision.symptoms import Symptom, blinding, limited, pressing, redirecting, stuck, unseen


@dataclass(frozen=True)
class Bound:
    """A limit of the number of executors. Hard ones take executors away; the others only add none beyond."""

    name: str
    executors: int
    hard: bool = True


@dataclass(frozen=True)
class DecisionTerms:
    """The whole arithmetic of a decision, for its explanation."""

    loads: tuple[Load, ...]
    slots_each: int
    start_s: float
    growth: Growth
    used_up: float  # share of the slots that are wanted and granted now, at utilization_max
    used_target: float
    used_down: float
    least: int | None  # executors that carry the target; None: more than are of use
    ceilings: tuple[Bound, ...]
    floors: tuple[Bound, ...]
    want: int  # after all limits
    bound_by: tuple[str, ...]  # the limits that changed it


@dataclass(frozen=True)
class _Decided:
    executors: int  # to be asked for now, and again at every tick
    symptoms: tuple[Symptom, ...]


@dataclass(frozen=True)
class Hold(_Decided):
    """Nothing is judged: what is known is no ground to act on, or the trouble is another."""

    why: Symptom


@dataclass(frozen=True)
class Stay(_Decided):
    """As many as there should be."""

    sums: DecisionTerms


@dataclass(frozen=True)
class Blocked(_Decided):
    """Another number is wanted, and would not help, or is not allowed."""

    sums: DecisionTerms
    to: int
    by: Symptom


@dataclass(frozen=True)
class Wait(_Decided):
    """Another number is wanted, and it is too early."""

    sums: DecisionTerms
    to: int
    until: datetime


@dataclass(frozen=True)
class ScaleUp(_Decided):
    """More, at once."""

    sums: DecisionTerms
    before: int


@dataclass(frozen=True)
class ScaleDown(_Decided):
    """Fewer, at the next boundary between batches: the youngest first, drained one by one."""

    sums: DecisionTerms
    before: int


Decision = Hold | Stay | Blocked | Wait | ScaleUp | ScaleDown


def tick(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> tuple[Decision, Memory]:
    """Observe, decide, remember: one step of the loop."""
    memory = observe(policy, without_future(policy, memory, now), facts, now)
    decision = decide(policy, memory, facts, now)
    return decision, remember(policy, memory, decision, now)


def decide(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> Decision:
    """Decide on facts, with what is remembered. `memory` has observed them already."""
    desired = memory.desired if memory.desired is not None else policy.executors_min
    symptoms = blinding(policy, facts, now)
    if facts.executors is None or any(one.effect == "hold" for one in symptoms):
        return Hold(desired, tuple(symptoms), next(one for one in symptoms if one.effect == "hold"))
    loads, missing = _loads(policy, memory, facts.executors, facts.pipelines, now)
    if missing is not None:
        return Hold(desired, (*symptoms, missing), missing)
    symptoms += [*stuck(policy, facts.pipelines), *limited(loads), *pressing(policy, facts.executors)]
    sums = _sums(policy, memory, facts, loads, desired)
    return _act(policy, memory, facts, now, sums, desired, tuple(symptoms))


def _loads(
    policy: Policy, memory: Memory, executors: Executors, pipelines: Sequence[Pipeline], now: datetime
) -> tuple[tuple[Load, ...], Symptom | None]:
    """Return each pipeline's load. One that is paused or idle asks for nothing; of others a rate must be known."""
    loads, start = [], start_s(policy, memory)
    growth = _growth(policy, memory, executors)
    for one in pipelines:
        if one.paused:
            continue
        seen = _seen(policy, memory, one, now)
        quiet = not one.arriving_per_s and not any(part.lag_offsets for part in one.partitions)
        if quiet:
            continue
        if seen is None or seen.batches < policy.batches_min:
            return (), unseen(policy, one, 0 if seen is None else seen.batches)
        asked = need(policy, one, seen, start, capacity(one, seen, growth.slots, growth))
        assert asked is not None, "facts without lag or arrivals are held on before"
        loads.append(Load(one, seen, asked))
    return tuple(loads), None


def _growth(policy: Policy, memory: Memory, executors: Executors) -> Growth:
    return Growth(max(1, executors.registered) * executors.slots, yield_(policy, memory))


def _seen(policy: Policy, memory: Memory, pipeline: Pipeline, now: datetime) -> Rate | None:
    """Return what the batches of the window show.

    One from before it helps where a single one ended in it. Right after an outage those from before the outage count.
    """
    window = timedelta(seconds=window_s(policy, pipeline))
    full = [batch for batch in pipeline.batches if batch.rows > 0]
    recent = [batch for batch in full if batch.ended >= now - window]
    after_outage = memory.failed_at is not None and now - memory.failed_at < window
    few = len(recent) < policy.batches_min
    return rate(full[-policy.batches_min :] if few and (recent or after_outage) else recent)


def _sums(policy: Policy, memory: Memory, facts: Facts, loads: tuple[Load, ...], desired: int) -> DecisionTerms:
    executors = facts.executors
    assert executors is not None
    each = executors.slots
    granted = desired if executors.quota is None else min(desired, max(executors.quota, executors.registered))
    growth = _growth(policy, memory, executors)
    ceilings, floors = _ceilings(policy, executors, facts.pipelines, desired), _floors(policy, desired)
    found = least(loads, "target", each, growth, max(policy.executors_max, desired))
    want, by = found if found is not None else max(policy.executors_max, desired), []
    for bound in floors:
        if want < bound.executors:
            want, by = bound.executors, [bound.name]
    for bound in sorted(ceilings, key=lambda one: -one.executors):
        if want > bound.executors:
            lowest = 1 if bound.hard else policy.executors_min  # what a cluster grants is not known to stay
            want, by = max(lowest, bound.executors), [bound.name]
    return DecisionTerms(
        loads=loads, slots_each=each, start_s=start_s(policy, memory), growth=growth,
        used_up=used(loads, "up", granted * each, growth),
        used_target=used(loads, "target", granted * each, growth),
        used_down=used(loads, "down", granted * each, growth),
        least=found, ceilings=ceilings, floors=floors, want=want, bound_by=tuple(by),
    )  # fmt: skip


def _ceilings(policy: Policy, executors: Executors, pipelines: Sequence[Pipeline], desired: int) -> tuple[Bound, ...]:
    ranges = sum(ranges_max(one) for one in pipelines if not one.paused)
    bounds = [
        Bound("executors_max", policy.executors_max),
        Bound("up_factor", max(desired + 1, math.ceil(desired * policy.up_factor)), hard=False),
    ]
    if ranges:
        bounds.append(Bound("ranges", math.ceil(ranges / executors.slots), hard=False))
    if executors.quota is not None:
        bounds.append(Bound("quota", max(executors.quota, executors.registered), hard=False))
    if policy.cost_max_per_hour:
        bounds.append(Bound("cost_max_per_hour", int(policy.cost_max_per_hour / policy.cost_per_executor_hour)))
    return tuple(bounds)


def _floors(policy: Policy, desired: int) -> tuple[Bound, ...]:
    step = max(1, math.floor(desired * policy.down_factor))
    return (Bound("down_factor", min(step, desired), hard=False), Bound("executors_min", policy.executors_min))


def _act(
    policy: Policy, memory: Memory, facts: Facts, now: datetime, sums: DecisionTerms, desired: int,
    symptoms: tuple[Symptom, ...],
) -> Decision:  # fmt: skip
    """Choose between the number that is there and the one that is wanted."""
    allowed = max(1, min(one.executors for one in sums.ceilings if one.hard))
    if desired > allowed:
        return ScaleDown(allowed, symptoms, sums, desired)
    if desired < policy.executors_min:
        return ScaleUp(policy.executors_min, symptoms, sums, desired)
    if sums.used_up > 1:
        return _more(policy, memory, facts, now, sums, desired, symptoms)
    late = any(load.need.late_s > policy.lag_slo_s for load in sums.loads)
    if sums.want >= desired or sums.used_down > 1 or late:
        return Stay(desired, symptoms, sums)
    return _fewer(policy, memory, now, sums, desired, symptoms)


def _more(
    policy: Policy, memory: Memory, facts: Facts, now: datetime, sums: DecisionTerms, desired: int,
    symptoms: tuple[Symptom, ...],
) -> Decision:  # fmt: skip
    executors = facts.executors
    assert executors is not None
    symptoms += tuple(redirecting(policy, memory, sums.loads, executors, desired, sums.growth))
    by = next((one for one in symptoms if one.effect == "no_more"), None)
    if by is not None:
        return Blocked(desired, symptoms, sums, max(desired, sums.least or sums.want), by)
    if sums.want <= desired:
        is_refused = sums.bound_by == ("quota",)
        return _refused(sums, executors, desired, symptoms) if is_refused else Stay(desired, symptoms, sums)
    until = settled_at(policy, memory, facts)
    if until is not None and now < until:
        return Wait(desired, symptoms, sums, sums.want, until)
    return ScaleUp(sums.want, symptoms, sums, desired)


def _refused(sums: DecisionTerms, executors: Executors, desired: int, symptoms: tuple[Symptom, ...]) -> Decision:
    """Keep the request: the cluster grants it as soon as it can."""
    says = f"the cluster grants {executors.quota} of {desired} executors, and {sums.least or 'more'} are needed"
    by = Symptom("quota", "no_more", says, "Raise the cluster's quota, or lower executors_max to what it grants.")
    return Blocked(desired, (*symptoms, by), sums, max(desired, sums.least or sums.want), by)


def _fewer(
    policy: Policy, memory: Memory, now: datetime, sums: DecisionTerms, desired: int, symptoms: tuple[Symptom, ...]
) -> Decision:
    """Wait until fewer were wanted throughout; then as many as the most that were."""
    by = next((one for one in symptoms if one.effect == "no_fewer"), None)
    if by is not None:
        return Blocked(desired, symptoms, sums, sums.want, by)
    interval = max((load.rate.interval_s for load in sums.loads), default=0.0)
    doubled = 2 ** min(policy.regrets_max, regrets(policy, memory))
    through = timedelta(seconds=max(policy.down_s, policy.down_batches * interval) * doubled)
    since = memory.fewer[0].at if memory.fewer else now
    ups = [one.at for one in memory.scalings if one.after > one.before]
    until = max([since + through, *(at + timedelta(seconds=policy.after_up_s) for at in ups[-1:])])
    if now < until:
        return Wait(desired, symptoms, sums, sums.want, until)
    most = max([sums.want, *(one.executors for one in memory.fewer if one.at >= now - through)])
    return ScaleDown(most, symptoms, sums, desired)


def remember(policy: Policy, memory: Memory, decision: Decision, now: datetime) -> Memory:
    """Store a decision. Deciding on as many executors or more ends the wait for fewer."""
    match decision:
        case Hold():
            return memory
        case Stay() | Blocked():
            return replace(memory, desired=decision.executors, fewer=())
        case Wait(executors=executors, to=to):
            if to > executors:
                return replace(memory, fewer=())
            since = now - timedelta(seconds=policy.history_s)
            return replace(memory, fewer=(*(one for one in memory.fewer if one.at >= since), DesiredDecrease(now, to)))
        case ScaleUp() | ScaleDown():
            rates = {load.pipeline.name: load.rate.per_slot_per_s for load in decision.sums.loads}
            change = Scaling(now, decision.before, decision.executors, rates)
            return replace(memory, desired=decision.executors, fewer=(), scalings=(*memory.scalings, change))
        case _:
            assert_never(decision)


def carried(sums: DecisionTerms, executors: int) -> dict[str, float]:
    """Records a second that each pipeline alone would carry with so many executors."""
    slots = executors * sums.slots_each
    return {one.pipeline.name: capacity(one.pipeline, one.rate, slots, sums.growth) for one in sums.loads}
