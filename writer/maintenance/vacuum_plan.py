"""Selects unneeded objects of a table, a checkpoint directory and local disk. Pure.

Whatever is not known to be waste stays: only names that headrace gives, and Delta's data files, are judged at all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal

from writer.storage.nesting import METADATA

Why = Literal["orphan", "removed", "draft", "manifest", "checkpoint", "scratch"]
WORDS: Mapping[str, str] = {
    "orphan": "no version names it",
    "removed": "removed from the table",
    "draft": "a writer died while it wrote it",
    "manifest": "a newer version of it stands beside",
    "checkpoint": "of a run that no start continues",
    "scratch": "spilled by a task that died",
}
RUNS_KEPT = 3  # newest ones of a pipeline's checkpoints, for a look back
_MANIFEST = re.compile(r"^(_headrace/sealed/(?:.*/)?)v(\d+)\.json$")
_STAGED = "_headrace/staged/"
_HELD = "_headrace/held/"  # files of a route's tables that refuse, at the pipeline's log
_LISTS = "_headrace/lists/"  # of files, of entries of a route's log
_METADATA = f"{METADATA}/"
_METADATA_FILES = (".metadata.json", ".avro", ".puffin", ".stats")
_DRAFTS = (re.compile(r"^\..*\.tmp$"), re.compile(r"^_commit_.*\.json\.tmp$"))  # ours, delta-rs's


@dataclass(frozen=True)
class Stored:
    """An object as a listing shows it."""

    path: str  # relative to the place that was listed
    bytes: int
    touched: datetime


@dataclass(frozen=True)
class UnneededObject:
    """An unneeded object, or a folder of them."""

    path: str
    bytes: int
    touched: datetime
    why: Why


@dataclass(frozen=True)
class NeededFiles:
    """Files that a table's log needs, by path relative to the table."""

    files: frozenset[str]  # that the newest version names, or that a commit is about to have applied; its metadata
    removed: Mapping[str, datetime]  # when files were removed, as far as the log still says

    @cached_property
    def has_metadata(self) -> bool:
        """Whether they are an Iceberg table's: only then is its folder of metadata judged."""
        return any(path.startswith(_METADATA) for path in self.files)


def of_table(
    stored: Iterable[Stored], needed: NeededFiles, cutoff: datetime, *, hidden: bool
) -> Iterator[UnneededObject]:
    """Judge the objects below a table's location. What was touched at `cutoff` or later is never waste.

    `hidden`: files wait for their commit below `_headrace/staged`; what readers see is then left alone, for the table's
    owner may have put it there.
    """
    found = list(stored)
    newest: dict[str, int] = {}
    for one in found:
        if match := _MANIFEST.match(one.path):
            newest[match[1]] = max(newest.get(match[1], 0), int(match[2]))
    for one in found:
        if one.touched < cutoff and (why := _why(one.path, needed, newest, cutoff, hidden=hidden)):
            yield UnneededObject(one.path, one.bytes, one.touched, why)


def _why(path: str, needed: NeededFiles, newest: Mapping[str, int], cutoff: datetime, *, hidden: bool) -> Why | None:
    folders, _, name = path.rpartition("/")
    if any(draft.match(name) for draft in _DRAFTS):
        return "draft"
    if match := _MANIFEST.match(path):
        return "manifest" if int(match[2]) < newest[match[1]] else None
    if path.startswith(_METADATA) and needed.has_metadata:
        return None if path in needed.files or not path.endswith(_METADATA_FILES) else "orphan"
    if path.startswith(_STAGED):
        return None if path in needed.files or not path.endswith(".staged") else "orphan"
    if path.startswith(_LISTS):
        return None if path in needed.files or not path.endswith(".json") else "orphan"
    if path.startswith(_HELD):
        return None if path in needed.files or not path.endswith((".parquet", ".staged")) else "orphan"
    aside = any(folder.startswith(("_", ".")) for folder in [*folders.split("/"), name])
    if hidden or aside or not name.endswith(".parquet") or path in needed.files:
        return None
    if path not in needed.removed:
        return "orphan"
    return "removed" if needed.removed[path] < cutoff else None


def of_checkpoints(stored: Iterable[Stored], cutoff: datetime) -> Iterator[UnneededObject]:
    """Select runs below a pipeline's checkpoints: a run is removed as a whole, if it is old and newer ones exist."""
    runs: dict[str, list[Stored]] = {}
    for one in stored:
        run, separator, _ = one.path.partition("/")
        if separator and run.isdigit():
            runs.setdefault(run, []).append(one)
    for run in sorted(runs, key=int)[:-RUNS_KEPT]:
        touched = max(one.touched for one in runs[run])
        if touched < cutoff:
            yield UnneededObject(run, sum(one.bytes for one in runs[run]), touched, "checkpoint")
