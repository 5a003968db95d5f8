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

from headrace.writer.core.errors import ConfigError, HeadraceError, may_pass
from headrace.writer.core.files import BucketFile, BucketKey, StagedFile, staged_name
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.core.pages import page_address
from headrace.writer.storage.base import Unanswered
from headrace.writer.table import takeover
from headrace.writer.table.ledger.segment_store import LedgerStore, LedgerUnreadable
from headrace.writer.table.log.appender import RETRY_TIMEOUT, Appender, LostRace, Swap
from headrace.writer.table.log.commits import privacy, settings, starts, successions
from headrace.writer.table.log.entries import Entry, SideEntry, metadata_actions, parse_entry
from headrace.writer.table.log.foreign_writes import CommitFailed, one_line, reading
from headrace.writer.table.log.log import TableVersion
from headrace.writer.table.log.snapshot import OWNER, PipelineSnapshot, closed_values
from headrace.writer.table.log.table_format import Format
from headrace.writer.table.row_removal import RemovalResult, stage_without_offsets
from headrace.writer.table.schema_evolution import ColumnTypeMismatch, merge_columns

if TYPE_CHECKING:
    # It imports pandas, half a second.
    from pyarrow import dataset

# In versions.
CHECKPOINT_INTERVAL = 50
# Of a draft of an entry. Writing one takes milliseconds, and the wall clock may step by a day meanwhile.
_DRAFT_AGE_MAX = timedelta(days=7)
# A draft stays only where a writer died, which is rare.
_SWEEP_EVERY = timedelta(days=1)


class PipelineTable(Appender):
    """A table that belongs to one pipeline, in one of the formats.

    `append` writes the entry of an operation. Entries without an id are functions of the appender, bound below. What
    needs several entries is a function that takes the table.
    """

    def __init__(
        self,
        form: Format,
        pipeline: str,
        *,
        retry_timeout: timedelta = RETRY_TIMEOUT,
        checkpoint_interval: int = CHECKPOINT_INTERVAL,
    ) -> None:
        """Make the handle; `retry_timeout` is how long a commit is tried before CommitFailed."""
        super().__init__(form, pipeline, retry_timeout)
        self.store = form.store
        self.log_location = form.log.location
        # Files are to be staged where readers do not look.
        self.hidden = form.hidden
        # The folder of the files, below the location.
        self.folder = form.folder
        self._checkpoint_interval = checkpoint_interval
        # One thread at a time reads the list of files, which a format may keep.
        self._listing = threading.Lock()
        # The version at which `tidy` was last tried.
        self._tidied_version = -1
        # The version of the newest checkpoint as it was noted when this process looked last.
        self._checkpoint_seen = -1
        # When drafts were last swept, on the clock of this process; None: not yet.
        self._swept_s: float | None = None

    # --- what a start looks at ------------------------------------------------------------------------------------

    def create(self, columns: pa.Schema, bucket_columns: Sequence[str], layout: str = "") -> PipelineSnapshot:
        """Create the table if it does not exist, and repair one that does. `layout`: how rows map to buckets.

        Returns its newest version. Raises ConfigError when the table is another pipeline's, or is bucketed in another
        way, and when something else lies at its location; CommitFailed where a catalog did not answer.
        """
        return self.create_or_repair(columns, bucket_columns, layout, self.check(bucket_columns, layout))

    def create_or_repair(
        self, columns: pa.Schema, bucket_columns: Sequence[str], layout: str, snapshot: PipelineSnapshot | None
    ) -> PipelineSnapshot:
        """Do what `create` does after `check`, which has just returned the snapshot."""
        if snapshot is not None:
            self._format.repair()
            return snapshot
        try:
            self._format.create(OWNER + self.pipeline, layout, columns, bucket_columns)
        except OSError as error:
            raise self._open_error(error) from error
        return self.check_identity(bucket_columns, layout)

    def check(self, bucket_columns: Sequence[str], layout: str = "") -> PipelineSnapshot | None:
        """Return the newest version of the table; None: there is none, and none is created.

        Raises ConfigError as `create` does.
        """
        try:
            exists = self._log.exists()
            if not exists:
                self.check_location()
        except OSError as error:
            raise self._open_error(error) from error
        if not exists:
            return None
        return self.check_identity(bucket_columns, layout)

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

    def check_location(self) -> None:
        """Raise ConfigError when what lies at the location keeps a table from being made there; OSError."""
        obstacle = self._format.obstacle()
        if obstacle and not self._log.exists():
            raise ConfigError(f"{self.location} holds {obstacle}. Choose a new location, or correct table.format.")

    def check_identity(self, bucket_columns: Sequence[str], layout: str = "") -> PipelineSnapshot:
        """Return the newest version.

        Raises ConfigError when the table is another pipeline's, or is bucketed in another way.
        """
        try:
            state = self.state()
        except OSError as error:
            raise self._open_error(error) from error
        snapshot = PipelineSnapshot(state, self.pipeline)
        self._check_table_owner(state.metadata.get("name") or "")
        self.check_goes_on(snapshot)
        self._check_buckets(state.metadata, bucket_columns, layout)
        return snapshot

    def _check_table_owner(self, owner: str) -> None:
        if owner == OWNER + self.pipeline:
            return
        if owner.startswith(OWNER):
            problem = f"belongs to pipeline {owner.removeprefix(OWNER)!r}"
            hint = ""
        else:
            problem = "was not made by headrace"
            hint = "; `headrace table adopt` says whether it can be adopted"
        raise ConfigError(
            f"the table at {self.location} {problem}; pipeline {self.pipeline!r} needs a location of its own{hint}"
        )

    def _check_buckets(self, metadata: Mapping[str, Any], bucket_columns: Sequence[str], layout: str) -> None:
        columns = list(metadata["partitionColumns"])
        table_layout = metadata.get("description") or ""
        if bool(columns) != bool(bucket_columns):
            use = "holds rows" if columns else "is the log of a route, without rows"
            wanted = "a log of a route" if columns else "a table with rows"
            raise ConfigError(
                f"the table at {self.location} {use}; the configuration wants {wanted} there. Choose a new location "
                f"({page_address('docs/ROUTING.md#from-one-table-to-many')})"
            )
        if columns != list(bucket_columns) or table_layout != layout:
            raise ConfigError(
                f"the table at {self.location} is bucketed by {table_layout or ', '.join(columns)}, the configuration "
                f"says {layout or ', '.join(bucket_columns)}; keep 'bucket' as it was, or choose a new location"
            )

    def _open_error(self, error: OSError) -> HeadraceError:
        text = f"cannot open or create a table at {self.location}: {one_line(error)}"
        # A catalog says itself whether it may answer later.
        passes = isinstance(error, Unanswered) or getattr(error, "may_pass", False) or may_pass(error)
        return CommitFailed(text) if passes else ConfigError(text)

    # --- entries --------------------------------------------------------------------------------------------------
    # Each returns the version that holds it, and raises ForeignChange where another client did what the ledger does not
    # survive, CommitFailed where the storage refused, or gave no answer, for as long as was tried. Those that need no
    # epoch raise none: the writer of the table goes on.

    begin = starts.begin
    adopt = starts.adopt
    take = takeover.take_over
    convert = successions.convert
    supersede = successions.supersede
    revive = successions.revive
    add_targets = settings.add_targets
    convert_targets = settings.convert_targets
    enter_raw = settings.enter_raw
    note_incarnations = settings.note_incarnations
    enter_loss = settings.enter_loss
    set_specs = settings.set_specs
    set_zone_data = settings.set_zone_data
    set_privacy = privacy.set_privacy
    set_keys = privacy.set_keys
    protect_paths = privacy.protect_paths
    release_paths = privacy.release_paths

    def grow(self, columns: Sequence[pa.Field], epoch: int | None = None) -> None:
        """Add the columns that the table lacks, and widen those that are narrower. Nothing else changes.

        `epoch`: of the start that asks; None for a side table, which has no epochs.

        Raises Fenced, CommitFailed when another client gave a column a type that ours does not fit.
        """

        def put_columns(snapshot: PipelineSnapshot) -> None:
            if epoch is not None:
                self.check_owner(snapshot, epoch)
            metadata = snapshot.state.metadata
            try:
                schema, changes = merge_columns(metadata["schemaString"], columns)
            except ColumnTypeMismatch as error:
                raise CommitFailed(
                    f"the table at {self.location}: {error}. Start again: the next start looks."
                ) from error
            if changes:
                facts = {"kind": "columns", "epoch": epoch, "changes": changes}
                self.put(snapshot, metadata_actions("CHANGE COLUMN", facts, metadata, {}, schemaString=schema))

        self.retry_lost_races(put_columns)

    def apply_side(self, entry: SideEntry) -> None:
        """Do what an entry of the pipeline's log means for this table, once; a second time does nothing."""

        def apply(snapshot: PipelineSnapshot) -> None:
            table_id, version = snapshot.state.table_version
            if entry.table_id not in ("", table_id, snapshot.replaces):
                raise CommitFailed(
                    f"the table at {self.location} was removed and made again: it lacks what was committed for it "
                    "before. Restore it, or give the target another location"
                )
            if snapshot.applied < entry.version:
                self._write_side(snapshot, entry)
                version += 1
            self._format.publish(TableVersion(table_id, version))

        self.retry_lost_races(apply)

    def _write_side(self, snapshot: PipelineSnapshot, entry: SideEntry) -> None:
        facts: dict[str, Any] = {"kind": "side", "main_version": entry.version, **entry.facts}
        values = {f"{self.pipeline}/main": entry.version}
        if entry.moves_closes:
            values |= closed_values(snapshot, entry.closed_until)
        with self.stage_without_offsets(snapshot, entry.withdrawn) as removal:
            if entry.why and removal.rows:
                facts["taken"] = {"why": entry.why, "rows": removal.rows}
            files = [*entry.files, *removal.rewritten]
            self.write(snapshot, files, values, facts, None, Swap(removal.remove_actions))

    @contextmanager
    def stage_without_offsets(
        self, snapshot: PipelineSnapshot, offsets: OffsetSet, prefix: str = "replay"
    ) -> Iterator[RemovalResult]:
        """Stage what is left of the files that hold rows at these offsets. Raises LostRace, OSError."""
        if not offsets:
            yield RemovalResult()
            return
        # What is left of a file is read where readers see the file.
        self._format.publish(snapshot.state.table_version)
        try:
            with stage_without_offsets(
                self.store,
                self.bucket_files(snapshot),
                offsets,
                columns=snapshot.state.metadata["partitionColumns"],
                hidden=self.hidden,
                folder=self.folder,
                prefix=prefix,
            ) as removal:
                yield removal
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

        `keeps_entries`: remove no entry of the log. The ledger reads the entries before any is removed.
        """
        try:
            state = self.state()
            if not self._needs_checkpoint(state.version):
                return
            self._tidied_version = state.version
            ledger = LedgerStore(self.store, state.metadata["id"], self.pipeline)
            entries = self.entries(ledger.last_version())
            ledger.write(((version, actions) for version, actions in entries if version <= state.version), self.rows_at)
            self._format.tidy(state, keeps_entries=keeps_entries)
            self._sweep()
        except (OSError, LedgerUnreadable) as error:
            raise CommitFailed(f"cannot tidy the table at {self.location}: {one_line(error)}") from error

    def _sweep(self) -> None:
        """Remove drafts of the log that are too old, once in a while: it lists every entry. Raises OSError."""
        now = time.monotonic()
        if self._swept_s is None or now - self._swept_s >= _SWEEP_EVERY.total_seconds():
            self._log.sweep(before=time.time() - _DRAFT_AGE_MAX.total_seconds())
            self._swept_s = now

    def _needs_checkpoint(self, version: int) -> bool:
        if version - self._known_checkpoint(version) < self._checkpoint_interval:
            # A newer checkpoint than the known one would not make it due either: the log need not be asked.
            return False
        checkpoint = self._log.checkpoint_version()
        if checkpoint > version:
            # The note is of a table that was at this location before.
            checkpoint = -1
        self._checkpoint_seen = checkpoint
        return version - max(checkpoint, self._tidied_version) >= self._checkpoint_interval

    def _known_checkpoint(self, version: int) -> int:
        """Return the newest version up to `version` that is known to have a checkpoint, or for which one was tried."""
        return max(known for known in (-1, self._tidied_version, self._checkpoint_seen) if known <= version)

    # --- what the log and the files say ---------------------------------------------------------------------------

    def transactions(self) -> Mapping[str, int]:
        """Return the values of all `txn` in the newest version, by their names; none where there is no table."""
        return self.snapshot().state.transactions if self.exists() else {}

    def snapshot_at(self, version: int) -> PipelineSnapshot:
        """Read an earlier version, its files left aside. Raises CommitFailed when the log does not reach back to it."""
        try:
            return PipelineSnapshot(self._log.state_at(version), self.pipeline)
        except OSError as error:
            raise CommitFailed(f"cannot read version {version} of the table: {one_line(error)}") from error

    def recent_commits(self, count: int) -> list[Mapping[str, Any]]:
        """Return facts of this pipeline's commits among the table's last `count` entries, newest first.

        Facts of older ones if none is among them.
        """
        return [entry.facts for entry in self.recent_batches(count)]

    def recent_batches(self, count: int) -> list[Entry]:
        """Return the entries of these commits."""
        # Starts and replays may have followed the last commit.
        for entries in (count, 20 * count, None):
            batches = [entry for entry in self.history(entries) if entry.kind == "batch"]
            if batches:
                return batches[:count]
        return []

    def history(self, count: int | None = None) -> list[Entry]:
        """Return the table's last `count` entries, newest first. None: all that the log still has."""
        newest = self.snapshot().version
        since = -1 if count is None else newest - count
        return [parse_entry(version, actions) for version, actions in reversed(self.entries(since))]

    def buckets(self) -> list[BucketKey]:
        """Return the buckets that have files. Looks at every file of the table."""
        with reading(self.location):
            return self._format.buckets(self.state())

    def bucket_files(self, snapshot: PipelineSnapshot, bucket: BucketKey | None = None) -> list[BucketFile]:
        """Return the files that this version names, of one bucket or of all, in the order of their paths."""
        with reading(self.location), self._listing:
            return sorted(self._format.bucket_files(snapshot.state, bucket), key=lambda file: file.path)

    def rows_at(self, version: int) -> dict[str, int | None]:
        """Return the rows of each file that a version names, by path; nothing where the log does not reach back."""
        with suppress(OSError), self._listing:
            state = replace(self.state(), version=version)
            return {file.path: file.rows for file in self._format.bucket_files(state, None)}
        return {}

    def expire(self, before: datetime) -> None:
        """Forget versions from before this time that only readers' queries of the past need."""
        with reading(self.location):
            self._format.expire(before)

    def referenced_paths(self, since: datetime) -> set[str]:
        """Return the paths below the location that versions since this time need, and that no entry may name."""
        with reading(self.location):
            return self._format.referenced_paths(since)

    def foreign_paths(self) -> list[str]:
        """Return the paths of files that readers see and that no entry ever named. Reads every entry."""
        with reading(self.location):
            return self._format.foreign_paths()

    def metadata_file(self) -> str:
        """Return the location of an Iceberg table's newest metadata file; empty for other formats."""
        return self._log.metadata_file()

    def rows(self) -> "dataset.Dataset":
        """Return the rows of the newest version, as any reader finds them."""
        with reading(self.location):
            return self._format.rows(self.state())
