"""What outlives the autoscaler's process: its memory and its last decisions, one object beside the pipelines' runs.

It is replaced whole, before anything is asked of the driver: who starts anew asks for what was asked for.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from autoscaler.events import Event
from autoscaler.memory import Memory
from writer import log
from writer.stores.base import Store

NAME = "autoscaler.json"


@dataclass(frozen=True)
class Kept:
    """All that is kept."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    memory: Memory
    events: tuple[Event, ...] = ()  # newest last


_AS_JSON: TypeAdapter[Kept] = TypeAdapter(Kept)


def read(store: Store) -> Kept:
    """Read what is kept; what cannot be read is begun anew, with a warning: it only decides how soon."""
    try:
        found = store.read(NAME)
        return Kept(Memory()) if found is None else _AS_JSON.validate_json(found.content)
    except (OSError, ValidationError) as error:
        log.warning("scaling_not_remembered", location=f"{store.location}/{NAME}", error=str(error).splitlines()[0])
        return Kept(Memory())


def write(store: Store, kept: Kept) -> None:
    """Replace what is kept. Raises OSError."""
    store.put(NAME, _AS_JSON.dump_json(kept, indent=1) + b"\n")


def as_json(events: tuple[Event, ...]) -> Any:
    """Return events as JSON values."""
    return TypeAdapter(tuple[Event, ...]).dump_python(events, mode="json")
