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
from itertools import chain
from pathlib import Path
from urllib.parse import unquote

from pyarrow import fs

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.files import staged_name
from headrace.writer.core.units import show_duration
from headrace.writer.maintenance.vacuum_plan import (
    NeededFiles,
    Stored,
    UnneededObject,
    unneeded_checkpoints,
    unneeded_in_table,
)
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import in_bucket, store_at
from headrace.writer.storage.nesting import ancestors, is_below, table_folders
from headrace.writer.storage.split import OWN
from headrace.writer.table import held_files
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log import file_lists
from headrace.writer.table.log.entries import SideEntry, parse_commit_info, parse_committed_entry
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable

_DECODER = "headrace-avro-"
SCRATCH = ("headrace-stage-", _DECODER, "headrace-rewrite-", "headrace-reprocess-")
_AT_ONCE = 16
# Commits that are asked for the tables that they list files for.
_COMMITS_READ = 1_000
_RETENTION = "delta.deletedFileRetentionDuration"
_UNITS = {"week": "weeks", "day": "days", "hour": "hours", "minute": "minutes", "second": "seconds"}


@dataclass(frozen=True)
class VacuumLocation:
    """A location, and its unneeded objects."""

    store: Store
    waste: tuple[UnneededObject, ...]
    # Folders in it that are tables of their own, or links.
    left_alone: tuple[str, ...] = ()
    # Forgets versions that need what was removed. Returns the files that other versions need.
    forget: Callable[[], Collection[str]] = tuple

    @property
    def location(self) -> str:
        """The location."""
        return self.store.location


def find_unneeded(config: Config, name: str, older_than: timedelta | None, now: datetime) -> list[VacuumLocation]:
    """Find unneeded objects. Raises ConfigError for an age that is not safe, HeadraceError, CommitFailed."""
    settings = config.pipelines[name]
    age_min = settings.table.orphan_retention
    if older_than is not None and older_than < age_min:
        raise ConfigError(
            f"--older-than {show_duration(older_than)} is less than table.orphan_retention "
            f"({show_duration(age_min)}): what a running batch has staged could be younger. Set "
            "table.orphan_retention, start the driver again, then vacuum."
        )
    cutoff = now - (older_than or age_min)
    tables = all_tables(name, config)
    tables.main.check_current()
    checkpoints = store_at(f"{config.checkpoints.rstrip('/')}/{name}", config.stores)
    locations = [
        *_table_locations(tables, settings.dead_letters, cutoff, now),
        _checkpoint_location(checkpoints, cutoff),
        *(VacuumLocation(store_at(folder), tuple(_unneeded_scratch(folder, cutoff))) for folder in _scratch_folders()),
    ]
    return [location for location in locations if location.waste or location.left_alone]


def _table_locations(tables: Tables, dead_letters: str, cutoff: datetime, now: datetime) -> Iterator[VacuumLocation]:
    """Yield the locations of the pipeline's tables, with what no version of them needs."""
    main = tables.main
    pending = _PendingFiles(main)
    for location in (main.location, *_side_tables(main, dead_letters)):
        table = main if location == main.location else tables.side(location)
        if not table.exists():
            continue
        # Listed first: what is committed meanwhile is needed by then.
        stored, other_folders = _own_objects(table.store, is_table=True)
        needed_since = min(cutoff, now - _log_retention(table))
        waiting_files = _held_files(main) if table is main else pending.files(table)
        needed = _needed_files(table, waiting_files, needed_since)
        waste = tuple(unneeded_in_table(stored, needed, needed_since, hidden=table.hidden))
        yield VacuumLocation(table.store, waste, other_folders, partial(_forget, table, needed_since))


def _checkpoint_location(checkpoints: Store, cutoff: datetime) -> VacuumLocation:
    """Return the location of a pipeline's checkpoints. A run goes as a whole, or not at all."""
    stored, other_folders = _own_objects(checkpoints, is_table=False)
    mixed_runs = frozenset(path.partition("/")[0] for path in other_folders)
    runs = (item for item in stored if item.path.partition("/")[0] not in mixed_runs)
    return VacuumLocation(checkpoints, tuple(unneeded_checkpoints(runs, cutoff)), other_folders)


def remove(locations: Iterable[VacuumLocation]) -> None:
    """Remove these objects. If it is interrupted, run it again. Raises HeadraceError."""
    for location in locations:
        needed = location.forget() if any(waste.why == "removed" for waste in location.waste) else ()
        unneeded = [waste for waste in location.waste if waste.path not in needed]
        try:
            with ThreadPoolExecutor(_AT_ONCE) as threads:
                list(threads.map(partial(_remove, location.store), unneeded))
        except OSError as error:
            raise HeadraceError(f"not all could be removed from {location.location}: {error}. Run it again.") from error


def _forget(table: PipelineTable, before: datetime) -> Collection[str]:
    """Forget versions from before this time. Returns the files of those that stay: a client may have tagged one."""
    table.expire(before)
    return table.referenced_paths(datetime.fromtimestamp(0, UTC))


def list_objects(store: Store) -> Iterator[Stored]:
    """Yield all objects below a store's location, at any depth; none where it is not there. Raises HeadraceError."""
    filesystems = {root: filesystem for filesystem, root in map(store.files, ("", OWN))}
    for root, filesystem in filesystems.items():
        try:
            infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
        except OSError as error:
            raise HeadraceError(
                f"cannot list {store.location}: {error}. Look at the storage, then run it again."
            ) from error
        for info in infos:
            if info.is_file:
                yield Stored(info.path.removeprefix(f"{root}/"), info.size, info.mtime.astimezone(UTC))


def _own_objects(store: Store, *, is_table: bool) -> tuple[list[Stored], tuple[str, ...]]:
    """List what belongs to a location, and name the folders in it that do not: other tables, and what links lead to.

    `is_table`: the location itself is a table. Raises HeadraceError.
    """
    stored = list(list_objects(store))
    # What waits for a Parquet table of a route has the names that mark a table.
    other_folders = table_folders(item.path for item in stored if not item.path.startswith(f"{held_files.FOLDER}/"))
    if is_table:
        other_folders -= {""}
    if not in_bucket(store.location):
        folders = set(chain.from_iterable(ancestors(item.path) for item in stored)) - {""}
        other_folders |= {folder for folder in folders if Path(store.location, folder).is_symlink()}
    own = stored
    if other_folders:
        own = [item for item in stored if not is_below(item.path, other_folders)]
    return own, tuple(sorted(folder for folder in other_folders if not is_below(folder, other_folders)))


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
    targets = [*snapshot.targets_by_location, *snapshot.raw_locations]
    recent = chain.from_iterable(commit.get("side_files", {}) for commit in main.recent_commits(_COMMITS_READ))
    return list(dict.fromkeys([dead_letters, *targets, *recent]))


def _held_files(main: PipelineTable) -> set[str]:
    """Return what waits at the log for route's tables: files, and lists of files, of entries that one may not have."""
    snapshot = main.snapshot()
    targets = snapshot.targets_by_location
    paths = set[str]()
    if not targets:
        return paths
    for version, actions in main.entries(snapshot.settled):
        _, commit_info = parse_commit_info(actions)
        list_name = file_lists.list_object_name(commit_info)
        if list_name is not None:
            paths.add(list_name)
        commit = parse_committed_entry(version, commit_info, main.store)
        if commit is not None:
            for location in commit.side_files:
                paths |= _held_paths(commit.side_entry(location, targets.get(location)))
    return paths


def _held_paths(entry: SideEntry) -> set[str]:
    """Return where the files of an entry may wait at the log, by either name."""
    paths = set[str]()
    if entry.held_folder:
        for file in entry.files:
            for hidden in (False, True):
                source, _ = held_files.source_and_target(entry.held_folder, file, hidden=hidden)
                paths.add(source)
    return paths


class _PendingFiles:
    """Files of side tables that entries of the main table's log list, and that a table may not have yet.

    Each entry is read once. Those up to `settled` are applied, and the lists of files that they name may be gone.
    """

    def __init__(self, main: PipelineTable) -> None:
        self._main = main
        self._version_read = main.snapshot().settled
        # By location: the version of an entry, and a path.
        self._listed = defaultdict[str, list[tuple[int, str]]](list)

    def files(self, table: PipelineTable) -> set[str]:
        """Return those of a table. Raises CommitFailed."""
        applied = table.snapshot().applied
        for version, actions in self._main.entries(self._version_read):
            self._version_read = version
            _, commit_info = parse_commit_info(actions)
            commit = parse_committed_entry(version, commit_info, self._main.store)
            if commit is not None:
                for location, files in commit.side_files.items():
                    self._listed[location] += [(version, file.path) for file in files]
        return {path for version, path in self._listed[table.location] if version > applied}


def _needed_files(table: PipelineTable, waiting_files: set[str], since: datetime) -> NeededFiles:
    """Return what a table's log names, what waits for commits, and what readers of versions since this time need.

    `waiting_files`: taken before the table is looked at.
    """
    files = waiting_files | {file.path for file in table.bucket_files(table.snapshot())} | table.referenced_paths(since)
    removed = {}
    for _, actions in table.entries(-1):
        for action in actions:
            if "remove" in action:
                removed_ms = action["remove"].get("deletionTimestamp") or 0
                removed[unquote(action["remove"]["path"])] = datetime.fromtimestamp(removed_ms / 1000, UTC)
    return NeededFiles(frozenset(files | {staged_name(path) for path in files}), removed)


def _log_retention(table: PipelineTable) -> timedelta:
    """Return how long the table keeps removed files, by its properties; Delta's default is a week."""
    setting = table.snapshot().state.configuration.get(_RETENTION, "")
    match setting.split():
        case ["interval", count, unit] if count.isdecimal() and unit.rstrip("s") in _UNITS:
            return timedelta(**{_UNITS[unit.rstrip("s")]: int(count)})
        case _:
            return timedelta(0)


def _scratch_folders() -> list[str]:
    setting = [folder for folder in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if folder]
    return list(dict.fromkeys([*setting, tempfile.gettempdir()]))


def _unneeded_scratch(folder: str, cutoff: datetime) -> Iterator[UnneededObject]:
    """Find what tasks on this machine spilled and left. What is written to is touched."""
    for path in sorted(Path(folder).glob("headrace-*")):
        if path.is_dir() and path.name.startswith(SCRATCH):
            stats = _read_stats(path)
            touched = datetime.fromtimestamp(max((stat.st_mtime for stat in stats), default=cutoff.timestamp()), UTC)
            if touched < cutoff and not _is_in_use(path):
                yield UnneededObject(path.name, sum(stat.st_size for stat in stats[1:]), touched, "scratch")


def _read_stats(folder: Path) -> list[os.stat_result]:
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


def _is_in_use(folder: Path) -> bool:
    """Return whether a live decoder may own the folder, however old it is: its file is in that process's memory."""
    if not folder.name.startswith(_DECODER):
        return False
    link = folder / "block.avro"
    # Without a file system in memory it is unknown.
    if not link.is_symlink():
        return True
    try:
        return _DECODER.rstrip("-") in str(link.readlink().readlink())
    except FileNotFoundError:
        return False
    except OSError:
        # It is another user's.
        return True
