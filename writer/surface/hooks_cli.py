"""The verbs `ddl` and `hooks` of the command."""

from typing import Annotated, Literal

import typer

from writer.options import ConfigFile, OnePipeline, Pipelines

hooks = typer.Typer(no_args_is_help=True, help="Hooks: who is told of sealed buckets, what waits, and what failed.")

_Hook = Annotated[str | None, typer.Option("--hook", help="Only this hook.")]
_Json = Annotated[bool, typer.Option("--json", help="JSON, for a machine.")]


def ddl(
    config: ConfigFile,
    engine: Annotated[
        Literal["trino", "presto", "druid", "spark", "duckdb"], typer.Option("--engine", help="Who is to read it.")
    ],
    pipeline: OnePipeline = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", help="Name of the table there: catalog.schema.table for Trino and Presto, datasource for Druid."
        ),
    ] = None,
    location: Annotated[
        str | None, typer.Option("--location", help="The table's location as Trino or Presto names it.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Print what an engine must be told to read the table, with its columns as they are. Reads the lake only.

    Exit codes: 0 printed, 1 the table cannot be read, 2 configuration, or there is no table yet.
    """
    from writer.file import load
    from writer.surface import ddl as verb

    settings = load(config)
    name = settings.one(pipeline)
    raise typer.Exit(verb.ddl(settings, name, engine, name=table, location=location, as_json=as_json))


@hooks.command("list")
def list_(config: ConfigFile, pipeline: Pipelines = None, as_json: _Json = False) -> None:
    """Show each hook: what it has delivered, what waits, and why. Reads the lake only.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration.
    """
    from writer.file import load
    from writer.surface import hooks as verb
    from writer.surface.lines import console

    settings = load(config)
    raise typer.Exit(verb.listed(settings, settings.chosen(pipeline), as_json=as_json, out=console()))


@hooks.command()
def run(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    hook: _Hook = None,
    bucket: Annotated[
        str | None,
        typer.Option("--bucket", help="Deliver the newest manifest of this bucket, also where it was delivered."),
    ] = None,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait for what is under way.")] = "10 min",
    as_json: _Json = False,
) -> None:
    """Deliver what waits now, in this process, and wait for it. Beside the driver or without it.

    Exit codes: 0 nothing waits any more, 1 something failed or still waits, 2 configuration.
    """
    from writer.file import load
    from writer.surface import hooks as verb
    from writer.surface.lines import console
    from writer.units import duration

    settings = load(config)
    try:
        within = duration(timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
    name = settings.one(pipeline)
    raise typer.Exit(
        verb.delivered(settings, name, hook=hook, bucket=bucket, within=within, as_json=as_json, out=console())
    )


@hooks.command()
def skip(
    config: ConfigFile,
    hook: Annotated[str, typer.Option("--hook", help="Of which hook.")],
    bucket: Annotated[str, typer.Option("--bucket", help="Which bucket.")],
    pipeline: OnePipeline = None,
    as_json: _Json = False,
) -> None:
    """Give up what waits of a bucket: this hook is not told of it. `hooks run --bucket` delivers it after all.

    Exit codes: 0 given up, 1 nothing of it waits, 2 configuration.
    """
    from writer.file import load
    from writer.surface import hooks as verb
    from writer.surface.lines import console

    settings = load(config)
    name = settings.one(pipeline)
    raise typer.Exit(verb.skipped(settings, name, hook=hook, bucket=bucket, as_json=as_json, out=console()))


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    app.command()(ddl)
    app.add_typer(hooks, name="hooks")
