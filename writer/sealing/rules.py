"""Decides which buckets to close and to seal, and which are blocked. Pure: facts and the time in, decisions out.

A bucket is closed when its interval ends at or before `closed_until`, one instant for the whole table that only moves
forward. It is sealed when a manifest says what it holds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.units import shift_instant
from headrace.writer.sealing.manifest import Reason
from headrace.writer.sealing.watermark import PartitionEventTime, highest_watermark, watermark


@dataclass(frozen=True)
class Unsealed:
    """A bucket with rows that no manifest covers, by the log since its newest manifest."""

    bucket: BucketKey
    # Of its interval; None: it has none, or it is unknown.
    start: datetime | None
    end: datetime | None
    # When its rows last came or went.
    changed: datetime
    # Version of its newest manifest; 0: it has none.
    sealed: int = 0
    # Rows that came since.
    added: int = 0
    # Rows that went on purpose since.
    taken: int = 0
    # Of these, by dedupe.
    deduped: int = 0
    # Rows that came after it was closed.
    late: int = 0
    # False: another client changed its files, so the log does not say its rows.
    rows_known: bool = True
    # Why it was closed; None: it is open.
    reason: Reason | None = None


@dataclass(frozen=True)
class MissingRange:
    """Where in event time records may be missing that Kafka lost: a gap's hint, margins included."""

    # Id of its gap record.
    gap: str
    # None: from the beginning of time.
    start: datetime | None
    end: datetime
    # Of the gap record.
    state: Literal["open", "done", "lost"] = "open"

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


class SealRefused(HeadraceError):
    """What prepares a bucket for its seal does not do so until a person acts."""


@dataclass(frozen=True)
class SealBlocked:
    """This bucket is closed, and stays unsealed until a person acts."""

    bucket: BucketKey
    why: str
    # A person may decide to seal it all the same.
    by_gap: bool = False


@dataclass(frozen=True)
class SealLater:
    """This bucket changed after it was sealed; its next manifest is due then."""

    bucket: BucketKey
    due: datetime


SealDecision = SealNow | SealBlocked | SealLater


def choose_close(
    policy: Seal,
    buckets: Iterable[Unsealed],
    parts: Sequence[PartitionEventTime],
    closed_until: datetime | None,
    now: datetime,
    *,
    caught_up: bool | None,
) -> Close | AskKafka | KeepOpen:
    """Return how far to close: up to the end of a bucket that has rows, or not.

    `parts`: of everything that the table reads. `caught_up`: all that Kafka had at `now` is committed; None: it was not
    asked, and no part is known to be idle.
    """
    ends = sorted(
        {bucket.end for bucket in buckets if bucket.end is not None and not is_closed(bucket.end, closed_until)}
    )
    reached = watermark(parts, policy.out_of_orderness).instant
    candidates = [_close_by_watermark(policy, ends, reached)]
    if caught_up:
        candidates.append(_close_by_clock(policy, ends, now))
    closes = [close for close in candidates if close is not None]
    if closes:
        return max(closes, key=lambda close: close.until)
    highest = highest_watermark(parts, policy.out_of_orderness)
    answer_matters = _close_by_watermark(policy, ends, highest) or _close_by_clock(policy, ends, now)
    if caught_up is None and answer_matters:
        return AskKafka()
    return KeepOpen()


def _close_by_watermark(policy: Seal, ends: Sequence[datetime], reached: datetime | None) -> Close | None:
    if reached is None:
        return None
    due_ends = [bucket_end for bucket_end in ends if shift_instant(bucket_end, policy.allowed_lateness) <= reached]
    if due_ends:
        return Close(due_ends[-1], "watermark")
    return None


def _close_by_clock(policy: Seal, ends: Sequence[datetime], now: datetime) -> Close | None:
    if policy.after is None:
        return None
    due_ends = [bucket_end for bucket_end in ends if shift_instant(bucket_end, policy.after) <= now]
    if due_ends:
        return Close(due_ends[-1], "clock")
    return None


def choose_seals(
    policy: Seal,
    buckets: Iterable[Unsealed],
    missing_ranges: Sequence[MissingRange],
    closed_until: datetime | None,
    now: datetime,
) -> list[SealDecision]:
    """Return for every closed bucket without a manifest of its rows what is to be done, earliest end first."""
    closed = [bucket for bucket in buckets if bucket.end is not None and is_closed(bucket.end, closed_until)]
    closed.sort(key=lambda bucket: (bucket.end, tuple(map(str, bucket.bucket))))
    return [_decide_seal(policy, bucket, missing_ranges, now) for bucket in closed]


def _decide_seal(policy: Seal, bucket: Unsealed, missing_ranges: Sequence[MissingRange], now: datetime) -> SealDecision:
    assert bucket.start is not None
    assert bucket.end is not None
    if bucket.sealed:
        due = bucket.changed + policy.reopen_after
        # One that changed in the future did so before the wall clock stepped back: nobody knows for how long it rests.
        is_at_rest = bucket.changed <= now < due
        if is_at_rest:
            return SealLater(bucket.bucket, due)
        return SealNow(bucket.bucket)
    gaps = [
        missing_range.gap
        for missing_range in missing_ranges
        if missing_range.state == "open" and missing_range.touches(bucket.start, bucket.end)
    ]
    if gaps:
        why = (
            f"records of it may lie in gap {gaps[0]}; `headrace backfill` brings them, `headrace gaps close` "
            "gives them up, `headrace seal --with-gap` seals it without them"
        )
        return SealBlocked(bucket.bucket, why, by_gap=True)
    return SealNow(bucket.bucket)


def is_closed(bucket_end: datetime, closed_until: datetime | None) -> bool:
    """Return whether a bucket that ends then takes no more rows on time."""
    return closed_until is not None and bucket_end <= closed_until
