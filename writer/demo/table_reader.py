"""Follows the log of the demo's table, entry by entry, and keeps its current files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from writer.storage.locations import store_at
from writer.table import delta, parquet
from writer.table.log.log import Action, Log


@dataclass(frozen=True)
class File:
    """One data file that the table names. `bucket` is None for a table without bucket columns."""

    bucket: str | None
    bytes: int


@dataclass(frozen=True)
class Commit:
    """One entry of the log that carries a batch: the buckets that it wrote to, and the writer's facts about it."""

    version: int
    # How many batches the table has with this one.
    number: int
    buckets: frozenset[str]
    # The columns of the table at this version.
    columns: tuple[str, ...]
    # The `txn` actions of the entry.
    frontier: Mapping[str, int]
    facts: Mapping[str, Any]

    def count(self, outcome: str) -> int:
        """Records of the batch with this outcome, as the writer counted them."""
        return sum(part.get(outcome, 0) for part in self.facts["ranges"])


class TableLog:
    """The log of a table of either format, as far as it has been read. Without a table, it is empty."""

    def __init__(self, location: Path) -> None:
        self._logs = [Log(store_at(f"{location}/{folder}")) for folder in (delta.LOG, parquet.LOG)]
        self.version = -1
        self.files: dict[str, File] = {}
        # The version of each `txn` id.
        self.transactions: dict[str, int] = {}
        self.columns: tuple[str, ...] = ()
        self.commits: list[Commit] = []

    def follow(self) -> bool:
        """Read the entries that are new. Returns whether there were any."""
        before = self.version
        while (actions := self._entry(self.version + 1)) is not None:
            self._read(actions)
            self.version += 1
        return self.version > before

    @property
    def bytes(self) -> int:
        """Size of all data files."""
        return sum(file.bytes for file in self.files.values())

    @property
    def buckets(self) -> frozenset[str]:
        """Buckets that have a file."""
        return frozenset(file.bucket for file in self.files.values() if file.bucket is not None)

    def _entry(self, version: int) -> Sequence[Action] | None:
        for log in self._logs:
            actions = log.entry(version)
            if actions is not None:
                return actions
        return None

    def _read(self, actions: Sequence[Action]) -> None:
        added: dict[str, File] = {}
        versions: dict[str, int] = {}
        facts: Mapping[str, Any] = {}
        for action in actions:
            match action:
                case {"add": {"path": path, "size": size, "partitionValues": values}}:
                    added[unquote(path)] = File(next(iter(values.values()), None), size)
                case {"remove": {"path": path}}:
                    self.files.pop(unquote(path), None)
                case {"txn": {"appId": name, "version": version}}:
                    versions[name] = version
                case {"metaData": {"schemaString": schema}}:
                    self.columns = tuple(field["name"] for field in json.loads(schema)["fields"])
                case {"commitInfo": {"headrace": text}}:
                    facts = json.loads(text)
        self.files |= added
        self.transactions |= versions
        if facts.get("kind") == "batch":
            buckets = frozenset(file.bucket for file in added.values() if file.bucket is not None)
            self.commits.append(Commit(self.version + 1, len(self.commits) + 1, buckets, self.columns, versions, facts))
