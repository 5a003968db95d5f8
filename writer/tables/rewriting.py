"""The entry that swaps files: what is removed, and what stands for it. The log fences it, by what it removes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import unquote

from writer.tables.append import Appender, Swap
from writer.tables.changes import Rewrite
from writer.tables.entry import removed, rewrite_said
from writer.tables.errors import FilesGone
from writer.tables.parts import BucketFile
from writer.tables.snapshot import PipelineSnapshot


def rewrite(end: Appender, snapshot: PipelineSnapshot, rewrite: Rewrite) -> int:
    """Append the entry, for as long as all files that it removes are there. Raises FilesGone."""
    table, looked = snapshot.state.place

    def check(newest: PipelineSnapshot) -> None:
        nonlocal looked
        if newest.state.metadata["id"] != table:
            raise FilesGone(f"the table at {end.location} was removed and made again meanwhile")
        _check_there(end, rewrite.removed, looked, newest.version)
        looked = newest.version

    columns, moves_only = snapshot.state.metadata["partitionColumns"], not (rewrite.taken and rewrite.taken.rows)
    gone = [removed(file, columns, datetime.now(UTC), moves_only=moves_only) for file in rewrite.removed]
    return end.append(snapshot, rewrite.files, {}, rewrite_said(rewrite), check, Swap(gone, moves_only))


def _check_there(end: Appender, files: Sequence[BucketFile], since: int, until: int) -> None:
    """Raise FilesGone when an entry after `since` removes one of the files, or cannot be looked at any more."""
    mine = {file.path for file in files}
    looked = [(version, actions) for version, actions in end.entries(since) if version <= until]
    if [version for version, _ in looked] != list(range(since + 1, until + 1)):
        raise FilesGone(f"the log of {end.location} has lost versions after {since}; what they removed is unknown")
    for version, actions in looked:
        lost = mine & {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        if lost:
            raise FilesGone(f"version {version} of {end.location} removed {min(lost)}, which was to be rewritten")
