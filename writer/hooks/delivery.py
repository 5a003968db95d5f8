"""Delivers pending sealed versions to one hook: one attempt for each that is due, and stores the outcome.

It reads everything from the table's log, the manifests and the outbox, so it continues after a crash.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

from headrace.writer.core import fault_points, logging
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.files import group_by_bucket
from headrace.writer.core.http import RequestFailed
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.hooks.base import Hook, HookFailed, Per, Receipt, StillRunning
from headrace.writer.hooks.outbox import Health, Outbox, OutboxContent, OutboxEntry
from headrace.writer.hooks.seal_feed import Seal, Seals
from headrace.writer.sealing.bucket_selection import BucketSelection
from headrace.writer.sealing.manifest import Manifest

# The position is written after as many log entries without a seal, too.
_POSITION_EVERY = 200
# A log entry with a seal may be there a moment before the object of its manifest.
_MANIFEST_DELAY = timedelta(seconds=1)
Start = Literal["latest", "earliest"]


class HookDelivery:
    """Delivers to one hook. Not for several threads."""

    def __init__(self, hook: Hook, start: Start, seals: Seals, describe: Callable[[], TableDescription]) -> None:
        """`start`: where a hook that is new to the table begins; `describe`: what engines need to know of the table."""
        self.hook = hook
        self.outbox = Outbox(seals.table.store, hook.name)
        self.health = Health(hook.target, delivered_since_start=0)
        self._start = start
        self._seals = seals
        self._describe = describe
        self._pipeline = ""
        # The version of the log up to which this process looked for seals.
        self._version = -1
        # The content of the outbox while nothing waits, so that it need not be read again.
        self._empty_outbox: OutboxContent | None = None

    def run_round(self, now: datetime) -> OutboxContent:
        """Add new seals to the outbox, and attempt each delivery that is due. Returns the outbox.

        Raises OSError, HeadraceError.
        """
        content = self.take_up()
        for entry in content.next_entries():
            if entry.is_due(now) and self._may_attempt(entry, content):
                content = self._attempt(entry, now)
        self._empty_outbox = None if content.pending else content
        self.health = replace(
            Health.from_outbox(content, self.health.target),
            failures=self.health.failures,
            delivered_since_start=self.health.delivered_since_start,
        )
        return content

    def begin(self) -> None:
        """Let a hook that is new to the table miss no seal from here on. Raises OSError, HeadraceError."""
        if self._start == "latest" and self.outbox.read() is None:
            self.take_up()

    def take_up(self) -> OutboxContent:
        """Add the seals that the log has by now to the outbox. Returns it. Raises OSError, HeadraceError."""
        newest = self._seals.table.snapshot().version
        if self._empty_outbox is not None and newest == self._version:
            return self._empty_outbox
        content = self.outbox.read()
        if content is not None and newest <= max(self._version, content.position):
            return content
        entries = self._new_entries(content, newest)
        if content is None:
            self._log_begin(newest, len(entries))
        self._version = newest
        if content is not None and not entries and newest - content.position < _POSITION_EVERY:
            return content
        fault_points.point("hook_take")
        content = self.outbox.change(
            lambda content: (content or OutboxContent(-1)).add(entries, newest, newest_only=self.hook.newest_only)
        )
        fault_points.point("hook_taken")
        return content

    def _log_begin(self, newest: int, entries: int) -> None:
        """Log that the hook begins, as one that is new to the table; a warning where its outbox was there before.

        `newest`: version of the log; `entries`: how many seals of before it gets.
        """
        facts = {"hook": self.hook.name, "start": self._start, "version": newest, "seals": entries}
        if self._version < 0:
            logging.event("hook_began", pipeline=self._seals.table.pipeline, **facts)
            return
        logging.warning(
            "outbox_lost",
            pipeline=self._seals.table.pipeline,
            **facts,
            reason=f"{self.outbox.location} is gone, and what waited there with it; `hooks run --bucket` delivers it",
        )

    def preview(self) -> OutboxContent:
        """Return what the outbox has once the seals that the log has by now are added. Writes nothing."""
        newest = self._seals.table.snapshot().version
        content = self.outbox.read()
        entries = self._new_entries(content, newest)
        return (content or OutboxContent(-1)).add(entries, newest, newest_only=self.hook.newest_only)

    def redeliver(self, selection: BucketSelection) -> OutboxContent:
        """Add the newest manifests of buckets, whether they were delivered or not. Raises ConfigError without one."""
        table = self._seals.table
        files = group_by_bucket(table.bucket_files(table.snapshot()))
        newest = [self._seals.manifests().newest(key) for key in selection.named_among(files)]
        seals = [Seal(manifest.table_version or 0, manifest) for manifest in newest if manifest is not None]
        if not seals:
            raise ConfigError(f"{selection.name} was never sealed; there is nothing to deliver")
        entries = self._outbox_entries(seals)

        def put_all(content: OutboxContent) -> OutboxContent:
            for entry in entries:
                content = content.put_last(entry)
            return content

        return self._change_outbox(put_all)

    def make_due(self) -> OutboxContent:
        """Make all that waits due now."""
        return self._change_outbox(OutboxContent.make_due)

    def next_due(self, content: OutboxContent) -> datetime | None:
        """Return when the next attempt is due; None if nothing waits. An entry without a time is due since its seal."""
        return min(
            (entry.due or entry.since for entry in content.next_entries() if self._may_attempt(entry, content)),
            default=None,
        )

    def note_failure(self, why: str) -> None:
        """Record why a round ended without a result."""
        self.health = replace(self.health, error=why, failures=self.health.failures + 1)

    def _may_attempt(self, entry: OutboxEntry, content: OutboxContent) -> bool:
        """Return whether the entry is running already, or the hook has room for one more."""
        return entry.is_running() or sum(other.is_running() for other in content.pending) < self.hook.at_once

    def _first_seals(self, newest: int) -> list[Seal]:
        """Return the seals that a hook gets which is new to the table."""
        if self._start == "latest":
            return []
        return self._seals.list_newest(newest)

    def _new_entries(self, content: OutboxContent | None, newest: int) -> list[OutboxEntry]:
        """Return entries of the seals up to a version of the log that an outbox lacks. `content`: None: it is new."""
        if content is None and (self._version < 0 or self._start == "earliest"):
            return self._outbox_entries(self._first_seals(newest))
        # Of an outbox that was lost under this process, what comes from now on is not lost with it.
        since = self._version
        if content is not None:
            since = max(since, content.position)
        if newest <= since:
            return []
        return self._outbox_entries(self._seals.list_since(since, newest))

    def _attempt(self, entry: OutboxEntry, now: datetime) -> OutboxContent:
        """Try to deliver an outbox entry, and write the outcome to the outbox."""
        try:
            table = self._describe()
            self._pipeline = table.pipeline
            sealed = self._seals.read(entry, table)
            result = None if sealed is None else self.hook.deliver(sealed, entry.state)
        except (HookFailed, RequestFailed, HeadraceError, OSError) as error:
            return self._record_failure(entry, now, error)
        match result:
            case Receipt():
                return self._record_receipt(entry, now, result)
            case StillRunning():
                later = replace(entry.put_off(now, result.after), state=result.state, error="")
            case None:
                later = replace(entry.put_off(now, _MANIFEST_DELAY), error="its manifest is not there yet")
        return self._change_outbox(lambda content: content.update(later))

    def _record_receipt(self, entry: OutboxEntry, now: datetime, receipt: Receipt) -> OutboxContent:
        fault_points.point("hook_delivered")
        content = self._change_outbox(lambda content: content.complete(entry, now, receipt.summary))
        fault_points.point("hook_noted")
        since_start = (self.health.delivered_since_start or 0) + 1
        self.health = replace(self.health, delivered=content.delivered, delivered_since_start=since_start)
        logging.event("hook_delivered", **self._log_fields(entry), what=receipt.summary)
        return content

    def _record_failure(self, entry: OutboxEntry, now: datetime, error: Exception) -> OutboxContent:
        why = " ".join(str(error).split()) or type(error).__name__
        failure = error if isinstance(error, HookFailed) else HookFailed(why, state=entry.state)
        later = entry.after_failure(now, why, failure.after, failure.state)
        self.health = replace(self.health, failures=self.health.failures + 1)
        due = later.due or now
        logging.warning(
            "hook_failed",
            **self._log_fields(entry),
            attempts=later.attempts,
            error=why,
            again_in_seconds=round((due - now).total_seconds()),
        )
        return self._change_outbox(lambda content: content.update(later))

    def _change_outbox(self, make_new: Callable[[OutboxContent], OutboxContent]) -> OutboxContent:
        self._empty_outbox = None
        return self.outbox.change(lambda content: make_new(content or OutboxContent(-1)))

    def _outbox_entries(self, seals: Iterable[Seal]) -> list[OutboxEntry]:
        """Return an outbox entry for each bucket, interval or table that one delivery is about."""
        entries: dict[tuple[str, int], OutboxEntry] = {}
        for seal in seals:
            manifest = seal.manifest
            entry = OutboxEntry(
                _delivery_key(manifest, self.hook.per),
                manifest.bucket,
                manifest.version,
                seal.entry,
                manifest.sealed_at,
                retired=seal.retired,
            )
            entries.setdefault(entry.id, entry)
        return list(entries.values())

    def _log_fields(self, entry: OutboxEntry) -> dict[str, object]:
        bucket = self._seals.bucket_name(entry.bucket)
        return {"pipeline": self._pipeline, "hook": self.hook.name, "bucket": bucket, "version": entry.version}


def _delivery_key(manifest: Manifest, per: Per) -> str:
    """Return what one delivery is about: the bucket, its interval, or, if empty, the whole table."""
    if per == "table":
        return ""
    if per == "interval" and manifest.start is not None:
        return f"{manifest.start.isoformat()}/{manifest.end.isoformat() if manifest.end else ''}"
    return manifest.name
