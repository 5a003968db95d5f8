"""Operations that one log entry can carry, each a value that validates itself."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from writer.core.files import BucketFile, BucketKey, StagedFile
from writer.core.offsets import LogMark, OffsetRange, Span, TopicPartition
from writer.table.log.foreign_writes import Change

# Why rows are removed whose retention is over.
RETENTION = "retention"


@dataclass(frozen=True)
class Batch:
    """One atomic commit: files, the ranges they hold, and the account of every record."""

    # Unique; the same when the commit is tried again.
    id: str
    epoch: int
    ranges: Sequence[OffsetRange]
    files: Sequence[StagedFile] = ()
    # By the location of their table.
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)
    # JSON values: counts, run, batch number, steps.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The version up to which the history was read and side files applied, before this batch.
    settled: int = -1
    # The newest event times of the parts in which it rose, in microseconds since 1970.
    newest_event_times: Mapping[TopicPartition, int] = field(default_factory=dict)
    # The instant up to which buckets were closed when its rows were found to be late, or not.
    closed_until: datetime | None = None
    # The same for tables of a route, by number.
    closed_targets: Mapping[int, datetime] = field(default_factory=dict)
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # Of the logs, where the ranges end.
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None


@dataclass(frozen=True)
class LogCut:
    """A log that Kafka cut below the frontier of a part, and that goes on as a further incarnation."""

    # Of the old incarnation.
    part: TopicPartition
    # The number of the new incarnation.
    successor: int
    # The first offset of the new incarnation.
    offset: int
    # Of the old incarnation: rows from `offset` on are of records that Kafka lost, or that come again.
    frontier: int
    # Nothing below `offset` was lost, and all above; else it is the last offset known to be sound.
    is_proven: bool

    def to_dict(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        offsets = {"start": self.offset, "end": self.frontier}
        return {**vars(self.part), **offsets, "successor": self.successor, "is_proven": self.is_proven}


@dataclass(frozen=True)
class Gap:
    """Ranges that no record will come from: the frontier moves over them without files."""

    # Of the gap record; the same when the commit is tried again.
    id: str
    epoch: int
    ranges: Sequence[OffsetRange]
    cause: str
    # JSON values: run, at, hints; by and reason of a person.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The epoch rises with it: the holder of this one is fenced.
    takes_over: bool = False

    @property
    def offsets(self) -> int:
        """How many offsets it holds."""
        return sum(offset_range.end - offset_range.start for offset_range in self.ranges)


@dataclass(frozen=True)
class Fill:
    """One atomic commit of a backfill: records of a gap, and which of its offsets are settled. It moves no frontier."""

    # Unique; the same when the commit is tried again.
    id: str
    # The id of the gap record.
    gap: str
    # The number of changes of the gap record after which the open offsets were read.
    generation: int
    # Offsets that it settles.
    offsets: int
    # Offsets that are open after it.
    left: int
    # The gap record ends with it; with offsets left only if the source knows none.
    done: bool
    files: Sequence[StagedFile] = ()
    # By the location of their table.
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)
    # JSON values: account of each part, rows, by, source, at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None

    def __post_init__(self) -> None:
        if self.offsets < 0 or self.left < 0:
            raise ValueError(f"a fill settles and leaves at least nothing, got {self.offsets} and {self.left}")
        if not self.left and not self.done:
            raise ValueError("a fill that leaves no offset ends its gap record")


@dataclass(frozen=True)
class Loss:
    """One atomic entry that closes a gap without its records."""

    # Unique; the same when the entry is tried again.
    id: str
    # The id of the gap record.
    gap: str
    # The number of changes of the gap record after which it was read.
    generation: int
    # Offsets that are given up.
    left: int
    # JSON values: by, reason, at.
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Adoption:
    """Topics that go on under other ids, names or offsets."""

    # Of all topics, as they are from now on.
    incarnations: Mapping[str, Sequence[str]]
    # The frontier of the parts that begin with it.
    starts: Mapping[TopicPartition, int]
    # Runs up to this one read other offsets: they are not continued.
    closed: int = 0
    # JSON values: what became of which topic, at.
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Replay:
    """One atomic commit of dead letters that became rows, or got another reason. It moves no frontier."""

    # Unique; the same when the commit is tried again.
    id: str
    # The number of replays after which the dead letters were read.
    generation: int
    files: Sequence[StagedFile]
    # Dead letters that failed again, with the reason of today.
    side_files: Mapping[str, Sequence[StagedFile]]
    # The offsets whose dead letters go, by the location of their table.
    withdrawn: Mapping[str, Mapping[TopicPartition, Sequence[Span]]]
    facts: Mapping[str, Any]
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None


@dataclass(frozen=True)
class RemovedRows:
    """Rows that go on purpose, and why: dedupe, retention, delete, rewind. The log has its fields by their names."""

    why: str
    rows: int


@dataclass(frozen=True)
class Rewrite:
    """One atomic replacement of files. It moves no offset."""

    # Unique; the same when the entry is tried again.
    id: str
    removed: Sequence[BucketFile]
    files: Sequence[StagedFile] = ()
    removed_rows: RemovedRows | None = None
    # JSON values: what was done, at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Rows have other values than they had; else they only move.
    changes: bool = False
    # Files of other buckets that decide which rows go: they have to be in the table, too.
    by: Sequence[BucketFile] = ()

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a rewrite removes at least one file")
        rows_before = _count_rows(self.removed)
        rows_after = _count_rows(self.files)
        rows_removed = self.removed_rows.rows if self.removed_rows else 0
        adds_up = rows_before - rows_removed == rows_after or _has_unknown_rows(self.removed)
        if rows_removed < 0 or not adds_up:
            raise ValueError(
                f"a rewrite of {rows_before} rows leaves {rows_after} and takes {rows_removed}: that does not add up"
            )


@dataclass(frozen=True)
class BucketChange:
    """How many rows of one bucket a reprocess takes, and how many it adds."""

    bucket: BucketKey
    taken: int
    added: int


@dataclass(frozen=True)
class Reprocess:
    """One atomic swap of a bucket's rows for what their records are by the rules of today. It moves no offset."""

    # Unique; the same when the entry is tried again.
    id: str
    removed: Sequence[BucketFile]
    # Rows of the removed files that were not read again.
    remainders: Sequence[StagedFile]
    # Rows of the records that were, of whatever bucket.
    files: Sequence[StagedFile]
    buckets: Sequence[BucketChange]
    # Dead letters that were rows.
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)
    # JSON values: moves of each part, at, by, source.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a reprocess removes at least one file")
        rows_before = _count_rows(self.removed)
        rows_left = _count_rows(self.remainders)
        rows_written = _count_rows(self.files)
        rows_taken = sum(change.taken for change in self.buckets)
        rows_added = sum(change.added for change in self.buckets)
        adds_up = rows_before - rows_taken == rows_left or _has_unknown_rows(self.removed)
        if rows_added != rows_written or not adds_up:
            raise ValueError(
                f"of {rows_before} rows {rows_taken} go, {rows_left} stay, {rows_added} of {rows_written} come: "
                "that does not add up"
            )


@dataclass(frozen=True)
class ReopenedBucket:
    """A bucket that a rewind took rows out of, or that was sealed since the version to which it goes back."""

    bucket: BucketKey
    taken: int
    # Rows that stay.
    left: int


@dataclass(frozen=True)
class TargetRewind:
    """What a rewind takes out of one table of a route: rows at the offsets that it withdraws there."""

    name: str
    location: str
    number: int
    reopened: Sequence[ReopenedBucket] = ()
    # As the earlier version had it.
    closed_until: datetime | None = None

    @property
    def rows(self) -> int:
        """How many rows of the table go."""
        return sum(bucket.taken for bucket in self.reopened)


@dataclass(frozen=True)
class Undo:
    """What other clients did, and how the files of the version before become the table's again."""

    changes: Sequence[Change]
    # Files that the table has now and had not in that version.
    removed: Sequence[BucketFile]
    # Files that the table had in that version and has not now.
    restored: Sequence[StagedFile]
    # As that version had it.
    frontier: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Acceptance:
    """Accepts other clients' changes. It moves no file; less is proven about the rows from then on."""

    # Unique; the same when the entry is tried again.
    id: str
    changes: Sequence[Change]
    # The rows that the table has fewer by them; negative: more.
    rows: int
    # JSON values: at.
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewind:
    """One atomic step back: the frontier returns to where an earlier version had it, and all rows from there on go.

    With `undo`, what other clients did is taken back before: files and rows are those of the version before them.
    It is the only entry that lowers a frontier, or `closed_until`.
    """

    # Unique; the same when the entry is tried again.
    id: str
    # The version of the table.
    to: int
    # From where the frontier returns to, up to where it was.
    ranges: Sequence[OffsetRange]
    removed: Sequence[BucketFile]
    # Rows of the removed files that stay.
    files: Sequence[StagedFile]
    # The offsets whose rows go, by the location of their side table.
    withdrawn: Mapping[str, Mapping[TopicPartition, Sequence[Span]]]
    reopened: Sequence[ReopenedBucket] = ()
    # As the earlier version had them.
    newest_event_times: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    closed_until: datetime | None = None
    # The number of offsets of the open gap records that were recorded since, by their ids.
    gaps: Mapping[str, int] = field(default_factory=dict)
    # Runs up to this one read beyond: they are not continued.
    closed: int = 0
    # JSON values: at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    undo: Undo | None = None
    targets: Sequence[TargetRewind] = ()
    # Of the logs, as the earlier version had them.
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows of the table itself go."""
        return sum(bucket.taken for bucket in self.reopened)

    def __post_init__(self) -> None:
        has_empty_range = any(offset_range.start == offset_range.end for offset_range in self.ranges)
        if has_empty_range or not (self.ranges or self.undo):
            raise ValueError("a rewind takes at least one offset back of each part that it names")
        rows_before = _count_rows(self.removed)
        rows_after = _count_rows(self.files)
        if rows_before - self.rows != rows_after and not self.undo:
            raise ValueError(
                f"a rewind of {rows_before} rows leaves {rows_after} and takes {self.rows}: that does not add up"
            )


@dataclass(frozen=True)
class Closing:
    """One atomic step of `closed_until`. It adds no file."""

    # Unique; the same when the entry is tried again.
    id: str
    until: datetime
    # JSON values: reason, at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The number of a table of the route; None: the pipeline's own.
    target: int | None = None


@dataclass(frozen=True)
class Sealing:
    """One atomic entry that seals buckets: their manifests, as `Manifest.to_json` writes them. It adds no file."""

    # Unique; the same when the entry is tried again.
    id: str
    manifests: Sequence[Mapping[str, Any]]
    # JSON values: at.
    facts: Mapping[str, Any] = field(default_factory=dict)


def _count_rows(files: Iterable[BucketFile | StagedFile]) -> int:
    """Return the rows of files; a file whose number of rows is unknown counts none."""
    return sum(file.rows or 0 for file in files)


def _has_unknown_rows(files: Iterable[BucketFile]) -> bool:
    return any(file.rows is None for file in files)
