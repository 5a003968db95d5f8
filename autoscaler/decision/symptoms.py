"""Diagnoses causes of lag that more executors would not fix, with their remedies (after Dhalion)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.autoscaler.decision.capacity import Growth, Load, capacity, is_stuck, ranges_max, window_s
from headrace.autoscaler.decision.facts import Executors, Facts, Pipeline
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import Policy, matching_expression

Kind = Literal[
    "not_scalable",
    "recovery",
    "failing",
    "blind",
    "excluded",
    "too_few_batches",
    "admission_capped",
    "driver_bound",
    "skew",
    "few_ranges",
    "ineffective",
    "quota",
    "memory_pressure",
    "stuck_partition",
    "rate_limited",
]
# hold: nothing changes; no_more, no_fewer: no change in that direction; note: it is only reported.
Effect = Literal["hold", "no_more", "no_fewer", "note"]
# So many slots make the tasks take no time.
_SLOTS_UNLIMITED = 10**6


@dataclass(frozen=True)
class Symptom:
    """Something that ails, what it means for scaling, and what would fix it. `headrace autoscaler explain` has it."""

    kind: Kind
    effect: Effect
    says: str
    advice: str
    pipeline: str | None = None


def find_hold_symptoms(policy: Policy, facts: Facts, now: datetime) -> list[Symptom]:
    """Return what forbids any change: trouble that is no lack of executors, or facts that are no ground to act on."""
    symptoms = []
    if facts.refused:
        says, _, advice = facts.refused.partition(". ")
        symptoms.append(Symptom("not_scalable", "hold", says, advice))
    for pipeline in facts.pipelines:
        symptoms += _find_failures(pipeline)
    symptoms += _find_missing_facts(policy, facts)
    expression = matching_expression(policy.excluded, policy.excluded_zone, now)
    if expression is not None:
        says = f"this minute is excluded by {expression!r} ({policy.excluded_zone})"
        symptoms.append(Symptom("excluded", "hold", says, "It ends by itself; `excluded` names the periods."))
    return symptoms


def _find_failures(pipeline: Pipeline) -> Iterator[Symptom]:
    name = pipeline.name
    if pipeline.recovery_level > 0:
        says = f"{name} is on level L{pipeline.recovery_level} of recovery"
        advice = "Recovery goes first: its restarts look like too few executors. `headrace status` tells more."
        yield Symptom("recovery", "hold", says, advice, name)
    if pipeline.failing is not None:
        says = f"{name} fails: {pipeline.failing}"
        advice = "More executors ask what fails even more. Fix storage or Kafka; the lag is caught up then."
        yield Symptom("failing", "hold", says, advice, name)


def _find_missing_facts(policy: Policy, facts: Facts) -> Iterator[Symptom]:
    advice = "Is the driver's /status reachable, and Kafka? What is wanted stays as it is until they answer."
    if not facts.refused and facts.executors is None:
        yield Symptom("blind", "hold", "it is not known which executors there are", advice)
    if not facts.refused and facts.executors is not None and facts.executors.age_s > policy.max_facts_age_s:
        says = f"it is not known for {facts.executors.age_s:.0f} s which executors there are"
        yield Symptom("blind", "hold", says, advice)
    if not facts.pipelines:
        yield Symptom("blind", "hold", "there are no facts of any pipeline", advice)
    for pipeline in facts.pipelines:
        says = _missing_fact(policy, pipeline)
        if says:
            yield Symptom("blind", "hold", says, advice, pipeline.name)


def _missing_fact(policy: Policy, pipeline: Pipeline) -> str:
    """Return which facts of a pipeline are missing or old; empty if none are."""
    name = pipeline.name
    if pipeline.lag_age_s > policy.max_facts_age_s:
        return f"Kafka has not answered with the ends of {name} for {pipeline.lag_age_s:.0f} s"
    if pipeline.age_s > policy.max_facts_age_s:
        return f"nothing was heard of {name} for {pipeline.age_s:.0f} s"
    is_lag_missing = any(partition.lag_offsets is None for partition in pipeline.partitions)
    if pipeline.arriving_per_s is None or not pipeline.partitions or is_lag_missing:
        return f"Kafka has not answered what waits or arrives of {name}"
    return ""


def too_few_batches(policy: Policy, pipeline: Pipeline, batches: int) -> Symptom:
    """Return the symptom of a pipeline whose batches are too few to know a rate."""
    name = pipeline.name
    window = f"{window_s(policy, pipeline):.0f} s"
    says = f"{name} has lag and finished {batches} batches with offsets in {window}, of {policy.min_batches}"
    advice = "A rate is not known yet. If none ever finishes, `headrace status` says in which phase the batch is."
    return Symptom("too_few_batches", "hold", says, advice, name)


def find_memory_pressure(policy: Policy, executors: Executors) -> Iterator[Symptom]:
    """Yield memory pressure: with fewer executors each would hold more."""
    share = executors.gc_share
    if share is None or share <= policy.max_gc:
        return
    says = f"an executor spends {share:.0%} of its tasks' time in garbage collection, over {policy.max_gc:.0%}"
    advice = "Give executors more memory, or lower memory.buffer; the number of executors is not lowered meanwhile."
    yield Symptom("memory_pressure", "no_fewer", says, advice)


def find_stuck_partitions(policy: Policy, pipelines: Sequence[Pipeline]) -> Iterator[Symptom]:
    """Yield partitions that no batch moves; their lag asks for no executors."""
    advice = "Its lag is left out. Is its leader there, or a transaction open? `headrace status` names it."
    for pipeline in pipelines:
        for partition in pipeline.partitions:
            if not is_stuck(policy, pipeline, partition):
                continue
            says = (
                f"{partition.topic}/{partition.partition} stands still for {partition.batches_unmoved} batches, "
                f"with {partition.lag_offsets:,} offsets that wait"
            )
            yield Symptom("stuck_partition", "note", says, advice, pipeline.name)


def find_rate_limits(loads: Sequence[Load]) -> Iterator[Symptom]:
    """Yield pipelines whose rate limit makes them late; what is beyond it asks for no executors."""
    advice = "It asks for no executors beyond its limit. `headrace limit` raises it, and --off ends it."
    for load in loads:
        name = load.pipeline.name
        need = load.need
        limit = load.pipeline.rate_limit_per_s
        if not need.limited or limit is None:
            continue
        unlimited = need.arriving + need.backlog / need.catch_up_duration_s
        says = (
            f"{name} may commit {limit:,.0f}/s, and {unlimited:,.0f}/s would be needed to keep up: "
            "its lag is the rate limit's"
        )
        yield Symptom("rate_limited", "note", says, advice, name)


def find_no_more_symptoms(
    policy: Policy, memory: Memory, loads: Sequence[Load], executors: Executors, desired: int, growth: Growth
) -> Iterator[Symptom]:
    """Yield what makes more executors useless, now that more are wanted. The first is the one to fix."""
    for load in loads:
        yield from _find_admission_cap(policy, load)
        yield from _find_driver_limit(policy, load)
        yield from _find_skew(policy, load)
        yield from _find_few_ranges(load, desired * executors.slots, growth)
    block = memory.block
    if block is not None and desired >= block.executors:
        says = (
            f"the last executors, up to {block.executors}, brought {block.yield_:.0%} of what was expected; "
            f"none is added until {block.until:%H:%M}"
        )
        advice = "Something else is the limit: storage, the brokers, the network, or another job on the same machines."
        yield Symptom("ineffective", "no_more", says, advice)


def _find_admission_cap(policy: Policy, load: Load) -> Iterator[Symptom]:
    """Yield a pipeline whose batches are full, and too far apart."""
    pipeline = load.pipeline
    interval_s = max(pipeline.trigger_s, load.rate.overhead_s)
    limit = pipeline.offsets_max / max(interval_s, 1e-9)
    is_full = load.rate.offsets_max >= policy.cap_share * pipeline.offsets_max
    if not is_full or load.need.up <= limit:
        return
    says = (
        f"{pipeline.name} takes {pipeline.offsets_max:,} offsets a batch, the most it is let, and one batch in "
        f"{interval_s:.0f} s at best: {limit:,.0f}/s, of {load.need.up:,.0f}/s needed"
    )
    advice = "Raise commit.max_offsets at the next restart; executors would wait for the next batch."
    yield Symptom("admission_capped", "no_more", says, advice, pipeline.name)


def _find_driver_limit(policy: Policy, load: Load) -> Iterator[Symptom]:
    """Yield a pipeline of whose batches the driver alone takes most, so that records are late."""
    pipeline = load.pipeline
    rate = load.rate
    if rate.overhead_share <= policy.max_driver_share:
        return
    suffices = True
    if pipeline.min_partitions:
        suffices = capacity(pipeline, rate, _SLOTS_UNLIMITED, Growth(_SLOTS_UNLIMITED)) >= load.need.up
    if load.need.late_s <= 0 and suffices:
        return
    says = (
        f"{rate.overhead_share:.0%} of a batch of {pipeline.name} is the driver's own: {rate.overhead_s:.1f} s of "
        f"{rate.seconds:.1f} s, in which executors wait"
    )
    advice = "Raise commit.min_offsets or max_delay for larger batches; `headrace explain` says which phase takes it."
    yield Symptom("driver_bound", "no_more", says, advice, pipeline.name)


def _find_skew(policy: Policy, load: Load) -> Iterator[Symptom]:
    """Yield a pipeline whose slots wait for the longest task."""
    skew = load.rate.skew
    if skew is None or skew <= policy.max_skew:
        return
    name = load.pipeline.name
    says = (
        f"the longest task of {name} takes {skew:.1f} times the median, over {policy.max_skew:g}: "
        "slots wait for one partition"
    )
    advice = "Raise autoscaler.max_executors, as ranges are cut for so many, or spread the keys of the topic."
    yield Symptom("skew", "no_more", says, advice, name)


def _find_few_ranges(load: Load, slots: int, growth: Growth) -> Iterator[Symptom]:
    """Yield a pipeline that needs more, and all of whose ranges have a slot already."""
    pipeline = load.pipeline
    ranges = ranges_max(pipeline)
    if ranges > slots or load.need.up <= capacity(pipeline, load.rate, ranges, growth):
        return
    if ranges < max(len(pipeline.partitions), pipeline.min_partitions):
        limit = "it is let no more than so many files"
        advice = "Raise commit.max_offsets, or lower roll.target_file_size."
    else:
        limit = "its ranges are no more"
        advice = (
            "Raise autoscaler.max_executors and restart: a full batch is cut into as many ranges as that has slots."
        )
    says = f"a batch of {pipeline.name} has {ranges} tasks at most, and {slots} slots are there: {limit}"
    yield Symptom("few_ranges", "no_more", says, advice, pipeline.name)
