"""Tells people at once what should not wait until somebody looks: a message for each event, POSTed to one URL.

The URL is a secret: it is read from the environment, and stands neither in the configuration nor in a log. Telling
never holds up who tells: messages wait in a short queue, and a thread sends them, again and again where need be.
"""

import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from writer import log
from writer.errors import ConfigError
from writer.hooks.ask import Answer, ask, host
from writer.hooks.base import HookFailed
from writer.notices import KINDS, Event, Kind, Notify

_WAITING_MAX = 256  # messages; beyond it the oldest is dropped, and said to be
_PAUSE_FIRST_S, _PAUSE_MAX_S = 1.0, 60.0
_TOO_MANY, _TIMED_OUT = 429, 408


class Tells(Protocol):
    """Who tells. Neither operation raises."""

    def tell(self, event: Event) -> None:
        """Take a message and return at once."""

    def close(self, within: timedelta) -> bool:
        """Send what waits, for that long at most. True when nothing was left unsent."""


class Nobody:
    """Tells nobody: there is no `notify.url_env`."""

    def tell(self, event: Event) -> None:
        """Do nothing."""

    def close(self, within: timedelta) -> bool:  # noqa: ARG002 - nothing waits
        """Do nothing."""
        return True


class Notifier:
    """Sends messages in their order, from a thread of its own. What cannot be sent is logged, never its URL."""

    def __init__(
        self, url: str, *, kinds: Sequence[Kind] = KINDS, timeout: timedelta, patience: timedelta,
        pause_first_s: float = _PAUSE_FIRST_S,
    ) -> None:  # fmt: skip
        """`pause_first_s`: after the first failure; it doubles with each, up to a minute."""
        self._url, self._kinds = url, frozenset(kinds)
        self._timeout_s, self._patience_s = timeout.total_seconds(), patience.total_seconds()
        self._pause_first_s = pause_first_s
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        self._deadline_s: float | None = None  # of who closes; None: nobody does
        self._thread: threading.Thread | None = None

    def tell(self, event: Event) -> None:
        """Take a message and return at once."""
        if event.kind not in self._kinds:
            return
        with self._changed:
            if self._deadline_s is not None:
                log.warning("notice_lost", event=event.kind, pipeline=event.pipeline, because="it came after the end")
                return
            if len(self._waiting) == _WAITING_MAX:
                lost = self._waiting.popleft()
                log.warning("notice_lost", event=lost.kind, pipeline=lost.pipeline, because="too many wait")
            self._waiting.append(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self, within: timedelta) -> bool:
        """Send what waits, for that long at most. True when nothing was left unsent."""
        with self._changed:
            self._deadline_s = time.monotonic() + within.total_seconds()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(within.total_seconds())
        with self._changed:
            for event in self._waiting:
                log.warning("notice_lost", event=event.kind, pipeline=event.pipeline, because="the process ends")
            return not self._waiting

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and self._deadline_s is None:
                    self._changed.wait()
                if not self._waiting:
                    return
                event = self._waiting[0]
            done = self._sent(event)
            with self._changed:
                if done and self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
                elif not done:
                    return  # no time is left

    def _sent(self, event: Event) -> bool:
        """Send a message until it is taken, refused, or too old. False when who closes has no more time."""
        pause_s, since_s = self._pause_first_s, time.monotonic()
        while True:
            why, again, asked = self._attempt(event)
            if not why:
                log.event("notice_sent", event=event.kind, pipeline=event.pipeline)
                return True
            if not again or time.monotonic() - since_s > self._patience_s:
                log.warning("notice_lost", event=event.kind, pipeline=event.pipeline, because=why)
                return True
            rest_s = (asked or timedelta()).total_seconds() or pause_s * random.uniform(0.5, 1)  # noqa: S311 - jitter
            if not self._rested(rest_s):
                return False
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _rested(self, seconds: float) -> bool:
        """Wait; less when the process ends. False when no time is left for another try."""
        until_s = time.monotonic() + seconds
        with self._changed:
            while (left_s := until_s - time.monotonic()) > 0:
                if self._deadline_s is not None:
                    if until_s > self._deadline_s:
                        return False
                    self._changed.wait(left_s)
                else:
                    self._changed.wait(left_s)
        return True

    def _attempt(self, event: Event) -> tuple[str, bool, timedelta | None]:
        """POST once. Returns why it failed (empty: it was taken), whether to try again, and how long to wait first."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": event.id}
        try:
            answer = ask(self._url, method="POST", body=body(event), headers=headers, timeout_s=self._timeout_s)
        except HookFailed as error:
            return str(error), True, None
        except Exception as error:  # noqa: BLE001 - a thread that dies tells nothing more
            return f"{type(error).__name__} at {host(self._url)}", False, None
        return ("" if answer.ok else f"{host(self._url)} answered {answer.shown()}"), _passing(answer), answer.after


def _passing(answer: Answer) -> bool:
    """Tell whether the same message may be taken later: the server is at fault, or busy."""
    return answer.status >= 500 or answer.status in (_TOO_MANY, _TIMED_OUT)  # noqa: PLR2004


def body(event: Event) -> bytes:
    """Write a message: what Slack-compatible webhooks show is `text`; the rest is for others."""
    told = {
        "text": f"[{event.severity}] {event.pipeline}: {event.text}", "event": event.kind, "severity": event.severity,
        "pipeline": event.pipeline, "at": event.at.isoformat(), "id": event.id, "fields": dict(event.fields),
    }  # fmt: skip
    return json.dumps(told, ensure_ascii=False).encode()


def opened(section: Notify, environment: Mapping[str, str] = os.environ) -> Tells:
    """Return who tells, as configured. Raises ConfigError when the variable is not set, or holds no URL."""
    if section.url_env is None:
        return Nobody()
    url = environment.get(section.url_env, "")
    if not url.startswith(("http://", "https://")):
        raise ConfigError(
            f"notify.url_env names {section.url_env}, which {'holds no http(s):// URL' if url else 'is not set'}. Set "
            "it to the URL of the webhook, or leave notify.url_env out."
        )
    return Notifier(url, kinds=section.kinds, timeout=section.timeout, patience=section.patience)
