"""Commits that answer to the past of a table: rewinds, and acceptances of what other clients did.

They raise the epoch: older ones are fenced from then on.
"""

from datetime import UTC, datetime

from writer.core.files import BucketFile, StagedFile
from writer.core.units import microseconds
from writer.table.log.appender import Appender, Check, Swap
from writer.table.log.entries import entry_facts, remove_action
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.operations import Acceptance, Rewind
from writer.table.log.snapshot import (
    NEVER,
    PipelineSnapshot,
    closed_name,
    closed_values,
    event_time_name,
    frontier_values,
    gap_changes_name,
)


def accept(appender: Appender, snapshot: PipelineSnapshot, acceptance: Acceptance) -> int:
    """Accept what other clients did, on exactly this snapshot. Raises CommitFailed."""
    check = _unchanged_check(appender, snapshot, "nothing was accepted. Stop its writer, then look again.")
    values = {f"{appender.pipeline}/epoch": snapshot.epoch + 1}
    return appender.append(snapshot, [], values, entry_facts(acceptance), check, fault_point="accept")


def rewind(appender: Appender, snapshot: PipelineSnapshot, rewind: Rewind) -> int:
    """Go back on exactly this snapshot. Raises CommitFailed."""
    frontiers = snapshot.parts() if rewind.undo is None else rewind.undo.frontier
    for offset_range in rewind.ranges:
        part = offset_range.part
        assert frontiers.get(part) == offset_range.end, f"{part}: a rewind ends at the frontier"
    check = _unchanged_check(appender, snapshot, "nothing was rewound. Stop the pipeline's driver, then look again.")
    columns = snapshot.state.metadata["partitionColumns"]
    now = datetime.now(UTC)
    removed_files, files = _files_to_swap(rewind)
    swap = Swap([remove_action(file, columns, now) for file in removed_files])
    values = _rewind_values(appender.pipeline, snapshot, rewind)
    return appender.append(snapshot, files, values, entry_facts(rewind), check, swap, fault_point="rewind")


def _unchanged_check(appender: Appender, snapshot: PipelineSnapshot, outcome: str) -> Check:
    """Return what raises CommitFailed where any entry follows the snapshot. `outcome`: what it says of the commit."""

    def check(newest: PipelineSnapshot) -> None:
        if newest.state.table_version != snapshot.state.table_version:
            raise CommitFailed(
                f"the table at {appender.location} was written to meanwhile (version {newest.version}); {outcome}"
            )

    return check


def _files_to_swap(rewind: Rewind) -> tuple[list[BucketFile], list[StagedFile]]:
    """Return the files that go and those that come.

    A restored file that the rewind removes rows of neither comes nor goes: what is left of it comes.
    """
    if rewind.undo is None:
        return list(rewind.removed), list(rewind.files)
    restored_paths = {file.path for file in rewind.undo.restored}
    removed_paths = {file.path for file in rewind.removed}
    removed_files = [*rewind.undo.removed, *(file for file in rewind.removed if file.path not in restored_paths)]
    files = [*rewind.files, *(file for file in rewind.undo.restored if file.path not in removed_paths)]
    return removed_files, files


def _rewind_values(pipeline: str, snapshot: PipelineSnapshot, rewind: Rewind) -> dict[str, int]:
    """Return the `txn` values as they are from then on."""
    undone_frontier = rewind.undo.frontier if rewind.undo else {}
    frontiers = {part: offset for part, offset in undone_frontier.items() if snapshot.frontier(part) != offset}
    frontiers |= {offset_range.part: offset_range.start for offset_range in rewind.ranges}
    values = frontier_values(snapshot, frontiers, rewind.marks)
    for part, event_time in rewind.newest_event_times.items():
        values[event_time_name(pipeline, part)] = NEVER if event_time is None else event_time
    values |= closed_values(snapshot, rewind.closed_until)
    for target in rewind.targets:
        until = target.closed_until
        if until != snapshot.closed_target(target.number):
            values[closed_name(pipeline, target.number)] = NEVER if until is None else microseconds(until)
    for gap in rewind.gaps:
        # It fences a backfill.
        values[gap_changes_name(pipeline, gap)] = snapshot.gap_changes(gap) + 1
    gap_sums = snapshot.gap_sums
    return {
        **values,
        f"{pipeline}/gaps_ended": gap_sums["gaps_ended"] + len(rewind.gaps),
        f"{pipeline}/gap_offsets_ended": gap_sums["gap_offsets_ended"] + sum(rewind.gaps.values()),
        f"{pipeline}/closed": max(rewind.closed, snapshot.closed),
        f"{pipeline}/epoch": snapshot.epoch + 1,
        f"{pipeline}/rewinds": snapshot.rewinds + 1,
    }
