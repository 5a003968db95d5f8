"""The tables of one pipeline: its own, and those of dead letters and late rows, which redo keeps up with it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache

from writer.rooms.columnar import StagedFile
from writer.tables.table import PipelineTable


class Tables:
    """All tables of one pipeline, each opened once, so that it follows its log."""

    def __init__(self, main: PipelineTable, opened: Callable[[str], PipelineTable]) -> None:
        """`opened` opens the side table at a location."""
        self.main, self.side = main, cache(opened)
        self.settled = -1  # version up to which side files are known to be applied

    def redo(self, despite: Collection[int] = ()) -> None:
        """End what commits began: let readers see their files, and apply to the side tables what newer ones list.

        Safe to run again, at any time. Raises ForeignChange when another client did what the ledger does not survive,
        but at the versions `despite` which the caller is about to answer it; CommitFailed.
        """
        snapshot = self.main.snapshot()
        self.main.publish(snapshot)
        since = max(self.settled, snapshot.settled)
        settled = max(since, snapshot.version)
        for committed in self.main.commits_since(since, despite):
            settled = max(settled, committed.version)
            for location in {**committed.side_files, **committed.withdrawn}:
                files, withdrawn = committed.side_files.get(location, ()), committed.withdrawn.get(location, {})
                why = "rewind" if committed.facts.get("kind") == "rewind" else ""
                self.side(location).apply_side(committed.version, files, withdrawn, why)
        self.settled = settled

    def discard(self, files: Iterable[StagedFile], side_files: Mapping[str, Iterable[StagedFile]]) -> None:
        """Remove staged files that no commit will name; what stays is an orphan. Raises OSError."""
        self.main.discard(files)
        for location, found in side_files.items():
            self.side(location).discard(found)
