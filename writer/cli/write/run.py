"""`headrace run`: runs the writer until it is stopped."""

import os
from typing import Annotated

import typer

from writer.config.loader import load
from writer.core import logging
from writer.driver import main as job, supervisor_channel
from writer.output.cli_options import ConfigFile, Pipelines


def _say_where_the_page_is(url: str) -> None:
    """Print it for a person; among lines of JSON the event `http_listening` has it."""
    if os.environ.get("HEADRACE_LOG") != "json":
        typer.echo(f"headrace: page at {url}/")


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
    logging.set_up()
    link = supervisor_channel.folder()
    if link is not None:
        link.begin()
    try:
        settings = load(config)
        code = job.run(
            settings, once=once, new_run=new_run, only=settings.chosen(pipeline), listening=_say_where_the_page_is
        )
    except Exception as error:
        if link is not None:
            link.tell(None, error)
        raise
    raise typer.Exit(code)
