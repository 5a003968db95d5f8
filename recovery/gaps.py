"""`headrace gaps`: the tickets of what was skipped, opened, looked at and closed by people."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from writer.options import AsJson, ConfigFile, OnePipeline, Pipelines

if TYPE_CHECKING:
    pass

gaps = typer.Typer(no_args_is_help=True, help="Gaps: offsets that were skipped. List, show, open and close them.")

_By = Annotated[str | None, typer.Option("--by", help="Who. Default: this user at this machine.", show_default=False)]


@gaps.callback()
def _group() -> None:
    """Gaps: offsets that were skipped. List, show, open and close them."""


@gaps.command("list")
def list_(
    config: ConfigFile,
    pipeline: Pipelines = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are done or lost.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the gaps that are open: what was skipped, why, and who fills it at the moment. Reads the lake only.

    Exit codes: 0 none is open, 1 some are, or a table cannot be read, 2 configuration.
    """
    from recovery import tickets
    from writer.file import load
    from writer.surface.lines import console

    settings, now = load(config), datetime.now(UTC)
    names = settings.chosen(pipeline)
    raise typer.Exit(tickets.listed(settings, names, everything=all_, now=now, as_json=as_json, out=console()))


@gaps.command()
def show(
    config: ConfigFile,
    gap: Annotated[str, typer.Argument(help="Id of the ticket, or its beginning.")],
    pipeline: OnePipeline = None,
    as_json: AsJson = False,
) -> None:
    """Show one gap: its ranges, where in event time its records may lie, what was brought and what is open.

    Exit codes: 0 shown, 1 the table cannot be read, 2 configuration, or no such gap.
    """
    from recovery import tickets
    from writer.file import load
    from writer.surface.lines import console

    settings, now = load(config), datetime.now(UTC)
    name = settings.one(pipeline)
    raise typer.Exit(tickets.shown(settings, name, gap, now=now, as_json=as_json, out=console()))


@gaps.command()
def close(
    config: ConfigFile,
    gap: Annotated[str, typer.Argument(help="Id of the ticket, or its beginning.")],
    reason: Annotated[str, typer.Option("--reason", help="Why nobody will bring its records.")],
    lost: Annotated[bool, typer.Option("--lost", help="Yes: what is open of it is given up.")] = False,
    pipeline: OnePipeline = None,
    by: _By = None,
    as_json: AsJson = False,
) -> None:
    """Give up what is open of a gap: nobody has its records. Buckets that it touches are sealed, and say so.

    There is no way back. A gap that is filled closes by itself.

    Exit codes: 0 closed, 1 somebody changed it meanwhile, or the storage does not answer, 2 configuration, or it is not
    open.
    """
    from recovery import tickets
    from writer.errors import ConfigError
    from writer.file import load
    from writer.surface.lines import console

    settings, now = load(config), datetime.now(UTC)
    if not lost:
        raise ConfigError("closing a gap gives its records up: say so with --lost. `headrace backfill` brings them.")
    name = settings.one(pipeline)
    raise typer.Exit(tickets.closed(settings, name, gap, reason=reason, by=by, now=now, as_json=as_json, out=console()))


@gaps.command("open")
def open_(
    config: ConfigFile,
    reason: Annotated[str, typer.Option("--reason", help="Why what waits is to be skipped.")],
    to: Annotated[Literal["latest"], typer.Option("--to", help="Up to where: the end of Kafka's log.")] = "latest",
    pipeline: OnePipeline = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it. Without, it is only shown.")] = False,
    fence: Annotated[
        bool, typer.Option("--fence", help="Also while a driver runs: the entry fences it, its next commit is exit 4.")
    ] = False,
    by: _By = None,
    as_json: AsJson = False,
) -> None:
    """Skip all that waits in Kafka, as the last resort: the table reads on at the end, and a gap says what it skipped.

    One entry of the table's log moves the frontier and carries the gap. Then start the pipeline, and bring the records
    with `headrace backfill` while it runs.

    Exit codes: 0 shown or written, 1 a driver runs or Kafka does not answer, 2 configuration, or it cannot be skipped,
    4 somebody committed meanwhile.
    """
    from recovery import tickets
    from writer.file import load
    from writer.surface.lines import console

    settings, now = load(config), datetime.now(UTC)
    name = settings.one(pipeline)
    assert to == "latest"
    code = tickets.opened(
        settings, name, reason=reason, by=by, write=yes, fence=fence, now=now, as_json=as_json, out=console()
    )
    raise typer.Exit(code)


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command; a second time does nothing."""
    if not any(group.name == "gaps" for group in app.registered_groups):
        app.add_typer(gaps, name="gaps")
