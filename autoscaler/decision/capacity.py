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

from headrace.autoscaler.decision.facts import Batch, Partition, Pipeline
from headrace.autoscaler.decision.policy import Policy

# A line through fewer batches is chance, and so is one through batches of one size.
_FIT_BATCHES_MIN = 5
_FIT_SPREAD_MIN = 1.5
# The fixed cost is at most this share of the shortest batch's tasks: more than that is noise.
_FIXED_SHARE_MAX = 0.5
# Time between batches, before two of them finished.
_DEFAULT_INTERVAL_S = 60.0
_INTERVAL_BATCHES = 6
# A field of `RequiredRates`.
NeedKind = Literal["up", "target", "down"]


@dataclass(frozen=True)
class Rate:
    """What the finished batches of a pipeline show."""

    batches: int
    # Between the beginnings of batches, median.
    interval_s: float
    # Duration of a batch, median.
    seconds: float
    # Part of it that depends on neither offsets nor slots: the driver's, and what tasks cost before their first record.
    overhead_s: float
    overhead_share: float
    offsets_max: int
    # Offsets that a slot carries in a second of work, median: a batch may have met an outage.
    per_slot_per_s: float
    # The longest task over the median one; median of the batches.
    skew: float | None


@dataclass(frozen=True)
class RequiredRates:
    """What a pipeline asks for, in offsets a second. Each is arrivals over a utilisation, and the backlog's share.

    The formula is that of Flink's autoscaler: lag / catch-up + rate * restart / catch-up + rate / utilisation. Here the
    restart is the time in which executors come, and only what those at hand do not carry piles up meanwhile.
    """

    arriving: float
    lag_offsets: int
    # Offsets of the lag beyond what waits in good order.
    backlog: float
    # How much longer than in good order the oldest record has waited.
    late_s: float
    catch_up_duration_s: float
    # The rate below which there are too few executors.
    up: float
    # The rate to carry after a change.
    target: float
    # The rate that fewer executors must still carry with ease.
    down: float
    # Part of the target: what piles up until new executors work.
    meanwhile: float = 0.0
    # The rate limit is below arrivals and backlog: the lag asks for no executors.
    limited: bool = False


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
    """Return the seconds over which rates are means: enough batches must lie in it."""
    return max(policy.window_s, policy.window_batches * batch_interval_s(pipeline.batches))


def batch_interval_s(batches: Sequence[Batch]) -> float:
    """Return the seconds between the beginnings of the last batches, their median."""
    intervals = [
        (batch.began - previous.began).total_seconds() for previous, batch in pairwise(batches[-_INTERVAL_BATCHES:])
    ]
    if not intervals:
        return _DEFAULT_INTERVAL_S
    return max(1.0, median(intervals))


def busy_slots(ranges: int, slots: int) -> float:
    """Return how many of these slots work all the time: ranges go in waves, and the last one leaves some idle.

    48 ranges on 40 slots take two waves, as long as on 24 slots.
    """
    return ranges / math.ceil(ranges / slots)


def batch_busy_slots(batch: Batch) -> float:
    """Return how many slots worked all the time in a batch."""
    return busy_slots(batch.ranges, min(batch.tasks, batch.slots))


def measure_rate(batches: Sequence[Batch]) -> Rate | None:
    """Return what these batches show; None where none has offsets."""
    full = [batch for batch in batches if batch.offsets > 0]
    if not full:
        return None
    fixed_s = _fixed_cost_s(full)
    overhead_s = median(max(0.0, batch.seconds - batch.tasks_s) for batch in full) + fixed_s
    seconds = median(batch.seconds for batch in full)
    skews = [batch.skew for batch in full if batch.skew is not None]
    return Rate(
        batches=len(full),
        interval_s=batch_interval_s(batches),
        seconds=seconds,
        overhead_s=overhead_s,
        overhead_share=min(1.0, overhead_s / seconds) if seconds > 0 else 0.0,
        offsets_max=max(batch.offsets for batch in full),
        per_slot_per_s=median_high(_slot_rate(batch, fixed_s) for batch in full),
        skew=median(skews) if skews else None,
    )


def _slot_rate(batch: Batch, fixed_s: float) -> float:
    """Return the offsets that a slot carried in a second of work, after the fixed cost of its tasks."""
    work_s = max(batch.tasks_s - fixed_s, batch.tasks_s * _FIXED_SHARE_MAX, 1e-3)
    return batch.offsets / (work_s * batch_busy_slots(batch))


def _fixed_cost_s(batches: Sequence[Batch]) -> float:
    """Return the seconds of the tasks that no offset explains: where a line through offsets a slot and seconds begins.

    The line is fitted by least squares. It counts only batches on as many slots as the last: a hot partition costs more
    where slots are many.
    """
    batches = [batch for batch in batches if batch.slots == batches[-1].slots]
    offsets = [batch.offsets / batch_busy_slots(batch) for batch in batches]
    if len(offsets) < _FIT_BATCHES_MIN or max(offsets) < _FIT_SPREAD_MIN * min(offsets):
        return 0.0
    seconds = [batch.tasks_s for batch in batches]
    mean_offsets = sum(offsets) / len(offsets)
    mean_s = sum(seconds) / len(seconds)
    squares = sum((x - mean_offsets) ** 2 for x in offsets)
    products = sum((x - mean_offsets) * (y - mean_s) for x, y in zip(offsets, seconds, strict=True))
    slope = products / squares
    intercept_s = max(0.0, mean_s - slope * mean_offsets)
    return min(intercept_s, min(seconds) * _FIXED_SHARE_MAX)


def compute_need(
    policy: Policy, pipeline: Pipeline, rate: Rate, start_s: float, carried_per_s: float
) -> RequiredRates | None:
    """Return a pipeline's need; None if Kafka did not report its lag or arrivals.

    What waits less than max_delay and a batch is in good order: the lag of every pipeline goes up and down so far.
    A partition that is stuck is left out: no executor moves it. More than its rate limit no number of executors may
    carry; while that is what makes it late, it does not count as late.

    `start_s`: what executors take to come. `carried_per_s`: the offsets a second that the present ones carry.
    """
    if pipeline.arriving_per_s is None or any(partition.lag_offsets is None for partition in pipeline.partitions):
        return None
    arriving = max(pipeline.arriving_per_s, pipeline.arriving_lately_per_s or 0.0)
    moving = [partition for partition in pipeline.partitions if not is_stuck(policy, pipeline, partition)]
    lag = sum(partition.lag_offsets or 0 for partition in moving)
    oldest_s = max((partition.lag_s or 0.0 for partition in moving), default=0.0)
    normal_wait_s = pipeline.delay_max_s + min(rate.seconds, pipeline.delay_max_s)
    backlog = max(0.0, lag - arriving * normal_wait_s)
    catch_up_duration_s = policy.catch_up_duration_s
    if pipeline.headroom_s is not None:
        catch_up_duration_s = max(1.0, min(catch_up_duration_s, pipeline.headroom_s * policy.headroom_share))
    backlog_rate = backlog / catch_up_duration_s
    # This piles up until new executors work.
    meanwhile = max(0.0, arriving - carried_per_s) * start_s / catch_up_duration_s
    limit = math.inf if pipeline.rate_limit_per_s is None else pipeline.rate_limit_per_s
    limited = arriving + backlog_rate > limit
    late_s = max(0.0, oldest_s - normal_wait_s)
    if limited:
        late_s = 0.0
    return RequiredRates(
        arriving=arriving,
        lag_offsets=lag,
        backlog=backlog,
        late_s=late_s,
        catch_up_duration_s=catch_up_duration_s,
        up=min(limit, arriving / policy.max_utilization + backlog_rate),
        target=min(limit, arriving / policy.utilization_target + backlog_rate + meanwhile),
        down=min(limit, arriving / policy.min_utilization + backlog_rate + meanwhile),
        meanwhile=meanwhile,
        limited=limited,
    )


def is_stuck(policy: Policy, pipeline: Pipeline, partition: Partition) -> bool:
    """Return whether a partition has lag and stood still while batches came and went."""
    has_lag = bool(partition.lag_offsets)
    return has_lag and partition.batches_unmoved >= policy.stuck_batches and len(pipeline.partitions) > 1


def ranges_max(pipeline: Pipeline) -> int:
    """Return how many pieces a full batch is read in at once: its partitions, more if split, no more than tasks.

    Slots beyond it have nothing to do.
    """
    ranges = max(len(pipeline.partitions), pipeline.min_partitions, 1)
    if pipeline.offsets_per_task is None:
        return ranges
    tasks = round(pipeline.offsets_max / pipeline.offsets_per_task)
    if pipeline.partitions_per_task is not None:
        tasks = max(tasks, math.ceil(len(pipeline.partitions) / pipeline.partitions_per_task))
    return min(ranges, max(1, tasks))


def capacity(pipeline: Pipeline, rate: Rate, slots: int, growth: Growth) -> float:
    """Return the offsets a second that a pipeline alone carries for ever on so many slots, within max_delay.

    With S offsets a second of all slots and an overhead o: batches as long as the delay D carry S (D - o) / D. Where
    that is more than a batch may take, full batches R follow each other: R / max(trigger, o + R / S).
    """
    speed = rate.per_slot_per_s * _useful_slots(ranges_max(pipeline), slots, growth)
    delay_s = max(pipeline.delay_max_s, pipeline.trigger_s)
    by_delay = speed * max(0.0, 1 - rate.overhead_s / delay_s)
    if by_delay * delay_s <= pipeline.offsets_max:
        return by_delay
    full_batch_s = rate.overhead_s + pipeline.offsets_max / speed
    by_records = pipeline.offsets_max / max(pipeline.trigger_s, full_batch_s)
    return min(by_delay, by_records)


def _useful_slots(ranges: int, slots: int, growth: Growth) -> float:
    """Return the busy ones of these slots; those beyond the slots at hand count by their yield."""
    busy = busy_slots(ranges, slots)
    busy_now = busy_slots(ranges, growth.slots)
    if busy <= busy_now:
        return busy
    return busy_now + growth.yield_ * (busy - busy_now)


def used_share(loads: Iterable[Load], kind: NeedKind, slots: int, growth: Growth) -> float:
    """Return the share of the slots that these needs take: each need over what its pipeline carries alone, summed."""
    share = 0.0
    for load in loads:
        need: float = getattr(load.need, kind)
        if need <= 0:
            continue
        carried = capacity(load.pipeline, load.rate, slots, growth)
        if carried <= 0:
            return math.inf
        share += need / carried
    return share


def least_executors(
    loads: Sequence[Load], kind: NeedKind, slots_each: int, growth: Growth, max_executors: int
) -> int | None:
    """Return the least number of executors that carry these needs; None where even `max_executors` do not."""
    if used_share(loads, kind, max_executors * slots_each, growth) > 1:
        return None
    low = 1
    high = max_executors
    while low < high:
        middle = (low + high) // 2
        if used_share(loads, kind, middle * slots_each, growth) <= 1:
            high = middle
        else:
            low = middle + 1
    return low
