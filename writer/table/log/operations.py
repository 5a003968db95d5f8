"""Operations that one log entry can carry, each a value that validates itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from writer.core.files import BucketFile, BucketKey, StagedFile
from writer.core.offsets import LogMark, OffsetRange, Span, TopicPartition
from writer.table.log.foreign_writes import Change


@dataclass(frozen=True)
class Batch:
    """One atomic commit: files, the ranges they hold, and the account of every record."""

    id: str  # unique; the same when the commit is tried again
    epoch: int
    ranges: Sequence[OffsetRange]
    files: Sequence[StagedFile] = ()
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)  # table location → files
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: counts, run, batch number, steps
    settled: int = -1  # version up to which the history was looked at and side files applied, before this batch
    seen: Mapping[TopicPartition, int] = field(
        default_factory=dict
    )  # how far parts came, where it rose: microseconds since 1970
    closed_until: datetime | None = None  # by which its rows were found to be late, or not
    closed_targets: Mapping[int, datetime] = field(default_factory=dict)  # the same for tables of a route, by number
    meanings: Mapping[str, int] = field(default_factory=dict)  # of schema ids: name of the `txn` → fingerprint
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)  # of the logs at the ends of the ranges
    privacy: int | None = None  # version of the privacy entries by which rows were made; None: rows of no record


@dataclass(frozen=True)
class LogCut:
    """A log that Kafka cut below the frontier of a part, and that goes on as a further incarnation."""

    part: TopicPartition  # of the old incarnation
    successor: int  # number of the new incarnation
    offset: int  # where the new one begins
    frontier: int  # of the old one: rows from `offset` on are of records that Kafka lost, or that come again
    is_proven: bool  # nothing below `offset` was lost, and all above; else it is the last offset known to be sound

    def to_dict(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        offsets = {"start": self.offset, "end": self.frontier}
        return {**vars(self.part), **offsets, "successor": self.successor, "is_proven": self.is_proven}


@dataclass(frozen=True)
class Gap:
    """Ranges that no record will come from: the frontier moves over them without files."""

    id: str  # of the gap record; the same when the commit is tried again
    epoch: int
    ranges: Sequence[OffsetRange]
    cause: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: run, at, hints; by and reason of a person
    takes_over: bool = False  # the epoch rises with it: the holder of this one is fenced

    @property
    def offsets(self) -> int:
        """How many offsets it holds."""
        return sum(r.end - r.start for r in self.ranges)


@dataclass(frozen=True)
class Fill:
    """One atomic commit of a backfill: records of a gap, and which of its offsets are settled. It moves no frontier."""

    id: str  # unique; the same when the commit is tried again
    gap: str  # id of the gap record
    generation: int  # number of changes of the gap record that the open offsets were read after
    offsets: int  # that it settles
    left: int  # that are open after it
    done: bool  # the gap record ends with it; with offsets left only where the source knows none
    files: Sequence[StagedFile] = ()
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)  # table location → files
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: account of each part, rows, by, source, at
    meanings: Mapping[str, int] = field(default_factory=dict)  # of schema ids: name of the `txn` → fingerprint
    privacy: int | None = None  # version of the privacy entries by which rows were made; None: rows of no record

    def __post_init__(self) -> None:
        if self.offsets < 0 or self.left < 0:
            raise ValueError(f"a fill settles and leaves at least nothing, got {self.offsets} and {self.left}")
        if not self.left and not self.done:
            raise ValueError("a fill that leaves no offset ends its gap record")


@dataclass(frozen=True)
class Loss:
    """One atomic entry that closes a gap without its records."""

    id: str  # unique; the same when the entry is tried again
    gap: str  # id of the gap record
    generation: int  # number of changes of the gap record that it was looked at after
    left: int  # offsets that are given up
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: by, reason, at


@dataclass(frozen=True)
class Adoption:
    """Topics that go on under other ids, names or offsets."""

    incarnations: Mapping[str, Sequence[str]]  # of all topics, as they are from now on
    starts: Mapping[TopicPartition, int]  # frontier of the parts that begin with it
    closed: int = 0  # runs up to this one read other offsets: they are not continued
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what became of which topic, at


@dataclass(frozen=True)
class Replay:
    """One atomic commit of dead letters that became rows, or got another reason. It moves no frontier."""

    id: str  # unique; the same when the commit is tried again
    generation: int  # number of replays that the dead letters were read after
    files: Sequence[StagedFile]
    side_files: Mapping[str, Sequence[StagedFile]]  # dead letters that failed again, with the reason of today
    withdrawn: Mapping[str, Mapping[TopicPartition, Sequence[Span]]]  # table location → offsets whose dead letters go
    facts: Mapping[str, Any]
    meanings: Mapping[str, int] = field(default_factory=dict)  # of schema ids: name of the `txn` → fingerprint
    privacy: int | None = None  # version of the privacy entries by which rows were made; None: rows of no record


@dataclass(frozen=True)
class Takeover:
    """Rows that go on purpose, and why: dedupe, retention, delete, rewind."""

    why: str
    rows: int


@dataclass(frozen=True)
class Rewrite:
    """One atomic replacement of files. It moves no offset."""

    id: str  # unique; the same when the entry is tried again
    removed: Sequence[BucketFile]
    files: Sequence[StagedFile] = ()
    taken: Takeover | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what was done, at
    changes: bool = False  # rows have other values than they had; else they only move
    by: Sequence[BucketFile] = ()  # files of other buckets that rows go by: they are to be there, too

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a rewrite removes at least one file")
        unknown = [file.path for file in self.removed if file.rows is None]
        before, after = sum(file.rows or 0 for file in self.removed), sum(file.rows for file in self.files)
        gone = self.taken.rows if self.taken else 0
        if gone < 0 or (not unknown and before - gone != after):
            raise ValueError(f"a rewrite of {before} rows leaves {after} and takes {gone}: that does not add up")


@dataclass(frozen=True)
class BucketChange:
    """How many rows of one bucket a reprocess takes, and how many it adds."""

    bucket: BucketKey
    taken: int
    added: int


@dataclass(frozen=True)
class Reprocess:
    """One atomic swap of a bucket's rows for what their records are by the rules of today. It moves no offset."""

    id: str  # unique; the same when the entry is tried again
    removed: Sequence[BucketFile]
    rest: Sequence[StagedFile]  # rows of the removed files that were not read again
    files: Sequence[StagedFile]  # rows of the records that were, of whatever bucket
    buckets: Sequence[BucketChange]
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)  # dead letters that were rows
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: moves of each part, at, by, source
    meanings: Mapping[str, int] = field(default_factory=dict)  # of schema ids: name of the `txn` → fingerprint
    privacy: int | None = None  # version of the privacy entries by which rows were made; None: rows of no record

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a reprocess removes at least one file")
        before, left, came = (sum(file.rows or 0 for file in some) for some in (self.removed, self.rest, self.files))
        unknown = any(file.rows is None for file in self.removed)
        taken, added = sum(one.taken for one in self.buckets), sum(one.added for one in self.buckets)
        if added != came or (not unknown and before - taken != left):
            raise ValueError(f"of {before} rows {taken} go, {left} stay, {added} of {came} come: that does not add up")


@dataclass(frozen=True)
class ReopenedBucket:
    """A bucket that a rewind took rows out of, or that was sealed since the version to which it goes back."""

    bucket: BucketKey
    taken: int
    left: int  # rows that stay


@dataclass(frozen=True)
class TargetRewind:
    """What a rewind takes out of one table of a route: rows at the offsets that it withdraws there."""

    name: str
    location: str
    number: int
    reopened: Sequence[ReopenedBucket] = ()
    closed_until: datetime | None = None  # as the earlier version had it

    @property
    def rows(self) -> int:
        """How many rows of the table go."""
        return sum(one.taken for one in self.reopened)


@dataclass(frozen=True)
class Undo:
    """What other clients did, and how the files of the version before become the table's again."""

    changes: Sequence[Change]
    gone: Sequence[BucketFile]  # that the table has now, and had not
    back: Sequence[StagedFile]  # that it had, and has not now
    frontier: Mapping[TopicPartition, int]  # as that version had it


@dataclass(frozen=True)
class Acceptance:
    """Accepts other clients' changes. It moves no file; less is proven about the rows from then on."""

    id: str  # unique; the same when the entry is tried again
    changes: Sequence[Change]
    rows: int  # that the table has fewer by them; negative: more
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: at


@dataclass(frozen=True)
class Rewind:
    """One atomic step back: the frontier returns to where an earlier version had it, and all rows from there on go.

    With `undo`, what other clients did is taken back before: files and rows are those of the version before them.
    It is the only entry that lowers a frontier, or `closed_until`.
    """

    id: str  # unique; the same when the entry is tried again
    to: int  # version of the table
    ranges: Sequence[OffsetRange]  # [where the frontier returns to, where it was)
    removed: Sequence[BucketFile]
    files: Sequence[StagedFile]  # what is left of the removed files
    withdrawn: Mapping[str, Mapping[TopicPartition, Sequence[Span]]]  # location of a side table → offsets whose rows go
    reopened: Sequence[ReopenedBucket] = ()
    seen: Mapping[TopicPartition, int | None] = field(default_factory=dict)  # as the earlier version had it
    closed_until: datetime | None = None  # the same
    gaps: Mapping[str, int] = field(default_factory=dict)  # open gap records that were recorded since: id → offsets
    closed: int = 0  # runs up to this one read beyond: they are not continued
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: at
    undo: Undo | None = None
    targets: Sequence[TargetRewind] = ()
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)  # of the logs, as the earlier version had it

    @property
    def rows(self) -> int:
        """How many rows of the table itself go."""
        return sum(one.taken for one in self.reopened)

    def __post_init__(self) -> None:
        if not (self.ranges or self.undo) or any(r.start == r.end for r in self.ranges):
            raise ValueError("a rewind takes at least one offset back of each part that it names")
        before, after = sum(file.rows or 0 for file in self.removed), sum(file.rows for file in self.files)
        if before - self.rows != after and not self.undo:
            raise ValueError(f"a rewind of {before} rows leaves {after} and takes {self.rows}: that does not add up")


@dataclass(frozen=True)
class Closing:
    """One atomic step of `closed_until`. It adds no file."""

    id: str  # unique; the same when the entry is tried again
    until: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: reason, at
    target: int | None = None  # number of a table of the route; None: the pipeline's own


@dataclass(frozen=True)
class Sealing:
    """One atomic entry that seals buckets: their manifests, as `Manifest.to_json` writes them. It adds no file."""

    id: str  # unique; the same when the entry is tried again
    manifests: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: at


WHY = "retention"
