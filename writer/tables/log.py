"""The log of a Delta table, by its protocol (reader 1, writer 2): followed at its end, and appended to where it ends.

A table opened through delta-rs carries an entry for each of its files, and so does each commit: time and memory grow
with the table. Offsets, owner and columns are all that a commit must know, and they stand in the last checkpoint and
in the few entries after it. Creating tables, changing columns and writing checkpoints is left to delta-rs.
(docs/adr/0009-appending-to-the-log.md)
"""

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

Action = Mapping[str, Any]  # one line of an entry: its kind → what it says
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet$")
_ENTRY = re.compile(r"^(\d{20})\.json$")
_KEPT = ("metaData", "protocol")
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # what file systems without them answer
_Mark = tuple[int, int, int]  # tells one file from another of the same name


class LogUnreadable(OSError):
    """An entry of the log, or its checkpoint, is not what the protocol says."""


class LinksRefused(OSError):
    """The file system has no hard links, so nothing can be put where nothing is in one step."""


@dataclass(frozen=True)
class State:
    """A table at one version, its files left aside."""

    version: int
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)

    @property
    def place(self) -> tuple[str, int]:
        """Which table at which version; a checkpoint says the rest in other words than the entries do."""
        return self.metadata["id"], self.version

    @property
    def configuration(self) -> Mapping[str, str]:
        """Properties of the table."""
        return self.metadata.get("configuration") or {}

    def then(self, version: int, actions: Sequence[Action]) -> "State":
        """Return the state after one more entry."""
        said = {kind: action[kind] for action in actions for kind in _KEPT if action.get(kind)}
        moved = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if a.get("txn")}
        return State(
            version,
            said.get("metaData", self.metadata),
            said.get("protocol", self.protocol),
            {**self.transactions, **moved} if moved else self.transactions,
        )


class Log:
    """The log below a table's location. Not for several threads."""

    def __init__(self, location: str) -> None:
        self._folder = Path(location) / "_delta_log"
        self._state: State | None = None
        self._mark: _Mark | None = None  # of the entry at the state's version, as it was read

    def state(self) -> State:
        """Return the newest state. Raises FileNotFoundError when there is no table, LogUnreadable."""
        known = self._state
        if known is None or self._marked(known.version) != self._mark:
            self._state = None
            known = self._from_checkpoint()  # also when somebody put another table in this one's place
        state = self._followed(known)
        if state.version < self.checkpointed():  # the entries after `known` were cleaned up while they were followed
            state = self._followed(self._from_checkpoint())
        self._state = state
        return state

    def checkpointed(self) -> int:
        """Version of the newest checkpoint, as its last writer noted; -1 when nothing, or nonsense, is noted."""
        try:
            return int(json.loads((self._folder / "_last_checkpoint").read_text(encoding="utf-8"))["version"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return -1

    def entry(self, version: int) -> list[Action] | None:
        """Return the actions of one entry, or None where there is none (yet, or no longer). Raises LogUnreadable."""
        found = self._read(version)
        return None if found is None else found[0]

    def since(self, version: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield the entries after `version` up to the newest, oldest first; those that were cleaned up are left out."""
        newest = self.state().version
        for number in range(version + 1, newest + 1):
            actions = self.entry(number)
            if actions is not None:
                yield number, actions

    def append(self, after: State, actions: Sequence[Action]) -> bool:
        """Write the entry that follows `after`, complete or not at all. False when the table is not there any more.

        Raises LinksRefused, and OSError when the storage fails; whether the entry was written is then unknown.
        """
        path = self._path(after.version + 1)
        lines = [json.dumps(action, separators=(",", ":"), ensure_ascii=False) for action in actions]
        draft = self._folder / f".{path.name}.{uuid4().hex}.tmp"
        try:
            with draft.open("x", encoding="utf-8", newline="\n") as out:
                out.writelines(line + "\n" for line in lines)
                out.flush()
                os.fsync(out.fileno())
            # Looked at last: below a checkpoint, a place that a clean-up made free takes an entry that nobody reads.
            if self.state().place != after.place:
                return False
            _link(draft, path)
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                draft.unlink()
        return True

    def sweep(self, before: float) -> None:
        """Remove drafts of writers that died; `before`: when they were last touched, in seconds since 1970."""
        for draft in self._folder.glob(".*.json.*.tmp"):
            with suppress(FileNotFoundError):  # its writer lives, and was done with it
                if draft.stat().st_mtime < before:
                    draft.unlink()

    def _from_checkpoint(self) -> State:
        """Read the newest checkpoint that is complete and sound; without one, begin before the first entry.

        Raises LogUnreadable when the entries from there on do not lead to the end of the log, FileNotFoundError when
        there is no log.
        """
        checkpoints: dict[tuple[int, int], list[Path]] = {}  # (version, number of parts) → parts
        newest = -1
        for path in self._folder.iterdir():
            if found := _CHECKPOINT.match(path.name):
                checkpoints.setdefault((int(found[1]), int(found[2] or 1)), []).append(path)
            if found := found or _ENTRY.match(path.name):
                newest = max(newest, int(found[1]))
        if newest < 0:
            raise FileNotFoundError(f"there is no table at {self._folder.parent}")
        state, problem = State(-1), ""
        for (version, parts), paths in sorted(checkpoints.items(), reverse=True):
            if len(paths) < parts:
                continue
            try:
                state = State(version).then(version, [action for path in paths for action in _checkpointed(path)])
                break
            except OSError as error:  # torn, or removed meanwhile: an older one leads to the same end, or is refused
                problem = problem or f" ({error})"
        self._mark = self._marked(state.version)
        if (reached := self._followed(state)).version < newest:
            raise LogUnreadable(
                f"{self._folder} goes to version {newest}, but there is neither an entry {reached.version + 1} nor a "
                f"sound checkpoint after it{problem}"
            )
        if not (reached.metadata and reached.protocol):
            raise LogUnreadable(f"{self._folder} names no metadata or no protocol up to version {reached.version}")
        return reached

    def _followed(self, state: State) -> State:
        """Return the state after all entries that follow it, and remember the mark of the last one."""
        while (found := self._read(state.version + 1)) is not None:
            actions, self._mark = found
            state = state.then(state.version + 1, actions)
        return state

    def _read(self, version: int) -> tuple[list[Action], _Mark] | None:
        path = self._path(version)
        try:
            with path.open("rb") as entry:
                mark, lines = _mark_of(os.fstat(entry.fileno())), entry.read().split(b"\n")
            actions = [json.loads(line) for line in lines if line.strip()]
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LogUnreadable(f"{path} is not an entry of a Delta log: {error}") from error
        if not all(isinstance(action, dict) for action in actions):
            raise LogUnreadable(f"{path} is not an entry of a Delta log: a line of it is no action")
        return actions, mark

    def _marked(self, version: int) -> _Mark | None:
        """Tell one entry from another of the same number; None where there is none, as after a clean-up."""
        try:
            return _mark_of(self._path(version).stat())
        except FileNotFoundError:
            return None

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"


def _link(draft: Path, path: Path) -> None:
    try:
        os.link(draft, path)  # unlike a rename it fails where something is
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        raise LinksRefused(error.errno, f"{error.strerror}: no hard link could be made in", str(path.parent)) from error


def _mark_of(found: os.stat_result) -> _Mark:
    return found.st_ino, found.st_size, found.st_mtime_ns


def _checkpointed(path: Path) -> Iterator[Action]:
    """Yield the actions of a checkpoint that say something of the table as a whole."""
    try:
        found = pq.read_table(path, columns=["txn", *_KEPT], partitioning=None)
        for name in ("txn", *_KEPT):
            for said in found.column(name).drop_null().to_pylist():  # of the table as a whole: few, none is a file
                maps = {key: dict(value or []) for key, value in said.items() if key == "configuration"}
                yield {name: {**said, **maps}}
    except (ValueError, KeyError) as error:  # pyarrow's errors are ValueErrors
        raise LogUnreadable(f"{path} is not a checkpoint of a Delta log: {error}") from error
