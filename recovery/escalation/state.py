"""What a supervisor remembers of a pipeline, kept beside its checkpoints so that the next one goes on there."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from recovery.escalation.decide import Attempt, State
from recovery.escalation.levels import RecoveryLevel
from writer.storage.base import Store

NAME = "_recovery.json"  # beside the runs, whose names are numbers
_FORMAT = 1


@dataclass(frozen=True)
class Failure:
    """The last failure of a pipeline, as it was understood."""

    at: datetime
    exit_code: int
    row: str
    level: RecoveryLevel | None
    halt: bool
    said: str
    error: str  # the driver's own sentence; empty when it said nothing
    run: int | None = None
    frontier: str = "held"


@dataclass(frozen=True)
class Memory:
    """All that is kept of one pipeline."""

    state: State = field(default_factory=State)
    failure: Failure | None = None
    action: str = ""  # what was decided last, and why
    recovered_s: Mapping[str, float] = field(default_factory=dict)  # level → seconds from failure to commit, the last


def read(store: Store) -> Memory:
    """Read it; a new one where there is none, or none that can be read. Raises StoreError."""
    found = store.read(NAME)
    if found is None:
        return Memory()
    try:
        raw = json.loads(found.content)
        return _memory(raw) if raw["format"] == _FORMAT else Memory()
    except (ValueError, KeyError, TypeError):
        return Memory()  # it is a memory of budgets, not of data: without it recovery begins at the first level


def write(store: Store, memory: Memory) -> None:
    """Keep it. Raises StoreError."""
    store.put(NAME, (json.dumps({"format": _FORMAT, **document(memory)}, ensure_ascii=False) + "\n").encode())


def forgiven(memory: Memory) -> Memory:
    """Return it for a supervisor that begins: a person, or the platform, wants it tried again."""
    return replace(memory, state=replace(memory.state, halted="", healthy_since=None))


def document(memory: Memory) -> dict[str, Any]:
    """Describe it as JSON values."""
    state, failure = memory.state, memory.failure
    return {
        "state": {
            "rung": None if state.level is None else state.level.name,
            "attempts": [
                {"rung": a.level.name, "at": a.at.isoformat(), "row": a.row, "run": a.run} for a in state.attempts
            ],
            "streak": state.streak,
            "healthy_since": None if state.healthy_since is None else state.healthy_since.isoformat(),
            "halted": state.halted,
        },
        "failure": None
        if failure is None
        else {
            **{name: value for name, value in asdict(failure).items() if name != "level"},
            "at": failure.at.isoformat(),
            "rung": None if failure.level is None else failure.level.name,  # its name on storage
        },
        "action": memory.action,
        "recovered_seconds": dict(memory.recovered_s),
    }


def _memory(raw: Mapping[str, Any]) -> Memory:
    state, failure = raw["state"], raw["failure"]
    attempts = tuple(
        Attempt(RecoveryLevel[a["rung"]], datetime.fromisoformat(a["at"]), a["row"], a["run"])
        for a in state["attempts"]
    )
    return Memory(
        State(_level(state["rung"]), attempts, state["streak"], _instant(state["healthy_since"]), state["halted"]),
        None
        if failure is None
        else Failure(
            **{name: value for name, value in failure.items() if name not in ("at", "rung")},
            at=datetime.fromisoformat(failure["at"]),
            level=_level(failure["rung"]),
        ),
        raw["action"],
        raw["recovered_seconds"],
    )


def _level(name: str | None) -> RecoveryLevel | None:
    return None if name is None else RecoveryLevel[name]


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
