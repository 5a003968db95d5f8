"""Commits that add, replace or remove rows: batches, replays, rewrites, reprocesses."""

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from writer.core.files import BucketFile
from writer.table.log.appender import Appender, Check, Swap, check_privacy
from writer.table.log.entries import entry_facts, remove_action
from writer.table.log.foreign_writes import BucketsClosed, FilesGone, Overtaken
from writer.table.log.operations import Batch, Replay, Reprocess, Rewrite
from writer.table.log.schema_ids import new_meanings
from writer.table.log.snapshot import PipelineSnapshot, event_time_name, frontier_values


def commit(appender: Appender, snapshot: PipelineSnapshot, batch: Batch) -> int:
    """Add the files and move the frontier, atomically; then readers see the files.

    Raises Fenced, BucketsClosed, PrivacyChanged.
    """

    def check(newest: PipelineSnapshot) -> None:
        appender.check_owner(newest, batch.epoch, batch.ranges)
        check_privacy(appender, newest, batch.privacy)
        if newest.closed_until != batch.closed_until:
            raise BucketsClosed(
                f"buckets are closed until {newest.closed_until} by now, rows were judged by {batch.closed_until}"
            )
        if newest.closed_targets != batch.closed_targets:
            raise BucketsClosed("buckets of tables of the route were closed since rows were judged")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        pipeline = appender.pipeline
        range_ends = {offset_range.part: offset_range.end for offset_range in batch.ranges}
        event_times = batch.newest_event_times.items()
        return {
            **frontier_values(newest, range_ends, batch.marks),
            f"{pipeline}/epoch": batch.epoch,
            f"{pipeline}/settled": batch.settled,
            **{event_time_name(pipeline, part): event_time for part, event_time in event_times},
            **new_meanings(newest.state.transactions, batch.meanings),
        }

    return appender.append(snapshot, batch.files, values, entry_facts(batch), check)


def replay(appender: Appender, snapshot: PipelineSnapshot, replay: Replay) -> int:
    """Add the rows of dead letters, and list the dead letters to remove. It needs no epoch.

    Raises Overtaken when the dead letters may have been replayed meanwhile, or the table was rewound; PrivacyChanged.
    """
    pipeline = appender.pipeline

    def check(newest: PipelineSnapshot) -> None:
        check_privacy(appender, newest, replay.privacy)
        if newest.replays != replay.generation:
            raise Overtaken(
                f"another replay of pipeline {pipeline!r} was committed meanwhile; its dead letters are read again"
            )
        if newest.rewinds != snapshot.rewinds:
            raise Overtaken(f"pipeline {pipeline!r} was rewound meanwhile; its dead letters are read again")

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        meanings = new_meanings(newest.state.transactions, replay.meanings)
        return {f"{pipeline}/replay": replay.generation + 1, **meanings}

    return appender.append(snapshot, replay.files, values, entry_facts(replay), check)


def rewrite(appender: Appender, snapshot: PipelineSnapshot, rewrite: Rewrite) -> int:
    """Swap files, atomically where the format can. It needs no epoch. `snapshot`: where the files were listed.

    Raises FilesGone when one of those that it removes, or goes by, is not there any more,
    LiveDeleteFiles when rows of those that it goes by are deleted.
    """
    columns = snapshot.state.metadata["partitionColumns"]
    removes_rows = rewrite.removed_rows is not None and rewrite.removed_rows.rows > 0
    moves_only = not rewrite.changes and not removes_rows
    removals = [remove_action(file, columns, datetime.now(UTC), moves_only=moves_only) for file in rewrite.removed]
    check_files = _files_check(appender, snapshot, [*rewrite.removed, *rewrite.by])

    def check(newest: PipelineSnapshot) -> None:
        check_files(newest)
        if rewrite.by:
            appender.check_deletes(rewrite.by)

    return appender.append(snapshot, rewrite.files, {}, entry_facts(rewrite), check, Swap(removals, moves_only))


def reprocess(appender: Appender, snapshot: PipelineSnapshot, reprocess: Reprocess) -> int:
    """Swap rows of a bucket for what their records are by now. It needs no epoch. `snapshot`: where files were listed.

    Raises FilesGone when one of those that it removes is not there any more, PrivacyChanged.
    """
    columns = snapshot.state.metadata["partitionColumns"]
    now = datetime.now(UTC)
    swap = Swap([remove_action(file, columns, now) for file in reprocess.removed])
    check_files = _files_check(appender, snapshot, reprocess.removed)

    def check(newest: PipelineSnapshot) -> None:
        check_privacy(appender, newest, reprocess.privacy)
        check_files(newest)

    def values(newest: PipelineSnapshot) -> dict[str, int]:
        return new_meanings(newest.state.transactions, reprocess.meanings)

    files = [*reprocess.files, *reprocess.remainders]
    return appender.append(snapshot, files, values, entry_facts(reprocess), check, swap, fault_point="reprocess")


def _files_check(appender: Appender, snapshot: PipelineSnapshot, files: Sequence[BucketFile]) -> Check:
    """Return what raises FilesGone where one of the files, listed at the snapshot, is not there any more."""
    table_id, checked_version = snapshot.state.table_version

    def check(newest: PipelineSnapshot) -> None:
        nonlocal checked_version
        if newest.state.metadata["id"] != table_id:
            raise FilesGone(f"the table at {appender.location} was removed and made again meanwhile")
        _check_removals(appender, files, checked_version, newest.version)
        checked_version = newest.version

    return check


def _check_removals(appender: Appender, files: Sequence[BucketFile], since: int, until: int) -> None:
    """Raise FilesGone if an entry after `since` removes one of the files, or cannot be read any more."""
    paths = {file.path for file in files}
    entries = [(version, actions) for version, actions in appender.entries(since) if version <= until]
    if [version for version, _ in entries] != list(range(since + 1, until + 1)):
        raise FilesGone(f"the log of {appender.location} has lost versions after {since}; what they removed is unknown")
    for version, actions in entries:
        removed_paths = {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        if lost_paths := paths & removed_paths:
            raise FilesGone(
                f"version {version} of {appender.location} removed {min(lost_paths)}, which was read to rewrite files"
            )
