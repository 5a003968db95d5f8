"""Commits of gap records: a gap is recorded, filled by a backfill, or given up."""

from collections.abc import Callable
from functools import partial

from writer.table.log.appender import Appender, Check, check_privacy
from writer.table.log.entries import entry_facts
from writer.table.log.foreign_writes import Overtaken
from writer.table.log.operations import Fill, Gap, Loss
from writer.table.log.schema_ids import new_meanings
from writer.table.log.snapshot import PipelineSnapshot, frontier_values, gap_changes_name


def record_gap(appender: Appender, snapshot: PipelineSnapshot, gap: Gap) -> int:
    """Move the frontier over lost ranges, each from the frontier on, and keep the gap record. Raises Fenced."""

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        pipeline = appender.pipeline
        sums = newest.gap_sums
        range_ends = {offset_range.part: offset_range.end for offset_range in gap.ranges}
        return {
            **frontier_values(newest, range_ends, {}),
            f"{pipeline}/epoch": gap.epoch + int(gap.takes_over),
            f"{pipeline}/gaps": sums["gaps"] + 1,
            f"{pipeline}/gap_offsets": sums["gap_offsets"] + gap.offsets,
        }

    check = partial(appender.check_owner, epoch=gap.epoch, ranges=gap.ranges)
    return appender.append(snapshot, [], values, entry_facts(gap), check)


def fill(appender: Appender, snapshot: PipelineSnapshot, fill: Fill) -> int:
    """Add records of a gap, and settle their offsets. It needs no epoch.

    Raises Overtaken when the gap record changed since it was read, PrivacyChanged.
    """
    closed_offsets = fill.offsets + (fill.left if fill.done else 0)
    values, check = _gap_change(appender, fill, closed_offsets, is_end=fill.done)
    return appender.append(snapshot, fill.files, values, entry_facts(fill), check, fault_point="fill")


def give_up(appender: Appender, snapshot: PipelineSnapshot, loss: Loss) -> int:
    """Close a gap without its records. It needs no epoch. Raises as `fill` does."""
    values, check = _gap_change(appender, loss, loss.left, is_end=True)
    return appender.append(snapshot, [], values, entry_facts(loss), check)


def _gap_change(
    appender: Appender, change: Fill | Loss, closed_offsets: int, *, is_end: bool
) -> tuple[Callable[[PipelineSnapshot], dict[str, int]], Check]:
    """Return the `txn` values that a change of a gap record sets, and the check that it is the next one.

    `closed_offsets`: how many offsets it fills or gives up; `is_end`: the gap record ends with it.
    """
    pipeline = appender.pipeline

    def check(newest: PipelineSnapshot) -> None:
        if isinstance(change, Fill):
            check_privacy(appender, newest, change.privacy)
        if newest.gap_changes(change.gap) != change.generation:
            raise Overtaken(f"gap {change.gap} of pipeline {pipeline!r} changed meanwhile: look again what is open")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        sums = newest.gap_sums
        values = {
            gap_changes_name(pipeline, change.gap): change.generation + 1,
            f"{pipeline}/gaps_ended": sums["gaps_ended"] + int(is_end),
            f"{pipeline}/gap_offsets_ended": sums["gap_offsets_ended"] + closed_offsets,
        }
        if isinstance(change, Fill):
            values |= new_meanings(newest.state.transactions, change.meanings)
        return values

    return values, check
