"""The three entries of a gap's life: one opens its ticket and moves the frontier, others fill it, one gives it up."""

from collections.abc import Callable

from writer.errors import ConfigError
from writer.tables.append import Appender, Check
from writer.tables.changes import Fill, Gap, Loss
from writer.tables.entry import fill_said, gap_said, loss_said
from writer.tables.errors import Overtaken
from writer.tables.schema_ids import unrecorded
from writer.tables.snapshot import PipelineSnapshot, app_id, changes_name
from writer.tables.vintage import FORMAT


class TooOld(ConfigError):
    """The table has a log of an older format, which the entry would make unreadable for its driver."""


def record(end: Appender, snapshot: PipelineSnapshot, gap: Gap, check: Check) -> int:
    """Append the entry that opens a gap and moves the frontier over it. `check`: owner and frontier."""

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        pipeline, sums = end.pipeline, newest.gap_sums
        return {
            **{app_id(pipeline, r.part): r.end for r in gap.ranges},
            f"{pipeline}/epoch": gap.epoch + int(gap.takes_over),
            f"{pipeline}/gaps": sums["gaps"] + 1, f"{pipeline}/gap_offsets": sums["gap_offsets"] + gap.offsets,
        }  # fmt: skip

    return end.append(snapshot, [], values, gap_said(gap), check)


def fill(end: Appender, snapshot: PipelineSnapshot, fill: Fill) -> int:
    """Append the entry that settles some of a gap's offsets, with the files of their records."""
    offsets = fill.offsets + (fill.left if fill.done else 0)
    values, check = _changing(end, fill, offsets, ended=fill.done)
    return end.append(snapshot, fill.files, values, fill_said(fill), check, moment="fill")


def give_up(end: Appender, snapshot: PipelineSnapshot, loss: Loss) -> int:
    """Append the entry that ends a gap without its records."""
    values, check = _changing(end, loss, loss.left, ended=True)
    return end.append(snapshot, [], values, loss_said(loss), check)


def _changing(
    end: Appender, change: Fill | Loss, offsets: int, *, ended: bool
) -> tuple[Callable[[PipelineSnapshot], dict[str, int]], Check]:
    """Return what a change of a ticket sets, and the check that it is the next one."""
    pipeline = end.pipeline

    def check(newest: PipelineSnapshot) -> None:
        if newest.format < FORMAT:
            raise TooOld(
                f"the log of the table at {end.location} has format {newest.format}, a filled gap needs {FORMAT}: "
                f"start pipeline {pipeline!r} once with this headrace, then fill it."
            )
        if newest.changes(change.gap) != change.generation:
            raise Overtaken(f"gap {change.gap} of pipeline {pipeline!r} changed meanwhile: look again what is open")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        sums = newest.gap_sums
        return {
            changes_name(pipeline, change.gap): change.generation + 1,
            f"{pipeline}/gaps_ended": sums["gaps_ended"] + int(ended),
            f"{pipeline}/gap_offsets_ended": sums["gap_offsets_ended"] + offsets,
            **(unrecorded(newest.state.transactions, change.meanings) if isinstance(change, Fill) else {}),
        }

    return values, check
