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

from headrace.writer.commit.rate_limit import NO_LIMIT, BatchUse, RateLimit, batch_use, wait_s
from headrace.writer.config.sections.resource_limits import Commit
from headrace.writer.core import logging
from headrace.writer.core.errors import Draining
from headrace.writer.core.text import describe_limit, instant, iso
from headrace.writer.storage.base import Store, StoreError

OVERRIDE = "_headrace/rate_limit.json"
# Seconds between two looks at the limit while a batch waits.
_LOOK_S = 0.5


@dataclass(frozen=True)
class Override:
    """The limit that a person set in place of the configuration's."""

    # As `iso`.
    at: str
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
    # None: the limit is the configuration's.
    override: Override | None = None
    # Why an override beside the table does not count.
    error: str = ""

    @property
    def text(self) -> str:
        """The limit as a phrase: 5,000 records/s, by ada@ops since 2026-11-20 05:00:00 UTC: reason."""
        parts = [self.rates]
        if self.limit:
            parts.append(self._origin())
        if self.error:
            parts.append(self.error)
        return ", ".join(parts)

    @property
    def rates(self) -> str:
        """The limit alone: 5,000 records/s."""
        return describe_limit(to_json(self.limit))

    def to_json(self) -> dict[str, Any]:
        """Write the limit and its origin as JSON values."""
        return {
            **to_json(self.limit),
            "override": None if self.override is None else asdict(self.override),
            "error": self.error or None,
        }

    def _origin(self) -> str:
        override = self.override
        if override is None:
            return "by the configuration"
        reason = f": {override.reason}" if override.reason else ""
        return f"by {override.by} since {instant(override.at)}{reason}"


@dataclass(frozen=True)
class LimitState:
    """A pipeline's rate limit at one moment."""

    in_force: EffectiveLimit = field(default_factory=EffectiveLimit)
    # When the next batch may begin; None: at once.
    next_begin: datetime | None = None
    # Whether a batch waits for that.
    holds: bool = False
    # How long batches of this driver waited so far.
    wait_seconds: float = 0.0


def to_json(limit: RateLimit) -> dict[str, float | None]:
    """Write a limit as JSON values."""
    return {"records_per_second": limit.records_per_s, "bytes_per_second": limit.bytes_per_s}


def configured_limit(commit: Commit) -> RateLimit:
    """Return the limit of the configuration."""
    return RateLimit(commit.max_records_per_second, commit.max_bytes_per_second)


def effective_limit(store: Store, configured: RateLimit) -> EffectiveLimit:
    """Return the limit that counts: what a person set, else `configured`. Raises StoreError."""
    file = store.read(OVERRIDE)
    if file is None:
        return EffectiveLimit(configured)
    try:
        override = _parse_override(json.loads(file.content))
    except (ValueError, KeyError, TypeError):
        return EffectiveLimit(
            configured,
            error=f"{store.path(OVERRIDE)} is not what this headrace writes, so the configuration's limit counts; "
            "`headrace limit --off` removes it",
        )
    return EffectiveLimit(override.limit, override)


def _parse_override(document: Mapping[str, Any]) -> Override:
    """Read an override. Raises KeyError, TypeError, ValueError."""
    return Override(
        at=iso(document["at"]),
        by=str(document["by"]),
        reason=str(document["reason"]),
        records_per_second=_parse_rate(document["records_per_second"]),
        bytes_per_second=_parse_rate(document["bytes_per_second"]),
    )


def _parse_rate(rate: Any) -> int | None:
    return None if rate is None else int(rate)


def save_override(store: Store, override: Override) -> None:
    """Set an override, in place of the present one. Raises StoreError."""
    store.put(OVERRIDE, (json.dumps(asdict(override), ensure_ascii=False) + "\n").encode())


def remove_override(store: Store) -> None:
    """Remove the override, if there is one. Raises StoreError."""
    store.delete(OVERRIDE)


class Throttle:
    """Holds the batches of a driver back so that they keep to the limit."""

    def __init__(
        self,
        store: Store,
        pipeline: str,
        commit: Commit,
        listener: Callable[[LimitState], None],
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`store`: of the table. `listener` gets the state at each change. `seconds`: a monotonic clock."""
        self._store = store
        self._pipeline = pipeline
        self._configured = configured_limit(commit)
        self._listener = listener
        self._now = now
        self._seconds = seconds
        # For the thread of the batch, and the one that looks at the store.
        self._lock = threading.Lock()
        self._last: BatchUse | None = None
        # By the monotonic clock: a step of the wall clock makes no batch wait, and lets none go.
        self._last_began_s = 0.0
        # When the batch of this process may have begun; None: none has yet.
        self._began_s: float | None = None
        self._state = LimitState(EffectiveLimit(self._configured))
        # How long the present batch has waited.
        self._wait_s = 0.0

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
            self.record_commit(recent[0])
        self._set_limit(effective_limit(self._store, self._configured))

    def refresh(self) -> None:
        """Look whether the limit was changed. A storage that fails leaves it as it was."""
        try:
            limit = effective_limit(self._store, self._configured)
        except StoreError:
            return
        self._set_limit(limit)

    def hold(self, stopping: threading.Event) -> None:
        """Come back when the next batch may begin. Raises Draining when a stop is asked for meanwhile."""
        self._wait_s = 0.0
        try:
            while (remaining_s := self._remaining_wait_s()) > 0:
                self._set(holds=True)
                nap_began_s = self._seconds()
                is_stopping = stopping.wait(min(remaining_s, _LOOK_S))
                nap_s = self._seconds() - nap_began_s
                self._wait_s += nap_s
                self._set(wait_seconds=self._state.wait_seconds + nap_s)
                if is_stopping:
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
        return {"rate_limit": {**to_json(limit), "held_seconds": round(self._wait_s, 3)}}

    def record_commit(self, facts: Mapping[str, Any]) -> None:
        """Record a batch that is committed: the next one waits for it."""
        self._last = batch_use(facts)
        if self._began_s is None:
            # Another process began it: only the wall clock tells when.
            self._last_began_s = self._seconds() - max(0.0, (self._now() - self._last.began).total_seconds())
        else:
            self._last_began_s = self._began_s
        self._set()

    def _remaining_wait_s(self) -> float:
        return wait_s(self.limit, self._last, self._seconds() - self._last_began_s)

    def _set_limit(self, limit: EffectiveLimit) -> None:
        before = self._state.in_force
        self._set(in_force=limit)
        if limit == before:
            return
        log = logging.warning if limit.error else logging.event
        log("rate_limit_changed", pipeline=self._pipeline, limit=limit.text)

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
