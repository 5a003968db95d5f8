"""Runs the queries of pipelines until they end; restarts one if a log of Kafka's or its configuration changed."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.config.loader import ConfigChanges
from headrace.writer.core import logging
from headrace.writer.core.errors import (
    DiskFull,
    Draining,
    ExitCode,
    Fenced,
    HeadraceError,
    LogMoved,
    Occupied,
    TopicMissing,
    exit_code,
    panics_as_errors,
)
from headrace.writer.driver import restart_policy
from headrace.writer.driver.clock_steps import ClockComparison
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.driver.restart_policy import sentence
from headrace.writer.lease.holder import LeaseLoss
from headrace.writer.logins.errors import LoginFailed
from headrace.writer.status.model import View
from headrace.writer.status.pause import LOOK_S, Paused
from headrace.writer.status.progress import Progress
from headrace.writer.storage import disk_space

# Between two looks at the queries.
_LOOK_S = 0.2
# Queries that a look asks whether they run: each question is a round trip to the JVM.
_QUERIES_ASKED = 4
# A step of the wall clock that is as long as a query takes to begin anew.
_STEP_BACK_S = 10.0
# A batch of a pipeline whose lease is lost may take so long: the table refuses it once the other writer has begun.
_BATCH_WITHOUT_LEASE_S = 10.0
# Phases of a batch that nothing interrupts.
_COMMITTING = ("commit", "redo")


class PipelineRunner:
    """One pipeline of a driver, over all its starts in this process."""

    def __init__(
        self,
        progress: Progress,
        begin: Callable[["PipelineRunner", bool], None],
        *,
        waits: bool = True,
        stop_timeout: timedelta = timedelta.max,
        is_hurried: Callable[[], bool] = lambda: False,
        report: Callable[[View, BaseException | None, bool], None] | None = None,
        on_end: Callable[[], None] = lambda: None,
        login_failure: Callable[[str, str], LoginFailed] | None = None,
    ) -> None:
        """`begin` makes the next start (its flag: leave Spark's checkpoint aside); sets `pipeline`, `query`, `cancel`.

        `waits`: a start is made when the pause is over, or the lease is free; else one that is paused fails.
        `stop_timeout`: a batch that takes longer after a stop was asked for is cancelled; at once when `is_hurried`.
        `report`: is called with how it ended, and whether the configuration no longer has it, for a supervisor.
        `on_end`: is called when it has ended for good.
        `login_failure`: makes the error for a login that Spark's client of Kafka lacks, of Java's error with all causes
        and of its reason.
        """
        self.progress = progress
        self._login_failure = login_failure
        self._begin = begin
        self._waits = waits
        self._report = report
        self._on_end = on_end
        self._stop_timeout_s = stop_timeout.total_seconds()
        self._is_hurried = is_hurried
        # For a start that waits for the end of a pause, or for a lease.
        self._new_run = False
        # Epoch of the lease under which it is started.
        self.lease: int | None = None
        # Whether the configuration no longer has it: it drains, and ends for good.
        self.removed = False
        # Why it drains, and begins anew; empty: it does not.
        self._renewal_reason = ""
        self.pipeline: PipelineRun | None = None
        self.query: Any = None
        # Fails the Spark jobs of the batch that runs.
        self.cancel: Callable[[], None] = lambda: None
        self.error: BaseException | None = None
        # Paths that Spark writes to in this process → what to do when their disk is full.
        self.local_paths: dict[str, str] = {}
        # Ends the threads and removes the announcements of this start.
        self.cleanup = ExitStack()
        self._restarts_s: list[float] = []
        # In a row; a first start and a batch that fail are not among them.
        self._failed_restarts = 0
        # Topics of the newest start.
        self._topics = frozenset[str]()
        # When the next start is to be made.
        self._due_s: float | None = None
        # Why the query has to end.
        self._end_reason: LogMoved | Draining | Fenced | None = None
        # Who has its lease by now; None: nobody else.
        self._fence: Fenced | None = None
        self._is_cancelled = False
        # Since when a stop is asked for, or its lease is lost.
        self._stopping_since_s: float | None = None

    def begin(self, *, new_run: bool = False) -> None:
        """Start. An error is stored, because it concerns only this pipeline."""
        self.progress.set(state="starting", batch=None)
        self.pipeline = None
        self.query = None
        self.error = None
        self._due_s = None
        self._end_reason = None
        self._is_cancelled = False
        self._renewal_reason = ""
        self._fence = None
        self._stopping_since_s = None
        try:
            with logging.bound(pipeline=self.progress.pipeline), panics_as_errors():
                self._begin(self, new_run)
            self._forget_restarts()
            self._failed_restarts = 0
            self.progress.set_running()
        except (Occupied, Paused) as error:
            self._new_run = new_run
            if self._waits:
                self._due_s = time.monotonic() + LOOK_S
            else:
                self.error = error
        except Draining:
            # Nothing of it runs. The next look ends it.
            self._due_s = time.monotonic()
        except Exception as error:  # noqa: BLE001 - one pipeline fails alone; its error decides the exit code
            self.error = error
            self._failed_restarts += bool(self._restarts_s)

    def _forget_restarts(self) -> None:
        """Count restarts anew where this start reads other topics than the one before: what changed was let in."""
        topics = frozenset(self.progress.view().incarnations)
        if topics != self._topics:
            self._restarts_s.clear()
        self._topics = topics

    def reconfigure(self) -> None:
        """Let it end after its batch, and begin anew with the settings that are in force then."""
        self.removed = False
        self._renewal_reason = "its configuration changed"

    def surrender(self, holder: str) -> None:
        """Let it end after its batch, as fenced: another process has taken its lease. `holder`: its name, or empty."""
        if self._fence is not None:
            return
        taker = f"process {holder}" if holder else "another process"
        self._fence = Fenced(
            f"pipeline {self.progress.pipeline!r} was taken over by {taker}, which has its lease. Leave it to that "
            "one, or stop that one."
        )

    def step_clock(self, step_s: float) -> None:
        """Take a step of the wall clock into account, in seconds.

        Spark's trigger and its Kafka source wait until the wall clock has caught up, without an end: a query is let end
        after its batch, and begun anew. It has to do so only where it would wait for long.
        """
        self.progress.shift_clock(timedelta(seconds=step_s))
        if self._waits and self.query is not None and step_s <= -_STEP_BACK_S and not self._renewal_reason:
            self._renewal_reason = f"the wall clock stepped back by {-step_s:.0f} s"

    @property
    def due_s(self) -> float | None:
        """When its next start is due, by the clock that measures; None: it runs, or has ended."""
        return self._due_s

    def look(self, *, stopping: bool, begin: bool = True, ask: bool = True) -> bool:
        """Attend to it. True once it has ended for good. `begin`: a start that is due may be made now.

        `ask`: its query is asked whether it runs; one that has to end, or failed in a batch, is asked in any case.
        """
        stopping = stopping or self.removed
        must_end = stopping or bool(self._renewal_reason or self._fence)
        if self._may_run(ask=ask or must_end):
            self._end_query(stopping=must_end)
            if self.pipeline is not None and not stopping and self._fence is None:
                self.pipeline.catch_up()
            return False
        if self._due_s is None:
            self.error = self._query_error()
        elif self._fence is not None:
            self.error = self._fence
        elif stopping:
            # Nothing is under way; what is left is the next start's.
            self.error = None
        elif not begin or time.monotonic() < self._due_s:
            return False
        else:
            new_run = self._new_run
            self._new_run = False
            self.begin(new_run=new_run)
            if self.error is None:
                return False
        return self._handle_end(stopping=stopping)

    def _may_run(self, *, ask: bool) -> bool:
        """Return whether its query runs, or ran when it was asked last and has not failed in a batch since."""
        if self.query is None:
            return False
        has_failed = self.pipeline is not None and self.pipeline.error is not None
        is_known_to_have_ended = self._due_s is not None
        if not (ask or has_failed or is_known_to_have_ended):
            return True
        return bool(self.query.isActive)

    def fail(self) -> None:
        """Report and log the error that it ended with."""
        self._classify_error()
        self.cleanup.close()
        if self._report is not None:
            self._report(self.progress.view(), self.error, self.removed)
        self._on_end()
        self.progress.record_failure(sentence(self.error))
        code = exit_code(self.error)
        logging.error("pipeline_failed", pipeline=self.progress.pipeline, exit_code=code, error=sentence(self.error))
        if self.error is not None and not isinstance(self.error, HeadraceError):
            trace = restart_policy.java_trace(self.error)
            if trace:
                self.error.add_note(trace)
            logging.detail(self.error)

    def _end_query(self, *, stopping: bool) -> None:
        """Let the query end after its batch where it has to end; cancel a batch that cannot, or takes too long.

        The jobs of a batch are cancelled at each look: it may begin another one. What was cancelled is not committed.
        """
        view = self.progress.view()
        name = self.progress.pipeline
        now_s = time.monotonic()
        reason = view.log_moved or view.topics_appeared
        if self.pipeline is None or not (stopping or reason):
            return
        if stopping and self._stopping_since_s is None:
            self._stopping_since_s = now_s
        if self._fence is not None:
            self._end_reason = self._fence
        elif stopping:
            self._end_reason = Draining(f"pipeline {name!r} was asked to stop")
        else:
            self._end_reason = LogMoved(reason)
        cancel_reason = view.log_moved or self._late_reason(now_s)
        if self.pipeline.drain():
            self.query.stop()
        elif cancel_reason:
            if not self._is_cancelled:
                self._log_cancellation(view, cancel_reason)
            self._is_cancelled = True
            self.cancel()

    def _late_reason(self, now_s: float) -> str:
        """Return why a batch is not waited for any longer after a stop was asked for; empty: it is."""
        if self._stopping_since_s is None:
            return ""
        if self._is_hurried():
            return "a second signal asks for a stop"
        if self._fence is not None and now_s - self._stopping_since_s >= _BATCH_WITHOUT_LEASE_S:
            return "another process has its lease"
        if now_s - self._stopping_since_s >= self._stop_timeout_s:
            return "it took longer than stop_timeout"
        return ""

    def _log_cancellation(self, view: View, reason: str) -> None:
        """Log that a batch is cancelled, or that it cannot be, as its commit has begun."""
        if view.batch is not None and view.batch.phase in _COMMITTING:
            logging.warning("commit_awaited", pipeline=view.pipeline, reason=reason)
        else:
            logging.warning("batch_cancelled", pipeline=view.pipeline, reason=reason)

    def _query_error(self) -> BaseException | None:
        """Return the query's error; none if it had to end."""
        assert self.pipeline is not None, "a query has a pipeline"
        error = self.pipeline.error or self.query.exception()
        has_drained = error is None or isinstance(error, Draining)
        was_cancelled = self._is_cancelled and not isinstance(error, HeadraceError)
        if self._end_reason is not None and (has_drained or was_cancelled):
            return self._end_reason
        return error

    def _handle_end(self, *, stopping: bool) -> bool:
        """Plan another start, or report how it ended. True once it has ended for good."""
        if isinstance(self.error, Draining):
            self.error = None
        # A supervisor drains it also when another one has taken over.
        if self.error is not None or self._report is not None:
            self._classify_error()
        if self._renewal_reason and not stopping and not isinstance(self.error, Fenced):
            self._plan_renewal()
            return False
        if self.error is None:
            self.cleanup.close()
            if self._report is not None:
                self._report(self.progress.view(), None, self.removed)
            self._on_end()
            self.progress.record_stop()
            logging.event("pipeline_stopped", pipeline=self.progress.pipeline)
            return True
        restart_reason = "" if stopping else self._restart_reason()
        if restart_reason and self._plan_restart(restart_reason):
            return False
        self.fail()
        return True

    def _plan_renewal(self) -> None:
        """Plan the start. Other settings, or another clock, may be the remedy for what it failed with."""
        self.cleanup.close()
        facts = {"pipeline": self.progress.pipeline, "reason": self._renewal_reason}
        if self.error is None:
            logging.event("pipeline_restarting", **facts)
        else:
            logging.warning("pipeline_restarting", **facts, error=sentence(self.error))
        self._renewal_reason = ""
        self._due_s = time.monotonic()
        self.progress.set(state="starting", batch=None)

    def _classify_error(self) -> None:
        """Two writers on one checkpoint make each other fail in many ways; the one that was replaced is just fenced.

        Of a full disk Java tells no path: it is looked for among those that Spark writes to in this process. Of a login
        that is refused it says what Kafka's client says, and not what to do.
        """
        text = restart_policy.causes(self.error)
        is_of_driver = not isinstance(self.error, HeadraceError) and not restart_policy.task_error(text)
        if is_of_driver and disk_space.is_disk_full(text):
            full_disk = disk_space.describe_full_disk(self.local_paths)
            if full_disk:
                cause = self.error
                self.error = DiskFull(full_disk)
                self.error.__cause__ = cause
        if is_of_driver and self._login_failure is not None and restart_policy.means_no_login(text):
            cause = self.error
            self.error = self._login_failure(text, sentence(cause))
            self.error.__cause__ = cause
        if self.pipeline is not None and not isinstance(self.error, Fenced) and not self.pipeline.owns_table():
            name = self.progress.pipeline
            cause_text = f" ({sentence(self.error)})" if self.error else ""
            self.error = Fenced(
                f"pipeline {name!r} was started again: another writer runs. Stop one of them.{cause_text}"
            )

    def _restart_reason(self) -> str:
        """Return why another start may go on where this one failed; empty when it would fail in the same way."""
        if isinstance(self.error, LogMoved | TopicMissing):
            return sentence(self.error)
        if isinstance(self.error, BrokerUnreachable) and self._restarts_s:
            return sentence(self.error)
        # A server was away while it was started again.
        if 0 < self._failed_restarts < restart_policy.RESTARTS_MAX and exit_code(self.error) is ExitCode.CRASH:
            return sentence(self.error)
        if isinstance(self.error, HeadraceError) or self.pipeline is None:
            return ""
        change = self.pipeline.find_log_change()
        if change:
            return change
        text = restart_policy.causes(self.error)
        has_log_changed = restart_policy.means_data_loss(text) or restart_policy.means_new_partition(text)
        return sentence(self.error) if has_log_changed else ""

    def _plan_restart(self, reason: str) -> bool:
        """Plan the next start; False when there were too many."""
        name = self.progress.pipeline
        now_s = time.monotonic()
        pause_s = restart_policy.pause_s(self._restarts_s, now_s)
        if pause_s is None:
            window = f"{restart_policy.WINDOW_S / 60:.0f} minutes"
            text = f"it was started again {restart_policy.RESTARTS_MAX} times within {window}"
            logging.warning("restarts_exhausted", pipeline=name, reason=text)
            return False
        self._restarts_s.append(now_s)
        self._due_s = now_s + pause_s
        self.cleanup.close()
        self.progress.record_restart(reason)
        # A topic that appeared is no trouble.
        log = logging.warning if self.progress.view().error else logging.event
        log("pipeline_restarting", pipeline=name, pause_seconds=pause_s, reason=reason)
        return True


@dataclass(frozen=True)
class StartRequest:
    """A pipeline that has ended is to be started once more.

    `lease`: epoch of the lease that the supervisor holds by now.
    """

    pipeline: str
    new_run: bool = False
    lease: int | None = None


# Starts, and pipelines that are to be left to another process.
StartRequests = SimpleQueue[StartRequest | LeaseLoss]


class PipelineRunners:
    """The pipelines of a driver. They are begun, watched and ended by one thread."""

    def __init__(
        self,
        build_runner: Callable[[str], PipelineRunner],
        requests: StartRequests,
        on_removal: Callable[[str], None] = lambda _: None,
        *,
        supervised: bool = False,
        clocks: ClockComparison | None = None,
    ) -> None:
        """`build_runner` makes the runner of a pipeline; `on_removal` is called once a removed one has ended.

        `requests`: pipelines that are to be started beside the others. `supervised`: a supervisor asks for every start.
        """
        self._build_runner = build_runner
        self._requests = requests
        self._on_removal = on_removal
        self._supervised = supervised
        self._clocks = clocks or ClockComparison()
        self.all: dict[str, PipelineRunner] = {}
        self._unfinished: dict[str, PipelineRunner] = {}
        # How many questions were put to queries.
        self._asked_before = 0

    def add(self, name: str) -> PipelineRunner:
        """Add a pipeline, without beginning it."""
        self.all[name] = self._build_runner(name)
        return self.all[name]

    def begin(self, name: str, *, new_run: bool = False) -> None:
        """Begin a pipeline. One that fails at that has ended."""
        runner = self.all[name]
        runner.begin(new_run=new_run)
        if runner.error is None:
            self._unfinished[name] = runner
        else:
            runner.fail()

    @property
    def are_waited_for(self) -> bool:
        """Whether any was begun, and has not ended."""
        return bool(self._unfinished)

    def change(self, changes: ConfigChanges) -> None:
        """Add, change and remove pipelines, each without the others; start those that failed once more."""
        failed = [name for name, runner in self.all.items() if runner.error is not None]
        for name in dict.fromkeys((*changes.added, *changes.changed, *failed)):
            if name in self._unfinished:
                self.all[name].reconfigure()
                continue
            if name not in self.all:
                self.add(name).progress.record_stop()
            if not self._supervised:
                self._requests.put(StartRequest(name))
        for name in changes.removed:
            if name in self._unfinished:
                self.all[name].removed = True
            else:
                self._remove(name)

    def watch(self, stop: threading.Event, beat: Callable[[], ConfigChanges | None] = lambda: None) -> None:
        """Wait until all have ended, noting each end as it comes; drain when asked to stop.

        `beat` is called each time; it returns what changed of the configuration.
        """
        while self.is_going(stop):
            # Once it is set, waiting for it does not wait.
            if stop.wait(0 if self._due_pipeline() else _LOOK_S):
                time.sleep(_LOOK_S)
            self.attend(beat, stopping=stop.is_set())

    def is_going(self, stop: threading.Event) -> bool:
        """Whether any has not ended, or is still to begin."""
        return bool(self._unfinished) or not (self._requests.empty() or stop.is_set())

    def attend(self, beat: Callable[[], ConfigChanges | None], *, stopping: bool) -> None:
        """Make one round: take changes over, make one start, and look at each pipeline.

        A request is taken before the file is read: who asks for a start after a change has sent the signal by then.
        """
        request = self._next_request()
        step_s = self._clocks.take_step()
        if step_s:
            logging.warning("clock_stepped", seconds=round(step_s, 1))
            for runner in self.all.values():
                runner.step_clock(step_s)
        changes = beat()
        if changes is not None and not stopping:
            self.change(changes)
        if isinstance(request, LeaseLoss):
            self._surrender(request)
            request = None
        # A start takes seconds: with one in each round, many never keep the heartbeat waiting.
        has_started = not stopping and self._begin_for_request(request)
        due = None if has_started else self._due_pipeline()
        asked = self._choose_asked()
        for name, runner in list(self._unfinished.items()):
            if runner.look(stopping=stopping, begin=name == due, ask=name in asked):
                del self._unfinished[name]
                if runner.removed:
                    self._remove(name)

    def _choose_asked(self) -> set[str]:
        """Choose the pipelines whose queries are asked in this round: all in turn, a few at a time."""
        names = list(self._unfinished)
        count = min(_QUERIES_ASKED, len(names))
        asked = {names[(self._asked_before + index) % len(names)] for index in range(count)}
        self._asked_before += count
        return asked

    def _due_pipeline(self) -> str | None:
        """Return the pipeline whose start is due for the longest time."""
        times_s = {name: runner.due_s for name, runner in self._unfinished.items() if runner.due_s is not None}
        name = min(times_s, key=times_s.__getitem__, default=None)
        if name is None or times_s[name] > time.monotonic():
            return None
        return name

    def _next_request(self) -> StartRequest | LeaseLoss | None:
        with suppress(Empty):
            return self._requests.get_nowait()
        return None

    def _surrender(self, loss: LeaseLoss) -> None:
        """Let a pipeline end that another process has taken, unless it was started under a newer lease since."""
        runner = self._unfinished.get(loss.pipeline)
        if runner is not None and (runner.lease is None or runner.lease <= loss.epoch):
            runner.surrender(loss.holder)

    def _begin_for_request(self, request: StartRequest | None) -> bool:
        """Begin the pipeline that is asked for. False where it runs already, or the configuration has none such."""
        if request is None or request.pipeline in self._unfinished or request.pipeline not in self.all:
            return False
        runner = self.all[request.pipeline]
        if request.lease is not None:
            runner.lease = request.lease
        self.begin(request.pipeline, new_run=request.new_run)
        return True

    def _remove(self, name: str) -> None:
        self.all.pop(name).cleanup.close()
        self._on_removal(name)
        logging.event("pipeline_removed", pipeline=name, reason="the configuration no longer has it")
