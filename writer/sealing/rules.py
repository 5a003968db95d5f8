"""Decides which buckets to close and to seal, and which are blocked. Pure: facts and the time in, decisions out.

A bucket is closed when its interval ends at or before `closed_until`, one instant for the whole table that only moves
forward. It is sealed when a manifest says what it holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from writer.config.pipeline_sections import Seal
from writer.core.files import BucketKey
from writer.core.units import shift_instant
from writer.sealing.manifest import Reason
from writer.sealing.watermark import PartitionEventTime, furthest, watermark


@dataclass(frozen=True)
class Unsealed:
    """A bucket with rows that no manifest covers, by the log since its newest manifest."""

    bucket: BucketKey
    start: datetime | None  # of its interval; None: it has none, or it is unknown
    end: datetime | None
    changed: datetime  # when its rows last came or went
    sealed: int = 0  # version of its newest manifest; 0: it has none
    added: int = 0  # rows that came since
    taken: int = 0  # rows that went on purpose since
    deduped: int = 0  # of these, by dedupe
    late: int = 0  # rows that came after it was closed
    rows_known: bool = True  # False: another client changed its files, so the log does not say its rows
    reason: Reason | None = None  # why it was closed; None: it is open


@dataclass(frozen=True)
class MissingRange:
    """Where in event time records may be missing that Kafka lost: a gap's hint, margins included."""

    gap: str  # id of its gap record
    start: datetime | None  # None: from the beginning of time
    end: datetime
    state: Literal["open", "done", "lost"] = "open"  # of the gap record

    def touches(self, start: datetime, end: datetime) -> bool:
        """Return whether an interval may miss records."""
        return start < self.end and (self.start is None or self.start < end)


@dataclass(frozen=True)
class Close:
    """Move `closed_until` to this instant."""

    until: datetime
    reason: Reason


@dataclass(frozen=True)
class AskKafka:
    """Ask Kafka first: whether parts are idle, or everything is read."""


@dataclass(frozen=True)
class KeepOpen:
    """Close nothing."""


@dataclass(frozen=True)
class SealNow:
    """Seal this bucket now."""

    bucket: BucketKey


@dataclass(frozen=True)
class SealBlocked:
    """This bucket is closed, and stays unsealed until a person acts."""

    bucket: BucketKey
    why: str
    by_gap: bool = False  # a person may decide to seal it all the same


@dataclass(frozen=True)
class SealLater:
    """This bucket changed after it was sealed; its next manifest is due then."""

    bucket: BucketKey
    due: datetime


State = SealNow | SealBlocked | SealLater


def to_close(
    policy: Seal, buckets: Iterable[Unsealed], parts: Sequence[PartitionEventTime], closed_until: datetime | None,
    now: datetime, *, caught_up: bool | None,
) -> Close | AskKafka | KeepOpen:  # fmt: skip
    """Return how far to close: up to the end of a bucket that has rows, or not.

    `parts`: of everything that the table reads. `caught_up`: all that Kafka had at `now` is committed; None: it was not
    asked, and no part is known to be idle.
    """
    ends = sorted({b.end for b in buckets if b.end is not None and not is_closed(b.end, closed_until)})
    reached = watermark(parts, policy.out_of_orderness).instant
    found = [_by_watermark(policy, ends, reached), _by_clock(policy, ends, now) if caught_up else None]
    closes = [close for close in found if close is not None]
    if closes:
        return max(closes, key=lambda close: close.until)
    best = furthest(parts, policy.out_of_orderness)
    answer_matters = _by_watermark(policy, ends, best) or _by_clock(policy, ends, now)
    return AskKafka() if caught_up is None and answer_matters else KeepOpen()


def _by_watermark(policy: Seal, ends: Sequence[datetime], reached: datetime | None) -> Close | None:
    due = [end for end in ends if reached is not None and shift_instant(end, policy.allowed_lateness) <= reached]
    return Close(due[-1], "watermark") if due else None


def _by_clock(policy: Seal, ends: Sequence[datetime], now: datetime) -> Close | None:
    due = [end for end in ends if policy.after is not None and shift_instant(end, policy.after) <= now]
    return Close(due[-1], "clock") if due else None


def to_seal(
    policy: Seal,
    buckets: Iterable[Unsealed],
    missing_ranges: Sequence[MissingRange],
    closed_until: datetime | None,
    now: datetime,
) -> list[State]:
    """Return for every closed bucket without a manifest of its rows what is to be done, earliest end first."""
    closed = [b for b in buckets if b.end is not None and is_closed(b.end, closed_until)]
    return [
        _one(policy, b, missing_ranges, now) for b in sorted(closed, key=lambda b: (b.end, tuple(map(str, b.bucket))))
    ]


def _one(policy: Seal, b: Unsealed, missing_ranges: Sequence[MissingRange], now: datetime) -> State:
    assert b.start is not None
    assert b.end is not None
    if b.sealed:
        due = b.changed + policy.reopen_after
        # One that changed in the future did so before the wall clock stepped back: nobody knows for how long it rests.
        is_at_rest = b.changed <= now < due
        return SealLater(b.bucket, due) if is_at_rest else SealNow(b.bucket)
    missing = [
        missing_range.gap
        for missing_range in missing_ranges
        if missing_range.state == "open" and missing_range.touches(b.start, b.end)
    ]
    if missing:
        why = (
            f"records of it may lie in gap {missing[0]}; `headrace backfill` brings them, `headrace gaps close` "
            "gives them up, `headrace seal --with-gap` seals it without them"
        )
        return SealBlocked(b.bucket, why, by_gap=True)
    return SealNow(b.bucket)


def is_closed(end: datetime, closed_until: datetime | None) -> bool:
    """Return whether a bucket that ends then takes no more rows on time."""
    return closed_until is not None and end <= closed_until
