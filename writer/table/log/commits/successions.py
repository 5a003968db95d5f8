"""Commits that end a log, as another table or format takes its place, and the one that lets it go on."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.writer.core.offsets import TopicPartition
from headrace.writer.table.log.appender import Appender
from headrace.writer.table.log.entries import write_actions
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.log import Action
from headrace.writer.table.log.snapshot import SUPERSEDED, PipelineSnapshot


def convert(
    appender: Appender, facts: Mapping[str, Any], properties: Mapping[str, str], rules: Sequence[Action]
) -> int:
    """Append the last entry of a log: the table goes on in another format. A second time does nothing.

    No writer follows it; it needs no epoch. `rules`: actions that keep other clients from writing.
    """

    def convert(snapshot: PipelineSnapshot) -> int:
        if snapshot.converted >= 0:
            return snapshot.converted
        if snapshot.epoch:
            # No answer to another client's change could follow. Side tables have no starts.
            appender.commits_since(snapshot.settled)
        version = snapshot.version + 1
        values = {f"{appender.pipeline}/converted": version}
        actions = write_actions(snapshot.state, [], values, {"kind": "convert", **facts}, properties)
        appender.put(snapshot, [*actions, *rules])
        return version

    return appender.retry_lost_races(convert)


def supersede(
    appender: Appender, frontier: Mapping[TopicPartition, int], location: str, facts: Mapping[str, Any]
) -> int:
    """Put the table at another location in the place of this one: no writer follows. A second time does nothing.

    `frontier`: of the table as it was read. Raises CommitFailed where the writer moved it since.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        if snapshot.superseded_by == location:
            return snapshot.version
        if snapshot.parts() != frontier:
            raise CommitFailed(
                f"the table at {appender.location} was written to meanwhile (version {snapshot.version}); nothing was "
                "promoted. Stop its writer, then promote again."
            )
        # No answer to another client's change could follow.
        appender.commits_since(snapshot.settled)
        return _set_successor(appender, snapshot, location, facts)

    return appender.retry_lost_races(change)


def revive(appender: Appender, facts: Mapping[str, Any]) -> int:
    """Let the log of a superseded table go on. A second time does nothing."""

    def change(snapshot: PipelineSnapshot) -> int:
        return _set_successor(appender, snapshot, "", facts) if snapshot.superseded_by else snapshot.version

    return appender.retry_lost_races(change)


def _set_successor(appender: Appender, snapshot: PipelineSnapshot, location: str, facts: Mapping[str, Any]) -> int:
    """Write the entry that names the table that takes this one's place; an empty location: none does."""
    all_facts = {"kind": "promote", "superseded_by": location, **facts}
    actions = write_actions(snapshot.state, [], {}, all_facts, {SUPERSEDED: location})
    appender.put(snapshot, actions, revives=not location)
    return snapshot.version + 1
