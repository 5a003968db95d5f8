"""Computes the limits of a batch that Spark gets when a query starts, and why a batch ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from headrace.writer.commit.rate_limit import NO_LIMIT, RateLimit, offsets_max
from headrace.writer.config.sections.resource_limits import Commit
from headrace.writer.core.offsets import Source
from headrace.writer.offsets.spark_checkpoint import Offsets

# Of a file's target size: smaller files are made while more waits than a batch may take.
CATCH_UP_SHARE = 1 / 8
# Of the most that a batch may take: with so much the last batch of `--once` takes every slot, too: the run ends with
# it. A run that carries less, such as one each hour, makes larger files.
ONCE_SPREAD_SHARE = 1 / 2
# A task reads one partition after the other. Each costs some 45 ms however few its records are, and Spark keeps the
# consumer of each, with the records that it polled last, until the task ends (ADR 30). Fewer would make more files.
PARTITIONS_PER_TASK = 100
# Each task of a route writes files of all its tables, and opens their decoders. A file of twenty columns costs what
# five thousand records cost, and a table has one for each bucket: with so many records for each of its tables, eight
# buckets take a fifth of a task's time.
RECORDS_PER_TABLE = 200_000
Reason = Literal["size", "backlog", "timeout", "start", "once", "replay"]


@dataclass(frozen=True)
class Limits:
    """Limits at which Spark ends a batch, fixed at the query's start. `--once` sets no minimum and no delay.

    `offsets_min`: offsets that begin a batch before its delay is over. `offsets_min_from`: configuration key that the
    minimum comes from. `offsets_per_task`: at least so many if there are enough slots; None: not computed.
    `offsets_per_range`: Spark reads no more in one piece; None: partitions, and slots at the start. `rate_limit`: that
    `offsets_max` comes from, where it is less than commit.max_offsets.
    """

    offsets_min: int | None
    offsets_min_from: str
    offsets_max: int
    max_delay: timedelta | None
    offsets_per_task: int | None = None
    offsets_per_range: int | None = None
    rate_limit: RateLimit = NO_LIMIT

    def facts(self) -> dict[str, Any]:
        """Write the limits as JSON values."""
        facts: dict[str, Any] = {
            "offsets_min": self.offsets_min,
            "offsets_min_from": self.offsets_min_from,
            "offsets_max": self.offsets_max,
            "offsets_per_task": self.offsets_per_task,
            "offsets_per_range": self.offsets_per_range,
            "partitions_per_task": PARTITIONS_PER_TASK,
        }
        if self.rate_limit:
            facts["offsets_max_from"] = {
                "records_per_second": self.rate_limit.records_per_s,
                "bytes_per_second": self.rate_limit.bytes_per_s,
            }
        facts["delay_max_seconds"] = None
        if self.max_delay is not None:
            facts["delay_max_seconds"] = self.max_delay.total_seconds()
        return facts


def limits(
    settings: Commit,
    target_file_size: int,
    bytes_per_row: float,
    *,
    once: bool,
    offsets_per_range: int | None = None,
    rate_limit: RateLimit = NO_LIMIT,
    value_bytes_each: float | None = None,
) -> Limits:
    """Work out when batches end: as configured, else when there is enough for one file of the target size.

    `value_bytes_each`: mean of the records' values; None: not known.
    """
    batch_max = offsets_max(rate_limit, settings.max_offsets, settings.max_delay, value_bytes_each)
    binding_limit = rate_limit if batch_max < settings.max_offsets else NO_LIMIT
    batch_min: int | None
    if once:
        batch_min = None
        min_from = "--once"
    elif settings.min_offsets is not None:
        batch_min = settings.min_offsets
        min_from = "commit.min_offsets"
    else:
        batch_min = max(1, int(target_file_size / bytes_per_row))
        min_from = "roll.target_file_size"
    if batch_min is not None and batch_min > batch_max:
        batch_min = batch_max
        min_from = "rate limit" if binding_limit else "commit.max_offsets"
    return Limits(
        offsets_min=batch_min,
        offsets_min_from=min_from,
        offsets_max=batch_max,
        max_delay=None if once else settings.max_delay,
        offsets_per_task=max(1, int(target_file_size * CATCH_UP_SHARE / bytes_per_row)),
        offsets_per_range=offsets_per_range,
        rate_limit=binding_limit,
    )


def task_count(
    bytes_expected: float,
    target_file_size: int,
    slots: int,
    *,
    partitions: int,
    behind: bool = False,
    spread_max: int | None = None,
) -> int:
    """How many tasks carry a batch: as many as it fills files, at most one for each slot; more for many partitions.

    `partitions`: those with new records. `behind`: more waits than a batch may take. Then every slot works, for smaller
    files; with `spread_max`, so many tasks at most where it does not fill more files.
    """
    tasks = round(bytes_expected / target_file_size)
    if behind:
        smaller = round(bytes_expected / (target_file_size * CATCH_UP_SHARE))
        tasks = max(tasks, smaller if spread_max is None else min(smaller, spread_max))
    return max(1, min(slots, tasks), math.ceil(partitions / PARTITIONS_PER_TASK))


def route_spread_max(offsets: int, tables: int) -> int:
    """Return over how many tasks a batch of a route may be spread. `tables`: of the route; 0: none is known yet."""
    return offsets // (tables * RECORDS_PER_TABLE) if tables else 1


def is_full(offsets: int, waiting: int | None, partitions: int, limits: Limits) -> bool:
    """Return whether a batch has as much as it may, and more waits. Arguments are those of `reason`.

    Spark shares the maximum out to the partitions and rounds each share, so a batch that reached it may be some offsets
    short.
    """
    return offsets >= limits.offsets_max - partitions and (waiting is None or waiting > offsets)


def takes_every_slot(offsets: int, waiting: int | None, partitions: int, limits: Limits) -> bool:
    """Return whether a batch is spread over all slots, for smaller files. Arguments are those of `reason`.

    A pipeline at its rate limit needs no more slots, and larger files.
    """
    if limits.rate_limit:
        return False
    if limits.offsets_min is None and offsets >= limits.offsets_max * ONCE_SPREAD_SHARE:
        return True
    return is_full(offsets, waiting, partitions, limits)


def reason(offsets: int, waiting: int | None, partitions: int, limits: Limits, *, first: bool, replay: bool) -> Reason:
    """Return why a batch ends where it does. Pure.

    `offsets` is what Spark planned, `waiting` what was there moments later (None: Kafka did not say), `first` the first
    batch of a query, `replay` one that an earlier start had planned.
    """
    if replay:
        return "replay"
    if limits.offsets_min is None:
        return "once"
    if is_full(offsets, waiting, partitions, limits):
        return "backlog"
    if offsets >= limits.offsets_min:
        return "size"
    return "start" if first else "timeout"


class BatchEndings:
    """Why the batches of one query ended where they did, one after the other."""

    def __init__(self, limits: Limits, planned_end: Offsets | None, begun_s: float) -> None:
        """`planned_end`: of a batch that an earlier start had planned; `begun_s`: when the query began, monotonic."""
        self.limits = limits
        self._planned_end = planned_end
        self._begun_s = begun_s
        # Whether this query has planned no batch yet.
        self._is_new = True

    def end_facts(
        self, batch: int, start: Offsets, until: Offsets, log_ends: Mapping[Source, int] | None, now_s: float
    ) -> dict[str, Any]:
        """Return the reason for a batch's end, and Spark's limits, as JSON values.

        `log_ends`: where the logs could be read to moments later; None: Kafka did not say.
        """
        offsets = sum(offset - start[source] for source, offset in until.items())
        waiting: int | None = None
        if log_ends is not None:
            waiting = sum(max(0, offset - start[source]) for source, offset in log_ends.items())
        is_replay = self._planned_end == until
        self._planned_end = None
        max_delay = self.limits.max_delay
        has_waited = max_delay is not None and timedelta(seconds=now_s - self._begun_s) >= max_delay
        is_first = batch == 0 or (self._is_new and not has_waited)
        self._is_new = self._is_new and is_replay
        return {
            "reason": reason(offsets, waiting, len(until), self.limits, first=is_first, replay=is_replay),
            "offsets": offsets,
            "waiting": waiting,
            "limits": self.limits.facts(),
        }
