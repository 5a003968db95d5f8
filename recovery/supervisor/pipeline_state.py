"""One supervised pipeline: its last start, the result, and the time of the next start."""

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from headrace.recovery.escalation.decide import Decision, Halt, KeepRunning, Start, shift_instants
from headrace.recovery.escalation.diagnosis import PipelineHealth
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Failure, Memory, clear_halt

# In the place of a verdict, for what no failure led to.
FIRST = "start"
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
    # A driver runs it, as far as is known.
    up: bool = False
    # It ended well.
    done: bool = False
    # The configuration no longer has it: its driver drains it.
    removed: bool = False
    # Its settings changed while it was up: if it ends, it is started with the new ones.
    reconfigured_up: bool = False
    # Its lease was taken, and `memory` is what the last holder left.
    leased: bool = False
    # Epoch of the lease under which it is started; None: it was not taken yet.
    lease: int | None = None
    # Who took its lease last; empty: nobody, or it could not be read.
    lost_to: str = ""
    # Why it waits for its lease, as it was shown last; empty: it does not wait.
    shown_wait: str = ""
    # When it is to be started, by the monotonic clock; None: it is not.
    due_s: float | None = 0.0
    # What is to be done at its start.
    level: RecoveryLevel = RecoveryLevel.WAIT
    # What comes before its start was done.
    prepared: bool = False
    # The run of the checkpoint that it used last.
    run: int | None = None
    # The version of the newest commit that was seen while it was well.
    version: int | None = None
    starts: int = 0
    # The verdict that led to the attempt that is under way.
    row: str = FIRST
    # Since when it is not well, by the monotonic clock.
    failed_s: float | None = None
    # Class, level, result → how often.
    results: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    @property
    def halted(self) -> str:
        """Why nothing is done any more; empty while something is."""
        return self.memory.halt_reason

    @property
    def level_reached(self) -> int:
        """Recovery level that was taken last, as a number; 0 when it is healthy."""
        return int(self.memory.state.level or 0)

    @property
    def new_run(self) -> bool:
        """Whether its next start begins a new run."""
        return self.level == RecoveryLevel.NEW_RUN

    def health_since_failure(self, health: PipelineHealth) -> PipelineHealth:
        """Return its health without a commit that was there before it failed."""
        if self.failed_s is not None and health.version == self.version:
            return replace(health, version=None)
        if health.version is not None:
            self.version = health.version
        return health

    def shift_clock(self, step: timedelta) -> None:
        """Move what is remembered along with a step of the wall clock."""
        self.memory = replace(self.memory, state=shift_instants(self.memory.state, step))

    def reconfigure(self, now_s: float) -> None:
        """Note that its settings changed: one that is not up is started, also where it was given up."""
        self.removed = False
        self.done = False
        self.reconfigured_up = self.up
        if self.up:
            return
        if self.halted:
            self.level = RecoveryLevel.WAIT
        self.memory = clear_halt(self.memory)
        self.due_s = now_s
        self.prepared = False

    def note_lease(self, epoch: int | None, memory: Memory) -> None:
        """Note that its lease was taken. `memory`: what the last holder left."""
        self.leased = True
        self.lease = epoch
        self.memory = memory

    def note_lease_wait(self, now_s: float) -> None:
        """Note that it has ended, as another process has its lease. That is no failure, and uses no budget."""
        self.up = False
        self.failed_s = None
        self.level = RecoveryLevel.WAIT
        self.prepared = False
        self.reconfigured_up = False
        self.due_s = now_s

    def note_start(self) -> None:
        """Note that it was started."""
        self.up = True
        self.due_s = None
        self.starts += 1
        self.prepared = False
        self.reconfigured_up = False

    def note_end(self, now_s: float) -> None:
        """Note that it ended well; one whose settings changed meanwhile is started again."""
        self.up = False
        self.done = not self.reconfigured_up
        self.due_s = now_s if self.reconfigured_up else None

    def note_failure(self, failure: Failure, decision: Decision, now_s: float) -> None:
        """Note a failure and what was decided for it."""
        if self.failed_s is None:
            self.failed_s = now_s
        elif self.up:
            self.results[self.row, self.level.label, "failed"] += 1
        self.up = False
        if failure.run is not None:
            self.run = failure.run
        self.row = failure.row
        self._apply(decision, failure, now_s)

    def note_refusal(self, decision: Decision, now_s: float) -> None:
        """Note that what was decided could not be carried out, and what is tried instead."""
        self.results[self.row, self.level.label, "refused"] += 1
        self._apply(decision, self.memory.failure, now_s)

    def note_health(self, decision: Decision, now_s: float) -> float | None:
        """Note that it runs and commits. Returns the seconds since it failed, the first time after a failure."""
        took_s = None
        recovered_s = self.memory.recovered_s
        if self.failed_s is not None:
            took_s = now_s - self.failed_s
            self.failed_s = None
            recovered_s = {**recovered_s, self.level.label: round(took_s, 3)}
            self.results[self.row, self.level.label, "worked"] += 1
        self.memory = replace(self.memory, state=decision.state, recovered_s=recovered_s)
        return took_s

    def _apply(self, decision: Decision, failure: Failure | None, now_s: float) -> None:
        """Store a decision, and when the next start is due."""
        self.prepared = False
        self.memory = replace(self.memory, state=decision.state, failure=failure, action=describe(decision))
        match decision:
            case Start(level, delay):
                self.level = level
                self.due_s = now_s + delay.total_seconds()
            case Halt():
                self.due_s = None
                self.results[self.row, "none", "halted"] += 1
            case KeepRunning():
                raise AssertionError("a failure leads to something")


def failure_of(verdict: Verdict, exit_code: int, error: str, run: int | None, frontier: str, time: datetime) -> Failure:
    """Return a failure as it was understood."""
    return Failure(
        time=time,
        exit_code=exit_code,
        row=verdict.row,
        halt=verdict.halt,
        message=verdict.message,
        error=error,
        run=run,
        frontier=frontier,
        level=verdict.level,
    )


def describe(decision: Decision) -> str:
    """Return a decision as a sentence."""
    match decision:
        case KeepRunning(reason):
            return f"leave it alone: {reason}"
        case Halt(reason):
            return f"halt: {reason}"
        case Start(level, delay, reason):
            return f"{level.label}, after {delay.total_seconds():.1f} s: {_LEVELS[level]}: {reason}"
