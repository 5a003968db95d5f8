"""The lease of a pipeline: only its holder writes to it. The table's fence holds even if a lease fails.

A lease has an epoch, one higher with each holder. No clocks are compared: a candidate watches whether the holder
still renews it, for an interval of its own; a holder that finds a higher epoch has lost. Between the two a loser may
work on for a moment. That costs nothing: the next holder's start fences it in the table, and a start that was ordered
under an older epoch is refused there.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from headrace.writer.storage.base import Mark, Store

# Beside a pipeline's runs, whose names are numbers.
FOLDER = "_lease"
# Of so many epochs the objects stay: a straggler must find that its number is taken.
_EPOCHS_KEPT = 10
EXPIRES_AFTER = timedelta(seconds=20)


@dataclass(frozen=True)
class LeaseRecord:
    """A lease as it was read."""

    epoch: int
    holder: str
    # It changes with each renewal.
    mark: Mark | None
    released: bool = False
    # When the holder took it, by the holder's clock: for people. None: it does not say.
    taken_at: datetime | None = None


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

    def __init__(self, store: Store, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`store`: of what lies below `<checkpoints>/<pipeline>`. `clock` tells people when the lease was taken."""
        self._store = store
        self._clock = clock

    def look(self) -> LeaseRecord | None:
        """Read the object with the highest number."""
        epoch = max(self._epochs(), default=None)
        if epoch is None:
            return None
        taken = self._store.read(_object_name(epoch))
        newest = self._store.read(_beat_name(epoch)) or taken
        if newest is None:
            return LeaseRecord(epoch, "", None)
        document = _parse_json(newest.content)
        taken_at = None if taken is None else parse_time(_parse_json(taken.content).get("taken_at"))
        return LeaseRecord(
            epoch,
            str(document.get("holder", "")),
            newest.mark,
            bool(document.get("released", False)),
            taken_at,
        )

    def take(self, epoch: int, holder: str) -> bool:
        """Put the object where none is; then look whether it is the highest.

        It is not taken either where the object is gone again, as when the checkpoints are removed meanwhile.
        """
        if not self._put_object(epoch, holder):
            return False
        epochs = sorted(self._epochs())
        if not epochs or epochs[-1] != epoch:
            return False
        for old_epoch in epochs[:-_EPOCHS_KEPT]:
            self._store.delete(_object_name(old_epoch))
            self._store.delete(_beat_name(old_epoch))
        return True

    def renew(self, epoch: int, holder: str) -> bool:
        """Check the next number first, so that a holder that wakes up late does not renew a lost lease.

        One's own is gone when many have held the lease since, or when the checkpoints were removed: then it is put
        anew.
        """
        # A read costs what a look does, and tells a missing object from a missing bucket by itself.
        if self._store.read(_object_name(epoch + 1)) is not None:
            return False
        if self._store.mark(_object_name(epoch)) is None:
            if any(other > epoch for other in self._epochs()):
                return False
            if not self._put_object(epoch, holder):
                return False
        self._store.put(_beat_name(epoch), _content(holder))
        return True

    def release(self, epoch: int, holder: str) -> None:
        """Say so in the place of a renewal."""
        self._store.put(_beat_name(epoch), _content(holder, released=True))

    def _put_object(self, epoch: int, holder: str) -> bool:
        taken_at = self._clock().isoformat(timespec="seconds")
        return self._store.put_if_absent(_object_name(epoch), _content(holder, taken_at=taken_at))

    def _epochs(self) -> Iterator[int]:
        return (int(name) for name in self._store.list(FOLDER) if name.isdecimal())


@dataclass(frozen=True)
class ObservedLease:
    """What a candidate for a lease has seen of it, and since when by its own monotonic clock."""

    record: LeaseRecord | None
    since_s: float


def observe(previous: ObservedLease | None, record: LeaseRecord | None, now_s: float) -> ObservedLease:
    """Store what was read; any change restarts the interval."""
    if previous is None or previous.record != record:
        return ObservedLease(record, now_s)
    return previous


def is_free(observed: ObservedLease, now_s: float, expires_after: timedelta) -> bool:
    """Return whether a lease may be taken: there was none, it was released, or its holder was silent long enough."""
    if observed.record is None or observed.record.released:
        return True
    return now_s - observed.since_s >= expires_after.total_seconds()


def _object_name(epoch: int) -> str:
    return f"{FOLDER}/{epoch:012d}"


def _beat_name(epoch: int) -> str:
    return f"{_object_name(epoch)}.beat"


def _content(holder: str, **details: str | bool) -> bytes:
    return (json.dumps({"holder": holder, **details}, ensure_ascii=False) + "\n").encode()


def parse_time(value: object) -> datetime | None:
    """Parse a time with a zone, in ISO 8601; None where it is none, or outside of the years 1 to 9999 in UTC."""
    with suppress(ValueError, OverflowError):
        time = datetime.fromisoformat(str(value))
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    return None


def _parse_json(content: bytes) -> dict[str, object]:
    """Parse a lease's content; empty if it is none."""
    try:
        document = json.loads(content)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
