"""The lease of a pipeline: only its holder runs a driver. The table's fence holds even if a lease fails.

A lease has an epoch, one higher with each holder. No clocks are compared: a candidate watches whether the holder
still renews it, for an interval of its own; a holder that finds a higher epoch has lost. Between the two a loser may
work on for a moment. That costs nothing: the next holder's start fences it in the table, and a start that was ordered
under an older epoch is refused there.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from writer.storage.base import Mark, Store

FOLDER = "_lease"  # beside a pipeline's runs, whose names are numbers
_KEPT = 10  # epochs whose objects stay: a straggler must find that its number is taken
EXPIRES_AFTER = timedelta(seconds=20)


@dataclass(frozen=True)
class LeaseRecord:
    """A lease as it was read."""

    epoch: int
    holder: str
    mark: Mark | None  # changes with each renewal
    released: bool = False


class Leases(Protocol):
    """The lease of one pipeline, in any store. All operations raise OSError if that does not answer."""

    def look(self) -> LeaseRecord | None:
        """Return the newest lease; None: there never was one."""

    def take(self, epoch: int, holder: str) -> bool:
        """Make a lease with this epoch. Of several attempts one succeeds."""

    def renew(self, epoch: int, holder: str) -> bool:
        """Show that the holder lives. False when a higher epoch is there: the lease is lost."""

    def release(self, epoch: int, holder: str) -> None:
        """Let the next one take it without waiting."""


class StoreLeases:
    """A lease as objects of a store: `_lease/<epoch>` is put when taken, `_lease/<epoch>.beat` at each renewal."""

    def __init__(self, store: Store) -> None:
        """`store`: of what lies below `<checkpoints>/<pipeline>`."""
        self._store = store

    def look(self) -> LeaseRecord | None:
        """Read the object with the highest number."""
        epoch = max(self._epochs(), default=None)
        if epoch is None:
            return None
        taken, beat = self._store.read(_name(epoch)), self._store.read(f"{_name(epoch)}.beat")
        newest = beat or taken
        document = {} if newest is None else _json(newest.content)
        mark = None if newest is None else newest.mark
        return LeaseRecord(epoch, str(document.get("holder", "")), mark, bool(document.get("released", False)))

    def take(self, epoch: int, holder: str) -> bool:
        """Put the object where none is; then look whether it is the highest."""
        if not self._store.put_if_absent(_name(epoch), _content(holder)):
            return False
        known = sorted(self._epochs())
        if known[-1] != epoch:
            return False
        for old in known[:-_KEPT]:
            self._store.delete(_name(old))
            self._store.delete(f"{_name(old)}.beat")
        return True

    def renew(self, epoch: int, holder: str) -> bool:
        """Check the next number first, so that a holder that wakes up late does not renew a lost lease.

        One's own is gone when many have held the lease since, or when the checkpoints were removed: then it is put
        anew.
        """
        if self._store.mark(_name(epoch + 1)) is not None:
            return False
        if self._store.mark(_name(epoch)) is None and (
            any(other > epoch for other in self._epochs())
            or not self._store.put_if_absent(_name(epoch), _content(holder))
        ):
            return False
        self._store.put(f"{_name(epoch)}.beat", _content(holder))
        return True

    def release(self, epoch: int, holder: str) -> None:
        """Say so in the place of a renewal."""
        self._store.put(f"{_name(epoch)}.beat", _content(holder, released=True))

    def _epochs(self) -> Iterator[int]:
        return (int(name) for name in self._store.list(FOLDER) if name.isdigit())


@dataclass(frozen=True)
class ObservedLease:
    """What a candidate for a lease has seen of it, and since when by its own clock that measures."""

    seen: LeaseRecord | None
    since_s: float


def watched(before: ObservedLease | None, seen: LeaseRecord | None, now_s: float) -> ObservedLease:
    """Store what was read; any change restarts the interval."""
    if before is None or before.seen != seen:
        return ObservedLease(seen, now_s)
    return before


def free(watch: ObservedLease, now_s: float, expires_after: timedelta) -> bool:
    """Return whether a lease may be taken: there was none, it was released, or its holder was silent long enough."""
    if watch.seen is None or watch.seen.released:
        return True
    return now_s - watch.since_s >= expires_after.total_seconds()


def _name(epoch: int) -> str:
    return f"{FOLDER}/{epoch:012d}"


def _content(holder: str, *, released: bool = False) -> bytes:
    return (json.dumps({"holder": holder, "released": released}, ensure_ascii=False) + "\n").encode()


def _json(content: bytes) -> dict[str, object]:
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
