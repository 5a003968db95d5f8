"""What is done next about a pipeline that failed. Pure: what happened and the time in, an action with its reason out.

The verdict says at which rung the ladder begins; a rung whose budget is used up gives way to the next one that can do
something. While storage or broker are down nothing climbs. After healthy time everything is forgotten but the last
resorts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol, assert_never

from recovery.ladder.rungs import RecoveryLevel

_NO_TIME = timedelta(0)


class Verdict(Protocol):
    """What a failure was found to be."""

    @property
    def row(self) -> str:
        """Name of the kind of failure."""

    @property
    def rung(self) -> RecoveryLevel | None:
        """Where the ladder begins; None: it was not said."""

    @property
    def halt(self) -> bool:
        """Whether only a person can help."""

    @property
    def said(self) -> str:
        """The same, as a sentence."""


class Frontier(StrEnum):
    """How the table's frontier stands to Kafka's logs."""

    HELD = "held"  # Kafka still has what comes after it, or there is no table yet
    LOST = "lost"  # Kafka lost the first offsets after it; a new run records them as a gap and goes on
    UNKNOWN = "unknown"  # the table cannot tell it


@dataclass(frozen=True)
class Budget:
    """How often a rung may be taken within a time."""

    times_max: int
    within: timedelta

    def __post_init__(self) -> None:
        if self.times_max < 1 or self.within <= _NO_TIME:
            raise ValueError(f"a budget must be positive, got {self.times_max} within {self.within}")


# Restarts are cheap and often enough; a new run costs a second; last resorts are for a day.
BUDGETS: Mapping[RecoveryLevel, Budget] = {
    RecoveryLevel.RESTART: Budget(3, timedelta(minutes=15)),
    RecoveryLevel.REPAIR: Budget(3, timedelta(hours=1)),
    RecoveryLevel.NEW_RUN: Budget(3, timedelta(hours=1)),
    RecoveryLevel.WALK_BACK: Budget(10, timedelta(hours=24)),
    RecoveryLevel.LATEST: Budget(1, timedelta(hours=24)),
}


@dataclass(frozen=True)
class Policy:
    """What may be done, how often, and how long to wait before."""

    budgets: Mapping[RecoveryLevel, Budget] = field(default_factory=lambda: BUDGETS)
    hands: frozenset[RecoveryLevel] = frozenset(
        {RecoveryLevel.WAIT, RecoveryLevel.RESTART, RecoveryLevel.NEW_RUN}
    )  # what can be carried out here
    latest_allowed: bool = False  # the last rung gives records up: only where a person said so before
    pause_first: timedelta = timedelta(seconds=1)
    pause_max: timedelta = timedelta(minutes=5)
    settled_after: timedelta = timedelta(minutes=1)  # healthy for so long, the next failure is not the same one
    healthy_after: timedelta = timedelta(minutes=30)  # healthy for so long, the budgets are new


@dataclass(frozen=True)
class Attempt:
    """A rung that was taken."""

    rung: RecoveryLevel
    at: datetime
    row: str  # the verdict that led to it
    run: int | None = None  # run of the checkpoint that was found then


@dataclass(frozen=True)
class State:
    """What the ladder remembers of a pipeline."""

    rung: RecoveryLevel | None = None  # the last that was taken since it was healthy for long; None: at the foot
    attempts: tuple[Attempt, ...] = ()  # oldest first; pauses on the lowest rung are not among them
    streak: int = 0  # actions since it was last well: pauses grow by it
    healthy_since: datetime | None = None
    halted: str = ""  # why nothing is done any more


# --- what happens -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """A pipeline failed, or a look before its start found something that would make it fail."""

    verdict: Verdict
    frontier: Frontier = Frontier.HELD
    run: int | None = None  # of the checkpoint that it used


@dataclass(frozen=True)
class Refused:
    """What was decided last could not be carried out."""

    why: str
    verdict: Verdict
    frontier: Frontier = Frontier.HELD
    run: int | None = None


@dataclass(frozen=True)
class Down:
    """Storage or broker do not answer."""

    said: str


@dataclass(frozen=True)
class Healthy:
    """It runs, and commits what there is."""


Event = Failed | Refused | Down | Healthy

# --- what is done -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stay:
    """Leave it alone."""

    reason: str


@dataclass(frozen=True)
class Wait:
    """Start it again as it is, after a pause; for as often as it takes."""

    pause: timedelta
    reason: str


@dataclass(frozen=True)
class Restart:
    """Start it again on the same checkpoint."""

    pause: timedelta
    reason: str


@dataclass(frozen=True)
class Repair:
    """Mend the checkpoint in place, then start."""

    pause: timedelta
    reason: str


@dataclass(frozen=True)
class NewRun:
    """Start with a new run from the table's frontier."""

    pause: timedelta
    reason: str


@dataclass(frozen=True)
class WalkBack:
    """Find the frontier from older checkpoints and the table's files, then start."""

    pause: timedelta
    reason: str


@dataclass(frozen=True)
class Latest:
    """Record a gap up to the ends of Kafka's logs, then start there."""

    pause: timedelta
    reason: str


@dataclass(frozen=True)
class Halt:
    """Leave it stopped until a person has acted."""

    reason: str


Action = Stay | Wait | Restart | Repair | NewRun | WalkBack | Latest | Halt
Start = Wait | Restart | Repair | NewRun | WalkBack | Latest  # those that end in a start


@dataclass(frozen=True)
class Decision:
    """An action, and what is remembered once it is taken."""

    action: Action
    state: State


def decide(policy: Policy, state: State, event: Event, now: datetime, jitter: float) -> Decision:
    """Choose what is done next. `jitter`, from 0 to 1, draws the pause between half of its length and all of it."""
    match event:
        case Healthy():
            return Decision(Stay("it runs"), _well(policy, state, now))
        case Down(said):
            return _waits(policy, _ill(policy, state, now), said, jitter)
        case Failed(verdict, frontier, run):
            ill = _ill(policy, state, now)
            if state.halted:
                return Decision(Halt(state.halted), ill)
            if verdict.halt:
                return Decision(Halt(verdict.said), replace(ill, halted=verdict.said))
            begin = RecoveryLevel.RESTART if verdict.rung is None else verdict.rung
            return _climbs(policy, ill, verdict, begin, frontier, run, now, jitter)
        case Refused(why, verdict, frontier, run):
            if state.rung is None or (state.rung == RecoveryLevel.LATEST and frontier == Frontier.UNKNOWN):
                reason = f"nothing else is left: {why}"
                return Decision(Halt(reason), replace(state, halted=reason))
            if state.rung == RecoveryLevel.LATEST:  # new runs work, and their budget is free again some time
                less = replace(policy, hands=policy.hands - {RecoveryLevel.LATEST})
                return _climbs(less, state, verdict, RecoveryLevel.NEW_RUN, frontier, run, now, jitter, why)
            return _climbs(policy, state, verdict, RecoveryLevel(state.rung + 1), frontier, run, now, jitter, why)
        case _:
            assert_never(event)


def used(state: State, rung: RecoveryLevel, budget: Budget, now: datetime) -> int:
    """Count how often a rung was taken within its budget's time."""
    return sum(a.rung == rung and now - a.at < budget.within for a in state.attempts)


def rung_of(action: Start) -> RecoveryLevel:
    """Return the rung that an action belongs to."""
    match action:
        case Wait():
            return RecoveryLevel.WAIT
        case Restart():
            return RecoveryLevel.RESTART
        case Repair():
            return RecoveryLevel.REPAIR
        case NewRun():
            return RecoveryLevel.NEW_RUN
        case WalkBack():
            return RecoveryLevel.WALK_BACK
        case Latest():
            return RecoveryLevel.LATEST
        case _:
            assert_never(action)


def _well(policy: Policy, state: State, now: datetime) -> State:
    since = state.healthy_since or now
    if now - since < policy.healthy_after:
        return replace(state, healthy_since=since, halted="")
    kept = tuple(
        a for a in state.attempts if a.rung >= RecoveryLevel.WALK_BACK and now - a.at < _within(policy, a.rung)
    )
    return State(attempts=kept, healthy_since=since)


def _ill(policy: Policy, state: State, now: datetime) -> State:
    """Return the state without health; what came before a minute of it was another failure."""
    since = state.healthy_since
    streak = 0 if since is not None and now - since >= policy.settled_after else state.streak
    return replace(state, healthy_since=None, streak=streak)


def _climbs(
    policy: Policy, state: State, verdict: Verdict, begin: RecoveryLevel, frontier: Frontier, run: int | None,
    now: datetime, jitter: float, refused: str = "",
) -> Decision:  # fmt: skip
    """Take the lowest rung, from where the verdict begins, that may do something and has budget left."""
    if begin == RecoveryLevel.WAIT:
        return _waits(policy, state, verdict.said, jitter)
    passed = [refused] if refused else []
    free_at: list[datetime] = []
    for rung in RecoveryLevel:
        if rung < begin:
            continue
        if why := _useless(policy, state, verdict, rung, frontier, run, now):
            passed += [f"{rung.label}: {why}"]
            continue
        budget = policy.budgets[rung]
        if (spent := used(state, rung, budget, now)) < budget.times_max:
            reason = "; ".join([verdict.said, *passed])
            taken = (*state.attempts, Attempt(rung, now, verdict.row, run))
            kept = tuple(a for a in taken if now - a.at < _within(policy, a.rung))
            after = replace(state, rung=rung, attempts=kept, streak=state.streak + 1)
            return Decision(_start(rung, _pause(policy, state.streak, jitter), reason), after)
        passed += [f"{rung.label}: taken {spent} times within {_shown(budget.within)}"]
        free_at += [min(a.at for a in state.attempts if a.rung == rung and now - a.at < budget.within) + budget.within]
    reason = "; ".join([verdict.said, *passed])
    if not free_at:
        return Decision(Halt(reason), replace(state, halted=reason))
    pause = max(min(free_at) - now, _pause(policy, state.streak, jitter))
    return Decision(Wait(pause, f"{reason}; it is tried again when a budget is free"), _paused(state))


def _useless(
    policy: Policy,
    state: State,
    verdict: Verdict,
    rung: RecoveryLevel,
    frontier: Frontier,
    run: int | None,
    now: datetime,
) -> str:
    """Say why a rung would not help; empty when it may."""
    if rung not in policy.hands:
        return "it cannot be done here"
    match rung:
        case RecoveryLevel.WAIT | RecoveryLevel.RESTART:
            return ""
        case RecoveryLevel.REPAIR:
            if verdict.rung != RecoveryLevel.REPAIR:
                return "nothing is known to be mended"
            return "this run was mended before" if _mended(state, run) else ""
        case RecoveryLevel.NEW_RUN:
            return "the table does not tell its frontier" if frontier == Frontier.UNKNOWN else ""
        case RecoveryLevel.WALK_BACK:
            return "" if frontier == Frontier.UNKNOWN else "the table tells its frontier"
        case RecoveryLevel.LATEST:
            new_run = policy.budgets[RecoveryLevel.NEW_RUN]
            if frontier == Frontier.HELD:
                return "a new run loses nothing"
            if frontier == Frontier.LOST and used(state, RecoveryLevel.NEW_RUN, new_run, now) < new_run.times_max:
                return "a new run loses less"
            return "" if policy.latest_allowed else "it gives records up, and is not allowed to do so by itself"
        case _:
            assert_never(rung)


def _mended(state: State, run: int | None) -> bool:
    return any(a.rung == RecoveryLevel.REPAIR and a.run == run for a in state.attempts)


def _waits(policy: Policy, state: State, said: str, jitter: float) -> Decision:
    """Pause, and count it nowhere: the lowest rung has no budget, and nothing climbs from it."""
    return Decision(Wait(_pause(policy, state.streak, jitter), said), _paused(state))


def _paused(state: State) -> State:
    return replace(state, rung=state.rung or RecoveryLevel.WAIT, streak=state.streak + 1, halted="")


def _pause(policy: Policy, streak: int, jitter: float) -> timedelta:
    whole = min(policy.pause_first * (1 << min(streak, 32)), policy.pause_max)
    return whole * (0.5 + 0.5 * min(max(jitter, 0.0), 1.0))


def _within(policy: Policy, rung: RecoveryLevel) -> timedelta:
    return policy.budgets[rung].within


def _start(rung: RecoveryLevel, pause: timedelta, reason: str) -> Start:
    match rung:
        case RecoveryLevel.WAIT:
            return Wait(pause, reason)
        case RecoveryLevel.RESTART:
            return Restart(pause, reason)
        case RecoveryLevel.REPAIR:
            return Repair(pause, reason)
        case RecoveryLevel.NEW_RUN:
            return NewRun(pause, reason)
        case RecoveryLevel.WALK_BACK:
            return WalkBack(pause, reason)
        case RecoveryLevel.LATEST:
            return Latest(pause, reason)
        case _:
            assert_never(rung)


def _shown(span: timedelta) -> str:
    hours, minutes = divmod(int(span.total_seconds()) // 60, 60)
    return f"{hours} h" if hours and not minutes else f"{minutes + 60 * hours} min"
