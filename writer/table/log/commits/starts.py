"""Commits of starts and of adopted topics: they raise the epoch, and set the frontier of new parts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from headrace.writer.core.errors import Fenced
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.table.log.appender import Appender, LostRace
from headrace.writer.table.log.foreign_writes import CommitFailed, one_line
from headrace.writer.table.log.snapshot import (
    INCARNATIONS,
    NO_MARK,
    SIDE_TABLES,
    Incarnations,
    PipelineSnapshot,
    cut_name,
    event_time_name,
    frontier_values,
    mark_names,
)


@dataclass(frozen=True)
class LogCut:
    """A log that Kafka cut below the frontier of a part, and that goes on as a further incarnation."""

    # From the first offset of the new incarnation to the frontier of the old one: these rows are of records that Kafka
    # lost, or that come again.
    range: OffsetRange
    # The number of the new incarnation.
    successor: int
    # All of the range was lost, and nothing below it; else its start is the last offset known to be sound.
    is_proven: bool

    @property
    def part(self) -> TopicPartition:
        """The part in the old incarnation."""
        return self.range.part

    def to_dict(self) -> dict[str, Any]:
        """Describe it as JSON values."""
        return {**self.range.to_json(), "successor": self.successor, "is_proven": self.is_proven}


@dataclass(frozen=True)
class Adoption:
    """Topics that go on under other ids, names or offsets."""

    # Of all topics, as they are from now on.
    incarnations: Mapping[str, Sequence[str]]
    # The frontier of the parts that begin with it.
    starts: Mapping[TopicPartition, int]
    # Runs up to this one read other offsets: they are not continued.
    closed: int = 0
    # JSON values: what became of which topic, at.
    facts: Mapping[str, Any] = field(default_factory=dict)


def begin(
    appender: Appender,
    starts: Mapping[TopicPartition, int],
    incarnations: Incarnations,
    closed: int = 0,
    lease: int | None = None,
    cuts: Sequence[LogCut] = (),
    side_table_ids: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Take the pipeline over: raise the epoch, and set the frontier of new parts, in one entry. Returns the epoch.

    A part that has a frontier by then keeps it. Runs up to `closed` are not continued by any later start. Older epochs
    are fenced from then on. `lease`: epoch of the lease under which this start was ordered. `cuts`: logs that go on as
    further incarnations, whose parts are among the new ones. `side_table_ids`: of the tables beside the log, by
    location. Raises Fenced when a start under a newer lease came before: this one is a straggler.
    """

    def start(snapshot: PipelineSnapshot) -> PipelineSnapshot:
        if lease is not None and lease < snapshot.lease:
            raise Fenced(
                f"pipeline {appender.pipeline!r} was started under lease {snapshot.lease} of its supervisors, this "
                f"start was ordered under lease {lease}: another supervisor has taken over. Leave it to that one."
            )
        _check_cuts(appender, snapshot, cuts)
        new_parts = {part: offset for part, offset in starts.items() if snapshot.frontier(part) is None}
        new_cuts = _new_cuts(snapshot, cuts)
        facts: dict[str, Any] = {"kind": "start"}
        values = {cut_name(appender.pipeline, cut.part): cut.range.start for cut in new_cuts}
        if lease is not None:
            facts["lease"] = lease
            values[f"{appender.pipeline}/lease"] = lease
        if new_cuts:
            facts["cuts"] = [cut.to_dict() for cut in new_cuts]
        values |= _inherited_values(snapshot, new_parts, cuts)
        properties = _side_table_properties(snapshot, side_table_ids)
        if properties:
            facts["side_tables"] = dict(side_table_ids)
        _take_over(appender, snapshot, new_parts, incarnations, closed, facts, values, properties)
        return snapshot

    snapshot = appender.retry_lost_races(start)
    appender.table_id = snapshot.state.metadata["id"]
    return snapshot.epoch + 1


def _side_table_properties(snapshot: PipelineSnapshot, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the property that has the ids of the tables beside the log; none where it has them already.

    A table that is not written to any more keeps its id, for its location may come back; one that was moved is known
    by its new location alone.
    """
    moved_ids = set(ids.values())
    kept_ids = {
        location: table_id for location, table_id in snapshot.side_table_ids.items() if table_id not in moved_ids
    }
    all_ids = {**kept_ids, **ids}
    if all_ids == snapshot.side_table_ids:
        return {}
    return {SIDE_TABLES: json.dumps(all_ids)}


def _new_cuts(snapshot: PipelineSnapshot, cuts: Sequence[LogCut]) -> list[LogCut]:
    """Return the cuts that the log does not have yet, or has at a higher offset.

    Of two starts that meet the same cut, the first enters it. A later cut may lie below the one that is known.
    """
    cut_offsets = {orphans.part: orphans.start for orphans in snapshot.orphans()}
    return [cut for cut in cuts if cut.range.start < cut_offsets.get(cut.part, cut.range.end + 1)]


def _inherited_values(
    snapshot: PipelineSnapshot, starts: Mapping[TopicPartition, int], cuts: Sequence[LogCut]
) -> dict[str, int]:
    """Return the `txn` values that partitions take along whose log was not cut, but that of another of their topic.

    They go on as the same log: its mark and its newest event time stay.
    """
    values = dict[str, int]()
    cut_parts = {cut.part for cut in cuts}
    # Topic and number of a new incarnation → number of the incarnation before it.
    predecessors = dict[tuple[str, int], int]()
    for cut in cuts:
        successor = (cut.part.topic, cut.successor)
        predecessors[successor] = max(cut.part.incarnation, predecessors.get(successor, 0))
    for part, offset in starts.items():
        old_part = replace(part, incarnation=predecessors.get((part.topic, part.incarnation), 0))
        if old_part in cut_parts or snapshot.frontier(old_part) != offset:
            continue
        mark = snapshot.mark(old_part)
        values |= frontier_values(snapshot, {part: offset}, {} if mark is None else {part: mark})
        event_time = snapshot.newest_event_time(old_part)
        if event_time is not None:
            values[event_time_name(snapshot.pipeline, part)] = event_time
    return values


def _check_cuts(appender: Appender, snapshot: PipelineSnapshot, cuts: Sequence[LogCut]) -> None:
    """Raise Fenced where the frontier of a part whose log was cut moved since it was read."""
    for cut in cuts:
        if snapshot.frontier(cut.part) != cut.range.end:
            raise Fenced(
                f"offsets of {cut.part.name} were committed while pipeline {appender.pipeline!r} was started: another "
                "writer runs. Stop one of them."
            )


def adopt(appender: Appender, snapshot: PipelineSnapshot, adoption: Adoption) -> int:
    """Rename incarnations and set the frontier of new parts on exactly this snapshot; raise the epoch.

    Older epochs are fenced from then on. Raises CommitFailed when something was committed since the snapshot.
    """
    assert all(snapshot.frontier(part) is None for part in adoption.starts), "an adoption moves no frontier"
    try:
        facts = {"kind": "adopt", **adoption.facts}
        _take_over(appender, snapshot, adoption.starts, adoption.incarnations, adoption.closed, facts, {})
    except LostRace as error:
        raise CommitFailed(
            f"the table at {appender.location} was written to meanwhile (version {snapshot.version + 1}); nothing was "
            "adopted. Stop the pipeline's driver, then look again."
        ) from error
    except OSError as error:
        raise CommitFailed(f"cannot write to the table at {appender.location}: {one_line(error)}") from error
    appender.table_id = snapshot.state.metadata["id"]
    return snapshot.version + 1


def _take_over(
    appender: Appender,
    snapshot: PipelineSnapshot,
    starts: Mapping[TopicPartition, int],
    incarnations: Incarnations,
    closed: int,
    facts: Mapping[str, Any],
    own_values: Mapping[str, int],
    own_properties: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write the entry of a start or an adoption. `own_values`, `own_properties`: that it alone sets."""
    pipeline = appender.pipeline
    incarnation_lists = {topic: list(ids) for topic, ids in incarnations.items()}
    values = frontier_values(snapshot, starts, {})
    values |= _lost_marks(snapshot, incarnation_lists)
    values |= own_values
    if closed:
        values[f"{pipeline}/closed"] = max(closed, snapshot.closed)
    values[f"{pipeline}/epoch"] = snapshot.epoch + 1
    is_changed = snapshot.incarnations() != incarnation_lists
    properties = dict(own_properties)
    if is_changed:
        properties[INCARNATIONS] = json.dumps(incarnation_lists)
    appender.write(snapshot, [], values, facts, properties)


def _lost_marks(snapshot: PipelineSnapshot, incarnations: Incarnations) -> dict[str, int]:
    """Return the `txn` values by which parts lose their marks whose incarnation gets another id: another log's.

    They set no frontier: the ledger would take it for the begin of these parts.
    """
    incarnations_before = snapshot.incarnations()
    values = dict[str, int]()
    for part in snapshot.parts():
        id_before = _incarnation_id(incarnations_before, part)
        id_after = _incarnation_id(incarnations, part)
        if id_before != id_after and snapshot.mark(part) is not None:
            values |= dict.fromkeys(mark_names(snapshot.pipeline, part), NO_MARK)
    return values


def _incarnation_id(incarnations: Incarnations, part: TopicPartition) -> str | None:
    """Return the id of a part's incarnation; incarnations count from 1. None: it has none."""
    ids = incarnations.get(part.topic, ())
    return ids[part.incarnation - 1] if 1 <= part.incarnation <= len(ids) else None
