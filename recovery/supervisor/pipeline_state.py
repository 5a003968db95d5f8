"""One supervised pipeline: its last start, the result, and the time of the next start."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from recovery.escalation.decide import Decision, Halt, KeepRunning, Start, moved
from recovery.escalation.diagnosis import PipelineHealth
from recovery.escalation.error_catalogue import Verdict
from recovery.escalation.levels import RecoveryLevel
from recovery.escalation.state import Failure, Memory, forgiven

FIRST = "start"  # in the place of a verdict, for what no failure led to
_LEVELS = {
    RecoveryLevel.WAIT: "start it again as it is",
    RecoveryLevel.RESTART: "restart it on the same checkpoint",
    RecoveryLevel.NEW_RUN: "begin a new run from the table's frontier",
    RecoveryLevel.WALK_BACK: "walk back over older checkpoints",
    RecoveryLevel.LATEST: "skip to the end of Kafka's log and record a gap",
}


@dataclass
class SupervisedPipeline:
    """Everything that changes. Written by the supervisor's main thread, read by any."""

    name: str
    memory: Memory = field(default_factory=Memory)
    up: bool = False  # a driver runs it, as far as is known
    done: bool = False  # it ended well
    removed: bool = False  # the configuration no longer has it: its driver drains it
    reconfigured_up: bool = False  # its settings changed while it was up: if it ends, it is started with the new ones
    leased: bool = False  # its lease was taken, and `memory` is what the last holder left
    due_s: float | None = 0.0  # when it is to be started; None: it is not
    level: RecoveryLevel = RecoveryLevel.WAIT  # what is to be done at its start
    prepared: bool = False  # what comes before its start was done
    run: int | None = None  # of the checkpoint that it used last
    version: int | None = None  # of the newest commit that was seen while it was well
    starts: int = 0
    row: str = FIRST  # verdict that led to the attempt that is under way
    failed_s: float | None = None  # since when it is not well, by the clock that measures
    results: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # class, level, result

    @property
    def halted(self) -> str:
        """Why nothing is done any more; empty while something is."""
        return self.memory.state.halted

    @property
    def level_reached(self) -> int:
        """Recovery level that was taken last, as a number; 0 when it is healthy."""
        return int(self.memory.state.level or 0)

    @property
    def new_run(self) -> bool:
        """Whether its next start begins a new run."""
        return self.level == RecoveryLevel.NEW_RUN

    def since_failure(self, seen: PipelineHealth) -> PipelineHealth:
        """Return what was seen of it, without a commit that was there before it failed."""
        if self.failed_s is not None and seen.version == self.version:
            return replace(seen, version=None)
        self.version = self.version if seen.version is None else seen.version
        return seen

    def clock_stepped(self, by: timedelta) -> None:
        """Move what is remembered along with a step of the wall clock."""
        self.memory = replace(self.memory, state=moved(self.memory.state, by))

    def reconfigured(self, now_s: float) -> None:
        """Its settings are others: one that is not up is started, also where it was given up."""
        self.removed = self.done = False
        self.reconfigured_up = self.up
        if not self.up:
            self.level = RecoveryLevel.WAIT if self.halted else self.level
            self.memory, self.due_s, self.prepared = forgiven(self.memory), now_s, False

    def began(self) -> None:
        """It was started."""
        self.up, self.due_s, self.starts, self.prepared = True, None, self.starts + 1, False
        self.reconfigured_up = False

    def ended(self, now_s: float) -> None:
        """It ended well."""
        self.up, self.done = False, not self.reconfigured_up
        self.due_s = now_s if self.reconfigured_up else None

    def failed(self, failure: Failure, decision: Decision, now_s: float) -> None:
        """Note a failure and what was decided for it."""
        if self.failed_s is not None and self.up:
            self.results[self.row, self.level.label, "failed"] += 1
        self.failed_s = now_s if self.failed_s is None else self.failed_s
        self.up, self.run = False, failure.run if failure.run is not None else self.run
        self.row = failure.row
        self._take(decision, failure, now_s)

    def refused(self, decision: Decision, now_s: float) -> None:
        """What was decided could not be carried out; note what is tried instead."""
        self.results[self.row, self.level.label, "refused"] += 1
        self._take(decision, self.memory.failure, now_s)

    def well(self, decision: Decision, now_s: float) -> float | None:
        """Note that it runs and commits. Returns the seconds since it failed, the first time after a failure."""
        took_s = None
        recovered = self.memory.recovered_s
        if self.failed_s is not None:
            took_s, self.failed_s = now_s - self.failed_s, None
            recovered = {**recovered, self.level.label: round(took_s, 3)}
            self.results[self.row, self.level.label, "worked"] += 1
        self.memory = replace(self.memory, state=decision.state, recovered_s=recovered)
        return took_s

    def _take(self, decision: Decision, failure: Failure | None, now_s: float) -> None:
        self.prepared = False
        self.memory = replace(self.memory, state=decision.state, failure=failure, action=describe(decision))
        match decision:
            case Start(level, delay):
                self.level, self.due_s = level, now_s + delay.total_seconds()
            case Halt():
                self.due_s = None
                self.results[self.row, "none", "halted"] += 1
            case KeepRunning():
                raise AssertionError("a failure leads to something")


def failure(verdict: Verdict, code: int, error: str, run: int | None, frontier: str, at: datetime) -> Failure:
    """Write down a failure as it was understood."""
    return Failure(at, code, verdict.row, verdict.halt, verdict.message, error, run, frontier, level=verdict.level)


def describe(decision: Decision) -> str:
    """Return a decision as a sentence."""
    match decision:
        case KeepRunning(reason):
            return f"leave it alone: {reason}"
        case Halt(reason):
            return f"halt: {reason}"
        case Start(level, delay, reason):
            return f"{level.label}, after {delay.total_seconds():.1f} s: {_LEVELS[level]}: {reason}"
