"""The `headrace` command. Verbs of other packages join through the entry-point group `headrace.commands`."""

import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated

import typer

from writer.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="A streaming warehouse writer: Kafka Avro events into event-time buckets of a lake, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def _root() -> None:
    """Carry Kafka Avro events into event-time buckets of a lake, exactly once."""


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="Configuration file (YAML).")],
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, commit it, and end.")] = False,
    new_run: Annotated[
        bool,
        typer.Option("--new-run", help="Leave Spark's checkpoint aside and begin a new one from the table's frontier."),
    ] = False,
    pipeline: Annotated[
        list[str] | None, typer.Option("--pipeline", help="Only this pipeline; may be repeated.")
    ] = None,
) -> None:
    """Run the writer. SIGTERM finishes the batch in progress, commits it and ends.

    Exit codes: 0 done, 1 crash (restart), 2 configuration (do not restart), 3 checkpoint unusable (run again with
    --new-run), 4 fenced by another run, 5 stopped by a limit.
    """
    from writer import job, log
    from writer.config import did_you_mean, load
    from writer.errors import ConfigError

    log.set_up()
    settings = load(config)
    for name in pipeline or []:
        if name not in settings.pipelines:
            raise ConfigError(f"{config} has no pipeline {name!r}{did_you_mean(name, list(settings.pipelines))}")
    raise typer.Exit(job.run(settings, once=once, new_run=new_run, only=pipeline))


@app.command()
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Put lake, logs and configuration here and keep them.")
    ] = None,
    events: Annotated[int, typer.Option("--events", min=1000, help="How many events to produce.")] = 200_000,
) -> None:
    """Show it all on this machine: a real broker and registry, events, the writer, and a query over the lake.

    Exit codes: 0 every event is accounted for, 1 not, 2 something that it needs is missing. Ctrl-C leaves nothing.
    """
    from writer.demo.show import show

    raise typer.Exit(show(events, keep))


def main() -> None:
    """Run the command; an expected failure is one sentence and its exit code."""
    for entry in entry_points(group="headrace.commands"):
        entry.load()(app)
    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
