"""Appends an entry to the table's log exactly once, beside other writers.

An entry is put right after the version that was checked, or not at all, so nothing that happens in between, a start
above all, goes unseen. What became of an entry without an answer, the log says.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from writer.core import fault_points
from writer.core.backoff import Backoff
from writer.core.errors import ConfigError, Fenced
from writer.core.files import BucketFile, StagedFile
from writer.core.offsets import OffsetRange
from writer.storage.base import NotExclusive
from writer.storage.disk_space import TABLE, naming_full_disk
from writer.table.log.entries import (
    CommittedEntry,
    ours,
    parse_commit_info,
    parse_committed,
    set_transactions,
    unanswered,
)
from writer.table.log.file_lists import shortened
from writer.table.log.foreign_writes import CommitFailed, check_foreign, check_writable, one_line, reading
from writer.table.log.log import Action, State
from writer.table.log.snapshot import FORMAT, TARGETS, PipelineSnapshot, check_format, format_name
from writer.table.log.table_format import Format

RETRY_TIMEOUT = timedelta(minutes=2)
_STORAGE, _RACES = Backoff(0.1, 5, jitter=0.5), Backoff(0.02, 1, jitter=1)
_T = TypeVar("_T")
Check = Callable[[PipelineSnapshot], None]  # refuses, by raising, a version that an entry may not follow
Values = Mapping[str, int] | Callable[[PipelineSnapshot], Mapping[str, int]]


class Converted(ConfigError):
    """The table became an Iceberg table: its old log is at its end."""


class Superseded(ConfigError):
    """Another table is the pipeline's by now."""


class LostRace(Exception):
    """Another entry has this version."""


@dataclass(frozen=True)
class Swap:
    """Files that an entry removes, beside those that it adds."""

    gone: Sequence[Action]
    moves_only: bool = False  # the rows that are added are those that are removed


_NOTHING = Swap(())


class Appender:
    """The end of one table's log, as one pipeline reads it and writes to it."""

    def __init__(self, form: Format, pipeline: str, retry_timeout: timedelta) -> None:
        """Take the format; `retry_timeout` is how long an entry is tried before CommitFailed."""
        self._format, self._log, self.location = form, form.log, form.location
        self.pipeline, self._retry_timeout = pipeline, retry_timeout
        self._reading = threading.Lock()  # a supervisor reads the table's owner while a batch is on its way
        self.table_id: str | None = None  # of the table that this process took over

    def state(self) -> State:
        """Read the newest state. Raises OSError."""
        with self._reading:
            return self._log.state()

    def snapshot(self) -> PipelineSnapshot:
        """Read the newest version. Raises CommitFailed, TooNew."""
        with reading(self.location):
            state = self.state()
        check_format(state.transactions, self.pipeline, self.location)
        return PipelineSnapshot(state, self.pipeline)

    def entries(self, since: int) -> list[tuple[int, list[Action]]]:
        """Entries after version `since` that the log still has, of any writer, oldest first."""
        with reading(self.location), self._reading:
            return list(self._log.since(since))

    def commits_since(self, version: int, despite: Collection[int] = ()) -> list[CommittedEntry]:
        """Commits of this pipeline after `version`, oldest first. Raises ForeignChange, CommitFailed.

        `despite`: versions of other clients that are passed over.
        """
        entries = self.entries(version)
        refused = {one.version for one in unanswered(entries)}.difference(despite)
        found = []
        for at, actions in entries:
            info, about = parse_commit_info(actions)
            if at in refused:
                check_foreign(info, at, self.location)
            elif (one := parse_committed(at, about, self._format.store, info)) is not None:
                found.append(one)
        return found

    def _version_of(self, id_: str, since: int) -> int | None:
        """Return which version after `since` is the entry with an id; None: none is."""
        return next((at for at, actions in self.entries(since) if parse_commit_info(actions)[1].get("id") == id_), None)

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
        for r in ranges:
            at = snapshot.frontier(r.part)
            if at is not None and at != r.start:
                raise Fenced(
                    f"offset {at} of {r.part.topic}/{r.part.partition} is committed, this batch starts at {r.start}: "
                    f"another writer runs as {self.pipeline!r}. Stop one of them."
                )

    def check_goes_on(self, snapshot: PipelineSnapshot) -> None:
        """Raise TooNew, Converted or Superseded where this headrace, or this format, does not go on with the log."""
        check_format(snapshot.state.transactions, self.pipeline, self.location)
        if newer := snapshot.superseded_by:
            raise Superseded(
                f"`headrace promote` put the table at {newer} in the place of the one at {self.location}, which takes "
                f"no more entries. Set pipelines.{self.pipeline}.table.location: {newer}. To go back, promote "
                f"{self.location} (docs/SHADOW.md)."
            )
        if snapshot.converted >= 0 and not self._format.in_catalog:
            raise Converted(
                f"`headrace convert` makes the table at {self.location} an Iceberg table, or has made it one: nothing "
                f"follows version {snapshot.converted} of its old log. Set table.format: iceberg, with `catalog` and "
                "table.name; if the catalog does not know the table yet, `headrace convert` ends what it began."
            )

    def append(
        self,
        snapshot: PipelineSnapshot,
        files: Sequence[StagedFile],
        values: Values,
        about: Mapping[str, Any],
        check: Check,
        swap: Swap | None = None,
        moment: str = "commit",
    ) -> int:
        """Write an entry right after a version that `check` does not refuse, and let readers see its files.

        Returns where it stands. Whatever another writer puts in between is seen, and checked again. `values` that count
        something up are asked for the version they follow. `moment` names the fault points before and after.
        """
        deadline = time.monotonic() + self._retry_timeout.total_seconds()
        problem: Exception
        failures = 0  # of the storage, since the last race was lost
        table, base = snapshot.state.place
        while True:
            check(snapshot)
            try:
                fault_points.point(f"before_{moment}")
                sets = values(snapshot) if callable(values) else values
                facts = shortened(self._format.store, about) if TARGETS in snapshot.state.configuration else about
                self.write(snapshot, files, sets, facts, None, *((swap,) if swap else ()))
                fault_points.point(f"after_{moment}")
            except LostRace as error:
                problem, failures = error, 0
            except OSError as error:
                problem, failures = error, failures + 1
            else:
                version = snapshot.version + 1
                break
            # Whatever was answered, the log decides: an entry with our id is our commit, whatever others did after it.
            with suppress(CommitFailed):
                newer = self.snapshot()
                if (found := self._version_of(about["id"], base)) is not None:
                    version = found
                    break
                self.commits_since(base)
                snapshot = newer  # not before it was looked at: our own commit would pass for another writer's
            if time.monotonic() > deadline:
                raise CommitFailed(
                    f"the table at {self.location} took no commit for {self._retry_timeout.total_seconds():.0f} s: "
                    f"{one_line(problem)}. The next start looks what became of it, and reads it again if need be."
                )
            time.sleep(_STORAGE.random_delay_s(failures - 1) if failures else 0)
        self.publish((table, version))
        return version

    def retried(self, action: Callable[[PipelineSnapshot], _T]) -> _T:
        """Run an action that may lose a race, on a newer snapshot each time."""
        for tries in range(10):
            try:
                return action(self.snapshot())
            except LostRace as error:
                problem = error
                time.sleep(_RACES.random_delay_s(tries))
            except OSError as error:
                raise CommitFailed(f"cannot write to the table at {self.location}: {one_line(error)}") from error
        raise CommitFailed(
            f"the table at {self.location} changes too fast to write to; ten tries lost the race: {one_line(problem)}"
        )

    def publish(self, place: tuple[str, int]) -> None:
        """Let readers see all files of a version; a second time does nothing. Raises CommitFailed, ForeignChange.

        `place`: id of the table, and the version.
        """
        try:
            self._format.publish(place)
        except OSError as error:
            raise CommitFailed(
                f"version {place[1]} of the table at {self.location} is committed, but its files are not all in their "
                f"place: {one_line(error)}. Nothing is lost: the next start puts them there."
            ) from error

    def write(
        self,
        snapshot: PipelineSnapshot,
        files: Sequence[StagedFile],
        values: Mapping[str, int],
        about: Mapping[str, Any],
        properties: Mapping[str, str] | None = None,
        swap: Swap = _NOTHING,
    ) -> None:
        """Append an entry of files, `txn` values and words right after the snapshot. Raises as `put` does."""
        actions = ours(snapshot.state, files, values, about, properties, swap.gone, moves_only=swap.moves_only)
        self.put(snapshot, actions)

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
        numbering = [] if snapshot.format else set_transactions({format_name(self.pipeline): FORMAT})
        self._format.publish(snapshot.state.place)  # so only the newest entry's files may be out of place
        try:
            with self._reading, naming_full_disk({self.location: TABLE}):  # pyiceberg names no place
                written = self._log.append(snapshot.state, [*actions, *numbering])
        except NotExclusive as error:
            raise ConfigError(f"cannot commit to the table at {self.location}: {one_line(error)}") from error
        if not written:
            raise LostRace(f"another entry follows version {snapshot.version}")
