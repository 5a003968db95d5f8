"""A pipeline's table: files, ranges and counts in one entry of its log, whatever the format.

Progress is kept as Delta's `txn` actions, one for each part (`<pipeline>/<topic>@<incarnation>/<partition>` → end
offset) and one for the epoch (`<pipeline>/epoch`). Each kind of entry has a room of its own.
"""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
from pyarrow import dataset

from writer.batch.parquet_files import staged_name
from writer.core.errors import ConfigError, Fenced
from writer.core.files import BucketFile, BucketKey, DataFile, StagedFile
from writer.core.offsets import OffsetRange, TopicPartition
from writer.table import schema_ids, takeover
from writer.table.ledger.segment import LedgerUnreadable
from writer.table.ledger.segment_store import LedgerStore
from writer.table.log import control_commits, data_commits
from writer.table.log.appender import PATIENCE, Appender, Check, LostRace, Swap
from writer.table.log.control_commits import OWNER, check_identity
from writer.table.log.entries import Committed, Entry, changed, parse_entry
from writer.table.log.foreign_writes import CommitFailed, one_line, reading
from writer.table.log.log import Action
from writer.table.log.operations import (
    Acceptance,
    Adoption,
    Batch,
    Closing,
    Fill,
    Gap,
    Loss,
    Replay,
    Rewind,
    Rewrite,
    Sealing,
)
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.log.table_format import Format
from writer.table.row_removal import Offsets, RemovalResult, without
from writer.table.schema_evolution import Unfit, grown

CHECKPOINT_INTERVAL = 50  # versions


class PipelineTable:
    """A table that belongs to one pipeline, in one of the formats."""

    def __init__(
        self, form: Format, pipeline: str, *, patience: timedelta = PATIENCE,
        checkpoint_interval: int = CHECKPOINT_INTERVAL,
    ) -> None:  # fmt: skip
        """Make the handle; `patience` is how long a commit is tried before CommitFailed."""
        self._format, self._log, self.store = form, form.log, form.store
        self.location, self.log_location = form.location, form.log.location
        self.hidden = form.hidden  # files are to be staged where readers do not look
        self._pipeline, self._interval = pipeline, checkpoint_interval
        self._end = Appender(form, pipeline, patience)
        self._listing = threading.Lock()  # one at a time reads the list of files, which a format may keep
        self._table_id: str | None = None  # of the table that was taken over
        self._tidied = -1  # version at which it was last tried

    # --- what a start looks at ------------------------------------------------------------------------------------

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
            raise self._unopened(error) from error
        self.check_identity(bucket_columns, layout)

    def exists(self) -> bool:
        """Tell whether there is a table. Raises CommitFailed."""
        with reading(self.location):
            return self._log.exists()

    def check_place(self) -> None:
        """Raise ConfigError when what lies at the location keeps a table from being made there; OSError."""
        found = self._format.obstacle()
        if found and not self._log.exists():
            raise ConfigError(f"{self.location} holds {found}. Choose a new location, or correct table.format.")

    def check_identity(self, bucket_columns: Sequence[str], layout: str = "") -> None:
        """Raise ConfigError when the table is another pipeline's, or is bucketed in another way."""
        try:
            state = self._end.state()
        except OSError as error:
            raise self._unopened(error) from error
        check_identity(state, self._pipeline, self.location, bucket_columns, layout)

    def _unopened(self, error: OSError) -> ConfigError:
        return ConfigError(f"cannot open or create a table at {self.location}: {one_line(error)}")

    def check_owner(self, snapshot: PipelineSnapshot, epoch: int) -> None:
        """Raise Fenced when the pipeline was started again since `epoch`, or another table stands in its place."""
        if snapshot.epoch != epoch:
            raise Fenced(
                f"pipeline {self._pipeline!r} was started again (start {snapshot.epoch}, this is start {epoch}): "
                "another writer runs. Stop one of them."
            )
        if self._table_id is not None and snapshot.state.metadata["id"] != self._table_id:
            raise Fenced(
                f"the table at {self.location} was removed and made again since pipeline {self._pipeline!r} was "
                "started. Start it again."
            )

    # --- entries --------------------------------------------------------------------------------------------------
    # Each returns the version that holds it, and raises ForeignChange where another client did what the ledger does not
    # survive, CommitFailed where the storage refused, or gave no answer, for as long as was tried. Those that need no
    # epoch raise none: whoever writes the table goes on.

    def begin(
        self,
        starts: Mapping[TopicPartition, int],
        incarnations: control_commits.Ids,
        closed: int = 0,
        lease: int | None = None,
    ) -> int:
        """Take the pipeline over: raise the epoch, and set the frontier of new parts, in one entry. Returns the epoch.

        A part that has a frontier by then keeps it. Runs up to `closed` are not continued by any later start.

        Whoever held an older epoch is fenced from then on. `lease`: epoch of the lease under which this start was
        ordered. Raises Fenced when a start under a newer lease came before: this one is a straggler.
        """
        taken = control_commits.begin(self._end, starts, incarnations, closed, lease)
        self._table_id = taken.state.metadata["id"]
        return taken.epoch + 1

    def adopt(self, snapshot: PipelineSnapshot, adoption: Adoption) -> int:
        """Rename incarnations and set the frontier of new parts on exactly this snapshot; raise the epoch.

        Whoever held an older epoch is fenced from then on. Raises CommitFailed when something was committed since the
        snapshot.
        """
        version = control_commits.adopt(self._end, snapshot, adoption)
        self._table_id = snapshot.state.metadata["id"]
        return version

    def take(
        self, snapshot: PipelineSnapshot, columns: Sequence[pa.Field], layout: str, facts: Mapping[str, Any]
    ) -> int:
        """Make a table of another writer this pipeline's. Raises CommitFailed."""
        return takeover.take_over(self._end, snapshot, columns, layout, facts)

    def commit(self, snapshot: PipelineSnapshot, batch: Batch) -> int:
        """Add the files and move the frontier, atomically; then readers see the files.

        Raises Fenced when another run owns the pipeline, ClosedMeanwhile.
        """
        return data_commits.land(self._end, snapshot, batch, self._next(batch.epoch, batch.ranges))

    def record_gap(self, snapshot: PipelineSnapshot, gap: Gap) -> int:
        """Move the frontier over lost ranges, atomically, and keep the ticket. Raises Fenced.

        Each range begins at the frontier.
        """
        return control_commits.record(self._end, snapshot, gap, self._next(gap.epoch, gap.ranges))

    def fill(self, snapshot: PipelineSnapshot, fill: Fill) -> int:
        """Add records of a gap, and settle their offsets. It needs no epoch.

        Raises Overtaken when the ticket changed since it was looked at.
        """
        return control_commits.fill(self._end, snapshot, fill)

    def give_up(self, snapshot: PipelineSnapshot, loss: Loss) -> int:
        """End a gap whose records nobody will bring. It needs no epoch. Raises as `fill` does."""
        return control_commits.give_up(self._end, snapshot, loss)

    def replay(self, snapshot: PipelineSnapshot, replay: Replay) -> int:
        """Add the rows of dead letters, and say which letters go. It needs no epoch.

        Raises Overtaken when the letters may have been replayed meanwhile, or the table was rewound.
        """
        return data_commits.replay(self._end, snapshot, replay)

    def accept_schema_ids(self, snapshot: PipelineSnapshot, values: Mapping[str, int], facts: Mapping[str, Any]) -> int:
        """Let schema ids mean others than they did, by the values of their `txn`. It needs no epoch.

        Raises CommitFailed when the pipeline was started since the snapshot.
        """
        return schema_ids.accept(self._end, snapshot, values, facts)

    def rewind(self, snapshot: PipelineSnapshot, rewind: Rewind) -> int:
        """Go back on exactly this snapshot; raise the epoch: whoever held an older one is fenced from then on.

        Raises CommitFailed when something was committed since.
        """
        return data_commits.rewind(self._end, snapshot, rewind)

    def accept(self, snapshot: PipelineSnapshot, acceptance: Acceptance) -> int:
        """Accept what other clients did, on exactly this snapshot; raise the epoch. Raises CommitFailed."""
        return control_commits.accept(self._end, snapshot, acceptance)

    def rewrite(self, snapshot: PipelineSnapshot, rewrite: Rewrite) -> int:
        """Swap files, atomically where the format can. It needs no epoch. `snapshot`: where the files were listed.

        Raises FilesGone when one of those that it removes is not there any more.
        """
        return data_commits.rewrite(self._end, snapshot, rewrite)

    def close(self, snapshot: PipelineSnapshot, closing: Closing) -> int | None:
        """Move `closed_until` forward; None: it is that far already. It needs no epoch."""
        return control_commits.close(self._end, snapshot, closing)

    def seal(self, snapshot: PipelineSnapshot, seals: Sealing) -> int:
        """Say that buckets are as their manifests have them. It needs no epoch.

        `snapshot`: what the manifests were drawn up from. Raises Resealed when a bucket of theirs changed since, or was
        sealed.
        """
        return control_commits.seal(self._end, snapshot, seals)

    def _next(self, epoch: int, ranges: Sequence[OffsetRange]) -> Check:
        """Return the check that the epoch is still ours, and the frontier where the ranges begin. It raises Fenced."""

        def check(newest: PipelineSnapshot) -> None:
            self.check_owner(newest, epoch)
            data_commits.check_frontier(newest, self._pipeline, ranges)

        return check

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
                    f"the table at {self.location}: {error}. Start again: the next start looks."
                ) from error
            if changes:
                self._end.put(snapshot, changed(known, schema, changes, epoch))

        self._end.retried(grow)

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
    def without(self, snapshot: PipelineSnapshot, offsets: Offsets, prefix: str = "replay") -> Iterator[RemovalResult]:
        """Stage what is left of the files that hold rows at these offsets. Raises LostRace, OSError."""
        if not offsets:
            yield RemovalResult()
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

    def publish(self, snapshot: PipelineSnapshot) -> None:
        """Let readers see all files of this version; a second time does nothing. Raises CommitFailed, ForeignChange."""
        self._end.publish(*snapshot.state.place)

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
            book = LedgerStore(self.store, state.metadata["id"], self._pipeline)
            book.write(((n, actions) for n, actions in self._end.entries(book.last()) if n <= version), self.rows_at)
            self._format.tidy(state)
        except (OSError, LedgerUnreadable) as error:
            raise CommitFailed(f"cannot tidy the table at {self.location}: {one_line(error)}") from error

    # --- what the log and the files say ---------------------------------------------------------------------------

    def snapshot(self) -> PipelineSnapshot:
        """Read the newest version."""
        return self._end.snapshot()

    def transactions(self) -> Mapping[str, int]:
        """Values of all `txn` in the newest version, by their names; none where there is no table."""
        return self.snapshot().state.transactions if self.exists() else {}

    def at(self, version: int) -> PipelineSnapshot:
        """Read an earlier version, its files left aside. Raises CommitFailed when the log does not reach back to it."""
        try:
            return PipelineSnapshot(self._log.at(version), self._pipeline)
        except OSError as error:
            raise CommitFailed(f"cannot read version {version} of the table: {one_line(error)}") from error

    def entries(self, since: int) -> list[tuple[int, list[Action]]]:
        """Entries after version `since` that the log still has, whoever wrote them, oldest first."""
        return self._end.entries(since)

    def commits_since(self, version: int, despite: Collection[int] = ()) -> list[Committed]:
        """Commits of this pipeline after `version`, oldest first; `despite`: changes of others that are passed over."""
        return self._end.ours(version, despite)

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
        found = [parse_entry(*entry) for entry in self._end.entries(-1 if count is None else newest - count)]
        return [entry for entry in reversed(found) if entry is not None]

    def buckets(self) -> list[BucketKey]:
        """Buckets that have files. Looks at every file of the table."""
        with reading(self.location):
            return self._format.buckets(self._end.state())

    def bucket_files(self, snapshot: PipelineSnapshot, bucket: BucketKey | None = None) -> list[BucketFile]:
        """Files that this version names, of one bucket or of all, in the order of their paths."""
        with reading(self.location), self._listing:
            return sorted(self._format.bucket_files(snapshot.state, bucket), key=lambda file: file.path)

    def rows_at(self, version: int) -> dict[str, int | None]:
        """Rows of each file that a version names, by path; nothing where the log does not reach back so far."""
        with suppress(OSError), self._listing:
            state = replace(self._end.state(), version=version)
            return {file.path: file.rows for file in self._format.bucket_files(state, None)}
        return {}

    def files(self, version: int) -> list[DataFile]:
        """Files of a version. Looks at every file of the table."""
        with reading(self.location):
            return self._format.files(version)

    def foreign(self) -> list[str]:
        """Paths of files that readers of the table see and that no entry ever named. Reads every entry."""
        with reading(self.location):
            return self._format.foreign()

    def rows(self) -> dataset.Dataset:
        """Return the rows of the newest version, as any reader finds them."""
        with reading(self.location):
            return self._format.rows(self._end.state())
