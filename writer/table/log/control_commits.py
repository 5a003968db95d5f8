"""Entries without rows: starts, adoptions, gaps, closes, seals; and the backfill of gaps.

Each function appends one kind of entry at the end of a log and returns its version. It raises ForeignChange where
another client did what the ledger does not survive, CommitFailed where the storage refused, or gave no answer, for as
long as was tried.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from writer.core.errors import Fenced
from writer.core.offsets import TopicPartition
from writer.core.units import microseconds
from writer.table.log.appender import Appender, Check, LostRace, check_privacy
from writer.table.log.entries import entry_facts, ours, touched
from writer.table.log.foreign_writes import CommitFailed, Overtaken, Resealed, one_line
from writer.table.log.log import Action
from writer.table.log.operations import Acceptance, Adoption, Closing, Fill, Gap, LogCut, Loss, Sealing
from writer.table.log.snapshot import (
    INCARNATIONS,
    NO_MARK,
    SUPERSEDED,
    PipelineSnapshot,
    changes_name,
    closed_name,
    cut_name,
    frontier_values,
    mark_names,
    seen_name,
)
from writer.table.schema_ids import new_meanings

Ids = Mapping[str, Sequence[str]]  # topic → ids of its incarnations


def begin(
    end: Appender,
    starts: Mapping[TopicPartition, int],
    incarnations: Ids,
    closed: int = 0,
    lease: int | None = None,
    cuts: Sequence[LogCut] = (),
) -> int:
    """Take the pipeline over: raise the epoch, and set the frontier of new parts, in one entry. Returns the epoch.

    A part that has a frontier by then keeps it. Runs up to `closed` are not continued by any later start. Older epochs
    are fenced from then on. `lease`: epoch of the lease under which this start was ordered. `cuts`: logs that go on as
    further incarnations, whose parts are among the new ones. Raises Fenced when a start under a newer lease came
    before: this one is a straggler.
    """

    def start(snapshot: PipelineSnapshot) -> PipelineSnapshot:
        if lease is not None and lease < snapshot.lease:
            raise Fenced(
                f"pipeline {end.pipeline!r} was started under lease {snapshot.lease} of its supervisors, this "
                f"start was ordered under lease {lease}: another supervisor has taken over. Leave it to that one."
            )
        _check_cuts(end, snapshot, cuts)
        new = {part: offset for part, offset in starts.items() if snapshot.frontier(part) is None}
        lease_facts = {} if lease is None else {"lease": lease}
        # Of two starts that meet the same cut, the first enters it. A later cut may lie below the one that is known.
        known = {orphans.part: orphans.start for orphans in snapshot.orphans()}
        new_cuts = [cut for cut in cuts if cut.offset < known.get(cut.part, cut.frontier + 1)]
        cut_facts = {"cuts": [cut.to_dict() for cut in new_cuts]} if new_cuts else {}
        values = {cut_name(end.pipeline, cut.part): cut.offset for cut in new_cuts}
        values |= {} if lease is None else {f"{end.pipeline}/lease": lease}
        values |= _carried(snapshot, new, cuts)
        _take_over(end, snapshot, new, incarnations, closed, {"kind": "start", **lease_facts, **cut_facts}, values)
        return snapshot

    taken = end.retried(start)
    end.table_id = taken.state.metadata["id"]
    return taken.epoch + 1


def _carried(
    snapshot: PipelineSnapshot, starts: Mapping[TopicPartition, int], cuts: Sequence[LogCut]
) -> dict[str, int]:
    """Return the `txn` values that partitions take along whose log was not cut, but that of another of their topic.

    They go on as the same log: what it is known by, and how far its event times have come.
    """
    values = dict[str, int]()
    cut_parts = {cut.part for cut in cuts}
    numbers = dict[tuple[str, int], int]()
    for cut in cuts:
        successor = cut.part.topic, cut.successor
        numbers[successor] = max(cut.part.incarnation, numbers.get(successor, 0))
    for part, offset in starts.items():
        old = replace(part, incarnation=numbers.get((part.topic, part.incarnation), 0))
        if old in cut_parts or snapshot.frontier(old) != offset:
            continue
        mark, seen = snapshot.mark(old), snapshot.seen(old)
        values |= frontier_values(snapshot, {part: offset}, {} if mark is None else {part: mark})
        values |= {} if seen is None else {seen_name(snapshot.pipeline, part): seen}
    return values


def _check_cuts(end: Appender, snapshot: PipelineSnapshot, cuts: Sequence[LogCut]) -> None:
    """Raise Fenced where the frontier of a part whose log was cut moved since it was looked at."""
    for cut in cuts:
        if snapshot.frontier(cut.part) != cut.frontier:
            raise Fenced(
                f"offsets of {cut.part.name} were committed while pipeline {end.pipeline!r} was started: another "
                "writer runs. Stop one of them."
            )


def adopt(end: Appender, snapshot: PipelineSnapshot, adoption: Adoption) -> int:
    """Rename incarnations and set the frontier of new parts on exactly this snapshot; raise the epoch.

    Older epochs are fenced from then on. Raises CommitFailed when something was committed since the snapshot.
    """
    assert all(snapshot.frontier(part) is None for part in adoption.starts), "an adoption moves no frontier"
    try:
        about = {"kind": "adopt", **adoption.facts}
        _take_over(end, snapshot, adoption.starts, adoption.incarnations, adoption.closed, about, {})
    except LostRace as error:
        raise CommitFailed(
            f"the table at {end.location} was written to meanwhile (version {snapshot.version + 1}); nothing was "
            "adopted. Stop the pipeline's driver, then look again."
        ) from error
    except OSError as error:
        raise CommitFailed(f"cannot write to the table at {end.location}: {one_line(error)}") from error
    end.table_id = snapshot.state.metadata["id"]
    return snapshot.version + 1


def _take_over(
    end: Appender,
    snapshot: PipelineSnapshot,
    starts: Mapping[TopicPartition, int],
    incarnations: Ids,
    closed: int,
    about: Mapping[str, Any],
    more: Mapping[str, int],
) -> None:
    """Write the entry of a start or an adoption. `more`: `txn` values that it alone sets."""
    pipeline, wanted = end.pipeline, {topic: list(ids) for topic, ids in incarnations.items()}
    values = {**frontier_values(snapshot, starts, {}), **_forgotten_marks(snapshot, wanted), **more}
    values |= {f"{pipeline}/closed": max(closed, snapshot.closed)} if closed else {}
    properties = {} if snapshot.incarnations() == wanted else {INCARNATIONS: json.dumps(wanted)}
    end.write(snapshot, [], {**values, f"{pipeline}/epoch": snapshot.epoch + 1}, about, properties)


def _forgotten_marks(snapshot: PipelineSnapshot, incarnations: Ids) -> dict[str, int]:
    """Return the `txn` values by which parts lose their marks whose incarnation gets another id: another log's.

    They set no frontier: the ledger would take it for where these parts begin.
    """
    known = snapshot.incarnations()
    values = dict[str, int]()
    for part in snapshot.parts():
        number = part.incarnation
        before = list(known.get(part.topic, ()))[number - 1 : number]
        after = list(incarnations.get(part.topic, ()))[number - 1 : number]
        if before != after and snapshot.mark(part) is not None:
            values |= dict.fromkeys(mark_names(snapshot.pipeline, part), NO_MARK)
    return values


def convert(end: Appender, about: Mapping[str, Any], properties: Mapping[str, str], rules: Sequence[Action]) -> int:
    """Append the last entry of a log: the table goes on in another format. A second time does nothing.

    No writer follows it; it needs no epoch. `rules`: actions that keep other clients from writing.
    """

    def convert(snapshot: PipelineSnapshot) -> int:
        if snapshot.converted < 0:
            if snapshot.epoch:  # no answer to another client's change could follow; side tables have no starts
                end.commits_since(snapshot.settled)
            version = snapshot.version + 1
            values = {f"{end.pipeline}/converted": version}
            end.put(snapshot, [*ours(snapshot.state, [], values, {"kind": "convert", **about}, properties), *rules])
            return version
        return snapshot.converted

    return end.retried(convert)


def supersede(end: Appender, frontier: Mapping[TopicPartition, int], by: str, facts: Mapping[str, Any]) -> int:
    """Put another table, at `by`, in the place of this one: no writer follows. A second time does nothing.

    `frontier`: of the table as it was looked at. Raises CommitFailed where the writer moved it since.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        if snapshot.superseded_by == by:
            return snapshot.version
        if snapshot.parts() != frontier:
            raise CommitFailed(
                f"the table at {end.location} was written to meanwhile (version {snapshot.version}); nothing was "
                "promoted. Stop its writer, then promote again."
            )
        end.commits_since(snapshot.settled)  # no answer to another client's change could follow
        return _supersede(end, snapshot, by, facts)

    return end.retried(change)


def revive(end: Appender, facts: Mapping[str, Any]) -> int:
    """Let the log of a superseded table go on. A second time does nothing."""

    def change(snapshot: PipelineSnapshot) -> int:
        return _supersede(end, snapshot, "", facts) if snapshot.superseded_by else snapshot.version

    return end.retried(change)


def _supersede(end: Appender, snapshot: PipelineSnapshot, by: str, facts: Mapping[str, Any]) -> int:
    about = {"kind": "promote", "superseded_by": by, **facts}
    end.put(snapshot, ours(snapshot.state, [], {}, about, {SUPERSEDED: by}), revives=not by)
    return snapshot.version + 1


class _FarEnough(Exception):
    """The buckets are closed that far already, or the table was rewound meanwhile."""


def close(end: Appender, snapshot: PipelineSnapshot, closing: Closing) -> int | None:
    """Move `closed_until` forward. It needs no epoch.

    None: it is that far already, or the table was rewound since the snapshot.
    """

    def check(newest: PipelineSnapshot) -> None:
        until = newest.closed_until if closing.target is None else newest.closed_target(closing.target)
        if until is not None and until >= closing.until:
            raise _FarEnough
        if newest.rewinds != snapshot.rewinds:
            raise _FarEnough  # what led to this instant may be gone: the caller looks again

    values = {closed_name(end.pipeline, closing.target): microseconds(closing.until)}
    try:
        return end.append(snapshot, [], values, entry_facts(closing), check, moment="close")
    except _FarEnough:
        return None


def seal(end: Appender, snapshot: PipelineSnapshot, sealing: Sealing) -> int:
    """Commit that buckets are as their manifests, built from the snapshot, have them. It needs no epoch.

    Raises Resealed when one of them changed since, or was sealed.
    """
    table, looked = snapshot.state.place
    columns = snapshot.state.metadata["partitionColumns"]
    mine = {tuple(manifest["bucket"]) for manifest in sealing.manifests}

    def check(newest: PipelineSnapshot) -> None:
        nonlocal looked
        gone = newest.state.metadata["id"] != table
        between = [] if gone else [entry for entry in end.entries(looked) if entry[0] <= newest.version]
        if gone or len(between) != newest.version - looked:
            raise Resealed(f"what became of {end.location} after version {looked} is unknown; look again")
        for version, actions in between:
            if others := mine & touched(columns, actions):
                raise Resealed(f"version {version} of {end.location} changed {min(others, key=str)}; look again")
        looked = newest.version

    return end.append(snapshot, [], {}, entry_facts(sealing), check, moment="seal")


def record_gap(end: Appender, snapshot: PipelineSnapshot, gap: Gap) -> int:
    """Move the frontier over lost ranges, each from the frontier on, and keep the gap record. Raises Fenced."""

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        pipeline, sums = end.pipeline, newest.gap_sums
        return {
            **frontier_values(newest, {r.part: r.end for r in gap.ranges}, {}),
            f"{pipeline}/epoch": gap.epoch + int(gap.takes_over),
            f"{pipeline}/gaps": sums["gaps"] + 1, f"{pipeline}/gap_offsets": sums["gap_offsets"] + gap.offsets,
        }  # fmt: skip

    check = partial(end.check_owner, epoch=gap.epoch, ranges=gap.ranges)
    return end.append(snapshot, [], values, entry_facts(gap), check)


def fill(end: Appender, snapshot: PipelineSnapshot, fill: Fill) -> int:
    """Add records of a gap, and settle their offsets. It needs no epoch.

    Raises Overtaken when the gap record changed since it was looked at, PrivacyChanged.
    """
    offsets = fill.offsets + (fill.left if fill.done else 0)
    values, check = _changing(end, fill, offsets, ended=fill.done)
    return end.append(snapshot, fill.files, values, entry_facts(fill), check, moment="fill")


def give_up(end: Appender, snapshot: PipelineSnapshot, loss: Loss) -> int:
    """Close a gap without its records. It needs no epoch. Raises as `fill` does."""
    values, check = _changing(end, loss, loss.left, ended=True)
    return end.append(snapshot, [], values, entry_facts(loss), check)


def _changing(
    end: Appender, change: Fill | Loss, offsets: int, *, ended: bool
) -> tuple[Callable[[PipelineSnapshot], dict[str, int]], Check]:
    """Return what a change of a gap record sets, and the check that it is the next one."""
    pipeline = end.pipeline

    def check(newest: PipelineSnapshot) -> None:
        if isinstance(change, Fill):
            check_privacy(end, newest, change.privacy)
        if newest.changes(change.gap) != change.generation:
            raise Overtaken(f"gap {change.gap} of pipeline {pipeline!r} changed meanwhile: look again what is open")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        sums = newest.gap_sums
        return {
            changes_name(pipeline, change.gap): change.generation + 1,
            f"{pipeline}/gaps_ended": sums["gaps_ended"] + int(ended),
            f"{pipeline}/gap_offsets_ended": sums["gap_offsets_ended"] + offsets,
            **(new_meanings(newest.state.transactions, change.meanings) if isinstance(change, Fill) else {}),
        }

    return values, check


OWNER = "headrace/"  # with the pipeline's name: the table's name


def accept(end: Appender, snapshot: PipelineSnapshot, wanted: Acceptance) -> int:
    """Accept what other clients did, on exactly this snapshot; raise the epoch. Raises CommitFailed."""

    def check(newest: PipelineSnapshot) -> None:
        if newest.state.place != snapshot.state.place:
            raise CommitFailed(
                f"the table at {end.location} was written to meanwhile (version {newest.version}); nothing was "
                "accepted. Stop its writer, then look again."
            )

    values = {f"{end.pipeline}/epoch": snapshot.epoch + 1}
    return end.append(snapshot, [], values, entry_facts(wanted), check, moment="accept")
