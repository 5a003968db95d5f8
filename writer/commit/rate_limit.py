"""When the next batch of a pipeline with a rate limit may begin, and how large a batch may be. Pure.

Spark fixes where a batch ends before the driver sees it, and a commit is never cut. So each batch pays for itself: the
next one begins no earlier than its records, at the limit, take. From any batch on, what batches that have begun
commit is at most the limit times the time that passed, and one batch (the leaky bucket as a meter, ITU-T I.371).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True)
class RateLimit:
    """How much a pipeline may commit in a second, over time; None: as much as comes.

    `bytes_per_s`: of the records' values, as Kafka holds them.
    """

    records_per_s: float | None = None
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        for name, rate in (("records", self.records_per_s), ("bytes", self.bytes_per_s)):
            if rate is not None and rate <= 0:
                raise ValueError(f"a rate limit must be above zero, got {rate:g} {name} a second")

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self.records_per_s is not None or self.bytes_per_s is not None

    def seconds(self, records: float, value_bytes: float) -> float:
        """How long so much takes at the limit; 0 without one."""
        seconds = 0.0
        if self.records_per_s is not None:
            seconds = records / self.records_per_s
        if self.bytes_per_s is not None:
            seconds = max(seconds, value_bytes / self.bytes_per_s)
        return seconds


NO_LIMIT = RateLimit()


@dataclass(frozen=True)
class BatchUse:
    """What one batch took of a limit. `records`: that were read."""

    began: datetime
    records: int
    value_bytes: int


def batch_use(facts: Mapping[str, Any]) -> BatchUse:
    """Return what a batch took. `facts`: of its commit."""
    records = sum(account.get("read", 0) for account in facts["ranges"])
    return BatchUse(datetime.fromisoformat(facts["started"]), records, facts["value_bytes"])


def wait_s(limit: RateLimit, last: BatchUse | None, since_s: float) -> float:
    """Return for how many seconds the next batch has to wait. `since_s`: seconds since `last` began."""
    if last is None:
        return 0.0
    return max(0.0, limit.seconds(last.records, last.value_bytes) - since_s)


def offsets_max(limit: RateLimit, configured_max: int, max_delay: timedelta, value_bytes_each: float | None) -> int:
    """Return how many offsets a batch may have: what the limit allows in `max_delay`, at most `configured_max`.

    So a pipeline at its limit commits once in `max_delay`, not everything at once and then nothing for long. An offset
    counts for one record here: a batch has no more records than offsets.
    `value_bytes_each`: mean of the records' values; None: not known, and the limit in bytes does not count here.
    """
    delay_s = max_delay.total_seconds()
    allowed = float(configured_max)
    if limit.records_per_s is not None:
        allowed = min(allowed, limit.records_per_s * delay_s)
    if limit.bytes_per_s is not None and value_bytes_each:
        allowed = min(allowed, limit.bytes_per_s * delay_s / value_bytes_each)
    return max(1, int(allowed))
