"""Runs a policy through a trace, and computes its cost and its lag."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise

from headrace.autoscaler.decision.policy import DEFAULTS, Policy
from headrace.bench.simulation.baselines import Busy, Dynamic, FixedExecutors, Flink, HeadracePolicy, Scaler, Threshold
from headrace.bench.simulation.simulator import BEGAN, SimulatedPipeline
from headrace.bench.simulation.trace import Trace
from headrace.writer.output.report import SCREEN_ONLY

# A change that goes back on another within this time is a reversal.
REVERSAL_S = 1800.0
# Seconds of an executor's work that may wait for each executor.
THRESHOLDS_S = (30, 60, 120, 240)
_EQUAL_WITHIN = 0.02
_SEARCHES_MAX = 9
# Seconds between points of a plot.
_EVERY_S = 60.0
_LEAST_S = 5.0
_MOST_S = 1_200.0


@dataclass(frozen=True)
class Point:
    """A moment of a run, for plots."""

    at_s: float
    arriving_per_s: float
    late_s: float
    wanted: int
    registered: int


@dataclass(frozen=True)
class Score:
    """What a policy cost and was worth on a trace."""

    trace: str
    policy: str
    setting: str
    executor_hours: float
    # Minutes with a lag beyond max_delay over the SLO, without the outages themselves.
    minutes_over_slo: float
    scalings: int
    reversals: int
    late_max_s: float
    points: tuple[Point, ...] = field(default=(), metadata=SCREEN_ONLY)


def play(trace: Trace, scaler: Scaler, policy: Policy = DEFAULTS, setting: str = "") -> Score:
    """Run a policy through a trace."""
    world = SimulatedPipeline(trace, policy)
    points = list[Point]()
    changes = list[tuple[float, int]]()
    minutes_over_slo = late_max = 0.0
    at_s = policy.interval_s
    next_s = 0.0
    while at_s <= trace.lasts_s - trace.step_s:
        world.advance(at_s)
        before = world.wanted
        if at_s >= next_s:
            next_s = at_s + scaler.every_s
            busy = Busy(world.tasks_running(), world.idle_s())
            world.ask(scaler.choose_executors(world.look(), busy, BEGAN + timedelta(seconds=at_s)))
        if world.wanted != before:
            changes.append((at_s, 1 if world.wanted > before else -1))
        late = max(0.0, world.late_s() - trace.delay_max_s)
        late_max = max(late_max, late)
        if late > policy.lag_slo_s and not world.is_out():
            minutes_over_slo += policy.interval_s / 60
        if at_s % _EVERY_S < policy.interval_s:
            points.append(Point(at_s, world.arriving_per_s(), late, world.wanted, world.registered))
        at_s += policy.interval_s
    return Score(
        trace.name,
        scaler.name,
        setting,
        round(world.executor_s / 3600, 1),
        round(minutes_over_slo, 1),
        len(changes),
        reversals(changes),
        round(late_max, 1),
        tuple(points),
    )


def reversals(changes: Sequence[tuple[float, int]]) -> int:
    """Count the changes that go back on the one before within half an hour. A change is an instant and +1 or -1."""
    return sum(earlier[1] != later[1] and later[0] - earlier[0] < REVERSAL_S for earlier, later in pairwise(changes))


def ours(trace: Trace, policy: Policy) -> Score:
    """Play headrace's policy, with the limits of the trace."""
    return play(trace, HeadracePolicy(_within(trace, policy)), policy, "defaults" if policy == DEFAULTS else "as set")


def _within(trace: Trace, policy: Policy) -> Policy:
    return replace(policy, max_executors=min(policy.max_executors, trace.max_executors))


def useful_max(trace: Trace) -> int:
    """How many executors have a range to read."""
    return min(trace.max_executors, math.ceil(max(trace.partitions, trace.min_partitions) / trace.cores))


def threshold(trace: Trace, seconds: float, policy: Policy = DEFAULTS) -> Score:
    """Play a lag threshold: so many seconds of an executor's work may wait for each executor."""
    records = seconds * trace.per_slot_per_s * trace.cores
    return play(trace, Threshold(records, useful_max(trace)), policy, f"{seconds:.0f} s")


def equal(trace: Trace, executor_hours: float, policy: Policy = DEFAULTS) -> Score:
    """Find the lag threshold that costs as much, and play it; the nearest where none does."""
    low = _LEAST_S
    high = _MOST_S
    best: Score | None = None
    for _ in range(_SEARCHES_MAX):
        middle = math.sqrt(low * high)
        score = threshold(trace, middle, policy)
        if best is None or abs(score.executor_hours - executor_hours) < abs(best.executor_hours - executor_hours):
            best = score
        if abs(score.executor_hours / executor_hours - 1) <= _EQUAL_WITHIN:
            break
        low, high = (middle, high) if score.executor_hours > executor_hours else (low, middle)
    assert best is not None
    return replace(best, policy="lag threshold of equal cost")


def compare(trace: Trace, policy: Policy, names: Iterable[str]) -> list[Score]:
    """Play headrace and the named rivals: static, dynamic, threshold, equal, flink."""
    scores = [ours(trace, policy)]
    rivals = list(names)
    hours = scores[0].executor_hours
    most = useful_max(trace)
    days = trace.lasts_s / 86_400
    if "static" in rivals:
        mean = max(1, math.ceil(hours / 24 / days))
        scores.append(play(trace, FixedExecutors(most, "static, all of use"), policy, f"{most} executors"))
        scores.append(play(trace, FixedExecutors(mean, "static of equal cost"), policy, f"{mean} executors"))
    if "dynamic" in rivals:
        scores.append(play(trace, Dynamic(most), policy, "defaults"))
    if "flink" in rivals:
        scores.append(play(trace, Flink(most), policy, "defaults"))
    if "threshold" in rivals:
        scores += [threshold(trace, seconds, policy) for seconds in THRESHOLDS_S]
    if "equal" in rivals:
        scores.append(equal(trace, hours, policy))
    return scores


RIVALS = ("static", "dynamic", "flink", "threshold", "equal")
