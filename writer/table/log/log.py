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
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import Schema

from headrace.writer.storage.base import Mark, Store
from headrace.writer.storage.damage import FileDamaged, naming_damage

# One line of an entry: its kind → its fields.
Action = Mapping[str, Any]
_CHECKPOINT = re.compile(r"^(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.(?:parquet|json)$")
_ENTRY = re.compile(r"^(\d{20})\.json$")
# The name of the object that names the newest checkpoint.
_LAST_CHECKPOINT = "_last_checkpoint"
# Kinds of actions of which a state has the newest one.
_TABLE_KINDS = ("metaData", "protocol")
# Requests to a store, each of which takes a round trip.
_REQUESTS_AT_ONCE = 16
_ADD = pa.struct(
    {
        "path": pa.string(),
        "partitionValues": pa.map_(pa.string(), pa.string()),
        "size": pa.int64(),
        "stats": pa.string(),
    }
)

_TEXT = (str,)
_NUMBER = (int,)
_OBJECT = (dict,)
_LIST = (list,)
_OBJECT_OR_NULL = (dict, type(None))
# Kind of action → its fields that are read, and the types of their values in JSON:
# https://github.com/delta-io/delta/blob/master/PROTOCOL.md#actions.
_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "protocol": {"minReaderVersion": _NUMBER, "minWriterVersion": _NUMBER},
    "metaData": {"id": _TEXT, "schemaString": _TEXT, "partitionColumns": _LIST},
    "txn": {"appId": _TEXT, "version": _NUMBER},
    "add": {"path": _TEXT, "size": _NUMBER, "partitionValues": _OBJECT_OR_NULL},
    "remove": {"path": _TEXT},
    "commitInfo": {},
}
_OPTIONAL_FIELDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "metaData": {"configuration": _OBJECT},
    "add": {"stats": _TEXT, "tags": _OBJECT},
    "remove": {"partitionValues": _OBJECT},
    "commitInfo": {"timestamp": _NUMBER, "operation": _TEXT, "operationParameters": _OBJECT},
}
# Begin of the tags of files that hold event times, which engines may copy.
_EVENT_TIME_TAGS = "headrace.event_time_"


class LogUnreadable(OSError):
    """An entry of the log, or its checkpoint, does not follow the protocol."""


class _OtherShape(ValueError):
    """An action is not as the protocol has it; the text is a phrase."""


class TableVersion(NamedTuple):
    """The id of a table, and one of its versions: what tells a state from all others."""

    table_id: str
    version: int


@dataclass(frozen=True)
class State:
    """A table at one version, its files left aside."""

    version: int
    metadata: Action = field(default_factory=dict)
    protocol: Action = field(default_factory=dict)
    transactions: Mapping[str, int] = field(default_factory=dict)

    @property
    def table_version(self) -> TableVersion:
        """Which table at which version; a checkpoint says everything else in other words than the entries do."""
        return TableVersion(self.metadata["id"], self.version)

    @property
    def configuration(self) -> Mapping[str, str]:
        """Properties of the table."""
        return self.metadata.get("configuration") or {}

    def columns(self) -> pa.Schema:
        """Columns with their Arrow types."""
        return pa.schema(pa.schema(Schema.from_json(self.metadata["schemaString"]).to_arrow()))

    def apply(self, version: int, actions: Sequence[Action]) -> "State":
        """Return the state after one more entry."""
        table_actions: dict[str, Action] = {}
        transactions: dict[str, int] = {}
        for action in actions:
            for kind in _TABLE_KINDS:
                if action.get(kind):
                    table_actions[kind] = action[kind]
            if transaction := action.get("txn"):
                transactions[transaction["appId"]] = transaction["version"]
        return State(
            version,
            table_actions.get("metaData", self.metadata),
            table_actions.get("protocol", self.protocol),
            {**self.transactions, **transactions} if transactions else self.transactions,
        )


class Log:
    """The log in a folder of its own. Not for several threads."""

    def __init__(self, store: Store) -> None:
        """Take the store of the folder in which the entries lie."""
        self._store = store
        self.location = store.location
        self._state: State | None = None
        # Of the entry at the state's version, as it was read.
        self._mark: Mark | None = None
        # The names of checkpoints in JSON that lie there; None: this process has not looked yet.
        self._json_checkpoints: set[str] | None = None

    def exists(self) -> bool:
        """Return whether there is an entry or a checkpoint."""
        state = self._state
        # A look at one entry costs a store less than a listing.
        if state is not None and self._mark is not None and self._store.mark(entry_name(state.version)) == self._mark:
            return True
        return any(_ENTRY.match(name) or _CHECKPOINT.match(name) for name in self._store.list())

    def metadata_file(self) -> str:
        """Return the location of an Iceberg table's newest metadata file; empty for other formats."""
        return ""

    def state(self) -> State:
        """Return the newest state. Raises FileNotFoundError when there is no table, LogUnreadable."""
        state = self._state
        if state is None or self._store.mark(entry_name(state.version)) != self._mark:
            # Also when another table was put in this one's place.
            self._state = None
            state = self._read_newest_checkpoint()
        state = self._follow_entries(state)
        if state.version < self.checkpoint_version():
            # The entries after the known state were cleaned up while they were followed.
            state = self._follow_entries(self._read_newest_checkpoint())
        self._state = state
        return state

    def state_at(self, version: int) -> State:
        """Return the state at an earlier version. Raises LogUnreadable when the log does not reach back to it."""
        checkpoints = [checkpoint for checkpoint in _list_checkpoints(self._store.list()) if checkpoint[0] <= version]
        before_first_entry = (-1, list[str]())
        for checkpoint_version, names in [*checkpoints, before_first_entry]:
            # If one is corrupt, the one before it leads to the same state.
            with suppress(OSError):
                state = self._read_checkpoint(checkpoint_version, names)
                while state.version < version and (actions := self.entry(state.version + 1)) is not None:
                    state = state.apply(state.version + 1, actions)
                if state.version == version and state.metadata and state.protocol:
                    return state
        raise LogUnreadable(f"{self.location} does not reach back to version {version} any more")

    def checkpoint_version(self) -> int:
        """Return the version of the newest checkpoint, as its writer noted it; -1: nothing, or nonsense, is noted."""
        note = self._store.read(_LAST_CHECKPOINT)
        try:
            return -1 if note is None else int(json.loads(note.content)["version"])
        except (ValueError, KeyError, TypeError):
            return -1

    def entry(self, version: int) -> list[Action] | None:
        """Return the actions of one entry, or None where there is none (yet, or no longer). Raises LogUnreadable."""
        entry = self._read_entry(version)
        return None if entry is None else entry[0]

    def entries_after(self, version: int) -> Iterator[tuple[int, list[Action]]]:
        """Yield the entries after `version` up to the newest, oldest first; those that were cleaned up are left out."""
        newest = self.state().version
        for number in range(max(version, -1) + 1, newest + 1):
            actions = self.entry(number)
            if actions is not None:
                yield number, actions

    def checkpoint_adds(self, version: int) -> tuple[int, pa.Table]:
        """Return the newest sound checkpoint up to a version: its version, and its actions that add files, in `add`.

        -1 and none without one, or where checkpoints name no files. Raises OSError.
        """
        problem: OSError | None = None
        for checkpoint_version, names in self._list_parquet_checkpoints():
            if checkpoint_version > version:
                continue
            try:
                with naming_damage(f"{self.location}/{names[0]}", "a checkpoint of a table's log"):
                    tables = self._read_parquet(names, ["add"])
                    adds = pa.concat_tables([_drop_foreign_bounds(table) for table in tables])
                    return checkpoint_version, adds.filter(pc.is_valid(adds.column("add")))
            except OSError as error:
                # If one is corrupt, the one before it leads to the same files.
                problem = problem or error
        if problem is not None and self._store.mark(entry_name(0)) is None:
            raise problem
        return -1, pa.table({"add": pa.array([], _ADD)})

    def checkpoint_damage(self) -> FileDamaged | None:
        """Return what is wrong with the newest checkpoint in Parquet; None of a sound one. Raises OSError."""
        checkpoints = self._list_parquet_checkpoints()
        names = checkpoints[0][1] if checkpoints else []
        for name in names:
            try:
                with naming_damage(f"{self.location}/{name}", "a checkpoint of a table's log"):
                    self._read_parquet([name])
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

        def is_newest() -> bool:
            return self.state().table_version == after.table_version

        # Checked last: below a checkpoint, a version that a clean-up freed takes an entry that no reader sees.
        return self._store.put_if_absent(entry_name(after.version + 1), entry_lines(actions), is_wanted=is_newest)

    def checkpoint(self, state: State) -> None:
        """Write the state down, so that a reader need not follow the entries up to it. All entries stay.

        Of the checkpoints before it the newest stays, for a reader that is about to read it.
        """
        last_checkpoint = self.checkpoint_version()
        if self._json_checkpoints is None:
            # All entries stay, and to list them takes a request for each thousand: once in the life of a process.
            # A checkpoint in Parquet names files that no entry names any more: it came from a Delta log.
            names = (name for name in self._store.list() if name.endswith(".json"))
            self._json_checkpoints = set(filter(_CHECKPOINT.match, names))
        actions: list[Action] = [{"protocol": state.protocol}, {"metaData": state.metadata}]
        actions += [{"txn": {"appId": name, "version": value}} for name, value in state.transactions.items()]
        name = f"{state.version:020}.checkpoint.json"
        self._store.put(name, entry_lines(actions))
        self._json_checkpoints.add(name)
        self._store.put(_LAST_CHECKPOINT, json.dumps({"version": state.version}).encode())
        for older in _older_names(_CHECKPOINT, self._json_checkpoints, last_checkpoint):
            self._store.delete(older)
            self._json_checkpoints.remove(older)

    def copy_to(self, store: Store, last: Sequence[Action]) -> None:
        """Put all checkpoints and entries into another store, the newest entry as `last`. Raises OSError.

        What is there already stays. No other entry may follow meanwhile.
        """
        newest = self.state().version
        names = list(self._store.list())

        def copy(name: str) -> None:
            if (stored_object := self._store.read(name)) is not None:
                store.put_if_absent(name, stored_object.content)

        with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as threads:
            list(threads.map(copy, [*_older_names(_CHECKPOINT, names, newest), *_older_names(_ENTRY, names, newest)]))
        store.put_if_absent(entry_name(newest), entry_lines(last))

    def sweep(self, before: float) -> None:
        """Remove drafts of writers that died; `before`: when they were last touched, in seconds since 1970."""
        self._store.sweep("", before)

    def _read_newest_checkpoint(self) -> State:
        """Read the newest checkpoint that is complete and sound; without one, begin before the first entry.

        Raises LogUnreadable when the entries from there on do not lead to the end of the log, FileNotFoundError when
        there is no log.
        """
        names = list(self._store.list())
        matches = (_CHECKPOINT.match(name) or _ENTRY.match(name) for name in names)
        newest = max((int(match[1]) for match in matches if match), default=-1)
        if newest < 0:
            raise FileNotFoundError(f"there is no log of a table at {self.location}")
        state = State(-1)
        problem = ""
        for version, checkpoint_names in _list_checkpoints(names):
            try:
                state = self._read_checkpoint(version, checkpoint_names)
                break
            except OSError as error:
                # If it is corrupt, or was removed meanwhile, an older one leads to the same state, or is refused.
                problem = problem or f" ({error})"
        self._mark = None
        if state.version >= 0:
            self._mark = self._store.mark(entry_name(state.version))
        newest_state = self._follow_entries(state)
        if newest_state.version < newest:
            raise LogUnreadable(
                f"{self.location} goes to version {newest}, but there is neither an entry "
                f"{newest_state.version + 1} nor a sound checkpoint after it{problem}"
            )
        if not (newest_state.metadata and newest_state.protocol):
            raise LogUnreadable(
                f"{self.location} names no metadata or no protocol up to version {newest_state.version}"
            )
        return newest_state

    def _read_checkpoint(self, version: int, names: Sequence[str]) -> State:
        """Return the state that a checkpoint of these files has. Raises LogUnreadable, OSError."""
        actions: list[Action] = []
        for name in names:
            actions += self._read_table_actions(name)
        return State(version).apply(version, actions)

    def _follow_entries(self, state: State) -> State:
        """Return the state after all entries that follow it, and remember the mark of the last one."""
        while (entry := self._read_entry(state.version + 1)) is not None:
            actions, self._mark = entry
            state = state.apply(state.version + 1, actions)
        return state

    def _read_entry(self, version: int) -> tuple[list[Action], Mark] | None:
        return self._read_actions(entry_name(version), "an entry")

    def _read_actions(self, name: str, kind: str) -> tuple[list[Action], Mark] | None:
        """Read an object of lines; `kind`: entry or checkpoint, with its article. Raises LogUnreadable."""
        stored_object = self._store.read(name)
        if stored_object is None:
            return None
        try:
            actions = [json.loads(line) for line in stored_object.content.split(b"\n") if line.strip()]
            _check_shapes(actions)
        except (ValueError, RecursionError) as error:
            raise LogUnreadable(f"{self.location}/{name} is not {kind} of a table's log: {error}") from error
        return actions, stored_object.mark

    def _read_table_actions(self, name: str) -> list[Action]:
        """Return the actions of a checkpoint that say something of the table as a whole. Raises LogUnreadable."""
        if name.endswith(".json"):
            checkpoint = self._read_actions(name, "a checkpoint")
            if checkpoint is None:
                raise LogUnreadable(f"{self.location}/{name} is gone")
            return checkpoint[0]
        with naming_damage(f"{self.location}/{name}", "a checkpoint of a table's log"):
            kinds = ["txn", *_TABLE_KINDS]
            (table,) = self._read_parquet([name], kinds)
            actions: list[Action] = []
            for kind in kinds:
                # These are few: none is of a file.
                for action in table.column(kind).drop_null().to_pylist():
                    if "configuration" in action:
                        action["configuration"] = dict(action["configuration"] or [])
                    actions.append({kind: action})
            _check_shapes(actions)
        return actions

    def _read_parquet(self, names: Sequence[str], columns: list[str] | None = None) -> list[pa.Table]:
        """Read columns of the files of a checkpoint; None: all."""
        filesystem, root = self._store.files()
        return [
            pq.read_table(f"{root}/{name}", columns=columns, filesystem=filesystem, partitioning=None) for name in names
        ]

    def _list_parquet_checkpoints(self) -> list[tuple[int, list[str]]]:
        """Return version and files of the complete checkpoints that name files, the newest first."""
        return _list_checkpoints(name for name in self._store.list() if name.endswith(".parquet"))


def _drop_foreign_bounds(adds: pa.Table) -> pa.Table:
    """Keep of the statistics in `add` what a file's row says: other clients' bounds need not be Python values."""
    adds = adds.combine_chunks()
    add = adds.column("add").combine_chunks()
    statistics_index = add.type.get_field_index("stats_parsed")
    if statistics_index < 0:
        return adds
    fields = {field.name: add.field(index) for index, field in enumerate(add.type)}
    statistics = add.field(statistics_index)
    fields["stats_parsed"] = _select_fields(
        statistics, {"numRecords": None, "minValues": "_offset", "maxValues": "_offset"}
    )
    add = pa.StructArray.from_arrays(list(fields.values()), names=list(fields), mask=pc.is_null(add))
    return pa.table({"add": add})


def _select_fields(struct: pa.StructArray, names: Mapping[str, str | None]) -> pa.StructArray:
    """Keep the named fields of a struct, as far as it has them; of a field that is a struct, the one given with it."""
    arrays = {}
    for name, inner_name in names.items():
        index = struct.type.get_field_index(name)
        if index < 0:
            continue
        array = struct.field(index)
        arrays[name] = array if inner_name is None else _select_fields(array, {inner_name: None})
    return pa.StructArray.from_arrays(list(arrays.values()), names=list(arrays), mask=pc.is_null(struct))


def _list_checkpoints(names: Iterable[str]) -> list[tuple[int, list[str]]]:
    """Return version and files of the complete checkpoints among the names of a log, the newest first."""
    # Of one version there may be two, one of them corrupt: they differ in the number of their files.
    checkpoints: dict[tuple[int, int], list[str]] = {}
    for name in names:
        if match := _CHECKPOINT.match(name):
            version = int(match[1])
            file_count = int(match[2] or 1)
            checkpoints.setdefault((version, file_count), []).append(name)
    newest_first = sorted(checkpoints.items(), reverse=True)
    return [(version, files) for (version, file_count), files in newest_first if len(files) >= file_count]


def _older_names(pattern: re.Pattern[str], names: Iterable[str], version: int) -> list[str]:
    """Return the names of a log that match a pattern, and are of a version before this one."""
    return [name for name in names if (match := pattern.match(name)) and int(match[1]) < version]


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
        if not _has_type(action.get(name), types):
            raise _OtherShape(f"its {kind} has no {name}, or one of another type")
    for name, types in _OPTIONAL_FIELDS.get(kind, {}).items():
        if action.get(name) is not None and not _has_type(action[name], types):
            raise _OtherShape(f"its {kind} has a {name} of another type")
    if kind == "metaData":
        _check_columns(action)
    if kind == "add" and action.get("stats"):
        _check_statistics(action["stats"])
    for name, value in (action.get("tags") or {}).items():
        if name.startswith(_EVENT_TIME_TAGS):
            datetime.fromisoformat(value)


def _has_type(value: Any, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and not isinstance(value, bool)


def _check_columns(metadata: Mapping[str, Any]) -> None:
    try:
        Schema.from_json(metadata["schemaString"])
    except Exception as error:
        raise _OtherShape("its metaData has a schemaString that is no schema") from error
    if not all(isinstance(column, str) for column in metadata["partitionColumns"]):
        raise _OtherShape("its metaData has a partitionColumns of another type")


def _check_statistics(text: str) -> None:
    """Raise _OtherShape where the number of rows is no number, or bounds are not by column."""
    statistics = json.loads(text)
    if not isinstance(statistics, dict):
        raise _OtherShape("its add has statistics that are no object")
    rows = statistics.get("numRecords")
    if rows is not None and not _has_type(rows, _NUMBER):
        raise _OtherShape("its add has a numRecords of another type")
    for name in ("minValues", "maxValues"):
        bounds = statistics.get(name)
        if bounds is not None and not isinstance(bounds, dict):
            raise _OtherShape(f"its add has {name} of another type")
