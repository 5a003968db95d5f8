"""Wall and monotonic clocks of a process that a test steps."""

from datetime import UTC, datetime, timedelta

from headrace.writer.driver.clock_steps import ClockComparison
from tests.support.commits import NOON


class Clocks:
    """A wall clock and a monotonic one, which a test moves."""

    def __init__(self) -> None:
        self.monotonic_s = 1_000.0
        self.wall_s = NOON.timestamp()

    def pass_time(self, seconds: float) -> None:
        self.monotonic_s += seconds
        self.wall_s += seconds

    def step(self, by: timedelta) -> None:
        self.wall_s += by.total_seconds()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.wall_s, UTC)

    def seconds(self) -> float:
        return self.monotonic_s

    def comparison(self) -> ClockComparison:
        return ClockComparison(lambda: self.wall_s, self.seconds)
