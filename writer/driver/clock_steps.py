"""Finds steps of the wall clock: a correction by NTP, a machine that was suspended, a person's `date -s`.

Waits and ages go by the monotonic clock, which has none. What cannot, such as an instant that was written down, is told
of a step.
"""

import time
from collections.abc import Callable

# Less is the slewing of a clock that is synchronized, or a thread that waited between the two readings.
STEP_MIN_S = 0.5


class ClockComparison:
    """Compares the wall clock with the monotonic one."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """Both return seconds; `wall_s`: since 1970."""
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._difference_s = self._read()

    def take_step(self) -> float:
        """Return by how many seconds the wall clock stepped since the last call; below 0: back. 0.0: it did not."""
        difference_s = self._read()
        step_s = difference_s - self._difference_s
        # Of a slow drift each look forgets a little, so that it never adds up to a step.
        self._difference_s = difference_s
        return step_s if abs(step_s) >= STEP_MIN_S else 0.0

    def _read(self) -> float:
        before_s = self._monotonic_s()
        wall_s = self._wall_s()
        # The thread may be stopped between the readings: the middle errs by half of that at most.
        return wall_s - (before_s + self._monotonic_s()) / 2
