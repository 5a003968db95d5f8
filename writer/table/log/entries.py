"""Serialises and parses headrace's entries of a table's log."""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
from deltalake import Schema

from writer.batch.staging.parquet_files import HELD_LATE
from writer.batch.task_report import file_from_json, file_to_json
from writer.core.files import BucketFile, BucketKey, StagedFile
from writer.core.offsets import Span, TopicPartition
from writer.core.units import from_iso, to_iso
from writer.storage.base import Store
from writer.table.log import file_lists
from writer.table.log.foreign_writes import READER, WRITER, Change, change
from writer.table.log.log import Action, State
from writer.table.log.operations import (
    Acceptance,
    Batch,
    Closing,
    Fill,
    Gap,
    Loss,
    Replay,
    Reprocess,
    Rewind,
    Rewrite,
    Sealing,
    TargetRewind,
)
from writer.table.log.snapshot import TargetRecord

_LANDED = (
    "batch", "gap", "replay", "rewrite", "close", "seal", "fill", "lost", "rewind", "schema", "accept", "reprocess",
)  # fmt: skip
Operation = Batch | Replay | Rewrite | Reprocess | Rewind | Gap | Fill | Loss | Closing | Sealing | Acceptance
_EVENT_TIMES = ("headrace.event_time_min", "headrace.event_time_max")  # tags of a file


@dataclass(frozen=True)
class SideEntry:
    """What an entry of a pipeline's log means for one table beside it, such as that of a route's target."""

    version: int  # of the pipeline's log
    files: Sequence[StagedFile] = ()
    withdrawn: Mapping[TopicPartition, Sequence[Span]] = field(default_factory=dict)  # offsets whose rows go
    why: str = ""  # they go, where their number is a term of the account; empty: it is none
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON: late rows by bucket, how far buckets are closed
    of_target: bool = False  # it is a table of a route, or that of its late rows
    table_id: str = ""  # of the table as the log knows it; empty: any
    held: str = ""  # folder of the pipeline's log where its files wait; empty: they are at the table
    at: str = ""  # when it was put together, or else logged, as ISO 8601

    @property
    def closed_until(self) -> datetime | None:
        """How far buckets of the table are closed after it, where it moves that: by a close, or back by a rewind."""
        return from_iso(self.facts.get("until") or self.facts.get("closed_until"))

    @property
    def moves_closes(self) -> bool:
        """Whether it moves how far buckets are closed."""
        return "until" in self.facts or "reopened" in self.facts


@dataclass(frozen=True)
class CommittedEntry:
    """An entry that headrace appended by an id, such as a batch or a gap, as read from the table's log."""

    version: int
    id: str
    facts: Mapping[str, Any]
    side_files: Mapping[str, Sequence[StagedFile]]
    withdrawn: Mapping[str, Mapping[TopicPartition, Sequence[Span]]] = field(
        default_factory=dict
    )  # dead letters that became rows
    logged: str = ""  # when it was put into the log, as ISO 8601

    def locations(self, targets: Mapping[int, TargetRecord]) -> set[str]:
        """Return the tables beside the pipeline's that it concerns."""
        closed = [targets[self.facts["target"]].location] if self.facts.get("target") in targets else []
        back = self.facts.get("targets", {}).values() if self.facts.get("kind") == "rewind" else ()
        rewound = [targets[one["number"]].location for one in back]
        return {*self.side_files, *self.withdrawn, *closed, *rewound}

    def side(self, location: str, target: TargetRecord | None) -> SideEntry:
        """Return what it means for a table; `target`: of a route, the record of it."""
        facts: dict[str, Any] = {}
        if self.facts.get("kind") == "close":
            facts = {key: self.facts[key] for key in ("until", "reason")}
        elif target is not None and location == target.location:
            about = self._about(target)
            facts = {key: about[key] for key in ("late", "time_unit", "reopened", "closed_until") if key in about}
            facts |= {"gaps": self.facts["gaps"]} if "reopened" in facts else {}
        why = "rewind" if self.facts.get("kind") == "rewind" else ""
        files, withdrawn = self.side_files.get(location, ()), self.withdrawn.get(location, {})
        if target is None:
            return SideEntry(self.version, files, withdrawn, why, facts)
        is_late = location != target.location
        held = self._about(target).get("held", "") if files else ""
        return SideEntry(
            self.version, files, withdrawn, why, facts, of_target=True, table_id="" if is_late else target.id,
            held=f"{held}{HELD_LATE}" if held and is_late else held,
            at=self.facts.get("assembled") or self.facts.get("at") or self.logged,
        )  # fmt: skip

    def _about(self, target: TargetRecord) -> Mapping[str, Any]:
        """Return what it says of a table of a route, whatever the name of that was then."""
        found = self.facts.get("targets", {}).values()
        return next((one for one in found if one.get("number") == target.number), {})


CREATED, ANY_CLIENT = "create", "client"  # what Entry calls a table's first entry, and those of other clients


@dataclass(frozen=True)
class Entry:
    """An entry of a table's log. `kind`: one of KINDS, CREATED or ANY_CLIENT."""

    version: int
    at: datetime
    kind: str
    facts: Mapping[str, Any]


def created(name: str, layout: str, columns: pa.Schema, bucket_columns: Sequence[str]) -> list[Action]:
    """Return the first entry of a table."""
    now = int(time.time() * 1000)
    info = {"timestamp": now, "operation": "CREATE TABLE", "operationParameters": {}, "engineInfo": "headrace"}
    about = {
        "id": str(uuid4()), "name": name, "description": layout, "format": {"provider": "parquet", "options": {}},
        "schemaString": Schema.from_arrow(columns).to_json(), "partitionColumns": list(bucket_columns),
        "configuration": {}, "createdTime": now,
    }  # fmt: skip
    protocol = {"minReaderVersion": READER, "minWriterVersion": WRITER}
    return [{"commitInfo": info}, {"protocol": protocol}, {"metaData": about}]


def ours(
    state: State,
    files: Iterable[StagedFile],
    values: Mapping[str, int],
    about: Mapping[str, Any],
    properties: Mapping[str, str] | None = None,
    gone: Sequence[Action] = (),
    *,
    moves_only: bool = False,
) -> list[Action]:
    """Return the actions of an entry: the files it adds, the `txn` values and properties it sets, its facts.

    `gone`: its actions that remove files; `moves_only`: the rows that it adds are those that it removes.
    """
    columns, now = state.metadata["partitionColumns"], int(time.time() * 1000)
    info = {
        "timestamp": now, "operation": "OPTIMIZE" if moves_only else "WRITE",
        "operationParameters": {"mode": "Append", "partitionBy": json.dumps(columns)},
        "isBlindAppend": not gone, "engineInfo": "headrace", "headrace": json.dumps(about),
    }  # fmt: skip
    configured = [_metadata(state.metadata, configuration={**state.configuration, **properties})] if properties else []
    return [
        {"commitInfo": info}, *configured, *set_transactions(values), *gone,
        *(_add(columns, file, now, data_change=not moves_only) for file in files),
    ]  # fmt: skip


def entry_facts(one: Operation) -> dict[str, Any]:
    """Return the facts of an operation's entry.

    A gap's is its gap record; a rewrite and a rewind say which rows they take, a replay which dead letters go.
    """
    own: dict[str, Any]
    match one:
        case Batch():
            own = {"kind": "batch", "side_files": _side(one.side_files)}
        case Replay():
            own = {"kind": "replay", "side_files": _side(one.side_files), "withdrawn": _withdrawn(one.withdrawn)}
        case Reprocess():
            buckets = [[list(each.bucket), each.taken, each.added] for each in one.buckets]
            own = {"kind": "reprocess", "side_files": _side(one.side_files), "buckets": buckets}
        case Rewrite():
            own = {"kind": "rewrite", **({"taken": vars(one.taken)} if one.taken else {})}
        case Rewind():
            own = _rewound(one)
        case Gap():
            own = {"kind": "gap", "cause": one.cause, "ranges": [r.to_dict() for r in one.ranges]}
        case Fill():
            counts = {"gap": one.gap, "offsets": one.offsets, "left": one.left, "done": one.done}
            own = {"kind": "fill", **counts, "side_files": _side(one.side_files)}
        case Loss():
            own = {"kind": "lost", "gap": one.gap, "left": one.left}
        case Closing():
            own = {"kind": "close", "until": one.until.isoformat()}
            own |= {} if one.target is None else {"target": one.target}
        case Sealing():
            own = {"kind": "seal", "manifests": list(one.manifests)}
        case Acceptance():
            taken = {"why": "accepted", "rows": one.rows}
            own = {"kind": "accept", "answers": [vars(change) for change in one.changes], "taken": taken}
    assert own.keys().isdisjoint(one.facts), "a fact would hide what the entry says itself"
    return {**own, "id": one.id, **one.facts}


def _rewound(rewind: Rewind) -> dict[str, Any]:
    return {
        "kind": "rewind", "to": rewind.to, "taken": {"why": "rewind", "rows": rewind.rows},
        **_reopened(rewind), "gaps": list(rewind.gaps),
        **({"targets": _rewound_targets(rewind)} if rewind.targets else {}),
        **({"answers": [vars(one) for one in rewind.undo.changes]} if rewind.undo else {}),
        "withdrawn": _withdrawn(rewind.withdrawn), "ranges": [r.to_dict() for r in rewind.ranges],
    }  # fmt: skip


def _rewound_targets(rewind: Rewind) -> dict[str, Any]:
    """Return what becomes of each table of a route, by location: names may have been given to another since."""
    return {one.location: {"name": one.name, "number": one.number, **_reopened(one)} for one in rewind.targets}


def _reopened(one: Rewind | TargetRewind) -> dict[str, Any]:
    buckets = [[list(bucket.bucket), bucket.taken, bucket.left] for bucket in one.reopened]
    return {"reopened": buckets, "closed_until": to_iso(one.closed_until)}


def answers(about: Mapping[str, Any]) -> list[Change]:
    """Return the changes of other clients that an entry with these facts accepts or undoes."""
    return [Change(one["version"], one["operation"]) for one in about.get("answers", ())]


def unanswered(entries: Iterable[tuple[int, Sequence[Action]]]) -> list[Change]:
    """Return what other clients did that moves rows and not offsets, and that no entry answers, oldest first."""
    changes: dict[int, Change] = {}
    for version, actions in entries:
        info, facts = parse_commit_info(actions)
        if facts.get("kind") == "take":
            # The rows that the table had then are the former writer's, and are counted as adopted.
            changes.clear()
        for answer in answers(facts):
            changes.pop(answer.version, None)
        unproven = None if facts else change(info, version)
        if unproven is not None:
            changes[version] = unproven
    return list(changes.values())


def _withdrawn(withdrawn: Mapping[str, Mapping[TopicPartition, Sequence[Span]]]) -> dict[str, list[list[Any]]]:
    return {
        place: [[part.topic, part.incarnation, part.partition, spans] for part, spans in parts.items()]
        for place, parts in withdrawn.items()
    }


def removed(file: BucketFile, columns: Sequence[str], now: datetime, *, moves_only: bool = False) -> Action:
    """Return the action that removes a file; `columns`: the table's bucket columns."""
    return {
        "remove": {
            "path": _quoted(file.path), "deletionTimestamp": int(now.timestamp() * 1000),
            "dataChange": not moves_only, "extendedFileMetadata": True, "size": file.bytes,
            "partitionValues": dict(zip(columns, file.bucket, strict=True)),
        }
    }  # fmt: skip


def named(columns: Sequence[str], add: Mapping[str, Any]) -> BucketFile:
    """Return the file that an action adds."""
    tags = dict(add.get("tags") or {})
    low, high = (datetime.fromisoformat(tags[name]) if name in tags else None for name in _EVENT_TIMES)
    stats = json.loads(add.get("stats") or "null") or add.get("stats_parsed") or {}
    bounds = ((stats.get(name) or {}).get("_offset") for name in ("minValues", "maxValues"))
    # A column of another client's table may have this name and another type.
    offsets = (bound if isinstance(bound, int) else None for bound in bounds)
    return BucketFile(
        unquote(add["path"]), bucket_of(columns, add), stats.get("numRecords"), add["size"], low, high, *offsets
    )


def touched(columns: Sequence[str], actions: Sequence[Action]) -> set[BucketKey]:
    """Return the buckets that an entry changes the files of, or seals; `columns`: the table's bucket columns."""
    moved = {bucket_of(columns, change) for change in file_changes(actions)}
    return moved | {tuple(m["bucket"]) for m in parse_commit_info(actions)[1].get("manifests", ())}


def file_changes(actions: Sequence[Action]) -> list[Action]:
    """Return an entry's facts about each file that it adds or removes."""
    return [change for action in actions for kind in ("add", "remove") if (change := action.get(kind))]


def bucket_of(columns: Sequence[str], change: Action) -> BucketKey:
    """Return the bucket of a file that an entry adds or removes; `columns`: the table's bucket columns."""
    values = dict(change.get("partitionValues") or {})
    return tuple(values.get(column) for column in columns)


def parse_entry(version: int, actions: Sequence[Action]) -> Entry:
    """Return an entry with headrace's facts; for another client's, its operation and the client's name."""
    info, about = parse_commit_info(actions)
    kind = about.get("kind")
    if kind is None:
        kind = CREATED if info.get("operation") == "CREATE TABLE" else ANY_CLIENT
        about = {"operation": info.get("operation", "unknown"), "client": info.get("engineInfo", "unknown")}
    return Entry(version, _logged(info), kind, about)


def _logged(info: Mapping[str, Any]) -> datetime:
    return datetime.fromtimestamp(info.get("timestamp", 0) / 1000, UTC)


def parse_committed(
    version: int, about: Mapping[str, Any], store: Store, info: Mapping[str, Any] = MappingProxyType({})
) -> CommittedEntry | None:
    """Return the batch, or another operation that was appended by an id, from an entry's facts; None: neither.

    `store`: of the table, where long lists of files lie; `info`: the entry's commitInfo, which says when it was logged.
    Raises CommitFailed where such a list is damaged.
    """
    if about.get("kind") not in _LANDED:
        return None
    listed = file_lists.side_files(store, about)
    side = {place: [file_from_json(f) for f in files] for place, files in listed.items()}
    withdrawn = {
        place: {TopicPartition(*part): [(start, end) for start, end in spans] for *part, spans in parts}
        for place, parts in about.get("withdrawn", {}).items()
    }
    return CommittedEntry(version, about["id"], about, side, withdrawn, _logged(info).isoformat() if info else "")


def _side(side_files: Mapping[str, Sequence[StagedFile]]) -> dict[str, list[Any]]:
    return {place: [file_to_json(file) for file in files] for place, files in side_files.items()}


def redescribed(
    operation: str, about: Mapping[str, Any], known: Action, values: Mapping[str, int], **changes: Any
) -> list[Action]:
    """Return the actions of an entry that changes the table's metadata and sets `txn` values. It adds no file.

    `operation`: as Delta names it; `known`: what the table says of itself.
    """
    now = int(time.time() * 1000)
    info = {
        "timestamp": now, "operation": operation, "operationParameters": {}, "isBlindAppend": False,
        "engineInfo": "headrace", "headrace": json.dumps(about, ensure_ascii=False),
    }  # fmt: skip
    return [{"commitInfo": info}, _metadata(known, **changes), *set_transactions(values)]


def set_transactions(values: Mapping[str, int]) -> list[Action]:
    """Return the actions that set `txn` values."""
    now = int(time.time() * 1000)
    return [{"txn": {"appId": name, "version": value, "lastUpdated": now}} for name, value in values.items()]


def _metadata(known: Action, **changes: Any) -> Action:
    """Return the action that changes the table's metadata. A checkpoint has nulls in it, and pairs for maps."""
    kept = {key: value for key, value in known.items() if value is not None}
    layout = {**known["format"], "options": dict(known["format"].get("options") or {})}
    return {"metaData": {**kept, "format": layout, **changes}}


def parse_commit_info(actions: Sequence[Action]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return an entry's commitInfo, and headrace's facts in it; empty if there are none."""
    found: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    return found, json.loads(found.get("headrace", "{}"))


def _add(columns: Sequence[str], file: StagedFile, now: int, *, data_change: bool) -> Action:
    times = (file.event_time_min.isoformat(), file.event_time_max.isoformat())
    return {
        "add": {
            "path": _quoted(file.path), "size": file.bytes, "stats": file.statistics, "dataChange": data_change,
            "partitionValues": dict(zip(columns, file.bucket, strict=True)), "modificationTime": now,
            "tags": dict(zip(_EVENT_TIMES, times, strict=True)),
        }
    }  # fmt: skip


def _quoted(path: str) -> str:
    return quote(path, safe="/=-_.~")
