"""A pipeline's table: files, ranges and counts in one entry of its log, whatever the format.

Progress is kept as Delta's `txn` actions, one for each part (`<pipeline>/<topic>@<incarnation>/<partition>` → end
offset) and one for the epoch (`<pipeline>/epoch`).
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import dataset

from writer.errors import ConfigError, Fenced
from writer.ledger.book import Book
from writer.ledger.chapter import LedgerUnreadable
from writer.ledger.deep import DataFile
from writer.rooms.columnar import BucketKey, StagedFile, staged_name
from writer.tables import gaps, rewinding, takeover
from writer.tables.append import PATIENCE, Appender, LostRace, Swap, one_line
from writer.tables.base import ClosedMeanwhile, CommitFailed, Committed, Entry, FilesGone, Overtaken, Snapshot
from writer.tables.changes import Adoption, Batch, Closing, Fill, Gap, Loss, Replay, Rewind, Rewrite, Sealing
from writer.tables.columns import Unfit, grown
from writer.tables.entry import (
    batch_said,
    changed,
    removed,
    replay_said,
    rewrite_said,
    said,
)
from writer.tables.format import Format
from writer.tables.log import Action
from writer.tables.parts import BucketFile, Part, Range
from writer.tables.sealing import close, seal
from writer.tables.snapshot import INCARNATIONS, PipelineSnapshot, app_id, seen_name
from writer.tables.takeover import OWNER
from writer.tables.vintage import FORMAT, check_format
from writer.tables.withdraw import Left, Offsets, without

CHECKPOINT_INTERVAL = 50  # versions


class PipelineTable:
    """A table that belongs to one pipeline, in one of the formats."""

    def __init__(
        self, form: Format, pipeline: str, *, patience: timedelta = PATIENCE,
        checkpoint_interval: int = CHECKPOINT_INTERVAL,
    ) -> None:  # fmt: skip
        """Make the handle; `patience` is how long a commit is tried before CommitFailed."""
        self._format, self._log, self._location = form, form.log, form.location
        self._pipeline, self._interval = pipeline, checkpoint_interval
        self._end = Appender(form, pipeline, patience)
        self.store = form.store
        self._listing = threading.Lock()  # one at a time reads the list of files, which a format may keep
        self._table_id: str | None = None  # of the table that was taken over
        self._tidied = -1  # version at which it was last tried

    @property
    def hidden(self) -> bool:
        """Files are to be staged where readers do not look."""
        return self._format.hidden

    @property
    def location(self) -> str:
        """Where the table lies."""
        return self._location

    @property
    def log_location(self) -> str:
        """Where the entries of the table's log lie."""
        return self._log.location

    def create(self, columns: pa.Schema, bucket_columns: Sequence[str], layout: str = "") -> None:
        """Create the table if there is none. `layout` says in words how rows map to buckets.

        Raises ConfigError when the table is another pipeline's, or is bucketed in another way, and when something
        else lies at its location.
        """
        try:
            if not self._log.exists():
                self.check_place()
                self._format.create(OWNER + self._pipeline, layout, columns, bucket_columns)
        except OSError as error:
            raise ConfigError(f"cannot open or create a table at {self._location}: {one_line(error)}") from error
        self.check_identity(bucket_columns, layout)

    def exists(self) -> bool:
        """Tell whether there is a table. Raises CommitFailed."""
        try:
            return self._log.exists()
        except OSError as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {one_line(error)}") from error

    def check_place(self) -> None:
        """Raise ConfigError when what lies at the location keeps a table from being made there; OSError."""
        found = self._format.obstacle()
        if found and not self._log.exists():
            raise ConfigError(f"{self._location} holds {found}. Choose a new location, or correct table.format.")

    def check_identity(self, bucket_columns: Sequence[str], layout: str = "") -> None:
        """Raise ConfigError when the table is another pipeline's, or is bucketed in another way."""
        try:
            state = self._end.state()
        except OSError as error:
            raise ConfigError(f"cannot open or create a table at {self._location}: {one_line(error)}") from error
        metadata = state.metadata
        owner, known = metadata.get("name") or "", metadata.get("description") or ""
        if owner != OWNER + self._pipeline:
            made = owner.startswith(OWNER)
            whose = f"belongs to pipeline {owner.removeprefix(OWNER)!r}" if made else "was not made by headrace"
            adopt = "" if made else "; `headrace table adopt` says whether it can be adopted"
            raise ConfigError(
                f"the table at {self._location} {whose}; pipeline {self._pipeline!r} needs a location of its own{adopt}"
            )
        check_format(state.transactions, self._pipeline, self._location)
        columns = list(metadata["partitionColumns"])
        if columns != list(bucket_columns) or known != layout:
            raise ConfigError(
                f"the table at {self._location} is bucketed by {known or ', '.join(columns)}, the "
                f"configuration says {layout or ', '.join(bucket_columns)}; keep 'bucket' as it was, or choose a new "
                "location"
            )

    def snapshot(self) -> PipelineSnapshot:
        """Read the newest version."""
        return self._end.snapshot()

    def entries(self, since: int) -> list[tuple[int, list[Action]]]:
        """Entries after version `since` that the log still has, whoever wrote them, oldest first."""
        return self._end.entries(since)

    def begin(
        self,
        starts: Mapping[Part, int],
        incarnations: Mapping[str, Sequence[str]],
        closed: int = 0,
        lease: int | None = None,
    ) -> int:
        """Take the pipeline over with the next epoch."""

        def start(snapshot: PipelineSnapshot) -> int:
            if lease is not None and lease < snapshot.lease:
                raise Fenced(
                    f"pipeline {self._pipeline!r} was started under lease {snapshot.lease} of its supervisors, this "
                    f"start was ordered under lease {lease}: another supervisor has taken over. Leave it to that one."
                )
            new = {part: offset for part, offset in starts.items() if snapshot.frontier(part) is None}
            older = {"upgraded": {"from": snapshot.format, "to": FORMAT}} if snapshot.epoch else {}
            held = {} if lease is None else {"lease": lease}
            about = {"kind": "start", **held, **(older if snapshot.format < FORMAT else {})}
            self._take_over(snapshot, new, incarnations, closed, about, lease)
            return snapshot.epoch + 1

        return self._end.retried(start)

    def adopt(self, snapshot: Snapshot, adoption: Adoption) -> int:
        """Rename incarnations and set the frontier of new parts on exactly this snapshot; raise the epoch."""
        assert isinstance(snapshot, PipelineSnapshot)
        assert all(snapshot.frontier(part) is None for part in adoption.starts), "an adoption moves no frontier"
        try:
            about = {"kind": "adopt", **adoption.facts}
            self._take_over(snapshot, adoption.starts, adoption.incarnations, adoption.closed, about)
        except LostRace as error:
            raise CommitFailed(
                f"the table at {self._location} was written to meanwhile (version {snapshot.version + 1}); nothing was "
                "adopted. Stop the pipeline's driver, then look again."
            ) from error
        except OSError as error:
            raise CommitFailed(f"cannot write to the table at {self._location}: {one_line(error)}") from error
        return snapshot.version + 1

    def take(
        self, snapshot: PipelineSnapshot, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
    ) -> int:
        """Make a table of another writer this pipeline's. Returns the version. Raises CommitFailed."""
        return takeover.take(self._end, self._pipeline, snapshot, columns, layout, facts)

    def _take_over(
        self,
        snapshot: PipelineSnapshot,
        starts: Mapping[Part, int],
        incarnations: Mapping[str, Sequence[str]],
        closed: int,
        about: Mapping[str, Any],
        lease: int | None = None,
    ) -> None:
        wanted = {topic: list(ids) for topic, ids in incarnations.items()}
        values = {app_id(self._pipeline, part): offset for part, offset in starts.items()}
        values |= {f"{self._pipeline}/format": FORMAT} if snapshot.format < FORMAT else {}
        values |= {f"{self._pipeline}/closed": max(closed, snapshot.closed)} if closed else {}
        values |= {} if lease is None else {f"{self._pipeline}/lease": lease}
        properties = {} if snapshot.incarnations() == wanted else {INCARNATIONS: json.dumps(wanted)}
        self._end.write(snapshot, [], {**values, f"{self._pipeline}/epoch": snapshot.epoch + 1}, about, properties)
        self._table_id = snapshot.state.metadata["id"]

    def commit(self, snapshot: Snapshot, batch: Batch) -> int:
        """Add the files and move the frontier, atomically; then readers see the files."""
        values = {f"{self._pipeline}/settled": batch.settled}
        values |= {seen_name(self._pipeline, part): at for part, at in batch.seen.items()}

        def check(newest: PipelineSnapshot) -> None:
            if newest.closed_until != batch.closed_until:
                raise ClosedMeanwhile(
                    f"buckets are closed until {newest.closed_until} by now, rows were judged by {batch.closed_until}"
                )

        return self._land(snapshot, batch.epoch, batch.ranges, batch.files, values, batch_said(batch), check)

    def record_gap(self, snapshot: Snapshot, gap: Gap) -> int:
        """Move the frontier over lost ranges, atomically, and keep the ticket."""
        assert isinstance(snapshot, PipelineSnapshot)

        def check(newest: PipelineSnapshot) -> None:
            self._check(newest, gap.epoch, gap.ranges)

        return gaps.record(self._end, self._pipeline, snapshot, gap, check)

    def fill(self, snapshot: Snapshot, fill: Fill) -> int:
        """Add records of a gap, and settle their offsets, unless the ticket changed since it was looked at."""
        assert isinstance(snapshot, PipelineSnapshot)
        return gaps.fill(self._end, self._pipeline, snapshot, fill)

    def give_up(self, snapshot: Snapshot, loss: Loss) -> int:
        """End a gap whose records nobody will bring, unless the ticket changed since it was looked at."""
        assert isinstance(snapshot, PipelineSnapshot)
        return gaps.give_up(self._end, self._pipeline, snapshot, loss)

    def replay(self, snapshot: Snapshot, replay: Replay) -> int:
        """Add the rows of dead letters, and say which letters go."""
        assert isinstance(snapshot, PipelineSnapshot)

        def check(newest: PipelineSnapshot) -> None:
            if newest.replays != replay.generation:
                raise Overtaken(
                    f"another replay of pipeline {self._pipeline!r} was committed meanwhile; its letters are read again"
                )

            if newest.rewinds != snapshot.rewinds:
                raise Overtaken(f"pipeline {self._pipeline!r} was rewound meanwhile; its letters are read again")

        values = {f"{self._pipeline}/replay": replay.generation + 1}
        return self._end.append(snapshot, replay.files, values, replay_said(replay), check)

    def rewind(self, snapshot: Snapshot, rewind: Rewind) -> int:
        """Go back on exactly this snapshot; raise the epoch."""
        assert isinstance(snapshot, PipelineSnapshot)
        return rewinding.rewind(self._end, self._pipeline, snapshot, rewind)

    def at(self, version: int) -> PipelineSnapshot:
        """Read an earlier version, its files left aside. Raises CommitFailed when the log does not reach back to it."""
        try:
            return PipelineSnapshot(self._log.at(version), self._pipeline)
        except OSError as error:
            raise CommitFailed(f"cannot read version {version} of the table: {one_line(error)}") from error

    def rewrite(self, snapshot: Snapshot, rewrite: Rewrite) -> int:
        """Swap files, for as long as all that are removed are there."""
        assert isinstance(snapshot, PipelineSnapshot)
        table, looked = snapshot.state.place

        def check(newest: PipelineSnapshot) -> None:
            nonlocal looked
            if newest.state.metadata["id"] != table:
                raise FilesGone(f"the table at {self._location} was removed and made again meanwhile")
            self._check_there(rewrite.removed, looked, newest.version)
            looked = newest.version

        columns, moves_only = snapshot.state.metadata["partitionColumns"], not (rewrite.taken and rewrite.taken.rows)
        gone = [removed(file, columns, datetime.now(UTC), moves_only=moves_only) for file in rewrite.removed]
        return self._end.append(snapshot, rewrite.files, {}, rewrite_said(rewrite), check, Swap(gone, moves_only))

    def close(self, snapshot: Snapshot, closing: Closing) -> int | None:
        """Move `closed_until` forward, unless it is that far already."""
        assert isinstance(snapshot, PipelineSnapshot)
        return close(self._end, self._pipeline, snapshot, closing)

    def seal(self, snapshot: Snapshot, sealing: Sealing) -> int:
        """Say that buckets are as their manifests have them, for as long as nothing touched them since."""
        assert isinstance(snapshot, PipelineSnapshot)
        return seal(self._end, snapshot, sealing)

    def _check_there(self, files: Sequence[BucketFile], since: int, until: int) -> None:
        """Raise FilesGone when an entry after `since` removes one of the files, or cannot be looked at any more."""
        mine = {file.path for file in files}
        looked = [(version, actions) for version, actions in self.entries(since) if version <= until]
        if [version for version, _ in looked] != list(range(since + 1, until + 1)):
            raise FilesGone(
                f"the log of {self._location} has lost versions after {since}; what they removed is unknown"
            )
        for version, actions in looked:
            lost = mine & {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
            if lost:
                raise FilesGone(f"version {version} of {self._location} removed {min(lost)}, which was to be rewritten")

    def _land(
        self,
        snapshot: Snapshot,
        epoch: int,
        ranges: Sequence[Range],
        files: Sequence[StagedFile],
        values: Mapping[str, int],
        about: Mapping[str, Any],
        also: Callable[[PipelineSnapshot], None] = lambda _: None,
    ) -> int:
        """Write an entry that moves the frontier over ranges, for as long as they begin there and the epoch is ours."""
        assert isinstance(snapshot, PipelineSnapshot)

        def check(newest: PipelineSnapshot) -> None:
            self._check(newest, epoch, ranges)
            also(newest)

        moved = {app_id(self._pipeline, r.part): r.end for r in ranges}
        values = {**moved, f"{self._pipeline}/epoch": epoch, **values}
        return self._end.append(snapshot, files, values, about, check)

    def publish(self, snapshot: Snapshot) -> None:
        """Let readers see all files of this version; a second time does nothing."""
        assert isinstance(snapshot, PipelineSnapshot)
        self._end.publish(*snapshot.state.place)

    def check_owner(self, snapshot: Snapshot, epoch: int) -> None:
        """Raise Fenced when the pipeline was started again since `epoch`, or another table stands in its place."""
        assert isinstance(snapshot, PipelineSnapshot)
        if snapshot.epoch != epoch:
            raise Fenced(
                f"pipeline {self._pipeline!r} was started again (start {snapshot.epoch}, this is start {epoch}): "
                "another writer runs. Stop one of them."
            )
        if self._table_id is not None and snapshot.state.metadata["id"] != self._table_id:
            raise Fenced(
                f"the table at {self._location} was removed and made again since pipeline {self._pipeline!r} was "
                "started. Start it again."
            )

    def _check(self, snapshot: PipelineSnapshot, epoch: int, ranges: Sequence[Range]) -> None:
        """Raise Fenced unless the snapshot is still the epoch's, with its frontier where the ranges begin."""
        self.check_owner(snapshot, epoch)
        for r in ranges:
            at = snapshot.frontier(r.part)
            if at is not None and at != r.start:
                raise Fenced(
                    f"offset {at} of {r.part.topic}/{r.part.partition} is committed, this batch starts at {r.start}: "
                    f"another writer runs as {self._pipeline!r}. Stop one of them."
                )

    def grow(self, columns: Sequence[pa.Field], epoch: int | None = None) -> None:
        """Add the columns that the table lacks, and widen those that are narrower. Nothing else changes.

        `epoch`: of the start that asks; None for a side table, which has no epochs.

        Raises Fenced, CommitFailed when another client gave a column a type that ours does not fit.
        """

        def grow(snapshot: PipelineSnapshot) -> None:
            if epoch is not None:
                self.check_owner(snapshot, epoch)
            known = snapshot.state.metadata
            try:
                schema, changes = grown(known["schemaString"], columns)
            except Unfit as error:
                raise CommitFailed(
                    f"the table at {self._location}: {error}. Start again: the next start looks."
                ) from error
            if changes:
                self._end.put(snapshot, changed(known, schema, changes, epoch))

        self._end.retried(grow)

    def commits_since(self, version: int) -> list[Committed]:
        """Commits of this pipeline after `version`, oldest first."""
        return self._end.ours(version)

    def recent(self, count: int) -> list[Mapping[str, Any]]:
        """Facts of this pipeline's commits among the table's last `count`, newest first; of older ones if none is."""
        for reach in (count, 20 * count, None):  # starts and replays may have followed the last of them
            found = [entry.facts for entry in self.history(reach) if entry.kind == "batch"]
            if found:
                return found[:count]
        return []

    def history(self, count: int | None = None) -> list[Entry]:
        """Entries of this pipeline among the table's last `count`, newest first. None: all that the log still has."""
        newest = self.snapshot().version
        found = []
        for version, actions in self._end.entries(-1 if count is None else newest - count):
            info, about = said(actions)
            if about.get("kind") in ("start", "batch", "gap", "adopt", "close", "seal", "fill", "lost", "rewind"):
                at = datetime.fromtimestamp(info["timestamp"] / 1000, UTC)
                found.append(Entry(version, at, about["kind"], about))
        return found[::-1]

    def buckets(self) -> list[BucketKey]:
        """Buckets that have files. Looks at every file of the table."""
        try:
            return self._format.buckets(self._end.state())
        except OSError as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {one_line(error)}") from error

    def bucket_files(self, snapshot: Snapshot, bucket: BucketKey | None = None) -> list[BucketFile]:
        """Files that this version names, of one bucket or of all, in the order of their paths."""
        assert isinstance(snapshot, PipelineSnapshot)
        try:
            with self._listing:
                return sorted(self._format.bucket_files(snapshot.state, bucket), key=lambda file: file.path)
        except OSError as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {one_line(error)}") from error

    def rows_at(self, version: int) -> dict[str, int | None]:
        """Rows of each file that a version names, by path; nothing where the log does not reach back so far."""
        with suppress(OSError), self._listing:
            state = replace(self._end.state(), version=version)
            return {file.path: file.rows for file in self._format.bucket_files(state, None)}
        return {}

    def files(self, version: int) -> list[DataFile]:
        """Files of a version. Looks at every file of the table."""
        try:
            return self._format.files(version)
        except OSError as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {one_line(error)}") from error

    def foreign(self) -> list[str]:
        """Paths of files that readers of the table see and that no entry ever named. Reads every entry."""
        try:
            return self._format.foreign()
        except OSError as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {one_line(error)}") from error

    def rows(self) -> dataset.Dataset:
        """Return the rows of the newest version, as any reader finds them."""
        try:
            return self._format.rows(self._end.state())
        except OSError as error:
            raise CommitFailed(f"cannot read the table at {self._location}: {one_line(error)}") from error

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files that no commit will name; what stays is an orphan. Raises OSError."""
        for file in files:
            self.store.delete(staged_name(file.path) if self.hidden else file.path)

    def tidy(self) -> None:
        """Write the log's checkpoint and remove what has outlived its retention, once in so many entries.

        Before anything is removed, the ledger has its account.
        """
        try:
            state, noted = self._end.state(), self._log.checkpointed()
            version = state.version
            if version - max(noted if noted <= version else -1, self._tidied) < self._interval:
                return
            self._tidied = version
            book = Book(self.store, state.metadata["id"], self._pipeline)
            book.write(((n, actions) for n, actions in self._end.entries(book.last()) if n <= version), self.rows_at)
            self._format.tidy(state)
        except (OSError, LedgerUnreadable) as error:
            raise CommitFailed(f"cannot tidy the table at {self._location}: {one_line(error)}") from error

    def apply_side(
        self, version: int, files: Sequence[StagedFile], withdrawn: Offsets | None = None, why: str = ""
    ) -> None:
        """Add the files that main commit `version` listed for this table, once; a second time does nothing.

        In the same commit, the rows of `withdrawn` offsets go; `why`: they are a term of the account, under this name.
        """

        def apply(snapshot: PipelineSnapshot) -> None:
            table, at = snapshot.state.place
            if snapshot.applied < version:
                about: dict[str, Any] = {"kind": "side", "main_version": version}
                with self.without(snapshot, withdrawn or {}) as left:
                    if why and left.rows:
                        about["taken"] = {"why": why, "rows": left.rows}
                    moved = {f"{self._pipeline}/main": version}
                    self._end.write(snapshot, [*files, *left.rest], moved, about, None, Swap(left.gone))
                at += 1
            self._format.publish((table, at))

        self._end.retried(apply)

    @contextmanager
    def without(self, snapshot: PipelineSnapshot, offsets: Offsets, prefix: str = "replay") -> Iterator[Left]:
        """Stage what is left of the files that hold rows at these offsets. Raises LostRace, OSError."""
        if not offsets:
            yield Left()
            return
        self._format.publish(snapshot.state.place)  # what is left of a file is read in its place
        try:
            files, known = self.files(snapshot.version), {one.path: one for one in self.bucket_files(snapshot)}
            columns = snapshot.state.metadata["partitionColumns"]
            with without(
                self.store, files, offsets, columns=columns, known=known, hidden=self.hidden, prefix=prefix
            ) as found:
                yield found
        except FileNotFoundError as error:
            if self.snapshot().version == snapshot.version:
                raise
            raise LostRace(f"files of version {snapshot.version} were written anew meanwhile") from error
