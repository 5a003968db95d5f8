"""What the writer needs of a table. One protocol, one contract suite, an adapter for each format."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

import pyarrow as pa

from writer.errors import HeadraceError
from writer.rooms.columnar import BucketKey, StagedFile
from writer.rooms.report import Span
from writer.tables.changes import Adoption, Batch, Closing, Fill, Gap, Loss, Replay, Rewind, Rewrite, Sealing
from writer.tables.parts import BucketFile, Part


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


@dataclass(frozen=True)
class Committed:
    """A batch or a gap of ours, as found in the table's history."""

    version: int
    id: str
    facts: Mapping[str, Any]
    side_files: Mapping[str, Sequence[StagedFile]]
    withdrawn: Mapping[str, Mapping[Part, Sequence[Span]]] = field(default_factory=dict)  # letters that became rows


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
