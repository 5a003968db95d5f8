"""The two entries that take a pipeline over: a start, and an adoption of topics that go on under other ids.

Each raises the epoch: whoever wrote the table before is fenced from then on.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from writer.errors import Fenced
from writer.tables.append import Appender, LostRace
from writer.tables.changes import Adoption
from writer.tables.errors import CommitFailed, one_line
from writer.tables.parts import Part
from writer.tables.snapshot import INCARNATIONS, PipelineSnapshot, app_id
from writer.tables.vintage import FORMAT

Ids = Mapping[str, Sequence[str]]  # topic → ids of its incarnations


def begin(
    end: Appender, starts: Mapping[Part, int], incarnations: Ids, closed: int, lease: int | None
) -> PipelineSnapshot:
    """Append the entry of a start. Returns the snapshot that it follows. Raises Fenced for a straggler's lease."""

    def start(snapshot: PipelineSnapshot) -> PipelineSnapshot:
        if lease is not None and lease < snapshot.lease:
            raise Fenced(
                f"pipeline {end.pipeline!r} was started under lease {snapshot.lease} of its supervisors, this "
                f"start was ordered under lease {lease}: another supervisor has taken over. Leave it to that one."
            )
        new = {part: offset for part, offset in starts.items() if snapshot.frontier(part) is None}
        older = {"upgraded": {"from": snapshot.format, "to": FORMAT}} if snapshot.epoch else {}
        held = {} if lease is None else {"lease": lease}
        about = {"kind": "start", **held, **(older if snapshot.format < FORMAT else {})}
        _take_over(end, snapshot, new, incarnations, closed, about, lease)
        return snapshot

    return end.retried(start)


def adopt(end: Appender, snapshot: PipelineSnapshot, adoption: Adoption) -> int:
    """Append the entry of an adoption, on exactly this snapshot. Returns where it stands. Raises CommitFailed."""
    assert all(snapshot.frontier(part) is None for part in adoption.starts), "an adoption moves no frontier"
    try:
        about = {"kind": "adopt", **adoption.facts}
        _take_over(end, snapshot, adoption.starts, adoption.incarnations, adoption.closed, about)
    except LostRace as error:
        raise CommitFailed(
            f"the table at {end.location} was written to meanwhile (version {snapshot.version + 1}); nothing was "
            "adopted. Stop the pipeline's driver, then look again."
        ) from error
    except OSError as error:
        raise CommitFailed(f"cannot write to the table at {end.location}: {one_line(error)}") from error
    return snapshot.version + 1


def _take_over(
    end: Appender, snapshot: PipelineSnapshot, starts: Mapping[Part, int], incarnations: Ids, closed: int,
    about: Mapping[str, Any], lease: int | None = None,
) -> None:  # fmt: skip
    pipeline, wanted = end.pipeline, {topic: list(ids) for topic, ids in incarnations.items()}
    values = {app_id(pipeline, part): offset for part, offset in starts.items()}
    values |= {f"{pipeline}/format": FORMAT} if snapshot.format < FORMAT else {}
    values |= {f"{pipeline}/closed": max(closed, snapshot.closed)} if closed else {}
    values |= {} if lease is None else {f"{pipeline}/lease": lease}
    properties = {} if snapshot.incarnations() == wanted else {INCARNATIONS: json.dumps(wanted)}
    end.write(snapshot, [], {**values, f"{pipeline}/epoch": snapshot.epoch + 1}, about, properties)
