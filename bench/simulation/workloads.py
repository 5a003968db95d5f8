"""Synthetic days: each tests another property of a policy. A seed gives the same day on any machine."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from headrace.bench.simulation.trace import HotPartition, Trace
from headrace.writer.config.base import did_you_mean
from headrace.writer.core.errors import ConfigError

_STEP_S = 15.0
_DAY_S = 86_400.0
_HOUR_S = 3600.0
Line = npt.NDArray[np.float64]


def _seconds() -> Line:
    return np.arange(0.0, _DAY_S, _STEP_S)


def _wave(seconds: Line, mean: float, swing: float, peak_h: float) -> Line:
    return mean * (1 + swing * np.cos(2 * np.pi * (seconds - peak_h * _HOUR_S) / _DAY_S))


def _noise(count: int, seed: int, sigma: float = 0.08, memory: float = 0.9) -> Line:
    """Factors around 1 that follow each other: a busy minute is followed by a busy one."""
    steps = np.random.default_rng(seed).normal(0.0, sigma * np.sqrt(1 - memory**2), count)
    noise = np.empty(count)
    value = 0.0
    for i, step in enumerate(steps):
        value = memory * value + step
        noise[i] = value
    return np.exp(noise)


def _arrivals(line: Line, seed: int, sigma: float = 0.08) -> tuple[float, ...]:
    return tuple(np.round(line * _noise(len(line), seed, sigma), 1).tolist())


def _burst(seconds: Line, from_h: float, lasts_min: float, factor: float) -> Line:
    inside = (seconds >= from_h * _HOUR_S) & (seconds < from_h * _HOUR_S + lasts_min * 60)
    return np.where(inside, factor, 1.0)


def day() -> Trace:
    """Make a day with its night, a burst at the trough and an outage at the peak."""
    seconds = _seconds()
    line = _wave(seconds, 120e3, 0.45, 20) * _burst(seconds, 7, 45, 2.6)
    return Trace(
        "day",
        "a day and its night, a burst to 2.6 times, half an hour of outage at the peak",
        _STEP_S,
        _arrivals(line, 11),
        outages=((19.5 * _HOUR_S, 20 * _HOUR_S),),
        seed=11,
        purpose="tuned",
    )


def step() -> Trace:
    """Make a day in which load triples at once, and falls at once."""
    seconds = _seconds()
    line = np.where((seconds >= 8 * _HOUR_S) & (seconds < 16 * _HOUR_S), 190e3, 65e3)
    about = "three times the load from 08:00 to 16:00, at once"
    return Trace("step", about, _STEP_S, _arrivals(line, 12), seed=12, purpose="tuned")


def burst() -> Trace:
    """Make flash crowds: steep, and gone within half an hour."""
    seconds = _seconds()
    line = np.full_like(seconds, 55e3)
    for from_h in (2.2, 6.7, 10.1, 13.9, 17.4, 21.5):
        since = seconds - from_h * _HOUR_S
        line += np.where(since >= 0, 160e3 * np.minimum(1, since / 120) * np.exp(-np.maximum(0, since) / 900), 0)
    about = "six flash crowds: four times the load within two minutes, gone within the hour"
    return Trace("burst", about, _STEP_S, _arrivals(line, 13), seed=13, purpose="untuned")


def outage() -> Trace:
    """Make two hours of outage, and ranges that may be split to catch up."""
    seconds = _seconds()
    return Trace(
        "outage",
        "two hours of outage; ranges are split, so executors beyond the partitions help",
        _STEP_S,
        _arrivals(_wave(seconds, 100e3, 0.2, 14), 14),
        outages=((9 * _HOUR_S, 11 * _HOUR_S),),
        min_partitions=96,
        seed=14,
        purpose="tuned",
    )


def hourly() -> Trace:
    """Make jobs that produce at each full hour."""
    seconds = _seconds()
    line = np.where(seconds % _HOUR_S < 6 * 60, 3.0, 1.0) * 60e3
    about = "six minutes of three times the load, at each full hour"
    return Trace("hourly", about, _STEP_S, _arrivals(line, 15), seed=15, purpose="tuned")


def growth() -> Trace:
    """Make a day that never stops growing."""
    seconds = _seconds()
    line = 40e3 + 180e3 * seconds / _DAY_S
    return Trace("growth", "from 40 K/s to 220 K/s, all day", _STEP_S, _arrivals(line, 16), seed=16, purpose="untuned")


def skew() -> Trace:
    """Make a partition hot for six hours."""
    seconds = _seconds()
    return Trace(
        "skew",
        "one partition of 48 gets eight times its share from 12:00 to 18:00",
        _STEP_S,
        _arrivals(_wave(seconds, 90e3, 0.3, 20), 17),
        hot=(HotPartition(5, 12 * _HOUR_S, 18 * _HOUR_S, 8.0),),
        seed=17,
        purpose="untuned",
    )


def slow() -> Trace:
    """Make a quiet topic with the writer's own defaults: a commit in ten minutes, or when a file is full."""
    seconds = _seconds()
    return Trace(
        "slow",
        "max_delay of 10 min, batches by size: the writer's defaults, 3 to 45 K/s, a burst",
        _STEP_S,
        _arrivals(_wave(seconds, 24e3, 0.85, 15) * _burst(seconds, 4, 60, 3.0), 18),
        partitions=12,
        trigger_s=1.0,
        delay_max_s=600.0,
        offsets_min=2_200_000,
        offsets_max=20_000_000,
        executors_first=1,
        cores=2,
        per_slot_per_s=5_000.0,
        min_partitions=24,
        max_executors=12,
        seed=18,
        purpose="untuned",
    )


def weekend() -> Trace:
    """Make a day with two peaks, on small executors that come slowly."""
    seconds = _seconds()
    humps = np.exp(-((seconds / _HOUR_S - 11) ** 2) / 6) + 1.2 * np.exp(-((seconds / _HOUR_S - 20.5) ** 2) / 4)
    return Trace(
        "weekend",
        "two peaks, 24 partitions, executors of 2 cores that take two minutes to come",
        _STEP_S,
        _arrivals(20e3 + 75e3 * humps, 19, 0.12),
        partitions=24,
        cores=2,
        delay_max_s=120.0,
        trigger_s=30.0,
        start_s=120.0,
        max_executors=12,
        overhead_s=6.0,
        seed=19,
        purpose="held out",
    )


def storm() -> Trace:
    """Make a day without a plan: a random walk, bursts and two short outages."""
    seconds = _seconds()
    rng = np.random.default_rng(20)
    random_walk = np.repeat(np.cumsum(rng.normal(0, 0.12, 96)), len(seconds) // 96)
    line = 90e3 * np.exp(np.clip(random_walk - random_walk.mean(), -0.8, 0.65))
    for from_h in rng.uniform(1, 23, 5):
        line = line * _burst(seconds, float(from_h), float(rng.uniform(5, 25)), float(rng.uniform(1.5, 2.5)))
    return Trace(
        "storm",
        "a random walk, five bursts, two outages of ten minutes, half the night noisy",
        _STEP_S,
        _arrivals(line, 20, 0.15),
        partitions=60,
        share_max=2.2,
        contention=0.004,
        start_s=90.0,
        outages=((5.2 * _HOUR_S, 5.37 * _HOUR_S), (15.6 * _HOUR_S, 15.77 * _HOUR_S)),
        seed=20,
        purpose="held out",
    )


SHAPES: dict[str, Callable[[], Trace]] = {
    make_trace.__name__: make_trace
    for make_trace in (day, step, burst, outage, hourly, growth, skew, slow, weekend, storm)
}


def shape(name: str) -> Trace:
    """Make the trace of this name. Raises ConfigError."""
    if name not in SHAPES:
        raise ConfigError(f"no trace {name!r}{did_you_mean(name, list(SHAPES))}")
    return SHAPES[name]()
