"""The verbs `buckets` and `wait` of the command."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer

from writer.options import ConfigFile, OnePipeline, Pipelines

_Json = Annotated[bool, typer.Option("--json", help="JSON, for a machine.")]


def buckets(
    config: ConfigFile,
    pipeline: Pipelines = None,
    state: Annotated[
        Literal["open", "closed", "sealed", "reopened"] | None,
        typer.Option("--state", help="Only buckets in this state.", show_default=False),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only buckets that end after this time: 2026-11-20T05:00Z.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show the buckets that have rows: open, closed, sealed or reopened, with the watermark. Reads the lake only.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration, or there is no table yet.
    """
    from writer.file import load
    from writer.surface import buckets as verb
    from writer.surface.lines import console

    settings = load(config)
    names, after = settings.chosen(pipeline), None if since is None else _time(since)
    raise typer.Exit(verb.listed(settings, names, state=state, since=after, as_json=as_json, out=console()))


def wait(
    config: ConfigFile,
    sealed: Annotated[
        str, typer.Option("--sealed", help="The bucket: 2026-11-20T05, hour=2026-11-20T05, 2026-11-20T05:00Z.")
    ],
    pipeline: OnePipeline = None,
    version: Annotated[int, typer.Option("--version", min=1, help="This version of it, or a newer one.")] = 1,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "2 h",
    as_json: _Json = False,
) -> None:
    """Block until a bucket is sealed, for schedulers. Reads the lake only; asks neither Kafka nor the driver.

    A bucket that is closed and never had a row is complete too: nothing of it is sealed.

    Exit codes: 0 sealed, 1 not within the time (the reason is said), or the table cannot be read, 2 configuration, or
    no such bucket can be.
    """
    from writer.file import load
    from writer.surface import buckets as verb
    from writer.surface.lines import console

    settings = load(config)
    within, name = _duration(timeout), settings.one(pipeline)
    code = verb.wait(settings, name, sealed, version=version, within=within, as_json=as_json, out=console())
    raise typer.Exit(code)


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    app.command()(buckets)
    app.command()(wait)


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no time; write 2026-11-20T05:00Z", param_hint="--since") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _duration(text: str) -> timedelta:
    from writer.units import duration

    try:
        return duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
