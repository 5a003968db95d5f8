"""Locks on gaps: small objects beside the table, so that two processes do not fill the same gap.

A claim protects effort, never rows: what is committed is decided by the table's log alone. Each claim is a new object,
put where none is; the one with the highest number stands, until its time is over.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from writer.core.errors import HeadraceError
from writer.core.text import instant
from writer.storage.base import Store

FOLDER = "_headrace/gaps"
LEASE = timedelta(minutes=2)
_NAME = re.compile(r"^claim-(\d{10})\.json$")
_KEPT = 2  # older ones are removed


class BackfillLocked(HeadraceError):
    """Another process fills this gap."""


@dataclass(frozen=True)
class BackfillLock:
    """The process that fills a gap, and when its lock expires unless it is renewed."""

    number: int
    by: str
    at: datetime
    until: datetime

    def stands(self, now: datetime) -> bool:
        """Return whether its time is not over.

        One that ends later than any lock could was put by a clock that has stepped back since, or runs far ahead.
        """
        return now < self.until <= now + 2 * LEASE


class BackfillLocks:
    """The claims of one table. Operations raise StoreError."""

    def __init__(self, store: Store) -> None:
        """Take the store of the table."""
        self._store = store

    def newest(self, gap: str) -> BackfillLock | None:
        """Return the last lock of a gap, expired or not; None: there was none, or it was released."""
        numbers = self._numbers(gap)
        found = self._store.read(_path(gap, numbers[-1])) if numbers else None
        if found is None:
            return None
        try:
            document = json.loads(found.content)
            instants = (datetime.fromisoformat(document[name]) for name in ("at", "until"))
            return BackfillLock(numbers[-1], document["by"], *instants)
        except (ValueError, KeyError, TypeError):
            return None  # incomplete: no process holds it

    def take(self, gap: str, by: str, now: datetime, gone: Callable[[str], bool] = lambda _: False) -> BackfillLock:
        """Claim a gap. `gone`: whether a claim's process has ended. Raises Claimed while another's claim stands."""
        known = self.newest(gap)
        if known is not None and known.stands(now) and known.by != by and not gone(known.by):
            raise BackfillLocked(
                f"gap {gap[:8]} is being filled by {known.by} since {instant(known.at)}; without a sign of "
                f"life it is free at {instant(known.until)}."
            )
        return self._put(gap, by, now, known.at if known and known.by == by else now)

    def renew(self, gap: str, mine: BackfillLock, now: datetime) -> BackfillLock:
        """Prolong a claim. Raises Claimed when another process took the gap meanwhile."""
        known = self.newest(gap)
        if known is not None and known.by != mine.by:
            raise BackfillLocked(f"gap {gap[:8]} was taken over by {known.by} at {instant(known.at)}.")
        return self._put(gap, mine.by, now, mine.at)

    def release(self, gap: str) -> None:
        """Release a gap: all of its claims are removed."""
        for number in self._numbers(gap):
            self._store.delete(_path(gap, number))

    def _put(self, gap: str, by: str, now: datetime, since: datetime) -> BackfillLock:
        numbers = self._numbers(gap)
        made = BackfillLock((numbers[-1] if numbers else 0) + 1, by, since, now + LEASE)
        text = json.dumps({"by": made.by, "at": made.at.isoformat(), "until": made.until.isoformat()})
        if not self._store.put_if_absent(_path(gap, made.number), text.encode()):
            raise BackfillLocked(f"gap {gap[:8]} was claimed by another process at this moment.")
        for number in numbers[: -_KEPT + 1]:
            self._store.delete(_path(gap, number))
        return made

    def _numbers(self, gap: str) -> list[int]:
        return sorted(int(found[1]) for name in self._store.list(f"{FOLDER}/{gap}") if (found := _NAME.match(name)))


def _path(gap: str, number: int) -> str:
    return f"{FOLDER}/{gap}/claim-{number:010}.json"
