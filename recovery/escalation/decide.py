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
from typing import Annotated

from pydantic import Field

from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import Instant, RecoveryLevel, StoredLevel
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.units import show_duration

_NO_TIME = timedelta(0)


class Frontier(StrEnum):
    """The table's committed offsets compared with Kafka's logs."""

    # Kafka still has what comes after them, or there is no table yet.
    HELD = "held"
    # Kafka lost the first offsets after them; a new run records them as a gap and goes on.
    LOST = "lost"
    # The table cannot tell them.
    UNKNOWN = "unknown"


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
# Before a start it is only asked whether storage and broker answer, which costs no driver.
CHECK_BACKOFF = Backoff(1, 30, jitter=0.5)


@dataclass(frozen=True)
class Policy:
    """What may be done, how often, and how long to wait before."""

    budgets: Mapping[RecoveryLevel, Budget] = field(default_factory=lambda: BUDGETS)
    # The levels that can be carried out here.
    actions: frozenset[RecoveryLevel] = frozenset({RecoveryLevel.WAIT, RecoveryLevel.RESTART, RecoveryLevel.NEW_RUN})
    # The last level gives records up: only where the configuration allows it.
    latest_allowed: bool = False
    backoff: Backoff = BACKOFF
    # Between checks before a start.
    check_backoff: Backoff = CHECK_BACKOFF
    # After so long without a failure, the next failure is another one.
    settled_after: timedelta = timedelta(minutes=1)
    # After so long without a failure, the budgets are full again.
    healthy_after: timedelta = timedelta(minutes=30)


@dataclass(frozen=True)
class Attempt:
    """A level that was taken."""

    level: StoredLevel
    time: Annotated[Instant, Field(alias="at")]
    # The verdict that led to it.
    row: str
    # The run of the checkpoint at that time.
    run: int | None = None


@dataclass(frozen=True)
class State:
    """What is remembered of a pipeline."""

    # The last level that was taken since the pipeline was healthy for long; None: none yet.
    level: StoredLevel | None = None
    # Oldest first; pauses on the lowest level are not among them.
    attempts: tuple[Attempt, ...] = ()
    # Starts since the pipeline was last well: pauses grow by it.
    streak: int = 0
    # Checks since the last start that storage or broker did not answer: the pauses between checks grow by it.
    checks: int = 0
    healthy_since: Instant | None = None
    # Why nothing is done any more; empty while something is.
    halted: str = ""


# --- events -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """A pipeline failed, or a check before its start found a cause of failure."""

    verdict: Verdict
    frontier: Frontier = Frontier.HELD
    # The run of the checkpoint that it used.
    run: int | None = None
    # Why the level that was decided last could not be carried out.
    refused: str | None = None


@dataclass(frozen=True)
class DependencyUnavailable:
    """Storage or broker do not answer."""

    message: str
    # A check before a start found it, so no driver ran.
    before_start: bool = False


@dataclass(frozen=True)
class Healthy:
    """It runs, and commits what there is."""


Event = Failed | DependencyUnavailable | Healthy

# --- decisions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    """Carry out a level, then start the pipeline again, once the delay is over."""

    level: RecoveryLevel
    delay: timedelta
    reason: str
    # What is remembered after the decision, as in the other decisions.
    state: State


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
    state = _limit_to_now(state, now)
    if isinstance(event, Healthy):
        return KeepRunning("it runs", _state_while_healthy(policy, state, now))
    if isinstance(event, Failed) and event.refused is not None:
        return _decide_after_refusal(policy, state, event, now, jitter)
    state = _state_after_failure(policy, state, now)
    if isinstance(event, DependencyUnavailable):
        if event.before_start:
            return _wait_for_answer(policy, state, event.message, jitter)
        return _wait(policy, state, event.message, jitter)
    verdict = event.verdict
    if state.halted or verdict.halt:
        return _halt(state, state.halted or verdict.message)
    first_level = verdict.level
    if first_level is None:
        first_level = RecoveryLevel.RESTART
    return _escalate(policy, state, event, first_level, now, jitter)


def shift_instants(state: State, step: timedelta) -> State:
    """Move the instants of a state along with a step of the wall clock: budgets last as long as before."""
    attempts = tuple(replace(attempt, time=attempt.time + step) for attempt in state.attempts)
    healthy_since = state.healthy_since
    if healthy_since is not None:
        healthy_since += step
    return replace(state, attempts=attempts, healthy_since=healthy_since)


def attempt_times(state: State, level: RecoveryLevel, budget: Budget, now: datetime) -> list[datetime]:
    """Return when a level was taken within its budget's time, oldest first."""
    return [attempt.time for attempt in state.attempts if attempt.level == level and now - attempt.time < budget.within]


def _limit_to_now(state: State, now: datetime) -> State:
    """Move instants of the future to now: the clock may have stepped back while no supervisor ran."""
    attempts = tuple(replace(attempt, time=min(attempt.time, now)) for attempt in state.attempts)
    healthy_since = state.healthy_since
    if healthy_since is not None:
        healthy_since = min(healthy_since, now)
    return replace(state, attempts=attempts, healthy_since=healthy_since)


def _state_while_healthy(policy: Policy, state: State, now: datetime) -> State:
    """Return the state of a pipeline that runs; after healthy time only the last resorts are remembered."""
    since = state.healthy_since or now
    if now - since < policy.healthy_after:
        return replace(state, healthy_since=since, halted="")
    recent_attempts = _recent_attempts(policy, state.attempts, now)
    last_resorts = tuple(attempt for attempt in recent_attempts if attempt.level >= RecoveryLevel.WALK_BACK)
    return State(attempts=last_resorts, healthy_since=since)


def _state_after_failure(policy: Policy, state: State, now: datetime) -> State:
    """Return the state without health; after a minute of health, the streak begins again."""
    since = state.healthy_since
    if since is not None and now - since >= policy.settled_after:
        state = replace(state, streak=0, checks=0)
    return replace(state, healthy_since=None)


def _decide_after_refusal(policy: Policy, state: State, event: Failed, now: datetime, jitter: float) -> Decision:
    """Take the next level; after the last one new runs, once their budget is free again."""
    if state.level is None:
        return _halt(state, f"nothing else is left: {event.refused}")
    if state.level < RecoveryLevel.LATEST:
        next_level = min(level for level in RecoveryLevel if level > state.level)
        return _escalate(policy, state, event, next_level, now, jitter)
    if event.frontier == Frontier.UNKNOWN:
        return _halt(state, f"nothing else is left: {event.refused}")
    without_latest = replace(policy, actions=policy.actions - {RecoveryLevel.LATEST})
    return _escalate(without_latest, state, event, RecoveryLevel.NEW_RUN, now, jitter)


def _escalate(
    policy: Policy, state: State, event: Failed, first_level: RecoveryLevel, now: datetime, jitter: float
) -> Decision:
    """Take the lowest level, from the first one on, that may do something and has budget left."""
    if first_level == RecoveryLevel.WAIT:
        return _wait(policy, state, event.verdict.message, jitter)
    reasons = [event.verdict.message]
    if event.refused:
        reasons.append(event.refused)
    # The highest level that gives nothing up, of those whose budget is used up.
    repeated_level: RecoveryLevel | None = None
    free_times: list[datetime] = []
    for level in RecoveryLevel:
        if level < first_level:
            continue
        if reason := _reason_against(policy, state, event, level, now):
            reasons.append(f"{level.label}: {reason}")
            continue
        budget = policy.budgets[level]
        times = attempt_times(state, level, budget, now)
        if len(times) < budget.times_max:
            return _take(policy, state, event, level, now, _next_delay(policy, state, jitter), reasons)
        reasons.append(f"{level.label}: taken {len(times)} times within {show_duration(budget.within)}")
        free_times.append(times[-budget.times_max] + budget.within)
        if level < RecoveryLevel.WALK_BACK:
            repeated_level = level
    if not free_times:
        return _halt(state, "; ".join(reasons))
    until_free = min(free_times) - now
    if repeated_level is None:
        reasons.append("it is tried again when a budget is free")
        return _wait(policy, state, "; ".join(reasons), jitter, delay_min=until_free)
    longest_delay = timedelta(seconds=policy.backoff.max_s * (1 - policy.backoff.jitter * (1 - jitter)))
    delay = max(min(until_free, longest_delay), _next_delay(policy, state, jitter))
    reasons.append("the budgets are used up: it takes longer pauses")
    return _take(policy, state, event, repeated_level, now, delay, reasons)


def _take(
    policy: Policy,
    state: State,
    event: Failed,
    level: RecoveryLevel,
    now: datetime,
    delay: timedelta,
    reasons: Sequence[str],
) -> Start:
    attempt = Attempt(level, now, event.verdict.row, event.run)
    attempts = _recent_attempts(policy, (*state.attempts, attempt), now)
    next_state = replace(state, level=level, attempts=attempts, streak=state.streak + 1, checks=0)
    return Start(level, delay, "; ".join(reasons), next_state)


def _reason_against(policy: Policy, state: State, event: Failed, level: RecoveryLevel, now: datetime) -> str:
    """Return why a level would not help; empty when it may."""
    frontier = event.frontier
    if level not in policy.actions:
        return "it cannot be done here"
    if level == RecoveryLevel.NEW_RUN and frontier == Frontier.UNKNOWN:
        return "the table does not tell its frontier"
    if level == RecoveryLevel.WALK_BACK and frontier != Frontier.UNKNOWN:
        return "the table tells its frontier"
    if level == RecoveryLevel.LATEST:
        return _reason_against_latest(policy, state, frontier, now)
    return ""


def _reason_against_latest(policy: Policy, state: State, frontier: Frontier, now: datetime) -> str:
    """Return why records are not skipped; empty when they may be."""
    if frontier == Frontier.HELD:
        return "a new run loses nothing"
    new_run = policy.budgets[RecoveryLevel.NEW_RUN]
    new_run_times = attempt_times(state, RecoveryLevel.NEW_RUN, new_run, now)
    if frontier == Frontier.LOST and len(new_run_times) < new_run.times_max:
        return "a new run loses less"
    if not policy.latest_allowed:
        return "it gives records up, and is not allowed to do so by itself"
    return ""


def _wait(policy: Policy, state: State, reason: str, jitter: float, delay_min: timedelta = _NO_TIME) -> Start:
    """Start it again as it is. The lowest level has no budget, and nothing escalates from it."""
    level = state.level or RecoveryLevel.WAIT
    next_state = replace(state, level=level, streak=state.streak + 1, checks=0, halted="")
    return Start(RecoveryLevel.WAIT, max(delay_min, _next_delay(policy, state, jitter)), reason, next_state)


def _wait_for_answer(policy: Policy, state: State, reason: str, jitter: float) -> Start:
    """Check again later, before the same start. Pauses between starts do not grow by it, as no driver has failed."""
    delay = timedelta(seconds=policy.check_backoff.delay_s(state.checks, jitter))
    next_state = replace(state, level=state.level or RecoveryLevel.WAIT, checks=state.checks + 1, halted="")
    return Start(RecoveryLevel.WAIT, delay, reason, next_state)


def _halt(state: State, reason: str) -> Halt:
    return Halt(reason, replace(state, halted=reason))


def _next_delay(policy: Policy, state: State, jitter: float) -> timedelta:
    return timedelta(seconds=policy.backoff.delay_s(state.streak, jitter))


def _recent_attempts(policy: Policy, attempts: Sequence[Attempt], now: datetime) -> tuple[Attempt, ...]:
    """Return the attempts that still count in a budget."""
    return tuple(attempt for attempt in attempts if now - attempt.time < policy.budgets[attempt.level].within)
