"""Command-line options that many commands share: the file, pipelines, tables, a time."""

import getpass
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.writer.core.config_location import SHOWN, default_config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.units import duration, parse_instant


def config_argument(meaning: str = "Configuration file (YAML).") -> Any:
    """Return the argument for a configuration file that may be left out."""
    return typer.Argument(help=meaning, default_factory=default_config, show_default=SHOWN)


ConfigFile = Annotated[Path, config_argument()]
Pipelines = Annotated[list[str] | None, typer.Option("--pipeline", help="Only this pipeline; may be repeated.")]
WatchConfig = Annotated[
    bool, typer.Option("--watch-config", help="Read the file again whenever it changes, not only at SIGHUP.")
]
OnePipeline = Annotated[
    str | None, typer.Option("--pipeline", help="Which pipeline; may be left out when there is one.")
]

OneTarget = Annotated[
    str | None, typer.Option("--target", help="Which table of a pipeline with a route: the name that goes there.")
]
OnlyTarget = Annotated[
    str | None,
    typer.Option(
        "--target", help="Only this table of a pipeline with a route: the name that goes there. Default: all."
    ),
]

_BUCKET_FORMS = "hour=2026-11-20T05, 2026-11-20T05, a day 2026-11-20, or a range 2026-11-20T05..2026-11-20T09"


def buckets_help(meaning: str) -> str:
    """Return the help of what takes buckets, in the forms that `parse_buckets` reads."""
    return f"{meaning}: {_BUCKET_FORMS}."


OnlyBuckets = Annotated[
    list[str] | None, typer.Option("--bucket", help=f"{buckets_help('Only these buckets')} May be repeated.")
]

OfRaw = Annotated[bool, typer.Option("--raw", help="The raw table of the pipeline, in place of its table.")]

By = Annotated[str | None, typer.Option("--by", help="Who. Default: this user at this machine.", show_default=False)]


Tasks = Annotated[
    int | None,
    typer.Option(
        "--tasks",
        min=1,
        help="How many tasks fetch, decode and write at once, each in a process of its own; 1: in the command's own. "
        "Default: the cores that it may use.",
        show_default=False,
    ),
]


def default_author() -> str:
    """Return this user at this machine, as an entry or a file names who asked for it."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


def duration_of(option: str, text: str) -> timedelta:
    """Read a duration from the command line. Raises BadParameter."""
    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def time_of(option: str, text: str | None) -> datetime | None:
    """Read a time from the command line; UTC where it names no zone. Raises BadParameter."""
    if text is None:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-11-20T05:00Z", param_hint=option) from error


def version_or_time(option: str, text: str) -> int | datetime:
    """Read a table version, or a time as `time_of` does. Raises ConfigError."""
    try:
        return int(text) if text.isdecimal() else parse_instant(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} {text!r} is neither a version nor a time; write 120 or 2026-11-20T05:00Z"
        ) from error
