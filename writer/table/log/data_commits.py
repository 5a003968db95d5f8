"""The two entries that bring rows of the line: a batch moves the frontier with them, a replay of letters does not."""

from collections.abc import Sequence

from writer.errors import Fenced
from writer.tables.append import Appender, Check
from writer.tables.changes import Batch, Replay
from writer.tables.entry import batch_said, replay_said
from writer.tables.errors import ClosedMeanwhile, Overtaken
from writer.tables.parts import Range
from writer.tables.schema_ids import unrecorded
from writer.tables.snapshot import PipelineSnapshot, app_id, seen_name


def land(end: Appender, snapshot: PipelineSnapshot, batch: Batch, check: Check) -> int:
    """Append the entry of a batch: its files, and the frontier behind its ranges. `check`: owner and frontier."""

    def on_time(newest: PipelineSnapshot) -> None:
        check(newest)
        if newest.closed_until != batch.closed_until:
            raise ClosedMeanwhile(
                f"buckets are closed until {newest.closed_until} by now, rows were judged by {batch.closed_until}"
            )

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        return {
            **{app_id(end.pipeline, r.part): r.end for r in batch.ranges},
            f"{end.pipeline}/epoch": batch.epoch, f"{end.pipeline}/settled": batch.settled,
            **{seen_name(end.pipeline, part): at for part, at in batch.seen.items()},
            **unrecorded(newest.state.transactions, batch.meanings),
        }  # fmt: skip

    return end.append(snapshot, batch.files, values, batch_said(batch), on_time)


def replay(end: Appender, snapshot: PipelineSnapshot, replay: Replay) -> int:
    """Append the entry of a replay: rows of letters, and which letters go."""

    def check(newest: PipelineSnapshot) -> None:
        if newest.replays != replay.generation:
            raise Overtaken(
                f"another replay of pipeline {end.pipeline!r} was committed meanwhile; its letters are read again"
            )
        if newest.rewinds != snapshot.rewinds:
            raise Overtaken(f"pipeline {end.pipeline!r} was rewound meanwhile; its letters are read again")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        return {
            f"{end.pipeline}/replay": replay.generation + 1,
            **unrecorded(newest.state.transactions, replay.meanings),
        }

    return end.append(snapshot, replay.files, values, replay_said(replay), check)


def check_frontier(snapshot: PipelineSnapshot, pipeline: str, ranges: Sequence[Range]) -> None:
    """Raise Fenced unless each range begins at the frontier of its part, or its part is new."""
    for r in ranges:
        at = snapshot.frontier(r.part)
        if at is not None and at != r.start:
            raise Fenced(
                f"offset {at} of {r.part.topic}/{r.part.partition} is committed, this batch starts at {r.start}: "
                f"another writer runs as {pipeline!r}. Stop one of them."
            )
