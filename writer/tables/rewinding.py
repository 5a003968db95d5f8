"""The one entry that goes back: rows from some offsets on leave the table, and the frontier returns to these offsets.

It is put right after the snapshot that it was planned on, or not at all, and raises the epoch: whoever writes the table
looks again, or is fenced. (docs/adr/0024-rewinding-by-offsets.md)
"""

from datetime import UTC, datetime

from writer.rooms.columnar import StagedFile
from writer.tables.append import Appender, Swap
from writer.tables.changes import Rewind
from writer.tables.entry import removed, rewind_said
from writer.tables.errors import CommitFailed
from writer.tables.parts import BucketFile
from writer.tables.snapshot import (
    NEVER,
    PipelineSnapshot,
    app_id,
    changes_name,
    closed_ever_name,
    closed_name,
    seen_name,
)
from writer.tables.vintage import ANSWERED, FORMAT
from writer.units import microseconds


def rewind(end: Appender, snapshot: PipelineSnapshot, wanted: Rewind) -> int:
    """Append the entry, on exactly this snapshot. Returns where it stands. Raises CommitFailed."""
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
    return end.append(snapshot, files, values, rewind_said(wanted), check, swap, moment="rewind")


def _swapped(wanted: Rewind) -> tuple[list[BucketFile], list[StagedFile]]:
    """Return the files that go and those that come: of what comes back, only what the rewind leaves."""
    if wanted.undo is None:
        return list(wanted.removed), list(wanted.files)
    back, taken = ({file.path for file in files} for files in (wanted.undo.back, wanted.removed))
    gone = [*wanted.undo.gone, *(file for file in wanted.removed if file.path not in back)]
    return gone, [*wanted.files, *(file for file in wanted.undo.back if file.path not in taken)]


def _values(pipeline: str, snapshot: PipelineSnapshot, wanted: Rewind) -> dict[str, int]:
    """Return the `txn` values as they are from then on."""
    until, ever = wanted.closed_until, snapshot.closed_ever
    frontier = wanted.undo.frontier if wanted.undo else {}
    values = {app_id(pipeline, part): at for part, at in frontier.items() if snapshot.frontier(part) != at}
    values |= {app_id(pipeline, r.part): r.start for r in wanted.ranges}
    values |= {seen_name(pipeline, part): NEVER if at is None else at for part, at in wanted.seen.items()}
    if ever is not None:
        values |= {
            closed_name(pipeline): NEVER if until is None else microseconds(until),
            closed_ever_name(pipeline): microseconds(ever),
        }
    values |= {changes_name(pipeline, gap): snapshot.changes(gap) + 1 for gap in wanted.gaps}  # fences a backfill
    ended = snapshot.gap_sums
    return {
        **values, f"{pipeline}/gaps_ended": ended["gaps_ended"] + len(wanted.gaps),
        f"{pipeline}/gap_offsets_ended": ended["gap_offsets_ended"] + sum(wanted.gaps.values()),
        f"{pipeline}/closed": max(wanted.closed, snapshot.closed), f"{pipeline}/epoch": snapshot.epoch + 1,
        f"{pipeline}/rewinds": snapshot.rewinds + 1,
        f"{pipeline}/format": max(snapshot.format, ANSWERED if wanted.undo else FORMAT),
    }  # fmt: skip
