"""Selects unneeded objects of a table, a checkpoint directory and local disk. Pure.

Whatever is not known to be waste stays: only names that headrace gives, and Delta's data files, are judged at all.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Literal

from headrace.writer.storage.nesting import METADATA

Why = Literal["orphan", "removed", "draft", "manifest", "checkpoint", "scratch"]
DESCRIPTIONS: Mapping[str, str] = {
    "orphan": "no version names it",
    "removed": "removed from the table",
    "draft": "a writer died while it wrote it",
    "manifest": "a newer version of it stands beside",
    "checkpoint": "of a run that no start continues",
    "scratch": "spilled by a task that died",
}
# The newest runs of a pipeline's checkpoints stay, for a look back.
RUNS_KEPT = 3
_MANIFEST = re.compile(r"^(_headrace/sealed/(?:.*/)?)v(\d+)\.json$")
_STAGED = "_headrace/staged/"
# Files of a route's tables that refuse, at the pipeline's log.
_HELD = "_headrace/held/"
# Lists of files, of entries of a route's log.
_LISTS = "_headrace/lists/"
_METADATA = f"{METADATA}/"
_METADATA_FILES = (".metadata.json", ".avro", ".puffin", ".stats")
# Drafts of headrace and of delta-rs.
_DRAFTS = (re.compile(r"^\..*\.tmp$"), re.compile(r"^_commit_.*\.json\.tmp$"))
# Files below a folder that only the log needs, by the ends of their names.
_LOG_FILES = {_STAGED: (".staged",), _LISTS: (".json",), _HELD: (".parquet", ".staged")}


@dataclass(frozen=True)
class Stored:
    """An object as a listing shows it."""

    # Relative to the location that was listed.
    path: str
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

    # Files that the newest version names, or that a commit is about to have applied; its metadata.
    files: frozenset[str]
    # When files were removed, as far as the log still says.
    removed: Mapping[str, datetime]

    @cached_property
    def has_metadata(self) -> bool:
        """Whether they are an Iceberg table's: only then is its folder of metadata judged."""
        return any(path.startswith(_METADATA) for path in self.files)


def unneeded_in_table(
    stored: Iterable[Stored], needed: NeededFiles, cutoff: datetime, *, hidden: bool
) -> Iterator[UnneededObject]:
    """Judge the objects below a table's location. What was touched at `cutoff` or later is never waste.

    `hidden`: files wait for their commit below `_headrace/staged`; what readers see is then left alone, for the table's
    owner may have put it there.
    """
    objects = list(stored)
    newest_versions: dict[str, int] = {}
    for item in objects:
        match = _MANIFEST.match(item.path)
        if match:
            folder, version = match.groups()
            newest_versions[folder] = max(newest_versions.get(folder, 0), int(version))
    for item in objects:
        if item.touched < cutoff:
            why = _judge(item.path, needed, newest_versions, cutoff, hidden=hidden)
            if why is not None:
                yield UnneededObject(item.path, item.bytes, item.touched, why)


def _judge(
    path: str, needed: NeededFiles, newest_versions: Mapping[str, int], cutoff: datetime, *, hidden: bool
) -> Why | None:
    """Return why an object is not needed; None: it is, or nothing is known of it."""
    folders, _, name = path.rpartition("/")
    if any(draft.match(name) for draft in _DRAFTS):
        return "draft"
    manifest = _MANIFEST.match(path)
    if manifest:
        folder, version = manifest.groups()
        return "manifest" if int(version) < newest_versions[folder] else None
    log_files = _LOG_FILES | ({_METADATA: _METADATA_FILES} if needed.has_metadata else {})
    for folder, suffixes in log_files.items():
        if path.startswith(folder):
            return "orphan" if path.endswith(suffixes) and path not in needed.files else None
    is_aside = any(part.startswith(("_", ".")) for part in [*folders.split("/"), name])
    if hidden or is_aside or not name.endswith(".parquet") or path in needed.files:
        return None
    if path not in needed.removed:
        return "orphan"
    return "removed" if needed.removed[path] < cutoff else None


def unneeded_checkpoints(stored: Iterable[Stored], cutoff: datetime) -> Iterator[UnneededObject]:
    """Select runs below a pipeline's checkpoints: a run is removed as a whole, if it is old and newer ones exist."""
    runs: dict[str, list[Stored]] = {}
    for item in stored:
        run, separator, _ = item.path.partition("/")
        if separator and run.isdecimal():
            runs.setdefault(run, []).append(item)
    for run in sorted(runs, key=int)[:-RUNS_KEPT]:
        touched = max(item.touched for item in runs[run])
        if touched < cutoff:
            yield UnneededObject(run, sum(item.bytes for item in runs[run]), touched, "checkpoint")
