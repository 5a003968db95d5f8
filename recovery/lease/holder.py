"""Holds a supervisor's leases: acquires each, renews them on a thread, and reports a loss."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta

from recovery.lease.lease import EXPIRES_AFTER, Leases, ObservedLease, free, watched
from writer.core import logging

_CLOSE_WITHIN_S = 5.0


class LeaseHolder:
    """Leases of some pipelines, by one holder. The renewing thread reports a lost lease once."""

    def __init__(
        self,
        leases: Mapping[str, Leases],
        holder: str,
        *,
        expires_after: timedelta = EXPIRES_AFTER,
        least: Callable[[str], int] = lambda _: 0,
    ) -> None:
        """`least`: pipeline → epoch beyond which a new one has to be, whatever the leases say; may raise OSError."""
        self._leases, self._holder = dict(sorted(leases.items())), holder
        self._expires, self._least = expires_after, least
        self._step_s = expires_after.total_seconds() / 4
        self.epochs: dict[str, int] = {}
        self.lost: str | None = None  # the first pipeline whose lease another one has
        self._observed: dict[str, tuple[ObservedLease | None, tuple[int, str] | None, bool]] = {}
        self._lock = threading.Lock()  # around each renewal and release of one
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)

    def add(self, pipeline: str, leases: Leases) -> None:
        """Add the lease of a pipeline that came while others are held. `try_take` takes it."""
        self._leases[pipeline] = leases

    def release(self, pipeline: str) -> None:
        """Release the lease of a pipeline that has gone, if it is held. If the storage is silent, it expires."""
        with self._lock:
            epoch = self.epochs.pop(pipeline, None)
            if epoch is not None:
                self._release(pipeline, epoch)
        self._observed.pop(pipeline, None)

    def close(self) -> None:
        """Release what is held and end the thread. A storage that does not answer leaves the others to wait."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)
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
        leases = self._leases[pipeline]
        watch, logged, silent = self._observed.get(pipeline, (None, None, False))
        try:
            watch = watched(watch, leases.look(), time.monotonic())
            seen, silent = watch.seen, False
            if free(watch, time.monotonic(), self._expires):
                epoch = max(0 if seen is None else seen.epoch, self._least(pipeline)) + 1
                if leases.take(epoch, self._holder):
                    self.epochs[pipeline] = epoch
                    if self._thread.ident is None:
                        self._thread.start()
                    logging.event("lease_acquired", pipeline=pipeline, epoch=epoch, holder=self._holder)
                    return True
            elif seen is not None and logged != (seen.epoch, seen.holder):
                logged = seen.epoch, seen.holder
                logging.warning(
                    "lease_awaited", pipeline=pipeline, holder=seen.holder, epoch=seen.epoch,
                    reason="another supervisor holds it and renews it",
                )  # fmt: skip
        except OSError as error:
            if not silent:
                logging.warning("lease_unreadable", pipeline=pipeline, error=str(error))
            silent, watch = True, None  # what was not seen for a while has not stood still
        self._observed[pipeline] = watch, logged, silent
        return False

    def _renew(self) -> None:
        silent = False
        while not self._closing.wait(self._step_s):
            for pipeline, epoch in list(self.epochs.items()):
                try:
                    with self._lock:
                        is_lost = pipeline in self.epochs and not self._leases[pipeline].renew(epoch, self._holder)
                    if is_lost:
                        self.lost = pipeline
                        logging.warning("lease_lost", pipeline=pipeline, epoch=epoch, holder=self._holder)
                        return
                    silent = False
                except OSError as error:
                    # Who reaches it may take it meanwhile, and then fences this one's driver in the table. When it
                    # answers, it names the holder.
                    if not silent:
                        logging.warning("lease_renewal_failed", pipeline=pipeline, error=str(error))
                    silent = True
