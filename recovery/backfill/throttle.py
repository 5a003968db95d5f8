"""Decides when a backfill waits: for the live writer, and for its own rate limit. Pure."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from headrace.writer.clients.driver_endpoint import ask_driver, find_announcement
from headrace.writer.config.pipelines import Config
from headrace.writer.status.lag_sample import LagSample

# Seconds between two questions for the live writer's lag.
LAG_CHECK_S = 5.0
# Seconds between two signs of life while it waits.
_SLEEP_S = 1.0
_SLACK_MIN = timedelta(seconds=30)


@dataclass(frozen=True)
class Delay:
    """Wait for these seconds, then decide again. `for_live`: this time does not count against the rate."""

    seconds: float
    why: str
    for_live: bool = False


def lag_max(max_delay: timedelta) -> timedelta:
    """Return the lag beyond which the live writer is behind: up to its delay, and a batch's time, is its normal."""
    return max_delay + max(_SLACK_MIN, max_delay / 2)


def lag_delay(lag_seconds: float | None, limit: timedelta) -> Delay | None:
    """Wait while the live writer is behind. `lag_seconds` None: no writer runs, or it does not know its lag yet."""
    if lag_seconds is None or lag_seconds <= limit.total_seconds():
        return None
    why = f"the live writer is {lag_seconds:.0f} s behind, beyond {limit.total_seconds():.0f} s"
    return Delay(LAG_CHECK_S, why, for_live=True)


def rate_delay(rows: int, seconds: float, rate: float | None) -> Delay | None:
    """Wait until `rows` in `seconds` are no more than the rate (rows a second); None: as fast as it goes."""
    if rate is None:
        return None
    early_s = rows / rate - seconds
    if early_s <= 0:
        return None
    return Delay(early_s, f"{rate:,.0f} rows a second are enough")


def ask_live_lag(config: Config, pipeline: str) -> float | None:
    """Ask the driver how many seconds it is behind; None: none answers, or Kafka does not answer it."""
    announcement = find_announcement(config.checkpoints, pipeline, config.stores)
    if announcement is None:
        return None
    status = ask_driver(announcement, pipeline)
    if status is None:
        return None
    lag = LagSample.from_json(status["lag"])
    return lag.seconds if lag.is_fresh(datetime.fromisoformat(status["at"])) else None


class BackfillPace:
    """Lets tasks take records. Calls `alive` repeatedly while it works or waits, and `on_wait` at a wait's start."""

    def __init__(
        self,
        lag: Callable[[], float | None],
        limit: timedelta,
        rate: float | None,
        *,
        alive: Callable[[], None],
        on_wait: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`lag`: seconds that the live writer is behind, up to `limit` without a wait; `rate`: rows a second."""
        self._lag = lag
        self._limit = limit
        self._rate = rate
        self._alive = alive
        self._on_wait = on_wait
        self._clock = clock
        self._sleep = sleep
        self._start_s = clock()
        # The first wait asks for the lag at once.
        self._lag_check_s = self._start_s - LAG_CHECK_S
        self._rows = 0
        self._waits_for_live_s = 0.0

    def admit_records(self, records: pa.RecordBatch) -> None:
        """Wait until a task may take some records, which count against the rate."""
        self.wait()
        self._rows += records.num_rows

    def wait(self) -> None:
        """Wait until the backfill may go on."""
        self._alive()
        while self._clock() - self._lag_check_s >= LAG_CHECK_S:
            self._lag_check_s = self._clock()
            delay = lag_delay(self._lag(), self._limit)
            if delay is None:
                break
            self._pause(delay)
        seconds = self._clock() - self._start_s - self._waits_for_live_s
        delay = rate_delay(self._rows, seconds, self._rate)
        if delay is not None:
            self._pause(delay)

    def _pause(self, delay: Delay) -> None:
        self._on_wait(delay.why)
        until_s = self._clock() + delay.seconds
        while (left_s := until_s - self._clock()) > 0:
            self._sleep(min(left_s, _SLEEP_S))
            self._alive()
        if delay.for_live:
            self._waits_for_live_s += delay.seconds
