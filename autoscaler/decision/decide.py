"""Decides the number of executors and the reason. Pure: policy, memory, facts and the time in; a decision out.

Up fast, down slowly: what is missing costs lag at once, what is too much costs a little money for ten minutes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import assert_never

from headrace.autoscaler.decision.capacity import (
    Growth,
    Load,
    Rate,
    capacity,
    compute_need,
    least_executors,
    measure_rate,
    ranges_max,
    used_share,
    window_s,
)
from headrace.autoscaler.decision.facts import Executors, Facts, Pipeline
from headrace.autoscaler.decision.history import (
    DesiredDecrease,
    Memory,
    Scaling,
    count_regrets,
    observe,
    slot_yield,
    stabilization_end,
    start_s,
    without_future,
)
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.decision.symptoms import (
    Effect,
    Symptom,
    find_hold_symptoms,
    find_memory_pressure,
    find_no_more_symptoms,
    find_rate_limits,
    find_stuck_partitions,
    too_few_batches,
)


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
    # Shares of the slots that are desired and granted now, for each of the needs.
    used_up: float
    used_target: float
    used_down: float
    # Executors that carry the target; None: more than are of use.
    least: int | None
    ceilings: tuple[Bound, ...]
    floors: tuple[Bound, ...]
    # Executors after all limits.
    wanted: int
    # Names of the limits that changed it.
    bound_by: tuple[str, ...]

    @property
    def needed(self) -> int:
        """Executors that carry the target; where no number does, those that the limits allow."""
        return self.least or self.wanted


@dataclass(frozen=True)
class _BaseDecision:
    # The number to ask for now, and again at every tick.
    executors: int
    symptoms: tuple[Symptom, ...]


@dataclass(frozen=True)
class Hold(_BaseDecision):
    """Nothing is judged: the facts are no ground to act on, or the trouble is another."""

    cause: Symptom


@dataclass(frozen=True)
class Stay(_BaseDecision):
    """As many as there should be."""

    terms: DecisionTerms


@dataclass(frozen=True)
class Blocked(_BaseDecision):
    """Another number is wanted, and would not help, or is not allowed."""

    terms: DecisionTerms
    wanted: int
    cause: Symptom


@dataclass(frozen=True)
class Wait(_BaseDecision):
    """Another number is wanted, and it is too early."""

    terms: DecisionTerms
    wanted: int
    until: datetime


@dataclass(frozen=True)
class ScaleUp(_BaseDecision):
    """More, at once."""

    terms: DecisionTerms
    before: int


@dataclass(frozen=True)
class ScaleDown(_BaseDecision):
    """Fewer, at the next boundary between batches: the youngest first, drained one by one."""

    terms: DecisionTerms
    before: int


Decision = Hold | Stay | Blocked | Wait | ScaleUp | ScaleDown


def tick(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> tuple[Decision, Memory]:
    """Observe, decide, remember: one step of the loop."""
    memory = observe(policy, without_future(policy, memory, now), facts, now)
    decision = decide(policy, memory, facts, now)
    return decision, remember(policy, memory, decision, now)


def decide(policy: Policy, memory: Memory, facts: Facts, now: datetime) -> Decision:
    """Decide on facts and memory. `memory` has observed the facts already."""
    desired = memory.desired if memory.desired is not None else policy.min_executors
    symptoms = find_hold_symptoms(policy, facts, now)
    cause = _first_symptom(symptoms, "hold")
    if cause is not None:
        return Hold(desired, tuple(symptoms), cause)
    assert facts.executors is not None, "facts without executors are a symptom to hold on"
    loads = _loads(policy, memory, facts.executors, facts.pipelines, now)
    if isinstance(loads, Symptom):
        return Hold(desired, (*symptoms, loads), loads)
    symptoms += find_stuck_partitions(policy, facts.pipelines)
    symptoms += find_rate_limits(loads)
    symptoms += find_memory_pressure(policy, facts.executors)
    terms = _decision_terms(policy, memory, facts.executors, facts.pipelines, loads, desired)
    return _choose_decision(policy, memory, facts, now, terms, desired, tuple(symptoms))


def _first_symptom(symptoms: Sequence[Symptom], effect: Effect) -> Symptom | None:
    return next((symptom for symptom in symptoms if symptom.effect == effect), None)


def _loads(
    policy: Policy, memory: Memory, executors: Executors, pipelines: Sequence[Pipeline], now: datetime
) -> tuple[Load, ...] | Symptom:
    """Return the loads of the pipelines that are neither paused nor idle, or why the rate of one is unknown."""
    loads = []
    executors_start_s = start_s(policy, memory)
    growth = _growth(policy, memory, executors)
    for pipeline in pipelines:
        if pipeline.paused or _is_idle(pipeline):
            continue
        rate = _recent_rate(policy, memory, pipeline, now)
        if rate is None or rate.batches < policy.min_batches:
            batches = 0 if rate is None else rate.batches
            return too_few_batches(policy, pipeline, batches)
        carried_per_s = capacity(pipeline, rate, growth.slots, growth)
        need = compute_need(policy, pipeline, rate, executors_start_s, carried_per_s)
        assert need is not None, "facts without lag or arrivals are held on before"
        loads.append(Load(pipeline, rate, need))
    return tuple(loads)


def _is_idle(pipeline: Pipeline) -> bool:
    """Return whether nothing arrives and nothing waits."""
    has_lag = any(partition.lag_offsets for partition in pipeline.partitions)
    return not pipeline.arriving_per_s and not has_lag


def _growth(policy: Policy, memory: Memory, executors: Executors) -> Growth:
    return Growth(max(1, executors.registered) * executors.slots, slot_yield(policy, memory))


def _recent_rate(policy: Policy, memory: Memory, pipeline: Pipeline, now: datetime) -> Rate | None:
    """Return the rate that the batches of the window show.

    One batch from before the window helps where a single one ended in it. Right after an outage those from before the
    outage count.
    """
    window = timedelta(seconds=window_s(policy, pipeline))
    full = [batch for batch in pipeline.batches if batch.offsets > 0]
    recent = [batch for batch in full if batch.ended >= now - window]
    is_after_outage = memory.failed_at is not None and now - memory.failed_at < window
    if len(recent) < policy.min_batches and (recent or is_after_outage):
        return measure_rate(full[-policy.min_batches :])
    return measure_rate(recent)


def _decision_terms(
    policy: Policy,
    memory: Memory,
    executors: Executors,
    pipelines: Sequence[Pipeline],
    loads: tuple[Load, ...],
    desired: int,
) -> DecisionTerms:
    """Return the least number of executors that carries the loads, within all limits, and how it came about."""
    slots_each = executors.slots
    granted = desired
    if executors.quota is not None:
        granted = min(desired, max(executors.quota, executors.registered))
    growth = _growth(policy, memory, executors)
    max_executors = max(policy.max_executors, desired)
    least = least_executors(loads, "target", slots_each, growth, max_executors)
    floors = _floors(policy, desired)
    ceilings = _ceilings(policy, executors, pipelines, desired)
    unlimited = max_executors if least is None else least
    wanted, bound_by = _limit_executors(policy, unlimited, floors, ceilings)
    return DecisionTerms(
        loads=loads,
        slots_each=slots_each,
        start_s=start_s(policy, memory),
        growth=growth,
        used_up=used_share(loads, "up", granted * slots_each, growth),
        used_target=used_share(loads, "target", granted * slots_each, growth),
        used_down=used_share(loads, "down", granted * slots_each, growth),
        least=least,
        ceilings=ceilings,
        floors=floors,
        wanted=wanted,
        bound_by=bound_by,
    )


def _limit_executors(
    policy: Policy, executors: int, floors: Sequence[Bound], ceilings: Sequence[Bound]
) -> tuple[int, tuple[str, ...]]:
    """Return a number of executors within limits, and the name of the limit that decides. Ceilings beat floors."""
    bound_by: tuple[str, ...] = ()
    for bound in floors:
        if executors < bound.executors:
            executors = bound.executors
            bound_by = (bound.name,)
    for bound in sorted(ceilings, key=lambda bound: -bound.executors):
        if executors > bound.executors:
            # What a cluster grants may change, so a soft ceiling does not go below min_executors.
            lowest = 1 if bound.hard else policy.min_executors
            executors = max(lowest, bound.executors)
            bound_by = (bound.name,)
    return executors, bound_by


def _ceilings(policy: Policy, executors: Executors, pipelines: Sequence[Pipeline], desired: int) -> tuple[Bound, ...]:
    ranges = sum(ranges_max(pipeline) for pipeline in pipelines if not pipeline.paused)
    bounds = [
        Bound("max_executors", policy.max_executors),
        Bound("up_factor", max(desired + 1, math.ceil(desired * policy.up_factor)), hard=False),
    ]
    if ranges:
        bounds.append(Bound("ranges", math.ceil(ranges / executors.slots), hard=False))
    if executors.quota is not None:
        bounds.append(Bound("quota", max(executors.quota, executors.registered), hard=False))
    if policy.max_cost_per_hour:
        bounds.append(Bound("max_cost_per_hour", int(policy.max_cost_per_hour / policy.cost_per_executor_hour)))
    return tuple(bounds)


def _floors(policy: Policy, desired: int) -> tuple[Bound, ...]:
    step = max(1, math.floor(desired * policy.down_factor))
    return (Bound("down_factor", min(step, desired), hard=False), Bound("min_executors", policy.min_executors))


def _choose_decision(
    policy: Policy,
    memory: Memory,
    facts: Facts,
    now: datetime,
    terms: DecisionTerms,
    desired: int,
    symptoms: tuple[Symptom, ...],
) -> Decision:
    """Choose between the desired number of executors and the one that is wanted."""
    allowed = max(1, min(bound.executors for bound in terms.ceilings if bound.hard))
    if desired > allowed:
        return ScaleDown(allowed, symptoms, terms, desired)
    if desired < policy.min_executors:
        return ScaleUp(policy.min_executors, symptoms, terms, desired)
    if terms.used_up > 1:
        return _decide_on_more(policy, memory, facts, now, terms, desired, symptoms)
    is_late = any(load.need.late_s > policy.lag_slo_s for load in terms.loads)
    if terms.wanted >= desired or terms.used_down > 1 or is_late:
        return Stay(desired, symptoms, terms)
    return _decide_on_fewer(policy, memory, now, terms, desired, symptoms)


def _decide_on_more(
    policy: Policy,
    memory: Memory,
    facts: Facts,
    now: datetime,
    terms: DecisionTerms,
    desired: int,
    symptoms: tuple[Symptom, ...],
) -> Decision:
    executors = facts.executors
    assert executors is not None, "facts without executors are held on before"
    symptoms += tuple(find_no_more_symptoms(policy, memory, terms.loads, executors, desired, terms.growth))
    cause = _first_symptom(symptoms, "no_more")
    if cause is not None:
        return Blocked(desired, symptoms, terms, max(desired, terms.needed), cause)
    if terms.wanted <= desired and terms.bound_by == ("quota",):
        return _quota_block(terms, executors, desired, symptoms)
    if terms.wanted <= desired:
        return Stay(desired, symptoms, terms)
    until = stabilization_end(policy, memory, facts)
    if until is not None and now < until:
        return Wait(desired, symptoms, terms, terms.wanted, until)
    return ScaleUp(terms.wanted, symptoms, terms, desired)


def _quota_block(terms: DecisionTerms, executors: Executors, desired: int, symptoms: tuple[Symptom, ...]) -> Decision:
    """Keep the request: the cluster grants it as soon as it can."""
    says = f"the cluster grants {executors.quota} of {desired} executors, and {terms.least or 'more'} are needed"
    cause = Symptom("quota", "no_more", says, "Raise the cluster's quota, or lower max_executors to what it grants.")
    return Blocked(desired, (*symptoms, cause), terms, max(desired, terms.needed), cause)


def _decide_on_fewer(
    policy: Policy,
    memory: Memory,
    now: datetime,
    terms: DecisionTerms,
    desired: int,
    symptoms: tuple[Symptom, ...],
) -> Decision:
    """Wait until fewer executors were wanted throughout; then keep as many as the most that were."""
    cause = _first_symptom(symptoms, "no_fewer")
    if cause is not None:
        return Blocked(desired, symptoms, terms, terms.wanted, cause)
    duration = _down_duration(policy, memory, terms.loads)
    since = memory.fewer[0].at if memory.fewer else now
    until = since + duration
    increases = [scaling for scaling in memory.scalings if scaling.adds_executors()]
    if increases:
        until = max(until, increases[-1].at + timedelta(seconds=policy.after_up_s))
    if now < until:
        return Wait(desired, symptoms, terms, terms.wanted, until)
    recent_wants = [decrease.executors for decrease in memory.fewer if decrease.at >= now - duration]
    return ScaleDown(max([terms.wanted, *recent_wants]), symptoms, terms, desired)


def _down_duration(policy: Policy, memory: Memory, loads: Sequence[Load]) -> timedelta:
    """Return for how long fewer executors must be wanted. It doubles with each removal that was regretted."""
    interval_s = max((load.rate.interval_s for load in loads), default=0.0)
    doublings = min(policy.max_regrets, count_regrets(policy, memory))
    return timedelta(seconds=max(policy.down_s, policy.down_batches * interval_s) * 2**doublings)


def remember(policy: Policy, memory: Memory, decision: Decision, now: datetime) -> Memory:
    """Return the memory with a decision. Deciding on as many executors or more ends the wait for fewer."""
    match decision:
        case Hold():
            return memory
        case Stay() | Blocked():
            return replace(memory, desired=decision.executors, fewer=())
        case Wait(executors=executors, wanted=wanted):
            if wanted > executors:
                return replace(memory, fewer=())
            since = now - timedelta(seconds=policy.history_s)
            recent = [decrease for decrease in memory.fewer if decrease.at >= since]
            return replace(memory, fewer=(*recent, DesiredDecrease(now, wanted)))
        case ScaleUp() | ScaleDown():
            rates = {load.pipeline.name: load.rate.per_slot_per_s for load in decision.terms.loads}
            scaling = Scaling(now, decision.before, decision.executors, rates)
            return replace(memory, desired=decision.executors, fewer=(), scalings=(*memory.scalings, scaling))
        case _:
            assert_never(decision)


def capacities(terms: DecisionTerms, executors: int) -> dict[str, float]:
    """Return the offsets a second that each pipeline alone would carry with so many executors."""
    slots = executors * terms.slots_each
    return {load.pipeline.name: capacity(load.pipeline, load.rate, slots, terms.growth) for load in terms.loads}
