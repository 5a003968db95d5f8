"""Events of decisions: one for each change, not one for each evaluation. Pure."""

from dataclasses import dataclass, replace

from pydantic import AwareDatetime, ConfigDict

from headrace.autoscaler.decision.decide import Blocked, Decision, Hold, Wait
from headrace.autoscaler.decision.explanation import verdict

# Older events are dropped.
EVENTS_MAX = 100
_STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True)
class Event:
    """One decision, and for how many ticks in a row it was the same. Saved as JSON by the names of its fields."""

    __pydantic_config__ = _STRICT

    # The first tick.
    at: AwareDatetime
    # The last tick.
    until: AwareDatetime
    ticks: int
    verdict: str
    executors: int
    # Another number that is wanted, and is not asked for.
    wanted: int | None
    # The kind of the symptom that is in the way, or forbids to judge.
    by: str | None
    # The sentence, as it was at the first tick.
    why: str


def make_event(decision: Decision, instant: AwareDatetime) -> Event:
    """Return the event of a decision that was taken at an instant."""
    word, sentence = verdict(decision)
    wanted = decision.wanted if isinstance(decision, Blocked | Wait) else None
    by = decision.cause.kind if isinstance(decision, Hold | Blocked) else None
    return Event(
        at=instant,
        until=instant,
        ticks=1,
        verdict=word,
        executors=decision.executors,
        wanted=wanted,
        by=by,
        why=sentence,
    )


def add_event(events: tuple[Event, ...], event: Event) -> tuple[Event, ...]:
    """Add an event to those before, newest last; an equal one extends the last."""
    if events and _has_same_verdict(events[-1], event):
        last = events[-1]
        extended = replace(last, until=event.at, ticks=last.ticks + 1, wanted=event.wanted)
        return (*events[:-1], extended)
    return (*events, event)[-EVENTS_MAX:]


def _has_same_verdict(event: Event, other: Event) -> bool:
    return (event.verdict, event.executors, event.by) == (other.verdict, other.executors, other.by)
