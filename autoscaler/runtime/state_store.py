"""Stores the autoscaler's memory and last decisions, one object beside the pipelines' runs.

It is replaced whole, before anything is asked of the driver: a new process asks for the same again.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from headrace.autoscaler.decision.events import Event
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.pages import page_address
from headrace.writer.storage.base import Store

NAME = "autoscaler.json"
# A message names no more errors than these.
_ERRORS_MAX = 3


@dataclass(frozen=True)
class AutoscalerState:
    """The stored state. The names of the fields are the keys of its JSON."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    memory: Memory
    # Newest last.
    events: tuple[Event, ...] = ()


_STATE_ADAPTER: TypeAdapter[AutoscalerState] = TypeAdapter(AutoscalerState)


def read_state(store: Store) -> AutoscalerState:
    """Read the stored state; if it is unreadable, start with an empty one and a warning: it only affects timing."""
    try:
        stored = store.read(NAME)
        if stored is None:
            return AutoscalerState(Memory())
        return _STATE_ADAPTER.validate_json(stored.content)
    except (OSError, ValidationError) as error:
        logging.warning(
            "autoscaler_state_unreadable", location=f"{store.location}/{NAME}", error=str(error).splitlines()[0]
        )
        return AutoscalerState(Memory())


def write_state(store: Store, state: AutoscalerState) -> None:
    """Replace the stored state. Raises OSError."""
    store.put(NAME, _STATE_ADAPTER.dump_json(state, indent=1) + b"\n")


_T = TypeVar("_T", Facts, Memory)


def write_file(content: Facts | Memory, path: Path) -> None:
    """Write a file that `read_file` reads."""
    path.write_text(json.dumps(to_jsonable_python(content), indent=1) + "\n", encoding="utf-8")


def read_file(kind: type[_T], path: Path) -> _T:
    """Read facts or a memory from a file. Raises ConfigError with what is wrong in it."""
    name = kind.__name__.lower()
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} is not there; it should hold {name} as JSON ({page_address('docs/AUTOSCALING.md')})"
        ) from error
    except ValidationError as error:
        errors = [f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:_ERRORS_MAX]]
        raise ConfigError(f"{path} holds no {name} of the autoscaler: {'; '.join(errors)}") from error
