"""Holds the leases of a process: takes each, renews them on a thread, and reports each loss."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue

from headrace.writer.clients.supervisor_record import HaltRecord, LeaseWait
from headrace.writer.core import logging
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.core.text import instant
from headrace.writer.lease.lease import EXPIRES_AFTER, LeaseRecord, Leases, ObservedLease, is_free, observe

_CLOSE_WITHIN_S = 5.0
# A lease is renewed so many times before it would expire.
_RENEWALS = 4
# A holder that renews its lease between a look and a take makes the take fail. It renews seldom.
_TAKE_OVERS_MAX = 5


@dataclass(frozen=True)
class LeaseLoss:
    """Another holder has taken a lease from this one. `holder`: its name; empty where that could not be read."""

    pipeline: str
    epoch: int
    holder: str


@dataclass(frozen=True)
class AwaitedLease:
    """A lease that this holder waits for, since when by the monotonic clock."""

    since_s: float
    observed: ObservedLease | None = None
    # Whether its holder was seen to renew it, or another one to take it.
    is_renewed: bool = False
    # Why it cannot be read; empty: it can.
    error: str = ""


def observe_wait(awaited: AwaitedLease, record: LeaseRecord | None, now_s: float) -> AwaitedLease:
    """Store what was read of a lease that is waited for."""
    before = awaited.observed
    observed = observe(before, record, now_s)
    is_renewed = awaited.is_renewed or (before is not None and observed is not before)
    return replace(awaited, observed=observed, is_renewed=is_renewed, error="")


class LeaseHolder:
    """Leases of some pipelines, by one process. A lease that was lost is waited for, as one that was never held."""

    def __init__(
        self,
        leases: Mapping[str, Leases],
        holder: str,
        *,
        expires_after: timedelta = EXPIRES_AFTER,
        epoch_floor: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`epoch_floor`: pipeline → a new epoch is above it, whatever the leases say; may raise OSError."""
        self._leases = dict(sorted(leases.items()))
        self._holder = holder
        self._expires_after = expires_after
        self._epoch_floor = epoch_floor
        self._renewal_interval_s = expires_after.total_seconds() / _RENEWALS
        # Pipeline → epoch of the lease that is held.
        self.epochs: dict[str, int] = {}
        # Pipeline → how often another holder has taken its lease.
        self.losses: Counter[str] = Counter()
        self._new_losses: SimpleQueue[LeaseLoss] = SimpleQueue()
        self._waits: dict[str, AwaitedLease] = {}
        # Of these the last renewal failed.
        self._silent: set[str] = set()
        # Around each renewal and release of a lease.
        self._lock = threading.Lock()
        self._thread = PeriodicThread("leases", self._run_round)

    def __contains__(self, pipeline: str) -> bool:
        """Whether it has the lease of a pipeline to take."""
        return pipeline in self._leases

    def add(self, pipeline: str, leases: Leases) -> None:
        """Add the lease of a pipeline that came while others are held. `try_take` takes it."""
        self._leases[pipeline] = leases

    def release(self, pipeline: str) -> None:
        """Release the lease of a pipeline that has ended, if it is held. If the storage is silent, it expires."""
        with self._lock:
            epoch = self.epochs.pop(pipeline, None)
            if epoch is not None:
                self._release(pipeline, epoch)
        self._waits.pop(pipeline, None)

    def close(self) -> None:
        """Release what is held and end the thread. A storage that does not answer leaves the others to wait."""
        self._thread.close(_CLOSE_WITHIN_S)
        epochs = dict(self.epochs)
        # A thread that hangs renews none of them later.
        self.epochs.clear()
        for pipeline, epoch in epochs.items():
            self._release(pipeline, epoch)

    def try_take(self, pipeline: str) -> bool:
        """Take a lease if it is free by now. True when it is held. Call it every few seconds; it does not wait.

        What it has taken is renewed from then on.
        """
        if pipeline in self.epochs or pipeline not in self._leases:
            return True
        now_s = time.monotonic()
        awaited = self._waits.get(pipeline, AwaitedLease(now_s))
        try:
            wait = observe_wait(awaited, self._leases[pipeline].look(), now_s)
            self._waits[pipeline] = wait
            assert wait.observed is not None, "it was just read"
            if is_free(wait.observed, now_s, self._expires_after):
                return self._take(pipeline, wait.observed.record)
            self._log_holder(pipeline, awaited, wait)
        except OSError as error:
            if not awaited.error:
                logging.warning("lease_unreadable", pipeline=pipeline, error=str(error))
            # A lease that was not seen for a while may have been renewed meanwhile.
            self._waits[pipeline] = replace(awaited, observed=None, error=str(error))
        return False

    def take_over(self, pipeline: str) -> bool:
        """Take a lease, whoever holds it. False when others took it first, again and again. Raises OSError."""
        if pipeline in self.epochs or pipeline not in self._leases:
            return True
        return any(self._take(pipeline, self._leases[pipeline].look()) for _ in range(_TAKE_OVERS_MAX))

    def has_lost(self, pipeline: str) -> bool:
        """Find out now whether another holder has taken a lease that was held here. Raises OSError."""
        if pipeline not in self._leases:
            return False
        with self._lock:
            epoch = self.epochs.get(pipeline)
            if epoch is None:
                return True
            if self._leases[pipeline].renew(epoch, self._holder):
                return False
            self._note_loss(pipeline, epoch)
            return True

    def renew(self) -> None:
        """Renew all leases, and note those that are lost. The thread does so every few seconds."""
        for pipeline, epoch in list(self.epochs.items()):
            try:
                self._renew(pipeline, epoch)
                self._silent.discard(pipeline)
            except OSError as error:
                # Who reaches it may take it meanwhile, and then fences this one's driver in the table. When it answers,
                # it names the holder.
                if pipeline not in self._silent:
                    logging.warning("lease_renewal_failed", pipeline=pipeline, error=str(error))
                self._silent.add(pipeline)

    def take_losses(self) -> list[LeaseLoss]:
        """Return the losses since the last call."""
        losses = []
        with suppress(Empty):
            while True:
                losses.append(self._new_losses.get_nowait())
        return losses

    def find_wait(self, pipeline: str) -> AwaitedLease | None:
        """Return what was seen of a lease that is waited for; None: it is not."""
        return self._waits.get(pipeline)

    def lease_wait(self, pipeline: str) -> LeaseWait | None:
        """Describe the wait for a lease, for people; None: it is held, or nobody asked for it."""
        awaited = self._waits.get(pipeline)
        if awaited is None:
            return None
        waits_for = timedelta(seconds=time.monotonic() - awaited.since_s)
        return LeaseWait(datetime.now(UTC) - waits_for, describe_wait(awaited))

    def _release(self, pipeline: str, epoch: int) -> None:
        with suppress(OSError):
            if self._leases[pipeline].renew(epoch, self._holder):
                self._leases[pipeline].release(epoch, self._holder)

    def _take(self, pipeline: str, record: LeaseRecord | None) -> bool:
        """Take a lease. False when another holder was faster. Raises OSError."""
        newest_epoch = 0 if record is None else record.epoch
        epoch = max(newest_epoch, self._epoch_floor(pipeline)) + 1
        if not self._leases[pipeline].take(epoch, self._holder):
            return False
        # Before the thread can note a loss.
        self._waits.pop(pipeline, None)
        self.epochs[pipeline] = epoch
        if not self._thread.has_started:
            self._thread.start()
        logging.event("lease_acquired", pipeline=pipeline, epoch=epoch, holder=self._holder)
        return True

    def _log_holder(self, pipeline: str, awaited: AwaitedLease, wait: AwaitedLease) -> None:
        """Log whose lease is waited for, once for each holder, and once more when it is seen to be renewed."""
        record = _record_of(wait)
        if record is None:
            return
        before = _record_of(awaited)
        is_same = before is not None and (before.epoch, before.holder) == (record.epoch, record.holder)
        if is_same and awaited.is_renewed == wait.is_renewed:
            return
        reason = "its holder renews it" if wait.is_renewed else "its holder may have ended"
        logging.warning("lease_awaited", pipeline=pipeline, holder=record.holder, epoch=record.epoch, reason=reason)

    def _run_round(self) -> float:
        """Renew all leases. Returns the seconds until the next renewal."""
        self.renew()
        return self._renewal_interval_s

    def _renew(self, pipeline: str, epoch: int) -> None:
        """Renew a lease, unless it was released meanwhile. Raises OSError."""
        with self._lock:
            if self.epochs.get(pipeline) == epoch and not self._leases[pipeline].renew(epoch, self._holder):
                self._note_loss(pipeline, epoch)

    def _note_loss(self, pipeline: str, epoch: int) -> None:
        """Note that another holder has a lease. From now on it is waited for."""
        now_s = time.monotonic()
        awaited = AwaitedLease(now_s)
        # `try_take` reads it again, and says why it cannot.
        with suppress(OSError):
            awaited = observe_wait(awaited, self._leases[pipeline].look(), now_s)
        record = _record_of(awaited)
        loss = LeaseLoss(pipeline, epoch, "" if record is None else record.holder)
        logging.warning("lease_lost", pipeline=pipeline, epoch=epoch, holder=self._holder, taken_by=loss.holder)
        self._waits[pipeline] = awaited
        self.losses[pipeline] += 1
        del self.epochs[pipeline]
        self._new_losses.put(loss)


def describe_wait(awaited: AwaitedLease) -> str:
    """Return in a sentence whom a pipeline waits for."""
    if awaited.error:
        return f"its lease cannot be read: {awaited.error}"
    return f"{describe_holder(awaited)}; it goes on by itself when that process has ended"


def describe_holder(awaited: AwaitedLease) -> str:
    """Return in a phrase who has a lease that is waited for, and since when."""
    record = _record_of(awaited)
    if record is None:
        return "another process has its lease"
    since = "" if record.taken_at is None else f" since {instant(record.taken_at)}"
    return f"{record.holder} has its lease{since}"


def has_halted(awaited: AwaitedLease, halt: HaltRecord) -> bool:
    """Return whether the holder of a lease gave the pipeline up: it took the lease before. One clock says both."""
    record = _record_of(awaited)
    return record is not None and record.taken_at is not None and record.taken_at <= halt.since


def _record_of(awaited: AwaitedLease) -> LeaseRecord | None:
    return None if awaited.observed is None else awaited.observed.record
