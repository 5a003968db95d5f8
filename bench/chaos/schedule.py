"""The schedule of a chaos run. Pure: the same seed and length give the same list of events."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from random import Random

# Seconds between two faults; a start of Spark takes about eight seconds.
EVERY_S = (6.0, 20.0)
# No fault is injected so soon after the first commit.
QUIET = timedelta(seconds=2)
# The partitions of each topic.
TOPICS: Mapping[str, int] = {"clicks": 3, "views": 2}
# The least and the most events that are produced before each fault.
_EVENTS_PER_FAULT = (50, 3000)
# The most of these events that cannot be decoded.
_BROKEN_MAX = 5


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

    # The fault comes this long after the beginning, or later.
    offset: timedelta
    fault: Fault
    # The topic or the damage; empty where the fault has no choice.
    target: str
    # The duration of the fault, or 0.
    seconds: float
    # Events that are produced to both topics before the fault.
    events: int
    broken: int
    # The seed of the events, and of choices that depend on the state of the stack.
    seed: int

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
