"""Recovery levels, from a pause to skipping records."""

from datetime import datetime
from enum import IntEnum
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer


class RecoveryLevel(IntEnum):
    """A higher level gives up more of what was kept; only the last one gives up records, and writes down which.

    No level has the number 2: repairing a checkpoint in place gains nothing over a new run (ADR 55).
    """

    # Storage, broker or registry is down: the same start again, with pauses, for ever, without escalation.
    WAIT = 0
    # The same checkpoint again.
    RESTART = 1
    # A new run from the table's frontier: exact, needs no checkpoint.
    NEW_RUN = 3
    # The table's frontier is not known: from the newest checkpoint that agrees with the files.
    WALK_BACK = 4
    # Skip to the end of Kafka's log: one commit moves the frontier and carries the gap.
    LATEST = 5

    @property
    def label(self) -> str:
        """The level as tables and logs show it: L3."""
        return f"L{self.value}"


def _parse_level(name: str) -> RecoveryLevel:
    if name not in RecoveryLevel.__members__:
        raise ValueError(f"{name!r} is no recovery level")
    return RecoveryLevel[name]


# As they are kept on storage: a level by its name, an instant with its offset.
StoredLevel = Annotated[RecoveryLevel, BeforeValidator(_parse_level), PlainSerializer(lambda level: level.name)]
Instant = Annotated[datetime, PlainSerializer(datetime.isoformat)]
