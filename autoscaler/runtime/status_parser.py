"""Reads facts from a driver's `/status`. Pure: documents in, facts out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from autoscaler.decision.capacity import window_s
from autoscaler.decision.facts import Batch, Executors, Partition, Pipeline
from autoscaler.decision.policy import Policy
from writer.core.offsets import Source
from writer.status.lag_sample import LagSample

_IDLE = ("wait", "queue")  # phases in which a batch costs nothing
_SKEW_TASKS_MIN = 3  # the longest of two tasks is no skew


@dataclass(frozen=True)
class PartitionProgress:
    """A partition's frontier, and the newest commit when it was seen to move."""

    frontier: int | None
    version: int


Frontiers = Mapping[Source, PartitionProgress]


def moved(before: Frontiers, commits: Sequence[Mapping[str, Any]], lag: LagSample) -> Frontiers:
    """Record which committed offsets moved since the last call. `commits`: those of `/status`."""
    newest = max((one["version"] for one in commits), default=-1)
    frontiers = dict(before)
    for one in lag.partitions:
        source = one.topic, one.partition
        if source not in before or before[source].frontier != one.frontier:
            frontiers[source] = PartitionProgress(one.frontier, newest)
    return frontiers


def executors(status: Mapping[str, Any] | None, policy: Policy) -> Executors | None:
    """Return the driver's facts about its executors; None if it has none."""
    if status is None or status.get("refused") or status.get("age_seconds") is None:
        return None
    short_s = status["short_seconds"]
    refused = short_s is not None and short_s > policy.start_max_s
    return Executors(
        wanted=status["registered"] if status["requested"] is None else status["requested"],
        registered=status["registered"], draining=len(status["draining"]),
        cores=status["cores"] or 1, cpus_per_task=status["cpus_per_task"],
        gc_share=status["gc_share"],  # of the heap Spark tells the most there ever was: one never collected is full
        quota=status["registered"] if refused else None,
        age_s=status["age_seconds"],
    )  # fmt: skip


def pipeline(
    name: str, status: Mapping[str, Any], lag: LagSample, frontiers: Frontiers, policy: Policy, *, age_s: float,
    lag_age_s: float, clock_ahead: timedelta = timedelta(0), recovery_level: int = 0,
) -> Pipeline:  # fmt: skip
    """Put a pipeline's facts together.

    `status`: its part of `/status`, received `age_s` seconds ago. `lag`: the newest sample, `lag_age_s` seconds old.
    `clock_ahead`: of the clock that decides, over the one that dated the batches.
    """
    limits = status["limits"]
    per_range, most = limits.get("records_per_range"), limits.get("records_max") or 1
    found = Pipeline(
        name=name,
        partitions=partitions(status["commits"], lag, frontiers),
        arriving_per_s=None, arriving_lately_per_s=None,
        batches=batches(status["commits"], clock_ahead),
        delay_max_s=limits.get("delay_max_seconds") or 0.0,
        records_max=most,
        records_per_task=limits.get("records_per_task"),
        partitions_per_task=limits.get("partitions_per_task"),
        min_partitions=math.ceil(most / per_range) if per_range else 0,
        headroom_s=lag.headroom_seconds,
        recovery_level=recovery_level,
        failing=status["error"] or None,
        paused=status["pause"] is not None,
        rate_limit_per_s=rate_limit_per_s(status),
        age_s=age_s,
        lag_age_s=lag_age_s,
    )  # fmt: skip
    lately, mean = lag.arriving_per_s(policy.short_window_s), lag.arriving_per_s(window_s(policy, found))
    return replace(found, arriving_per_s=lately if mean is None else mean, arriving_lately_per_s=lately)


def rate_limit_per_s(status: Mapping[str, Any]) -> float | None:
    """Return how many records a second the pipeline may commit; a limit in bytes goes by the mean of its values."""
    limit = status.get("rate_limit")
    if limit is None:
        return None
    read, value_bytes = status["totals"]["records"]["read"], status["totals"]["value_bytes"]
    found = [limit["records_per_second"]]
    if limit["bytes_per_second"] is not None and read and value_bytes:
        found.append(limit["bytes_per_second"] * read / value_bytes)
    return min((one for one in found if one is not None), default=None)


def partitions(commits: Sequence[Mapping[str, Any]], lag: LagSample, frontiers: Frontiers) -> tuple[Partition, ...]:
    """Return the partitions that Kafka named, and over how many commits with records each stood still."""
    found = []
    for one in lag.partitions:
        at = frontiers.get((one.topic, one.partition))
        unmoved = 0 if at is None else sum(c["version"] > at.version and c["read"] > 0 for c in commits)
        found.append(Partition(one.topic, one.partition, one.offsets, one.seconds, unmoved))
    return tuple(found)


def batches(commits: Sequence[Mapping[str, Any]], clock_ahead: timedelta = timedelta(0)) -> tuple[Batch, ...]:
    """Return the finished batches, oldest first, without commits that lack facts about their tasks.

    `clock_ahead` is added to their instants.
    """
    found = [one for raw in reversed(commits) if (one := _batch(raw, clock_ahead)) is not None]
    return tuple(sorted(found, key=lambda one: one.ended))


def _batch(raw: Mapping[str, Any], clock_ahead: timedelta) -> Batch | None:
    work, phases = raw.get("work"), raw.get("phases") or {}
    if not work or not raw.get("began") or not raw.get("tasks") or not work["slots"] or not work["ranges"]:
        return None
    middle, longest = work["task_seconds_median"], work["task_seconds_max"]
    uneven = raw["tasks"] >= _SKEW_TASKS_MIN and middle
    waves = math.ceil(raw["tasks"] / work["slots"])  # more than one where many partitions need more tasks than slots
    tasks_s = (longest or 0.0) if waves == 1 else min(phases.get("tasks", 0.0), (longest or 0.0) * waves)
    return Batch(
        began=datetime.fromisoformat(raw["began"]) + clock_ahead,
        ended=datetime.fromisoformat(raw["at"]) + clock_ahead, rows=raw["read"],
        seconds=sum(spent for phase, spent in phases.items() if phase not in _IDLE), tasks_s=tasks_s,
        tasks=raw["tasks"], ranges=work["ranges"], slots=work["slots"], skew=longest / middle if uneven else None,
    )  # fmt: skip
