"""Finds buckets with rows that no manifest covers, from log entries. Pure except `IndexCheckpoint`.

It is kept in one object beside the table, `_headrace/unsealed.json`: how far the log was read, and what it said of
the buckets that are not sealed by then. It follows from the log, and any reader may write it: an older one is
only more to read.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import TypeAdapter

from headrace.writer.core.files import BucketFile, BucketKey, group_by_bucket
from headrace.writer.core.units import from_iso
from headrace.writer.sealing.manifest import Manifest, Reason
from headrace.writer.sealing.rules import MissingRange, Unsealed, is_closed
from headrace.writer.storage.base import Store
from headrace.writer.table.ledger import gap_record
from headrace.writer.table.ledger.gap_record import GapRecord
from headrace.writer.table.log.entries import bucket_of, file_changes, parse_commit_info
from headrace.writer.table.log.log import Action

INDEX = "_headrace/unsealed.json"
FORMAT = 1
Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class UnsealedIndex:
    """The state of buckets by the log, up to a version of the table."""

    # Id of the table.
    table: str
    version: int
    buckets: Mapping[BucketKey, Unsealed] = field(default_factory=dict)
    missing_ranges: tuple[MissingRange, ...] = ()
    # Buckets that end by then may have lost their files to retention.
    retained: datetime | None = None
    # How far buckets are closed, and why the last of them were.
    closed: tuple[datetime, Reason] | None = None
    # Late rows since the bucket's manifest that did not join their bucket, by policy.
    elsewhere: Mapping[BucketKey, Mapping[str, int]] = field(default_factory=dict)

    def late_elsewhere(self, bucket: BucketKey, manifest: Manifest | None) -> dict[str, int]:
        """Return the late rows of a bucket that did not join it, by policy. `manifest`: its newest one."""
        return dict(Counter(manifest.late_elsewhere if manifest else {}) + Counter(self.elsewhere.get(bucket, {})))

    def with_buckets(self, changed: Iterable[Unsealed]) -> "UnsealedIndex":
        """Return the index with further or changed buckets."""
        return replace(self, buckets={**self.buckets, **{unsealed.bucket: unsealed for unsealed in changed}})

    def without_buckets(self, keys: Collection[BucketKey]) -> "UnsealedIndex":
        """Return the index without buckets."""
        buckets = {key: unsealed for key, unsealed in self.buckets.items() if key not in keys}
        elsewhere = {key: rows for key, rows in self.elsewhere.items() if key not in keys}
        return replace(self, buckets=buckets, elsewhere=elsewhere)


_UNSEALED = TypeAdapter(UnsealedIndex)


@dataclass(frozen=True)
class BucketQuestions:
    """What the index needs to know of a bucket that the log does not say."""

    interval: Callable[[BucketKey], Interval | None]
    newest_manifest: Callable[[BucketKey], Manifest | None]


def apply_entry(
    index: UnsealedIndex, version: int, actions: Sequence[Action], columns: Sequence[str], questions: BucketQuestions
) -> UnsealedIndex:
    """Return the index after one more entry; `columns`: the table's bucket columns."""
    info, facts = parse_commit_info(actions)
    now = datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC)
    index = replace(index, version=version)
    match facts.get("kind"):
        case "side" if "reopened" in facts:
            return _apply_rewind(index, facts, now, questions)
        case "batch" | "replay" | "fill" | "side":
            index = replace(index, missing_ranges=_end_gap(index.missing_ranges, facts))
            late = Counter({tuple(key): rows for key, rows in facts.get("late", {}).get("buckets", ())})
            index = _count_late_elsewhere(index, facts)
            changed = [
                _add_rows(_bucket(index, key, now, questions), rows, late[key], now)
                for key, rows in _added_rows(actions, columns).items()
            ]
            return _apply_close(index.with_buckets(changed), facts)
        case "rewrite":
            return _apply_rewrite(index, facts.get("taken"), actions, columns, now, questions)
        case "reprocess":
            return _apply_reprocess(index, facts, now, questions)
        case "seal":
            return index.without_buckets({tuple(manifest["bucket"]) for manifest in facts["manifests"]})
        case "close":
            return _apply_close(index, facts)
        case "gap":
            gap_records = gap_record.gap_records_of_entry(version, facts)
            return replace(index, missing_ranges=tuple(missing_ranges_of(gap_records, index.missing_ranges)))
        case "lost":
            return replace(index, missing_ranges=_end_gap(index.missing_ranges, facts))
        case "rewind":
            return _apply_rewind(index, facts, now, questions)
        case None:
            # Another client: which rows came or went it does not say.
            changes = [change for change in file_changes(actions) if change.get("dataChange", True)]
            keys = {bucket_of(columns, change) for change in changes}
            buckets = [_bucket(index, key, now, questions) for key in keys]
            return index.with_buckets(replace(bucket, changed=now, rows_known=False) for bucket in buckets)
        case _:
            return index


def index_files(
    table: str,
    version: int,
    files: Iterable[BucketFile],
    missing_ranges: Iterable[MissingRange],
    now: datetime,
    questions: BucketQuestions,
) -> UnsealedIndex:
    """Return the index of a table whose log does not reach back to its beginning: its files, taken at their word."""
    index = UnsealedIndex(table, version, missing_ranges=tuple(missing_ranges))
    changed = []
    for key, bucket_files in group_by_bucket(files).items():
        bucket = _bucket(index, key, now, questions)
        manifest = None
        if bucket.sealed:
            manifest = questions.newest_manifest(key)
        has_uncounted = any(file.rows is None for file in bucket_files)
        if manifest is None or has_uncounted or manifest.rows != sum(file.rows or 0 for file in bucket_files):
            changed.append(replace(bucket, rows_known=False))
    return index.with_buckets(changed)


def missing_ranges_of(gap_records: Mapping[str, GapRecord], earlier: Iterable[MissingRange]) -> list[MissingRange]:
    """Return the missing ranges of gap records, and `earlier` ones of gaps whose records are in no log any more."""
    missing_ranges = [missing_range for missing_range in earlier if missing_range.gap not in gap_records]
    for record in gap_records.values():
        state = record.state
        if record.opened is None or state == "rewound":
            continue
        intervals = {(hint.start, hint.end) for hint in record.opened.hints}
        missing_ranges += [MissingRange(record.id, *interval, state) for interval in sorted(intervals, key=str)]
    return missing_ranges


def explain_wrong_rows(unsealed: Unsealed, files: Sequence[BucketFile], manifest: Manifest | None) -> str | None:
    """Return why the files of a bucket are not what the log says of it; None if they are.

    `manifest`: of its version `unsealed.sealed`.
    """
    for file in files:
        if file.rows is None:
            return f"another client wrote {file.path} and does not say how many rows it holds"
    if not unsealed.rows_known:
        return None
    rows = sum(file.rows or 0 for file in files)
    rows_by_log = (manifest.rows if manifest else 0) + unsealed.added - unsealed.taken
    if rows == rows_by_log:
        return None
    return f"its files hold {rows:,} rows, the log has {rows_by_log:,}; `headrace audit --deep` says which"


def _end_gap(missing_ranges: tuple[MissingRange, ...], facts: Mapping[str, Any]) -> tuple[MissingRange, ...]:
    """Return the missing ranges after an entry that may end a gap: filled, or given up."""
    is_lost = facts.get("kind") == "lost"
    if not is_lost and not facts.get("done"):
        return missing_ranges
    state: Literal["lost", "done"] = "done"
    if is_lost:
        state = "lost"
    return tuple(
        replace(missing_range, state=state) if missing_range.gap == facts["gap"] else missing_range
        for missing_range in missing_ranges
    )


def _add_rows(bucket: Unsealed, rows: int | None, late: int, now: datetime) -> Unsealed:
    return replace(
        bucket,
        added=bucket.added + (rows or 0),
        late=bucket.late + late,
        changed=now,
        rows_known=bucket.rows_known and rows is not None,
    )


def _count_late_elsewhere(index: UnsealedIndex, facts: Mapping[str, Any]) -> UnsealedIndex:
    """Count late rows that did not join their buckets: for the next manifest, which they do not make."""
    counts = {key: Counter(rows) for key, rows in index.elsewhere.items()}
    for key, policy, rows in facts.get("late", {}).get("elsewhere", ()):
        counts.setdefault(tuple(key), Counter())[policy] += rows
    if counts:
        return replace(index, elsewhere=counts)
    return index


def _apply_rewrite(
    index: UnsealedIndex,
    taken: Mapping[str, Any] | None,
    actions: Sequence[Action],
    columns: Sequence[str],
    now: datetime,
    questions: BucketQuestions,
) -> UnsealedIndex:
    """Apply a rewrite: rows that only move change nothing; what retention takes is no bucket any more."""
    if not taken or not taken["rows"]:
        return index
    keys = {bucket_of(columns, change) for change in file_changes(actions)}
    if taken["why"] == "retention":
        intervals = [questions.interval(key) for key in keys]
        ends = [interval[1] for interval in intervals if interval is not None]
        if index.retained is not None:
            ends.append(index.retained)
        return replace(index.without_buckets(keys), retained=max(ends, default=None))
    buckets = [_bucket(index, key, now, questions) for key in keys]
    if len(keys) > 1:
        # How many rows of which bucket, the entry does not say.
        return index.with_buckets(replace(bucket, changed=now, rows_known=False) for bucket in buckets)
    deduped = 0
    if taken["why"] == "dedupe":
        deduped = taken["rows"]
    return index.with_buckets(
        replace(bucket, changed=now, taken=bucket.taken + taken["rows"], deduped=bucket.deduped + deduped)
        for bucket in buckets
    )


def _apply_rewind(
    index: UnsealedIndex, facts: Mapping[str, Any], now: datetime, questions: BucketQuestions
) -> UnsealedIndex:
    """Apply a rewind: its buckets are open or closed as they were then, and have no valid manifest.

    A bucket that had no manifest and has no row any more is none.
    """
    until = from_iso(facts["closed_until"])
    buckets = dict(index.buckets)
    for key, taken, rows_left in facts["reopened"]:
        bucket = _bucket(index, tuple(key), now, questions)
        buckets[bucket.bucket] = replace(bucket, changed=now, taken=bucket.taken + taken)
        if not bucket.sealed and not rows_left:
            del buckets[bucket.bucket]
    for key, bucket in buckets.items():
        if bucket.end is not None and not is_closed(bucket.end, until):
            buckets[key] = replace(bucket, reason=None)
    closed = None
    if until is not None and index.closed is not None:
        closed = (until, index.closed[1])
    gaps = set(facts["gaps"])
    missing_ranges = tuple(missing_range for missing_range in index.missing_ranges if missing_range.gap not in gaps)
    return replace(index, buckets=buckets, missing_ranges=missing_ranges, closed=closed)


def _apply_reprocess(
    index: UnsealedIndex, facts: Mapping[str, Any], now: datetime, questions: BucketQuestions
) -> UnsealedIndex:
    """Apply a reprocess: rows of some buckets went, others came. A bucket without manifest and rows is none."""
    buckets = dict(index.buckets)
    for key, taken, added in facts["buckets"]:
        before = _bucket(index, tuple(key), now, questions)
        bucket = replace(before, changed=now, taken=before.taken + taken, added=before.added + added)
        buckets[bucket.bucket] = bucket
        if bucket.rows_known and not bucket.sealed and bucket.taken == bucket.added:
            del buckets[bucket.bucket]
    return replace(index, buckets=buckets)


def _apply_close(index: UnsealedIndex, facts: Mapping[str, Any]) -> UnsealedIndex:
    """Apply a close: an entry of the pipeline's, or one of kind side, where the log of a route's table repeats it."""
    if "until" not in facts:
        return index
    until = datetime.fromisoformat(facts["until"])
    reason = facts["reason"]
    changed = [
        replace(bucket, reason=bucket.reason or reason)
        for bucket in index.buckets.values()
        if bucket.end is not None and is_closed(bucket.end, until)
    ]
    return replace(index.with_buckets(changed), closed=(until, reason))


def _bucket(index: UnsealedIndex, key: BucketKey, now: datetime, questions: BucketQuestions) -> Unsealed:
    """Return a bucket as the index has it, or as its newest manifest says."""
    if key in index.buckets:
        return index.buckets[key]
    start, bucket_end = questions.interval(key) or (None, None)
    manifest = questions.newest_manifest(key)
    is_retained = bucket_end is not None and index.retained is not None and bucket_end <= index.retained
    reason: Reason | None = None
    if index.closed is not None and bucket_end is not None:
        closed_until, close_reason = index.closed
        if bucket_end <= closed_until:
            reason = close_reason
    return Unsealed(
        key,
        start,
        bucket_end,
        now,
        sealed=manifest.version if manifest else 0,
        rows_known=manifest is None or not is_retained,
        reason=reason,
    )


def _added_rows(actions: Sequence[Action], columns: Sequence[str]) -> dict[BucketKey, int | None]:
    """Return how many rows an entry adds to which buckets; None if a file has no count."""
    rows_by_bucket: dict[BucketKey, int | None] = {}
    for action in actions:
        add = action.get("add")
        if not add:
            continue
        key = bucket_of(columns, add)
        rows = json.loads(add.get("stats") or "{}").get("numRecords")
        total = rows_by_bucket.get(key, 0)
        rows_by_bucket[key] = None
        if total is not None and rows is not None:
            rows_by_bucket[key] = total + rows
    return rows_by_bucket


class IndexCheckpoint:
    """Stores the index between two reads. Operations raise OSError if the storage fails."""

    def __init__(self, store: Store) -> None:
        """Take the store of the table."""
        self._store = store

    def put(self, index: UnsealedIndex) -> None:
        """Write the index, in place of whatever is there."""
        self._store.put(INDEX, _to_json(index))

    def read(self, table: str) -> UnsealedIndex | None:
        """Return the index of this table id; None where there is none, or nothing that can be read."""
        file = self._store.read(INDEX)
        if file is None:
            return None
        try:
            index = _from_json(file.content)
        except (ValueError, KeyError, TypeError):
            return None
        if index is not None and index.table == table:
            return index
        return None


def _to_json(index: UnsealedIndex) -> bytes:
    document = {
        "format": FORMAT,
        "table": index.table,
        "version": index.version,
        "buckets": [vars(unsealed) for unsealed in index.buckets.values()],
        "missing_ranges": [vars(missing_range) for missing_range in index.missing_ranges],
        "retained": index.retained,
        "closed": index.closed,
        "elsewhere": [[bucket, rows] for bucket, rows in index.elsewhere.items()],
    }
    return json.dumps(document, default=datetime.isoformat, separators=(",", ":"), ensure_ascii=False).encode()


def _from_json(content: bytes) -> UnsealedIndex | None:
    """Read what `_to_json` wrote; None for another format. Raises KeyError, TypeError, ValueError for anything else."""
    raw = json.loads(content)
    if raw["format"] != FORMAT:
        return None
    buckets = {tuple(bucket["bucket"]): bucket for bucket in raw["buckets"]}
    elsewhere = {tuple(bucket): rows for bucket, rows in raw["elsewhere"]}
    return _UNSEALED.validate_python({**raw, "buckets": buckets, "elsewhere": elsewhere})
