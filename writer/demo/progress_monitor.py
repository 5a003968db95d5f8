"""Reads the demo's lake and logs a few times a second, for the numbers of the panel."""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from writer.core.offsets import Source, TopicPartition
from writer.demo.panel import View
from writer.demo.table_reader import Commit, TableLog
from writer.demo.terminal import Screen
from writer.table.log.snapshot import app_id


class RecentRate:
    """Records per second over the last `window` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._notes: deque[tuple[float, int]] = deque()

    def note(self, time_s: float, total: int) -> None:
        """Remember that there were `total` records at a moment."""
        self._notes.append((time_s, total))
        while len(self._notes) > 1 and self._notes[1][0] <= time_s - self._window:
            self._notes.popleft()

    def per_second(self) -> float:
        """Records per second between the first and the last moment of the window; 0 while there is but one."""
        if len(self._notes) < 2:  # noqa: PLR2004 - a rate lies between two moments
            return 0.0
        (first, before) = self._notes[0]
        (last, now) = self._notes[-1]
        return (now - before) / (last - first) if last > first else 0.0


class Lag:
    """How long the oldest record that is not committed has been in the log, to within the time between two notes."""

    def __init__(self) -> None:
        self._notes: deque[tuple[float, dict[Source, int]]] = deque()

    def note(self, time_s: float, ends: Mapping[Source, int]) -> None:
        """Remember where the logs ended at a moment."""
        if not self._notes or self._notes[-1][1] != ends:
            self._notes.append((time_s, dict(ends)))

    def seconds(self, time_s: float, frontier: Mapping[Source, int]) -> float:
        """Age, in seconds, of the oldest record at or above the frontier; 0 when there is none."""
        while self._notes and all(frontier.get(source, 0) >= log_end for source, log_end in self._notes[0][1].items()):
            self._notes.popleft()
        return time_s - self._notes[0][0] if self._notes else 0.0


# The window of the rates has several commits, so that the lake's rate is no sawtooth.
_WINDOW_S = 6.0
# Nobody sees a panel that is drawn more often.
_EVERY = timedelta(milliseconds=125)


class ProgressMonitor:
    """Follows the logs of both tables, and shows on the screen how far they are."""

    def __init__(self, lake: Path, dead_letters: Path, pipeline: str, screen: Screen, *, title: str) -> None:
        self._table = TableLog(lake)
        self._dead_letters = TableLog(dead_letters)
        self._pipeline = pipeline
        self._screen = screen
        self._in = RecentRate(_WINDOW_S)
        self._out = RecentRate(_WINDOW_S)
        self._lag = Lag()
        self._looked = float("-inf")
        self._view: View | None = None
        self.title = title

    def update(self, ends: Mapping[Source, int], *, total: int) -> bool:
        """Read what is new and show it, at most every 125 ms; `total` is where the bars end. Returns whether it did."""
        now = time.monotonic()
        if now - self._looked < _EVERY.total_seconds():
            return False
        self._looked = now
        frontier = self.committed_offsets(ends)
        produced = sum(ends.values())
        committed = sum(frontier.values())
        self._in.note(now, produced)
        self._out.note(now, committed)
        self._lag.note(now, ends)
        table = self._table
        commits = self._table.commits
        self._view = View(
            title=self.title,
            elapsed=self._screen.elapsed,
            total=total,
            produced=produced,
            committed=committed,
            rate_in=self._in.per_second(),
            rate_out=self._out.per_second(),
            lag=timedelta(seconds=self._lag.seconds(now, frontier)),
            commits=len(commits),
            files=len(table.files),
            bytes=table.bytes,
            columns=len(table.columns),
            buckets=len(table.buckets),
            buckets_last=len(commits[-1].buckets) if commits else 0,
            rows=sum(c.count("rows") for c in commits),
            quarantined=sum(c.count("quarantined") for c in commits),
            dead_letters=sum(c.count("dead_letters") for c in commits),
        )
        self._screen.show(self._view)
        return True

    def show_final(self, title: str) -> None:
        """Show the last values under another title and without rates, because nothing changes any more."""
        if self._view is not None:
            self._screen.show(replace(self._view, title=title, rate_in=0.0, rate_out=0.0))

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
