"""The budget of requests that all threads of a process share, one for each table."""

import threading
import time
from collections.abc import Callable

from headrace.writer.storage.requests import pace
from headrace.writer.storage.requests.pace import Pace

# Statuses by which a store asks for fewer requests.
THROTTLED = frozenset({429, 503})


class RequestBudget:
    """Lets requests go at a pace, in the order in which their threads came, as far as the lock keeps it."""

    def __init__(
        self,
        limit: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`limit`: requests per second; None: as many as come, while the store does not throttle."""
        self._clock = clock
        self._sleep = sleep
        self._pace = pace.begin(limit, clock())
        self._lock = threading.Lock()
        # One thread waits for its token, the others for that thread.
        self._queue = threading.Lock()

    def await_turn(self) -> float:
        """Wait until one request may go, and count it. Returns the seconds that it waited."""
        began = self._clock()
        with self._queue:
            while True:
                left_s = self._try_take()
                if not left_s:
                    return self._clock() - began
                self._sleep(left_s)

    def _try_take(self) -> float:
        """Count one request if it may go now. Returns 0 then, else the seconds until it may."""
        with self._lock:
            self._pace = pace.advance(self._pace, self._clock())
            left_s = pace.wait_s(self._pace)
            if not left_s:
                self._pace = pace.take(self._pace)
            return left_s

    def delay_s(self) -> float:
        """Return how long a request waits that asks now, when no other thread waits."""
        with self._lock:
            self._pace = pace.advance(self._pace, self._clock())
            return pace.wait_s(self._pace)

    def charge(self, requests: int) -> None:
        """Count requests that another client has sent."""
        with self._lock:
            self._pace = pace.take(pace.advance(self._pace, self._clock()), requests)

    def slow_down(self) -> None:
        """Let fewer requests go: the store throttled one."""
        with self._lock:
            self._pace = pace.slow_down(self._pace, self._clock())

    def describe(self) -> str:
        """Say how many requests may go now: 2 requests per second, while the store throttles."""
        now = self.pace
        if now.rate is None:
            return "any number of requests"
        reason = ", while the store throttles" if now.is_slowed else ""
        rate = f"{now.rate:.3g}"
        return f"{rate} {'request' if rate == '1' else 'requests'} per second{reason}"

    @property
    def pace(self) -> Pace:
        """The pace as it is now."""
        with self._lock:
            self._pace = pace.advance(self._pace, self._clock())
            return self._pace


_budgets: dict[tuple[str, float | None], RequestBudget] = {}
_budgets_lock = threading.Lock()


def budget_of(location: str, limit: float | None) -> RequestBudget:
    """Return the budget that all stores of one table share in this process. `limit`: requests per second."""
    key = (table_prefix(location), limit)
    with _budgets_lock:
        if key not in _budgets:
            _budgets[key] = RequestBudget(limit)
        return _budgets[key]


def table_prefix(location: str) -> str:
    """Return where the table lies to which a location belongs: what is in front of `_delta_log`, `_headrace`.

    >>> table_prefix("s3://lake/clicks/_headrace/log")
    's3://lake/clicks'
    """
    scheme, separator, path = location.partition("://")
    parts = path.rstrip("/").split("/")
    own = next((number for number, part in enumerate(parts) if number > 1 and part.startswith("_")), len(parts))
    return scheme + separator + "/".join(parts[:own])
