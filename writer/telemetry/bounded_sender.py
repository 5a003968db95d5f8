"""Sends from a thread of its own. A queue with a limit stands before it: what finds it full is dropped and counted."""

import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from queue import Empty, Full, Queue

from writer.core import logging
from writer.status.model import Commit

# Commits that may wait. A receiver that is down for an hour costs a batch nothing, and little memory.
_WAITING_MAX = 256


class BoundedSender:
    """Sends commits in their order. What a receiver refuses or does not answer in time is dropped, not tried again."""

    def __init__(
        self,
        receiver: str,
        pipeline: str,
        send: Callable[[Commit], object],
        report: Callable[[str, int, int], object],
        waiting_max: int = _WAITING_MAX,
    ) -> None:
        """`send` may take its time and raise. `report` gets the receiver, how many were sent, and dropped."""
        self._receiver = receiver
        self._pipeline = pipeline
        self._send = send
        self._report = report
        self._waiting: Queue[Commit | None] = Queue(waiting_max)
        self._lock = threading.Lock()
        self._sent = self._dropped = 0
        # Only the first of several drops is logged.
        self._failing = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"{receiver} of {pipeline}", daemon=True)
        self._thread.start()
        report(receiver, 0, 0)

    def put(self, commit: Commit) -> None:
        """Take a commit and return at once."""
        try:
            self._waiting.put_nowait(commit)
        except Full:
            self._note(f"{self._waiting.maxsize} wait already")

    def finish(self) -> None:
        """Let the thread end when it has sent what waits."""
        self._closing.set()
        with suppress(Full):
            # None wakes the thread.
            self._waiting.put_nowait(None)

    def close(self, within: timedelta) -> None:
        """Send what waits, for that long at most. What is left is dropped."""
        self.finish()
        self._thread.join(within.total_seconds())
        while True:
            try:
                commit = self._waiting.get_nowait()
            except Empty:
                return
            if commit is not None:
                self._note("the process ends")

    def _run(self) -> None:
        while not (self._closing.is_set() and self._waiting.empty()):
            commit = self._waiting.get()
            if commit is None:
                continue
            try:
                self._send(commit)
            except Exception as error:  # noqa: BLE001 - a thread that dies sends nothing more
                self._note(f"{type(error).__name__}: {error}")
            else:
                self._note(None)

    def _note(self, failure: str | None) -> None:
        with self._lock:
            self._sent += failure is None
            self._dropped += failure is not None
            first = failure is not None and not self._failing
            self._failing = failure is not None
            self._report(self._receiver, self._sent, self._dropped)
        if first:
            logging.warning("telemetry_dropped", pipeline=self._pipeline, receiver=self._receiver, reason=failure)
