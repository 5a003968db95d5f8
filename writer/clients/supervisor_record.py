"""Reads what a supervisor decided of a pipeline: whether it gave the pipeline up, or leaves it to another process."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.writer.core.text import iso
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings

# `headrace.recovery.escalation.state` writes it, beside the runs, whose names are numbers.
NAME = "_recovery.json"
HALTED = "halted"
# Where a decision leads to, as HALTED.
WAITS = "waits"


@dataclass(frozen=True)
class HaltRecord:
    """A supervisor gave a pipeline up: a person must act."""

    # When it failed last.
    since: datetime
    reason: str


@dataclass(frozen=True)
class LeaseWait:
    """Another process has the lease of a pipeline: this one goes on by itself when that process has ended."""

    since: datetime
    reason: str

    def to_json(self) -> dict[str, str]:
        """Describe it as JSON values."""
        return {"since": iso(self.since), "reason": self.reason}


def find_halt(checkpoints: str, pipeline: str, stores: StoreSettings | None = None) -> HaltRecord | None:
    """Return why a pipeline was given up last; None: it was not, no supervisor ran, or nothing can be read there."""
    with suppress(OSError):
        stored = store_at(f"{checkpoints.rstrip('/')}/{pipeline}", stores).read(NAME)
        if stored is not None:
            return _parse_halt(stored.content)
    return None


def halt_of_decisions(decisions: Sequence[Mapping[str, Any]]) -> HaltRecord | None:
    """Return the halt of the newest decision of a supervisor, the first one; None: it decided otherwise."""
    if not decisions or decisions[0]["to"] != HALTED:
        return None
    return HaltRecord(datetime.fromisoformat(decisions[0]["failed_at"]), decisions[0]["reason"])


def add_error(reason: str, error: str) -> str:
    """Return the reason of a decision with the driver's own sentence, which it may point to. `error`: or empty."""
    if not error or error in reason:
        return reason
    return f"{reason} ({error})"


def wait_of_decisions(decisions: Sequence[Mapping[str, Any]]) -> LeaseWait | None:
    """Return the wait of the newest decision of a supervisor, the first one; None: it decided otherwise."""
    if not decisions or decisions[0]["to"] != WAITS:
        return None
    return LeaseWait(datetime.fromisoformat(decisions[0]["at"]), decisions[0]["reason"])


def _parse_halt(content: bytes) -> HaltRecord | None:
    """Read the halt of a record; None: it has none, or is of another format."""
    try:
        document = json.loads(content)
        reason = document["state"][HALTED]
        if not reason:
            return None
        # A failure led to it.
        failure = document["failure"]
        return HaltRecord(datetime.fromisoformat(failure["at"]), add_error(reason, failure["error"]))
    except (ValueError, KeyError, TypeError):
        return None
