"""How fast, and how far behind: what a person asks first. Pure; every moment is handed in, as seconds that rise."""

from collections import deque
from collections.abc import Mapping

from writer.rooms.report import Source


class Rate:
    """Records per second over the last `window` seconds."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._noted: deque[tuple[float, int]] = deque()

    def note(self, at: float, total: int) -> None:
        """Remember that there were `total` records at a moment."""
        self._noted.append((at, total))
        while len(self._noted) > 1 and self._noted[1][0] <= at - self._window:
            self._noted.popleft()

    def per_second(self) -> float:
        """Records per second between the first and the last moment of the window; 0 while there is but one."""
        if len(self._noted) < 2:  # noqa: PLR2004 - a rate lies between two moments
            return 0.0
        (first, before), (last, now) = self._noted[0], self._noted[-1]
        return (now - before) / (last - first) if last > first else 0.0


class Lag:
    """How long the oldest record that is not committed has been in the log, to within the time between two notes."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, dict[Source, int]]] = deque()

    def note(self, at: float, ends: Mapping[Source, int]) -> None:
        """Remember where the logs ended at a moment."""
        if not self._noted or self._noted[-1][1] != ends:
            self._noted.append((at, dict(ends)))

    def seconds(self, at: float, frontier: Mapping[Source, int]) -> float:
        """Age, in seconds, of the oldest record at or above the frontier; 0 when there is none."""
        while self._noted and all(frontier.get(source, 0) >= end for source, end in self._noted[0][1].items()):
            self._noted.popleft()
        return at - self._noted[0][0] if self._noted else 0.0
