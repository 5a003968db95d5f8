"""Entries that add, replace or remove rows: batches, replays, rewrites, reprocesses, rewinds.

They raise as `control_commits` says.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from writer.core.files import BucketFile, StagedFile
from writer.core.units import microseconds
from writer.table.log.appender import Appender, Check, Swap, check_privacy
from writer.table.log.entries import entry_facts, removed
from writer.table.log.foreign_writes import ClosedMeanwhile, CommitFailed, FilesGone, Overtaken
from writer.table.log.operations import Batch, Replay, Reprocess, Rewind, Rewrite
from writer.table.log.snapshot import (
    NEVER,
    PipelineSnapshot,
    changes_name,
    closed_name,
    closed_values,
    frontier_values,
    seen_name,
)
from writer.table.schema_ids import new_meanings


def commit(end: Appender, snapshot: PipelineSnapshot, batch: Batch) -> int:
    """Add the files and move the frontier, atomically; then readers see the files.

    Raises Fenced, ClosedMeanwhile, PrivacyChanged.
    """

    def on_time(newest: PipelineSnapshot) -> None:
        end.check_owner(newest, batch.epoch, batch.ranges)
        check_privacy(end, newest, batch.privacy)
        if newest.closed_until != batch.closed_until:
            raise ClosedMeanwhile(
                f"buckets are closed until {newest.closed_until} by now, rows were judged by {batch.closed_until}"
            )
        if newest.closed_targets != batch.closed_targets:
            raise ClosedMeanwhile("buckets of tables of the route were closed since rows were judged")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        return {
            **frontier_values(newest, {r.part: r.end for r in batch.ranges}, batch.marks),
            f"{end.pipeline}/epoch": batch.epoch, f"{end.pipeline}/settled": batch.settled,
            **{seen_name(end.pipeline, part): at for part, at in batch.seen.items()},
            **new_meanings(newest.state.transactions, batch.meanings),
        }  # fmt: skip

    return end.append(snapshot, batch.files, values, entry_facts(batch), on_time)


def replay(end: Appender, snapshot: PipelineSnapshot, replay: Replay) -> int:
    """Add the rows of dead letters, and list the dead letters to remove. It needs no epoch.

    Raises Overtaken when the dead letters may have been replayed meanwhile, or the table was rewound; PrivacyChanged.
    """

    def check(newest: PipelineSnapshot) -> None:
        check_privacy(end, newest, replay.privacy)
        if newest.replays != replay.generation:
            raise Overtaken(
                f"another replay of pipeline {end.pipeline!r} was committed meanwhile; its dead letters are read again"
            )
        if newest.rewinds != snapshot.rewinds:
            raise Overtaken(f"pipeline {end.pipeline!r} was rewound meanwhile; its dead letters are read again")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        return {
            f"{end.pipeline}/replay": replay.generation + 1,
            **new_meanings(newest.state.transactions, replay.meanings),
        }

    return end.append(snapshot, replay.files, values, entry_facts(replay), check)


def rewrite(end: Appender, snapshot: PipelineSnapshot, rewrite: Rewrite) -> int:
    """Swap files, atomically where the format can. It needs no epoch. `snapshot`: where the files were listed.

    Raises FilesGone when one of those that it removes, or goes by, is not there any more,
    LiveDeleteFiles when rows of those that it goes by are deleted.
    """
    columns = snapshot.state.metadata["partitionColumns"]
    moves_only = not (rewrite.changes or (rewrite.taken and rewrite.taken.rows))
    gone = [removed(file, columns, datetime.now(UTC), moves_only=moves_only) for file in rewrite.removed]
    there = _still_there(end, snapshot, [*rewrite.removed, *rewrite.by])

    def check(newest: PipelineSnapshot) -> None:
        there(newest)
        if rewrite.by:
            end.check_deletes(rewrite.by)

    return end.append(snapshot, rewrite.files, {}, entry_facts(rewrite), check, Swap(gone, moves_only))


def reprocess(end: Appender, snapshot: PipelineSnapshot, wanted: Reprocess) -> int:
    """Swap rows of a bucket for what their records are by now. It needs no epoch. `snapshot`: where files were listed.

    Raises FilesGone when one of those that it removes is not there any more, PrivacyChanged.
    """
    columns, now = snapshot.state.metadata["partitionColumns"], datetime.now(UTC)
    there = _still_there(end, snapshot, wanted.removed)

    def check(newest: PipelineSnapshot) -> None:
        check_privacy(end, newest, wanted.privacy)
        there(newest)

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        return new_meanings(newest.state.transactions, wanted.meanings)

    return end.append(
        snapshot, [*wanted.files, *wanted.rest], values, entry_facts(wanted), check,
        Swap([removed(file, columns, now) for file in wanted.removed]), moment="reprocess",
    )  # fmt: skip


def _still_there(end: Appender, snapshot: PipelineSnapshot, files: Sequence[BucketFile]) -> Check:
    """Return what raises FilesGone where one of the files, listed at the snapshot, is not there any more."""
    table, looked = snapshot.state.place

    def check(newest: PipelineSnapshot) -> None:
        nonlocal looked
        if newest.state.metadata["id"] != table:
            raise FilesGone(f"the table at {end.location} was removed and made again meanwhile")
        _check_there(end, files, looked, newest.version)
        looked = newest.version

    return check


def _check_there(end: Appender, files: Sequence[BucketFile], since: int, until: int) -> None:
    """Raise FilesGone if an entry after `since` removes one of the files, or cannot be read any more."""
    mine = {file.path for file in files}
    looked = [(version, actions) for version, actions in end.entries(since) if version <= until]
    if [version for version, _ in looked] != list(range(since + 1, until + 1)):
        raise FilesGone(f"the log of {end.location} has lost versions after {since}; what they removed is unknown")
    for version, actions in looked:
        lost = mine & {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        if lost:
            raise FilesGone(f"version {version} of {end.location} removed {min(lost)}, which was read to rewrite files")


def rewind(end: Appender, snapshot: PipelineSnapshot, wanted: Rewind) -> int:
    """Go back on exactly this snapshot; raise the epoch: older ones are fenced from then on. Raises CommitFailed."""
    ends = snapshot.parts() if wanted.undo is None else wanted.undo.frontier
    for r in wanted.ranges:
        assert ends.get(r.part) == r.end, f"{r.part}: a rewind ends at the frontier"

    def check(newest: PipelineSnapshot) -> None:
        if newest.state.place != snapshot.state.place:
            raise CommitFailed(
                f"the table at {end.location} was written to meanwhile (version {newest.version}); nothing was "
                "rewound. Stop the pipeline's driver, then look again."
            )

    columns, now = snapshot.state.metadata["partitionColumns"], datetime.now(UTC)
    gone, files = _swapped(wanted)
    swap = Swap([removed(file, columns, now) for file in gone])
    values = _values(end.pipeline, snapshot, wanted)
    return end.append(snapshot, files, values, entry_facts(wanted), check, swap, moment="rewind")


def _swapped(wanted: Rewind) -> tuple[list[BucketFile], list[StagedFile]]:
    """Return the files that go and those that come: of what comes back, only what the rewind leaves."""
    if wanted.undo is None:
        return list(wanted.removed), list(wanted.files)
    back, taken = ({file.path for file in files} for files in (wanted.undo.back, wanted.removed))
    gone = [*wanted.undo.gone, *(file for file in wanted.removed if file.path not in back)]
    return gone, [*wanted.files, *(file for file in wanted.undo.back if file.path not in taken)]


def _values(pipeline: str, snapshot: PipelineSnapshot, wanted: Rewind) -> dict[str, int]:
    """Return the `txn` values as they are from then on."""
    frontier = wanted.undo.frontier if wanted.undo else {}
    moved = {part: offset for part, offset in frontier.items() if snapshot.frontier(part) != offset}
    values = frontier_values(snapshot, {**moved, **{r.part: r.start for r in wanted.ranges}}, wanted.marks)
    values |= {seen_name(pipeline, part): NEVER if at is None else at for part, at in wanted.seen.items()}
    values |= closed_values(snapshot, wanted.closed_until)
    values |= {
        closed_name(pipeline, one.number): NEVER if one.closed_until is None else microseconds(one.closed_until)
        for one in wanted.targets
        if one.closed_until != snapshot.closed_target(one.number)
    }
    values |= {changes_name(pipeline, gap): snapshot.changes(gap) + 1 for gap in wanted.gaps}  # fences a backfill
    ended = snapshot.gap_sums
    return {
        **values, f"{pipeline}/gaps_ended": ended["gaps_ended"] + len(wanted.gaps),
        f"{pipeline}/gap_offsets_ended": ended["gap_offsets_ended"] + sum(wanted.gaps.values()),
        f"{pipeline}/closed": max(wanted.closed, snapshot.closed), f"{pipeline}/epoch": snapshot.epoch + 1,
        f"{pipeline}/rewinds": snapshot.rewinds + 1,
    }  # fmt: skip
