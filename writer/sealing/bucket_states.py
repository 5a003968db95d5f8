"""The states of a pipeline's buckets, as the sealer computes and commands show them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Literal

from writer.core.files import BucketFile
from writer.core.text import instant
from writer.sealing.manifest import Manifest, bucket_path
from writer.sealing.rules import SealBlocked, SealLater, State, Unsealed, is_closed
from writer.sealing.watermark import Watermark


@dataclass(frozen=True)
class BucketCounts:
    """The buckets of a table at one moment, without those that are sealed and unchanged."""

    at: datetime
    watermark: Watermark
    closed_until: datetime | None
    open: int
    closed: int  # and not sealed: about to be, or blocked
    reopened: int  # sealed, and changed since
    next: tuple[str, datetime] | None = None  # the open bucket that ends first, and when
    blocked: tuple[tuple[str, str], ...] = ()  # bucket, and why it is not sealed
    late: int = 0  # rows in buckets that are not sealed, that came after they were closed
    sealed: int = 0  # manifests of this process
    resealed: int = 0  # of these, of buckets that had one
    last: Manifest | None = None
    trouble: tuple[tuple[str, str], ...] = ()  # step that fails, and why


def bucket_counts(
    columns: Sequence[str], buckets: Sequence[Unsealed], states: Sequence[State], sealed: Sequence[Manifest],
    mark: Watermark, closed_until: datetime | None, trouble: Sequence[tuple[str, str]], at: datetime,
) -> BucketCounts:  # fmt: skip
    """Count what is where. `states`: of the closed buckets among those that are not sealed."""
    name = partial(bucket_path, columns)
    closed = {state.bucket for state in states}
    reopened = sum(b.sealed > 0 for b in buckets if b.bucket in closed)
    open_ = [b for b in buckets if b.bucket not in closed]
    ends = sorted((b.end, name(b.bucket)) for b in open_ if b.end is not None)
    return BucketCounts(
        at=at, watermark=mark, closed_until=closed_until, open=len(open_),
        closed=len(closed) - reopened, reopened=reopened,
        next=(ends[0][1], ends[0][0]) if ends else None,
        blocked=tuple((name(state.bucket), state.why) for state in states if isinstance(state, SealBlocked)),
        late=sum(b.late for b in buckets), sealed=len(sealed), resealed=sum(m.version > 1 for m in sealed),
        last=sealed[-1] if sealed else None, trouble=tuple(trouble),
    )  # fmt: skip


def together(tables: Mapping[str, BucketCounts]) -> BucketCounts:
    """Add up the buckets of the tables of a route, by name. `closed_until` is of the table that is least far.

    A bucket and a step are named with their table.
    """
    found = list(tables.values())
    ends = [(one.next[1], f"{name}/{one.next[0]}") for name, one in tables.items() if one.next]
    first = min(ends, default=None)
    manifests = [one.last for one in found if one.last]
    untils = [one.closed_until for one in found]
    return BucketCounts(
        at=min(one.at for one in found),
        watermark=next((one.watermark for one in found if one.watermark.instant is not None), found[0].watermark),
        closed_until=None if None in untils else min(until for until in untils if until is not None),
        open=sum(one.open for one in found), closed=sum(one.closed for one in found),
        reopened=sum(one.reopened for one in found), next=None if first is None else (first[1], first[0]),
        blocked=tuple((f"{name}/{bucket}", why) for name, one in tables.items() for bucket, why in one.blocked),
        late=sum(one.late for one in found), sealed=sum(one.sealed for one in found),
        resealed=sum(one.resealed for one in found), last=max(manifests, key=lambda m: m.sealed_at, default=None),
        trouble=tuple((f"{step} of {name}", why) for name, one in tables.items() for step, why in one.trouble),
    )  # fmt: skip


@dataclass(frozen=True)
class BucketState:
    """One bucket that has rows, as it was last seen."""

    bucket: str
    start: datetime | None  # of its interval; None: it does not go by time
    end: datetime | None
    state: Literal["open", "closed", "sealed", "reopened", "blocked"]
    rows: int | None  # None: another client wrote a file and does not say
    late: int | None  # rows that came after it was closed; None: its manifest was not looked at yet
    version: int | None  # of its newest manifest; 0: it has none
    why: str = ""  # it is blocked, or rests before it is sealed again


def bucket_state(
    name: str, span: tuple[datetime, datetime] | None, files: Sequence[BucketFile], one: Unsealed | None,
    state: State | None, closed_until: datetime | None, manifest: Manifest | None,
) -> BucketState:  # fmt: skip
    """Describe a bucket. `one`: its rows without a manifest; `state`: what is due, if it is closed."""
    start, end = span or (None, None)
    rows = None if any(file.rows is None for file in files) else sum(file.rows or 0 for file in files)
    why = state.why if isinstance(state, SealBlocked) else ""
    if isinstance(state, SealLater):
        why = f"rows came after it was sealed; it is sealed again after {instant(state.due)}"
    if one is None:
        late, version = (None, None) if manifest is None else (manifest.late, manifest.version)
        return BucketState(name, start, end, "sealed", rows, late, version)
    closed = end is not None and is_closed(end, closed_until)
    shown: Literal["open", "closed", "reopened", "blocked"] = (
        "blocked" if isinstance(state, SealBlocked) else "reopened" if one.sealed else "closed" if closed else "open"
    )
    return BucketState(name, start, end, shown, rows, one.late + (manifest.late if manifest else 0), one.sealed, why)
