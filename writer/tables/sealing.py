"""The two entries that end a bucket: one closes all that end by an instant, one seals some as manifests say."""

from writer.tables.append import Appender
from writer.tables.changes import Closing, Sealing
from writer.tables.entry import close_said, seal_said, touched
from writer.tables.errors import Resealed
from writer.tables.snapshot import PipelineSnapshot, closed_name
from writer.units import microseconds


class _FarEnough(Exception):
    """Somebody closed that far already, or took the table back meanwhile."""


def close(end: Appender, snapshot: PipelineSnapshot, closing: Closing) -> int | None:
    """Append the entry that moves `closed_until` forward. Returns where it stands.

    None: it is that far already, or the table was rewound since the snapshot.
    """

    def check(newest: PipelineSnapshot) -> None:
        if newest.closed_until is not None and newest.closed_until >= closing.until:
            raise _FarEnough
        if newest.rewinds != snapshot.rewinds:
            raise _FarEnough  # what led to this instant may be gone: whoever wants it looks again

    values = {closed_name(end.pipeline): microseconds(closing.until)}
    try:
        return end.append(snapshot, [], values, close_said(closing), check, moment="close")
    except _FarEnough:
        return None


def seal(end: Appender, snapshot: PipelineSnapshot, sealing: Sealing) -> int:
    """Append the entry that seals buckets, unless one of them was touched since the snapshot. Raises Resealed."""
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

    return end.append(snapshot, [], {}, seal_said(sealing), check, moment="seal")
