"""Diagnoses causes of lag that more executors would not fix, with their remedies (after Dhalion)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from autoscaler.decision.capacity import Growth, Load, capacity, is_stuck, ranges_max, window_s
from autoscaler.decision.facts import Executors, Facts, Pipeline
from autoscaler.decision.history import Memory
from autoscaler.decision.policy import Policy, period

Kind = Literal[
    "not_scalable", "recovery", "failing", "blind", "excluded", "too_few_batches",
    "admission_capped", "driver_bound", "skew", "few_ranges", "ineffective", "quota",
    "memory_pressure", "stuck_partition", "rate_limited",
]  # fmt: skip
Effect = Literal["hold", "no_more", "no_fewer", "note"]
_FAR = 10**6  # slots: as many as make the tasks take no time


@dataclass(frozen=True)
class Symptom:
    """Something that ails, what it means for scaling, and what would fix it."""

    kind: Kind
    effect: Effect  # hold: nothing changes; no_more, no_fewer: not in that direction; note: only reported
    says: str
    advice: str
    pipeline: str | None = None


def blinding(policy: Policy, facts: Facts, now: datetime) -> list[Symptom]:
    """Return what forbids any change: trouble that is no lack of executors, or facts that are no ground to act on."""
    found = [_not_scalable(facts.refused)] if facts.refused else []
    found += [symptom for one in facts.pipelines for symptom in _troubles(one)]
    found += _blind(policy, facts)
    if (matched := period(policy.excluded, policy.excluded_zone, now)) is not None:
        says = f"this minute is excluded by {matched!r} ({policy.excluded_zone})"
        found.append(Symptom("excluded", "hold", says, "It ends by itself; `excluded` names the periods."))
    return found


def _not_scalable(refused: str) -> Symptom:
    says, _, advice = refused.partition(". ")
    return Symptom("not_scalable", "hold", says, advice)


def _troubles(pipeline: Pipeline) -> Iterator[Symptom]:
    name = pipeline.name
    if pipeline.recovery_level > 0:
        yield Symptom(
            "recovery", "hold", f"{name} is on level L{pipeline.recovery_level} of recovery",
            "Recovery goes first: its restarts look like too few executors. `headrace status` tells more.", name,
        )  # fmt: skip
    if pipeline.failing is not None:
        yield Symptom(
            "failing", "hold", f"{name} fails: {pipeline.failing}",
            "More executors ask what fails even more. Fix storage or Kafka; the lag is caught up then.", name,
        )  # fmt: skip


def _blind(policy: Policy, facts: Facts) -> Iterator[Symptom]:
    advice = "Is the driver's /status reachable, and Kafka? What is wanted stays as it is until they answer."
    if not facts.refused and (facts.executors is None or facts.executors.age_s > policy.facts_age_max_s):
        old = "" if facts.executors is None else f" for {facts.executors.age_s:.0f} s"
        yield Symptom("blind", "hold", f"it is not known{old} which executors there are", advice)
    if not facts.pipelines:
        yield Symptom("blind", "hold", "there are no facts of any pipeline", advice)
    for one in facts.pipelines:
        if one.lag_age_s > policy.facts_age_max_s:
            says = f"Kafka has not answered with the ends of {one.name} for {one.lag_age_s:.0f} s"
            yield Symptom("blind", "hold", says, advice, one.name)
        elif one.age_s > policy.facts_age_max_s:
            yield Symptom("blind", "hold", f"nothing was heard of {one.name} for {one.age_s:.0f} s", advice, one.name)
        elif one.arriving_per_s is None or not one.partitions or any(p.lag_offsets is None for p in one.partitions):
            says = f"Kafka has not answered what waits or arrives of {one.name}"
            yield Symptom("blind", "hold", says, advice, one.name)


def unseen(policy: Policy, pipeline: Pipeline, batches: int) -> Symptom:
    """Say that a pipeline's batches are too few to know a rate."""
    window = window_s(policy, pipeline)
    return Symptom(
        "too_few_batches", "hold",
        f"{pipeline.name} has lag and finished {batches} batches with rows in {window:.0f} s, of {policy.batches_min}",
        "A rate is not known yet. If none ever finishes, `headrace status` says in which phase the batch is.",
        pipeline.name,
    )  # fmt: skip


def pressing(policy: Policy, executors: Executors) -> Iterator[Symptom]:
    """Yield memory pressure: with fewer executors each would hold more."""
    share = executors.gc_share
    if share is not None and share > policy.gc_max:
        yield Symptom(
            "memory_pressure", "no_fewer",
            f"an executor spends {share:.0%} of its tasks' time in garbage collection, over {policy.gc_max:.0%}",
            "Give executors more memory, or lower memory.buffer; the number of executors is not lowered meanwhile.",
        )  # fmt: skip


def stuck(policy: Policy, pipelines: Sequence[Pipeline]) -> Iterator[Symptom]:
    """Yield partitions that no batch moves; their lag asks for no executors."""
    for pipeline in pipelines:
        for one in pipeline.partitions:
            if is_stuck(policy, pipeline, one):
                yield Symptom(
                    "stuck_partition", "note",
                    f"{one.topic}/{one.partition} stands still for {one.batches_unmoved} batches, "
                    f"with {one.lag_offsets:,} offsets that wait",
                    "Its lag is left out. Is its leader there, or a transaction open? `headrace status` names it.",
                    pipeline.name,
                )  # fmt: skip


def limited(loads: Sequence[Load]) -> Iterator[Symptom]:
    """Yield pipelines whose rate limit makes them late; what is beyond it asks for no executors."""
    for load in loads:
        one, asked = load.pipeline, load.need
        if asked.limited and one.rate_limit_per_s is not None:
            behind = asked.backlog / asked.catch_up_duration_s
            yield Symptom(
                "rate_limited", "note",
                f"{one.name} may commit {one.rate_limit_per_s:,.0f}/s, and {asked.arriving + behind:,.0f}/s would be "
                "needed to keep up: its lag is the rate limit's",
                "It asks for no executors beyond its limit. `headrace limit` raises it, and --off ends it.", one.name,
            )  # fmt: skip


def redirecting(
    policy: Policy, memory: Memory, loads: Sequence[Load], executors: Executors, desired: int, growth: Growth
) -> Iterator[Symptom]:
    """Yield what makes more executors useless, now that more are wanted. The first is the one to fix."""
    for load in loads:
        yield from _capped(policy, load)
        yield from _driver(policy, load)
        yield from _skewed(policy, load)
        yield from _few(load, desired, executors.slots, growth)
    if memory.block is not None and desired >= memory.block.executors:
        yield Symptom(
            "ineffective", "no_more",
            f"the last executors, up to {memory.block.executors}, brought {memory.block.yield_:.0%} of what was "
            f"expected; none is added until {memory.block.until:%H:%M}",
            "Something else is the limit: storage, the brokers, the network, or another job on the same machines.",
        )  # fmt: skip


def _capped(policy: Policy, load: Load) -> Iterator[Symptom]:
    one, seen = load.pipeline, load.rate
    limit = one.records_max / max(one.trigger_s, seen.overhead_s, 1e-9)
    if seen.rows_max >= policy.cap_share * one.records_max and load.need.up > limit:
        yield Symptom(
            "admission_capped", "no_more",
            f"{one.name} takes {one.records_max:,} records a batch, the most it is let, and one batch in "
            f"{max(one.trigger_s, seen.overhead_s):.0f} s at best: {limit:,.0f}/s, of {load.need.up:,.0f}/s needed",
            "Raise commit.max_records at the next restart; executors would wait for the next batch.", one.name,
        )  # fmt: skip


def _driver(policy: Policy, load: Load) -> Iterator[Symptom]:
    one, seen = load.pipeline, load.rate
    endless = capacity(one, seen, _FAR, Growth(_FAR)) if one.min_partitions else None
    helpless = endless is not None and endless < load.need.up
    if seen.overhead_share > policy.driver_share_max and (load.need.late_s > 0 or helpless):
        yield Symptom(
            "driver_bound", "no_more",
            f"{seen.overhead_share:.0%} of a batch of {one.name} is the driver's own: {seen.overhead_s:.1f} s of "
            f"{seen.seconds:.1f} s, in which executors wait",
            "Raise commit.min_records or max_delay for larger batches; `headrace explain` says which phase takes it.",
            one.name,
        )  # fmt: skip


def _skewed(policy: Policy, load: Load) -> Iterator[Symptom]:
    if load.rate.skew is not None and load.rate.skew > policy.skew_max:
        yield Symptom(
            "skew", "no_more",
            f"the longest task of {load.pipeline.name} takes {load.rate.skew:.1f} times the median, "
            f"over {policy.skew_max:g}: slots wait for one partition",
            "Raise autoscaler.executors_max, as ranges are cut for so many, or spread the keys of the topic.",
            load.pipeline.name,
        )  # fmt: skip


def _few(load: Load, desired: int, slots_each: int, growth: Growth) -> Iterator[Symptom]:
    """All slots that have ranges to read work already."""
    one, ranges = load.pipeline, ranges_max(load.pipeline)
    if ranges > desired * slots_each or load.need.up <= capacity(one, load.rate, ranges, growth):
        return
    read = max(len(one.partitions), one.min_partitions)
    files = ranges < read
    yield Symptom(
        "few_ranges", "no_more",
        f"a batch of {one.name} has {ranges} tasks at most, and {desired * slots_each} slots are there: "
        + ("it is let no more than so many files" if files else "its ranges are no more"),
        "Raise commit.max_records, or lower roll.target_file_size." if files
        else "Raise autoscaler.executors_max and restart: a full batch is cut into as many ranges as that has slots.",
        one.name,
    )  # fmt: skip
