"""The states of a pipeline's buckets, as the sealer computes and commands show them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from writer.core.files import BucketFile
from writer.core.text import instant
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.rules import SealBlocked, SealDecision, SealLater, Unsealed, is_closed
from writer.sealing.watermark import Watermark


@dataclass(frozen=True)
class BucketCounts:
    """The buckets of a table at one moment, without those that are sealed and unchanged."""

    counted_at: datetime
    watermark: Watermark
    closed_until: datetime | None
    open: int
    # And not sealed: about to be, or blocked.
    closed: int
    # Sealed, and changed since.
    reopened: int
    # The open bucket that ends first, and when.
    next: tuple[str, datetime] | None = None
    # Bucket, and why it is not sealed.
    blocked: tuple[tuple[str, str], ...] = ()
    # Rows in buckets that are not sealed, that came after they were closed.
    late: int = 0
    # Manifests of this process.
    sealed: int = 0
    # Of these, of buckets that had one.
    resealed: int = 0
    last: Manifest | None = None
    # Step that fails, and why.
    trouble: tuple[tuple[str, str], ...] = ()


def bucket_counts(
    columns: Sequence[str],
    buckets: Sequence[Unsealed],
    decisions: Sequence[SealDecision],
    sealed: Sequence[Manifest],
    watermark: Watermark,
    closed_until: datetime | None,
    trouble: Sequence[tuple[str, str]],
    now: datetime,
) -> BucketCounts:
    """Count the buckets by state. `decisions`: on the closed buckets among those that are not sealed."""
    name = partial(bucket_path, columns)
    closed_keys = {decision.bucket for decision in decisions}
    reopened = sum(bucket.sealed > 0 for bucket in buckets if bucket.bucket in closed_keys)
    open_buckets = [bucket for bucket in buckets if bucket.bucket not in closed_keys]
    ends = [(bucket.end, name(bucket.bucket)) for bucket in open_buckets if bucket.end is not None]
    return BucketCounts(
        counted_at=now,
        watermark=watermark,
        closed_until=closed_until,
        open=len(open_buckets),
        closed=len(closed_keys) - reopened,
        reopened=reopened,
        next=_first_to_end(ends),
        blocked=tuple(
            (name(decision.bucket), decision.why) for decision in decisions if isinstance(decision, SealBlocked)
        ),
        late=sum(bucket.late for bucket in buckets),
        sealed=len(sealed),
        resealed=sum(manifest.version > 1 for manifest in sealed),
        last=sealed[-1] if sealed else None,
        trouble=tuple(trouble),
    )


def add_counts(counts_by_table: Mapping[str, BucketCounts]) -> BucketCounts:
    """Add up the buckets of the tables of a route, by name. `closed_until` is of the table that is least far.

    A bucket and a step are named with their table.
    """
    tables = list(counts_by_table.values())
    ends: list[tuple[datetime, str]] = []
    blocked: list[tuple[str, str]] = []
    trouble: list[tuple[str, str]] = []
    for name, counts in counts_by_table.items():
        if counts.next is not None:
            bucket, bucket_end = counts.next
            ends.append((bucket_end, f"{name}/{bucket}"))
        blocked += [(f"{name}/{bucket}", reason) for bucket, reason in counts.blocked]
        trouble += [(f"{step} of {name}", reason) for step, reason in counts.trouble]
    manifests = [counts.last for counts in tables if counts.last]
    watermarks = [counts.watermark for counts in tables if counts.watermark.instant is not None]
    closed_untils = [counts.closed_until for counts in tables if counts.closed_until is not None]
    return BucketCounts(
        counted_at=min(counts.counted_at for counts in tables),
        watermark=watermarks[0] if watermarks else tables[0].watermark,
        closed_until=min(closed_untils) if len(closed_untils) == len(tables) else None,
        open=sum(counts.open for counts in tables),
        closed=sum(counts.closed for counts in tables),
        reopened=sum(counts.reopened for counts in tables),
        next=_first_to_end(ends),
        blocked=tuple(blocked),
        late=sum(counts.late for counts in tables),
        sealed=sum(counts.sealed for counts in tables),
        resealed=sum(counts.resealed for counts in tables),
        last=max(manifests, key=lambda manifest: manifest.sealed_at, default=None),
        trouble=tuple(trouble),
    )


def _first_to_end(ends: Sequence[tuple[datetime, str]]) -> tuple[str, datetime] | None:
    if not ends:
        return None
    bucket_end, name = min(ends)
    return name, bucket_end


@dataclass(frozen=True)
class BucketState:
    """One bucket that has rows, as it was last seen."""

    bucket: str
    # Of its interval; None: it does not go by time.
    start: datetime | None
    end: datetime | None
    state: Literal["open", "closed", "sealed", "reopened", "blocked"]
    # None: another client wrote a file and does not say.
    rows: int | None
    # Rows that came after it was closed; None: its manifest was not looked at yet.
    late: int | None
    # Of its newest manifest; 0: it has none.
    version: int | None
    # Why it is blocked, or not sealed again yet.
    why: str = ""


def bucket_state(
    name: str,
    interval: tuple[datetime, datetime] | None,
    files: Sequence[BucketFile],
    unsealed: Unsealed | None,
    decision: SealDecision | None,
    closed_until: datetime | None,
    manifest: Manifest | None,
) -> BucketState:
    """Describe a bucket. `unsealed`: its rows without a manifest; `decision`: what is due, if it is closed."""
    start, end = interval or (None, None)
    rows = None
    if all(file.rows is not None for file in files):
        rows = sum(file.rows or 0 for file in files)
    if unsealed is None:
        if manifest is None:
            return BucketState(name, start, end, "sealed", rows, late=None, version=None)
        return BucketState(name, start, end, "sealed", rows, manifest.late, manifest.version)
    late = unsealed.late + (manifest.late if manifest else 0)
    state: Literal["open", "closed", "reopened", "blocked"] = "open"
    reason = ""
    if isinstance(decision, SealBlocked):
        state = "blocked"
        reason = decision.why
    elif unsealed.sealed:
        state = "reopened"
    elif end is not None and is_closed(end, closed_until):
        state = "closed"
    if isinstance(decision, SealLater):
        reason = f"rows came after it was sealed; it is sealed again after {instant(decision.due)}"
    return BucketState(name, start, end, state, rows, late, unsealed.sealed, reason)
