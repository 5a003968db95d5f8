"""The outbox of a hook: delivered and pending versions, small objects changed by compare-and-put.

An outbox makes a claim: all seals up to `position` are delivered, except for the entries that wait. A claim stays true
for good, so of two processes that deliver at once neither loses an entry; one may be delivered twice.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from headrace.writer.core.backoff import Backoff
from headrace.writer.core.files import BucketKey
from headrace.writer.core.units import from_iso
from headrace.writer.storage.base import Store

FOLDER = "_headrace/hooks"
_FORMAT = 1
_BACKOFF = Backoff(5, 600, jitter=0.5)
# Attempts to change an outbox that other processes change as well.
_ATTEMPTS_MAX = 20


class OutboxUnreadable(OSError):
    """The outbox is not what this version of headrace writes."""


@dataclass(frozen=True)
class OutboxEntry:
    """One sealed version of a bucket that a hook has to get."""

    # A newer entry of the same key may take its place.
    key: str
    bucket: BucketKey
    # The version of the manifest.
    version: int
    # The version of the table's log that sealed the bucket.
    entry: int
    # When the bucket was sealed.
    since: datetime
    # Retention removed the bucket.
    retired: bool = False
    # Attempts that failed.
    attempts: int = 0
    # The time of the next attempt; None: now.
    due: datetime | None = None
    # When `due` was set.
    tried: datetime | None = None
    # The error of the last attempt.
    error: str = ""
    # The hook's own state of a delivery that runs.
    state: Mapping[str, Any] = field(default_factory=dict)

    def is_due(self, now: datetime) -> bool:
        """Return whether the next attempt may be made: its time came, or the wall clock stepped behind the last one."""
        return self.due is None or self.due <= now or (self.tried is not None and now < self.tried)

    def is_running(self) -> bool:
        """Return whether the receiving system accepted the delivery and works on it."""
        return bool(self.state.get("accepted"))

    def put_off(self, now: datetime, by: timedelta) -> "OutboxEntry":
        """Return the entry after an attempt at `now`, with the next one so much later."""
        return replace(self, due=now + by, tried=now)

    def after_failure(
        self, now: datetime, why: str, after: timedelta | None, state: Mapping[str, Any]
    ) -> "OutboxEntry":
        """Return the entry with its next attempt put off: twice as long each time, up to ten minutes, with jitter.

        `after`: the pause that the server asks for; a longer one counts.
        """
        pause = timedelta(seconds=_BACKOFF.random_delay_s(self.attempts))
        later = self.put_off(now, max(pause, after or pause))
        return replace(later, attempts=self.attempts + 1, error=why, state=state)

    @property
    def id(self) -> tuple[str, int]:
        """What tells the entry from all others of its outbox."""
        return self.key, self.entry


@dataclass(frozen=True)
class OutboxContent:
    """What was delivered to a hook, and what waits."""

    # The version of the table's log up to which the outbox has the seals.
    position: int
    # The oldest entry comes first.
    pending: tuple[OutboxEntry, ...] = ()
    delivered: int = 0
    # Entries that a command gave up.
    skipped: int = 0
    superseded: int = 0
    # The last delivery: bucket, version, at, what.
    last: Mapping[str, Any] | None = None

    def next_entries(self) -> list[OutboxEntry]:
        """Return the oldest entry of each key: what comes after it waits for it."""
        oldest: dict[str, OutboxEntry] = {}
        for entry in self.pending:
            oldest.setdefault(entry.key, entry)
        return list(oldest.values())

    def add(self, entries: Iterable[OutboxEntry], position: int, *, newest_only: bool) -> "OutboxContent":
        """Return the content with further entries, without those that it had by its position already.

        With `newest_only` each takes the place of an older one of its key that waits.
        """
        pending = {entry.id: entry for entry in self.pending}
        superseded = self.superseded
        for entry in entries:
            if entry.entry <= self.position:
                continue
            older = [other.id for other in pending.values() if newest_only and other.key == entry.key]
            superseded += len(older)
            for entry_id in older:
                del pending[entry_id]
            pending[entry.id] = entry
        return replace(
            self, position=max(position, self.position), pending=tuple(pending.values()), superseded=superseded
        )

    def complete(self, entry: OutboxEntry, now: datetime, summary: str) -> "OutboxContent":
        """Return the content after the delivery of an entry."""
        last = {"bucket": list(entry.bucket), "version": entry.version, "at": now.isoformat(), "what": summary}
        return replace(self, pending=self._pending_without([entry]), delivered=self.delivered + 1, last=last)

    def update(self, entry: OutboxEntry) -> "OutboxContent":
        """Return the content with the entry of this id replaced, if it still waits."""
        return replace(self, pending=tuple(entry if other.id == entry.id else other for other in self.pending))

    def put_last(self, entry: OutboxEntry) -> "OutboxContent":
        """Return the content with an entry behind all others, also where it was delivered before."""
        return replace(self, pending=(*self._pending_without([entry]), entry))

    def make_due(self) -> "OutboxContent":
        """Return the content with all entries due now."""
        return replace(self, pending=tuple(replace(entry, due=None) for entry in self.pending))

    def skip(self, entries: Iterable[OutboxEntry]) -> "OutboxContent":
        """Return the content without entries, which are never delivered."""
        pending = self._pending_without(entries)
        return replace(self, pending=pending, skipped=self.skipped + len(self.pending) - len(pending))

    def _pending_without(self, entries: Iterable[OutboxEntry]) -> tuple[OutboxEntry, ...]:
        ids = {entry.id for entry in entries}
        return tuple(entry for entry in self.pending if entry.id not in ids)


class Outbox:
    """The outbox of one hook, an object of its own for each generation: put where none is, or not at all."""

    def __init__(self, store: Store, name: str) -> None:
        """Take the store of the table."""
        self._store = store
        self._folder = f"{FOLDER}/{name}"
        self.location = store.path(self._folder)

    def read(self) -> OutboxContent | None:
        """Return the newest content; None for a hook that never got anything of this table. Raises OSError."""
        _, content = self._read_newest()
        return content

    def change(self, make_new: Callable[[OutboxContent | None], OutboxContent]) -> OutboxContent:
        """Put what `make_new` makes of the newest content in its place. Returns it. Raises OSError."""
        for _ in range(_ATTEMPTS_MAX):
            generation, content = self._read_newest()
            new = make_new(content)
            if new == content:
                return new
            if self._put(generation + 1, new):
                # The generation before stays: a reader that listed it a moment ago can still read it.
                self._store.delete(self._object_name(generation - 1))
                return new
        raise OSError(f"{self.location} changes too fast to write to")

    def _put(self, generation: int, content: OutboxContent) -> bool:
        """Put a generation; False when another process put one."""
        name = self._object_name(generation)
        return self._store.put_if_absent(
            name, _to_json(content), is_wanted=lambda: self._newest_generation() == generation - 1
        )

    def _read_newest(self) -> tuple[int, OutboxContent | None]:
        while (generation := self._newest_generation()) >= 0:
            stored = self._store.read(self._object_name(generation))
            if stored is not None:
                return generation, _from_json(stored.content, f"{self.location}/{generation:020}.json")
        return -1, None

    def _newest_generation(self) -> int:
        names = (name.removesuffix(".json") for name in self._store.list(self._folder) if name.endswith(".json"))
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def _object_name(self, generation: int) -> str:
        return f"{self._folder}/{generation:020}.json"


def _to_json(content: OutboxContent) -> bytes:
    document = {"format": _FORMAT, **asdict(content)}
    return json.dumps(document, default=datetime.isoformat, ensure_ascii=False, indent=1).encode()


def _from_json(text: bytes, where: str) -> OutboxContent:
    try:
        document = json.loads(text)
        if document.pop("format") != _FORMAT:
            raise OutboxUnreadable(f"{where} was written by another version of headrace. Use that one, or a newer.")
        pending = tuple(map(_entry_from_json, document.pop("pending")))
        return OutboxContent(pending=pending, **document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutboxUnreadable(
            f"{where} is no outbox of a hook: {error}. Delete the folder: the hook begins anew, as `start` says."
        ) from error


def _entry_from_json(document: Mapping[str, Any]) -> OutboxEntry:
    return OutboxEntry(
        **{
            **document,
            "bucket": tuple(document["bucket"]),
            "since": datetime.fromisoformat(document["since"]),
            "due": from_iso(document["due"]),
            "tried": from_iso(document.get("tried")),
        }
    )


@dataclass(frozen=True)
class Health:
    """A hook at one moment."""

    target: str
    # All deliveries, by the outbox.
    delivered: int = 0
    # Attempts of this process that failed.
    failures: int = 0
    # Deliveries that wait.
    waiting: int = 0
    # When the oldest bucket that waits was sealed.
    oldest: datetime | None = None
    # The error of the last attempt, while anything waits.
    error: str = ""
    # Deliveries of this process; None: it delivers nothing.
    delivered_since_start: int | None = None

    @classmethod
    def from_outbox(cls, content: OutboxContent, target: str) -> "Health":
        """Return what an outbox shows of a hook."""
        errors = [entry.error for entry in content.pending if entry.error]
        return cls(
            target,
            delivered=content.delivered,
            waiting=len(content.pending),
            oldest=min((entry.since for entry in content.pending), default=None),
            error=errors[-1] if errors else "",
        )
