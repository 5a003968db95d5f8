"""Remembers when schema ids that the registry does not know were first met, across restarts.

`<checkpoints>/<pipeline>/unknown_ids.json`. Nothing depends on it: where it is missing, ids get their grace anew.
"""

import json
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

from writer.core import logging
from writer.storage.base import Store

_NAME = "unknown_ids.json"
_FORMAT = 1
_IDS_MAX = 10_000  # kept: the newest
_AGE_MAX = timedelta(days=30)


class UnknownIds:
    """The ids of one pipeline that the registry does not know: each has one grace, from when it was first met."""

    def __init__(self, pipeline: str, grace: timedelta, store: Store | None = None) -> None:
        """`store`: of the pipeline's checkpoints; None: they are remembered as long as this process lives."""
        self._pipeline = pipeline
        self._grace = grace
        self._store = store
        self._times: dict[str, datetime] | None = None  # when each was first met, by the wall clock
        self._deadlines_s: dict[str, float] = {}  # when the grace of each ends, monotonic

    def remaining_s(self, names: Iterable[str]) -> Mapping[str, float]:
        """Return how long each id may still hold a batch, and remember those that are new."""
        wanted = list(names)
        unseen = [name for name in wanted if name not in self._deadlines_s]
        if unseen:
            self._deadlines_s |= self._new_deadlines_s(unseen, datetime.now(UTC), time.monotonic())
        now_s = time.monotonic()
        return {name: max(self._deadlines_s[name] - now_s, 0.0) for name in wanted}

    def _new_deadlines_s(self, names: Iterable[str], now: datetime, now_s: float) -> dict[str, float]:
        times = self._read()
        unmet = [name for name in names if name not in times]
        times |= dict.fromkeys(unmet, now)
        left = {name: remaining_grace(times[name], self._grace, now) for name in names}
        if unmet:
            self._write(now)
        return {name: now_s + grace.total_seconds() for name, grace in left.items()}

    def extend(self, seconds: float) -> None:
        """Leave a time out of all graces, in which the registry did not answer."""
        self._deadlines_s = {name: deadline_s + seconds for name, deadline_s in self._deadlines_s.items()}

    def forget(self, names: Iterable[str]) -> None:
        """Forget ids, which the registry knows by now."""
        known = [name for name in names if name in self._deadlines_s]
        for name in known:
            del self._deadlines_s[name]
            self._read().pop(name, None)
        if known:
            self._write(datetime.now(UTC))

    def _read(self) -> dict[str, datetime]:
        if self._times is None:
            self._times = {}
            try:
                stored = None if self._store is None else self._store.read(_NAME)
                if stored is not None:
                    self._times = _parse(stored.content)
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                logging.warning("unknown_ids_failed", pipeline=self._pipeline, error=str(error))
        return self._times

    def _write(self, now: datetime) -> None:
        """Write the newest times. A failure of the storage is logged."""
        young = [(name, met) for name, met in self._read().items() if now - met < _AGE_MAX]
        newest = sorted(young, key=lambda entry: entry[1])[-_IDS_MAX:]
        self._times = dict(newest)
        if self._store is None:
            return
        document = {"format": _FORMAT, "first_met": {name: met.isoformat() for name, met in newest}}
        try:
            self._store.put(_NAME, (json.dumps(document) + "\n").encode())
        except OSError as error:
            logging.warning("unknown_ids_failed", pipeline=self._pipeline, error=str(error))


def _parse(content: bytes) -> dict[str, datetime]:
    document = json.loads(content)
    if document["format"] != _FORMAT:
        return {}
    return {str(name): datetime.fromisoformat(met).astimezone(UTC) for name, met in document["first_met"].items()}


def remaining_grace(first_met: datetime, grace: timedelta, now: datetime) -> timedelta:
    """Return how long an id may still hold a batch; never longer than the grace, however the clock was set."""
    return min(max(first_met + grace - now, timedelta(0)), grace)
