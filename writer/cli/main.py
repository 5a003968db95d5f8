"""The `headrace` command. Verbs of other packages join through the entry-point group `headrace.commands`."""

import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated, Literal

import typer

from writer.cli.read.buckets import join as join_buckets
from writer.cli.read.dlq import join as join_ledger
from writer.cli.read.hooks import join as join_hooks
from writer.cli.read.schema import schema
from writer.cli.write.compact import join as join_rewrites
from writer.cli.write.pause import join as join_care
from writer.cli.write.seal import seal
from writer.cli.write.topic_adopt import topic
from writer.core.errors import HeadraceError
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, Pipelines

app = typer.Typer(
    name="headrace",
    help="A streaming warehouse writer: Kafka Avro events into event-time buckets of a lake, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headrace {installed('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Carry Kafka Avro events into event-time buckets of a lake, exactly once."""


@app.command()
def run(
    config: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, commit it, and end.")] = False,
    new_run: Annotated[
        bool,
        typer.Option("--new-run", help="Leave Spark's checkpoint aside and begin a new one from the table's frontier."),
    ] = False,
    pipeline: Pipelines = None,
) -> None:
    """Run the writer. SIGTERM finishes the batch in progress, commits it and ends.

    Exit codes: 0 done, 1 crash (restart), 2 configuration (do not restart), 3 checkpoint unusable (run again with
    --new-run), 4 fenced by another run, 5 stopped by a limit.
    """
    from writer.config.loader import load
    from writer.core import logging
    from writer.driver import main as job
    from writer.driver import supervisor_channel

    logging.set_up()
    link = supervisor_channel.folder()
    if link is not None:
        link.begin()
    try:
        settings = load(config)
        code = job.run(settings, once=once, new_run=new_run, only=settings.chosen(pipeline))
    except Exception as error:
        if link is not None:
            link.tell(None, error)
        raise
    raise typer.Exit(code)


@app.command()
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Put lake, logs and configuration here and keep them.")
    ] = None,
    events: Annotated[int, typer.Option("--events", min=1000, help="How many events to produce.")] = 200_000,
    form: Annotated[Literal["delta", "parquet"], typer.Option("--format", help="Format of the table.")] = "delta",
    hold: Annotated[
        bool | None,
        typer.Option(
            "--hold/--no-hold",
            help="After the account, let broker, registry and writer run until Ctrl-C. By default with --keep on a "
            "terminal; never in a pipe or a script.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show it all on this machine: a real broker and registry, events, the writer, and a query over the lake.

    Half-way the schema changes; some events are late, from the future, or broken. Each is counted at the end.

    Exit codes: 0 every event is accounted for, 1 not, 2 something that it needs is missing.

    Ctrl-C leaves nothing running, and no files unless --keep names a directory.
    """
    from writer.demo.main import show

    raise typer.Exit(show(events, keep, form=form, hold=hold))


@app.command()
def validate(
    config: ConfigFile,
    pipeline: Pipelines = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask neither Kafka nor a registry.")] = False,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="How many records of each pipeline to look at; 0: none.")
    ] = 1_000,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON list of check, pipeline, status, message, mend.")
    ] = False,
) -> None:
    """Check everything that a start needs: file, Kafka, registry, records, tables, this machine. Changes nothing.

    Exit codes: 0 nothing is wrong, 2 something is.
    """
    from writer.cli.read import validate as verb

    now = datetime.now(UTC)
    raise typer.Exit(verb.run_validate(config, pipeline, offline=offline, records=sample, as_json=as_json, now=now))


@app.command()
def preview(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    at: Annotated[
        Literal["raw", "decoded", "assigned", "staged"],
        typer.Option("--at", help="As Kafka holds them, as rows, with event times and buckets, or as Parquet files."),
    ] = "decoded",
    records: Annotated[int, typer.Option("-n", "--records", min=1, help="How many records.")] = 20,
    start: Annotated[
        str, typer.Option("--from", help="latest: the newest; or from earliest, or from a time, on.")
    ] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C; from a position: all from there on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each record, or file.")] = False,
) -> None:
    """Show records of a pipeline's topics as a room of the writer sees them. Without Spark; changes nothing.

    Exit codes: 0 shown, 1 Kafka or the registry does not answer, 2 configuration.
    """
    from writer.config.loader import load
    from writer.preflight import preview as verb

    now = datetime.now(UTC)
    raise typer.Exit(
        verb.preview(
            load(config), pipeline, at=at, records=records, start=start, follow=follow, as_json=as_json, now=now
        )
    )


@app.command()
def status(
    config: ConfigFile,
    pipeline: Pipelines = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
    interval: Annotated[str, typer.Option("--interval", help="Time between two looks with --watch.")] = "2 s",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document; with --watch, one a line for each look.")
    ] = False,
) -> None:
    """Show how the pipelines are: lag, last commit, rates, dead letters, retention. Asks the driver, else the lake.

    A driver's executors too: how many are wanted, asked for, there, and what the autoscaler decided last, and why.

    Exit codes: 0 shown, 1 a pipeline has failed or its table cannot be read, 2 configuration.
    """
    from rich.console import Console

    from writer.cli.read import status as verb
    from writer.config.loader import load
    from writer.core.units import duration

    settings = load(config)
    try:
        every = duration(interval) if watch else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--interval") from error
    console = Console(highlight=False)
    raise typer.Exit(
        verb.run_status(settings, settings.chosen(pipeline), every=every, as_json=as_json, console=console)
    )


@app.command()
def explain(
    config: ConfigFile,
    pipeline: Pipelines = None,
    batch: Annotated[int | None, typer.Option("--batch", min=0, help="The newest commit of this batch.")] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=0, help="The entry of this table version, whatever it is.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a batch was committed when it was and what it cost, or what another entry of the log did.

    Without options: the last commit. Reads the lake only.

    Exit codes: 0 shown, 1 a pipeline has no such commit, 2 configuration.
    """
    from rich.console import Console

    from writer.cli.read import explain as verb
    from writer.config.loader import load

    settings = load(config)
    console = Console(highlight=False)
    names = settings.chosen(pipeline)
    raise typer.Exit(verb.run_explain(settings, names, batch=batch, version=version, as_json=as_json, console=console))


@app.command()
def plan(
    config: ConfigFile,
    pipeline: Pipelines = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="How many of the newest records of each pipeline to measure.")
    ] = 20_000,
    events_per_second: Annotated[
        float | None,
        typer.Option("--events-per-second", min=0.001, help="Size for this traffic, instead of the last hour's."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=1, help="Events that one processor second carries, instead of the measured rate."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list with each line of the arithmetic.")] = False,
) -> None:
    """Size a pipeline for its topic's traffic: cores, memory, files, requests, with the arithmetic. Changes nothing.

    Exit codes: 0 shown, 1 Kafka or the registry does not answer, 2 configuration, or nothing to measure.
    """
    from writer.cli.read import plan as verb
    from writer.config.loader import load

    now = datetime.now(UTC)
    code = verb.run_plan(
        load(config), pipeline, records=sample, events_per_s=events_per_second, rate=rate, as_json=as_json, now=now
    )
    raise typer.Exit(code)


app.command()(seal)
app.add_typer(schema)
app.add_typer(topic, name="topic")
join_ledger(app)
join_care(app)
join_rewrites(app)
join_buckets(app)
join_hooks(app)


@cache
def compose() -> typer.Typer:
    """Return the command with the verbs of all installed packages, each joined once. An entry point is a package's."""
    for entry in entry_points(group="headrace.commands"):
        entry.load()(app)
    return app


def main() -> None:
    """Run the command; an expected failure is one sentence and its exit code."""
    compose()
    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
