"""Stores the autoscaler's memory and last decisions, one object beside the pipelines' runs.

It is replaced whole, before anything is asked of the driver: a new process asks for the same again.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from autoscaler.decision.events import Event
from autoscaler.decision.facts import Facts
from autoscaler.decision.history import Memory
from writer.core import logging
from writer.core.errors import ConfigError
from writer.storage.base import Store

NAME = "autoscaler.json"


@dataclass(frozen=True)
class AutoscalerState:
    """The stored state."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    memory: Memory
    events: tuple[Event, ...] = ()  # newest last


_AS_JSON: TypeAdapter[AutoscalerState] = TypeAdapter(AutoscalerState)


def read_state(store: Store) -> AutoscalerState:
    """Read the stored state; if it is unreadable, start with an empty one and a warning: it only affects timing."""
    try:
        found = store.read(NAME)
        return AutoscalerState(Memory()) if found is None else _AS_JSON.validate_json(found.content)
    except (OSError, ValidationError) as error:
        logging.warning(
            "autoscaler_state_unreadable", location=f"{store.location}/{NAME}", error=str(error).splitlines()[0]
        )
        return AutoscalerState(Memory())


def write_state(store: Store, kept: AutoscalerState) -> None:
    """Replace the stored state. Raises OSError."""
    store.put(NAME, _AS_JSON.dump_json(kept, indent=1) + b"\n")


_T = TypeVar("_T", Facts, Memory)


def write_file(kept: Facts | Memory, path: Path) -> None:
    """Write a file that `read_file` reads."""
    path.write_text(json.dumps(to_jsonable_python(kept), indent=1) + "\n", encoding="utf-8")


def read_file(kind: type[_T], path: Path) -> _T:
    """Read a file. Raises ConfigError with what is wrong in it."""
    what = kind.__name__.lower()
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is not there; it should hold {what} as JSON (docs/AUTOSCALING.md)") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise ConfigError(f"{path} holds no {what} of the autoscaler: {wrong}") from error
