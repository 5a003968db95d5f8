"""Facts and memory as JSON: what is written down to be explained later, or carried over a restart."""

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from autoscaler.facts import Facts
from autoscaler.memory import Memory
from writer.errors import ConfigError

_Kept = TypeVar("_Kept", Facts, Memory)


def as_json(kept: Facts | Memory) -> Any:
    """Return JSON values."""
    return TypeAdapter(type(kept)).dump_python(kept, mode="json")


def from_json(kind: type[_Kept], text: str | bytes) -> _Kept:
    """Read what `as_json` gave. Raises ValueError."""
    return TypeAdapter(kind).validate_json(text)


def write(kept: Facts | Memory, path: Path) -> None:
    """Write a file that `read` reads."""
    path.write_text(json.dumps(as_json(kept), indent=1) + "\n", encoding="utf-8")


def read(kind: type[_Kept], path: Path) -> _Kept:
    """Read a file. Raises ConfigError with what is wrong in it."""
    what = kind.__name__.lower()
    try:
        return from_json(kind, path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"{path} is not there; it should hold {what} as JSON (docs/AUTOSCALING.md)") from error
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise ConfigError(f"{path} holds no {what} of the autoscaler: {wrong}") from error
