"""Finds buckets with rows that no manifest covers, from log entries. Pure except `IndexCheckpoint`.

It is kept in one object beside the table, `_headrace/unsealed.json`: how far the log was read, and what it said of
the buckets that are not sealed by then. It follows from the log, and any reader may write it: an older one is
only more to read.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter

from writer.core.files import BucketFile, BucketKey, group_by_bucket
from writer.core.units import from_iso
from writer.sealing.manifest import Manifest, Reason
from writer.sealing.rules import MissingRange, Unsealed, is_closed
from writer.storage.base import Store
from writer.table.ledger import gap_record
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.entries import bucket_of, file_changes, parse_commit_info
from writer.table.log.log import Action

INDEX = "_headrace/unsealed.json"
FORMAT = 1
Span = tuple[datetime, datetime]


@dataclass(frozen=True)
class UnsealedIndex:
    """The state of buckets by the log, up to a version of the table."""

    table: str  # id
    version: int
    buckets: Mapping[BucketKey, Unsealed] = field(default_factory=dict)
    missing_ranges: tuple[MissingRange, ...] = ()
    retained: datetime | None = None  # buckets that end by then may have lost their files to retention
    closed: tuple[datetime, Reason] | None = None  # how far buckets are closed, and why the last of them were
    elsewhere: Mapping[BucketKey, Mapping[str, int]] = field(default_factory=dict)  # since its manifest: late rows that
    # did not join their bucket, by policy

    def late_elsewhere(self, bucket: BucketKey, manifest: Manifest | None) -> dict[str, int]:
        """Return the late rows of a bucket that did not join it, by policy. `manifest`: its newest one."""
        return dict(Counter(manifest.late_elsewhere if manifest else {}) + Counter(self.elsewhere.get(bucket, {})))


_UNSEALED = TypeAdapter(UnsealedIndex)


@dataclass(frozen=True)
class BucketQuestion:
    """What the index needs to know of a bucket that the log does not say."""

    interval: Callable[[BucketKey], Span | None]
    newest: Callable[[BucketKey], Manifest | None]  # manifest


def after(
    unsealed: UnsealedIndex, version: int, actions: Sequence[Action], columns: Sequence[str], ask: BucketQuestion
) -> UnsealedIndex:
    """Return the index after one more entry; `columns`: the table's bucket columns."""
    info, about = parse_commit_info(actions)
    at = datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC)
    unsealed = replace(unsealed, version=version)
    match about.get("kind"):
        case "side" if "reopened" in about:
            return _rewound(unsealed, about, at, ask)
        case "batch" | "replay" | "fill" | "side":
            unsealed = replace(unsealed, missing_ranges=_ended(unsealed.missing_ranges, about))
            late = Counter({tuple(key): rows for key, rows in about.get("late", {}).get("buckets", ())})
            unsealed = _passed_over(unsealed, about)
            came = [_came(unsealed, b, rows, late[b], at, ask) for b, rows in _adds(actions, columns).items()]
            return _closed(_with(unsealed, came), about)
        case "rewrite":
            return _rewritten(unsealed, about.get("taken"), actions, columns, at, ask)
        case "reprocess":
            return _reprocessed(unsealed, about, at, ask)
        case "seal":
            sealed = {tuple(manifest["bucket"]) for manifest in about["manifests"]}
            elsewhere = {b: rows for b, rows in unsealed.elsewhere.items() if b not in sealed}
            buckets = {b: one for b, one in unsealed.buckets.items() if b not in sealed}
            return replace(unsealed, buckets=buckets, elsewhere=elsewhere)
        case "close":
            return _closed(unsealed, about)
        case "gap":
            known = missing_ranges_of(gap_record.gap_records_of_entry(version, about), unsealed.missing_ranges)
            return replace(unsealed, missing_ranges=tuple(known))
        case "lost":
            return replace(unsealed, missing_ranges=_ended(unsealed.missing_ranges, about))
        case "rewind":
            return _rewound(unsealed, about, at, ask)
        case None:  # another client: which rows came or went it does not say
            touched = {bucket_of(columns, change) for change in file_changes(actions) if change.get("dataChange", True)}
            return _with(
                unsealed, [replace(_known(unsealed, b, at, ask), changed=at, rows_known=False) for b in touched]
            )
        case _:
            return unsealed


def from_files(
    table: str,
    version: int,
    files: Iterable[BucketFile],
    missing_ranges: Iterable[MissingRange],
    at: datetime,
    ask: BucketQuestion,
) -> UnsealedIndex:
    """Return the index of a table whose log does not reach back to its beginning: its files, taken at their word."""
    unsealed = UnsealedIndex(table, version, missing_ranges=tuple(missing_ranges))
    found = []
    for bucket, its in group_by_bucket(files).items():
        one = _known(unsealed, bucket, at, ask)
        manifest = ask.newest(bucket) if one.sealed else None
        uncounted = any(file.rows is None for file in its)
        if manifest is None or uncounted or manifest.rows != sum(file.rows or 0 for file in its):
            found.append(replace(one, rows_known=False))
    return _with(unsealed, found)


def _ended(missing_ranges: tuple[MissingRange, ...], about: Mapping[str, Any]) -> tuple[MissingRange, ...]:
    """Return the missing ranges after an entry that may end a gap: filled, or given up."""
    lost = about.get("kind") == "lost"
    if not lost and not about.get("done"):
        return missing_ranges
    return tuple(replace(h, state="lost" if lost else "done") if h.gap == about["gap"] else h for h in missing_ranges)


def missing_ranges_of(gap_records: Mapping[str, GapRecord], known: Iterable[MissingRange]) -> list[MissingRange]:
    """Return the missing ranges of gap records, and those `known` of gaps whose records are in no log any more."""
    found = [missing_range for missing_range in known if missing_range.gap not in gap_records]
    for one in gap_records.values():
        if one.opened is None or (state := one.state) == "rewound":
            continue
        spans = {(hint.start, hint.end) for hint in one.opened.hints}
        found += [MissingRange(one.id, start, end, state) for start, end in sorted(spans, key=str)]
    return found


def expected(one: Unsealed, manifest: Manifest | None) -> int | None:
    """Return how many rows a bucket holds by the log; None if the log does not have the number."""
    if not one.rows_known:
        return None
    return (manifest.rows if manifest else 0) + one.added - one.taken


def _came(
    unsealed: UnsealedIndex, bucket: BucketKey, rows: int | None, late: int, at: datetime, ask: BucketQuestion
) -> Unsealed:
    one = _known(unsealed, bucket, at, ask)
    rows_known = one.rows_known and rows is not None
    return replace(one, added=one.added + (rows or 0), late=one.late + late, changed=at, rows_known=rows_known)


def _passed_over(unsealed: UnsealedIndex, about: Mapping[str, Any]) -> UnsealedIndex:
    """Count late rows that did not join their buckets: for the next manifest, which they do not make."""
    found = {bucket: Counter(rows) for bucket, rows in unsealed.elsewhere.items()}
    for key, to, rows in about.get("late", {}).get("elsewhere", ()):
        found.setdefault(tuple(key), Counter())[to] += rows
    return replace(unsealed, elsewhere=found) if found else unsealed


def _rewritten(
    unsealed: UnsealedIndex,
    taken: Mapping[str, Any] | None,
    actions: Sequence[Action],
    columns: Sequence[str],
    at: datetime,
    ask: BucketQuestion,
) -> UnsealedIndex:
    """Follow a rewrite: rows that only move change nothing; what retention takes is no bucket any more."""
    if not taken or not taken["rows"]:
        return unsealed
    touched = {bucket_of(columns, change) for change in file_changes(actions)}
    if taken["why"] == "retention":
        ends = [span[1] for b in touched if (span := ask.interval(b)) is not None]
        retained = max([*ends, *([unsealed.retained] if unsealed.retained else [])], default=None)
        kept = {b: one for b, one in unsealed.buckets.items() if b not in touched}
        elsewhere = {b: rows for b, rows in unsealed.elsewhere.items() if b not in touched}
        return replace(unsealed, buckets=kept, retained=retained, elsewhere=elsewhere)
    found = []
    for bucket in touched:
        one = _known(unsealed, bucket, at, ask)
        if len(touched) > 1:  # how many rows of which bucket, it does not say
            found.append(replace(one, changed=at, rows_known=False))
            continue
        deduped = taken["rows"] if taken["why"] == "dedupe" else 0
        found.append(replace(one, changed=at, taken=one.taken + taken["rows"], deduped=one.deduped + deduped))
    return _with(unsealed, found)


def _rewound(unsealed: UnsealedIndex, about: Mapping[str, Any], at: datetime, ask: BucketQuestion) -> UnsealedIndex:
    """Apply a rewind: its buckets are open or closed as they were then, and have no valid manifest.

    A bucket that had no manifest and has no row any more is none.
    """
    until = from_iso(about["closed_until"])
    gone, found = set(about["gaps"]), dict(unsealed.buckets)
    for key, taken, left in about["reopened"]:
        one = _known(unsealed, tuple(key), at, ask)
        found[one.bucket] = replace(one, changed=at, taken=one.taken + taken)
        if not one.sealed and not left:
            del found[one.bucket]
    opened = {
        b: one if one.end is None or is_closed(one.end, until) else replace(one, reason=None)
        for b, one in found.items()
    }
    closed = None if until is None or unsealed.closed is None else (until, unsealed.closed[1])
    missing_ranges = tuple(missing_range for missing_range in unsealed.missing_ranges if missing_range.gap not in gone)
    return replace(unsealed, buckets=opened, missing_ranges=missing_ranges, closed=closed)


def _reprocessed(unsealed: UnsealedIndex, about: Mapping[str, Any], at: datetime, ask: BucketQuestion) -> UnsealedIndex:
    """Apply a reprocess: rows of some buckets went, others came. A bucket without manifest and rows is none."""
    found = dict(unsealed.buckets)
    for key, taken, added in about["buckets"]:
        before = _known(unsealed, tuple(key), at, ask)
        one = replace(before, changed=at, taken=before.taken + taken, added=before.added + added)
        found[one.bucket] = one
        if one.rows_known and not one.sealed and one.taken == one.added:
            del found[one.bucket]
    return replace(unsealed, buckets=found)


def _known(unsealed: UnsealedIndex, bucket: BucketKey, at: datetime, ask: BucketQuestion) -> Unsealed:
    if bucket in unsealed.buckets:
        return unsealed.buckets[bucket]
    span, manifest = ask.interval(bucket), ask.newest(bucket)
    start, end = span or (None, None)
    lost = manifest is not None and end is not None and unsealed.retained is not None and end <= unsealed.retained
    reason = unsealed.closed[1] if unsealed.closed and end is not None and end <= unsealed.closed[0] else None
    return Unsealed(
        bucket, start, end, at, sealed=manifest.version if manifest else 0, rows_known=not lost, reason=reason
    )


def _closed(unsealed: UnsealedIndex, about: Mapping[str, Any]) -> UnsealedIndex:
    """Follow a close: an entry of the pipeline's, or one of kind side, where the log of a route's table repeats it."""
    if "until" not in about:
        return unsealed
    until, reason = datetime.fromisoformat(about["until"]), about["reason"]
    ended = [one for one in unsealed.buckets.values() if one.end is not None and is_closed(one.end, until)]
    return replace(
        _with(unsealed, [replace(one, reason=one.reason or reason) for one in ended]), closed=(until, reason)
    )


def _with(unsealed: UnsealedIndex, found: Iterable[Unsealed]) -> UnsealedIndex:
    return replace(unsealed, buckets={**unsealed.buckets, **{one.bucket: one for one in found}})


def _adds(actions: Sequence[Action], columns: Sequence[str]) -> dict[BucketKey, int | None]:
    """Return how many rows an entry adds to which buckets; None if a file has no count."""
    found: dict[BucketKey, int | None] = {}
    for action in actions:
        if add := action.get("add"):
            key, rows = bucket_of(columns, add), json.loads(add.get("stats") or "{}").get("numRecords")
            before = found.get(key, 0)
            found[key] = None if before is None or rows is None else before + rows
    return found


class IndexCheckpoint:
    """Stores the index between two reads. Operations raise OSError if the storage fails."""

    def __init__(self, store: Store) -> None:
        """Take the store of the table."""
        self._store = store

    def put(self, unsealed: UnsealedIndex) -> None:
        """Write the index down, in place of whatever is there."""
        self._store.put(INDEX, _to_json(unsealed))

    def read(self, table: str) -> UnsealedIndex | None:
        """Return the index of this table id; None where there are none, or nothing that can be read: look anew."""
        found = self._store.read(INDEX)
        try:
            unsealed = None if found is None else _from_json(found.content)
        except (ValueError, KeyError, TypeError):
            return None
        return unsealed if unsealed is not None and unsealed.table == table else None


def _to_json(unsealed: UnsealedIndex) -> bytes:
    document = {
        "format": FORMAT, "table": unsealed.table, "version": unsealed.version,
        "buckets": [vars(one) for one in unsealed.buckets.values()],
        "missing_ranges": [vars(one) for one in unsealed.missing_ranges],
        "retained": unsealed.retained, "closed": unsealed.closed,
        "elsewhere": [[bucket, rows] for bucket, rows in unsealed.elsewhere.items()],
    }  # fmt: skip
    return json.dumps(document, default=datetime.isoformat, separators=(",", ":"), ensure_ascii=False).encode()


def _from_json(content: bytes) -> UnsealedIndex | None:
    """Read what `_to_json` wrote; None for another format. Raises KeyError, TypeError, ValueError for anything else."""
    raw = json.loads(content)
    if raw["format"] != FORMAT:
        return None
    buckets = {tuple(bucket["bucket"]): bucket for bucket in raw["buckets"]}
    elsewhere = {tuple(bucket): rows for bucket, rows in raw["elsewhere"]}
    return _UNSEALED.validate_python({**raw, "buckets": buckets, "elsewhere": elsewhere})
