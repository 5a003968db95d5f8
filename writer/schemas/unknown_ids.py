"""Remembers which schema ids the registry does not know, and how long a pipeline may still wait for such ids.

An id has one grace, from when it was first met. All ids of a pipeline share an allowance: it holds one grace, a batch
that waits for ids in vain takes from it, and it fills again by REFILL of the time that passes.

`<checkpoints>/<pipeline>/unknown_ids.json`. Nothing depends on it: where it is missing, ids get their grace anew.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from writer.core import logging
from writer.storage.base import Store

REFILL = 0.1  # of the time: a stream of strays holds a pipeline for no larger part of it
_NAME = "unknown_ids.json"
_FORMAT = 1
_IDS_MAX = 10_000  # kept: the newest
_AGE_MAX = timedelta(days=30)
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass
class _Memory:
    """What the storage has, by the wall clock."""

    first_met: dict[str, datetime] = field(default_factory=dict)
    full_at: datetime = _LONG_AGO  # when the allowance holds a whole grace again

    @classmethod
    def parse(cls, content: bytes) -> "_Memory":
        """Read a stored document. Raises ValueError, LookupError, TypeError, AttributeError for any other."""
        document = json.loads(content)
        if document["format"] != _FORMAT:
            return cls()
        first_met = {name: datetime.fromisoformat(met).astimezone(UTC) for name, met in document["first_met"].items()}
        return cls(first_met, datetime.fromisoformat(document["full_at"]).astimezone(UTC))

    def document(self) -> dict[str, Any]:
        """Return what is stored."""
        first_met = {name: met.isoformat() for name, met in self.first_met.items()}
        return {"format": _FORMAT, "first_met": first_met, "full_at": self.full_at.isoformat()}

    def forget_old(self, now: datetime) -> None:
        """Keep the newest ids."""
        young = [(name, met) for name, met in self.first_met.items() if now - met < _AGE_MAX]
        self.first_met = dict(sorted(young, key=lambda entry: entry[1])[-_IDS_MAX:])


class UnknownIds:
    """The ids of one pipeline that the registry does not know."""

    def __init__(self, pipeline: str, grace: timedelta, store: Store | None = None) -> None:
        """`store`: of the pipeline's checkpoints; None: they are remembered as long as this process lives."""
        self._pipeline = pipeline
        self._grace = grace
        self._store = store
        self._memory: _Memory | None = None
        self._deadlines_s: dict[str, float] = {}  # when the grace of each ends, monotonic; the newest
        self._full_s: float | None = None  # when the allowance holds a whole grace again, monotonic

    def remaining_s(self, names: Iterable[str]) -> Mapping[str, float]:
        """Return how long each id may still hold a batch, and remember those that are new."""
        wanted = list(names)
        unmet = [name for name in wanted if name not in self._deadlines_s]
        if unmet:
            self._deadlines_s |= self._new_deadlines_s(unmet, datetime.now(UTC), time.monotonic())
        now_s = time.monotonic()
        remaining_s = {name: max(self._deadlines_s[name] - now_s, 0.0) for name in wanted}
        for name in list(self._deadlines_s)[:-_IDS_MAX]:
            del self._deadlines_s[name]
        return remaining_s

    def has_met(self, name: str) -> bool:
        """Return whether an id was unknown before, and is not known since."""
        return name in self._deadlines_s or name in self._read().first_met

    def _new_deadlines_s(self, names: Iterable[str], now: datetime, now_s: float) -> dict[str, float]:
        first_met = self._read().first_met
        unmet = [name for name in names if name not in first_met]
        first_met |= dict.fromkeys(unmet, now)
        left = {name: remaining_grace(first_met[name], self._grace, now) for name in names}
        if unmet:
            self._write(now)
        return {name: now_s + grace.total_seconds() for name, grace in left.items()}

    def allowance_s(self) -> float:
        """Return how long a batch may wait for unknown ids now."""
        grace_s = self._grace.total_seconds()
        return max(grace_s - max(self._full_at_s() - time.monotonic(), 0.0) * REFILL, 0.0)

    def spend(self, seconds: float) -> None:
        """Take from the allowance what a batch has waited for ids that are unknown all the same."""
        now_s = time.monotonic()
        self._full_s = max(self._full_at_s(), now_s) + seconds / REFILL
        now = datetime.now(UTC)
        self._read().full_at = now + timedelta(seconds=self._full_s - now_s)
        self._write(now)

    def _full_at_s(self) -> float:
        """Return when the allowance is full, monotonic. However the clock was set: not later than a spent one is."""
        if self._full_s is None:
            missing = min(max(self._read().full_at - datetime.now(UTC), timedelta(0)), self._grace / REFILL)
            self._full_s = time.monotonic() + missing.total_seconds()
        return self._full_s

    def extend(self, seconds: float) -> None:
        """Leave a time out of all graces, in which the registry did not answer."""
        self._deadlines_s = {name: deadline_s + seconds for name, deadline_s in self._deadlines_s.items()}

    def forget(self, names: Iterable[str]) -> None:
        """Forget ids, which the registry knows by now."""
        known = [name for name in names if name in self._deadlines_s]
        for name in known:
            del self._deadlines_s[name]
            self._read().first_met.pop(name, None)
        if known:
            self._write(datetime.now(UTC))

    def _read(self) -> _Memory:
        if self._memory is None:
            self._memory = _Memory()
            try:
                stored = None if self._store is None else self._store.read(_NAME)
                if stored is not None:
                    self._memory = _Memory.parse(stored.content)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                logging.warning("unknown_ids_failed", pipeline=self._pipeline, error=str(error))
        return self._memory

    def _write(self, now: datetime) -> None:
        """Write what is remembered. A failure of the storage is logged."""
        memory = self._read()
        memory.forget_old(now)
        if self._store is None:
            return
        try:
            self._store.put(_NAME, (json.dumps(memory.document()) + "\n").encode())
        except OSError as error:
            logging.warning("unknown_ids_failed", pipeline=self._pipeline, error=str(error))


def remaining_grace(first_met: datetime, grace: timedelta, now: datetime) -> timedelta:
    """Return how long an id may still hold a batch; never longer than the grace, however the clock was set."""
    return min(max(first_met + grace - now, timedelta(0)), grace)
