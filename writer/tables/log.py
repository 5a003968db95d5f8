"""The log of a Delta table, by its protocol (reader 1, writer 2): followed at its end, and appended to where it ends.

A table opened through delta-rs carries an entry for each of its files, and so does each commit: time and memory grow
with the table. Offsets, owner and columns are all that a commit must know, and they stand in the last checkpoint and
in the few entries after it. Creating tables, changing columns and writing checkpoints is left to delta-rs.
(docs/adr/0009-appending-to-the-log.md)
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq

Action = Mapping[str, Any]  # one line of an entry: its kind → what it says
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet$")
_KEPT = ("metaData", "protocol")


class LogUnreadable(OSError):
    """An entry of the log, or its checkpoint, is not what the protocol says."""


@dataclass(frozen=True)
class State:
    """A table at one version, its files left aside."""

    version: int
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)

    def then(self, version: int, actions: Sequence[Action]) -> "State":
        """Return the state after one more entry."""
        said = {kind: action[kind] for action in actions for kind in _KEPT if kind in action}
        moved = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if "txn" in a}
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
        self._mark: tuple[int, int, int] | None = None  # of the entry at the state's version, as it was read

    def state(self) -> State:
        """Return the newest state. Raises FileNotFoundError when there is no table, LogUnreadable."""
        if self._state is None or self._marked(self._state.version) != self._mark:
            self._state = self._from_checkpoint()  # also when somebody put another table in this one's place
        state = self._state
        while (actions := self.entry(state.version + 1)) is not None:
            state = state.then(state.version + 1, actions)
        if state.version < 0:
            raise FileNotFoundError(f"there is no table at {self._folder.parent}")
        self._state, self._mark = state, self._marked(state.version)
        return state

    def entry(self, version: int) -> list[Action] | None:
        """Return the actions of one entry, or None where there is none (yet, or no longer). Raises LogUnreadable."""
        path = self._path(version)
        try:
            return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise LogUnreadable(f"{path} is not an entry of a Delta log: {error}") from error

    def since(self, version: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield the entries after `version` up to the newest, oldest first; those that were cleaned up are left out."""
        newest = self.state().version
        for number in range(version + 1, newest + 1):
            actions = self.entry(number)
            if actions is not None:
                yield number, actions

    def append(self, version: int, actions: Sequence[Action]) -> bool:
        """Write the entry `version`, complete or not at all. False when there is one already.

        The entry before it must exist. Raises OSError when the storage fails; whether it was written is then unknown.
        """
        path = self._path(version)
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        draft = self._folder / f".{path.name}.{uuid4().hex}.tmp"
        try:
            with draft.open("x", encoding="utf-8") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            os.link(draft, path)  # unlike a rename it fails where something is
        except FileExistsError:
            return False
        finally:
            with suppress(OSError):
                draft.unlink()
        return True

    def _from_checkpoint(self) -> State:
        """Read the newest complete checkpoint; without one, begin before the first entry."""
        parts: dict[int, list[Path]] = {}
        wanted: dict[int, int] = {}
        for path in sorted(self._folder.iterdir()):
            if found := _CHECKPOINT.match(path.name):
                parts.setdefault(int(found[1]), []).append(path)
                wanted[int(found[1])] = int(found[2] or 1)
        complete = [version for version, paths in parts.items() if len(paths) == wanted[version]]
        if not complete:
            return State(-1)
        version = max(complete)
        actions = (action for path in parts[version] for action in _checkpointed(path))
        return reduce(lambda state, action: state.then(version, [action]), actions, State(version))

    def _marked(self, version: int) -> tuple[int, int, int] | None:
        """Tell one entry from another of the same number; None where there is none, as after a clean-up."""
        try:
            found = self._path(version).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:020}.json"


def _checkpointed(path: Path) -> Iterator[Action]:
    """Yield the actions of a checkpoint that say something of the table as a whole."""
    try:
        for name in ("txn", *_KEPT):
            column = pq.ParquetFile(path).read(columns=[name]).column(name)
            for said in column.drop_null().to_pylist():
                maps = {key: dict(value) for key, value in said.items() if key == "configuration" and value is not None}
                yield {name: {**said, **maps}}
    except (ValueError, KeyError) as error:  # pyarrow's errors are ValueErrors
        raise LogUnreadable(f"{path} is not a checkpoint of a Delta log: {error}") from error
