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
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="leases", daemon=True)

    def take(self, stop: Callable[[float], bool]) -> bool:
        """Take all leases, in the order of their names, so that two supervisors never wait for each other.

        `stop` waits some seconds and tells whether to give up. False when it was told to give up; what was taken is
        released. What it has taken is renewed from then on.
        """
        self._thread.start()
        for pipeline, leases in self._leases.items():
            if not self._taken(pipeline, leases, stop):
                self.close()
                return False
        return True

    def close(self) -> None:
        """Release what is held and end the thread. A storage that does not answer leaves the others to wait."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)
        for pipeline, epoch in self.epochs.items():
            with suppress(OSError):
                if self._leases[pipeline].renew(epoch, self._holder):
                    self._leases[pipeline].release(epoch, self._holder)

    def _taken(self, pipeline: str, leases: Leases, stop: Callable[[float], bool]) -> bool:
        watch: ObservedLease | None = None
        logged: tuple[int, str] | None = None
        silent = False
        while True:
            try:
                watch = watched(watch, leases.look(), time.monotonic())
                seen, silent = watch.seen, False
                if free(watch, time.monotonic(), self._expires):
                    epoch = max(0 if seen is None else seen.epoch, self._least(pipeline)) + 1
                    if leases.take(epoch, self._holder):
                        self.epochs[pipeline] = epoch
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
            if stop(self._step_s / 2):
                return False

    def _renew(self) -> None:
        silent = False
        while not self._closing.wait(self._step_s):
            for pipeline, epoch in list(self.epochs.items()):
                try:
                    if not self._leases[pipeline].renew(epoch, self._holder):
                        self.lost = pipeline
                        logging.warning("lease_lost", pipeline=pipeline, epoch=epoch, holder=self._holder)
                        return
                    silent = False
                except OSError as error:  # the others cannot take it either; when it answers, it names the holder
                    if not silent:
                        logging.warning("lease_renewal_failed", pipeline=pipeline, error=str(error))
                    silent = True
