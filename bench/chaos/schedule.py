"""The schedule of a chaos run. Pure: the same seed and length give the same list of events."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random

EVERY_S = (6.0, 20.0)  # between two faults; a start of Spark takes about eight seconds
QUIET = timedelta(seconds=2)  # after the first commit
TOPICS: Mapping[str, int] = {"clicks": 3, "views": 2}  # partitions
_PORTION = (50, 3000)  # events before each fault
_BROKEN_MAX = 5  # of them undecodable


class Fault(StrEnum):
    """Kinds of faults, as a run says them."""

    KILL_DRIVER = "kill -9 of the driver"
    KILL_JVM = "kill -9 of Spark's JVM"
    KILL_WORKER = "kill -9 of a Python worker"
    KILL_SUPERVISOR = "kill -9 of the supervisor"
    PAUSE = "the driver stands still"
    DAMAGE = "the checkpoint is damaged, then kill -9"
    BROKER = "the broker is down"
    STORAGE = "storage fails and is slow"
    RETENTION = "retention takes records that were not read"
    RECREATE = "a topic is deleted and created again"


# What becomes of a checkpoint: see `damage.py`.
DAMAGES = (
    "newest offsets zeroed", "newest offsets cut", "newest offsets gone", "an older offsets file gone",
    "newest commit zeroed", "all commits gone", "metadata gone", "metadata of another query", "offsets edited",
    "all gone",
)  # fmt: skip
_SECONDS: Mapping[Fault, tuple[float, float]] = {
    Fault.PAUSE: (2.0, 15.0), Fault.BROKER: (2.0, 20.0), Fault.STORAGE: (5.0, 25.0),
}  # fmt: skip


@dataclass(frozen=True)
class Event:
    """A fault at a moment, and what is produced right before it."""

    at: timedelta  # since the begin, at the earliest
    fault: Fault
    what: str  # which topic, which damage; empty where there is no choice
    seconds: float  # how long it lasts, or 0
    events: int  # produced before it, to both topics
    broken: int
    seed: int  # of what is produced, and of choices among what is there by then

    def __str__(self) -> str:
        """One line, without what is produced."""
        return f"{self.fault}{f': {self.what}' if self.what else ''}{f', {self.seconds:.0f} s' if self.seconds else ''}"


def script(seed: int, lasts: timedelta) -> list[Event]:
    """Return the events of a run, in their order. Each fault comes once before any comes again."""
    rnd = Random(f"chaos/{seed}")  # noqa: S311 - no secret
    events: list[Event] = []
    deck: list[Fault] = []
    at_s = QUIET.total_seconds()
    while at_s < lasts.total_seconds():
        deck = deck or rnd.sample(list(Fault), len(Fault))
        fault = deck.pop()
        seconds = round(rnd.uniform(*_SECONDS[fault]), 1) if fault in _SECONDS else 0.0
        choices = {Fault.DAMAGE: DAMAGES, Fault.RETENTION: tuple(TOPICS), Fault.RECREATE: tuple(TOPICS)}.get(fault)
        what = rnd.choice(choices) if choices else ""
        count, broken = rnd.randint(*_PORTION), rnd.randint(0, _BROKEN_MAX)
        at = timedelta(seconds=round(at_s, 1))
        events.append(Event(at, fault, what, seconds, count, broken, rnd.getrandbits(32)))
        at_s += seconds + rnd.uniform(*EVERY_S)
    return events
