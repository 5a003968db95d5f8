"""The demo's lake and logs, looked at from outside a few times a second: the numbers of the panel."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from writer.demo.gauge import Lag, Rate
from writer.demo.lake import Commit, TableLog
from writer.demo.panel import View
from writer.demo.screen import Screen
from writer.rooms.report import Source
from writer.tables.parts import Part
from writer.tables.snapshot import app_id

_WINDOW_S = 6.0  # of the rates: several commits, so that the lake's is no sawtooth
_EVERY = timedelta(milliseconds=125)  # a panel that is drawn more often is not seen better


class Watch:
    """Follows the logs of both tables, and shows on the screen how far they are."""

    def __init__(self, lake: Path, dead_letters: Path, pipeline: str, screen: Screen, *, title: str) -> None:
        self._table, self._letters = TableLog(lake), TableLog(dead_letters)
        self._pipeline, self._screen = pipeline, screen
        self._in, self._out, self._lag = Rate(_WINDOW_S), Rate(_WINDOW_S), Lag()
        self._looked = float("-inf")
        self._view: View | None = None
        self.title = title

    def look(self, ends: Mapping[Source, int], *, total: int) -> bool:
        """Read what is new and show it, at most every 125 ms; `total` is where the bars end. Returns whether it did."""
        now = time.monotonic()
        if now - self._looked < _EVERY.total_seconds():
            return False
        self._looked = now
        frontier = self.committed(ends)
        produced, committed = sum(ends.values()), sum(frontier.values())
        self._in.note(now, produced)
        self._out.note(now, committed)
        self._lag.note(now, ends)
        table, commits = self._table, self._table.commits
        self._view = View(
            title=self.title, elapsed=self._screen.elapsed, total=total, produced=produced, committed=committed,
            rate_in=self._in.per_second(), rate_out=self._out.per_second(),
            lag=timedelta(seconds=self._lag.seconds(now, frontier)),
            commits=len(commits), files=len(table.files), bytes=table.bytes, columns=len(table.columns),
            buckets=len(table.buckets), buckets_last=len(commits[-1].buckets) if commits else 0,
            rows=sum(c.count("rows") for c in commits),
            quarantined=sum(c.count("quarantined") for c in commits),
            dead_letters=sum(c.count("dead_letters") for c in commits),
        )  # fmt: skip
        self._screen.show(self._view)
        return True

    def rest(self, title: str) -> None:
        """Show the last look once more, under another title and without rates: nothing moves any more."""
        if self._view is not None:
            self._screen.show(replace(self._view, title=title, rate_in=0.0, rate_out=0.0))

    @property
    def started(self) -> bool:
        """Whether the writer has taken the table over."""
        return self._table.transactions.get(f"{self._pipeline}/epoch", 0) > 0

    @property
    def commits(self) -> int:
        """Number of batches in the table, as of the last look."""
        return len(self._table.commits)

    def since(self, count: int) -> Sequence[Commit]:
        """Commits after the first `count`."""
        return self._table.commits[count:]

    def frontier(self, source: Source) -> int:
        """Return how far a partition is committed; 0 before the writer has made the table."""
        return self._table.transactions.get(self.name(source), 0)

    def committed(self, sources: Iterable[Source]) -> dict[Source, int]:
        """How far each of these partitions is committed by now."""
        self._table.follow()
        return {source: self.frontier(source) for source in sources}

    def name(self, source: Source) -> str:
        """Name of a partition's `txn`; each topic of the demo has one incarnation."""
        return app_id(self._pipeline, Part(source[0], 1, source[1]))

    def reached(self, ends: Mapping[Source, int]) -> bool:
        """Whether everything up to these ends is in both tables."""
        if any(self.frontier(source) < end for source, end in ends.items()):
            return False
        listed = [commit.version for commit in self._table.commits if commit.facts["side_files"]]
        self._letters.follow()
        return not listed or self._letters.transactions.get(f"{self._pipeline}/main", -1) >= listed[-1]
