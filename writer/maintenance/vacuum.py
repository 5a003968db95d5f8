"""Lists the objects of a pipeline's locations, and deletes those that `vacuum_plan` selects."""

import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from pyarrow import fs

from writer.config.pipelines import Config
from writer.core.errors import ConfigError, HeadraceError
from writer.core.files import staged_name
from writer.core.units import show_duration
from writer.maintenance.vacuum_plan import NeededFiles, Stored, UnneededObject, of_checkpoints, of_table
from writer.storage.base import Store
from writer.storage.locations import on_s3, store_at
from writer.storage.nesting import ancestors, is_below, table_folders
from writer.storage.split import OWN
from writer.table import held_files
from writer.table.factory import all_tables
from writer.table.log import file_lists
from writer.table.log.entries import parse_commit_info, parse_committed_entry
from writer.table.table import PipelineTable

_DECODER = "headrace-avro-"
SCRATCH = ("headrace-stage-", _DECODER, "headrace-rewrite-", "headrace-reprocess-")
_AT_ONCE = 16
_RETENTION = "delta.deletedFileRetentionDuration"
_UNITS = {"week": "weeks", "day": "days", "hour": "hours", "minute": "minutes", "second": "seconds"}


@dataclass(frozen=True)
class VacuumLocation:
    """A location, and its unneeded objects."""

    store: Store
    waste: tuple[UnneededObject, ...]
    left_alone: tuple[str, ...] = ()  # folders in it that are tables of their own, or links
    forget: Callable[[], Collection[str]] = tuple  # forgets versions that need what was removed; which files others do

    @property
    def location(self) -> str:
        """The location."""
        return self.store.location


def find_unneeded(config: Config, name: str, older_than: timedelta | None, now: datetime) -> list[VacuumLocation]:
    """Find unneeded objects. Raises ConfigError for an age that is not safe, HeadraceError, CommitFailed."""
    settings = config.pipelines[name]
    least = settings.table.orphan_retention
    if older_than is not None and older_than < least:
        raise ConfigError(
            f"--older-than {show_duration(older_than)} is less than table.orphan_retention ({show_duration(least)}): "
            "what a running batch has staged could be younger. Set table.orphan_retention, start the driver again, "
            "then vacuum."
        )
    cutoff = now - (older_than or least)
    tables = all_tables(name, config)
    main = tables.main
    main.check_current()
    places, awaited = [], _PendingFiles(main)
    for location in (main.location, *_side_tables(main, settings.dead_letters)):
        table = main if location == main.location else tables.side(location)
        if table.exists():
            stored, apart = _own(table.store, itself=True)  # first: what is committed meanwhile is needed by then
            at = min(cutoff, now - _log_retention(table))
            needed = _needed(table, _held(main) if table is main else awaited.files(table), at)
            waste = tuple(of_table(stored, needed, at, hidden=table.hidden))
            places.append(VacuumLocation(table.store, waste, apart, partial(_forget, table, at)))
    checkpoints = store_at(f"{config.checkpoints.rstrip('/')}/{name}", config.s3.settings)
    stored, apart = _own(checkpoints, itself=False)
    kept_apart = frozenset(path.partition("/")[0] for path in apart)  # a run goes as a whole, or not at all
    runs = (one for one in stored if one.path.partition("/")[0] not in kept_apart)
    places.append(VacuumLocation(checkpoints, tuple(of_checkpoints(runs, cutoff)), apart))
    places += [VacuumLocation(store_at(folder), tuple(_scratch(folder, cutoff))) for folder in _scratch_folders()]
    return [place for place in places if place.waste or place.left_alone]


def remove(places: Iterable[VacuumLocation]) -> None:
    """Remove these objects. If it is interrupted, run it again. Raises HeadraceError."""
    for place in places:
        needed = place.forget() if any(waste.why == "removed" for waste in place.waste) else ()
        try:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(partial(_remove, place.store), (one for one in place.waste if one.path not in needed)))
        except OSError as error:
            raise HeadraceError(f"not all could be removed from {place.location}: {error}. Run it again.") from error


def _forget(table: PipelineTable, before: datetime) -> Collection[str]:
    """Forget versions from before this time. Returns the files of those that stay: a client may have tagged one."""
    table.expire(before)
    return table.referenced_paths(datetime.fromtimestamp(0, UTC))


def everything(store: Store) -> Iterator[Stored]:
    """Yield all objects below a store's location, at any depth; none where it is not there. Raises HeadraceError."""
    for root, filesystem in {root: filesystem for filesystem, root in map(store.files, ("", OWN))}.items():
        try:
            listed = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        except OSError as error:
            raise HeadraceError(
                f"cannot list {store.location}: {error}. Look at the storage, then run it again."
            ) from error
        for found in listed:
            if found.is_file:
                yield Stored(found.path.removeprefix(f"{root}/"), found.size, found.mtime.astimezone(UTC))


def _own(store: Store, *, itself: bool) -> tuple[list[Stored], tuple[str, ...]]:
    """List what belongs to a location, and name the folders in it that do not: other tables, and what links lead to.

    `itself`: the location is a table. Raises HeadraceError.
    """
    stored = list(everything(store))
    # What waits for a Parquet table of a route has the names that mark a table.
    apart = table_folders(one.path for one in stored if not one.path.startswith(f"{held_files.FOLDER}/"))
    apart -= {""} if itself else set()
    if not on_s3(store.location):
        folders = {folder for one in stored for folder in ancestors(one.path) if folder}
        apart |= {folder for folder in folders if Path(store.location, folder).is_symlink()}
    own = [one for one in stored if not is_below(one.path, apart)] if apart else stored
    return own, tuple(sorted(folder for folder in apart if not is_below(folder, apart)))


def _remove(store: Store, waste: UnneededObject) -> None:
    match waste.why:
        case "scratch":
            shutil.rmtree(f"{store.location}/{waste.path}", ignore_errors=True)
        case "checkpoint":
            filesystem, root = store.files()
            filesystem.delete_dir(f"{root}/{waste.path}")
        case _:
            store.delete(waste.path)


def _side_tables(main: PipelineTable, dead_letters: str) -> Sequence[str]:
    """Return the locations of the dead letters, of targets, of raw tables, and of tables in recent commits' lists.

    Targets come from the state of the log: one that is behind by many commits may be in none of the last.
    """
    snapshot = main.snapshot()
    targets = dict.fromkeys([*snapshot.targets_by_location, *snapshot.raw_locations])
    listed = {place: None for about in main.recent_commits(1000) for place in about.get("side_files", {})}
    return list({dead_letters: None, **targets, **listed})


def _held(main: PipelineTable) -> set[str]:
    """Return what waits at the log for route's tables: files, and lists of files, of entries that one may not have."""
    snapshot = main.snapshot()
    targets, found = snapshot.targets_by_location, set[str]()
    for version, actions in main.entries(snapshot.settled) if targets else ():
        about = parse_commit_info(actions)[1]
        one = parse_committed_entry(version, about, main.store)
        found |= {name for name in (file_lists.list_object_name(about),) if name is not None}
        for side in [one.side_entry(place, targets.get(place)) for place in one.side_files] if one else ():
            for file in side.files if side.held_folder else ():
                found |= {
                    held_files.source_and_target(side.held_folder, file, hidden=hidden)[0] for hidden in (False, True)
                }
    return found


class _PendingFiles:
    """Files of side tables that entries of the main table's log list, and that a table may not have yet.

    Each entry is read once. Those up to `settled` are applied, and the lists of files that they name may be gone.
    """

    def __init__(self, main: PipelineTable) -> None:
        self._main, self._read = main, main.snapshot().settled
        self._listed = defaultdict[str, list[tuple[int, str]]](list)  # by location: the entry's version, a path

    def files(self, table: PipelineTable) -> set[str]:
        """Return those of a table. Raises CommitFailed."""
        applied = table.snapshot().applied
        for version, actions in self._main.entries(self._read):
            self._read = version
            one = parse_committed_entry(version, parse_commit_info(actions)[1], self._main.store)
            for location, files in one.side_files.items() if one else ():
                self._listed[location] += [(version, file.path) for file in files]
        return {path for version, path in self._listed[table.location] if version > applied}


def _needed(table: PipelineTable, awaited: set[str], since: datetime) -> NeededFiles:
    """Return what a table's log names, what waits for commits, and what readers of versions since this time need.

    `awaited`: taken before the table is looked at.
    """
    files = awaited | {file.path for file in table.bucket_files(table.snapshot())} | table.referenced_paths(since)
    removed = {}
    for _, actions in table.entries(-1):
        for action in actions:
            if "remove" in action:
                at = action["remove"].get("deletionTimestamp")
                removed[unquote(action["remove"]["path"])] = datetime.fromtimestamp((at or 0) / 1000, UTC)
    return NeededFiles(frozenset(files | {staged_name(path) for path in files}), removed)


def _log_retention(table: PipelineTable) -> timedelta:
    """Return how long the table keeps removed files, by its properties; Delta's default is a week."""
    setting = table.snapshot().state.configuration.get(_RETENTION, "").split()
    if len(setting) == 3 and setting[0] == "interval" and setting[1].isdigit() and setting[2].rstrip("s") in _UNITS:  # noqa: PLR2004
        return timedelta(**{_UNITS[setting[2].rstrip("s")]: int(setting[1])})
    return timedelta(0)


def _scratch_folders() -> list[str]:
    setting = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return list(dict.fromkeys([*setting, tempfile.gettempdir()]))


def _scratch(folder: str, cutoff: datetime) -> Iterator[UnneededObject]:
    """Find what tasks on this machine spilled and left. What is written to is touched."""
    for path in sorted(Path(folder).glob("headrace-*")):
        if path.is_dir() and path.name.startswith(SCRATCH):
            stats = _inside(path)
            touched = datetime.fromtimestamp(max((stat.st_mtime for stat in stats), default=cutoff.timestamp()), UTC)
            if touched < cutoff and not _at_work(path):
                yield UnneededObject(path.name, sum(stat.st_size for stat in stats[1:]), touched, "scratch")


def _inside(folder: Path) -> list[os.stat_result]:
    """Look at a folder and what is in it, as far as it is still there: its task may end meanwhile."""
    paths = [folder]
    # os.walk passes over a folder that is gone by the time it is listed; Path.rglob raises.
    for root, folders, files in os.walk(folder):
        paths += (Path(root, name) for name in (*folders, *files))
    stats = []
    for path in paths:
        with suppress(FileNotFoundError):
            stats.append(path.lstat())
    return stats


def _at_work(folder: Path) -> bool:
    """Return whether a live decoder may own the folder, however old it is: its file is in that process's memory."""
    if not folder.name.startswith(_DECODER):
        return False
    link = folder / "block.avro"
    if not link.is_symlink():
        return True  # without a file system in memory it is unknown
    try:
        return _DECODER.rstrip("-") in str(link.readlink().readlink())
    except FileNotFoundError:
        return False
    except OSError:
        return True  # another user's
