"""A pipeline's table: commits files, ranges and counts in one entry of its log, in any format.

Progress is kept as Delta's `txn` actions, one for each part (`<pipeline>/<topic>@<incarnation>/<partition>` → end
offset) and one for the epoch (`<pipeline>/epoch`).
"""

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from writer.batch.staging.parquet_files import staged_name
from writer.core.errors import ConfigError, HeadraceError, may_pass
from writer.core.files import BucketFile, BucketKey, StagedFile
from writer.storage.base import Unanswered
from writer.table import schema_ids, takeover
from writer.table.ledger.segment import LedgerUnreadable
from writer.table.ledger.segment_store import LedgerStore
from writer.table.log import control_commits, data_commits, settings_commits
from writer.table.log.appender import RETRY_TIMEOUT, Appender, LostRace, Swap
from writer.table.log.control_commits import OWNER
from writer.table.log.entries import Entry, SideEntry, parse_entry, redescribed
from writer.table.log.foreign_writes import CommitFailed, one_line, reading
from writer.table.log.snapshot import PipelineSnapshot, closed_values
from writer.table.log.table_format import Format
from writer.table.row_removal import Offsets, RemovalResult, stage_without_offsets
from writer.table.schema_evolution import ColumnTypeMismatch, merge_columns

if TYPE_CHECKING:
    from pyarrow import dataset  # imports pandas, half a second

CHECKPOINT_INTERVAL = 50  # versions
# Of an entry that was begun. Writing one takes milliseconds, and the wall clock may step by a day meanwhile.
_DRAFT_AGE_MAX = timedelta(days=7)


class PipelineTable(Appender):
    """A table that belongs to one pipeline, in one of the formats.

    Each read and each kind of entry is a method (an entry is a function of the log's end, bound below); what needs
    several of them is a function that takes the table.
    """

    def __init__(
        self, form: Format, pipeline: str, *, retry_timeout: timedelta = RETRY_TIMEOUT,
        checkpoint_interval: int = CHECKPOINT_INTERVAL,
    ) -> None:  # fmt: skip
        """Make the handle; `retry_timeout` is how long a commit is tried before CommitFailed."""
        super().__init__(form, pipeline, retry_timeout)
        self.store, self.log_location = form.store, form.log.location
        self.hidden = form.hidden  # files are to be staged where readers do not look
        self.folder = form.folder  # of the files, below the location
        self._interval = checkpoint_interval
        self._listing = threading.Lock()  # one at a time reads the list of files, which a format may keep
        self._tidied = -1  # version at which it was last tried

    # --- what a start looks at ------------------------------------------------------------------------------------

    def create(self, columns: pa.Schema, bucket_columns: Sequence[str], layout: str = "") -> None:
        """Create the table if it does not exist, and repair one that does. `layout`: how rows map to buckets.

        Raises ConfigError when the table is another pipeline's, or is bucketed in another way, and when something
        else lies at its location; CommitFailed where a catalog did not answer.
        """
        if self.check(bucket_columns, layout):
            self._format.repair()
            return
        try:
            self._format.create(OWNER + self.pipeline, layout, columns, bucket_columns)
        except OSError as error:
            raise self._unopened(error) from error
        self.check_identity(bucket_columns, layout)

    def check(self, bucket_columns: Sequence[str], layout: str = "") -> bool:
        """Return whether there is a table, and create none. Raises ConfigError as `create` does."""
        try:
            there = self._log.exists()
            if not there:
                self.check_place()
        except OSError as error:
            raise self._unopened(error) from error
        if there:
            self.check_identity(bucket_columns, layout)
        return there

    def exists(self) -> bool:
        """Return whether there is a table. Raises CommitFailed."""
        with reading(self.location):
            return self._log.exists()

    def check_exists(self) -> None:
        """Raise HeadraceError when there is no table yet, CommitFailed."""
        if not self.exists():
            raise HeadraceError(
                f"pipeline {self.pipeline!r} has no table at {self.location} yet. `headrace run` makes it."
            )

    def check_current(self) -> None:
        """Raise as `check_exists` does, and ConfigError where no entry may follow, before anything else is changed."""
        self.check_exists()
        self.check_goes_on(self.snapshot())

    def check_place(self) -> None:
        """Raise ConfigError when what lies at the location keeps a table from being made there; OSError."""
        found = self._format.obstacle()
        if found and not self._log.exists():
            raise ConfigError(f"{self.location} holds {found}. Choose a new location, or correct table.format.")

    def check_identity(self, bucket_columns: Sequence[str], layout: str = "") -> None:
        """Raise ConfigError when the table is another pipeline's, or is bucketed in another way."""
        try:
            state = self.state()
        except OSError as error:
            raise self._unopened(error) from error
        metadata = state.metadata
        owner, known = metadata.get("name") or "", metadata.get("description") or ""
        if owner != OWNER + self.pipeline:
            made = owner.startswith(OWNER)
            whose = f"belongs to pipeline {owner.removeprefix(OWNER)!r}" if made else "was not made by headrace"
            adopt = "" if made else "; `headrace table adopt` says whether it can be adopted"
            raise ConfigError(
                f"the table at {self.location} {whose}; pipeline {self.pipeline!r} needs a location of its own{adopt}"
            )
        self.check_goes_on(PipelineSnapshot(state, self.pipeline))
        columns = list(metadata["partitionColumns"])
        if bool(columns) != bool(bucket_columns):
            is_log, is_now = "is the log of a route, without rows", "holds rows"
            what, wanted = (is_now, "a log of a route") if columns else (is_log, "a table with rows")
            raise ConfigError(
                f"the table at {self.location} {what}; the configuration wants {wanted} there. Choose a new location "
                "(docs/ROUTING.md, From one table to many)"
            )
        if columns != list(bucket_columns) or known != layout:
            raise ConfigError(
                f"the table at {self.location} is bucketed by {known or ', '.join(columns)}, the configuration says "
                f"{layout or ', '.join(bucket_columns)}; keep 'bucket' as it was, or choose a new location"
            )

    def _unopened(self, error: OSError) -> HeadraceError:
        text = f"cannot open or create a table at {self.location}: {one_line(error)}"
        # A catalog says itself whether it may answer later.
        passes = isinstance(error, Unanswered) or getattr(error, "may_pass", False) or may_pass(error)
        return CommitFailed(text) if passes else ConfigError(text)

    # --- entries --------------------------------------------------------------------------------------------------
    # Each returns the version that holds it, and raises ForeignChange where another client did what the ledger does not
    # survive, CommitFailed where the storage refused, or gave no answer, for as long as was tried. Those that need no
    # epoch raise none: the writer of the table goes on.

    begin, adopt, take = control_commits.begin, control_commits.adopt, takeover.take_over
    commit, replay = data_commits.commit, data_commits.replay
    rewrite, reprocess, rewind = data_commits.rewrite, data_commits.reprocess, data_commits.rewind
    record_gap, fill, give_up = control_commits.record_gap, control_commits.fill, control_commits.give_up
    close, seal = control_commits.close, control_commits.seal
    add_targets, enter_raw, convert = settings_commits.add_targets, settings_commits.enter_raw, control_commits.convert
    note_incarnations = settings_commits.note_incarnations
    set_specs, convert_targets = settings_commits.set_specs, settings_commits.convert_targets
    set_zone_data = settings_commits.set_zone_data
    set_privacy, set_hash_key = settings_commits.set_privacy, settings_commits.set_hash_key
    protect_paths, release_paths = settings_commits.protect_paths, settings_commits.release_paths
    supersede, revive = control_commits.supersede, control_commits.revive
    accept, accept_schema_ids = control_commits.accept, schema_ids.accept_schema_ids

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
                schema, changes = merge_columns(known["schemaString"], columns)
            except ColumnTypeMismatch as error:
                raise CommitFailed(
                    f"the table at {self.location}: {error}. Start again: the next start looks."
                ) from error
            if changes:
                about = {"kind": "columns", "epoch": epoch, "changes": changes}
                self.put(snapshot, redescribed("CHANGE COLUMN", about, known, {}, schemaString=schema))

        self.retried(grow)

    def apply_side(self, entry: SideEntry) -> None:
        """Do what an entry of the pipeline's log means for this table, once; a second time does nothing."""

        def apply(snapshot: PipelineSnapshot) -> None:
            table, at = snapshot.state.place
            if entry.table_id not in ("", table):
                raise CommitFailed(
                    f"the table at {self.location} was removed and made again: it lacks what was committed for it "
                    "before. Restore it, or give the target another location"
                )
            if snapshot.applied < entry.version:
                about: dict[str, Any] = {"kind": "side", "main_version": entry.version, **entry.facts}
                with self.stage_without_offsets(snapshot, entry.withdrawn) as left:
                    if entry.why and left.rows:
                        about["taken"] = {"why": entry.why, "rows": left.rows}
                    values = {f"{self.pipeline}/main": entry.version}
                    if entry.moves_closes:
                        values |= closed_values(snapshot, entry.closed_until)
                    self.write(
                        snapshot, [*entry.files, *left.rewritten], values, about, None, Swap(left.remove_actions)
                    )
                at += 1
            self._format.publish((table, at))

        self.retried(apply)

    @contextmanager
    def stage_without_offsets(
        self, snapshot: PipelineSnapshot, offsets: Offsets, prefix: str = "replay"
    ) -> Iterator[RemovalResult]:
        """Stage what is left of the files that hold rows at these offsets. Raises LostRace, OSError."""
        if not offsets:
            yield RemovalResult()
            return
        self._format.publish(snapshot.state.place)  # what is left of a file is read in its place
        try:
            columns = snapshot.state.metadata["partitionColumns"]
            with stage_without_offsets(
                self.store,
                self.bucket_files(snapshot),
                offsets,
                columns=columns,
                hidden=self.hidden,
                folder=self.folder,
                prefix=prefix,
            ) as found:
                yield found
        except FileNotFoundError as error:
            if self.snapshot().version == snapshot.version:
                raise
            raise LostRace(f"files of version {snapshot.version} were written anew meanwhile") from error

    def discard(self, files: Iterable[StagedFile]) -> None:
        """Remove staged files that no commit will name; what stays is an orphan. Raises OSError."""
        for file in files:
            self.store.delete(staged_name(file.path) if self.hidden else file.path)

    def tidy(self, *, keeps_entries: bool = False) -> None:
        """Write the log's checkpoint and remove what has outlived its retention, once in so many entries.

        `keeps_entries`: remove no entry of the log.
        Before anything is removed, the ledger has its account.
        """
        try:
            state, noted = self.state(), self._log.checkpointed()
            version = state.version
            if version - max(noted if noted <= version else -1, self._tidied) < self._interval:
                return
            self._tidied = version
            book = LedgerStore(self.store, state.metadata["id"], self.pipeline)
            book.write(((n, actions) for n, actions in self.entries(book.last()) if n <= version), self.rows_at)
            self._format.tidy(state, keeps_entries=keeps_entries)
            self._log.sweep(before=time.time() - _DRAFT_AGE_MAX.total_seconds())
        except (OSError, LedgerUnreadable) as error:
            raise CommitFailed(f"cannot tidy the table at {self.location}: {one_line(error)}") from error

    # --- what the log and the files say ---------------------------------------------------------------------------

    def transactions(self) -> Mapping[str, int]:
        """Values of all `txn` in the newest version, by their names; none where there is no table."""
        return self.snapshot().state.transactions if self.exists() else {}

    def at(self, version: int) -> PipelineSnapshot:
        """Read an earlier version, its files left aside. Raises CommitFailed when the log does not reach back to it."""
        try:
            return PipelineSnapshot(self._log.at(version), self.pipeline)
        except OSError as error:
            raise CommitFailed(f"cannot read version {version} of the table: {one_line(error)}") from error

    def recent(self, count: int) -> list[Mapping[str, Any]]:
        """Facts of this pipeline's commits among the table's last `count`, newest first; of older ones if none is."""
        for reach in (count, 20 * count, None):  # starts and replays may have followed the last of them
            found = [entry.facts for entry in self.history(reach) if entry.kind == "batch"]
            if found:
                return found[:count]
        return []

    def history(self, count: int | None = None) -> list[Entry]:
        """Return the table's last `count` entries, newest first. None: all that the log still has."""
        newest = self.snapshot().version
        return [parse_entry(*entry) for entry in self.entries(-1 if count is None else newest - count)][::-1]

    def buckets(self) -> list[BucketKey]:
        """Buckets that have files. Looks at every file of the table."""
        with reading(self.location):
            return self._format.buckets(self.state())

    def bucket_files(self, snapshot: PipelineSnapshot, bucket: BucketKey | None = None) -> list[BucketFile]:
        """Files that this version names, of one bucket or of all, in the order of their paths."""
        with reading(self.location), self._listing:
            return sorted(self._format.bucket_files(snapshot.state, bucket), key=lambda file: file.path)

    def rows_at(self, version: int) -> dict[str, int | None]:
        """Rows of each file that a version names, by path; nothing where the log does not reach back so far."""
        with suppress(OSError), self._listing:
            state = replace(self.state(), version=version)
            return {file.path: file.rows for file in self._format.bucket_files(state, None)}
        return {}

    def expire(self, before: datetime) -> None:
        """Forget versions from before this time that only readers' queries of the past need."""
        with reading(self.location):
            self._format.expire(before)

    def referenced(self, since: datetime) -> set[str]:
        """Paths below the location that versions since this time need, and that no entry may name."""
        with reading(self.location):
            return self._format.referenced(since)

    def foreign(self) -> list[str]:
        """Paths of files that readers of the table see and that no entry ever named. Reads every entry."""
        with reading(self.location):
            return self._format.foreign()

    def metadata_file(self) -> str:
        """Return the location of an Iceberg table's newest metadata file; empty for other formats."""
        return self._log.metadata_file()

    def rows(self) -> "dataset.Dataset":
        """Return the rows of the newest version, as any reader finds them."""
        with reading(self.location):
            return self._format.rows(self.state())
