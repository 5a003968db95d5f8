"""Events of decisions: one for each change, not one for each evaluation. Pure."""

from dataclasses import dataclass, replace

from pydantic import AwareDatetime, ConfigDict

from autoscaler.decision.decide import Blocked, Decision, Hold, Wait
from autoscaler.decision.explanation import verdict

KEPT = 100
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Event:
    """One decision, and for how many ticks in a row it was the same."""

    __pydantic_config__ = _STRICT

    at: AwareDatetime  # of the first tick
    until: AwareDatetime  # of the last
    ticks: int
    verdict: str
    executors: int
    wanted: int | None  # another number that is wanted, and is not asked for
    by: str | None  # what is in the way, or forbids to judge: a kind of symptom
    why: str  # the sentence, as it was at the first tick


def event(decision: Decision, at: AwareDatetime) -> Event:
    """Make the event of a decision."""
    word, why = verdict(decision)
    wanted = decision.to if isinstance(decision, Blocked | Wait) else None
    symptom = decision.why if isinstance(decision, Hold) else decision.by if isinstance(decision, Blocked) else None
    return Event(at, at, 1, word, decision.executors, wanted, None if symptom is None else symptom.kind, why)


def added(events: tuple[Event, ...], new: Event) -> tuple[Event, ...]:
    """Add an event to those before, newest last; an equal one extends the last."""
    last = events[-1] if events else None
    if last is not None and (last.verdict, last.executors, last.by) == (new.verdict, new.executors, new.by):
        return (*events[:-1], replace(last, until=new.at, ticks=last.ticks + 1, wanted=new.wanted))
    return (*events, new)[-KEPT:]
