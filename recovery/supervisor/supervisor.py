"""The supervisor, the driver's parent: starts it, watches it, and carries out recovery decisions."""

import random
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from headrace.recovery.escalation.decide import (
    Decision,
    DependencyUnavailable,
    Event,
    Failed,
    Frontier,
    Halt,
    Healthy,
    decide,
)
from headrace.recovery.escalation.diagnosis import (
    DriverHealth,
    PipelineHealth,
    diagnose_exit,
    missing_pipeline_verdict,
    unresponsive_reason,
    unresponsive_verdict,
)
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Memory, write
from headrace.recovery.supervisor import frontier_check, notifications
from headrace.recovery.supervisor.decision_log import DecisionLog
from headrace.recovery.supervisor.driver_process import Driver, reap
from headrace.recovery.supervisor.pipeline_leases import PipelineLeases
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline, failure_of
from headrace.recovery.supervisor.recovery_actions import Action, Refusal, check_before_start
from headrace.recovery.supervisor.settings import drain_timeout, policy, read_memory, timeouts, with_short_timeouts
from headrace.writer.clients.notifications import Notifier
from headrace.writer.clients.supervisor_record import HALTED, add_error
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ExitCode, HeadraceError, most_severe
from headrace.writer.core.signals import StopEvents
from headrace.writer.driver.clock_steps import ClockComparison
from headrace.writer.driver.supervisor_channel import ChannelFolder, ExitReport, Order
from headrace.writer.lease.factory import pipeline_store
from headrace.writer.lease.holder import LeaseHolder

_STEP_S = 0.2
_HEALTH_CHECK_S = 2.0
# Pipelines that are due within this time are started with one driver, which takes long to begin.
_START_TOGETHER_S = 3.0
# Between two tries to take a lease, or to start a driver.
_LEASE_RETRY_S = 4.0
# So long may a driver that hangs take to end by itself.
_DRAIN_UNRESPONSIVE_S = 20.0


@dataclass(frozen=True)
class Reloads:
    """Where the configuration is read again, and what is made of it."""

    file: ReloadableConfig
    # Makes a pipeline that is new, and adds its lease.
    add_pipeline: Callable[[str], SupervisedPipeline]
    actions: Callable[[Config], Mapping[RecoveryLevel, Action]]


class Supervisor:
    """Some pipelines, and the driver that runs them."""

    def __init__(
        self,
        config: Config,
        supervised_pipelines: Mapping[str, SupervisedPipeline],
        command: Callable[[], Sequence[str]],
        *,
        folder: ChannelFolder,
        lease_holder: LeaseHolder,
        notifier: Notifier,
        actions: Mapping[RecoveryLevel, Action],
        events: StopEvents,
        reloads: Reloads | None = None,
        check_before_start: Callable[[Config, str], Verdict | None] = check_before_start,
        jitter: Callable[[], float] = random.random,
        read_memory: Callable[[Config, str], Memory] = read_memory,
        clocks: ClockComparison | None = None,
    ) -> None:
        """`actions` carry out the levels that are more than a start; a level without one is passed over.

        `command` returns that of a driver. `read_memory` reads what the last holder of a pipeline's lease left. Without
        `reloads` the configuration stays what it is. `clocks` find the wall clock's steps; by default those of this
        process.
        """
        self._clocks = clocks or ClockComparison()
        self._config = with_short_timeouts(config)
        self.supervised_pipelines = dict(supervised_pipelines)
        self._command = command
        self._folder = folder
        self._decisions = DecisionLog(folder)
        self._leases = PipelineLeases(lease_holder, self._decisions, notifier)
        self._reloads = reloads
        self._notifier = notifier
        self._actions = actions
        self._stop = events.stop
        self._hurry = events.hurry
        self._jitter = jitter
        self._check_before_start = check_before_start
        self._read_memory = read_memory
        self._policy = policy(config, actions)
        self._timeouts = timeouts(config)
        self._driver: Driver | None = None
        self._checked_s = 0.0
        # Since when the driver is stopped.
        self._draining_s: float | None = None
        # Whether the driver knows that a second signal asked for a stop, and whether it was killed.
        self._is_hurried = False
        self._is_killed = False
        # Why the driver is stopped, if it hangs.
        self._unresponsive = ""
        # Whether a pipeline of this driver has left its exit report.
        self._has_pipeline_report = False
        # The exit report of the driver itself.
        self._driver_report: ExitReport | None = None

    def run(self) -> int:
        """Keep the pipelines going until they are done, nothing can be done, or a stop is asked for."""
        while (code := self._step()) is None:
            self._stop.wait(_STEP_S)
            if self._stop.is_set():
                time.sleep(_STEP_S)
        return code

    @property
    def driving(self) -> bool:
        """Whether a driver runs."""
        return self._driver is not None

    def _step(self) -> int | None:
        """Do what is due. Returns the exit code when it is over."""
        self._follow_clock()
        driver = self._driver
        reap(None if driver is None else driver.pid)
        self._leases.note_losses(self.supervised_pipelines, self._read_clock, time.monotonic())
        if not self._stop.is_set():
            self._reload(driver)
        if driver is None:
            return self._wait_for_start()
        code = driver.exit_code()
        if code is not None:
            return self._on_driver_exit(driver, code)
        if self._stop.is_set():
            self._stop_driver(driver)
            return None
        now_s = time.monotonic()
        if now_s - self._checked_s >= _HEALTH_CHECK_S:
            self._checked_s = now_s
            self._check_driver(driver)
        for supervised in self._due_pipelines(now_s):
            if self._prepare_start(supervised):
                self._start_pipeline(driver, supervised, now_s)
        return None

    def _read_clock(self) -> datetime:
        """Return the time by which something is noted; what is remembered is moved along with steps until now."""
        self._follow_clock()
        return datetime.now(UTC)

    def _follow_clock(self) -> None:
        """Move what is remembered of the pipelines along with a step of the wall clock."""
        step_s = self._clocks.take_step()
        if step_s:
            logging.warning("clock_stepped", seconds=round(step_s, 1))
            for supervised in self.supervised_pipelines.values():
                supervised.shift_clock(timedelta(seconds=step_s))

    # --- starts -------------------------------------------------------------------------------------------------------

    def _wait_for_start(self) -> int | None:
        """Start a driver once a pipeline is due. Returns the exit code when none ever will be."""
        if self._stop.is_set():
            return 0
        due_times_s = [
            supervised.due_s for supervised in self.supervised_pipelines.values() if supervised.due_s is not None
        ]
        if not due_times_s:
            return self._final_code()
        now_s = time.monotonic()
        if min(due_times_s) > now_s:
            return None
        ready = [supervised for supervised in self._due_pipelines(now_s) if self._prepare_start(supervised)]
        if ready and not self._has_due_soon(ready):
            self._start_driver(ready)
        return None

    def _final_code(self) -> int:
        """Return the exit code once no pipeline is to be started: that of the gravest halt."""
        codes = [
            supervised.memory.failure.exit_code or ExitCode.CRASH
            for supervised in self.supervised_pipelines.values()
            if supervised.halted and supervised.memory.failure
        ]
        return most_severe(codes)

    def _has_due_soon(self, ready: Sequence[SupervisedPipeline]) -> bool:
        """Return whether a start waits for another pipeline that is due within a moment.

        One that waits for its lease is due again and again, and only its holder knows when it will begin.
        """
        soon_s = time.monotonic() + _START_TOGETHER_S
        return any(
            supervised.due_s is not None and supervised.due_s <= soon_s
            for supervised in self.supervised_pipelines.values()
            if supervised.leased and supervised not in ready
        )

    def _due_pipelines(self, now_s: float) -> list[SupervisedPipeline]:
        return [
            supervised
            for supervised in self.supervised_pipelines.values()
            if supervised.due_s is not None and supervised.due_s <= now_s
        ]

    def _prepare_start(self, supervised: SupervisedPipeline) -> bool:
        """Prepare a start, and check whether it can work. False if another action was decided."""
        if not self._leases.try_take(supervised, lambda: self._read_memory(self._config, supervised.name)):
            supervised.due_s = time.monotonic() + _LEASE_RETRY_S
            return False
        if supervised.prepared:
            return True
        if not self._carry_out_level(supervised):
            return False
        if supervised.level < RecoveryLevel.NEW_RUN:
            verdict = self._find_obstacle(supervised.name)
            if verdict is not None:
                self._on_failure(supervised, 0, verdict, None)
                return False
        supervised.prepared = True
        return True

    def _carry_out_level(self, supervised: SupervisedPipeline) -> bool:
        """Carry out a level that is more than a start. False if it was refused, and another action was decided."""
        action = self._actions.get(supervised.level)
        failure = supervised.memory.failure
        if action is None or failure is None:
            return True
        try:
            result = action(supervised.name)
        except Refusal as refusal:
            event = Failed(failure.verdict, Frontier(failure.frontier), supervised.run, str(refusal))
            self._on_refusal(supervised, event)
            return False
        logging.event("recovery_finished", pipeline=supervised.name, recovery_level=supervised.level.label, done=result)
        return True

    def _find_obstacle(self, pipeline: str) -> Verdict | None:
        """Return what speaks against a start; None: nothing, or the start says it in its own words."""
        try:
            return self._check_before_start(self._config, pipeline)
        except OSError as error:
            return Verdict("preflight storage", RecoveryLevel.WAIT, halt=False, message=f"Before the start: {error}")
        except HeadraceError:
            return None

    def _start_driver(self, ready: Sequence[SupervisedPipeline]) -> None:
        """Start a driver with the pipelines that are ready; the others wait for their time."""
        orders = {
            supervised.name: Order(
                start=supervised in ready,
                new_run=supervised in ready and supervised.new_run,
                lease=supervised.lease,
            )
            for supervised in self.supervised_pipelines.values()
        }
        self._draining_s = None
        self._is_hurried = False
        self._is_killed = False
        self._unresponsive = ""
        self._has_pipeline_report = False
        self._driver_report = None
        try:
            self._driver = Driver(self._folder, self._command(), orders)
        except OSError as error:
            # The orders could not be written, or the process not be made: the disk or the machine has no room now.
            logging.warning("driver_not_started", error=str(error), again_in_seconds=_LEASE_RETRY_S)
            for supervised in ready:
                supervised.due_s = time.monotonic() + _LEASE_RETRY_S
            return
        names = ",".join(supervised.name for supervised in ready)
        logging.event("driver_started", pid=self._driver.pid, pipelines=names)
        for supervised in ready:
            self._note_start(supervised)

    def _start_pipeline(self, driver: Driver, supervised: SupervisedPipeline, now_s: float) -> None:
        """Ask the driver that runs to start a pipeline; later again, if it is not ready yet, or is about to end."""
        if driver.start(supervised.name, new_run=supervised.new_run, lease=supervised.lease):
            self._note_start(supervised)
        else:
            supervised.due_s = now_s + _HEALTH_CHECK_S

    def _note_start(self, supervised: SupervisedPipeline) -> None:
        supervised.note_start()
        logging.event(
            "pipeline_start_requested",
            pipeline=supervised.name,
            recovery_level=supervised.level.label,
            new_run=supervised.new_run,
        )

    # --- configuration ------------------------------------------------------------------------------------------------

    def _reload(self, driver: Driver | None) -> None:
        """Take over what changed of the configuration, where it was read again. The driver reads it for itself."""
        if self._reloads is None:
            return
        file = self._reloads.file
        reads_before = file.last.reads
        changes = file.read_again()
        if driver is not None and file.last.reads != reads_before:
            # The driver reads an invalid file, too: its /status says so.
            driver.reload()
        if changes is None:
            return
        if driver is not None:
            # What ended before the change is not up any more.
            self._handle_exit_reports(driver.exit_reports().values())
        self._config = with_short_timeouts(file.config)
        self._timeouts = timeouts(file.config)
        self._actions = self._reloads.actions(file.config)
        for name in changes.removed:
            supervised = self.supervised_pipelines[name]
            supervised.removed = True
            if not supervised.up:
                self._remove_pipeline(supervised)
        halted = [name for name, supervised in self.supervised_pipelines.items() if supervised.halted]
        for name in dict.fromkeys((*changes.added, *changes.changed, *halted)):
            if name in self.supervised_pipelines:
                self.supervised_pipelines[name].reconfigure(time.monotonic())
                if name in halted:
                    # Who looks at the storage sees no halt any more.
                    self._save_state(self.supervised_pipelines[name])
            else:
                # A new mapping: a thread that iterates over the old one finishes with it.
                supervised = self._reloads.add_pipeline(name)
                self.supervised_pipelines = {**self.supervised_pipelines, name: supervised}

    def _remove_pipeline(self, supervised: SupervisedPipeline) -> None:
        """Forget a pipeline that has drained, or was not up."""
        self.supervised_pipelines = {
            name: pipeline for name, pipeline in self.supervised_pipelines.items() if pipeline is not supervised
        }
        self._leases.release(supervised.name)
        logging.event("pipeline_removed", pipeline=supervised.name, reason="the configuration no longer has it")

    # --- the driver ---------------------------------------------------------------------------------------------------

    def _check_driver(self, driver: Driver) -> None:
        """Check how the driver is; stop it when it hangs."""
        health = driver.health()
        # After the health check: a pipeline that it lacks has left its exit report by now.
        self._handle_exit_reports(driver.exit_reports().values())
        self._note_health(health)
        self._leases.surrender(self.supervised_pipelines.values(), driver)
        # It has no pipelines while it does not answer.
        if health.pipelines:
            for supervised in list(self.supervised_pipelines.values()):
                if supervised.up and supervised.name not in health.pipelines:
                    self._on_missing_pipeline(supervised)
        if not self._unresponsive:
            self._unresponsive = unresponsive_reason(health, self._timeouts)
            if self._unresponsive:
                stacks = driver.dump_stacks() or "it writes no stacks"
                logging.warning("driver_unresponsive", pid=driver.pid, reason=self._unresponsive, threads=stacks)
        if self._unresponsive:
            self._stop_driver(driver)

    def _stop_driver(self, driver: Driver) -> None:
        """Ask the driver to end, a second time if a second signal came; it is killed when it takes too long."""
        now_s = time.monotonic()
        if self._draining_s is None:
            self._draining_s = now_s
            driver.drain()
        elif self._hurry.is_set() and not self._is_hurried:
            self._is_hurried = True
            driver.drain()
        if now_s - self._draining_s > self._drain_timeout_s() and not self._is_killed:
            self._is_killed = True
            logging.warning("driver_killed", pid=driver.pid, seconds=round(now_s - self._draining_s))
            driver.kill()

    def _drain_timeout_s(self) -> float:
        """Return how long the driver may take to end."""
        if self._unresponsive:
            return _DRAIN_UNRESPONSIVE_S
        return drain_timeout(self._config).total_seconds()

    def _on_driver_exit(self, driver: Driver, code: int) -> int | None:
        """Attend to a driver that has ended. Returns the exit code when the supervisor ends with it."""
        self._driver = None
        is_stopping = self._stop.is_set()
        logging.event("driver_ended", pid=driver.pid, exit_code=code)
        if is_stopping:
            return self._stop_code(driver, code)
        self._handle_exit_reports(driver.exit_reports().values())
        driver_report = self._driver_report
        if driver_report is None and self._has_pipeline_report and code > 0:
            # The code is that of the pipelines that left a report, and says nothing of the others.
            code = ExitCode.CRASH.value
        for supervised in list(self.supervised_pipelines.values()):
            if not supervised.up:
                continue
            if supervised.removed:
                self._remove_pipeline(supervised)
            elif self._unresponsive:
                # Also if it drained in the end: only this supervisor asked it to.
                self._on_failure(supervised, code, unresponsive_verdict(self._unresponsive), None)
            elif code == 0:
                # It reported no end of this pipeline, so it never ran it.
                self._on_failure(supervised, code, missing_pipeline_verdict(), None)
            else:
                causes = "" if driver_report is None else driver_report.causes
                self._on_failure(supervised, code, diagnose_exit(code, causes), driver_report)
        return None

    def _stop_code(self, driver: Driver, code: int) -> int:
        """Return the exit code of a supervisor that was asked to stop. What waits for its lease has not failed."""
        if code == ExitCode.FENCED and not all(pipeline.leased for pipeline in self.supervised_pipelines.values()):
            reports = driver.exit_reports().values()
            waits = {name for name, pipeline in self.supervised_pipelines.items() if not pipeline.leased}
            codes = [report.exit_code for report in reports if report.pipeline not in waits]
            return most_severe([self._final_code(), *codes])
        # A driver that SIGTERM ends before it listens had nothing to drain.
        if code == -signal.SIGTERM:
            return 0
        return code if code >= 0 else 128 - code

    def _handle_exit_reports(self, reports: Iterable[ExitReport]) -> None:
        """Attend to the pipelines that have ended."""
        for report in reports:
            if not report.pipeline:
                self._driver_report = report
                continue
            self._has_pipeline_report = True
            supervised = self.supervised_pipelines.get(report.pipeline)
            if supervised is not None and supervised.up:
                self._on_pipeline_exit(supervised, report)

    def _on_pipeline_exit(self, supervised: SupervisedPipeline, report: ExitReport) -> None:
        """Attend to a pipeline that has ended."""
        if supervised.removed:
            self._remove_pipeline(supervised)
        elif report.exit_code != 0:
            self._on_failure(supervised, report.exit_code, diagnose_exit(report.exit_code, report.causes), report)
        elif not supervised.leased:
            supervised.note_lease_wait(time.monotonic())
        elif report.removed:
            self._on_missing_pipeline(supervised)
        elif not self._unresponsive:
            supervised.note_end(time.monotonic())

    def _on_missing_pipeline(self, supervised: SupervisedPipeline) -> None:
        """Attend to a pipeline that the driver does not have: it has read another version of the file."""
        if supervised.removed:
            self._remove_pipeline(supervised)
        else:
            self._on_failure(supervised, 0, missing_pipeline_verdict(), None)

    def _note_health(self, driver_health: DriverHealth) -> None:
        """Note which pipelines are well."""
        now = self._read_clock()
        now_s = time.monotonic()
        for name, health in driver_health.pipelines.items():
            supervised = self.supervised_pipelines.get(name)
            if supervised is None or not supervised.up:
                continue
            if health.run is not None:
                supervised.run = health.run
            # The driver's status may hold a commit from before the failure.
            health_since_failure = supervised.health_since_failure(health)
            if health_since_failure.is_well:
                self._note_well(supervised, health_since_failure, now, now_s)

    def _note_well(self, supervised: SupervisedPipeline, health: PipelineHealth, now: datetime, now_s: float) -> None:
        """Note a pipeline that is well, and that it has recovered, if it failed before."""
        state_before = supervised.memory.state
        decision = decide(self._policy, state_before, Healthy(), now, 0.0)
        took_s = supervised.note_health(decision, now_s)
        if took_s is not None:
            self._decisions.show(supervised.name, "recovered", f"it commits again after {took_s:.0f} s", "running")
            logging.event(
                "pipeline_recovered",
                pipeline=supervised.name,
                recovery_level=supervised.level.label,
                seconds=round(took_s, 1),
                by="nothing waits" if health.version is None else f"commit {health.version}",
            )
        if took_s is not None or supervised.memory.state != state_before:
            self._save_state(supervised)

    # --- failures -----------------------------------------------------------------------------------------------------

    def _on_failure(
        self, supervised: SupervisedPipeline, code: int, verdict: Verdict, report: ExitReport | None
    ) -> None:
        """Decide what follows on a failure. `report`: what the driver said of it."""
        if supervised.leased and code == ExitCode.FENCED:
            verdict = self._leases.find_fence(supervised, verdict)
        if not supervised.leased:
            supervised.note_lease_wait(time.monotonic())
            return
        now = self._read_clock()
        if supervised.reconfigured_up:
            # It may have failed with its old settings.
            verdict = replace(verdict, level=RecoveryLevel.WAIT, halt=False)
        run = supervised.run
        error = ""
        if report is not None:
            error = report.error
            if report.run is not None:
                run = report.run
        event, frontier = self._failure_event(supervised, verdict, run)
        decision = decide(self._policy, supervised.memory.state, event, now, self._jitter())
        failure = failure_of(verdict, code, error, run, frontier, now)
        supervised.note_failure(failure, decision, time.monotonic())
        self._announce_decision(supervised, decision, now)

    def _failure_event(
        self, supervised: SupervisedPipeline, verdict: Verdict, run: int | None
    ) -> tuple[Event, Frontier]:
        """Return the event of a failure, and what the table's committed offsets are worth."""
        if verdict.level == RecoveryLevel.WAIT and not verdict.halt:
            return DependencyUnavailable(verdict.message, before_start=not supervised.up), Frontier.HELD
        if verdict.halt:
            return Failed(verdict, Frontier.HELD, run), Frontier.HELD
        try:
            frontier = frontier_check.frontier(self._config, supervised.name)
        except frontier_check.FrontierUnknown as error:
            message = f"{verdict.message} {error}"
            return DependencyUnavailable(message, before_start=not supervised.up), Frontier.HELD
        return Failed(verdict, frontier, run), frontier

    def _on_refusal(self, supervised: SupervisedPipeline, event: Failed) -> None:
        """Decide what follows where a level could not be carried out."""
        now = self._read_clock()
        decision = decide(self._policy, supervised.memory.state, event, now, self._jitter())
        supervised.note_refusal(decision, time.monotonic())
        self._announce_decision(supervised, decision, now)

    def _announce_decision(self, supervised: SupervisedPipeline, decision: Decision, now: datetime) -> None:
        """Log and store a decision, and notify people if needed."""
        failure = supervised.memory.failure
        assert failure is not None, "something failed"
        action = supervised.memory.action
        logging.warning(
            "recovery_decided",
            pipeline=supervised.name,
            found=failure.row,
            exit_code=failure.exit_code,
            error=failure.error or failure.message,
            decided=action,
        )
        reason = add_error(action, failure.error)
        next_status = supervised.level.label
        if isinstance(decision, Halt):
            reason = supervised.halted
            next_status = HALTED
        self._decisions.show(supervised.name, failure.row, reason, next_status, failure.time)
        self._save_state(supervised)
        if isinstance(decision, Halt):
            self._notifier.send(notifications.halt_event(supervised.name, reason, time=now))
            return
        event = notifications.level_event(supervised.name, supervised.level, failure.message, time=now)
        if event is not None:
            self._notifier.send(event)

    def _save_state(self, supervised: SupervisedPipeline) -> None:
        """Save what is remembered, while its lease is held: else another has its own.

        If the storage is down, the next supervisor forgets it, and nothing stops.
        """
        if not supervised.leased:
            return
        try:
            write(pipeline_store(self._config, supervised.name), supervised.memory)
        except OSError as error:
            logging.warning("supervisor_state_not_saved", pipeline=supervised.name, error=str(error))
