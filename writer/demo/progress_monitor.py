"""Follows the demo's writer: its status for the screen, and the logs of its tables for the proof."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.demo.devstack.lake import Lake
from headrace.writer.demo.status_view import View
from headrace.writer.demo.table_reader import Commit, TableLog
from headrace.writer.demo.terminal import Screen
from headrace.writer.table.log.snapshot import app_id

# Nobody reads a status that changes more often.
_EVERY = timedelta(milliseconds=500)


class ProgressMonitor:
    """Shows the writer's status again and again, and follows the logs of both tables."""

    def __init__(
        self,
        tables: Lake,
        table: str,
        dead_letters: str,
        pipeline: str,
        screen: Screen,
        *,
        title: str,
        ask_status: Callable[[], Mapping[str, Any] | None],
    ) -> None:
        """`ask_status`: the pipeline's part of the writer's `/status`; None while it does not answer."""
        self._table = TableLog(table, tables.stores)
        self._dead_letters = TableLog(dead_letters, tables.stores)
        self._pipeline = pipeline
        self._screen = screen
        self._ask_status = ask_status
        self._shown_s = float("-inf")
        self.title = title

    def update(self, produced: int | None, *, total: int = 0) -> bool:
        """Read what is new and show it, at most twice a second. Returns whether it did.

        `produced`, `total`: events that the broker acknowledged, and those that will be sent; None: none any more.
        """
        if time.monotonic() - self._shown_s < _EVERY.total_seconds():
            return False
        self._shown_s = time.monotonic()
        self._table.follow()
        self._show(produced, total)
        return True

    def show_final(self, title: str, produced: int) -> None:
        """Show the status once more under another title, because nothing changes any more."""
        self.title = title
        self._show(produced, produced)

    def _show(self, produced: int | None, total: int) -> None:
        self._screen.show(View(self.title, self._pipeline, produced, total, self._ask_status()))

    @property
    def is_started(self) -> bool:
        """Whether the writer has taken the table over."""
        return self._table.transactions.get(f"{self._pipeline}/epoch", 0) > 0

    @property
    def commits(self) -> int:
        """Number of batches in the table, at the last read."""
        return len(self._table.commits)

    def since(self, count: int) -> Sequence[Commit]:
        """Commits after the first `count`."""
        return self._table.commits[count:]

    def frontier(self, source: Source) -> int:
        """Return how far a partition is committed; 0 before the writer has made the table."""
        return self._table.transactions.get(self.name(source), 0)

    def committed_offsets(self, sources: Iterable[Source]) -> dict[Source, int]:
        """How far each of these partitions is committed by now."""
        self._table.follow()
        return {source: self.frontier(source) for source in sources}

    def name(self, source: Source) -> str:
        """Name of a partition's `txn`; each topic of the demo has one incarnation."""
        return app_id(self._pipeline, TopicPartition(source[0], 1, source[1]))

    def has_committed(self, ends: Mapping[Source, int]) -> bool:
        """Whether everything up to these ends is in both tables."""
        if any(self.frontier(source) < log_end for source, log_end in ends.items()):
            return False
        listed = [commit.version for commit in self._table.commits if commit.facts["side_files"]]
        self._dead_letters.follow()
        return not listed or self._dead_letters.transactions.get(f"{self._pipeline}/main", -1) >= listed[-1]
