"""`headrace schema`: effects of schemas on a pipeline's table."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from writer.cli.maintain import schema_accept
from writer.config.loader import load
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline, time_of
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.preflight import schema_effects as command
from writer.schemas.registry import source

schema = typer.Typer(
    name="schema", help="What a schema is to a pipeline's table.", no_args_is_help=True, pretty_exceptions_enable=False
)


@schema.command()
def plan(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    schema_id: Annotated[int | None, typer.Option("--id", help="A schema of the registry, by its id.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A schema in a file (.avsc), registered or not.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a schema would do: columns added and widened, casts, defaults, or why its records would be parked.

    It is looked at as the next one, on top of the table's columns and of all registered schemas. Changes nothing.

    Exit codes: 0 every record becomes a row, 1 its records would be parked, or the registry does not answer,
    2 configuration.
    """
    raise typer.Exit(command.plan(load(config), pipeline, schema_id=schema_id, file=file, as_json=as_json))


@schema.command()
def accept(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    ids: Annotated[
        list[str] | None, typer.Option("--id", help="Only this id; may be repeated. Default: all that changed.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", help="From when on the ids mean this (2026-11-20T05:00Z). Default: when the newest batch began."
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Let schema ids mean what the registry says now, after it was made anew or gave ids out again.

    A start, a replay and a backfill refuse an id that means another schema than the one by which records were read.
    This shows such ids, and with --yes writes their new meanings into the table's log. Records that are older than
    --since are not read by them: they are, or stay, dead letters.

    Exit codes: 0 shown or written, 1 the registry or the storage does not answer, or a driver runs, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(
        schema_accept.run_accept,
        settings,
        name,
        source(settings.registry),
        ids or [],
        time_of("--since", since),
        now=datetime.now(UTC),
        as_json=as_json,
        out=console(),
    )
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
