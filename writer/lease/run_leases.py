"""Leases of a run by hand: taken before it begins, renewed while its pipelines run, given back at their end.

A run beside another process would fence that one's writer. That loses nothing, but it stops what the other keeps going.
So a run is refused while another process renews a lease, unless it is told to take over. No clocks are compared: it
watches whether the lease changes.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from headrace.writer.clients.supervisor_record import HaltRecord, LeaseWait, find_halt
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, Draining, Occupied
from headrace.writer.core.text import instant
from headrace.writer.lease.factory import leases_of, open_holder
from headrace.writer.lease.holder import LeaseHolder, LeaseLoss, describe_holder, has_halted
from headrace.writer.lease.lease import Leases

_LOOK_S = 0.5


class RunLeases:
    """Leases of the pipelines of a run by hand."""

    def __init__(
        self,
        holder: LeaseHolder,
        open_leases: Callable[[str], Leases],
        *,
        takes_over: bool,
        find_halt: Callable[[str], HaltRecord | None] = lambda _: None,
    ) -> None:
        """`open_leases` returns the lease of a pipeline; may raise ConfigError. `takes_over`: whoever holds it.

        `find_halt` returns why a supervisor gave a pipeline up last.
        """
        self._holder = holder
        self._open_leases = open_leases
        self._takes_over = takes_over
        self._find_halt = find_halt

    @contextmanager
    def hold(self, pipelines: Sequence[str], stop: threading.Event) -> Iterator[None]:
        """Hold these leases while inside, and those of pipelines that come meanwhile. Raises ConfigError.

        A lease that nobody renews blocks for as long as it lives. Raises Occupied when another process renews one, and
        Draining when `stop` is set before all are held.
        """
        try:
            for pipeline in pipelines:
                self._add(pipeline)
            if self._takes_over:
                self._take_over(pipelines)
            else:
                self._take_free(pipelines, stop)
            yield
        finally:
            self._holder.close()

    def enter(self, pipeline: str) -> int | None:
        """Return the epoch of a lease for a start, after it was taken if it was not held. Raises ConfigError, Occupied.

        None: the start is made without a lease, as that cannot be read. The table fences its other writer anyway. But
        while a lease is silent that another process was seen to renew, that process may run: it is not fenced.
        """
        self._add(pipeline)
        if self._holder.try_take(pipeline):
            return self._holder.epochs.get(pipeline)
        awaited = self._holder.find_wait(pipeline)
        if awaited is None or (awaited.error and not awaited.is_renewed):
            return None
        raise Occupied(self._refusal(pipeline))

    def lease_wait(self, pipeline: str) -> LeaseWait | None:
        """Describe the wait of a pipeline, for people; None: it does not wait."""
        return self._holder.lease_wait(pipeline)

    def release(self, pipeline: str) -> None:
        """Give the lease of a pipeline back that has ended."""
        self._holder.release(pipeline)

    def take_losses(self) -> list[LeaseLoss]:
        """Return the leases that other processes have taken since the last call."""
        return self._holder.take_losses()

    def _add(self, pipeline: str) -> None:
        """Add a pipeline, unless it is there. Raises ConfigError for leases of a Kubernetes without this process.

        A run that takes over goes on without such a lease.
        """
        if pipeline in self._holder:
            return
        try:
            self._holder.add(pipeline, self._open_leases(pipeline))
        except ConfigError as error:
            if not self._takes_over:
                raise
            logging.warning("lease_unreadable", pipeline=pipeline, error=str(error))

    def _take_free(self, pipelines: Sequence[str], stop: threading.Event) -> None:
        awaited = list(pipelines)
        while awaited:
            awaited = [pipeline for pipeline in awaited if not self._try_enter(pipeline)]
            if awaited and stop.wait(_LOOK_S):
                raise Draining(f"asked to stop while it waited for the lease of {', '.join(awaited)}")

    def _try_enter(self, pipeline: str) -> bool:
        """Return whether a pipeline may begin by now. Raises Occupied once another process renews its lease."""
        try:
            self.enter(pipeline)
        except Occupied:
            awaited = self._holder.find_wait(pipeline)
            if awaited is not None and awaited.is_renewed:
                raise
            return False
        return True

    def _take_over(self, pipelines: Sequence[str]) -> None:
        """Take the leases over. One whose storage does not answer is left: the start says what is wrong with that."""
        for pipeline in pipelines:
            try:
                if not self._holder.take_over(pipeline):
                    raise Occupied(f"others take the lease of pipeline {pipeline!r} again and again: stop them first.")
            except OSError as error:
                logging.warning("lease_unreadable", pipeline=pipeline, error=str(error))

    def _refusal(self, pipeline: str) -> str:
        awaited = self._holder.find_wait(pipeline)
        assert awaited is not None, "a lease that is not held is waited for"
        halt = self._find_halt(pipeline)
        if halt is not None and has_halted(awaited, halt):
            reason = halt.reason.rstrip(".")
            return (
                f"pipeline {pipeline!r} is given up since {instant(halt.since)} by a supervisor that runs on, so it "
                f"does not run: {describe_holder(awaited)}, and renews it. The reason: {reason}. Mend that, and "
                "let the supervisor start it again with `headrace reload`. Or run it here with `headrace run "
                "--take-over`: the supervisor leaves it alone until a reload."
            )
        return (
            f"pipeline {pipeline!r} is run by another process: {describe_holder(awaited)}, and renews it. Stop that "
            "process first, or take the pipeline over with `headrace run --take-over`: a run then ends with exit 4, "
            "a supervisor goes on by itself when this run has ended."
        )


def open_run_leases(file: ReloadableConfig, *, takes_over: bool) -> RunLeases:
    """Return the leases of a run by hand of the pipelines of a file."""
    holder = open_holder(file.config, (), lambda: file.config)
    return RunLeases(
        holder,
        lambda pipeline: leases_of(file.config, pipeline),
        takes_over=takes_over,
        find_halt=lambda pipeline: find_halt(file.config.checkpoints, pipeline, file.config.stores),
    )
