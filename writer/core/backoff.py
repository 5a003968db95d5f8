"""Exponential backoff: how long to wait before an operation that failed is tried again."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Delays that double from `first_s` up to `max_s`. `jitter`: share, from 0 to 1, that a draw may take off."""

    first_s: float
    max_s: float
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.max_s or not 0 <= self.jitter <= 1:
            raise ValueError(f"a backoff must be positive and rise, and its jitter be a share, got {self}")

    def delay_s(self, attempt: int, draw: float = 1.0) -> float:
        """Return the delay after a failed attempt, counted from 0. `draw`, from 0 to 1: 1 leaves all of it."""
        return min(self.first_s * 2.0 ** min(attempt, 32), self.max_s) * (1 - self.jitter * (1 - draw))

    def random_delay_s(self, attempt: int) -> float:
        """Return the delay with a random draw, so that processes that failed together do not return together."""
        return self.delay_s(attempt, random.random())  # noqa: S311 - jitter
