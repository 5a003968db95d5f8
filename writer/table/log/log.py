"""A table's log by Delta's protocol (reader 1, writer 2): follows its end and appends to it.

A table opened through delta-rs carries an entry for each of its files, and so does each commit: time and memory grow
with the table. Offsets, owner and columns are all that a commit must know, and they stand in the last checkpoint and
in the few entries after it. Creating a Delta table and writing its checkpoints is left to delta-rs.
(docs/adr/0009-appending-to-the-log.md)
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from writer.storage.base import Mark, Store
from writer.storage.damage import FileDamaged, naming_damage

Action = Mapping[str, Any]  # one line of an entry: its kind → what it says
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.(?:parquet|json)$")
_ENTRY = re.compile(r"^(\d{20})\.json$")
_KEPT = ("metaData", "protocol")
_NOTE = "_last_checkpoint"
_AT_ONCE = 16  # of a store, each of which takes a round trip to answer
_TEXTS = pa.map_(pa.string(), pa.string())
_ADD = pa.struct({"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(), "stats": pa.string()})

_TEXT, _NUMBER, _OBJECT, _LIST = (str,), (int,), (dict,), (list,)
_NO_OBJECT = (dict, type(None))
# Kind of action → its fields that are read, and the types of their values in JSON:
# https://github.com/delta-io/delta/blob/master/PROTOCOL.md#actions.
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "protocol": {"minReaderVersion": _NUMBER, "minWriterVersion": _NUMBER},
    "metaData": {"id": _TEXT, "schemaString": _TEXT, "partitionColumns": _LIST},
    "txn": {"appId": _TEXT, "version": _NUMBER},
    "add": {"path": _TEXT, "size": _NUMBER, "partitionValues": _NO_OBJECT},
    "remove": {"path": _TEXT},
    "commitInfo": {},
}
_OPTIONAL: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "metaData": {"configuration": _OBJECT},
    "add": {"stats": _TEXT, "tags": _OBJECT},
    "remove": {"partitionValues": _OBJECT},
    "commitInfo": {"timestamp": _NUMBER, "operation": _TEXT, "operationParameters": _OBJECT},
}
_TIME_TAGS = "headrace.event_time_"  # of files, which engines may copy


class LogUnreadable(OSError):
    """An entry of the log, or its checkpoint, does not follow the protocol."""


class _OtherShape(ValueError):
    """An action is not as the protocol has it; the text is a phrase."""


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

    def columns(self) -> pa.Schema:
        """Columns with their Arrow types."""
        return pa.schema(pa.schema(Schema.from_json(self.metadata["schemaString"]).to_arrow()))

    def then(self, version: int, actions: Sequence[Action]) -> "State":
        """Return the state after one more entry."""
        kept = {kind: action[kind] for action in actions for kind in _KEPT if action.get(kind)}
        moved = {a["txn"]["appId"]: a["txn"]["version"] for a in actions if a.get("txn")}
        return State(
            version,
            kept.get("metaData", self.metadata),
            kept.get("protocol", self.protocol),
            {**self.transactions, **moved} if moved else self.transactions,
        )


class Log:
    """The log in a folder of its own. Not for several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.location = store.location  # where the entries lie
        self._state: State | None = None
        self._mark: Mark | None = None  # of the entry at the state's version, as it was read

    def exists(self) -> bool:
        """Return whether there is an entry or a checkpoint."""
        return any(_ENTRY.match(name) or _CHECKPOINT.match(name) for name in self._store.list())

    def metadata_file(self) -> str:
        """Return the location of an Iceberg table's newest metadata file; empty for other formats."""
        return ""

    def state(self) -> State:
        """Return the newest state. Raises FileNotFoundError when there is no table, LogUnreadable."""
        known = self._state
        if known is None or self._store.mark(entry_name(known.version)) != self._mark:
            self._state = None
            known = self._from_checkpoint()  # also when another table was put in this one's place
        state = self._followed(known)
        if state.version < self.checkpointed():  # the entries after `known` were cleaned up while they were followed
            state = self._followed(self._from_checkpoint())
        self._state = state
        return state

    def at(self, version: int) -> State:
        """Return the state at an earlier version. Raises LogUnreadable when the log does not reach back to it."""
        checkpoints = _checkpoints(self._store.list())
        for at, names in [*((at, names) for at, names in checkpoints if at <= version), (-1, [])]:
            with suppress(OSError):  # corrupt: the one before it leads to the same state
                state = self._at_checkpoint(at, names)
                while state.version < version and (actions := self.entry(state.version + 1)) is not None:
                    state = state.then(state.version + 1, actions)
                if state.version == version and state.metadata and state.protocol:
                    return state
        raise LogUnreadable(f"{self.location} does not reach back to version {version} any more")

    def checkpointed(self) -> int:
        """Version of the newest checkpoint, as its last writer noted; -1 when nothing, or nonsense, is noted."""
        noted = self._store.read(_NOTE)
        try:
            return -1 if noted is None else int(json.loads(noted.content)["version"])
        except (ValueError, KeyError, TypeError):
            return -1

    def entry(self, version: int) -> list[Action] | None:
        """Return the actions of one entry, or None where there is none (yet, or no longer). Raises LogUnreadable."""
        found = self._read(version)
        return None if found is None else found[0]

    def since(self, version: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield the entries after `version` up to the newest, oldest first; those that were cleaned up are left out."""
        newest = self.state().version
        for number in range(max(version, -1) + 1, newest + 1):
            actions = self.entry(number)
            if actions is not None:
                yield number, actions

    def added(self, version: int) -> tuple[int, pa.Table]:
        """Return the newest sound checkpoint up to a version: its version, and its actions that add files, in `add`.

        -1 and none without one, or where checkpoints name no files. Raises OSError.
        """
        filesystem, root = self._store.files()
        read = partial(pq.read_table, columns=["add"], filesystem=filesystem, partitioning=None)
        parquet = (name for name in self._store.list() if name.endswith(".parquet"))
        problem: OSError | None = None
        for at, names in _checkpoints(parquet):
            if at > version:
                continue
            try:
                with naming_damage(f"{self.location}/{names[0]}", "a checkpoint of a table's log"):
                    adds = pa.concat_tables([_of_files(read(f"{root}/{name}")) for name in names])
                    return at, adds.filter(pc.is_valid(adds.column("add")))
            except OSError as error:  # corrupt: the one before it leads to the same files
                problem = problem or error
        if problem is not None and self._store.mark(entry_name(0)) is None:
            raise problem
        return -1, pa.table({"add": pa.array([], _ADD)})

    def checkpoint_damage(self) -> FileDamaged | None:
        """Return what is wrong with the newest checkpoint in Parquet; None of a sound one. Raises OSError."""
        filesystem, root = self._store.files()
        checkpoints = _checkpoints(name for name in self._store.list() if name.endswith(".parquet"))
        for name in checkpoints[0][1] if checkpoints else ():
            try:
                with naming_damage(f"{self.location}/{name}", "a checkpoint of a table's log"):
                    pq.read_table(f"{root}/{name}", filesystem=filesystem, partitioning=None)
            except FileDamaged as error:
                return error
        return None

    def create(self, actions: Sequence[Action]) -> bool:
        """Write the first entry. False when there is one. Raises NotExclusive, OSError as `append` does."""
        return self._store.put_if_absent(entry_name(0), entry_lines(actions))

    def append(self, after: State, actions: Sequence[Action]) -> bool:
        """Write the entry that follows `after`, complete or not at all. False when the table is not there any more.

        Raises NotExclusive, and OSError when the storage fails; whether the entry was written is then unknown.
        """
        # Checked last: below a checkpoint, a version that a clean-up freed takes an entry that no reader sees.
        return self._store.put_if_absent(
            entry_name(after.version + 1), entry_lines(actions), still=lambda: self.state().place == after.place
        )

    def checkpoint(self, state: State) -> None:
        """Write the state down, so that a reader need not follow the entries up to it. All entries stay.

        Of the checkpoints before it the newest stays, for a reader that is about to read it.
        """
        noted = self.checkpointed()
        moved = [{"txn": {"appId": name, "version": at}} for name, at in state.transactions.items()]
        actions: list[Action] = [{"protocol": state.protocol}, {"metaData": state.metadata}, *moved]
        self._store.put(f"{state.version:020}.checkpoint.json", entry_lines(actions))
        self._store.put(_NOTE, json.dumps({"version": state.version}).encode())
        for name in list(self._store.list()):
            # One in Parquet names files that no entry names any more: it came from a Delta log.
            if (found := _CHECKPOINT.match(name)) and int(found[1]) < noted and name.endswith(".json"):
                self._store.delete(name)

    def copy_to(self, store: Store, last: Sequence[Action]) -> None:
        """Put all checkpoints and entries into another store, the newest entry as `last`. Raises OSError.

        What is there already stays. No other entry may follow meanwhile.
        """
        newest = self.state().version
        names = list(self._store.list())
        older = [name for name in names if (found := _CHECKPOINT.match(name)) and int(found[1]) < newest]
        entries = [name for name in names if (found := _ENTRY.match(name)) and int(found[1]) < newest]

        def put(name: str) -> None:
            if (found := self._store.read(name)) is not None:
                store.put_if_absent(name, found.content)

        with ThreadPoolExecutor(_AT_ONCE) as threads:
            list(threads.map(put, [*older, *entries]))
        store.put_if_absent(entry_name(newest), entry_lines(last))

    def sweep(self, before: float) -> None:
        """Remove drafts of writers that died; `before`: when they were last touched, in seconds since 1970."""
        self._store.sweep("", before)

    def _from_checkpoint(self) -> State:
        """Read the newest checkpoint that is complete and sound; without one, begin before the first entry.

        Raises LogUnreadable when the entries from there on do not lead to the end of the log, FileNotFoundError when
        there is no log.
        """
        names = list(self._store.list())
        marks = (_CHECKPOINT.match(name) or _ENTRY.match(name) for name in names)
        newest = max((int(mark[1]) for mark in marks if mark), default=-1)
        if newest < 0:
            raise FileNotFoundError(f"there is no log of a table at {self.location}")
        state, problem = State(-1), ""
        for version, files in _checkpoints(names):
            try:
                state = self._at_checkpoint(version, files)
                break
            except OSError as error:  # corrupt, or removed meanwhile: an older one leads to the same end, or is refused
                problem = problem or f" ({error})"
        self._mark = self._store.mark(entry_name(state.version))
        if (reached := self._followed(state)).version < newest:
            raise LogUnreadable(
                f"{self.location} goes to version {newest}, but there is neither an entry "
                f"{reached.version + 1} nor a sound checkpoint after it{problem}"
            )
        if not (reached.metadata and reached.protocol):
            raise LogUnreadable(f"{self.location} names no metadata or no protocol up to version {reached.version}")
        return reached

    def _at_checkpoint(self, version: int, files: Sequence[str]) -> State:
        return State(version).then(version, [kept for name in files for kept in self._checkpointed(name)])

    def _followed(self, state: State) -> State:
        """Return the state after all entries that follow it, and remember the mark of the last one."""
        while (found := self._read(state.version + 1)) is not None:
            actions, self._mark = found
            state = state.then(state.version + 1, actions)
        return state

    def _read(self, version: int) -> tuple[list[Action], Mark] | None:
        return self._parsed(entry_name(version), "an entry")

    def _parsed(self, name: str, what: str) -> tuple[list[Action], Mark] | None:
        found = self._store.read(name)
        if found is None:
            return None
        path = f"{self.location}/{name}"
        try:
            actions = [json.loads(line) for line in found.content.split(b"\n") if line.strip()]
            _check_shapes(actions)
        except (ValueError, RecursionError) as error:
            raise LogUnreadable(f"{path} is not {what} of a table's log: {error}") from error
        return actions, found.mark

    def _checkpointed(self, name: str) -> Iterator[Action]:
        """Yield the actions of a checkpoint that say something of the table as a whole."""
        if name.endswith(".json"):
            read = self._parsed(name, "a checkpoint")
            if read is None:
                raise LogUnreadable(f"{self.location}/{name} is gone")
            yield from read[0]
            return
        filesystem, root = self._store.files()
        columns = ["txn", *_KEPT]
        with naming_damage(f"{self.location}/{name}", "a checkpoint of a table's log"):
            table = pq.read_table(f"{root}/{name}", columns=columns, filesystem=filesystem, partitioning=None)
            actions: list[Action] = []
            for column in columns:
                for kept in table.column(column).drop_null().to_pylist():  # few: none is a file
                    maps = {key: dict(value or []) for key, value in kept.items() if key == "configuration"}
                    actions.append({column: {**kept, **maps}})
            _check_shapes(actions)
        yield from actions


def _of_files(adds: pa.Table) -> pa.Table:
    """Keep of the statistics in `add` what a file's row says: other clients' bounds need not be Python values."""
    adds = adds.combine_chunks()
    add = adds.column("add").combine_chunks()
    if (at := add.type.get_field_index("stats_parsed")) < 0:
        return adds
    fields = {field.name: add.field(n) for n, field in enumerate(add.type)}
    fields["stats_parsed"] = _only(add.field(at), {"numRecords": None, "minValues": "_offset", "maxValues": "_offset"})
    return pa.table({"add": pa.StructArray.from_arrays([*fields.values()], names=[*fields], mask=pc.is_null(add))})


def _only(struct: pa.StructArray, wanted: Mapping[str, str | None]) -> pa.StructArray:
    """Keep the wanted fields of a struct, as far as it has them; of a field that is a struct, the one named."""
    kept = {}
    for name, inner in wanted.items():
        if (at := struct.type.get_field_index(name)) >= 0:
            kept[name] = struct.field(at) if inner is None else _only(struct.field(at), {inner: None})
    return pa.StructArray.from_arrays([*kept.values()], names=[*kept], mask=pc.is_null(struct))


def _checkpoints(names: Iterable[str]) -> list[tuple[int, list[str]]]:
    """Return version and files of the complete checkpoints among the names of a log, the newest first."""
    found: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := _CHECKPOINT.match(name):
            found.setdefault((int(match[1]), int(match[2] or 1)), []).append(name)
    newest_first = sorted(found.items(), reverse=True)  # of one version there may be two, one of them corrupt
    return [(version, files) for (version, parts), files in newest_first if len(files) >= parts]


def entry_name(version: int) -> str:
    """Return the name of an entry below the log's location."""
    return f"{version:020}.json"


def entry_lines(actions: Sequence[Action]) -> bytes:
    """Write the actions of an entry as it is stored."""
    lines = [json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n" for action in actions]
    return "".join(lines).encode()


def _check_shapes(actions: Sequence[Any]) -> None:
    """Raise _OtherShape with a phrase where an entry, or the lines of a checkpoint, have actions of another shape."""
    if not all(isinstance(action, dict) for action in actions):
        raise _OtherShape("a line of it is no action")
    infos = [action["commitInfo"] for action in actions if action.get("commitInfo") is not None]
    if any(isinstance(info, dict) and "headrace" in info for info in infos):
        return
    for action in actions:
        for kind in action.keys() & _FIELDS.keys():
            if action[kind] is not None:
                _check_action(kind, action[kind])


def _check_action(kind: str, action: Any) -> None:
    if not isinstance(action, dict):
        raise _OtherShape(f"its {kind} is no object")
    for name, types in _FIELDS[kind].items():
        if not _is_of(action.get(name), types):
            raise _OtherShape(f"its {kind} has no {name}, or one of another type")
    for name, types in _OPTIONAL.get(kind, {}).items():
        if action.get(name) is not None and not _is_of(action[name], types):
            raise _OtherShape(f"its {kind} has a {name} of another type")
    if kind == "metaData":
        _check_columns(action)
    if kind == "add" and action.get("stats"):
        _check_statistics(action["stats"])
    for name, value in (action.get("tags") or {}).items():
        if name.startswith(_TIME_TAGS):
            datetime.fromisoformat(value)


def _is_of(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def _check_columns(metadata: Mapping[str, Any]) -> None:
    try:
        Schema.from_json(metadata["schemaString"])
    except Exception as error:
        raise _OtherShape("its metaData has a schemaString that is no schema") from error
    if not all(isinstance(column, str) for column in metadata["partitionColumns"]):
        raise _OtherShape("its metaData has a partitionColumns of another type")


def _check_statistics(text: str) -> None:
    """Check what is read of a file's statistics: the number of rows, and that bounds are by column."""
    statistics = json.loads(text)
    if not isinstance(statistics, dict):
        raise _OtherShape("its add has statistics that are no object")
    rows = statistics.get("numRecords")
    if rows is not None and not _is_of(rows, _NUMBER):
        raise _OtherShape("its add has a numRecords of another type")
    for name in ("minValues", "maxValues"):
        bounds = statistics.get(name)
        if bounds is not None and not isinstance(bounds, dict):
            raise _OtherShape(f"its add has {name} of another type")
