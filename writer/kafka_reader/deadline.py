"""How long a question to brokers may still take, however often it is asked again."""

import time

from headrace.writer.core.backoff import Backoff

_RETRIES = Backoff(first_s=0.05, max_s=1.0, jitter=0.2)


class Deadline:
    """Counts seconds down from now. For one thread, but for `left_s` and `is_over`."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds
        self._pauses = 0

    @property
    def left_s(self) -> float:
        """Seconds that are left, 0 at least."""
        return max(0.0, self._end_s - time.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether no time is left."""
        return self.left_s <= 0

    def pause(self) -> bool:
        """Wait before the next try: longer each time, and not beyond the end. Returns whether time is left."""
        time.sleep(min(_RETRIES.random_delay_s(self._pauses), self.left_s))
        self._pauses += 1
        return not self.is_over
