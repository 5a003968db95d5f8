"""What many commands take, in the same words: the file, one pipeline or several, JSON, a time."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from writer.core.errors import ConfigError

ConfigFile = Annotated[Path, typer.Argument(help="Configuration file (YAML).")]
Pipelines = Annotated[list[str] | None, typer.Option("--pipeline", help="Only this pipeline; may be repeated.")]
OnePipeline = Annotated[
    str | None, typer.Option("--pipeline", help="Which pipeline; may be left out when there is one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
By = Annotated[str | None, typer.Option("--by", help="Who. Default: this user at this machine.", show_default=False)]


def time_of(option: str, text: str | None) -> datetime | None:
    """Read a time from the command line; UTC where it names no zone. Raises BadParameter."""
    try:
        return None if text is None else _time(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-11-20T05:00Z", param_hint=option) from error


def version_or_time(option: str, text: str) -> int | datetime:
    """Read a table version, or a time as `time_of` does. Raises ConfigError."""
    try:
        return int(text) if text.isdigit() else _time(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is neither a version nor a time; write 120 or 2026-11-20T05:00Z"
        ) from error


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
