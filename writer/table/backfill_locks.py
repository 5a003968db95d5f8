"""Locks on gaps: small objects beside the table, so that two processes do not fill the same gap.

A lock saves effort and protects no row: what is committed is decided by the table's log alone. Each lock is a new
object, put where none is. The one with the highest number counts, until it expires.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import instant
from headrace.writer.storage.base import Store

FOLDER = "_headrace/gaps"
LEASE = timedelta(minutes=2)
_NAME = re.compile(r"^claim-(\d{10})\.json$")
# Older ones are removed.
_LOCKS_MAX = 2


class BackfillLocked(HeadraceError):
    """Another process fills this gap."""


@dataclass(frozen=True)
class BackfillLock:
    """The process that fills a gap, since when, and when its lock expires unless it is renewed."""

    number: int
    owner: str
    since: datetime
    until: datetime

    def is_valid(self, now: datetime) -> bool:
        """Return whether it has not expired.

        One that ends later than any lock could was put by a clock that has stepped back since, or runs far ahead.
        """
        return now < self.until <= now + 2 * LEASE


class BackfillLocks:
    """The locks of one table. Operations raise StoreError."""

    def __init__(self, store: Store) -> None:
        """Take the store of the table."""
        self._store = store

    def newest(self, gap: str) -> BackfillLock | None:
        """Return the last lock of a gap, expired or not; None: there was none, or it was released."""
        numbers = self._numbers(gap)
        if not numbers:
            return None
        stored = self._store.read(_path(gap, numbers[-1]))
        if stored is None:
            return None
        try:
            document = json.loads(stored.content)
            since = datetime.fromisoformat(document["at"])
            until = datetime.fromisoformat(document["until"])
            return BackfillLock(numbers[-1], document["by"], since, until)
        except (ValueError, KeyError, TypeError):
            # An incomplete object: no process has the lock.
            return None

    def acquire(
        self, gap: str, owner: str, now: datetime, has_ended: Callable[[str], bool] = lambda _: False
    ) -> BackfillLock:
        """Lock a gap. `has_ended`: whether a lock's process has ended. Raises BackfillLocked while another has it."""
        lock = self.newest(gap)
        if lock is None:
            return self._put(gap, owner, now, now)
        if lock.owner == owner:
            return self._put(gap, owner, now, lock.since)
        if lock.is_valid(now) and not has_ended(lock.owner):
            raise BackfillLocked(
                f"gap {gap[:8]} is being filled by {lock.owner} since {instant(lock.since)}; without a sign of "
                f"life it is free at {instant(lock.until)}."
            )
        return self._put(gap, owner, now, now)

    def renew(self, gap: str, lock: BackfillLock, now: datetime) -> BackfillLock:
        """Prolong a lock. Raises BackfillLocked when another process took the gap meanwhile."""
        newest = self.newest(gap)
        if newest is not None and newest.owner != lock.owner:
            raise BackfillLocked(f"gap {gap[:8]} was taken over by {newest.owner} at {instant(newest.since)}.")
        return self._put(gap, lock.owner, now, lock.since)

    def release(self, gap: str) -> None:
        """Release a gap: remove all of its locks."""
        for number in self._numbers(gap):
            self._store.delete(_path(gap, number))

    def _put(self, gap: str, owner: str, now: datetime, since: datetime) -> BackfillLock:
        numbers = self._numbers(gap)
        number = numbers[-1] + 1 if numbers else 1
        lock = BackfillLock(number, owner, since, now + LEASE)
        text = json.dumps({"by": lock.owner, "at": lock.since.isoformat(), "until": lock.until.isoformat()})
        if not self._store.put_if_absent(_path(gap, lock.number), text.encode()):
            raise BackfillLocked(f"gap {gap[:8]} was claimed by another process at this moment.")
        for old in numbers[: -_LOCKS_MAX + 1]:
            self._store.delete(_path(gap, old))
        return lock

    def _numbers(self, gap: str) -> list[int]:
        matches = map(_NAME.match, self._store.list(f"{FOLDER}/{gap}"))
        return sorted(int(match[1]) for match in matches if match)


def _path(gap: str, number: int) -> str:
    return f"{FOLDER}/{gap}/claim-{number:010}.json"
