"""Serialises and parses headrace's entries of a table's log."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
from deltalake import Schema

from headrace.writer.core.files import HELD_LATE, BucketFile, BucketKey, StagedFile, file_from_json, file_to_json
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.core.units import from_iso
from headrace.writer.storage.base import Store
from headrace.writer.table.log import file_lists
from headrace.writer.table.log.foreign_writes import READER, WRITER, Change, foreign_change
from headrace.writer.table.log.log import Action, State
from headrace.writer.table.log.snapshot import KINDS, TargetRecord

# What Entry calls a table's first entry, and the entries of other clients.
CREATED = "create"
ANY_CLIENT = "client"
# Operation parameter of an entry that seals buckets, which engines show in a table's history.
SEALED_END = "sealedEnd"
# Former names of limits of a batch, and of the keys that they come from → those of today.
_OFFSET_LIMITS = {
    "records_min": "offsets_min",
    "records_min_from": "offsets_min_from",
    "records_max": "offsets_max",
    "records_max_from": "offsets_max_from",
    "records_per_task": "offsets_per_task",
    "records_per_range": "offsets_per_range",
}
_OFFSET_KEYS = {"commit.min_records": "commit.min_offsets", "commit.max_records": "commit.max_offsets"}
# Tags of a file.
_EVENT_TIME_MIN = "headrace.event_time_min"
_EVENT_TIME_MAX = "headrace.event_time_max"


@dataclass(frozen=True)
class SideEntry:
    """What an entry of a pipeline's log means for one table beside it, such as that of a route's target."""

    # The version of the pipeline's log.
    version: int
    files: Sequence[StagedFile] = ()
    # Offsets whose rows go.
    withdrawn: OffsetSet = field(default_factory=OffsetSet)
    # Why they go, if their number is a term of the account; empty: it is none.
    why: str = ""
    # JSON values: late rows by bucket, the instant up to which buckets are closed.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The table is one of a route, or that of its late rows.
    of_target: bool = False
    # The id of the table as the log knows it; empty: any.
    table_id: str = ""
    # The folder of the pipeline's log where its files wait; empty: they are at the table.
    held_folder: str = ""
    # When it was assembled, or else logged, as ISO 8601.
    assembled_at: str = ""

    @property
    def closed_until(self) -> datetime | None:
        """The instant up to which buckets of the table are closed after it, if a close or a rewind moves that."""
        return from_iso(self.facts.get("until") or self.facts.get("closed_until"))

    @property
    def moves_closes(self) -> bool:
        """Whether it moves the instant up to which buckets are closed."""
        return "until" in self.facts or "reopened" in self.facts


@dataclass(frozen=True)
class CommittedEntry:
    """An entry that headrace appended by an id, such as a batch or a gap, as read from the table's log."""

    version: int
    id: str
    facts: Mapping[str, Any]
    side_files: Mapping[str, Sequence[StagedFile]]
    # Dead letters that became rows, by the location of their table.
    withdrawn: Mapping[str, OffsetSet] = field(default_factory=dict)
    # When it was appended to the log, as ISO 8601.
    logged_at: str = ""

    def locations(self, targets: Mapping[int, TargetRecord]) -> set[str]:
        """Return the locations of the tables beside the pipeline's that it concerns."""
        locations = {*self.side_files, *self.withdrawn}
        if self.facts.get("target") in targets:
            locations.add(targets[self.facts["target"]].location)
        if self.facts.get("kind") == "rewind":
            rewinds = self.facts.get("targets", {}).values()
            locations |= {targets[rewind["number"]].location for rewind in rewinds}
        return locations

    def side_entry(self, location: str, target: TargetRecord | None, table_id: str = "") -> SideEntry:
        """Return what it means for the table at a location.

        `target`: the record of a route's table; `table_id`: the id of another one, as far as the log has it.
        """
        is_rewind = self.facts.get("kind") == "rewind"
        files = self.side_files.get(location, ())
        entry = SideEntry(
            self.version,
            files,
            self.withdrawn.get(location, OffsetSet()),
            why="rewind" if is_rewind else "",
            facts=self._side_facts(location, target),
            table_id=table_id,
        )
        if target is None:
            return entry
        is_late = location != target.location
        held_folder = self._target_facts(target).get("held", "") if files else ""
        if held_folder and is_late:
            held_folder = f"{held_folder}{HELD_LATE}"
        return replace(
            entry,
            of_target=True,
            table_id=target.late_id if is_late else target.id,
            held_folder=held_folder,
            assembled_at=self.facts.get("assembled") or self.facts.get("at") or self.logged_at,
        )

    def _side_facts(self, location: str, target: TargetRecord | None) -> Mapping[str, Any]:
        """Return the facts that the table at a location gets."""
        if self.facts.get("kind") == "close":
            return {key: self.facts[key] for key in ("until", "reason")}
        if target is None or location != target.location:
            return {}
        target_facts = self._target_facts(target)
        keys = ("late", "time_unit", "reopened", "closed_until")
        facts = {key: target_facts[key] for key in keys if key in target_facts}
        if "reopened" in facts:
            facts["gaps"] = self.facts["gaps"]
        return facts

    def _target_facts(self, target: TargetRecord) -> Mapping[str, Any]:
        """Return what it says of a table of a route, under whatever name that had then."""
        for target_facts in self.facts.get("targets", {}).values():
            if target_facts.get("number") == target.number:
                facts: Mapping[str, Any] = target_facts
                return facts
        return {}


@dataclass(frozen=True)
class Entry:
    """An entry of a table's log. `kind`: one of KINDS, CREATED or ANY_CLIENT."""

    version: int
    logged_at: datetime
    kind: str
    facts: Mapping[str, Any]


def creation_actions(name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> list[Action]:
    """Return the actions of a table's first entry."""
    now = _now_ms()
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}, "engineInfo": "headrace"}
    metadata = {
        "id": str(uuid4()),
        "name": name,
        "description": layout,
        "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(columns).to_json(),
        "partitionColumns": list(bucket_columns),
        "configuration": {},
        "createdTime": now,
    }
    protocol = {"minReaderVersion": READER, "minWriterVersion": WRITER}
    return [{"commitInfo": info}, {"protocol": protocol}, {"metaData": metadata}]


def write_actions(
    state: State,
    files: Iterable[StagedFile],
    values: Mapping[str, int],
    facts: Mapping[str, Any],
    properties: Mapping[str, str] | None = None,
    removals: Sequence[Action] = (),
    *,
    moves_only: bool = False,
) -> list[Action]:
    """Return the actions of an entry: the files it adds, the `txn` values and properties it sets, its facts.

    `removals`: its actions that remove files; `moves_only`: the rows that it adds are those that it removes.
    """
    columns = state.metadata["partitionColumns"]
    now = _now_ms()
    info = {
        "timestamp": now,
        "operation": "OPTIMIZE" if moves_only else "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps(columns), **_seal_parameters(facts)},
        "isBlindAppend": not removals,
        "engineInfo": "headrace",
        "headrace": json.dumps(facts),
    }
    actions: list[Action] = [{"commitInfo": info}]
    if properties:
        actions.append(_metadata_action(state.metadata, configuration={**state.configuration, **properties}))
    actions += transaction_actions(values)
    actions += removals
    actions += [_add_action(columns, file, now, data_change=not moves_only) for file in files]
    return actions


def _seal_parameters(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return what an entry that seals buckets tells engines, which do not see its facts: where the last bucket ends."""
    ends = [from_iso(manifest.get("end")) for manifest in facts.get("manifests", ())]
    newest_end = max((end for end in ends if end is not None), default=None)
    if newest_end is None:
        return {}
    return {SEALED_END: newest_end.isoformat()}


def answered_changes(facts: Mapping[str, Any]) -> list[Change]:
    """Return the changes of other clients that an entry with these facts accepts or undoes."""
    return [Change(answer["version"], answer["operation"]) for answer in facts.get("answers", ())]


def unanswered_changes(entries: Iterable[tuple[int, Sequence[Action]]]) -> list[Change]:
    """Return what other clients did that moves rows and not offsets, and that no entry answers, oldest first."""
    changes: dict[int, Change] = {}
    for version, actions in entries:
        info, facts = parse_commit_info(actions)
        if facts.get("kind") == "take":
            # The rows that the table had then are the former writer's, and are counted as adopted.
            changes.clear()
        for answer in answered_changes(facts):
            changes.pop(answer.version, None)
        change = None if facts else foreign_change(info, version)
        if change is not None:
            changes[version] = change
    return list(changes.values())


def withdrawn_to_json(withdrawn: Mapping[str, OffsetSet]) -> dict[str, list[list[Any]]]:
    """Return offsets by the location of their table, as an entry has them."""
    return {location: offsets.to_json() for location, offsets in withdrawn.items()}


def _withdrawn_from_json(facts: Mapping[str, Any]) -> dict[str, OffsetSet]:
    return {location: OffsetSet.from_json(parts) for location, parts in facts.get("withdrawn", {}).items()}


def remove_action(file: BucketFile, columns: Sequence[str], now: datetime, *, moves_only: bool = False) -> Action:
    """Return the action that removes a file; `columns`: the table's bucket columns."""
    remove = {
        "path": _quote_path(file.path),
        "deletionTimestamp": int(now.timestamp() * 1000),
        "dataChange": not moves_only,
        "extendedFileMetadata": True,
        "size": file.bytes,
        "partitionValues": dict(zip(columns, file.bucket, strict=True)),
    }
    return {"remove": remove}


def added_file(columns: Sequence[str], add: Mapping[str, Any]) -> BucketFile:
    """Return the file that an action adds; `columns`: the table's bucket columns."""
    tags = dict(add.get("tags") or {})
    statistics = json.loads(add.get("stats") or "null") or add.get("stats_parsed") or {}
    return BucketFile(
        unquote(add["path"]),
        bucket_of(columns, add),
        statistics.get("numRecords"),
        add["size"],
        from_iso(tags.get(_EVENT_TIME_MIN)),
        from_iso(tags.get(_EVENT_TIME_MAX)),
        _bound_of_offsets(statistics, "minValues"),
        _bound_of_offsets(statistics, "maxValues"),
    )


def _bound_of_offsets(statistics: Mapping[str, Any], name: str) -> int | None:
    """Return a bound of the offsets of a file; None: unknown."""
    bound = (statistics.get(name) or {}).get("_offset")
    # A column of another client's table may have this name and another type.
    return bound if isinstance(bound, int) else None


def changed_buckets(columns: Sequence[str], actions: Sequence[Action]) -> set[BucketKey]:
    """Return the buckets that an entry changes the files of, or seals; `columns`: the table's bucket columns."""
    buckets = {bucket_of(columns, change) for change in file_changes(actions)}
    _, facts = parse_commit_info(actions)
    return buckets | {tuple(manifest["bucket"]) for manifest in facts.get("manifests", ())}


def file_changes(actions: Sequence[Action]) -> list[Action]:
    """Return an entry's facts about each file that it adds or removes."""
    changes: list[Action] = []
    for action in actions:
        changes += [action[kind] for kind in ("add", "remove") if action.get(kind)]
    return changes


def bucket_of(columns: Sequence[str], change: Action) -> BucketKey:
    """Return the bucket of a file that an entry adds or removes; `columns`: the table's bucket columns."""
    values = dict(change.get("partitionValues") or {})
    return tuple(values.get(column) for column in columns)


def parse_entry(version: int, actions: Sequence[Action]) -> Entry:
    """Return an entry with headrace's facts; for another client's, its operation and the client's name."""
    info, facts = parse_commit_info(actions)
    kind = facts.get("kind")
    if kind is None:
        kind = CREATED if info.get("operation") == "CREATE TABLE" else ANY_CLIENT
        facts = {"operation": info.get("operation", "unknown"), "client": info.get("engineInfo", "unknown")}
    return Entry(version, _log_time(info), kind, facts)


def _log_time(info: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC)


def parse_committed_entry(
    version: int, facts: Mapping[str, Any], store: Store, info: Mapping[str, Any] = MappingProxyType({})
) -> CommittedEntry | None:
    """Return the batch, or another operation that was appended by an id, from an entry's facts; None: neither.

    `store`: of the table, where long lists of files lie; `info`: the entry's commitInfo, which says when it was logged.
    Raises CommitFailed where such a list is damaged.
    """
    if facts.get("kind") not in KINDS or "id" not in facts:
        return None
    file_documents = file_lists.read_side_files(store, facts)
    side_files = {
        location: [file_from_json(document) for document in documents] for location, documents in file_documents.items()
    }
    logged_at = _log_time(info).isoformat() if info else ""
    return CommittedEntry(version, facts["id"], facts, side_files, _withdrawn_from_json(facts), logged_at)


def side_files_to_json(side_files: Mapping[str, Sequence[StagedFile]]) -> dict[str, list[Any]]:
    """Return files by the location of their table, as an entry has them."""
    return {location: [file_to_json(file) for file in files] for location, files in side_files.items()}


def metadata_actions(
    operation: str, facts: Mapping[str, Any], metadata: Action, values: Mapping[str, int], **changes: Any
) -> list[Action]:
    """Return the actions of an entry that changes the table's metadata and sets `txn` values. It adds no file.

    `operation`: as Delta names it; `metadata`: as the table has it; `changes`: its fields that get other values.
    """
    info = {
        "timestamp": _now_ms(),
        "operation": operation,
        "operationParameters": {},
        "isBlindAppend": False,
        "engineInfo": "headrace",
        "headrace": json.dumps(facts, ensure_ascii=False),
    }
    return [{"commitInfo": info}, _metadata_action(metadata, **changes), *transaction_actions(values)]


def transaction_actions(values: Mapping[str, int]) -> list[Action]:
    """Return the actions that set `txn` values."""
    now = _now_ms()
    return [{"txn": {"appId": name, "version": value, "lastUpdated": now}} for name, value in values.items()]


def _metadata_action(metadata: Action, **changes: Any) -> Action:
    """Return the action that changes the table's metadata. A checkpoint has nulls in it, and pairs for maps."""
    fields = {key: value for key, value in metadata.items() if value is not None}
    file_format = {**metadata["format"], "options": dict(metadata["format"].get("options") or {})}
    return {"metaData": {**fields, "format": file_format, **changes}}


def parse_commit_info(actions: Sequence[Action]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return an entry's commitInfo, and headrace's facts in it; empty if there are none."""
    info: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    facts: dict[str, Any] = json.loads(info.get("headrace", "{}"))
    if "limits" in facts:
        facts["limits"] = _rename_limits(facts["limits"])
    return info, facts


def _rename_limits(limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a batch by their names of today: the first entries of format 1 call offsets records.

    {"records_max": 500, "records_min_from": "commit.min_records"}
    → {"offsets_max": 500, "offsets_min_from": "commit.min_offsets"}
    """
    renamed = {_OFFSET_LIMITS.get(name, name): value for name, value in limits.items()}
    source = renamed.get("offsets_min_from")
    if source in _OFFSET_KEYS:
        renamed["offsets_min_from"] = _OFFSET_KEYS[source]
    return renamed


def _add_action(columns: Sequence[str], file: StagedFile, now: int, *, data_change: bool) -> Action:
    """Return the action that adds a file; `now`: milliseconds since 1970."""
    add = {
        "path": _quote_path(file.path),
        "size": file.bytes,
        "stats": file.statistics,
        "dataChange": data_change,
        "partitionValues": dict(zip(columns, file.bucket, strict=True)),
        "modificationTime": now,
        "tags": {
            _EVENT_TIME_MIN: file.event_time_min.isoformat(),
            _EVENT_TIME_MAX: file.event_time_max.isoformat(),
        },
    }
    return {"add": add}


def _quote_path(path: str) -> str:
    return quote(path, safe="/=-_.~")


def _now_ms() -> int:
    return int(time.time() * 1000)
