"""Decides the recovery level of a failed pipeline. Pure: state, event and time in, one decision out.

The verdict gives the first level; a level whose budget is used up gives way to the next one that can do something.
When all are used up, a level that gives nothing up is taken again after the longest pause; the last resorts wait for
their budget. While storage or broker are down nothing escalates. After healthy time everything is forgotten but the
last resorts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from recovery.escalation.error_catalogue import Verdict
from recovery.escalation.levels import Instant, RecoveryLevel, StoredLevel
from writer.core.backoff import Backoff
from writer.core.units import show_duration

_NO_TIME = timedelta(0)


class Frontier(StrEnum):
    """The table's committed offsets compared with Kafka's logs."""

    HELD = "held"  # Kafka still has what comes after it, or there is no table yet
    LOST = "lost"  # Kafka lost the first offsets after it; a new run records them as a gap and goes on
    UNKNOWN = "unknown"  # the table cannot tell it


@dataclass(frozen=True)
class Budget:
    """How often a level may be taken within a time."""

    times_max: int
    within: timedelta

    def __post_init__(self) -> None:
        if self.times_max < 1 or self.within <= _NO_TIME:
            raise ValueError(f"a budget must be positive, got {self.times_max} within {self.within}")


# Restarts are cheap and often enough; a new run costs a second; last resorts are for a day.
BUDGETS: Mapping[RecoveryLevel, Budget] = {
    RecoveryLevel.RESTART: Budget(3, timedelta(minutes=15)),
    RecoveryLevel.NEW_RUN: Budget(3, timedelta(hours=1)),
    RecoveryLevel.WALK_BACK: Budget(10, timedelta(hours=24)),
    RecoveryLevel.LATEST: Budget(1, timedelta(hours=24)),
}

BACKOFF = Backoff(1, 300, jitter=0.5)


@dataclass(frozen=True)
class Policy:
    """What may be done, how often, and how long to wait before."""

    budgets: Mapping[RecoveryLevel, Budget] = field(default_factory=lambda: BUDGETS)
    actions: frozenset[RecoveryLevel] = frozenset(
        {RecoveryLevel.WAIT, RecoveryLevel.RESTART, RecoveryLevel.NEW_RUN}
    )  # what can be carried out here
    latest_allowed: bool = False  # the last level gives records up: only where the configuration allows it
    backoff: Backoff = BACKOFF
    settled_after: timedelta = timedelta(minutes=1)  # healthy for so long, the next failure is not the same one
    healthy_after: timedelta = timedelta(minutes=30)  # healthy for so long, the budgets are new


@dataclass(frozen=True)
class Attempt:
    """A level that was taken."""

    level: StoredLevel
    at: Instant
    row: str  # the verdict that led to it
    run: int | None = None  # run of the checkpoint at that time


@dataclass(frozen=True)
class State:
    """What is remembered of a pipeline."""

    # The last that was taken since it was healthy for long; None: none yet.
    level: StoredLevel | None = None
    attempts: tuple[Attempt, ...] = ()  # oldest first; pauses on the lowest level are not among them
    streak: int = 0  # starts since it was last well: pauses grow by it
    healthy_since: Instant | None = None
    halted: str = ""  # why nothing is done any more


# --- what happens -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """A pipeline failed, or a check before its start found a cause of failure."""

    verdict: Verdict
    frontier: Frontier = Frontier.HELD
    run: int | None = None  # of the checkpoint that it used
    refused: str | None = None  # why the level that was decided last could not be carried out


@dataclass(frozen=True)
class DependencyUnavailable:
    """Storage or broker do not answer."""

    message: str


@dataclass(frozen=True)
class Healthy:
    """It runs, and commits what there is."""


Event = Failed | DependencyUnavailable | Healthy

# --- what is done -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Carry out a level, then start the pipeline again, once the delay is over."""

    level: RecoveryLevel
    delay: timedelta
    reason: str
    state: State  # what is remembered once it is decided, as in the other decisions


@dataclass(frozen=True)
class KeepRunning:
    """Let it run."""

    reason: str
    state: State


@dataclass(frozen=True)
class Halt:
    """Leave it stopped until a person has acted."""

    reason: str
    state: State


Decision = Start | KeepRunning | Halt


def decide(policy: Policy, state: State, event: Event, now: datetime, jitter: float) -> Decision:
    """Choose what is done next. `jitter`, from 0 to 1, draws the delay between half of its length and all of it."""
    state = _without_future(state, now)
    if isinstance(event, Healthy):
        return KeepRunning("it runs", _healthy(policy, state, now))
    if isinstance(event, Failed) and event.refused is not None:
        return _refused(policy, state, event, now, jitter)
    state = _unhealthy(policy, state, now)
    if isinstance(event, DependencyUnavailable):
        return _wait(policy, state, event.message, jitter)
    verdict = event.verdict
    if state.halted or verdict.halt:
        return _halt(state, state.halted or verdict.message)
    return _escalate(
        policy, state, event, RecoveryLevel.RESTART if verdict.level is None else verdict.level, now, jitter
    )


def moved(state: State, by: timedelta) -> State:
    """Return what is remembered, its instants moved along with the wall clock: budgets last as long as before."""
    attempts = tuple(replace(attempt, at=attempt.at + by) for attempt in state.attempts)
    healthy_since = None if state.healthy_since is None else state.healthy_since + by
    return replace(state, attempts=attempts, healthy_since=healthy_since)


def _without_future(state: State, now: datetime) -> State:
    """Return what is remembered, none of it from the future: the clock may have stepped back while nobody ran."""
    attempts = tuple(replace(attempt, at=min(attempt.at, now)) for attempt in state.attempts)
    healthy_since = None if state.healthy_since is None else min(state.healthy_since, now)
    return replace(state, attempts=attempts, healthy_since=healthy_since)


def used(state: State, level: RecoveryLevel, budget: Budget, now: datetime) -> list[datetime]:
    """Return when a level was taken within its budget's time, oldest first."""
    return [a.at for a in state.attempts if a.level == level and now - a.at < budget.within]


def _healthy(policy: Policy, state: State, now: datetime) -> State:
    since = state.healthy_since or now
    if now - since < policy.healthy_after:
        return replace(state, healthy_since=since, halted="")
    last_resorts = tuple(a for a in _recent(policy, state.attempts, now) if a.level >= RecoveryLevel.WALK_BACK)
    return State(attempts=last_resorts, healthy_since=since)


def _unhealthy(policy: Policy, state: State, now: datetime) -> State:
    """Return the state without health; what came before a minute of it was another failure."""
    since = state.healthy_since
    streak = 0 if since is not None and now - since >= policy.settled_after else state.streak
    return replace(state, healthy_since=None, streak=streak)


def _refused(policy: Policy, state: State, event: Failed, now: datetime, jitter: float) -> Decision:
    """Take the next level; after the last one new runs, once their budget is free again."""
    if state.level is None or (state.level == RecoveryLevel.LATEST and event.frontier == Frontier.UNKNOWN):
        return _halt(state, f"nothing else is left: {event.refused}")
    if state.level == RecoveryLevel.LATEST:
        less = replace(policy, actions=policy.actions - {RecoveryLevel.LATEST})
        return _escalate(less, state, event, RecoveryLevel.NEW_RUN, now, jitter)
    next_level = min(level for level in RecoveryLevel if level > state.level)
    return _escalate(policy, state, event, next_level, now, jitter)


def _escalate(
    policy: Policy, state: State, event: Failed, first: RecoveryLevel, now: datetime, jitter: float
) -> Decision:
    """Take the lowest level, from `first` on, that may do something and has budget left."""
    reasons = [event.verdict.message, *([event.refused] if event.refused else [])]
    if first == RecoveryLevel.WAIT:
        return _wait(policy, state, event.verdict.message, jitter)
    again: RecoveryLevel | None = None  # the highest that gives nothing up, of those whose budget is used up
    free_at: list[datetime] = []
    for level in (level for level in RecoveryLevel if level >= first):
        if why := _useless(policy, state, event, level, now):
            reasons += [f"{level.label}: {why}"]
            continue
        budget = policy.budgets[level]
        if len(taken := used(state, level, budget, now)) < budget.times_max:
            return _take(policy, state, event, level, now, _delay(policy, state, jitter), reasons)
        reasons += [f"{level.label}: taken {len(taken)} times within {show_duration(budget.within)}"]
        free_at += [taken[-budget.times_max] + budget.within]
        again = level if level < RecoveryLevel.WALK_BACK else again
    if not free_at:
        return _halt(state, "; ".join(reasons))
    until_free = min(free_at) - now
    if again is None:
        reasons += ["it is tried again when a budget is free"]
        return _wait(policy, state, "; ".join(reasons), jitter, delay_min=until_free)
    longest = timedelta(seconds=policy.backoff.max_s * (1 - policy.backoff.jitter * (1 - jitter)))
    delay = max(min(until_free, longest), _delay(policy, state, jitter))
    return _take(policy, state, event, again, now, delay, [*reasons, "the budgets are used up: it takes longer pauses"])


def _take(
    policy: Policy, state: State, event: Failed, level: RecoveryLevel, now: datetime, delay: timedelta,
    reasons: Sequence[str],
) -> Start:  # fmt: skip
    attempts = _recent(policy, (*state.attempts, Attempt(level, now, event.verdict.row, event.run)), now)
    after = replace(state, level=level, attempts=attempts, streak=state.streak + 1)
    return Start(level, delay, "; ".join(reasons), after)


def _useless(policy: Policy, state: State, event: Failed, level: RecoveryLevel, now: datetime) -> str:
    """Return why a level would not help; empty when it may."""
    frontier, new_run = event.frontier, policy.budgets[RecoveryLevel.NEW_RUN]
    if level not in policy.actions:
        return "it cannot be done here"
    if level == RecoveryLevel.NEW_RUN and frontier == Frontier.UNKNOWN:
        return "the table does not tell its frontier"
    if level == RecoveryLevel.WALK_BACK and frontier != Frontier.UNKNOWN:
        return "the table tells its frontier"
    if level == RecoveryLevel.LATEST:
        if frontier == Frontier.HELD:
            return "a new run loses nothing"
        if frontier == Frontier.LOST and len(used(state, RecoveryLevel.NEW_RUN, new_run, now)) < new_run.times_max:
            return "a new run loses less"
        return "" if policy.latest_allowed else "it gives records up, and is not allowed to do so by itself"
    return ""


def _wait(policy: Policy, state: State, reason: str, jitter: float, delay_min: timedelta = _NO_TIME) -> Start:
    """Start it again as it is. The lowest level has no budget, and nothing escalates from it."""
    after = replace(state, level=state.level or RecoveryLevel.WAIT, streak=state.streak + 1, halted="")
    return Start(RecoveryLevel.WAIT, max(delay_min, _delay(policy, state, jitter)), reason, after)


def _halt(state: State, reason: str) -> Halt:
    return Halt(reason, replace(state, halted=reason))


def _delay(policy: Policy, state: State, jitter: float) -> timedelta:
    return timedelta(seconds=policy.backoff.delay_s(state.streak, jitter))


def _recent(policy: Policy, attempts: tuple[Attempt, ...], now: datetime) -> tuple[Attempt, ...]:
    """Return the attempts that still count in a budget."""
    return tuple(a for a in attempts if now - a.at < policy.budgets[a.level].within)
