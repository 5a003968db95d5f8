"""What the writer needs of a table. One protocol, one contract suite, an adapter for each format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import pyarrow as pa

from writer.errors import HeadraceError
from writer.rooms.columnar import BucketKey, StagedFile
from writer.rooms.report import Span


class ForeignChange(HeadraceError):
    """Somebody changed the table in a way that its ledger does not survive."""

    exit_code = 2


class CommitFailed(HeadraceError):
    """The storage gave no answer, or refused, for as long as we tried."""


class ClosedMeanwhile(HeadraceError):
    """Buckets were closed since the batch's rows were found to be on time: they are to be looked at again."""


class Resealed(HeadraceError):
    """A bucket changed, or was sealed, since its manifest was drawn up."""


class Overtaken(HeadraceError):
    """Since letters were read, or a gap looked at, somebody else replayed, changed that gap, or rewound the table."""


class FilesGone(HeadraceError):
    """A file that was to be removed is not there any more: somebody else rewrote or removed it meanwhile."""


@dataclass(frozen=True, order=True)
class Part:
    """One partition of one incarnation of a topic: what a frontier belongs to."""

    topic: str
    incarnation: int
    partition: int


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of one part."""

    part: Part
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"{self.part}: a range needs 0 <= start <= end, got [{self.start}, {self.end})")


@dataclass(frozen=True)
class Batch:
    """One atomic commit: files, the ranges they hold, and the account of every record."""

    id: str  # unique; the same when the commit is tried again
    epoch: int
    ranges: Sequence[Range]
    files: Sequence[StagedFile] = ()
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)  # table location → files
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: counts, run, batch number, rooms
    settled: int = -1  # version up to which the history was looked at and side files applied, before this batch
    seen: Mapping[Part, int] = field(default_factory=dict)  # how far parts came, where it rose: microseconds since 1970
    closed_until: datetime | None = None  # by which its rows were found to be late, or not


@dataclass(frozen=True)
class Gap:
    """Ranges that no record will come from: the frontier moves over them without files."""

    id: str  # of the ticket; the same when the commit is tried again
    epoch: int
    ranges: Sequence[Range]
    cause: str
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: run, at, hints; by and reason of a person
    takes_over: bool = False  # the epoch rises with it: whoever holds this one is fenced

    @property
    def offsets(self) -> int:
        """How many offsets it holds."""
        return sum(r.end - r.start for r in self.ranges)


@dataclass(frozen=True)
class Fill:
    """One atomic commit of a backfill: records of a gap, and which of its offsets are settled. It moves no frontier."""

    id: str  # unique; the same when the commit is tried again
    gap: str  # id of the ticket
    generation: int  # number of changes of the ticket that the open offsets were read after
    offsets: int  # that it settles
    left: int  # that are open after it
    done: bool  # the ticket ends with it; with offsets left only where the source knows none
    files: Sequence[StagedFile] = ()
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)  # table location → files
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: account of each part, rows, by, source, at

    def __post_init__(self) -> None:
        if self.offsets < 0 or self.left < 0:
            raise ValueError(f"a fill settles and leaves at least nothing, got {self.offsets} and {self.left}")
        if not self.left and not self.done:
            raise ValueError("a fill that leaves no offset ends its ticket")


@dataclass(frozen=True)
class Loss:
    """One atomic entry that gives up what is open of a gap: nobody will bring it."""

    id: str  # unique; the same when the entry is tried again
    gap: str  # id of the ticket
    generation: int  # number of changes of the ticket that it was looked at after
    left: int  # offsets that are given up
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: by, reason, at


@dataclass(frozen=True)
class Adoption:
    """Topics that go on under other ids, names or offsets."""

    incarnations: Mapping[str, Sequence[str]]  # of all topics, as they are from now on
    starts: Mapping[Part, int]  # frontier of the parts that begin with it
    closed: int = 0  # runs up to this one read other offsets: they are not continued
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what became of which topic, at


@dataclass(frozen=True)
class Committed:
    """A batch or a gap of ours, as found in the table's history."""

    version: int
    id: str
    facts: Mapping[str, Any]
    side_files: Mapping[str, Sequence[StagedFile]]
    withdrawn: Mapping[str, Mapping[Part, Sequence[Span]]] = field(default_factory=dict)  # letters that became rows


@dataclass(frozen=True)
class Replay:
    """One atomic commit of dead letters that became rows, or got another reason. It moves no frontier."""

    id: str  # unique; the same when the commit is tried again
    generation: int  # number of replays that the letters were read after
    files: Sequence[StagedFile]
    side_files: Mapping[str, Sequence[StagedFile]]  # letters that failed again, with the reason of today
    withdrawn: Mapping[str, Mapping[Part, Sequence[Span]]]  # table location → offsets whose letters go
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class BucketFile:
    """A file that a version of the table names. None: the log does not tell, as another client wrote it."""

    path: str  # relative to the table
    bucket: BucketKey
    rows: int | None
    bytes: int
    event_time_min: datetime | None = None
    event_time_max: datetime | None = None


@dataclass(frozen=True)
class Taken:
    """Rows that go on purpose, and why: dedupe, retention, delete, rewind."""

    why: str
    rows: int


@dataclass(frozen=True)
class Rewrite:
    """One atomic swap of files: what is removed, and what stands for it. No offset moves."""

    id: str  # unique; the same when the entry is tried again
    removed: Sequence[BucketFile]
    files: Sequence[StagedFile] = ()
    taken: Taken | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: what was done, at

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a rewrite removes at least one file")
        unknown = [file.path for file in self.removed if file.rows is None]
        before, after = sum(file.rows or 0 for file in self.removed), sum(file.rows for file in self.files)
        gone = self.taken.rows if self.taken else 0
        if gone < 0 or (not unknown and before - gone != after):
            raise ValueError(f"a rewrite of {before} rows leaves {after} and takes {gone}: that does not add up")


@dataclass(frozen=True)
class Reopened:
    """A bucket that a rewind took rows out of, or that was sealed since the version to which it goes back."""

    bucket: BucketKey
    taken: int
    left: int  # rows that stay


@dataclass(frozen=True)
class Rewind:
    """One atomic step back: the frontier returns to where an earlier version had it, and all rows from there on go.

    It is the only entry that lowers a frontier, or `closed_until`.
    """

    id: str  # unique; the same when the entry is tried again
    to: int  # version of the table
    ranges: Sequence[Range]  # [where the frontier returns to, where it was)
    removed: Sequence[BucketFile]
    files: Sequence[StagedFile]  # what is left of the removed files
    withdrawn: Mapping[str, Mapping[Part, Sequence[Span]]]  # location of a side table → offsets whose rows go
    reopened: Sequence[Reopened] = ()
    seen: Mapping[Part, int | None] = field(default_factory=dict)  # as the earlier version had it
    closed_until: datetime | None = None  # the same
    gaps: Mapping[str, int] = field(default_factory=dict)  # open tickets that were recorded since: id → offsets
    closed: int = 0  # runs up to this one read beyond: they are not continued
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: at

    @property
    def rows(self) -> int:
        """How many rows of the table itself go."""
        return sum(one.taken for one in self.reopened)

    def __post_init__(self) -> None:
        if not self.ranges or any(r.start == r.end for r in self.ranges):
            raise ValueError("a rewind takes at least one offset back of each part that it names")
        before, after = sum(file.rows or 0 for file in self.removed), sum(file.rows for file in self.files)
        if before - self.rows != after:
            raise ValueError(f"a rewind of {before} rows leaves {after} and takes {self.rows}: that does not add up")


@dataclass(frozen=True)
class Closing:
    """One atomic step of `closed_until`. It adds no file."""

    id: str  # unique; the same when the entry is tried again
    until: datetime
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: reason, at


@dataclass(frozen=True)
class Sealing:
    """One atomic entry that seals buckets: their manifests, as `Manifest.to_json` writes them. It adds no file."""

    id: str  # unique; the same when the entry is tried again
    manifests: Sequence[Mapping[str, Any]]
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: at


@dataclass(frozen=True)
class Entry:
    """An entry of the table's log that headrace wrote."""

    version: int
    at: datetime
    kind: Literal["start", "batch", "gap", "adopt", "close", "seal", "fill", "lost", "rewind"]
    facts: Mapping[str, Any]


class Snapshot(Protocol):
    """One version of the table: what is read from it and what is committed on it belong together."""

    @property
    def version(self) -> int:
        """Version of the table."""

    @property
    def epoch(self) -> int:
        """Number of starts that this pipeline has had; the last one owns it."""

    @property
    def settled(self) -> int:
        """Version up to which side files are known to be applied; -1 when nothing is known."""

    @property
    def closed(self) -> int:
        """Number of the run up to which none is continued."""

    @property
    def gaps(self) -> tuple[int, int]:
        """How many gaps are open, and how many offsets nobody has brought or given up."""

    @property
    def replays(self) -> int:
        """Number of replays of dead letters that the table has had."""

    @property
    def rewinds(self) -> int:
        """Number of rewinds that the table has had."""

    @property
    def closed_until(self) -> datetime | None:
        """Buckets that end at or before this instant take no more rows on time; None: none was ever closed."""

    def seen(self, part: Part) -> int | None:
        """Return how far rows of this part have come: the newest event time, bounded by broker time and the clock.

        In microseconds since 1970; None: no row of it was committed.
        """

    def frontier(self, part: Part) -> int | None:
        """Return the first offset of this part that is not committed; None when the table has never seen it."""

    def columns(self) -> pa.Schema:
        """Columns with their Arrow types, bucket columns included."""

    def incarnations(self) -> Mapping[str, Sequence[str]]:
        """Topic → ids of its incarnations, in order; the n-th has the number n (from 1)."""


class SideTable(Protocol):
    """A table that rides along: a main commit lists its files, redo applies them."""

    def apply_side(
        self,
        version: int,
        files: Sequence[StagedFile],
        withdrawn: Mapping[Part, Sequence[Span]] | None = None,
        why: str = "",
    ) -> None:
        """Add the files that main commit `version` listed for this table, once; a second time does nothing.

        In the same commit, the rows of `withdrawn` offsets go; `why`: they are a term of the account, under this name.
        """


class Table(Protocol):
    """A table that belongs to one pipeline."""

    def snapshot(self) -> Snapshot:
        """Read the newest version."""

    def begin(
        self,
        starts: Mapping[Part, int],
        incarnations: Mapping[str, Sequence[str]],
        closed: int = 0,
        lease: int | None = None,
    ) -> int:
        """Take the pipeline over: raise the epoch, and set the frontier of new parts, in one commit. Returns the epoch.

        A part that has a frontier by then keeps it. Runs up to `closed` are not continued by any later start.

        Whoever held an older epoch is fenced from then on. `lease`: epoch of the lease under which this start was
        ordered. Raises Fenced when a start under a newer lease came before: this one is a straggler.
        """

    def check_owner(self, snapshot: Snapshot, epoch: int) -> None:
        """Raise Fenced when the pipeline was started again since `epoch`, or another table stands in its place."""

    def commit(self, snapshot: Snapshot, batch: Batch) -> int:
        """Add the files and move the frontier, atomically. Returns the version that holds the batch.

        Raises Fenced when another run owns the pipeline, ClosedMeanwhile, ForeignChange, CommitFailed.
        """

    def record_gap(self, snapshot: Snapshot, gap: Gap) -> int:
        """Move the frontier over lost ranges, atomically, and keep the ticket. Returns the version that holds it.

        Each range begins at the frontier. Raises as `commit` does.
        """

    def fill(self, snapshot: Snapshot, fill: Fill) -> int:
        """Add records of a gap, and settle their offsets. Returns the version that holds it.

        It needs no epoch and raises none: whoever writes the table goes on. Raises Overtaken when the ticket changed
        since it was looked at, ForeignChange, CommitFailed.
        """

    def give_up(self, snapshot: Snapshot, loss: Loss) -> int:
        """End a gap whose records nobody will bring. Returns the version that holds it. Raises as `fill` does."""

    def adopt(self, snapshot: Snapshot, adoption: Adoption) -> int:
        """Rename incarnations and set the frontier of new parts on exactly this snapshot; raise the epoch.

        Whoever held an older epoch is fenced from then on. Returns the version. Raises CommitFailed when something was
        committed since the snapshot.
        """

    def replay(self, snapshot: Snapshot, replay: Replay) -> int:
        """Add the rows of dead letters, and say which letters go. Returns the version that holds the replay.

        It needs no epoch and raises none: whoever writes the table goes on. Raises Overtaken when the letters may have
        been replayed meanwhile, ForeignChange, CommitFailed.
        """

    def rewrite(self, snapshot: Snapshot, rewrite: Rewrite) -> int:
        """Swap files, atomically where the format can. Returns the version that holds the rewrite.

        It needs no epoch and raises none: whoever writes the table goes on. `snapshot`: where the files were listed.
        Raises FilesGone when one of those that it removes is not there any more, ForeignChange, CommitFailed.
        """

    def rewind(self, snapshot: Snapshot, rewind: Rewind) -> int:
        """Go back on exactly this snapshot; raise the epoch. Returns the version that holds the rewind.

        Whoever held an older epoch is fenced from then on. Raises CommitFailed when something was committed since.
        """

    def bucket_files(self, snapshot: Snapshot, bucket: BucketKey | None = None) -> Sequence[BucketFile]:
        """Files that this version names, of one bucket or of all, in the order of their paths. Reads the log alone."""

    def close(self, snapshot: Snapshot, closing: Closing) -> int | None:
        """Move `closed_until` forward. Returns the version that does it; None: it is that far already.

        It needs no epoch: whoever writes the table goes on. Raises ForeignChange, CommitFailed.
        """

    def seal(self, snapshot: Snapshot, sealing: Sealing) -> int:
        """Say that buckets are as their manifests have them. Returns the version that holds the seal.

        `snapshot`: what the manifests were drawn up from. Raises Resealed when a bucket of theirs changed since, or was
        sealed, ForeignChange, CommitFailed.
        """

    def grow(self, columns: Sequence[pa.Field], epoch: int) -> None:
        """Add nullable columns, and widen those that are narrower, in one entry. Raises Fenced, CommitFailed."""

    def publish(self, snapshot: Snapshot) -> None:
        """Let readers see all files of this version; a second time does nothing. Raises CommitFailed, ForeignChange."""

    def recent(self, count: int) -> Sequence[Mapping[str, Any]]:
        """Facts of this pipeline's commits among the table's last `count`, newest first; of older ones if none is."""

    def history(self, count: int | None = None) -> Sequence[Entry]:
        """Entries of this pipeline among the table's last `count`, newest first. None: all that there are."""

    def buckets(self) -> Sequence[BucketKey]:
        """Buckets that have files. Looks at every file of the table."""

    def tidy(self) -> None:
        """Do what is due from time to time. Raises CommitFailed: nothing is wrong with what was committed."""

    def commits_since(self, version: int) -> Sequence[Committed]:
        """Commits of this pipeline after `version`, oldest first. Raises ForeignChange."""
