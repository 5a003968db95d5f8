"""Opens the receivers that the configuration names, and hands each commit of a pipeline to them."""

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from queue import Empty, Full, Queue

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.status.model import Commit
from headrace.writer.status.progress import Progress
from headrace.writer.telemetry import batch_trace, lineage_events

Send = Callable[[Commit], None]
# How long to send what waits of a pipeline whose configuration changed, or that was taken out.
_SEND_TIMEOUT = timedelta(seconds=2)
# Commits that may wait. A receiver that is down for an hour costs a batch nothing, and little memory.
_WAITING_MAX = 256


class Receivers:
    """The receivers of a driver's pipelines, a sender for each pipeline; none where none is configured."""

    def __init__(self) -> None:
        self._senders = dict[str, list[BoundedSender]]()
        self._settings = dict[str, Pipeline]()

    def follow(self, config: Config, progress: Progress) -> None:
        """Follow the commits of a pipeline, as it is configured now. Raises ConfigError when a package is missing."""
        name = progress.pipeline
        before = self._settings.get(name)
        self._settings[name] = config.pipelines[name]
        if before == config.pipelines[name]:
            return
        if name in self._senders:
            _close(self._senders[name], _SEND_TIMEOUT)
        elif before is None:
            progress.on_commit(partial(self._send_commit, progress))
        self._senders[name] = [
            BoundedSender(receiver, name, _open_receiver(receiver, opener), progress.set_telemetry)
            for receiver, opener in _openers(config, name).items()
        ]

    def forget(self, pipeline: str) -> None:
        """Send what waits of a pipeline that is taken out, and follow it no more."""
        self._settings.pop(pipeline, None)
        _close(self._senders.pop(pipeline, []), _SEND_TIMEOUT)

    def close(self, within: timedelta) -> None:
        """Send what waits, for that long at most, all together."""
        _close([sender for senders in self._senders.values() for sender in senders], within)

    def _send_commit(self, progress: Progress) -> None:
        commit = progress.view().commits[0]
        for sender in self._senders.get(progress.pipeline, []):
            sender.put(commit)


class BoundedSender:
    """Sends commits to one receiver in their order, from a thread of its own.

    A queue with a limit stands before it: what finds it full is dropped and counted. What a receiver refuses or does
    not answer in time is dropped, not tried again.
    """

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


def _close(senders: Iterable[BoundedSender], within: timedelta) -> None:
    closing = list(senders)
    deadline_s = time.monotonic() + within.total_seconds()
    for sender in closing:
        sender.finish()
    for sender in closing:
        sender.close(timedelta(seconds=max(0.0, deadline_s - time.monotonic())))


def _openers(config: Config, pipeline: str) -> dict[str, Callable[[], Send]]:
    openers: dict[str, Callable[[], Send]] = {}
    if config.openlineage.url is not None:
        openers["openlineage"] = partial(lineage_events.sender, config.openlineage, config, pipeline)
    if config.opentelemetry.url is not None:
        openers["opentelemetry"] = partial(batch_trace.sender, config.opentelemetry, pipeline)
    return openers


def _open_receiver(receiver: str, opener: Callable[[], Send]) -> Send:
    try:
        return opener()
    except ImportError as error:
        raise ConfigError(
            f"{receiver}.url is set, and {error.name} is not installed: pip install 'headrace[{receiver}]'"
        ) from error
