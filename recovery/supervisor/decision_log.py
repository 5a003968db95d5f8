"""The newest decisions of a supervisor, by pipeline, for the driver's page."""

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from headrace.writer.core.text import iso
from headrace.writer.driver.supervisor_channel import ChannelFolder

# On the driver's page, for each pipeline.
_DECISIONS_SHOWN = 20


class DecisionLog:
    """Shows decisions on the driver's page, newest first."""

    def __init__(self, folder: ChannelFolder) -> None:
        self._folder = folder
        self._decisions: dict[str, deque[Mapping[str, str]]] = {}

    def show(
        self, pipeline: str, decision: str, reason: str, next_status: str, failed_at: datetime | None = None
    ) -> None:
        """Show a decision. `failed_at`: of the failure that led to it. A disk that does not take it stops nothing."""
        decisions = self._decisions.setdefault(pipeline, deque(maxlen=_DECISIONS_SHOWN))
        decisions.appendleft(
            {
                "at": datetime.now(UTC).isoformat(timespec="seconds"),
                "decision": decision,
                "reason": reason,
                "from": decisions[0]["to"] if decisions else "running",
                "to": next_status,
                "failed_at": "" if failed_at is None else iso(failed_at),
            }
        )
        self._write()

    def forget(self, pipeline: str) -> None:
        """Show nothing any more of a pipeline that has gone: one that comes again by its name has another story."""
        if self._decisions.pop(pipeline, None) is not None:
            self._write()

    def _write(self) -> None:
        with suppress(OSError):
            self._folder.decide(self._decisions)
