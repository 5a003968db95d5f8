"""Holds a supervisor's leases: acquires each, renews them on a thread, and reports a loss."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from writer.core import logging
from writer.core.periodic_thread import PeriodicThread
from writer.lease.lease import EXPIRES_AFTER, LeaseRecord, Leases, ObservedLease, is_free, observe

_CLOSE_WITHIN_S = 5.0
# A lease is renewed so many times before it would expire.
_RENEWALS = 4


@dataclass
class _AwaitedLease:
    """A lease that this holder waits for."""

    observed: ObservedLease | None = None
    # The holder that was logged last.
    logged: LeaseRecord | None = None
    # Whether it was logged that the lease cannot be read.
    is_silent: bool = False


class LeaseHolder:
    """Leases of some pipelines, by one holder. The renewing thread reports a lost lease once."""

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
        # The first pipeline whose lease another holder has.
        self.lost_pipeline: str | None = None
        self._awaited: dict[str, _AwaitedLease] = {}
        # Around each renewal and release of a lease.
        self._lock = threading.Lock()
        # Whether it was logged that a renewal failed, and none succeeded since.
        self._is_failing = False
        self._thread = PeriodicThread("leases", self._renew)

    def add(self, pipeline: str, leases: Leases) -> None:
        """Add the lease of a pipeline that came while others are held. `try_take` takes it."""
        self._leases[pipeline] = leases

    def release(self, pipeline: str) -> None:
        """Release the lease of a pipeline that has gone, if it is held. If the storage is silent, it expires."""
        with self._lock:
            epoch = self.epochs.pop(pipeline, None)
            if epoch is not None:
                self._release(pipeline, epoch)
        self._awaited.pop(pipeline, None)

    def close(self) -> None:
        """Release what is held and end the thread. A storage that does not answer leaves the others to wait."""
        self._thread.close(_CLOSE_WITHIN_S)
        for pipeline, epoch in self.epochs.items():
            self._release(pipeline, epoch)

    def _release(self, pipeline: str, epoch: int) -> None:
        with suppress(OSError):
            if self._leases[pipeline].renew(epoch, self._holder):
                self._leases[pipeline].release(epoch, self._holder)

    def try_take(self, pipeline: str) -> bool:
        """Take a lease if it is free by now. True when it is held. Call it every few seconds; it does not wait.

        What it has taken is renewed from then on.
        """
        if pipeline in self.epochs or pipeline not in self._leases:
            return True
        awaited = self._awaited.setdefault(pipeline, _AwaitedLease())
        try:
            awaited.observed = observe(awaited.observed, self._leases[pipeline].look(), time.monotonic())
            awaited.is_silent = False
            if is_free(awaited.observed, time.monotonic(), self._expires_after):
                return self._take(pipeline, awaited.observed.record)
            self._log_holder(pipeline, awaited)
        except OSError as error:
            if not awaited.is_silent:
                logging.warning("lease_unreadable", pipeline=pipeline, error=str(error))
            awaited.is_silent = True
            # A lease that was not seen for a while may have been renewed meanwhile.
            awaited.observed = None
        return False

    def _take(self, pipeline: str, record: LeaseRecord | None) -> bool:
        """Take a lease that is free. False when another holder was faster. Raises OSError."""
        newest_epoch = 0 if record is None else record.epoch
        epoch = max(newest_epoch, self._epoch_floor(pipeline)) + 1
        if not self._leases[pipeline].take(epoch, self._holder):
            return False
        self.epochs[pipeline] = epoch
        if not self._thread.has_started:
            self._thread.start()
        self._awaited.pop(pipeline, None)
        logging.event("lease_acquired", pipeline=pipeline, epoch=epoch, holder=self._holder)
        return True

    def _log_holder(self, pipeline: str, awaited: _AwaitedLease) -> None:
        """Log which supervisor holds a lease, once for each epoch and holder."""
        record = None if awaited.observed is None else awaited.observed.record
        if record is None:
            return
        logged = awaited.logged
        if logged is not None and (logged.epoch, logged.holder) == (record.epoch, record.holder):
            return
        awaited.logged = record
        logging.warning(
            "lease_awaited",
            pipeline=pipeline,
            holder=record.holder,
            epoch=record.epoch,
            reason="another supervisor holds it and renews it",
        )

    def _renew(self) -> float:
        """Renew all leases, unless one is lost. Returns the seconds until the next renewal."""
        for pipeline, epoch in list(self.epochs.items()):
            if self.lost_pipeline is not None or self._thread.is_closing:
                break
            try:
                with self._lock:
                    is_lost = pipeline in self.epochs and not self._leases[pipeline].renew(epoch, self._holder)
                if is_lost:
                    self.lost_pipeline = pipeline
                    logging.warning("lease_lost", pipeline=pipeline, epoch=epoch, holder=self._holder)
                self._is_failing = False
            except OSError as error:
                # Who reaches it may take it meanwhile, and then fences this one's driver in the table. When it
                # answers, it names the holder.
                if not self._is_failing:
                    logging.warning("lease_renewal_failed", pipeline=pipeline, error=str(error))
                self._is_failing = True
        return self._renewal_interval_s
