"""The state that a supervisor keeps of a pipeline, beside its checkpoints, for the next supervisor."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from headrace.recovery.escalation.decide import State
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import Instant, StoredLevel
from headrace.writer.clients.supervisor_record import NAME, add_error
from headrace.writer.storage.base import Store

_FORMAT = 1


@dataclass(frozen=True)
class Failure:
    """The last failure of a pipeline, as it was understood."""

    time: Annotated[Instant, Field(alias="at")]
    exit_code: int
    row: str
    halt: bool
    message: str
    # The driver's own sentence; empty when it said nothing.
    error: str
    run: int | None
    frontier: str
    level: StoredLevel | None

    @property
    def verdict(self) -> Verdict:
        """The verdict on it."""
        return Verdict(self.row, self.level, self.halt, self.message)


@dataclass(frozen=True)
class Memory:
    """The stored state of one pipeline."""

    state: State = field(default_factory=State)
    failure: Failure | None = None
    # What was decided last, and why.
    action: str = ""
    # Level → seconds from failure to commit, the last time.
    recovered_s: Annotated[Mapping[str, float], Field(alias="recovered_seconds")] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        values: dict[str, Any] = _JSON.dump_python(self, mode="json", by_alias=True)
        return values

    @property
    def halt_reason(self) -> str:
        """Why nothing is done any more, with the driver's own sentence; empty while something is."""
        if not self.state.halted or self.failure is None:
            return self.state.halted
        return add_error(self.state.halted, self.failure.error)


_JSON = TypeAdapter(Memory)


def read(store: Store) -> Memory:
    """Read the memory of a pipeline; a new one where there is none, or none that can be read. Raises StoreError.

    It is a memory of budgets, not of data: without it recovery begins at the first level.
    """
    stored = store.read(NAME)
    if stored is None:
        return Memory()
    try:
        raw = json.loads(stored.content)
        blank = Memory().to_json()
        is_complete = blank.keys() <= raw.keys() and blank["state"].keys() <= raw["state"].keys()
        if not is_complete or raw["format"] != _FORMAT:
            return Memory()
        return _JSON.validate_python(raw)
    except (ValueError, KeyError, TypeError):
        return Memory()


def write(store: Store, memory: Memory) -> None:
    """Write the memory of a pipeline. Raises StoreError."""
    store.put(NAME, (json.dumps({"format": _FORMAT, **memory.to_json()}, ensure_ascii=False) + "\n").encode())


def clear_halt(memory: Memory) -> Memory:
    """Return it for a supervisor that begins: a person, or the platform, wants the pipeline tried again."""
    return replace(memory, state=replace(memory.state, halted="", healthy_since=None))
