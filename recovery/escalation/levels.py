"""Recovery levels, from a pause to skipping records."""

from datetime import datetime
from enum import IntEnum
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer


class RecoveryLevel(IntEnum):
    """A higher level gives up more of what was kept; only the last one gives up records, and writes down which.

    No level has the number 2: repairing a checkpoint in place gains nothing over a new run (ADR 55).
    """

    WAIT = 0  # storage, broker or registry is down: the same start again, with pauses, for ever; never climb for it
    RESTART = 1  # the same checkpoint again
    NEW_RUN = 3  # a new run from the table's frontier: exact, needs no checkpoint
    WALK_BACK = 4  # the table's frontier is not known: from the newest checkpoint that agrees with the files
    LATEST = 5  # skip to the end of Kafka's log: one commit moves the frontier and carries the gap

    @property
    def label(self) -> str:
        """As in tables and logs: L3."""
        return f"L{self.value}"


def _named(name: str) -> RecoveryLevel:
    if name not in RecoveryLevel.__members__:
        raise ValueError(f"{name!r} is no recovery level")
    return RecoveryLevel[name]


# As they are kept on storage: a level by its name, an instant with its offset.
StoredLevel = Annotated[RecoveryLevel, BeforeValidator(_named), PlainSerializer(lambda level: level.name)]
Instant = Annotated[datetime, PlainSerializer(datetime.isoformat)]
