"""Appends an entry to the table's log exactly once, beside other writers.

An entry is put right after the version that was checked, or not at all, so nothing that happens in between, a start
above all, stays unnoticed. If an append gets no answer, the log says whether the entry was written.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from headrace.writer.core import fault_points
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import ConfigError, Fenced
from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.pages import page_address
from headrace.writer.storage.base import NotExclusive
from headrace.writer.storage.disk_space import TABLE, name_full_disk
from headrace.writer.table.log.entries import (
    CommittedEntry,
    parse_commit_info,
    parse_committed_entry,
    remove_action,
    transaction_actions,
    unanswered_changes,
    write_actions,
)
from headrace.writer.table.log.file_lists import store_long_list
from headrace.writer.table.log.foreign_writes import (
    CommitFailed,
    check_foreign,
    check_writable,
    one_line,
    reading,
)
from headrace.writer.table.log.log import Action, State, TableVersion
from headrace.writer.table.log.operations.operation import Operation
from headrace.writer.table.log.snapshot import FORMAT, TARGETS, PipelineSnapshot, check_format, format_name
from headrace.writer.table.log.table_format import Format

RETRY_TIMEOUT = timedelta(minutes=2)
_STORAGE_BACKOFF = Backoff(0.1, 5, jitter=0.5)
_RACE_BACKOFF = Backoff(0.02, 1, jitter=1)
# Entries that `retry_lost_races` tries to append.
_ATTEMPTS_MAX = 10
_T = TypeVar("_T")


class TableConverted(ConfigError):
    """The table became an Iceberg table: its old log takes no more entries."""


class TableSuperseded(ConfigError):
    """Another table is the pipeline's by now."""


class LostRace(Exception):
    """Another entry has this version."""


@dataclass(frozen=True)
class Swap:
    """Files that an entry removes, beside those that it adds."""

    removals: Sequence[Action]
    # The rows that are added are those that are removed.
    moves_only: bool = False


_NO_SWAP = Swap(())


class Appender:
    """Reads and appends to one table's log, for one pipeline."""

    def __init__(self, table_format: Format, pipeline: str, retry_timeout: timedelta) -> None:
        """Take the format; `retry_timeout` is how long an entry is tried before CommitFailed."""
        self._format = table_format
        self._log = table_format.log
        self.location = table_format.location
        self.pipeline = pipeline
        self._retry_timeout = retry_timeout
        # A supervisor reads the table's owner while a batch is on its way.
        self._reading = threading.Lock()
        # Of the table that this process took over.
        self.table_id: str | None = None

    def state(self) -> State:
        """Read the newest state. Raises OSError."""
        with self._reading:
            return self._log.state()

    def snapshot(self) -> PipelineSnapshot:
        """Read the newest version. Raises CommitFailed, LogFormatTooNew."""
        with reading(self.location):
            state = self.state()
        check_format(state.transactions, self.pipeline, self.location)
        return PipelineSnapshot(state, self.pipeline)

    def entries(self, since: int) -> list[tuple[int, list[Action]]]:
        """Return the entries after version `since` that the log still has, of any writer, oldest first."""
        with reading(self.location), self._reading:
            return list(self._log.entries_after(since))

    def commits_since(self, version: int, despite: Collection[int] = ()) -> list[CommittedEntry]:
        """Return commits of this pipeline after `version`, oldest first. Raises ForeignChange, CommitFailed.

        `despite`: versions of other clients that are passed over.
        """
        entries = self.entries(version)
        refused_versions = {change.version for change in unanswered_changes(entries)}.difference(despite)
        commits = []
        for entry_version, actions in entries:
            info, facts = parse_commit_info(actions)
            if entry_version in refused_versions:
                check_foreign(info, entry_version, self.location)
                continue
            commit = parse_committed_entry(entry_version, facts, self._format.store, info)
            if commit is not None:
                commits.append(commit)
        return commits

    def _version_of(self, entry_id: str, since: int) -> int | None:
        """Return which version after `since` is the entry with an id; None: none is."""
        for version, actions in self.entries(since):
            _, facts = parse_commit_info(actions)
            if facts.get("id") == entry_id:
                return version
        return None

    def check_deletes(self, files: Sequence[BucketFile]) -> None:
        """Raise LiveDeleteFiles where other clients deleted rows that these files still have, CommitFailed."""
        with reading(self.location):
            self._format.check_deletes(files)

    def check_owner(self, snapshot: PipelineSnapshot, epoch: int, ranges: Sequence[OffsetRange] = ()) -> None:
        """Raise Fenced if the pipeline was started again since `epoch`, or if another table has its location.

        Also when one of `ranges` does not begin at the frontier of its part; a part without a frontier is new.
        """
        if snapshot.epoch != epoch:
            raise Fenced(
                f"pipeline {self.pipeline!r} was started again (start {snapshot.epoch}, this is start {epoch}): "
                "another writer runs. Stop one of them."
            )
        if self.table_id is not None and snapshot.state.metadata["id"] != self.table_id:
            raise Fenced(
                f"the table at {self.location} was removed and made again since pipeline {self.pipeline!r} was "
                "started. Start it again."
            )
        for offset_range in ranges:
            part = offset_range.part
            frontier = snapshot.frontier(part)
            if frontier is not None and frontier != offset_range.start:
                raise Fenced(
                    f"offset {frontier} of {part.name} is committed, this batch starts at "
                    f"{offset_range.start}: another writer runs as {self.pipeline!r}. Stop one of them."
                )

    def check_goes_on(self, snapshot: PipelineSnapshot) -> None:
        """Raise where this headrace, or this format, does not go on with the log.

        Raises LogFormatTooNew, TableSuperseded, TableConverted.
        """
        check_format(snapshot.state.transactions, self.pipeline, self.location)
        if location := snapshot.superseded_by:
            raise TableSuperseded(
                f"`headrace promote` put the table at {location} in the place of the one at {self.location}, which "
                f"takes no more entries. Set pipelines.{self.pipeline}.table.location: {location}. To go back, promote "
                f"{self.location} ({page_address('docs/SHADOW.md')})."
            )
        if snapshot.converted >= 0 and not self._format.in_catalog:
            raise TableConverted(
                f"`headrace convert` makes the table at {self.location} an Iceberg table, or has made it one: nothing "
                f"follows version {snapshot.converted} of its old log. Set table.format: iceberg, with `catalog` and "
                "table.name; if the catalog does not know the table yet, `headrace convert` ends what it began."
            )

    def append(self, operation: Operation, snapshot: PipelineSnapshot) -> int:
        """Write an operation's entry right after a version that it may follow, and let readers see its files.

        Returns the version of the entry. `snapshot`: the version that the operation was made for. An entry that another
        writer appends in between is checked, too. Raises CommitFailed, ForeignChange, and as the operation's `check`
        and `transactions` do.
        """
        deadline = time.monotonic() + self._retry_timeout.total_seconds()
        problem: Exception
        # Failures of the storage since the last race was lost.
        failures = 0
        table_id, first_version = snapshot.state.table_version
        facts = operation.entry_facts()
        previous = snapshot
        is_checked = False
        while True:
            # Not twice for one version: behind a commit without an answer it would speak of what followed our entry.
            if not is_checked:
                operation.check(snapshot, previous, self)
                previous = snapshot
                is_checked = True
            try:
                fault_points.point(f"before_{operation.fault_point}")
                self._write_operation(operation, snapshot, facts)
                fault_points.point(f"after_{operation.fault_point}")
            except LostRace as error:
                problem = error
                failures = 0
            except OSError as error:
                problem = error
                failures += 1
            else:
                version = snapshot.version + 1
                break
            # Whatever was answered, the log decides: an entry with our id is our commit, whatever others did after it.
            with suppress(CommitFailed):
                newest = self.snapshot()
                appended_version = self._version_of(operation.id, first_version)
                if appended_version is not None:
                    version = appended_version
                    break
                self.commits_since(first_version)
                # Not before the entries were read: our own commit would pass for another writer's.
                snapshot = newest
                is_checked = False
            if time.monotonic() > deadline:
                raise CommitFailed(
                    f"the table at {self.location} took no commit for {self._retry_timeout.total_seconds():.0f} s: "
                    f"{one_line(problem)}. The next start looks what became of it, and reads it again if need be."
                )
            if failures:
                time.sleep(_STORAGE_BACKOFF.random_delay_s(failures - 1))
        self.publish(TableVersion(table_id, version))
        return version

    def _write_operation(self, operation: Operation, snapshot: PipelineSnapshot, facts: Mapping[str, Any]) -> None:
        """Append an operation's entry, with its facts, right after the snapshot. Raises as `put` does."""
        columns = snapshot.state.metadata["partitionColumns"]
        moves_only = operation.moves_only
        now = datetime.now(UTC)
        removals = [remove_action(file, columns, now, moves_only=moves_only) for file in operation.removed_files]
        values = operation.transactions(snapshot)
        # The entry of a route lists files of many tables.
        is_route = TARGETS in snapshot.state.configuration
        entry_facts = store_long_list(self._format.store, facts) if is_route else facts
        self.write(snapshot, operation.added_files, values, entry_facts, None, Swap(removals, moves_only))

    def retry_lost_races(self, action: Callable[[PipelineSnapshot], _T]) -> _T:
        """Run an action that may lose a race, on a newer snapshot each time. Raises CommitFailed."""
        for attempt in range(_ATTEMPTS_MAX):
            try:
                return action(self.snapshot())
            except LostRace as error:
                problem = error
                time.sleep(_RACE_BACKOFF.random_delay_s(attempt))
            except OSError as error:
                raise CommitFailed(f"cannot write to the table at {self.location}: {one_line(error)}") from error
        raise CommitFailed(
            f"the table at {self.location} changes too fast to write to; ten tries lost the race: {one_line(problem)}"
        )

    def publish(self, table_version: TableVersion) -> None:
        """Let readers see all files of a version; a second time does nothing. Raises CommitFailed, ForeignChange."""
        try:
            self._format.publish(table_version)
        except OSError as error:
            raise CommitFailed(
                f"version {table_version.version} of the table at {self.location} is committed, but its files are not "
                f"all in their place: {one_line(error)}. Nothing is lost: the next start puts them there."
            ) from error

    def write(
        self,
        snapshot: PipelineSnapshot,
        files: Sequence[StagedFile],
        values: Mapping[str, int],
        facts: Mapping[str, Any],
        properties: Mapping[str, str] | None = None,
        swap: Swap = _NO_SWAP,
    ) -> None:
        """Append an entry of files, `txn` values and facts right after the snapshot. Raises as `put` does."""
        self.put(
            snapshot,
            write_actions(snapshot.state, files, values, facts, properties, swap.removals, moves_only=swap.moves_only),
        )

    def put(self, snapshot: PipelineSnapshot, actions: Sequence[Action], *, revives: bool = False) -> None:
        """Append an entry right after the snapshot, once the files of the snapshot are where readers see them.

        The first entry of headrace in a log gives it its format. `revives`: the entry lets a superseded log go on.
        Raises LostRace when there is one, ForeignChange, ConfigError where none can be exclusive or the log has a newer
        format, OSError.
        """
        if not revives:
            self.check_goes_on(snapshot)
        check_format(snapshot.state.transactions, self.pipeline, self.location)
        check_writable(snapshot.state, self.location)
        if not snapshot.format:
            actions = [*actions, *transaction_actions({format_name(self.pipeline): FORMAT})]
        # So only the newest entry's files may be out of place.
        self._format.publish(snapshot.state.table_version)
        try:
            # The error of pyiceberg names no location.
            with self._reading, name_full_disk({self.location: TABLE}):
                is_written = self._log.append(snapshot.state, actions)
        except NotExclusive as error:
            raise ConfigError(f"cannot commit to the table at {self.location}: {one_line(error)}") from error
        if not is_written:
            raise LostRace(f"another entry follows version {snapshot.version}")
