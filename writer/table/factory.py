"""Creates a table from the configuration. Only this module knows the formats."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from writer.config.pipelines import Config
from writer.config.table_sections import Table
from writer.core import fault_points
from writer.core.backoff import Backoff
from writer.core.catalog_table import CatalogTable
from writer.core.errors import HeadraceError
from writer.core.files import StagedFile
from writer.storage.base import S3Settings
from writer.storage.locations import store_at
from writer.table import held_files
from writer.table.delta import LOG as DELTA_LOG, Delta
from writer.table.log.appender import RETRY_TIMEOUT
from writer.table.log.entries import SideEntry
from writer.table.log.foreign_writes import CommitFailed, reading
from writer.table.log.log import Log
from writer.table.log.snapshot import PipelineSnapshot, TargetRecord
from writer.table.log.table_format import Format
from writer.table.parquet import LOG, Parquet
from writer.table.table import CHECKPOINT_INTERVAL, PipelineTable

if TYPE_CHECKING:
    from writer.table.iceberg.adoption import ForeignTable  # a second, for pyiceberg
    from writer.table.iceberg.conversion import Conversion
    from writer.table.iceberg.renaming import TableNames

_AT_ONCE = 8  # targets that are applied to at the same time
_NOTHING: Mapping[str, str] = MappingProxyType({})
_REST = Backoff(1, 300)  # of a target that refuses


class PendingSideEntries(NamedTuple):
    """What a table beside the pipeline's log has of it, and what waits for it."""

    applied: int  # version of the log up to which it has all that is its own
    entries: int = 0  # that it does not have yet
    held_bytes: int = 0  # of their files that lie at the log
    since: datetime | None = None  # when the oldest of them was put together


class TargetState(NamedTuple):
    """How far a table of a route is."""

    location: str
    waiting: PendingSideEntries
    why: str = ""  # it refuses; empty: it does not, as far as is known

    @property
    def is_behind(self) -> bool:
        """Whether it refuses, or lacks what was committed for it."""
        return bool(self.why or self.waiting.entries)


class Tables:
    """All tables of one pipeline, each opened once, so that it follows its log."""

    def __init__(self, main: PipelineTable, opened: Callable[[str, TargetRecord | None], PipelineTable]) -> None:
        """`opened` opens the side table at a location; with the record of a target that the log may not know yet."""
        self.main, self._opened = main, opened
        self._sides = dict[str, PipelineTable]()
        self.settled = -1  # version up to which side files are known to be applied
        self._applied = set[str]()  # locations that took an entry from here
        self._brought = list[tuple[PipelineTable, SideEntry]]()  # whose files at the log are to be removed
        self._read = -1  # version of the main log up to which its entries were read
        self._waiting = dict[str, list[SideEntry]]()  # of these, by location, what is not known to be applied
        self.behind: Mapping[str, str] = {}  # locations of targets that refused, and why
        self._rests = dict[str, tuple[int, float]]()  # of these: how often in a row, and when they are tried again

    def side(self, location: str, record: TargetRecord | None = None) -> PipelineTable:
        """Return the side table at a location. `record`: of a target that the log may not know yet."""
        if location not in self._sides:
            self._sides[location] = self._opened(location, record)
        return self._sides[location]

    def apply_side_files(self, despite: Collection[int] = ()) -> None:
        """End what commits began: let readers see their files, and apply to the side tables what newer ones list.

        Safe to run again, at any time. Raises ForeignChange when another client did what the ledger does not survive,
        but at the versions `despite` which the caller is about to answer it; CommitFailed. A target of a route that
        refuses is in `behind` instead, and the others go on; it is tried again after a rest, longer each time.
        """
        snapshot = self.main.snapshot()
        self.main.publish(snapshot.state.place)
        self._read_on(snapshot, despite)
        self._remove_brought(snapshot.settled)
        targets = snapshot.target_places
        for location in [place for place in self._waiting if place not in targets]:
            self._apply(location)
        self.behind = self._apply_targets() if self._waiting else {}
        self.settled = min([self._read, *(entries[0].version - 1 for entries in self._waiting.values())])

    def _remove_brought(self, settled: int) -> None:
        """Remove files that waited at the log, once no process that starts now would copy them."""
        for table, entry in [one for one in self._brought if one[1].version <= settled]:
            with suppress(OSError):  # what stays is an orphan
                held_files.remove_held_files(self.main.store, table, entry)
        self._brought = [one for one in self._brought if one[1].version > settled]

    def _read_on(self, snapshot: PipelineSnapshot, despite: Collection[int]) -> None:
        """Sort what new entries of the log mean for tables beside it. Each entry is read once."""
        since, by_number, targets = max(self._read, snapshot.settled), snapshot.targets(), snapshot.target_places
        commits = self.main.commits_since(since, despite)
        for committed in commits:
            for location in sorted(committed.locations(by_number)):
                side = committed.side(location, targets.get(location))
                self._waiting.setdefault(location, []).append(side)
        self._read = max([since, snapshot.version, *(one.version for one in commits)])

    def _apply_targets(self) -> dict[str, str]:
        """Apply what waits for targets, several at a time. Returns the locations of those that refuse, and why.

        Raises what is no refusal of a table or its storage.
        """
        now_s = time.monotonic()
        resting = {place: self.behind[place] for place, (_, due_s) in self._rests.items() if now_s < due_s}
        due = [location for location in self._waiting if location not in resting]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            done = {location: pool.submit(self._apply, location) for location in due}
        errors = {location: error for location, one in done.items() if (error := one.exception()) is not None}
        for location in done:
            failures, _ = self._rests.pop(location, (0, 0.0))
            if location in errors:
                self._rests[location] = failures + 1, time.monotonic() + _REST.delay_s(failures)
        for error in errors.values():
            if not isinstance(error, HeadraceError | OSError):
                raise error
        return {**resting, **{location: str(error) for location, error in errors.items()}}

    @property
    def is_due(self) -> bool:
        """Whether a target that refused is to be tried again."""
        return bool(self.behind) and any(time.monotonic() >= due_s for _, due_s in self._rests.values())

    def _apply(self, location: str) -> None:
        """Apply what waits for one table, in the order of the log. Another process may have applied some of it."""
        table, waiting = self.side(location), self._waiting[location]
        applied = table.snapshot().applied if len(waiting) > 1 else -1
        del waiting[: max(0, sum(entry.version <= applied for entry in waiting) - 1)]  # the last may be unpublished
        while waiting:
            fault_points.point("before_apply")
            self._apply_one(table, waiting[0])
            fault_points.point("after_apply")
            del waiting[0]
        del self._waiting[location]

    def _apply_one(self, table: PipelineTable, entry: SideEntry) -> None:
        if not entry.held:
            if entry.of_target and (table.location in self.behind or table.location not in self._applied):
                held_files.check_files_exist(table, entry)  # the table may have been away when the files were written
            table.apply_side(entry)
            self._applied.add(table.location)
            return
        log = self.main.store
        with reading(table.location):
            if entry.version > table.snapshot().applied:
                held_files.copy_to_table(log, table, entry)
                fault_points.point("after_bring")
        table.apply_side(entry)
        self._applied.add(table.location)
        self._brought.append((table, entry))

    def waiting(self, *locations: str) -> PendingSideEntries:
        """Return what is known to wait for a table: at its location, and that of its late rows."""
        entries = [entry for location in locations for entry in self._waiting.get(location, ())]
        if not entries:
            return PendingSideEntries(self._read)
        first = min(entries, key=lambda entry: entry.version)
        held = sum(file.bytes for entry in entries for file in entry.files if entry.held)
        return PendingSideEntries(
            first.version - 1, len({one.version for one in entries}), held, datetime.fromisoformat(first.at)
        )

    def target_states(
        self, known: Iterable[TargetRecord], current: Collection[int], refusing: Mapping[str, str] = _NOTHING
    ) -> dict[str, TargetState]:
        """Return how far the tables of a route are, by name, as the log was last read.

        `current`: numbers of those that the configuration still has; `refusing`: which of these refuse, and why.
        """
        found = {}
        for record in known:
            name = record.name if record.number in current else f"{record.name} ({record.location})"
            places = [place for place in (record.location, record.late) if place]
            why = next((self.behind[place] for place in places if place in self.behind), refusing.get(name, ""))
            found[name] = TargetState(record.location, self.waiting(*places), why)
        return found

    def look(self) -> None:
        """Find what waits for the tables of a route, from them and the log, and write nothing.

        A table that cannot be read is in `behind`. Raises CommitFailed where the log cannot be read.
        """
        snapshot = self.main.snapshot()
        self._read_on(snapshot, range(snapshot.settled, snapshot.version + 1))
        places = [place for place in snapshot.target_places if place in self._waiting]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            self.behind = {place: why for place, why in zip(places, pool.map(self._look, places), strict=True) if why}

    def _look(self, location: str) -> str:
        """Forget what a table has. Returns why it cannot be read; empty if it can."""
        waiting = self._waiting.pop(location)
        try:
            snapshot, why = self.side(location).snapshot(), ""
            if waiting[0].table_id not in ("", snapshot.state.metadata["id"]):
                why = "it was removed and made again"
        except (HeadraceError, OSError) as error:
            why = str(error)
        left = waiting if why else [entry for entry in waiting if entry.version > snapshot.applied]
        if left:
            self._waiting[location] = left
        return why

    def discard(self, files: Iterable[StagedFile], side_files: Mapping[str, Iterable[StagedFile]]) -> None:
        """Remove staged files that no commit will name; what stays is an orphan. Raises OSError."""
        self.main.discard(files)
        for location, found in side_files.items():
            self.side(location).discard(found)

    def enter_raw(self, epoch: int, location: str | None) -> None:
        """Enter a raw table in the log, and in its own which topics its records are of. Raises Fenced.

        `epoch`: of the start that asks. `location`: None where it keeps no records.
        """
        if location is not None:
            self.main.enter_raw(epoch, location)
            self.side(location).note_incarnations(self.main.snapshot().incarnations())

    def tidy(self, sides: Iterable[str]) -> None:
        """Tidy the logs of the main table and of these side tables. Raises CommitFailed."""
        self.main.tidy(keeps_entries=bool(self.behind))  # a target that is behind has its files from them
        errors = []
        for location in sides:
            try:
                if location not in self.behind:
                    self.side(location).tidy()
            except CommitFailed as error:  # of one table: the others are tidied
                errors.append(str(error))
        if errors:
            raise CommitFailed("; ".join(errors))


def table_at(
    format_: str, location: str, pipeline: str, *, retry_timeout: timedelta = RETRY_TIMEOUT,
    checkpoint_interval: int = CHECKPOINT_INTERVAL, s3: S3Settings | None = None, catalog: CatalogTable | None = None,
) -> PipelineTable:  # fmt: skip
    """Return the handle of a table; it need not be there yet. `catalog`: place of an Iceberg table in its catalog."""
    if format_ == "delta":
        form: Format = Delta(location, checkpoint_interval, s3)
    elif format_ == "iceberg":
        from writer.table.iceberg.iceberg import Iceberg  # a second, for pyiceberg

        assert catalog is not None, "the configuration has a catalog where a table is Iceberg's"
        form = Iceberg(location, catalog, s3)
    else:
        form = Parquet(store_at(location, s3), store_at(f"{location}/{LOG}", s3))
    return PipelineTable(form, pipeline, retry_timeout=retry_timeout, checkpoint_interval=checkpoint_interval)


def main_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline."""
    settings = config.pipelines[name].table
    interval, s3 = settings.checkpoint_interval, config.s3.settings
    place = config.catalog_place(name, settings.location)
    return table_at(settings.format, settings.location, name, checkpoint_interval=interval, s3=s3, catalog=place)


def existing_table(name: str, config: Config) -> PipelineTable:
    """Return the table of a pipeline. Raises HeadraceError when there is none."""
    table = main_table(name, config)
    table.check_exists()
    return table


def side_table(name: str, config: Config, location: str) -> PipelineTable:
    """Return a table that rides along with a pipeline's, or one that its route names."""
    table = config.pipelines[name].table_at(location)
    place = config.in_catalog(table, location)
    return table_at(table.format, location, name, s3=config.s3.settings, catalog=place)


def all_tables(name: str, config: Config) -> Tables:
    """Return the table of a pipeline with those that ride along."""
    main, settings = main_table(name, config), config.pipelines[name].table

    def side(location: str, record: TargetRecord | None) -> PipelineTable:
        target = main.snapshot().target_places.get(location, record) if main.exists() else record
        if target is None:
            return side_table(name, config, location)
        named = {"location": target.location, "format": target.format, "name": target.table or None}
        place = config.in_catalog(settings.model_copy(update=named), location)
        return table_at(target.format, location, name, s3=config.s3.settings, catalog=place)

    return Tables(main, side)


def conversion(name: str, config: Config, location: str, table: Table | None = None) -> "Conversion | None":
    """Return how a table of the pipeline becomes Iceberg's, as its settings say; None: there is no table.

    `table`: settings of a target of the route; None: as the configuration has them for the location.
    """
    from writer.table.iceberg.conversion import Conversion
    from writer.table.iceberg.iceberg import Iceberg

    s3 = config.s3.settings
    place = config.in_catalog(table, location) if table else config.catalog_place(name, location)
    assert place is not None, "the configuration has a catalog where a table is Iceberg's"
    with reading(location):
        old_format = "delta" if any(store_at(f"{location}/{DELTA_LOG}", s3).list()) else "parquet"
        old = table_at(old_format, location, name, s3=s3)
        return (
            Conversion(old, Log(store_at(old.log_location, s3)), Iceberg(location, place, s3)) if old.exists() else None
        )


def table_names(name: str, config: Config) -> "TableNames | None":
    """Return the names by which a catalog knows a pipeline's table and its shadows; None of another format."""
    location = config.pipelines[name].table.location
    if (place := config.catalog_place(name, location)) is None:
        return None
    from writer.table.iceberg.renaming import TableNames

    return TableNames(place, location, config.s3.settings)


def foreign_table(name: str, config: Config) -> "ForeignTable":
    """Return the Iceberg table that a pipeline is to adopt."""
    from writer.table.iceberg.adoption import ForeignTable
    from writer.table.iceberg.iceberg import Iceberg

    location = config.pipelines[name].table.location
    place = config.catalog_place(name, location)
    assert place is not None, "the configuration has a catalog where a table is Iceberg's"
    return ForeignTable(Iceberg(location, place, config.s3.settings), name)
