"""The outbox of a hook: delivered and pending versions, small objects changed by compare-and-put.

What stands there is a claim: all seals up to `position` are delivered, but for the outbox entries that wait. A claim
stays true for good, so of two processes that deliver at once neither loses an outbox entry; one may be delivered twice.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from writer.core.backoff import Backoff
from writer.core.files import BucketKey
from writer.core.units import from_iso
from writer.storage.base import Store

FOLDER = "_headrace/hooks"
_FORMAT = 1
_BACKOFF = Backoff(5, 600, jitter=0.5)
_TRIES = 20  # to change a box that others change as well


class OutboxUnreadable(OSError):
    """The box is not what this version of headrace writes."""


@dataclass(frozen=True)
class OutboxEntry:
    """One sealed version of a bucket that a hook has to get."""

    key: str  # a newer outbox entry of the same key may take its place
    bucket: BucketKey
    version: int  # of the manifest
    entry: int  # version of the table's log that sealed it
    since: datetime  # when it was sealed
    retired: bool = False  # retention took the bucket
    attempts: int = 0  # that failed
    due: datetime | None = None  # not before; None: at once
    error: str = ""  # of the last attempt
    state: Mapping[str, Any] = field(default_factory=dict)  # the hook's own, of a delivery that is under way

    @property
    def id(self) -> tuple[str, int]:
        """Tells it from all others of the box."""
        return self.key, self.entry


@dataclass(frozen=True)
class OutboxContent:
    """What was delivered to a hook."""

    position: int  # version of the table's log up to which seals were taken up
    pending: tuple[OutboxEntry, ...] = ()  # oldest first
    delivered: int = 0
    skipped: int = 0  # by command
    superseded: int = 0
    last: Mapping[str, Any] | None = None  # delivery: bucket, version, at, what

    def next(self) -> list[OutboxEntry]:
        """Of each key the oldest entry: what comes after it waits for it."""
        first: dict[str, OutboxEntry] = {}
        for pending in self.pending:
            first.setdefault(pending.key, pending)
        return list(first.values())

    def taken(self, added: Iterable[OutboxEntry], position: int, *, newest_only: bool) -> "OutboxContent":
        """Take entries up. With `newest_only` each takes the place of an older one of its key that waits."""
        kept = {one.id: one for one in self.pending}
        gone = 0
        for pending in [one for one in added if one.entry > self.position]:
            old = [one.id for one in kept.values() if newest_only and one.key == pending.key]
            gone += len(old)
            for one in old:
                del kept[one]
            kept[pending.id] = pending
        position = max(position, self.position)
        return replace(self, position=position, pending=tuple(kept.values()), superseded=self.superseded + gone)

    def done(self, pending: OutboxEntry, now: datetime, what: str) -> "OutboxContent":
        """Note that an entry was delivered."""
        rest = tuple(one for one in self.pending if one.id != pending.id)
        last = {"bucket": list(pending.bucket), "version": pending.version, "at": now.isoformat(), "what": what}
        return replace(self, pending=rest, delivered=self.delivered + 1, last=last)

    def changed(self, pending: OutboxEntry) -> "OutboxContent":
        """Note what became of an attempt, unless the entry is not there any more."""
        return replace(self, pending=tuple(pending if one.id == pending.id else one for one in self.pending))

    def without(self, removed: Iterable[OutboxEntry]) -> "OutboxContent":
        """Leave entries out: they are never delivered."""
        gone = {one.id for one in removed}
        rest = tuple(one for one in self.pending if one.id not in gone)
        return replace(self, pending=rest, skipped=self.skipped + len(self.pending) - len(rest))


def failed(
    pending: OutboxEntry, now: datetime, why: str, after: timedelta | None, state: Mapping[str, Any]
) -> OutboxEntry:
    """Return the entry with its next attempt put off: twice as long each time, up to ten minutes, with jitter."""
    pause = timedelta(seconds=_BACKOFF.random_delay_s(pending.attempts))
    return replace(pending, attempts=pending.attempts + 1, due=now + max(pause, after or pause), error=why, state=state)


class Outbox:
    """The box of one hook, an object of its own for each generation: put where none is, or not at all."""

    def __init__(self, store: Store, name: str) -> None:
        """Take the store of the table."""
        self._store, self._folder = store, f"{FOLDER}/{name}"
        self.location = store.path(self._folder)

    def read(self) -> OutboxContent | None:
        """Return the newest box; None for a hook that never got anything of this table. Raises OSError."""
        return self._newest()[1]

    def change(self, to: Callable[[OutboxContent | None], OutboxContent]) -> OutboxContent:
        """Put what `to` makes of the newest box in its place. Returns it. Raises OSError."""
        for _ in range(_TRIES):
            generation, box = self._newest()
            new = to(box)
            if new == box:
                return new
            if self._put(generation, new):
                self._store.delete(
                    self._name(generation - 1)
                )  # a reader that listed it a moment ago can still read the last
                return new
        raise OSError(f"{self.location} changes too fast to write to")

    def _put(self, generation: int, box: OutboxContent) -> bool:
        """Put the box that follows a generation; False when another one does."""
        name = self._name(generation + 1)
        return self._store.put_if_absent(name, _content(box), still=lambda: self._last() == generation)

    def _newest(self) -> tuple[int, OutboxContent | None]:
        while (at := self._last()) >= 0:
            found = self._store.read(self._name(at))
            if found is not None:
                return at, _box(found.content, f"{self.location}/{at:020}.json")
        return -1, None

    def _last(self) -> int:
        names = (name.removesuffix(".json") for name in self._store.list(self._folder) if name.endswith(".json"))
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _name(self, generation: int) -> str:
        return f"{self._folder}/{generation:020}.json"


def _content(box: OutboxContent) -> bytes:
    document = {"format": _FORMAT, **asdict(box)}
    return json.dumps(document, default=datetime.isoformat, ensure_ascii=False, indent=1).encode()


def _box(content: bytes, where: str) -> OutboxContent:
    try:
        raw = json.loads(content)
        if raw.pop("format") != _FORMAT:
            raise OutboxUnreadable(f"{where} was written by another version of headrace. Use that one, or a newer.")
        pending = tuple(
            OutboxEntry(
                **{
                    **one, "bucket": tuple(one["bucket"]), "since": datetime.fromisoformat(one["since"]),
                    "due": from_iso(one["due"]),
                }
            )
            for one in raw.pop("pending")
        )  # fmt: skip
        return OutboxContent(pending=pending, **raw)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutboxUnreadable(
            f"{where} is no outbox of a hook: {error}. Delete the folder: the hook begins anew, as `start` says."
        ) from error


@dataclass(frozen=True)
class Health:
    """A hook at one moment."""

    target: str
    delivered: int = 0  # by this process; without a driver: ever
    failures: int = 0  # attempts that failed, of this process
    waiting: int = 0  # deliveries
    oldest: datetime | None = None  # when the oldest of them was sealed
    error: str = ""  # of the last attempt, while anything waits


def read_from(box: OutboxContent, target: str) -> Health:
    """Read an outbox."""
    errors = [pending.error for pending in box.pending if pending.error]
    oldest = min((pending.since for pending in box.pending), default=None)
    return Health(target, box.delivered, 0, len(box.pending), oldest, errors[-1] if errors else "")
