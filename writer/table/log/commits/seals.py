"""Commits that close and seal buckets. They need no epoch."""

from writer.core.units import microseconds
from writer.table.log.appender import Appender
from writer.table.log.entries import changed_buckets, entry_facts
from writer.table.log.foreign_writes import Resealed
from writer.table.log.operations import Closing, Sealing
from writer.table.log.snapshot import PipelineSnapshot, closed_name


class _NothingToClose(Exception):
    """The buckets are closed up to that instant already, or the table was rewound meanwhile."""


def close(appender: Appender, snapshot: PipelineSnapshot, closing: Closing) -> int | None:
    """Move `closed_until` forward.

    None: it is that far already, or the table was rewound since the snapshot.
    """

    def check(newest: PipelineSnapshot) -> None:
        until = newest.closed_until if closing.target is None else newest.closed_target(closing.target)
        if until is not None and until >= closing.until:
            raise _NothingToClose
        if newest.rewinds != snapshot.rewinds:
            # The rows that led to this instant may be gone: the caller looks again.
            raise _NothingToClose

    values = {closed_name(appender.pipeline, closing.target): microseconds(closing.until)}
    try:
        return appender.append(snapshot, [], values, entry_facts(closing), check, fault_point="close")
    except _NothingToClose:
        return None


def seal(appender: Appender, snapshot: PipelineSnapshot, sealing: Sealing) -> int:
    """Commit that buckets are as their manifests, built from the snapshot, have them.

    Raises Resealed when one of them changed since, or was sealed.
    """
    table_id, checked_version = snapshot.state.table_version
    columns = snapshot.state.metadata["partitionColumns"]
    sealed_buckets = {tuple(manifest["bucket"]) for manifest in sealing.manifests}

    def check(newest: PipelineSnapshot) -> None:
        nonlocal checked_version
        is_gone = newest.state.metadata["id"] != table_id
        entries = []
        if not is_gone:
            entries = [entry for entry in appender.entries(checked_version) if entry[0] <= newest.version]
        if is_gone or len(entries) != newest.version - checked_version:
            raise Resealed(f"what became of {appender.location} after version {checked_version} is unknown; look again")
        for version, actions in entries:
            if buckets := sealed_buckets & changed_buckets(columns, actions):
                raise Resealed(f"version {version} of {appender.location} changed {min(buckets, key=str)}; look again")
        checked_version = newest.version

    return appender.append(snapshot, [], {}, entry_facts(sealing), check, fault_point="seal")
