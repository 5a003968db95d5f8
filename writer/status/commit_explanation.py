"""Finds a commit in a table's log, by its version, its batch or an offset that it holds, with what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.writer.audit.table_history import read_pipeline_history
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.table.factory import existing_table
from headrace.writer.table.log.entries import Entry

# Entries of the log that are looked at first: the last commit is nearly always among them.
_NEWEST_ENTRIES = 50
# Entries that read offsets.
_COMMIT_KINDS = ("batch", "gap")


@dataclass(frozen=True)
class Explanation:
    """One commit and what followed it: the next commit of the same driver knows what this one's commit cost."""

    entry: Entry
    # Wall seconds on the driver.
    phases: Mapping[str, float]


class KafkaOffset(NamedTuple):
    """One offset of Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


class NoSuchOffset(HeadraceError):
    """A table has no commit with an offset."""


def find_explanation(
    config: Config, name: str, *, batch: int | None, version: int | None, offset: KafkaOffset | None
) -> Explanation:
    """Find a commit of a pipeline, or the last. Raises HeadraceError that says what is known instead.

    Raises NoSuchOffset where the table has never committed the offset.
    """
    table = existing_table(name, config)
    entries: list[Entry] = []
    counts = (_NEWEST_ENTRIES, None) if batch is None and version is None else (None,)
    for count in counts:
        entries = table.history(count)
        explanation = choose_commit(entries, batch=batch, version=version, offset=offset)
        if explanation is not None:
            return explanation
    if offset is not None:
        raise HeadraceError(search_ledger(config, name, offset))
    location = config.pipelines[name].table.location
    raise HeadraceError(_describe_missing(name, location, entries, batch, version))


def choose_commit(
    entries: Sequence[Entry], *, batch: int | None, version: int | None, offset: KafkaOffset | None = None
) -> Explanation | None:
    """Choose a commit of the log (newest first): by version, by the newest batch of that number, or the last.

    `offset`: that it has to hold. With a version it may be any entry.
    """
    candidates = list(entries)
    if version is None:
        candidates = [entry for entry in entries if entry.kind in _COMMIT_KINDS]
    for number, entry in enumerate(candidates):
        if version is not None and entry.version != version:
            continue
        if batch is not None and entry.facts.get("batch") != batch:
            continue
        if offset is not None and not _has_offset(entry.facts, offset):
            continue
        return Explanation(entry, {**entry.facts.get("phases", {}), **_later_phases(entry, candidates[:number])})
    return None


def _later_phases(entry: Entry, later_entries: Sequence[Entry]) -> Mapping[str, float]:
    """Return the phases of a commit that the next one tells. `later_entries`: newest first."""
    following = next((later for later in reversed(later_entries) if later.kind in _COMMIT_KINDS), None)
    if following is None:
        return {}
    former = following.facts.get("former") or {}
    if former.get("version") != entry.version:
        return {}
    phases: Mapping[str, float] = former.get("phases", {})
    return phases


def _has_offset(facts: Mapping[str, Any], offset: KafkaOffset) -> bool:
    if facts.get("kind") not in _COMMIT_KINDS:
        return False
    return any(_is_in_range(offset, OffsetRange.from_json(account)) for account in facts.get("ranges", ()))


def _is_in_range(offset: KafkaOffset, offset_range: OffsetRange) -> bool:
    return offset_range.part.source == (offset.topic, offset.partition) and offset_range.has_offset(offset.offset)


def search_ledger(config: Config, name: str, offset: KafkaOffset) -> str:
    """Return what the ledger has of an offset whose commit is no longer in the log. Raises NoSuchOffset."""
    newest = None
    for segment in read_pipeline_history(config, name).main.segments:
        for committed in segment.committed_ranges:
            if _is_in_range(offset, committed.range):
                newest = committed
    if newest is None:
        raise NoSuchOffset(
            f"the table of pipeline {name!r} has no commit with {offset}. `headrace status` says how far it has come."
        )
    versions = f"one of versions {newest.first} to {newest.last}"
    if newest.gap:
        return f"{offset} lies in a gap, recorded in {versions}; see `headrace gaps`"
    specs = f"by version {newest.specs} of the event specs" if newest.specs else "without event specs"
    return (
        f"{offset} was committed in {versions} of the table, {specs}; their entries are no longer in its log, so there "
        "is nothing more to explain"
    )


def _describe_missing(
    name: str, location: str, entries: Sequence[Entry], batch: int | None, version: int | None
) -> str:
    batches = [entry for entry in entries if entry.kind == "batch"]
    if not batches:
        table = f"the table of pipeline {name!r} at {location}"
        return f"{table} has no commit with records yet. `headrace status` tells more."
    conditions = []
    if version is not None:
        conditions.append(f"version {version}")
    if batch is not None:
        conditions.append(f"batch {batch}")
    candidates = entries if batch is None else batches
    newest = batches[0]
    return (
        f"the log of the table at {location} has no commit of pipeline {name!r} with {' of '.join(conditions)}; it has "
        f"versions {candidates[-1].version} to {candidates[0].version}, the last is batch {newest.facts['batch']} of "
        f"run {newest.facts['run']}. Without --batch and --version, the last is explained."
    )
