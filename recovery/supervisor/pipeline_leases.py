"""The leases of supervised pipelines: what follows when one is free, is waited for, or is lost."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Memory
from headrace.recovery.supervisor import notifications
from headrace.recovery.supervisor.decision_log import DecisionLog
from headrace.recovery.supervisor.driver_process import Driver
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.writer.clients.notifications import Notifier
from headrace.writer.clients.supervisor_record import WAITS
from headrace.writer.lease.holder import LeaseHolder


class PipelineLeases:
    """The leases of a supervisor, which shows and notifies what becomes of them."""

    def __init__(self, holder: LeaseHolder, decisions: DecisionLog, notifier: Notifier) -> None:
        self._holder = holder
        self._decisions = decisions
        self._notifier = notifier

    def try_take(self, supervised: SupervisedPipeline, read_memory: Callable[[], Memory]) -> bool:
        """Take the lease of a pipeline if it is free, and read what its last holder left; else show who has it.

        True when it is held.
        """
        if supervised.leased:
            return True
        name = supervised.name
        if self._holder.try_take(name):
            supervised.note_lease(self._holder.epochs.get(name), read_memory())
            if supervised.shown_wait:
                supervised.shown_wait = ""
                self._decisions.show(name, "lease", "it is free, and taken", RecoveryLevel.WAIT.label)
            return True
        wait = self._holder.lease_wait(name)
        if wait is not None and wait.reason != supervised.shown_wait:
            supervised.shown_wait = wait.reason
            self._decisions.show(name, "lease", wait.reason, WAITS)
        return False

    def release(self, pipeline: str) -> None:
        """Release the lease of a pipeline that has gone, and show nothing of its wait any more."""
        self._holder.release(pipeline)
        self._decisions.forget(pipeline)

    def note_losses(
        self, pipelines: Mapping[str, SupervisedPipeline], read_clock: Callable[[], datetime], now_s: float
    ) -> None:
        """Note which leases other processes have taken, and notify of each. `now_s`: by the monotonic clock.

        A pipeline that was given up, or is done, waits for no lease: a change of its settings asks for it again.
        """
        for loss in self._holder.take_losses():
            supervised = pipelines.get(loss.pipeline)
            if supervised is None:
                continue
            if not supervised.up and supervised.due_s is None:
                supervised.leased = False
                self._holder.release(loss.pipeline)
                continue
            # It may have been taken again since.
            if supervised.lease is None or supervised.lease <= loss.epoch:
                supervised.leased = False
                supervised.lost_to = loss.holder
                if supervised.due_s is not None:
                    # It failed before, and does not wait for the end of its pause.
                    supervised.note_lease_wait(now_s)
            self._notifier.send(notifications.lease_loss_event(loss, time=read_clock()))

    def surrender(self, pipelines: Iterable[SupervisedPipeline], driver: Driver) -> None:
        """Let the driver end what runs without its lease. What ends already is asked again, which changes nothing."""
        for supervised in pipelines:
            if supervised.up and not supervised.leased and supervised.lease is not None:
                driver.surrender(supervised.name, supervised.lease, supervised.lost_to)

    def find_fence(self, supervised: SupervisedPipeline, verdict: Verdict) -> Verdict:
        """Find out who has the lease of a pipeline that the table fenced. Returns the verdict on one that holds it.

        One that has lost its lease waits for it. One that holds it was fenced by a writer without a lease: only a
        person knows when that has ended.
        """
        try:
            supervised.leased = not self._holder.has_lost(supervised.name)
        except OSError as error:
            message = f"Another writer has taken the pipeline over, and its lease cannot be read: {error}"
            return Verdict("fenced", RecoveryLevel.WAIT, halt=False, message=message)
        message = (
            "Another writer has taken the pipeline over without its lease, so nobody can tell when it has ended. Find "
            "out who runs it, stop one of them, and start the supervisor again."
        )
        return replace(verdict, message=message)
