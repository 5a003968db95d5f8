"""Capacity of executors and the demand on them, by the true rates of DS2 (OSDI 2018). Pure.

A slot's true rate is what it carries while it works: the driver's part of a batch and the slots that wait for a last
wave are taken out. So it does not change with the number of executors, and one measured rate tells what others do.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, median_high
from typing import Literal

from autoscaler.decision.facts import Batch, Partition, Pipeline
from autoscaler.decision.policy import Policy

_FIT_BATCHES_MIN = 5  # a line through fewer is chance
_FIT_SPREAD_MIN = 1.5  # and through batches of one size
_FIXED_SHARE_MAX = 0.5  # of the shortest batch's tasks: more than that is noise
_GUESS_S = 60.0  # between batches, before two were seen
Which = Literal["up", "target", "down"]  # of the needs


@dataclass(frozen=True)
class Rate:
    """What the finished batches of a pipeline show."""

    batches: int
    interval_s: float  # between their beginnings, median
    seconds: float  # that one takes, median
    overhead_s: float  # of that, whatever its rows and slots: the driver's, and what tasks cost before their first row
    overhead_share: float
    rows_max: int
    per_slot_per_s: float  # records that a slot carries in a second of work, median: a batch may have met an outage
    skew: float | None  # longest task over the median one; median of the batches


@dataclass(frozen=True)
class RequiredRates:
    """What a pipeline asks for, in records a second. Each is arrivals over a utilisation, and the backlog's share.

    The formula is that of Flink's autoscaler: lag / catch-up + rate * restart / catch-up + rate / utilisation. Here the
    restart is the time in which executors come, and only what those at hand do not carry piles up meanwhile.
    """

    arriving: float
    lag_offsets: int
    backlog: float  # of them, beyond what waits in good order
    late_s: float  # that the oldest has waited beyond it
    catch_up_duration_s: float
    up: float  # what must be carried, else there are too few executors
    target: float  # what is to be carried after a change
    down: float  # what fewer executors must still carry with ease
    meanwhile: float = 0.0  # of the target: what piles up until new executors work
    limited: bool = False  # its rate limit is below arrivals and backlog: the lag asks for no executors


@dataclass(frozen=True)
class Load:
    """A pipeline's rate and need together."""

    pipeline: Pipeline
    rate: Rate
    need: RequiredRates


@dataclass(frozen=True)
class Growth:
    """How capacity grows with slots: in proportion up to those at hand, then `yield_` of it."""

    slots: int
    yield_: float = 1.0


def window_s(policy: Policy, pipeline: Pipeline) -> float:
    """Seconds over which rates are means: enough batches must lie in it."""
    return max(policy.window_s, policy.window_batches * interval_s(pipeline.batches))


def interval_s(batches: Sequence[Batch]) -> float:
    """Seconds between the beginnings of batches, as it was of late."""
    late = batches[-6:]
    steps = [(b.began - a.began).total_seconds() for a, b in pairwise(late)]
    return max(1.0, median(steps)) if steps else _GUESS_S


def worth(ranges: int, slots: int) -> float:
    """How many slots work all the time, of these: ranges go in waves, and the last one leaves some idle.

    48 ranges on 40 slots take two waves, as long as on 24 slots.
    """
    return ranges / math.ceil(ranges / slots)


def batch_worth(batch: Batch) -> float:
    """How many slots worked all the time in a batch."""
    return worth(batch.ranges, min(batch.tasks, batch.slots))


def rate(batches: Sequence[Batch]) -> Rate | None:
    """Work out what these batches show; None where they show nothing."""
    full = [batch for batch in batches if batch.rows > 0]
    if not full:
        return None
    fixed = _fixed_s(full)
    speeds = [
        one.rows / (max(one.tasks_s - fixed, one.tasks_s * _FIXED_SHARE_MAX, 1e-3) * batch_worth(one)) for one in full
    ]
    overhead = median(max(0.0, batch.seconds - batch.tasks_s) for batch in full) + fixed
    seconds = median(batch.seconds for batch in full)
    skews = [batch.skew for batch in full if batch.skew is not None]
    return Rate(
        batches=len(full),
        interval_s=interval_s(batches),
        seconds=seconds,
        overhead_s=overhead,
        overhead_share=min(1.0, overhead / seconds) if seconds > 0 else 0.0,
        rows_max=max(batch.rows for batch in full),
        per_slot_per_s=median_high(speeds),
        skew=median(skews) if skews else None,
    )


def _fixed_s(batches: Sequence[Batch]) -> float:
    """Seconds of the tasks that no row explains: where a line through rows a slot and seconds begins.

    Only of batches on as many slots as the last: a hot partition costs more where slots are many.
    """
    batches = [batch for batch in batches if batch.slots == batches[-1].slots]
    rows = [batch.rows / batch_worth(batch) for batch in batches]
    if len(rows) < _FIT_BATCHES_MIN or max(rows) < _FIT_SPREAD_MIN * min(rows):
        return 0.0
    seconds = [batch.tasks_s for batch in batches]
    middle, height = sum(rows) / len(rows), sum(seconds) / len(seconds)
    spread = sum((x - middle) ** 2 for x in rows)
    slope = sum((x - middle) * (y - height) for x, y in zip(rows, seconds, strict=True)) / spread
    return min(max(0.0, height - slope * middle), min(seconds) * _FIXED_SHARE_MAX)


def need(policy: Policy, pipeline: Pipeline, seen: Rate, start_s: float, carried_per_s: float) -> RequiredRates | None:
    """Compute a pipeline's need; None if Kafka did not report its lag or arrivals.

    What waits less than max_delay and a batch is in good order: the lag of every pipeline goes up and down so far.
    A partition that is stuck is left out: no executor moves it. `carried_per_s`: what those that are there carry.
    More than its rate limit no number of executors may carry; while that is what makes it late, it does not count as
    late.
    """
    if pipeline.arriving_per_s is None or any(one.lag_offsets is None for one in pipeline.partitions):
        return None
    arriving = max(pipeline.arriving_per_s, pipeline.arriving_lately_per_s or 0.0)
    moving = [one for one in pipeline.partitions if not is_stuck(policy, pipeline, one)]
    lag = sum(one.lag_offsets or 0 for one in moving)
    good_s = pipeline.delay_max_s + min(seen.seconds, pipeline.delay_max_s)
    backlog = max(0.0, lag - arriving * good_s)
    late_s = max(0.0, max((one.lag_s or 0.0 for one in moving), default=0.0) - good_s)
    catch_up_duration_s = policy.catch_up_duration_s
    if pipeline.headroom_s is not None:
        catch_up_duration_s = max(1.0, min(catch_up_duration_s, pipeline.headroom_s * policy.headroom_share))
    behind = backlog / catch_up_duration_s
    meanwhile = max(0.0, arriving - carried_per_s) * start_s / catch_up_duration_s  # piles up until new executors work
    most = math.inf if pipeline.rate_limit_per_s is None else pipeline.rate_limit_per_s
    limited = arriving + behind > most
    return RequiredRates(
        arriving=arriving, lag_offsets=lag, backlog=backlog, late_s=0.0 if limited else late_s,
        catch_up_duration_s=catch_up_duration_s,
        up=min(most, arriving / policy.utilization_max + behind),
        target=min(most, arriving / policy.utilization_target + behind + meanwhile),
        down=min(most, arriving / policy.utilization_min + behind + meanwhile),
        meanwhile=meanwhile, limited=limited,
    )  # fmt: skip


def is_stuck(policy: Policy, pipeline: Pipeline, one: Partition) -> bool:
    """A partition is stuck when batches came and went, and it has lag and stood still."""
    return bool(one.lag_offsets) and one.batches_unmoved >= policy.stuck_batches and len(pipeline.partitions) > 1


def ranges_max(pipeline: Pipeline) -> int:
    """How many pieces a full batch is read in at once: its partitions, more where they are split, no more than tasks.

    Slots beyond it have nothing to do.
    """
    ranges = max(len(pipeline.partitions), pipeline.min_partitions, 1)
    if pipeline.records_per_task is None:
        return ranges
    tasks = round(pipeline.records_max / pipeline.records_per_task)
    if pipeline.partitions_per_task is not None:
        tasks = max(tasks, math.ceil(len(pipeline.partitions) / pipeline.partitions_per_task))
    return min(ranges, max(1, tasks))


def capacity(pipeline: Pipeline, seen: Rate, slots: int, growth: Growth) -> float:
    """Records a second that a pipeline alone carries for ever on so many slots, no batch longer than max_delay.

    With S records a second of all slots and an overhead o: batches as long as the delay D carry S (D - o) / D. Where
    that is more than a batch may take, full batches R follow each other: R / max(trigger, o + R / S).
    """
    ranges = ranges_max(pipeline)
    whole, had = worth(ranges, slots), worth(ranges, growth.slots)
    useful = whole if whole <= had else had + growth.yield_ * (whole - had)
    speed = seen.per_slot_per_s * useful
    delay_s = max(pipeline.delay_max_s, pipeline.trigger_s)
    whole_delay = speed * max(0.0, 1 - seen.overhead_s / delay_s)
    full = pipeline.records_max / max(pipeline.trigger_s, seen.overhead_s + pipeline.records_max / speed)
    return min(whole_delay, full) if whole_delay * delay_s > pipeline.records_max else whole_delay


def used(loads: Iterable[Load], which: Which, slots: int, growth: Growth) -> float:
    """Share of the slots that these needs take: each pipeline's need over what it could carry alone, summed."""
    total = 0.0
    for load in loads:
        asked: float = getattr(load.need, which)
        if asked <= 0:
            continue
        can = capacity(load.pipeline, load.rate, slots, growth)
        total += asked / can if can > 0 else math.inf
    return total


def least(loads: Sequence[Load], which: Which, slots_each: int, growth: Growth, most: int) -> int | None:
    """Return the least number of executors, up to `most`, that carry these needs; None where even they do not."""
    if used(loads, which, most * slots_each, growth) > 1:
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if used(loads, which, middle * slots_each, growth) <= 1:
            high = middle
        else:
            low = middle + 1
    return low
