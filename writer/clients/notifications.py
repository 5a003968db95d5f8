"""Sends urgent events to people: one message for each event, POSTed to one URL.

The URL is a secret: it is read from the environment, and stands neither in the configuration nor in a log. Sending
never blocks the caller: messages wait in a short queue, and a thread sends them, with retries.
"""

import json
import os
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

from headrace.writer.config.sections.connections import Kind, Notifications
from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.http import Answer, RequestFailed, ask, host
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.text import join_first, plural

Severity = Literal["critical", "warning"]
# A text names so many ranges; the fields have all.
_SHOWN = 5


@dataclass(frozen=True)
class Event:
    """A notification. `text` is for people, `fields` for machines: JSON values."""

    kind: Kind
    severity: Severity
    pipeline: str
    text: str
    at: datetime
    fields: Mapping[str, Any] = field(default_factory=dict)
    # The id stays the same when the event is sent again.
    id: str = field(default_factory=lambda: uuid4().hex)


def gap_event(pipeline: str, gap: Mapping[str, Any], version: int, time: datetime) -> Event:
    """Notify of a gap; `gap`: facts of its entry."""
    offsets = sum(OffsetRange.from_json(r).count for r in gap["ranges"])
    named = join_first([f"{r['topic']}/{r['partition']} [{r['start']}, {r['end']})" for r in gap["ranges"]], _SHOWN)
    text = f"{offsets:,} offsets were skipped ({gap['cause']}): {named}. Gap record {gap['id']}, version {version}."
    fields = {"gap": gap["id"], "cause": gap["cause"], "version": version, "ranges": list(gap["ranges"])}
    return Event("gap_opened", "critical", pipeline, text, time, fields)


def topic_recreation(pipeline: str, topic: str, old_id: str, new_id: str, time: datetime) -> Event:
    """Notify of a topic that was deleted and created again; `before`, `found`: its ids."""
    text = f"topic {topic} was deleted and created again (id {new_id}, before {old_id}); it is read from its beginning."
    return Event("topic_recreated", "critical", pipeline, text, time, {"topic": topic, "before": old_id, "id": new_id})


def log_cut(pipeline: str, cut: Mapping[str, Any], time: datetime) -> Event:
    """Notify of a log that Kafka cut below what was read of it; `cut`: as the table's log has it."""
    where = f"{cut['topic']}/{cut['partition']}"
    lost = f"the table has rows of records at offsets [{cut['start']:,}, {cut['end']:,}) that it no longer holds"
    text = f"Kafka cut the log of {where}: {lost}. It is read on from there as incarnation {cut['successor']}."
    return Event("log_cut", "critical", pipeline, text, time, dict(cut))


def topic_deletion(pipeline: str, topic: str, unread: int, time: datetime) -> Event:
    """Notify of a topic that was read by a pattern and does not exist any more; `unread`: offsets seen, not read."""
    severity: Severity = "warning"
    remark = "all that was seen of it had been read"
    if unread:
        severity = "critical"
        remark = f"{unread:,} of its offsets were not read"
    text = f"topic {topic} does not exist any more; {remark}. The other topics are read on."
    return Event("topic_gone", severity, pipeline, text, time, {"topic": topic, "unread": unread})


def topics_beyond_max(pipeline: str, topics: Sequence[str], why: str, time: datetime) -> Event:
    """Notify of topics that match the pattern and are more than may be read."""
    return Event("topics_beyond_max", "critical", pipeline, why, time, {"topics": list(topics)})


def targets_beyond_max(pipeline: str, names: Sequence[str], targets_max: int, unrouted: str, time: datetime) -> Event:
    """Notify of names of a route that get no table of their own, because as many were made as may be."""
    text = (
        f"route.max_targets is {targets_max}, and {plural(len(names), 'name')} more got no table: "
        f"{join_first(names, _SHOWN)}. Records of new names go by route.unrouted: {unrouted}. Raise max_targets, or "
        "narrow the targets."
    )
    fields = {"names": len(names), "first": list(names[:_SHOWN]), "max": targets_max}
    return Event("targets_beyond_max", "critical", pipeline, text, time, fields)


def target_refusal(pipeline: str, names: Mapping[str, str], unrouted: str, time: datetime) -> Event:
    """Notify of names of a route that can be no table; `names`: with the reasons."""
    refusals = join_first([f"{name} ({why})" for name, why in names.items()], _SHOWN)
    text = f"no table can be made for {refusals}. Their records go by route.unrouted: {unrouted}."
    return Event("target_refused", "critical", pipeline, text, time, {"names": dict(names)})


def target_behind(pipeline: str, targets: Mapping[str, str], time: datetime) -> Event:
    """Notify of tables of a route that refuse from now on; `targets`: what they said, by name."""
    shown = join_first([f"{name} ({why})" for name, why in targets.items()], _SHOWN)
    verb = "refuses" if len(targets) == 1 else "refuse"
    text = f"{plural(len(targets), 'table')} of the route {verb} what is committed: {shown}. The others go on."
    return Event("target_behind", "warning", pipeline, text, time, {"targets": dict(targets)})


def missing_offsets(pipeline: str, offsets: int, version: int, time: datetime) -> Event:
    """Notify of committed offsets at which the log holds no record."""
    text = (
        f"{offsets:,} offsets of version {version} held no record: compaction, or marks of transactions. Where the "
        "topic has neither, records are missing."
    )
    return Event("missing_offsets", "warning", pipeline, text, time, {"offsets": offsets, "version": version})


def missed_records(pipeline: str, why: str, time: datetime) -> Event:
    """Notify that the broker holds records which a batch did not read; nothing of it was committed."""
    return Event("records_missed", "critical", pipeline, why, time)


# Beyond this number of messages the oldest is dropped and logged.
_WAITING_MAX = 256
_BACKOFF = Backoff(1, 60, jitter=0.5)
_DEFAULTS = Notifications.model_validate({})
_TOO_MANY = 429
_TIMED_OUT = 408


class Notifier:
    """Sends messages in their order, from a thread of its own. What cannot be sent is logged, never its URL.

    Without a URL, as where there is no `notifications.url_env`, it sends nothing.
    """

    def __init__(self, url: str = "", section: Notifications = _DEFAULTS, *, backoff: Backoff = _BACKOFF) -> None:
        self._url = url
        self._kinds = frozenset(section.kinds if url else ())
        self._timeout_s = section.timeout.total_seconds()
        self._retry_timeout_s = section.retry_timeout.total_seconds()
        self._backoff = backoff
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition()
        # The end of the time for closing; None: not closing.
        self._deadline_s: float | None = None
        self._thread: threading.Thread | None = None

    def send(self, event: Event) -> None:
        """Take a message and return at once."""
        if event.kind not in self._kinds:
            return
        with self._changed:
            if self._deadline_s is not None:
                _log_drop(event, "it came after the end")
                return
            if len(self._waiting) == _WAITING_MAX:
                _log_drop(self._waiting.popleft(), "too many wait")
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
                _log_drop(event, "the process ends")
            return not self._waiting

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and self._deadline_s is None:
                    self._changed.wait()
                if not self._waiting:
                    return
                event = self._waiting[0]
            done = self._deliver(event)
            with self._changed:
                if done and self._waiting and self._waiting[0] is event:
                    self._waiting.popleft()
                elif not done:
                    # No time is left.
                    return

    def _deliver(self, event: Event) -> bool:
        """Send a message until it is taken, refused, or too old. False when the time for closing is over."""
        since_s = time.monotonic()
        attempt = 0
        while True:
            why, may_retry, server_pause = self._attempt(event)
            if not why:
                logging.event("notification_sent", kind=event.kind, pipeline=event.pipeline)
                return True
            if not may_retry or time.monotonic() - since_s > self._retry_timeout_s:
                _log_drop(event, why)
                return True
            rest_s = (server_pause or timedelta()).total_seconds() or self._backoff.random_delay_s(attempt)
            if not self._wait(rest_s):
                return False
            attempt += 1

    def _wait(self, seconds: float) -> bool:
        """Wait; less when the process ends. False when no time is left for another try."""
        until_s = time.monotonic() + seconds
        with self._changed:
            while (left_s := until_s - time.monotonic()) > 0:
                if self._deadline_s is not None and until_s > self._deadline_s:
                    return False
                self._changed.wait(left_s)
        return True

    def _attempt(self, event: Event) -> tuple[str, bool, timedelta | None]:
        """POST once. Returns why it failed (empty: it was taken), whether to try again, and how long to wait first."""
        headers = {"Content-Type": "application/json", "Idempotency-Key": event.id}
        try:
            answer = ask(self._url, method="POST", body=body(event), headers=headers, timeout_s=self._timeout_s)
        except RequestFailed as error:
            return str(error), True, None
        except Exception as error:  # noqa: BLE001 - a thread that dies sends nothing more
            return f"{type(error).__name__} at {host(self._url)}", False, None
        why = "" if answer.ok else f"{host(self._url)} answered {answer.summary()}"
        return why, _is_passing(answer), answer.after


def _log_drop(event: Event, reason: str) -> None:
    logging.warning("notification_dropped", kind=event.kind, pipeline=event.pipeline, reason=reason)


def _is_passing(answer: Answer) -> bool:
    """Return whether the same message may be taken later: the server is at fault, or busy."""
    return answer.status >= 500 or answer.status in (_TOO_MANY, _TIMED_OUT)  # noqa: PLR2004


def body(event: Event) -> bytes:
    """Write a message: what Slack-compatible webhooks show is `text`; the rest is for others."""
    document = {
        "text": f"[{event.severity}] {event.pipeline}: {event.text}",
        "event": event.kind,
        "severity": event.severity,
        "pipeline": event.pipeline,
        "at": event.at.isoformat(),
        "id": event.id,
        "fields": dict(event.fields),
    }
    return json.dumps(document, ensure_ascii=False).encode()


def open_notifier(section: Notifications, environment: Mapping[str, str] = os.environ) -> Notifier:
    """Return the configured notifier. Raises ConfigError when the variable is not set, or holds no URL."""
    if section.url_env is None:
        return Notifier()
    url = environment.get(section.url_env, "")
    if not url.startswith(("http://", "https://")):
        problem = "holds no http(s):// URL" if url else "is not set"
        raise ConfigError(
            f"notifications.url_env names {section.url_env}, which {problem}. "
            "Set it to the URL of the webhook, or leave notifications.url_env out."
        )
    return Notifier(url, section)
