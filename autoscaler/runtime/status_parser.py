"""Reads facts from a driver's `/status`. Pure: documents in, facts out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from headrace.autoscaler.decision.capacity import window_s
from headrace.autoscaler.decision.facts import Batch, Executors, Partition, Pipeline
from headrace.autoscaler.decision.policy import Policy
from headrace.writer.core.offsets import Source
from headrace.writer.status.lag_sample import LagSample

# Phases in which a batch costs nothing.
_IDLE_PHASES = ("wait", "queue")
# The longest of two tasks is no skew.
_SKEW_TASKS_MIN = 3


@dataclass(frozen=True)
class PartitionProgress:
    """A partition's frontier, and the newest commit when it moved last."""

    frontier: int | None
    version: int


Frontiers = Mapping[Source, PartitionProgress]


def update_frontiers(before: Frontiers, commits: Sequence[Mapping[str, Any]], lag: LagSample) -> Frontiers:
    """Record which committed offsets moved since the last call. `commits`: those of `/status`."""
    newest = max((commit["version"] for commit in commits), default=-1)
    frontiers = dict(before)
    for partition in lag.partitions:
        source = (partition.topic, partition.partition)
        if source not in before or before[source].frontier != partition.frontier:
            frontiers[source] = PartitionProgress(partition.frontier, newest)
    return frontiers


def parse_executors(status: Mapping[str, Any] | None, policy: Policy) -> Executors | None:
    """Return the driver's facts about its executors; None if it has none. `status`: `executors` of `/status`."""
    if status is None or status.get("refused") or status.get("age_seconds") is None:
        return None
    # For how long fewer executors are registered than requested.
    short_s = status["short_seconds"]
    has_quota = short_s is not None and short_s > policy.max_start_s
    registered = status["registered"]
    return Executors(
        wanted=registered if status["requested"] is None else status["requested"],
        registered=registered,
        draining=len(status["draining"]),
        cores=status["cores"] or 1,
        cpus_per_task=status["cpus_per_task"],
        # Spark tells only the peak of the heap, and a heap that was never collected is full.
        gc_share=status["gc_share"],
        quota=registered if has_quota else None,
        age_s=status["age_seconds"],
    )


def parse_pipeline(
    name: str,
    status: Mapping[str, Any],
    lag: LagSample,
    frontiers: Frontiers,
    policy: Policy,
    *,
    age_s: float,
    lag_age_s: float,
    clock_ahead: timedelta = timedelta(0),
    recovery_level: int = 0,
) -> Pipeline:
    """Return a pipeline's facts.

    `status`: its part of `/status`, received `age_s` seconds ago. `lag`: the newest sample, `lag_age_s` seconds old.
    `clock_ahead`: of the clock that decides, over the one that dated the batches.
    """
    limits = status["limits"]
    offsets_max = limits.get("offsets_max") or 1
    offsets_per_range = limits.get("offsets_per_range")
    min_partitions = 0
    if offsets_per_range:
        min_partitions = math.ceil(offsets_max / offsets_per_range)
    pipeline = Pipeline(
        name=name,
        partitions=parse_partitions(status["commits"], lag, frontiers),
        arriving_per_s=None,
        arriving_lately_per_s=None,
        batches=parse_batches(status["commits"], clock_ahead),
        delay_max_s=limits.get("delay_max_seconds") or 0.0,
        offsets_max=offsets_max,
        offsets_per_task=limits.get("offsets_per_task"),
        partitions_per_task=limits.get("partitions_per_task"),
        min_partitions=min_partitions,
        headroom_s=lag.headroom_seconds,
        recovery_level=recovery_level,
        failing=status["error"] or None,
        paused=status["pause"] is not None,
        rate_limit_per_s=parse_rate_limit(status),
        age_s=age_s,
        lag_age_s=lag_age_s,
    )
    lately = lag.arriving_per_s(policy.short_window_s)
    mean = lag.arriving_per_s(window_s(policy, pipeline))
    if mean is None:
        mean = lately
    return replace(pipeline, arriving_per_s=mean, arriving_lately_per_s=lately)


def parse_rate_limit(status: Mapping[str, Any]) -> float | None:
    """Return how many offsets a second the pipeline may commit; a limit in bytes goes by the mean of its values."""
    limit = status.get("rate_limit")
    if limit is None:
        return None
    rates = []
    if limit["records_per_second"] is not None:
        rates.append(limit["records_per_second"])
    records = status["totals"]["records"]["read"]
    value_bytes = status["totals"]["value_bytes"]
    if limit["bytes_per_second"] is not None and records and value_bytes:
        rates.append(limit["bytes_per_second"] * records / value_bytes)
    if not rates:
        return None
    # The limit is of records; some offsets give none.
    offsets_a_record = 1.0
    if records:
        offsets_a_record += sum(status["totals"]["offsets_without_records"].values()) / records
    return float(min(rates)) * offsets_a_record


def parse_partitions(
    commits: Sequence[Mapping[str, Any]], lag: LagSample, frontiers: Frontiers
) -> tuple[Partition, ...]:
    """Return the partitions that Kafka named, and over how many commits with records each stood still."""
    partitions = []
    for partition in lag.partitions:
        progress = frontiers.get((partition.topic, partition.partition))
        unmoved = 0
        if progress is not None:
            unmoved = sum(commit["version"] > progress.version and commit["read"] > 0 for commit in commits)
        partitions.append(
            Partition(partition.topic, partition.partition, partition.offsets, partition.seconds, unmoved)
        )
    return tuple(partitions)


def parse_batches(commits: Sequence[Mapping[str, Any]], clock_ahead: timedelta = timedelta(0)) -> tuple[Batch, ...]:
    """Return the finished batches, oldest first, without commits that lack facts about their tasks.

    `clock_ahead` is added to their instants.
    """
    batches = [_parse_batch(commit, clock_ahead) for commit in reversed(commits) if _has_task_facts(commit)]
    return tuple(sorted(batches, key=lambda batch: batch.ended))


def _has_task_facts(commit: Mapping[str, Any]) -> bool:
    work = commit.get("work")
    return bool(work and commit.get("began") and commit.get("tasks") and work["slots"] and work["ranges"])


def _parse_batch(commit: Mapping[str, Any], clock_ahead: timedelta) -> Batch:
    work = commit["work"]
    phases = commit.get("phases") or {}
    tasks = commit["tasks"]
    median_s = work["task_seconds_median"]
    longest_s = work["task_seconds_max"]
    # There is more than one wave where many partitions need more tasks than slots.
    waves = math.ceil(tasks / work["slots"])
    tasks_s = longest_s or 0.0
    if waves > 1:
        tasks_s = min(phases.get("tasks", 0.0), tasks_s * waves)
    skew = None
    if tasks >= _SKEW_TASKS_MIN and median_s:
        skew = longest_s / median_s
    return Batch(
        began=datetime.fromisoformat(commit["began"]) + clock_ahead,
        ended=datetime.fromisoformat(commit["at"]) + clock_ahead,
        offsets=commit["offsets"],
        seconds=sum(phase_s for phase, phase_s in phases.items() if phase not in _IDLE_PHASES),
        tasks_s=tasks_s,
        tasks=tasks,
        ranges=work["ranges"],
        slots=work["slots"],
        skew=skew,
    )
