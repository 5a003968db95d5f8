"""All tables of one pipeline: applies what entries of its log list to its side tables, and says what waits for each."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from headrace.writer.core import fault_points
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import StagedFile
from headrace.writer.table import held_files
from headrace.writer.table.log.entries import SideEntry
from headrace.writer.table.log.foreign_writes import CommitFailed, reading
from headrace.writer.table.log.snapshot import PipelineSnapshot, TargetRecord
from headrace.writer.table.lost_tables import ANY_TABLE, SideTableLost, find_lost_side_table
from headrace.writer.table.table import PipelineTable

# Targets that are applied to at the same time: each waits for its storage most of the time, and a disk takes the writes
# of many threads at once.
_THREADS = 32
# The same where one catalog takes the commits of all.
_CATALOG_THREADS = 8
_NO_REASONS: Mapping[str, str] = MappingProxyType({})
# Between tries of a target that refuses.
_BACKOFF = Backoff(1, 300)


class PendingSideEntries(NamedTuple):
    """What a table beside the pipeline's log has of it, and what waits for it.

    `applied`: version of the log up to which it has all that is its own. `entries`: that it does not have yet.
    `held_bytes`: of their files that lie at the log. `since`: when the oldest of them was put together.
    """

    applied: int
    entries: int = 0
    held_bytes: int = 0
    since: datetime | None = None


class TargetState(NamedTuple):
    """How far a table of a route is. `why`: it refuses; empty: it does not, as far as is known."""

    location: str
    pending: PendingSideEntries
    why: str = ""

    @property
    def is_behind(self) -> bool:
        """Whether it refuses, or lacks what was committed for it."""
        return bool(self.why or self.pending.entries)


class _Retry(NamedTuple):
    """How often in a row a target refused, and when it is tried again, by the monotonic clock."""

    failures: int
    due_s: float


class Tables:
    """All tables of one pipeline, each opened once, so that it follows its log."""

    def __init__(self, main: PipelineTable, open_side: Callable[[str, TargetRecord | None], PipelineTable]) -> None:
        """`open_side` opens the side table at a location; with the record of a target that the log may not know yet."""
        self.main = main
        self._open_side = open_side
        self._sides = dict[str, PipelineTable]()
        # Version up to which side files are known to be applied.
        self.settled = -1
        # Locations of targets that refused, and why.
        self.behind: Mapping[str, str] = {}
        self._retries = dict[str, _Retry]()
        # Version of the main log up to which its entries were read.
        self._read_version = -1
        # Of these entries, by location, those that are not known to be applied.
        self._pending = dict[str, list[SideEntry]]()
        # Locations that took an entry from here.
        self._applied_locations = set[str]()
        # Entries whose files at the log are to be removed.
        self._copied = list[tuple[PipelineTable, SideEntry]]()

    def side(self, location: str, record: TargetRecord | None = None) -> PipelineTable:
        """Return the side table at a location. `record`: of a target that the log may not know yet."""
        if location not in self._sides:
            self._sides[location] = self._open_side(location, record)
        return self._sides[location]

    def apply_side_files(self, despite: Collection[int] = ()) -> None:
        """End what commits began: let readers see their files, and apply to the side tables what newer ones list.

        Safe to run again, at any time. Raises ForeignChange when another client did what the ledger does not survive,
        but at the versions `despite` which the caller is about to answer it; SideTableLost; CommitFailed. A target of a
        route that refuses is in `behind` instead, and the others go on; it is tried again after a pause, longer each
        time.
        """
        snapshot = self.main.snapshot()
        self.main.publish(snapshot.state.table_version)
        self._read_entries(snapshot, despite)
        self._remove_copied_files(snapshot.settled)
        targets = snapshot.targets_by_location
        for location in [location for location in self._pending if location not in targets]:
            self._apply_beside(location, snapshot)
        self.behind = self._apply_targets(targets) if self._pending else {}
        first_pending = [entries[0].version for entries in self._pending.values()]
        self.settled = min([self._read_version, *(version - 1 for version in first_pending)])

    def _remove_copied_files(self, settled: int) -> None:
        """Remove files that waited at the log, once no process that starts now would copy them."""
        remaining = []
        for table, entry in self._copied:
            if entry.version > settled:
                remaining.append((table, entry))
                continue
            # A file that stays is an orphan.
            with suppress(OSError):
                held_files.remove_held_files(self.main.store, table, entry)
        self._copied = remaining

    def _read_entries(self, snapshot: PipelineSnapshot, despite: Collection[int]) -> None:
        """Sort what new entries of the log mean for tables beside it. Each entry is read once."""
        since = max(self._read_version, snapshot.settled)
        targets_by_number = snapshot.targets()
        targets_by_location = snapshot.targets_by_location
        table_ids = snapshot.side_table_ids
        commits = self.main.commits_since(since, despite)
        for commit in commits:
            for location in sorted(commit.locations(targets_by_number)):
                entry = commit.side_entry(location, targets_by_location.get(location), table_ids.get(location, ""))
                self._pending.setdefault(location, []).append(entry)
        self._read_version = max([since, snapshot.version, *(commit.version for commit in commits)])

    def _apply_targets(self, targets: Mapping[str, TargetRecord]) -> dict[str, str]:
        """Apply what waits for targets, many at a time. Returns the locations of those that refuse, and why.

        Raises what is no refusal of a table or its storage.
        """
        now_s = time.monotonic()
        refusals = {location: self.behind[location] for location, retry in self._retries.items() if now_s < retry.due_s}
        due = [location for location in self._pending if location not in refusals]
        with ThreadPoolExecutor(_thread_count(targets.values())) as pool:
            futures = {location: pool.submit(self._apply, location) for location in due}
        errors = list[BaseException]()
        for location, future in futures.items():
            retry = self._retries.pop(location, _Retry(0, 0.0))
            error = future.exception()
            if error is None:
                continue
            due_s = time.monotonic() + _BACKOFF.delay_s(retry.failures)
            self._retries[location] = _Retry(retry.failures + 1, due_s)
            refusals[location] = str(error)
            errors.append(error)
        for error in errors:
            if not isinstance(error, HeadraceError | OSError):
                raise error
        return refusals

    @property
    def is_retry_due(self) -> bool:
        """Whether a target that refused is to be tried again."""
        now_s = time.monotonic()
        return bool(self.behind) and any(now_s >= retry.due_s for retry in self._retries.values())

    def _apply_beside(self, location: str, log: PipelineSnapshot) -> None:
        """Apply what waits for a table that is none of a route. Raises SideTableLost, CommitFailed."""
        try:
            self._apply(location)
        except CommitFailed as error:
            # Its table is looked at only now, so that a commit costs no request more.
            lost = find_lost_side_table(self.side(location), ANY_TABLE, log, self.main.location)
            if lost is None:
                raise
            raise SideTableLost(lost.text) from error

    def _apply(self, location: str) -> None:
        """Apply what waits for one table, in the order of the log. Another process may have applied some of it."""
        table = self.side(location)
        pending = self._pending[location]
        if len(pending) > 1:
            applied = table.snapshot().applied
            applied_count = sum(entry.version <= applied for entry in pending)
            # Files of the last one may be unpublished.
            del pending[: max(0, applied_count - 1)]
        while pending:
            fault_points.point("before_apply")
            self._apply_entry(table, pending[0])
            fault_points.point("after_apply")
            del pending[0]
        del self._pending[location]

    def _apply_entry(self, table: PipelineTable, entry: SideEntry) -> None:
        if not entry.held_folder:
            if entry.of_target and (table.location in self.behind or table.location not in self._applied_locations):
                # The table may have been away when the files were written.
                held_files.check_files_exist(table, entry)
            table.apply_side(entry)
            self._applied_locations.add(table.location)
            return
        with reading(table.location):
            if entry.version > table.snapshot().applied:
                held_files.copy_to_table(self.main.store, table, entry)
                fault_points.point("after_bring")
        table.apply_side(entry)
        self._applied_locations.add(table.location)
        self._copied.append((table, entry))

    def pending_entries(self, *locations: str) -> PendingSideEntries:
        """Return what is known to wait for a table: at its location, and that of its late rows."""
        entries = [entry for location in locations for entry in self._pending.get(location, ())]
        if not entries:
            return PendingSideEntries(self._read_version)
        oldest = min(entries, key=lambda entry: entry.version)
        held_bytes = [file.bytes for entry in entries if entry.held_folder for file in entry.files]
        versions = {entry.version for entry in entries}
        return PendingSideEntries(
            oldest.version - 1, len(versions), sum(held_bytes), datetime.fromisoformat(oldest.assembled_at)
        )

    def target_states(
        self, records: Iterable[TargetRecord], current: Collection[int], refusals: Mapping[str, str] = _NO_REASONS
    ) -> dict[str, TargetState]:
        """Return how far the tables of a route are, by name, as the log was last read.

        `current`: numbers of those that the configuration still has; `refusals`: which of these refuse, and why.
        """
        states = {}
        for record in records:
            name = record.name if record.number in current else f"{record.name} ({record.location})"
            locations = [location for location in (record.location, record.late) if location]
            reasons = [self.behind[location] for location in locations if location in self.behind]
            why = reasons[0] if reasons else refusals.get(name, "")
            states[name] = TargetState(record.location, self.pending_entries(*locations), why)
        return states

    def collect_pending(self) -> None:
        """Find what waits for the tables of a route, from them and the log, and write nothing.

        A table that cannot be read is in `behind`. Raises CommitFailed where the log cannot be read.
        """
        snapshot = self.main.snapshot()
        self._read_entries(snapshot, range(snapshot.settled, snapshot.version + 1))
        locations = [location for location in snapshot.targets_by_location if location in self._pending]
        with ThreadPoolExecutor(_thread_count(snapshot.targets().values())) as pool:
            reasons = list(pool.map(self._forget_applied_entries, locations))
        self.behind = {location: reason for location, reason in zip(locations, reasons, strict=True) if reason}

    def _forget_applied_entries(self, location: str) -> str:
        """Forget what a table has. Returns why it cannot be read; empty if it can."""
        pending = self._pending.pop(location)
        reason = ""
        try:
            snapshot = self.side(location).snapshot()
            if pending[0].table_id in ("", snapshot.state.metadata["id"]):
                pending = [entry for entry in pending if entry.version > snapshot.applied]
            else:
                reason = "it was removed and made again"
        except (HeadraceError, OSError) as error:
            reason = str(error)
        if pending:
            self._pending[location] = pending
        return reason

    def discard(self, files: Iterable[StagedFile], side_files: Mapping[str, Iterable[StagedFile]]) -> None:
        """Remove staged files that no commit will name; what stays is an orphan. Raises OSError."""
        self.main.discard(files)
        for location, staged in side_files.items():
            self.side(location).discard(staged)

    def enter_raw(self, epoch: int, location: str | None) -> None:
        """Enter a raw table in the log, and in its own which topics its records are of. Raises Fenced.

        `epoch`: of the start that asks. `location`: None where it keeps no records.
        """
        if location is not None:
            self.main.enter_raw(epoch, location)
            self.side(location).note_incarnations(self.main.snapshot().incarnations())

    def tidy(self, sides: Iterable[str]) -> None:
        """Tidy the logs of the main table and of these side tables. Raises CommitFailed."""
        # A target that is behind has its files from the entries.
        self.main.tidy(keeps_entries=bool(self.behind))
        errors = []
        for location in sides:
            if location in self.behind:
                continue
            # The others are tidied when one is not.
            try:
                self.side(location).tidy()
            except CommitFailed as error:
                errors.append(str(error))
        if errors:
            raise CommitFailed("; ".join(errors))


def _thread_count(targets: Iterable[TargetRecord]) -> int:
    """Return how many tables are applied to at the same time."""
    in_catalog = any(target.format == "iceberg" for target in targets)
    return _CATALOG_THREADS if in_catalog else _THREADS
