"""Loads the configuration file: replaces references, and reports each error in one line.

`${env:NAME}` and `${file:/path}` stand for what is looked up when the file is read, so that no secret stands in it.
"""

import os
import re
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from writer.config.base import laid_over
from writer.config.location import MISSING
from writer.config.pipelines import Config
from writer.core import retired
from writer.core.errors import ConfigError

VARIABLE = "HEADRACE_CONFIG_OVERLAY"
SECTIONS = ("autoscaler", "http", "spark", "supervisor")
NEEDS = f"it may have the sections {', '.join(SECTIONS)}"


def beneath(settings: dict[str, Any], place: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what is told, and beneath it what the place says. Raises ConfigError for a section that is no place's."""
    if foreign := sorted(map(str, place.keys() - set(SECTIONS))):
        raise ConfigError(
            f"{name}, which {VARIABLE} names, has {', '.join(foreign)}; {NEEDS}. Move the rest to the pipelines' file."
        )
    return laid_over(place, settings)


_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")


def load(path: Path) -> Config:
    """Read and check a configuration file, and what the place decides. Raises ConfigError, one line for each fault."""
    required = [name for name, field in Config.model_fields.items() if field.is_required()]
    needs, read = f"it needs the keys {', '.join(required)}", str(path)
    raw = _mapping(path, needs, MISSING)
    if given := os.environ.get(VARIABLE):
        read = f"{path}, with {given} beneath it,"
        raw = beneath(raw, _mapping(Path(given), NEEDS, f"Correct {VARIABLE}, or unset it."), given)
    return checked(raw, read)


def checked(raw: dict[str, Any], read: str) -> Config:
    """Check a configuration. `read`: what it is, for messages. Raises ConfigError, one line for each fault."""
    if renamed := retired.in_config(raw):
        raise ConfigError(
            "\n".join([f"{read} uses retired names (docs/UPGRADES.md):", *(f"  {one}" for one in renamed)])
        )
    looked_up: dict[str, str] = {}
    try:
        return Config.model_validate(_resolved(raw, looked_up))
    except RecursionError as error:
        raise ConfigError(f"{read} cannot be used: an alias (*) stands inside what it names (&)") from error
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, e['loc'])) or 'file'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        raise ConfigError(_masked("\n".join([f"{read} cannot be used:", *lines]), looked_up)) from None


def _mapping(path: Path, needs: str, fix: str) -> dict[str, Any]:
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. {fix}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not YAML: {_fault(error)}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} is empty or not a mapping; {needs}")
    return raw


def _fault(error: yaml.YAMLError | UnicodeDecodeError) -> str:
    """Return where a file stops being YAML, in one line."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def _resolved(value: Any, looked_up: dict[str, str]) -> Any:
    """Replace the references, and remember in `looked_up` by what: text → reference."""
    if isinstance(value, dict):
        return {key: _resolved(item, looked_up) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, looked_up) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        text = _look_up(*match.groups())
        looked_up[text] = match[0]
        return text

    return _REFERENCE.sub(replacement, value)


def _masked(message: str, looked_up: dict[str, str]) -> str:
    """Put references back in place of their values, which may be secrets."""
    for text in sorted(filter(None, looked_up), key=len, reverse=True):
        for shown in (text, repr(text)[1:-1]):
            message = message.replace(shown, looked_up[text])
    return message


def _look_up(kind: str, name: str) -> str:
    if kind == "env":
        if name not in os.environ:
            raise ConfigError(f"the configuration wants the environment variable {name}, which is not set. Set it.")
        return os.environ[name]
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(
            f"the configuration wants the file {name}: {error.strerror}. Create it, or correct the reference."
        ) from error
