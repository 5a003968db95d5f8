"""The state that a supervisor keeps of a pipeline, beside its checkpoints, for the next supervisor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from recovery.escalation.decide import State
from recovery.escalation.error_catalogue import Verdict
from recovery.escalation.levels import Instant, StoredLevel
from writer.storage.base import Store

NAME = "_recovery.json"  # beside the runs, whose names are numbers
_FORMAT = 1


@dataclass(frozen=True)
class Failure:
    """The last failure of a pipeline, as it was understood."""

    at: Instant
    exit_code: int
    row: str
    halt: bool
    message: str
    error: str  # the driver's own sentence; empty when it said nothing
    run: int | None
    frontier: str
    level: StoredLevel | None

    @property
    def verdict(self) -> Verdict:
        """What it was understood as."""
        return Verdict(self.row, self.level, self.halt, self.message)


@dataclass(frozen=True)
class Memory:
    """The stored state of one pipeline."""

    state: State = field(default_factory=State)
    failure: Failure | None = None
    action: str = ""  # what was decided last, and why
    # Level → seconds from failure to commit, the last.
    recovered_s: Annotated[Mapping[str, float], Field(alias="recovered_seconds")] = field(default_factory=dict)


_JSON = TypeAdapter(Memory)


def read(store: Store) -> Memory:
    """Read it; a new one where there is none, or none that can be read. Raises StoreError."""
    found = store.read(NAME)
    if found is None:
        return Memory()
    try:
        raw = json.loads(found.content)
        blank = document(Memory())
        whole = blank.keys() <= raw.keys() and blank["state"].keys() <= raw["state"].keys()
        return _JSON.validate_python(raw) if whole and raw["format"] == _FORMAT else Memory()
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
    values: dict[str, Any] = _JSON.dump_python(memory, mode="json", by_alias=True)
    return values
