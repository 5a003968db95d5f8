"""The state of each bucket of a table, and the sentence that says why it is so. Pure.

Commands, the driver's page, `/status` and metrics all have the state from `bucket_state`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.core.text import instant, span
from headrace.writer.core.units import shift_instant
from headrace.writer.sealing.manifest import Manifest, bucket_path
from headrace.writer.sealing.rules import SealBlocked, SealDecision, SealLater, SealNow, Unsealed, is_closed
from headrace.writer.sealing.unsealed import Interval, UnsealedIndex, explain_wrong_rows
from headrace.writer.sealing.watermark import Watermark

# Of a bucket that has rows.
StateWithRows = Literal["open", "closed", "blocked", "reopened", "sealed"]
# `empty`: it is closed, and no row of it came.
StateName = StateWithRows | Literal["empty"]


@dataclass(frozen=True)
class BucketState:
    """The state of a bucket, and why it is open, why it is not sealed, or when it will be. `why`: empty if sealed."""

    name: StateName
    why: str = ""


@dataclass(frozen=True)
class SealFacts:
    """What the states of all buckets of a table follow from, at one moment."""

    policy: Seal
    closed_until: datetime | None
    watermark: Watermark
    index: UnsealedIndex
    # On the closed buckets among those of the index.
    decisions: Mapping[BucketKey, SealDecision]


@dataclass(frozen=True)
class ListedBucket:
    """A bucket that has rows, as it was last read."""

    key: BucketKey
    # The folders of its files.
    name: str
    # Of its interval; None: it does not go by time.
    start: datetime | None
    end: datetime | None
    state: BucketState
    # None: another client wrote a file and does not say.
    rows: int | None
    files: int
    bytes: int
    # Rows that came after it was closed, since it began; None: its manifest was not read yet.
    late: int | None
    # Of its newest manifest; 0: it has none; None: it was not read yet.
    version: int | None
    # The newest, if it was read.
    manifest: Manifest | None
    # Rows that came late and did not join it, by policy (seal.late).
    late_elsewhere: Mapping[str, int]


def bucket_state(facts: SealFacts, bucket: BucketKey) -> BucketState:
    """Return the state of a bucket that has rows: what the log says of it, without a look at its files."""
    unsealed = facts.index.buckets.get(bucket)
    if unsealed is None:
        return BucketState("sealed")
    decision = facts.decisions.get(bucket)
    name: StateName = "open" if decision is None else "closed"
    if unsealed.sealed:
        name = "reopened"
    match decision:
        case SealBlocked(why=why):
            return BucketState("blocked", why)
        case SealLater(due=due):
            why = f"rows came after it was sealed; it is sealed again after {instant(due)}"
        case SealNow():
            why = "it is about to be sealed, by a running driver or `headrace seal`"
        case None:
            why = _reason_to_stay_open(facts, unsealed.end)
    return BucketState(name, why)


def state_without_rows(facts: SealFacts, bucket_end: datetime | None) -> BucketState:
    """Return the state of a bucket of which no row came, and which ends then; None: it does not go by time."""
    if bucket_end is not None and is_closed(bucket_end, facts.closed_until):
        return BucketState("empty", "it is closed, and no row of it came")
    return BucketState("open", f"no row of it came yet; {_reason_to_stay_open(facts, bucket_end)}")


def list_bucket(
    facts: SealFacts,
    columns: Sequence[str],
    key: BucketKey,
    interval: Interval | None,
    files: Sequence[BucketFile],
    manifest: Manifest | None,
) -> ListedBucket:
    """Describe a bucket. A closed one whose files do not have the rows of the log is blocked.

    `manifest`: its newest one; None: it has none, or it was not read.
    """
    unsealed = facts.index.buckets.get(key)
    state = bucket_state(facts, key)
    if unsealed is not None and isinstance(facts.decisions.get(key), SealNow):
        state = _check_rows(state, unsealed, files, manifest)
    late: int | None = None
    version: int | None = None
    if manifest is not None:
        late = manifest.late
        version = manifest.version
    if unsealed is not None:
        late = (late or 0) + unsealed.late
        version = unsealed.sealed
    rows = [file.rows for file in files if file.rows is not None]
    start, bucket_end = interval or (None, None)
    return ListedBucket(
        key=key,
        name=bucket_path(columns, key),
        start=start,
        end=bucket_end,
        state=state,
        rows=sum(rows) if len(rows) == len(files) else None,
        files=len(files),
        bytes=sum(file.bytes for file in files),
        late=late,
        version=version,
        manifest=manifest,
        late_elsewhere=facts.index.late_elsewhere(key, manifest),
    )


def _check_rows(
    state: BucketState, unsealed: Unsealed, files: Sequence[BucketFile], manifest: Manifest | None
) -> BucketState:
    """Return the state of a bucket that is due: blocked if its files have other rows than the log says."""
    manifest_version = 0
    if manifest:
        manifest_version = manifest.version
    if manifest_version != unsealed.sealed:
        # Its newest manifest was not read, so what the log says is not known.
        return state
    why = explain_wrong_rows(unsealed, files, manifest)
    if why is None:
        return state
    return BucketState("blocked", why)


def _reason_to_stay_open(facts: SealFacts, bucket_end: datetime | None) -> str:
    """Return what the closing of an open bucket waits for."""
    if bucket_end is None:
        return "it goes by no time, so nothing closes it"
    if not facts.policy.enabled:
        return "sealing is switched off (seal.enabled)"
    until = shift_instant(bucket_end, facts.policy.allowed_lateness)
    mark = facts.watermark
    if mark.instant is None:
        cause = ""
        if mark.held_by:
            cause = f": {mark.held_by.full_name} has no row yet"
        return f"it is closed when the watermark reaches {instant(until)}; there is none yet{cause}"
    if mark.instant >= until:
        return "it is about to be closed, by a running driver or `headrace seal`"
    cause = ""
    if mark.held_by:
        cause = f", held back by {mark.held_by.full_name} unless it is idle"
    return (
        f"it is closed when the watermark reaches {instant(until)}; it stands at {instant(mark.instant)}{cause}, "
        f"{span((until - mark.instant).total_seconds())} short"
    )


@dataclass(frozen=True)
class BucketCounts:
    """The buckets of a table at one moment by state, without those that are sealed and unchanged."""

    counted_at: datetime
    watermark: Watermark
    closed_until: datetime | None
    open: int
    # About to be sealed.
    closed: int
    # Sealed, and changed since.
    reopened: int
    # The bucket that ends first among those that are not closed, and when.
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
    facts: SealFacts,
    columns: Sequence[str],
    sealed: Sequence[Manifest],
    trouble: Sequence[tuple[str, str]],
    now: datetime,
) -> BucketCounts:
    """Count the buckets by state."""
    buckets = facts.index.buckets
    states = {key: bucket_state(facts, key) for key in buckets}
    counts = Counter(state.name for state in states.values())
    ends = [
        (bucket.end, bucket_path(columns, key))
        for key, bucket in buckets.items()
        if bucket.end is not None and key not in facts.decisions
    ]
    return BucketCounts(
        counted_at=now,
        watermark=facts.watermark,
        closed_until=facts.closed_until,
        open=counts["open"],
        closed=counts["closed"],
        reopened=counts["reopened"],
        next=_first_to_end(ends),
        # In the order of the decisions: the earliest end first.
        blocked=tuple(
            (bucket_path(columns, key), states[key].why) for key in facts.decisions if states[key].name == "blocked"
        ),
        late=sum(bucket.late for bucket in buckets.values()),
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
