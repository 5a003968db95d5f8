"""The schedule of a chaos run. Pure: the same seed and length give the same list of events."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random

EVERY_S = (6.0, 20.0)  # between two faults; a start of Spark takes about eight seconds
QUIET = timedelta(seconds=2)  # after the first commit
TOPICS: Mapping[str, int] = {"clicks": 3, "views": 2}  # partitions
_EVENTS_PER_FAULT = (50, 3000)  # events before each fault
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
    "newest offsets zeroed",
    "newest offsets cut",
    "newest offsets gone",
    "an older offsets file gone",
    "newest commit zeroed",
    "all commits gone",
    "metadata gone",
    "metadata of another query",
    "offsets edited",
    "all gone",
)
_SECONDS: Mapping[Fault, tuple[float, float]] = {
    Fault.PAUSE: (2.0, 15.0),
    Fault.BROKER: (2.0, 20.0),
    Fault.STORAGE: (5.0, 25.0),
}


_TARGETS: Mapping[Fault, tuple[str, ...]] = {
    Fault.DAMAGE: DAMAGES,
    Fault.RETENTION: tuple(TOPICS),
    Fault.RECREATE: tuple(TOPICS),
}


@dataclass(frozen=True)
class Event:
    """A fault at a moment, and what is produced right before it."""

    offset: timedelta  # since the begin, at the earliest
    fault: Fault
    target: str  # which topic, which damage; empty where there is no choice
    seconds: float  # how long it lasts, or 0
    events: int  # produced before it, to both topics
    broken: int
    seed: int  # of what is produced, and of choices among what is there by then

    def __str__(self) -> str:
        """One line, without what is produced."""
        line = str(self.fault)
        if self.target:
            line += f": {self.target}"
        if self.seconds:
            line += f", {self.seconds:.0f} s"
        return line


def script(seed: int, duration: timedelta) -> list[Event]:
    """Return the events of a run, in their order. Each fault comes once before any comes again."""
    rnd = Random(f"chaos/{seed}")  # noqa: S311 - no secret
    events: list[Event] = []
    deck: list[Fault] = []
    offset_s = QUIET.total_seconds()
    while offset_s < duration.total_seconds():
        deck = deck or rnd.sample(list(Fault), len(Fault))
        fault = deck.pop()
        seconds = 0.0
        if fault in _SECONDS:
            seconds = round(rnd.uniform(*_SECONDS[fault]), 1)
        target = ""
        if targets := _TARGETS.get(fault):
            target = rnd.choice(targets)
        count = rnd.randint(*_EVENTS_PER_FAULT)
        broken = rnd.randint(0, _BROKEN_MAX)
        offset = timedelta(seconds=round(offset_s, 1))
        events.append(Event(offset, fault, target, seconds, count, broken, rnd.getrandbits(32)))
        offset_s += seconds + rnd.uniform(*EVERY_S)
    return events
