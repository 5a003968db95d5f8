"""Delivers pending sealed versions to one hook: one attempt for each that is due, and stores the outcome.

Everything is read from the table's log, the manifests and the outbox, so it goes on where a crash broke it off.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from writer.clients.http import RequestFailed
from writer.core import fault_points, logging
from writer.core.errors import ConfigError, HeadraceError
from writer.core.files import BucketKey
from writer.engines.table_description import TableDescription
from writer.hooks.base import Delivered, Hook, HookFailed, Per
from writer.hooks.outbox import Health, Outbox, OutboxContent, OutboxEntry, failed, read_from
from writer.hooks.seal_feed import Seal, Seals
from writer.sealing.manifest import Manifest

_POSITION_EVERY = 200  # entries without a seal, after which the position is written all the same
_NOT_THERE_YET = timedelta(seconds=1)  # of a manifest: its entry stands, and its object is about to
Start = Literal["latest", "earliest"]


class HookDelivery:
    """Delivers to one hook. Not for several threads."""

    def __init__(self, hook: Hook, start: Start, seals: Seals, describe: Callable[[], TableDescription]) -> None:
        """`start`: where a hook that is new to the table begins; `describe`: what engines need to know of the table."""
        self.hook, self._start, self._seals, self._describe = hook, start, seals, describe
        self._pipeline = ""
        self.outbox = Outbox(seals.table.store, hook.name)
        self._reached = -1  # version of the log up to which this process looked
        self._idle: OutboxContent | None = None  # the box, while nothing waits: it need not be read to know that
        self.health = Health(hook.target)

    def round(self, now: datetime) -> OutboxContent:
        """Take up what is new, and see to what is due. Returns the box.

        Raises OSError, HeadraceError.
        """
        box = self.take_up()
        for pending in box.next():
            if pending.is_due(now) and self._may(pending, box):
                box = self._attempt(pending, now)
        self._idle = None if box.pending else box
        self._set_health(box)
        return box

    def begin(self) -> None:
        """Let a hook that is new to the table miss no seal from here on. Raises OSError, HeadraceError."""
        if self._start == "latest" and self.outbox.read() is None:
            self.take_up()

    def take_up(self) -> OutboxContent:
        """Take up the seals that the log has by now. Returns the box. Raises OSError, HeadraceError."""
        newest = self._seals.table.snapshot().version
        if self._idle is not None and newest == self._reached:
            return self._idle
        box = self.outbox.read()
        since = -1 if box is None else max(self._reached, box.position)
        if box is not None and newest <= since:
            return box
        new = self._pending(self._new(box, since, newest))
        self._reached = newest
        if box is not None and not new and newest - box.position < _POSITION_EVERY:
            return box
        fault_points.point("hook_take")
        taken = self.outbox.change(
            lambda known: (known or OutboxContent(-1)).taken(new, newest, newest_only=self.hook.newest_only)
        )
        fault_points.point("hook_taken")
        return taken

    def again(self, bucket: BucketKey) -> OutboxContent:
        """Take up the newest manifest of a bucket, whether it was delivered or not. Raises ConfigError without one."""
        newest = self._seals.manifests().newest(bucket)
        if newest is None:
            raise ConfigError(f"{self._seals.named(bucket)} was never sealed; there is nothing to deliver")
        (pending,) = self._pending([Seal(newest.table_version or 0, newest)])
        return self._changed(
            lambda box: replace(box, pending=(*(one for one in box.pending if one.id != pending.id), pending))
        )

    def hurry(self) -> OutboxContent:
        """Let all that waits be due now."""
        return self._changed(lambda box: replace(box, pending=tuple(replace(one, due=None) for one in box.pending)))

    def due(self, box: OutboxContent) -> datetime | None:
        """When something is to be done next; None: nothing waits. An outbox entry without time: now."""
        return min((pending.due or pending.since for pending in box.next() if self._may(pending, box)), default=None)

    def _may(self, pending: OutboxEntry, box: OutboxContent) -> bool:
        return _under_way(pending) or sum(map(_under_way, box.pending)) < self.hook.at_once

    def note_failure(self, why: str) -> None:
        """Note why a round came to nothing."""
        self.health = replace(self.health, error=why, failures=self.health.failures + 1)

    def _new(self, box: OutboxContent | None, since: int, newest: int) -> list[Seal]:
        if box is not None:
            return self._seals.since(since, newest)
        return self._seals.everything(newest) if self._start == "earliest" else []

    def _attempt(self, pending: OutboxEntry, now: datetime) -> OutboxContent:
        """Try to deliver an outbox entry, and write down what became of it."""
        try:
            table = self._describe()
            self._pipeline = table.pipeline
            sealed = self._seals.read(pending, table)
            result = None if sealed is None else self.hook.deliver(sealed, pending.state)
        except (HookFailed, RequestFailed, HeadraceError, OSError) as error:
            return self._failed(pending, now, error)
        if result is None:
            late = replace(pending.put_off(now, _NOT_THERE_YET), error="its manifest is not there yet")
            return self._changed(lambda box: box.changed(late))
        if isinstance(result, Delivered):
            fault_points.point("hook_delivered")
            box = self._changed(lambda box: box.done(pending, now, result.what))
            fault_points.point("hook_noted")
            self.health = replace(self.health, delivered=self.health.delivered + 1)
            logging.event("hook_delivered", **self._about(pending), what=result.what)
            return box
        going = replace(pending.put_off(now, result.after), state=result.state, error="")
        return self._changed(lambda box: box.changed(going))

    def _failed(self, pending: OutboxEntry, now: datetime, error: Exception) -> OutboxContent:
        why = " ".join(str(error).split()) or type(error).__name__
        failure = error if isinstance(error, HookFailed) else HookFailed(why, state=pending.state)
        again = failed(pending, now, why, failure.after, failure.state)
        self.health = replace(self.health, failures=self.health.failures + 1)
        due = again.due or now
        logging.warning(
            "hook_failed", **self._about(pending), attempts=again.attempts, error=why,
            again_in_seconds=round((due - now).total_seconds()),
        )  # fmt: skip
        return self._changed(lambda box: box.changed(again))

    def _changed(self, to: Callable[[OutboxContent], OutboxContent]) -> OutboxContent:
        self._idle = None
        return self.outbox.change(lambda known: to(known or OutboxContent(-1)))

    def _pending(self, seals: Iterable[Seal]) -> list[OutboxEntry]:
        """Make an outbox entry of whatever one delivery is about."""
        found: dict[tuple[str, int], OutboxEntry] = {}
        for seal in seals:
            manifest, key = seal.manifest, _key(seal.manifest, self.hook.per)
            pending = OutboxEntry(
                key, manifest.bucket, manifest.version, seal.entry, manifest.sealed_at, retired=seal.retired
            )
            found.setdefault(pending.id, pending)
        return list(found.values())

    def _about(self, pending: OutboxEntry) -> dict[str, object]:
        bucket = self._seals.named(pending.bucket)
        return {"pipeline": self._pipeline, "hook": self.hook.name, "bucket": bucket, "version": pending.version}

    def _set_health(self, box: OutboxContent) -> None:
        known = self.health
        self.health = replace(read_from(box, known.target), delivered=known.delivered, failures=known.failures)


def _key(manifest: Manifest, per: Per) -> str:
    match per:
        case "table":
            return ""
        case "interval" if manifest.start is not None:
            return f"{manifest.start.isoformat()}/{manifest.end.isoformat() if manifest.end else ''}"
    return manifest.name


def _under_way(pending: OutboxEntry) -> bool:
    return bool(pending.state.get("accepted"))
