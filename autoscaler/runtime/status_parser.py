"""From what a driver's `/status` and Kafka say to facts. Pure: what was asked in, facts out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from autoscaler.decision.capacity import window_s
from autoscaler.decision.facts import Batch, Executors, Partition, Pipeline
from autoscaler.decision.policy import Policy

_SKEW_TASKS_MIN = 3  # the longest of two tasks is no skew
Source = tuple[str, int]  # topic, partition


@dataclass(frozen=True)
class Heard:
    """What Kafka said of a pipeline's topics, over the window and a little more."""

    samples: tuple[tuple[datetime, Mapping[Source, int]], ...] = ()  # ends of the logs; oldest first

    def with_sample(self, at: datetime, ends: Mapping[Source, int], kept_s: float) -> "Heard":
        """Add a sample; of those that are older than `kept_s` the newest stays."""
        since = at - timedelta(seconds=kept_s)
        first = max((i for i, (when, _) in enumerate(self.samples) if when <= since), default=0)
        return Heard((*self.samples[first:], (at, ends)))

    def per_s(self, over_s: float) -> float | None:
        """Records a second that came over the last so many seconds; None where samples do not reach that far."""
        if not self.samples:
            return None
        until, ends = self.samples[-1]
        since = until - timedelta(seconds=over_s)
        earlier = [one for one in self.samples if one[0] <= since]
        if not earlier:
            return None
        began, before = earlier[-1]
        came = sum(max(0, end - before[source]) for source, end in ends.items() if source in before)
        return came / (until - began).total_seconds()


@dataclass(frozen=True)
class Stood:
    """A partition's frontier, and the newest commit when it was seen to move."""

    frontier: int | None
    version: int


@dataclass(frozen=True)
class Known:
    """What is kept of a pipeline between two looks."""

    heard: Heard = field(default_factory=Heard)
    stood: Mapping[Source, Stood] = field(default_factory=dict)


def moved(known: Known, told: Mapping[str, Any]) -> Known:
    """Note which frontiers moved since the last look."""
    newest = max((one["version"] for one in told["commits"]), default=-1)
    stood = dict(known.stood)
    for one in told["lag"]["partitions"]:
        source, before = (one["topic"], one["partition"]), known.stood.get((one["topic"], one["partition"]))
        if before is None or before.frontier != one["frontier"]:
            stood[source] = Stood(one["frontier"], newest)
    return replace(known, stood=stood)


def executors(told: Mapping[str, Any] | None, policy: Policy) -> Executors | None:
    """Return what the driver says of its executors; None where it does not."""
    if told is None or told.get("refused") or told.get("age_seconds") is None:
        return None
    short_s = told["short_seconds"]
    refused = short_s is not None and short_s > policy.start_max_s
    return Executors(
        wanted=told["registered"] if told["requested"] is None else told["requested"],
        registered=told["registered"], draining=len(told["draining"]),
        cores=told["cores"] or 1, cpus_per_task=told["cpus_per_task"],
        gc_share=told["gc_share"],  # of the heap Spark tells the most there ever was: one never collected is full
        quota=told["registered"] if refused else None,
        age_s=told["age_seconds"],
    )  # fmt: skip


def pipeline(
    name: str, told: Mapping[str, Any], known: Known, policy: Policy, now: datetime, *, topics_heard_s: float | None,
    recovery_level: int = 0,
) -> Pipeline:  # fmt: skip
    """Put a pipeline's facts together. `told`: its part of `/status`; `topics_heard_s`: age of Kafka's last answer."""
    limits, lag = told["limits"], told["lag"]
    ends = known.heard.samples[-1][1] if known.heard.samples else {}
    per_range, most = limits.get("records_per_range"), limits.get("records_max") or 1
    found = Pipeline(
        name=name,
        partitions=partitions(told, known, ends),
        arriving_per_s=None, arriving_lately_per_s=None,
        batches=batches(told["commits"]),
        delay_max_s=limits.get("delay_max_seconds") or 0.0,
        records_max=most,
        records_per_task=limits.get("records_per_task"),
        partitions_per_task=limits.get("partitions_per_task"),
        min_partitions=math.ceil(most / per_range) if per_range else 0,
        headroom_s=lag["headroom_seconds"],
        recovery_level=recovery_level,
        failing=told["error"] or None,
        paused=told["pause"] is not None,
        age_s=max(0.0, (now - datetime.fromisoformat(told["at"])).total_seconds()),
        lag_age_s=topics_heard_s or 0.0,  # never: there are no partitions, and that is told
    )  # fmt: skip
    over_s = window_s(policy, found)
    lately = known.heard.per_s(policy.short_window_s)
    mean = known.heard.per_s(over_s)
    return replace(found, arriving_per_s=lately if mean is None else mean, arriving_lately_per_s=lately)


def partitions(told: Mapping[str, Any], known: Known, ends: Mapping[Source, int]) -> tuple[Partition, ...]:
    """Return the partitions that Kafka named: its ends less the frontiers."""
    said = {(one["topic"], one["partition"]): one for one in told["lag"]["partitions"]}
    found = []
    for source, end in sorted(ends.items()):
        one = said.get(source, {})
        at, stood = one.get("frontier"), known.stood.get(source)
        unmoved = 0 if stood is None else sum(c["version"] > stood.version and c["read"] > 0 for c in told["commits"])
        lag = one.get("offsets") if at is None else max(0, end - at)
        found.append(Partition(*source, lag, one.get("seconds"), unmoved))
    return tuple(found)


def batches(commits: Sequence[Mapping[str, Any]]) -> tuple[Batch, ...]:
    """Return the finished batches, oldest first; commits that do not say what their tasks did are left out."""
    found = [one for raw in reversed(commits) if (one := _batch(raw)) is not None]
    return tuple(sorted(found, key=lambda one: one.ended))


def _batch(raw: Mapping[str, Any]) -> Batch | None:
    work, phases = raw.get("work"), raw.get("phases") or {}
    if not work or not raw.get("began") or not raw.get("tasks") or not work["slots"] or not work["ranges"]:
        return None
    middle, longest = work["task_seconds_median"], work["task_seconds_max"]
    uneven = raw["tasks"] >= _SKEW_TASKS_MIN and middle
    waves = math.ceil(raw["tasks"] / work["slots"])  # more than one where many partitions need more tasks than slots
    tasks_s = (longest or 0.0) if waves == 1 else min(phases.get("tasks", 0.0), (longest or 0.0) * waves)
    return Batch(
        began=datetime.fromisoformat(raw["began"]), ended=datetime.fromisoformat(raw["at"]), rows=raw["read"],
        seconds=sum(spent for phase, spent in phases.items() if phase != "wait"), tasks_s=tasks_s,
        tasks=raw["tasks"], ranges=work["ranges"], slots=work["slots"], skew=longest / middle if uneven else None,
    )  # fmt: skip
