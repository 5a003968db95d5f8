"""Decides when a backfill waits: for the live writer, and for its own rate limit. Pure."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from writer.clients.driver_endpoint import ask_driver, find_announcement
from writer.config.pipelines import Config
from writer.maintenance.local_pipeline import Piece
from writer.status.lag_sample import LagSample

LOOK_S = 5.0  # between two looks at the live writer
_NAP_S = 1.0  # between two signs of life while it waits
_SLACK_MIN = timedelta(seconds=30)


@dataclass(frozen=True)
class Delay:
    """Wait for these seconds, then decide again."""

    seconds: float
    why: str
    for_live: bool = False  # time that does not count against the rate


def lag_max(delay_max: timedelta) -> timedelta:
    """Return the lag beyond which the live writer is behind: up to its delay, and a batch's time, is its normal."""
    return delay_max + max(_SLACK_MIN, delay_max / 2)


def by_lag(lag_seconds: float | None, limit: timedelta) -> Delay | None:
    """Wait while the live writer is behind. `lag_seconds` None: no writer runs, or it does not know its lag yet."""
    if lag_seconds is None or lag_seconds <= limit.total_seconds():
        return None
    why = f"the live writer is {lag_seconds:.0f} s behind, beyond {limit.total_seconds():.0f} s"
    return Delay(LOOK_S, why, for_live=True)


def by_rate(rows: int, seconds: float, rate: float | None) -> Delay | None:
    """Wait until `rows` in `seconds` are no more than the rate (rows a second); None: as fast as it goes."""
    early = 0.0 if rate is None else rows / rate - seconds
    return Delay(early, f"{rate:,.0f} rows a second are enough") if early > 0 else None


def live_lag(config: Config, pipeline: str) -> float | None:
    """Ask the driver how many seconds it is behind; None: none answers, or Kafka does not answer it."""
    driver = find_announcement(config.checkpoints, pipeline, config.s3.settings)
    found = ask_driver(driver, pipeline) if driver is not None else None
    if found is None:
        return None
    lag = LagSample.from_json(found["lag"])
    return lag.seconds if lag.is_fresh(datetime.fromisoformat(found["at"])) else None


class BackfillPace:
    """Slows pieces down. Calls `alive` repeatedly while it waits or works, and `on_wait` when it begins to wait."""

    def __init__(
        self, lag: Callable[[], float | None], limit: timedelta, rate: float | None, *, alive: Callable[[], None],
        on_wait: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._lag, self._limit, self._rate = lag, limit, rate
        self._alive, self._on_wait, self._clock, self._sleep = alive, on_wait, clock, sleep
        self._began = self._looked = clock()
        self._rows = 0
        self._looked -= LOOK_S
        self.waited_s = 0.0

    def pieces(self, source: Iterable[Piece]) -> Iterator[Piece]:
        """Yield the pieces, each when it may go."""
        for piece in source:
            self.hold()
            self._rows += piece.records.num_rows
            yield piece

    def hold(self) -> None:
        """Wait until the backfill may go on."""
        self._alive()
        while self._clock() - self._looked >= LOOK_S:
            self._looked = self._clock()
            if not self._pause(by_lag(self._lag(), self._limit)):
                break
        self._pause(by_rate(self._rows, self._clock() - self._began - self.waited_s, self._rate))

    def _pause(self, decision: Delay | None) -> bool:
        if decision is None:
            return False
        self._on_wait(decision.why)
        end = self._clock() + decision.seconds
        while (left := end - self._clock()) > 0:
            self._sleep(min(left, _NAP_S))
            self._alive()
        self.waited_s += decision.seconds if decision.for_live else 0.0
        return True
