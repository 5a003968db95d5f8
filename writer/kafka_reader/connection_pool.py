"""Keeps connections to brokers between questions that many threads ask, each within a deadline."""

import threading
import time
import weakref
from typing import NamedTuple, TypeVar

from headrace.writer.core.backoff import Backoff
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection
from headrace.writer.kafka_reader.errors import BrokerClosed
from headrace.writer.kafka_reader.requests.question import Question
from headrace.writer.kafka_reader.security import Security

Answer = TypeVar("Answer")
_RETRIES = Backoff(first_s=0.05, max_s=1.0, jitter=0.2)
# What lies between may forget a connection that is idle for longer, and say nothing.
_IDLE_S_MAX = 60.0
# A socket takes 0 for "do not wait".
_CONNECT_S_MIN = 0.001


class Deadline:
    """Counts down the seconds that a question may take, however often it is asked again.

    For one thread, but for `left_s` and `is_over`.
    """

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


class _IdleConnection(NamedTuple):
    connection: Connection
    since_s: float


class ConnectionPool:
    """Asks brokers from any thread. A connection serves one question at a time, and then waits for the next one."""

    def __init__(self, security: Security, client_id: str) -> None:
        self._security = security
        self._client_id = client_id
        self._lock = threading.Lock()
        self._idle = dict[BrokerAddress, list[_IdleConnection]]()
        weakref.finalize(self, _close_all, self._idle)

    def ask(self, broker: BrokerAddress, question: Question[Answer], deadline: Deadline) -> Answer:
        """Ask a broker. Raises OSError where no answer comes in time, AccessDenied, UnsupportedBroker, Corrupt."""
        idle = self._take(broker)
        if idle is not None:
            try:
                return self._call(broker, idle, question, deadline)
            # Brokers close connections that are idle, or whose login has expired: another one takes the question.
            except (BrokerClosed, ConnectionError):
                pass
        connection = Connection(broker, self._security, max(deadline.left_s, _CONNECT_S_MIN), self._client_id)
        return self._call(broker, connection, question, deadline)

    def _call(
        self, broker: BrokerAddress, connection: Connection, question: Question[Answer], deadline: Deadline
    ) -> Answer:
        """Ask over a connection, which is kept where all is well. Raises as `ask` does."""
        try:
            version = connection.version(question.api)
            reader = connection.call(question.api, version, question.write(version), deadline.left_s)
            answer = question.read(reader, version)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._idle.setdefault(broker, []).append(_IdleConnection(connection, time.monotonic()))
        return answer

    def _take(self, broker: BrokerAddress) -> Connection | None:
        """Return a connection that was used lately; close those that were not."""
        with self._lock:
            connections = self._idle.pop(broker, [])
            fresh_s = time.monotonic() - _IDLE_S_MAX
            fresh = [idle for idle in connections if idle.since_s > fresh_s]
            stale = [idle for idle in connections if idle.since_s <= fresh_s]
            taken = fresh.pop() if fresh else None
            if fresh:
                self._idle[broker] = fresh
        for idle in stale:
            idle.connection.close()
        return taken and taken.connection


def _close_all(idle: dict[BrokerAddress, list[_IdleConnection]]) -> None:
    for connections in idle.values():
        for connection, _ in connections:
            connection.close()
