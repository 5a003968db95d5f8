"""Sends the requests to one table: each waits for its turn, is counted, and is tried again where that may help."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from headrace.writer.core.backoff import Backoff
from headrace.writer.storage.base import StoreError, Unanswered
from headrace.writer.storage.requests.budget import THROTTLED, budget_of
from headrace.writer.storage.requests.counts import REQUEST_COUNTS, Request, purpose_of
from headrace.writer.storage.requests.failures import FailureKind, RequestFailed

_T = TypeVar("_T")
BACKOFF = Backoff(0.1, 5, jitter=0.5)
# The kinds of requests, by the operation that they are of.
_KINDS = {"read": "get", "look at": "head", "write": "put", "list": "list", "copy": "copy", "delete": "delete"}


class RequestSender:
    """Requests to objects of one table. Paths are whole: `scheme://bucket/key`."""

    def __init__(
        self, location: str, retry_timeout: timedelta, setting: str, requests_per_second: float | None = None
    ) -> None:
        """`setting`: the name of `retry_timeout` in the configuration. `requests_per_second`: None: no limit."""
        self._scheme = location.partition("://")[0]
        self._retry_timeout_s = retry_timeout.total_seconds()
        self._setting = setting
        self._budget = budget_of(location, requests_per_second)

    def ask(self, operation: str, path: str, request: Callable[[], _T]) -> _T:
        """Return the answer to a request, which is counted at each try. Raises StoreError."""
        return self.retry(operation, path, lambda: self.send(operation, path, request))

    def find(self, operation: str, path: str, request: Callable[[], _T]) -> _T | None:
        """Return the answer to a request, or None where there is no such object. Raises StoreError."""

        def find() -> _T | None:
            try:
                return self.send(operation, path, request)
            except RequestFailed as error:
                if error.kind is FailureKind.NO_OBJECT:
                    return None
                raise

        return self.retry(operation, path, find)

    def send(self, operation: str, path: str, request: Callable[[], _T]) -> _T:
        """Send one request, and count it. Raises RequestFailed."""
        try:
            answer = request()
        except RequestFailed as error:
            self.count(_KINDS[operation], path, outcome_of(error), error.tries)
            raise
        self.count(_KINDS[operation], path)
        return answer

    def count(self, kind: str, path: str, outcome: str = "ok", requests: int = 1) -> None:
        """Count requests."""
        REQUEST_COUNTS.add(Request(self._scheme, purpose_of(path), kind, outcome), requests)

    def count_unpaced(self, kind: str, path: str, requests: int) -> None:
        """Count requests that went without a turn, and let them hold up those behind them."""
        if requests:
            self.count(kind, path, requests=requests)
            self._budget.charge(requests)

    def await_turn(self) -> None:
        """Wait until the budget lets a request go."""
        waited_s = self._budget.await_turn()
        if waited_s:
            REQUEST_COUNTS.add_wait(self._scheme, waited_s)

    def note_failure(self, kind: str, path: str, error: RequestFailed) -> None:
        """Count a request that a client has given up after all its tries, and slow down where the store throttles."""
        self.count(kind, path, outcome_of(error), error.tries)
        if error.status in THROTTLED:
            self._budget.slow_down()

    def retry(self, operation: str, path: str, call: Callable[[], _T]) -> _T:
        """Return what the call returns; try again what may pass by itself. Raises StoreError.

        The time for it counts from the first try: until then nothing was asked that could go unanswered.
        """
        self.await_turn()
        deadline = time.monotonic() + self._retry_timeout_s
        tries = 1
        while True:
            try:
                return call()
            except RequestFailed as error:
                if error.status in THROTTLED:
                    self._budget.slow_down()
                if not error.may_pass:
                    raise StoreError(operation, path, error.answer, error.fix) from error
                pause_s = BACKOFF.random_delay_s(tries - 1)
                budget_s = self._budget.delay_s()
                if time.monotonic() + max(pause_s, budget_s) > deadline:
                    unit = "try" if tries == 1 else "tries"
                    answer = f"{error.answer}, after {tries} {unit} in {self._retry_timeout_s:g} s ({self._setting})"
                    if budget_s > pause_s:
                        answer += f"; the budget of {self._budget.describe()} leaves no further one in time"
                    raise Unanswered(operation, path, answer, error.fix) from error
            time.sleep(pause_s)
            self.await_turn()
            tries += 1


def outcome_of(error: RequestFailed) -> str:
    """Return by what a request is counted that failed."""
    if error.kind is FailureKind.NO_OBJECT:
        return "missing"
    if error.kind is FailureKind.OBJECT_EXISTS:
        return "exists"
    if error.status in THROTTLED:
        return "throttled"
    return "failed" if error.status else "unanswered"
