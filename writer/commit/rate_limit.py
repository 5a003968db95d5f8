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
    """How much a pipeline may commit in a second, over time; None: as much as comes."""

    records_per_s: float | None = None
    bytes_per_s: float | None = None  # of the records' values, as Kafka holds them

    def __post_init__(self) -> None:
        for name, rate in (("records", self.records_per_s), ("bytes", self.bytes_per_s)):
            if rate is not None and rate <= 0:
                raise ValueError(f"a rate limit must be above zero, got {rate:g} {name} a second")

    def __bool__(self) -> bool:
        """Whether anything is limited."""
        return self.records_per_s is not None or self.bytes_per_s is not None

    def seconds(self, records: float, value_bytes: float) -> float:
        """How long so much takes at the limit; 0 without one."""
        by_records = 0.0 if self.records_per_s is None else records / self.records_per_s
        return max(by_records, 0.0 if self.bytes_per_s is None else value_bytes / self.bytes_per_s)


NO_LIMIT = RateLimit()


@dataclass(frozen=True)
class BatchUse:
    """What one batch took of a limit."""

    began: datetime
    records: int  # read
    value_bytes: int


def spent(facts: Mapping[str, Any]) -> BatchUse:
    """Return what a batch took. `facts`: of its commit."""
    records = sum(account.get("read", 0) for account in facts["ranges"])
    return BatchUse(datetime.fromisoformat(facts["started"]), records, facts["value_bytes"])


def next_begin(limit: RateLimit, last: BatchUse | None) -> datetime | None:
    """Return when the batch after `last` may begin; None: at once."""
    if last is None or not limit:
        return None
    return last.began + timedelta(seconds=limit.seconds(last.records, last.value_bytes))


def wait_s(limit: RateLimit, last: BatchUse | None, since_s: float) -> float:
    """Return for how many seconds the next batch has to wait. `since_s`: seconds since `last` began."""
    return 0.0 if last is None else max(0.0, limit.seconds(last.records, last.value_bytes) - since_s)


def records_max(limit: RateLimit, most: int, delay_max: timedelta, value_bytes_each: float | None) -> int:
    """Return how many records a batch may have: what the limit allows in `delay_max`, but no more than `most`.

    So a pipeline at its limit commits once in `delay_max`, not everything at once and then nothing for long.
    `value_bytes_each`: mean of the records' values; None: not known, and the limit in bytes does not count here.
    """
    delay_s, allowed = delay_max.total_seconds(), float(most)
    if limit.records_per_s is not None:
        allowed = min(allowed, limit.records_per_s * delay_s)
    if limit.bytes_per_s is not None and value_bytes_each:
        allowed = min(allowed, limit.bytes_per_s * delay_s / value_bytes_each)
    return max(1, int(allowed))
