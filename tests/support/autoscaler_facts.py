"""Facts for the autoscaler's tests: a pipeline in good order, of which each test changes what it is about."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from headrace.autoscaler.decision.decide import Decision, tick
from headrace.autoscaler.decision.facts import Batch, Executors, Facts, Partition, Pipeline
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import Policy

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)  # a Wednesday
SLOT = 10_000.0  # records a second
POLICY = Policy(max_executors=50)


def batches(
    count: int = 10,
    *,
    slots: int,
    offsets: int = 2_400_000,
    ranges: int = 480,
    overhead_s: float = 4.0,
    every_s: float = 60,
    slot: float = SLOT,
    last: datetime = NOW,
    skew: float | None = None,
) -> tuple[Batch, ...]:
    """Make batches that end by `last`; a slot carries `slot` offsets a second, all ranges are of one size."""
    working = ranges / -(-ranges // min(ranges, slots))
    tasks_s = offsets / (slot * working)
    ends = [last - timedelta(seconds=every_s * (count - 1 - i)) for i in range(count)]
    return tuple(
        Batch(
            began=end - timedelta(seconds=tasks_s + overhead_s),
            ended=end,
            offsets=offsets,
            seconds=tasks_s + overhead_s,
            tasks_s=tasks_s,
            tasks=ranges,
            ranges=ranges,
            slots=slots,
            skew=skew,
        )
        for end in ends
    )


def pipeline(
    arriving: float = 40_000, *, executors: int = 2, lag: int = 0, partitions: int = 480, **more: object
) -> Pipeline:
    """Make a pipeline whose batches ran on so many executors of four cores."""
    had = batches(slots=executors * 4, ranges=partitions, offsets=max(1, int(arriving * 60)))
    each, remainder = divmod(lag, partitions)
    given = {
        "name": "clicks",
        "partitions": tuple(Partition("clicks", i, each + (i < remainder)) for i in range(partitions)),
        "arriving_per_s": arriving,
        "arriving_lately_per_s": arriving,
        "batches": had,
        "delay_max_s": 60.0,
        "offsets_max": 10**9,
        "trigger_s": 1.0,
    }
    return Pipeline(**{**given, **more})


def facts(*pipelines: Pipeline, executors: int = 2, now: datetime = NOW, **more: object) -> Facts:
    """Make facts with executors of four cores, all there."""
    given = {"wanted": executors, "registered": executors, "cores": 4}
    return Facts(now, Executors(**{**given, **more}), pipelines)


def decide_once(observed_facts: Facts, memory: Memory | None = None, policy: Policy = POLICY) -> Decision:
    """Decide once."""
    return tick(policy, memory or Memory(), observed_facts, observed_facts.at)[0]


def decide_each(
    facts_by_tick: Sequence[Facts] | Iterable[Facts], memory: Memory | None = None, policy: Policy = POLICY
):
    """Decide on facts one after the other; executors are there at once. Returns decisions and the memory."""
    decisions = []
    memory = memory or Memory()
    for observed in facts_by_tick:
        executors = memory.desired if memory.desired is not None else observed.executors.registered
        current = replace(observed, executors=replace(observed.executors, wanted=executors, registered=executors))
        decision, memory = tick(policy, memory, current, current.at)
        decisions.append(decision)
    return decisions, memory


def minutes(count: float) -> timedelta:
    return timedelta(minutes=count)
