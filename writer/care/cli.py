"""The verbs with which people take care of a pipeline and its table."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

_Config = Annotated[Path, typer.Argument(help="Configuration file (YAML).")]
_Pipelines = Annotated[list[str] | None, typer.Option("--pipeline", help="Only this pipeline; may be repeated.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document.")]


def pause(
    config: _Config,
    pipeline: _Pipelines = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever finds it paused.")] = "",
    by: Annotated[
        str | None, typer.Option("--by", help="Who asks. Default: this user at this machine.", show_default=False)
    ] = None,
    as_json: _Json = False,
) -> None:
    """Hold the pipelines: a driver finishes its batch, then commits nothing until `headrace resume`. It stays healthy.

    A start waits, too; with `run --once` it ends with exit 5. The lag goes on being measured, and SIGTERM still drains.
    Verbs that people run, such as `dlq replay` and `delete`, are not held.

    Exit codes: 0 paused, by this or an earlier call, 1 the storage does not answer, 2 configuration.
    """
    from writer.care import holding
    from writer.file import load
    from writer.surface.lines import console

    settings, now = load(config), datetime.now(UTC)
    names = settings.chosen(pipeline)
    raise typer.Exit(holding.paused(settings, names, by=by, reason=reason, now=now, as_json=as_json, out=console()))


def resume(config: _Config, pipeline: _Pipelines = None, as_json: _Json = False) -> None:
    """End the pause of the pipelines. A driver goes on within seconds.

    Exit codes: 0 no pipeline is paused any more, 1 the storage does not answer, 2 configuration.
    """
    from writer.care import holding
    from writer.file import load
    from writer.surface.lines import console

    settings = load(config)
    raise typer.Exit(holding.resumed(settings, settings.chosen(pipeline), as_json=as_json, out=console()))


def retention(
    config: _Config,
    pipeline: _Pipelines = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is due.")] = False,
    as_json: _Json = False,
) -> None:
    """Drop the buckets that ended longer ago than `retention` says. A running driver does so by itself.

    Each entry of the table's log says how many rows it takes, so `audit` still adds up.

    Exit codes: 0 done or shown, 1 the storage does not answer, 2 configuration.
    """
    from writer.care import retiring
    from writer.file import load
    from writer.surface.lines import console

    settings, now = load(config), datetime.now(UTC)
    names = settings.chosen(pipeline)
    raise typer.Exit(retiring.retention(settings, names, dry_run=dry_run, now=now, as_json=as_json, out=console()))


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    app.command()(pause)
    app.command()(resume)
    app.command()(retention)
