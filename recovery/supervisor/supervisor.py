"""The supervisor, the driver's parent: starts it, watches it, and carries out recovery decisions."""

import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from recovery.escalation.decide import Decision, DependencyUnavailable, Event, Failed, Frontier, Halt, Healthy, decide
from recovery.escalation.diagnosis import DriverHealth, judged, left_out, unresponsive, why_unresponsive
from recovery.escalation.error_catalogue import Verdict
from recovery.escalation.levels import RecoveryLevel
from recovery.escalation.state import Memory, write
from recovery.lease.holder import LeaseHolder
from recovery.supervisor import frontier_check, notifications
from recovery.supervisor.driver_process import Driver, reap
from recovery.supervisor.pipeline_state import SupervisedPipeline, failure
from recovery.supervisor.recovery_actions import Action, Refusal, found_before
from recovery.supervisor.settings import impatient, policy, remembered, store, timeouts
from writer.clients.notifications import Notifier
from writer.config.loader import ReloadableConfig
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import ExitCode, HeadraceError, most_severe
from writer.driver.clock_steps import ClockComparison
from writer.driver.supervisor_channel import ChannelFolder, ExitReport, Order

_STEP_S, _LOOK_S = 0.2, 2.0
_TOGETHER_S = 3.0  # pipelines that are due within are started with one driver, which takes long to begin
_LEASE_S = 4.0  # between two tries to take a lease; beyond _TOGETHER_S, so that no other pipeline waits for it
_LOSER_S = 10.0  # a driver whose lease is lost may finish what it does for so long; the table fences it anyway
_HUNG_S = 20.0  # so long may a driver that hangs take to end by itself
_DECISIONS_SHOWN = 20  # on the driver's page, for each pipeline


@dataclass(frozen=True)
class Reloads:
    """Where the configuration is read again, and what is made of it."""

    file: ReloadableConfig
    admit: Callable[[str], SupervisedPipeline]  # makes a pipeline that comes, and adds its lease
    actions: Callable[[Config], Mapping[RecoveryLevel, Action]]


class Supervisor:
    """Some pipelines, and the driver that runs them."""

    def __init__(
        self, config: Config, supervised_pipelines: Mapping[str, SupervisedPipeline],
        command: Callable[[], Sequence[str]], *, folder: ChannelFolder, held: LeaseHolder, notifier: Notifier,
        actions: Mapping[RecoveryLevel, Action], stop: threading.Event, reloads: Reloads | None = None,
        before: Callable[[Config, str], Verdict | None] = found_before, jitter: Callable[[], float] = random.random,
        memory: Callable[[Config, str], Memory] = remembered, clocks: ClockComparison | None = None,
    ) -> None:  # fmt: skip
        """`actions` carry out the levels that are more than a start; a level without one is passed over.

        `command` returns that of a driver. `before` looks at a pipeline before each start. `memory` reads what the last
        holder of a pipeline's lease left. Without `reloads` the configuration stays what it is. `clocks` find the wall
        clock's steps; by default those of this process.
        """
        self._clocks = clocks or ClockComparison()
        self._config, self.supervised_pipelines = impatient(config), dict(supervised_pipelines)
        self._command, self._folder, self._held, self._reloads = command, folder, held, reloads
        self._notifier, self._actions, self._stop, self._jitter = notifier, actions, stop, jitter
        self._before, self._memory = before, memory
        self._policy, self._timeouts = policy(config, actions), timeouts(config)
        self._driver: Driver | None = None
        self._decided: dict[str, deque[Mapping[str, str]]] = {}
        self._looked_s = 0.0
        self._draining_s: float | None = None  # since when the driver is stopped
        self._unresponsive = ""  # why the driver is ended
        self._reported = False  # whether a pipeline of this driver has left its exit report
        self._own: ExitReport | None = None  # those of the driver itself

    def run(self) -> int:
        """Keep the pipelines going until they are done, nothing can be done, or a stop is asked for."""
        while (code := self._step()) is None:
            self._stop.wait(_STEP_S)
            if self._stop.is_set():
                time.sleep(_STEP_S)
        if self._held.lost:
            self._notifier.send(notifications.lease_lost(self._held.lost, at=datetime.now(UTC)))
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
        if not self._stop.is_set() and not self._held.lost:
            self._reload(driver)
        if driver is None:
            return self._idle()
        if (code := driver.ended()) is not None:
            return self._over(driver, code)
        if self._stop.is_set() or self._held.lost:
            self._end(driver)
            return None
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self._look(driver)
        for supervised in self._due(now_s):
            if not self._prepared(supervised):
                continue
            if driver.start(supervised.name, new_run=supervised.new_run, lease=self._held.epochs.get(supervised.name)):
                self._began(supervised)
            else:  # it is not that far yet, or is about to end
                supervised.due_s = now_s + _LOOK_S
        return None

    def _read_clock(self) -> datetime:
        """Return the time by which something is noted, what is remembered moved along with steps until now."""
        self._follow_clock()
        return datetime.now(UTC)

    def _follow_clock(self) -> None:
        """Move what is remembered of the pipelines along with a step of the wall clock."""
        step_s = self._clocks.take_step()
        if step_s:
            logging.warning("clock_stepped", seconds=round(step_s, 1))
            for supervised in self.supervised_pipelines.values():
                supervised.clock_stepped(timedelta(seconds=step_s))

    def _idle(self) -> int | None:
        if self._stop.is_set():
            return 0
        if self._held.lost:
            return ExitCode.FENCED
        waiting = [p.due_s for p in self.supervised_pipelines.values() if p.due_s is not None]
        if not waiting:
            codes = [
                p.memory.failure.exit_code for p in self.supervised_pipelines.values() if p.halted and p.memory.failure
            ]
            return most_severe(code or ExitCode.CRASH for code in codes)
        if min(waiting) <= time.monotonic():
            ready = [supervised for supervised in self._due(time.monotonic()) if self._prepared(supervised)]
            soon = time.monotonic() + _TOGETHER_S
            if ready and all(
                p in ready or p.due_s is None or p.due_s > soon for p in self.supervised_pipelines.values()
            ):
                self._begin(ready)
        return None

    def _reload(self, driver: Driver | None) -> None:
        """Take over what changed of the configuration, where it was read again. The driver reads it for itself."""
        if self._reloads is None:
            return
        file = self._reloads.file
        reads, changes = file.last.reads, file.read_again()
        if driver is not None and file.last.reads != reads:
            driver.reload()  # an invalid file, too: its /status says so
        if changes is None:
            return
        if driver is not None:  # what ended before it is among those that are given up, or not up any more
            self._take_reports(driver.exit_reports().values())
        self._config, self._timeouts = impatient(file.config), timeouts(file.config)
        self._actions = self._reloads.actions(file.config)
        for name in changes.removed:
            supervised = self.supervised_pipelines[name]
            supervised.removed = True
            if not supervised.up:
                self._remove(supervised)
        given_up = [name for name, supervised in self.supervised_pipelines.items() if supervised.halted]
        for name in dict.fromkeys((*changes.added, *changes.changed, *given_up)):
            if name in self.supervised_pipelines:
                self.supervised_pipelines[name].reconfigured(time.monotonic())
            else:  # another mapping: who reads the old one meanwhile reads it to its end
                self.supervised_pipelines = {**self.supervised_pipelines, name: self._reloads.admit(name)}

    def _remove(self, supervised: SupervisedPipeline) -> None:
        """Forget a pipeline that has drained, or was not up."""
        self.supervised_pipelines = {n: p for n, p in self.supervised_pipelines.items() if p is not supervised}
        self._held.release(supervised.name)
        logging.event("pipeline_removed", pipeline=supervised.name, reason="the configuration no longer has it")

    def _due(self, now_s: float) -> list[SupervisedPipeline]:
        return [p for p in self.supervised_pipelines.values() if p.due_s is not None and p.due_s <= now_s]

    def _begin(self, ready: Sequence[SupervisedPipeline]) -> None:
        """Start a driver with the pipelines that are ready; the others wait for their time."""
        orders = {
            p.name: Order(p in ready, p in ready and p.new_run, self._held.epochs.get(p.name))
            for p in self.supervised_pipelines.values()
        }
        self._draining_s, self._unresponsive, self._reported, self._own = None, "", False, None
        try:
            self._driver = Driver(self._folder, self._command(), orders)
        except OSError as error:
            # The orders could not be written, or the process not be made: the disk or the machine has no room now.
            logging.warning("driver_not_started", error=str(error), again_in_seconds=_LEASE_S)
            for supervised in ready:
                supervised.due_s = time.monotonic() + _LEASE_S
            return
        logging.event("driver_started", pid=self._driver.pid, pipelines=",".join(p.name for p in ready))
        for supervised in ready:
            self._began(supervised)

    def _began(self, supervised: SupervisedPipeline) -> None:
        supervised.began()
        logging.event(
            "pipeline_start_requested",
            pipeline=supervised.name,
            recovery_level=supervised.level.label,
            new_run=supervised.new_run,
        )

    def _over(self, driver: Driver, code: int) -> int | None:
        """Attend to a driver that has ended."""
        self._driver = None
        stopping = self._stop.is_set()
        logging.event("driver_ended", pid=driver.pid, exit_code=code)
        if self._held.lost:
            return ExitCode.FENCED
        if stopping:  # SIGTERM before it could listen ends it at once, with nothing to drain
            return 0 if code == -signal.SIGTERM else code if code >= 0 else 128 - code
        self._take_reports(driver.exit_reports().values())
        own = self._own
        if own is None and self._reported and code > 0:
            code = 1  # it is what the pipelines ended with that said something, and says nothing of the others
        for supervised in list(self.supervised_pipelines.values()):
            if not supervised.up:
                continue
            if supervised.removed:
                self._remove(supervised)
            elif self._unresponsive:  # also if it drained in the end: only this supervisor asked it to
                self._failed(supervised, code, unresponsive(self._unresponsive), None)
            elif code == 0:  # it reported no end of this one, so it never ran it
                self._failed(supervised, code, left_out(), None)
            else:
                self._failed(supervised, code, judged(code, "" if own is None else own.causes), own)
        return None

    def _take_reports(self, words: Iterable[ExitReport]) -> None:
        """Attend to the pipelines that have ended."""
        for one in words:
            if not one.pipeline:
                self._own = one
                continue
            self._reported = True
            supervised = self.supervised_pipelines.get(one.pipeline)
            if supervised is None or not supervised.up:
                continue
            if supervised.removed:
                self._remove(supervised)
            elif one.exit_code == 0 and one.removed:
                self._left_out(supervised)
            elif one.exit_code == 0:
                if not self._unresponsive:
                    supervised.ended(time.monotonic())
            else:
                self._failed(supervised, one.exit_code, judged(one.exit_code, one.causes), one)

    def _look(self, driver: Driver) -> None:
        """See how the driver is; end it when it hangs."""
        look = driver.look()
        self._take_reports(driver.exit_reports().values())  # after the look: what it lacks has left its report by now
        self._note_health(look)
        if look.pipelines:  # it answers
            for supervised in list(self.supervised_pipelines.values()):
                if supervised.up and supervised.name not in look.pipelines:
                    self._left_out(supervised)
        if not self._unresponsive and (why := why_unresponsive(look, self._timeouts)):
            self._unresponsive = why
            logging.warning(
                "driver_unresponsive", pid=driver.pid, reason=why, threads=driver.dump() or "it writes no stacks"
            )
        if self._unresponsive:
            self._end(driver)

    def _left_out(self, supervised: SupervisedPipeline) -> None:
        """Attend to a pipeline that the driver does not have: it has read another version of the file."""
        if supervised.removed:
            self._remove(supervised)
        else:
            self._failed(supervised, 0, left_out(), None)

    def _note_health(self, look: DriverHealth) -> None:
        """Note which pipelines are well."""
        now = self._read_clock()
        now_s = time.monotonic()
        for name, found in look.pipelines.items():
            supervised = self.supervised_pipelines.get(name)
            if supervised is None or not supervised.up:
                continue
            supervised.run = found.run if found.run is not None else supervised.run
            found = supervised.since_failure(found)  # noqa: PLW2901 - the driver's board may hold a commit from before
            if found.well:
                before = supervised.memory.state
                decision = decide(self._policy, before, Healthy(), now, 0.0)
                took_s = supervised.well(decision, now_s)
                if took_s is not None:
                    self._note(supervised, "recovered", f"it commits again after {took_s:.0f} s", "running")
                    logging.event(
                        "pipeline_recovered", pipeline=name, recovery_level=supervised.level.label,
                        seconds=round(took_s, 1),
                        by="nothing waits" if found.version is None else f"commit {found.version}",
                    )  # fmt: skip
                if took_s is not None or supervised.memory.state != before:
                    self._keep(supervised)

    def _end(self, driver: Driver) -> None:
        """Ask the driver to end; what is lost or hangs is killed after a while."""
        now_s = time.monotonic()
        if self._draining_s is None:
            self._draining_s = now_s
            driver.drain()
        drain_timeout_s = _LOSER_S if self._held.lost else _HUNG_S if self._unresponsive else float("inf")
        if now_s - self._draining_s > drain_timeout_s:
            driver.kill()

    def _failed(self, supervised: SupervisedPipeline, code: int, found: Verdict, words: ExitReport | None) -> None:
        now = self._read_clock()
        if supervised.reconfigured_up:  # it may have failed with its old settings
            found = replace(found, level=RecoveryLevel.WAIT, halt=False)
        run = supervised.run if words is None or words.run is None else words.run
        event, frontier = self._event(supervised, found, run)
        decision = decide(self._policy, supervised.memory.state, event, now, self._jitter())
        about = failure(found, code, "" if words is None else words.error, run, frontier, now)
        supervised.failed(about, decision, time.monotonic())
        self._announce(supervised, decision, now)

    def _event(self, supervised: SupervisedPipeline, found: Verdict, run: int | None) -> tuple[Event, Frontier]:
        if found.level == RecoveryLevel.WAIT and not found.halt:
            return DependencyUnavailable(found.message), Frontier.HELD
        if found.halt:
            return Failed(found, Frontier.HELD, run), Frontier.HELD
        try:
            frontier = frontier_check.frontier(self._config, supervised.name)
        except frontier_check.FrontierUnknown as error:
            return DependencyUnavailable(f"{found.message} {error}"), Frontier.HELD
        return Failed(found, frontier, run), frontier

    def _prepared(self, supervised: SupervisedPipeline) -> bool:
        """Prepare a start, and check whether it can work. False if another action was decided."""
        if not supervised.leased:
            if not self._held.try_take(supervised.name):
                supervised.due_s = time.monotonic() + _LEASE_S
                return False
            supervised.leased, supervised.memory = True, self._memory(self._config, supervised.name)
        if supervised.prepared:
            return True
        action, known = self._actions.get(supervised.level), supervised.memory.failure
        if action is not None and known is not None:
            try:
                logging.event(
                    "recovery_finished",
                    pipeline=supervised.name,
                    recovery_level=supervised.level.label,
                    done=action(supervised.name),
                )
            except Refusal as refusal:
                self._refused(supervised, Failed(known.verdict, Frontier(known.frontier), supervised.run, str(refusal)))
                return False
        if supervised.level < RecoveryLevel.NEW_RUN and (found := self._found(supervised.name)) is not None:
            self._failed(supervised, 0, found, None)
            return False
        supervised.prepared = True
        return True

    def _found(self, pipeline: str) -> Verdict | None:
        try:
            return self._before(self._config, pipeline)
        except OSError as error:
            return Verdict("preflight storage", RecoveryLevel.WAIT, halt=False, message=f"Before the start: {error}")
        except HeadraceError:
            return None  # the start says it in its own words

    def _refused(self, supervised: SupervisedPipeline, event: Failed) -> None:
        now = self._read_clock()
        decision = decide(self._policy, supervised.memory.state, event, now, self._jitter())
        supervised.refused(decision, time.monotonic())
        self._announce(supervised, decision, now)

    def _announce(self, supervised: SupervisedPipeline, decision: Decision, now: datetime) -> None:
        """Log and store a decision, and notify people if needed."""
        known = supervised.memory.failure
        assert known is not None, "something failed"
        logging.warning(
            "recovery_decided", pipeline=supervised.name, found=known.row, exit_code=known.exit_code,
            error=known.error or known.message, decided=supervised.memory.action,
        )  # fmt: skip
        to = "halted" if isinstance(decision, Halt) else supervised.level.label
        error = f" ({known.error})" if known.error and known.error not in supervised.memory.action else ""
        self._note(supervised, known.row, f"{supervised.memory.action}{error}", to)
        self._keep(supervised)
        if isinstance(decision, Halt):
            self._notifier.send(notifications.pipeline_halted(supervised.name, decision.reason, at=now))
        elif (
            event := notifications.level_reached(supervised.name, supervised.level, known.message, at=now)
        ) is not None:
            self._notifier.send(event)

    def _note(self, supervised: SupervisedPipeline, decision: str, reason: str, to: str) -> None:
        """Let the driver's page show a decision. A disk that takes no note of it stops nothing."""
        known = self._decided.setdefault(supervised.name, deque(maxlen=_DECISIONS_SHOWN))
        before = known[0]["to"] if known else "running"
        at = datetime.now(UTC).isoformat(timespec="seconds")
        known.appendleft({"at": at, "decision": decision, "reason": reason, "from": before, "to": to})
        with suppress(OSError):
            self._folder.decide(self._decided)

    def _keep(self, supervised: SupervisedPipeline) -> None:
        """Keep what is remembered; a storage that is down makes the next supervisor forget, and stops nothing."""
        try:
            write(store(self._config, supervised.name), supervised.memory)
        except OSError as error:
            logging.warning("supervisor_state_not_saved", pipeline=supervised.name, error=str(error))
