"""Reads a compose file as `docker compose` does, as far as the examples of the documentation go.

What it does not know it refuses, so that no line of an example is left out when a test plays it. The rules are those of
the Compose specification: https://github.com/compose-spec/compose-spec/blob/main/spec.md
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

Condition = Literal["service_started", "service_healthy", "service_completed_successfully"]
_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?:(?P<operator>:?[-?])(?P<word>[^}]*))?\})")
_DURATION = re.compile(r"(?:(\d+)m)?(?:(\d+)s)?")
_KEYS = {
    *("cap_drop", "command", "depends_on", "entrypoint", "environment", "healthcheck", "image", "mem_limit", "ports"),
    *("restart", "security_opt", "stop_grace_period", "volumes"),
}


class ComposeError(ValueError):
    """A compose file that `docker compose` would refuse, or that says more than is known here."""


@dataclass(frozen=True)
class Healthcheck:
    """A command that ends with 0 when its service is healthy. Times in seconds."""

    command: tuple[str, ...]
    interval_s: float
    timeout_s: float
    retries: int


@dataclass(frozen=True)
class Volume:
    """What a service sees at `target`: a file beside the compose file, or else a volume of that name."""

    source: str
    target: str
    is_read_only: bool

    @property
    def is_file(self) -> bool:
        return self.source.startswith(("./", "/"))


@dataclass(frozen=True)
class Service:
    """A service of a compose file. `entrypoint` is None where the image's own counts."""

    name: str
    image: str
    entrypoint: tuple[str, ...] | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    volumes: tuple[Volume, ...]
    ports: tuple[str, ...]
    depends_on: Mapping[str, Condition]
    healthcheck: Healthcheck | None
    stop_grace_s: float
    # As it stands in the file, variables filled in.
    document: Mapping[str, Any]


@dataclass(frozen=True)
class ComposeFile:
    """A compose file, its variables filled in from `.env` beside it."""

    path: Path
    services: Mapping[str, Service]
    volumes: frozenset[str]

    def file(self, volume: Volume) -> Path:
        """Return the file that a service is given."""
        return (self.path.parent / volume.source).resolve()

    def order(self) -> Iterator[Service]:
        """Yield the services, each behind those that it depends on. Raises ComposeError for a circle."""
        waiting = dict(self.services)
        while waiting:
            free = [service for service in waiting.values() if not service.depends_on.keys() & waiting.keys()]
            if not free:
                raise ComposeError(f"{', '.join(waiting)} wait for each other")
            for service in free:
                del waiting[service.name]
                yield service


def read_compose_file(path: Path) -> ComposeFile:
    """Read a file, and `.env` beside it. Raises ComposeError."""
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document = _fill(document, read_env_file(path.parent / ".env"))
    unknown = {key for key in document if not key.startswith("x-")} - {"name", "services", "volumes"}
    if unknown:
        raise ComposeError(f"nobody plays {', '.join(sorted(unknown))}")
    volumes = frozenset(document.get("volumes", {}))
    services = {name: _service(name, settings) for name, settings in document["services"].items()}
    for service in services.values():
        _check_names(service, services.keys(), volumes)
    return ComposeFile(path, services, volumes)


def read_env_file(path: Path) -> dict[str, str]:
    """Read lines NAME=value. A file that is not there has none."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _fill(value: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, variables) for item in value]
    return fill_variables(value, variables) if isinstance(value, str) else value


def fill_variables(text: str, variables: Mapping[str, str]) -> str:
    """Fill in ${NAME}, ${NAME:-default} and ${NAME:?error}; $$ is a $. Raises ComposeError."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        operator = match["operator"] or ""
        given = variables.get(match["name"])
        if given is not None and (given or not operator.startswith(":")):
            return given
        if operator.endswith("?"):
            raise ComposeError(f"{match['name']} is not set: {match['word']}")
        return match["word"] or ""

    if "$" in _VARIABLE.sub("", text):
        raise ComposeError(f"a $ that is no variable: {text}")
    return _VARIABLE.sub(value, text)


def _service(name: str, settings: Mapping[str, Any]) -> Service:
    unknown = settings.keys() - _KEYS
    if unknown:
        raise ComposeError(f"{name}: nobody plays {', '.join(sorted(unknown))}")
    dependencies = settings.get("depends_on", {})
    return Service(
        name=name,
        image=settings["image"],
        entrypoint=tuple(settings["entrypoint"]) if "entrypoint" in settings else None,
        command=tuple(settings.get("command", ())),
        environment={key: str(value) for key, value in settings.get("environment", {}).items()},
        volumes=tuple(_volume(text) for text in settings.get("volumes", ())),
        ports=tuple(settings.get("ports", ())),
        depends_on={other: dependency["condition"] for other, dependency in dependencies.items()},
        healthcheck=_healthcheck(settings["healthcheck"]) if "healthcheck" in settings else None,
        stop_grace_s=_seconds(settings.get("stop_grace_period", "10s")),
        document=settings,
    )


def _volume(text: str) -> Volume:
    source, target, *options = text.split(":")
    return Volume(source, target, options == ["ro"])


def _healthcheck(settings: Mapping[str, Any]) -> Healthcheck:
    form, *words = settings["test"]
    commands = {"CMD": tuple(words), "CMD-SHELL": ("sh", "-c", *words)}
    return Healthcheck(
        commands[form], _seconds(settings["interval"]), _seconds(settings["timeout"]), settings["retries"]
    )


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if not match or not text:
        raise ComposeError(f"{text} is no time")
    return 60 * int(match[1] or 0) + int(match[2] or 0)


def _check_names(service: Service, services: Any, volumes: frozenset[str]) -> None:
    missing = [name for name in service.depends_on if name not in services]
    missing += [volume.source for volume in service.volumes if not volume.is_file and volume.source not in volumes]
    if missing:
        raise ComposeError(f"{service.name} names {', '.join(missing)}, and there is none")
