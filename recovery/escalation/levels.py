"""Recovery levels: what can be done about a pipeline that failed, from the mildest to the last resort."""

from enum import IntEnum


class RecoveryLevel(IntEnum):
    """A higher level gives up more of what was kept; only the last one gives up records, and writes down which."""

    WAIT = 0  # storage, broker or registry is down: the same start again, with pauses, for ever; never climb for it
    RESTART = 1  # the same checkpoint again
    REPAIR = 2  # mend the checkpoint in place, when the table proves the batch in question uncommitted
    NEW_RUN = 3  # a new run from the table's frontier: exact, needs no checkpoint
    WALK_BACK = 4  # the table's frontier cannot be told: from the newest checkpoint that agrees with the files
    LATEST = 5  # skip to the end of Kafka's log: one commit moves the frontier and carries the gap

    @property
    def label(self) -> str:
        """As in tables and logs: L3."""
        return f"L{self.value}"
