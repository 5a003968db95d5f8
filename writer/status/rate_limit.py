"""Holds batches back for the rate limit, which `headrace limit` can replace while the driver runs.

The command puts a small object beside the table. While it is there, the limits of the configuration do not count. A
driver looks for it every other second, with the pause.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from writer.commit.rate_limit import NO_LIMIT, BatchUse, RateLimit, batch_use, wait_s
from writer.config.pipeline_sections import Commit
from writer.core import logging
from writer.core.errors import Draining
from writer.core.text import describe_limit, instant
from writer.storage.base import Store, StoreError

OVERRIDE = "_headrace/rate_limit.json"
_NAP_S = 0.5  # between two looks at the limit while a batch waits


@dataclass(frozen=True)
class Override:
    """The limit that a person set in place of the configuration's."""

    at: str  # ISO 8601
    by: str
    reason: str
    records_per_second: int | None
    bytes_per_second: int | None

    def __post_init__(self) -> None:
        if not self.limit:
            raise ValueError("a rate limit has records a second, bytes a second, or both")

    @property
    def limit(self) -> RateLimit:
        """What it allows."""
        return RateLimit(self.records_per_second, self.bytes_per_second)


@dataclass(frozen=True)
class EffectiveLimit:
    """The limit that counts now, and where it comes from."""

    limit: RateLimit = NO_LIMIT
    override: Override | None = None  # None: it is the configuration's
    error: str = ""  # why an override that stands does not count

    @property
    def words(self) -> str:
        """Say it as a phrase: 5,000 records/s, by ada@ops since 2026-11-20 05:00:00 UTC: reason."""
        override, origin = self.override, "by the configuration"
        if override is not None:
            why = f": {override.reason}" if override.reason else ""
            origin = f"by {override.by} since {instant(override.at)}{why}"
        return ", ".join(filter(None, (self.rates, origin if self.limit else "", self.error)))

    @property
    def rates(self) -> str:
        """Write the limit alone."""
        return describe_limit(to_json(self.limit))


@dataclass(frozen=True)
class LimitState:
    """A pipeline's rate limit at one moment."""

    in_force: EffectiveLimit = field(default_factory=EffectiveLimit)
    next_begin: datetime | None = None  # when the next batch may begin; None: at once
    holds: bool = False  # a batch waits for that
    wait_seconds: float = 0.0  # that batches of this driver waited so far


def to_json(limit: RateLimit) -> dict[str, float | None]:
    """Write a limit as JSON values."""
    return {"records_per_second": limit.records_per_s, "bytes_per_second": limit.bytes_per_s}


def configured(commit: Commit) -> RateLimit:
    """Return the limit of the configuration."""
    return RateLimit(commit.max_records_per_second, commit.max_bytes_per_second)


def standing(store: Store, otherwise: RateLimit) -> EffectiveLimit:
    """Return the limit that counts: what a person set, else `otherwise`. Raises StoreError."""
    found = store.read(OVERRIDE)
    if found is None:
        return EffectiveLimit(otherwise)
    try:
        override = _parsed(json.loads(found.content))
    except (ValueError, KeyError, TypeError):
        place = store.path(OVERRIDE)
        return EffectiveLimit(
            otherwise,
            error=f"{place} is not what this headrace writes, so the configuration's limit counts; "
            "`headrace limit --off` removes it",
        )
    return EffectiveLimit(override.limit, override)


def _parsed(document: Mapping[str, Any]) -> Override:
    """Read an override. Raises KeyError, TypeError, ValueError."""
    given = (document["records_per_second"], document["bytes_per_second"])
    records, size = (None if rate is None else int(rate) for rate in given)
    at = datetime.fromisoformat(document["at"]).isoformat()
    return Override(at, str(document["by"]), str(document["reason"]), records, size)


def put(store: Store, override: Override) -> None:
    """Set an override in place of the one that stands. Raises StoreError."""
    store.put(OVERRIDE, (json.dumps(asdict(override), ensure_ascii=False) + "\n").encode())


def end(store: Store) -> None:
    """Remove the override, if one stands. Raises StoreError."""
    store.delete(OVERRIDE)


class Throttle:
    """Holds the batches of a driver back so that they keep to the limit."""

    def __init__(
        self, store: Store, pipeline: str, commit: Commit, listener: Callable[[LimitState], None], *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC), seconds: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`store`: of the table. `listener` gets the state at each change. `seconds`: a monotonic clock."""
        self._store, self._pipeline, self._configured = store, pipeline, configured(commit)
        self._listener, self._now, self._seconds = listener, now, seconds
        self._lock = threading.Lock()  # the batch's thread and the one that looks at the store
        self._last: BatchUse | None = None
        self._last_began_s = 0.0  # by the monotonic clock: no step of the other one makes a batch wait, or lets it go
        self._began_s: float | None = None  # when the batch of this process may have begun; None: none has yet
        self._state = LimitState(EffectiveLimit(self._configured))
        self._held_s = 0.0  # that the batch which runs has waited

    @property
    def limit(self) -> RateLimit:
        """The limit that counts now."""
        return self._state.in_force.limit

    def begin(self, recent: Sequence[Mapping[str, Any]]) -> None:
        """Begin a start: the last commit of the table counts, so that restarts are not faster. Raises StoreError.

        `recent`: facts of commits, newest first.
        """
        self._last = None
        self._began_s = None
        if recent:
            self.committed(recent[0])
        self._note(standing(self._store, self._configured))

    def look(self) -> None:
        """See whether the limit was changed. A storage that fails leaves it as it was."""
        try:
            found = standing(self._store, self._configured)
        except StoreError:
            return
        self._note(found)

    def hold(self, stopping: threading.Event) -> None:
        """Come back when the next batch may begin. Raises Draining when a stop is asked for meanwhile."""
        self._held_s = 0.0
        try:
            while (left_s := wait_s(self.limit, self._last, self._seconds() - self._last_began_s)) > 0:
                self._set(holds=True)
                began_s = self._seconds()
                stopped = stopping.wait(min(left_s, _NAP_S))
                waited_s = self._seconds() - began_s
                self._held_s += waited_s
                self._set(wait_seconds=self._state.wait_seconds + waited_s)
                if stopped:
                    raise Draining(f"pipeline {self._pipeline!r} was asked to stop while its rate limit held a batch")
            self._began_s = self._seconds()
        finally:
            if self._state.holds:
                self._set(holds=False)

    def facts(self) -> dict[str, Any]:
        """Return what the commit of the batch says of the limit, as JSON values; nothing without one."""
        limit = self.limit
        if not limit:
            return {}
        return {"rate_limit": {**to_json(limit), "held_seconds": round(self._held_s, 3)}}

    def committed(self, facts: Mapping[str, Any]) -> None:
        """Note a batch that is committed: the next one waits for it."""
        self._last = batch_use(facts)
        if self._began_s is None:
            # Another process began it: only the wall clock tells when.
            self._last_began_s = self._seconds() - max(0.0, (self._now() - self._last.began).total_seconds())
        else:
            self._last_began_s = self._began_s
        self._set()

    def _note(self, found: EffectiveLimit) -> None:
        before = self._state.in_force
        self._set(in_force=found)
        if found != before:
            about = logging.warning if found.error else logging.event
            about("rate_limit_changed", pipeline=self._pipeline, limit=found.words)

    def _set(self, **changes: Any) -> None:
        with self._lock:
            state = replace(self._state, **changes)
            self._state = replace(state, next_begin=self._next_begin(state.in_force.limit))
            self._listener(self._state)

    def _next_begin(self, limit: RateLimit) -> datetime | None:
        if self._last is None or not limit:
            return None
        since_s = self._seconds() - self._last_began_s
        return self._now() + timedelta(seconds=limit.seconds(self._last.records, self._last.value_bytes) - since_s)
