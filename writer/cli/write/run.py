"""`headrace run`: runs the writer until it is stopped."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from writer.config.loader import ReloadableConfig, load
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import ConfigError, exit_code, most_severe
from writer.core.signals import on_hangup
from writer.core.text import join_first
from writer.driver import main as job, supervisor_channel
from writer.driver.restart_policy import sentence
from writer.offsets.spark_checkpoint import Checkpoints
from writer.output.cli_options import ConfigFile, Pipelines, WatchConfig
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console, sentence as show_sentence
from writer.table.factory import main_table
from writer.table.log.foreign_writes import reading

# Of a table's offsets, for a person.
_PARTITIONS_SHOWN = 20


def _print_page_url(url: str) -> None:
    """Print it for a person; among lines of JSON the event `http_listening` has it."""
    if os.environ.get("HEADRACE_LOG") != "json":
        typer.echo(f"headrace: page at {url}/")


def run(
    config: ConfigFile,
    once: Annotated[bool, typer.Option("--once", help="Read what is there now, commit it, and end.")] = False,
    new_run: Annotated[
        bool,
        typer.Option(
            "--new-run",
            help="Leave Spark's checkpoint aside and begin a new one from the table's frontier, with --yes.",
        ),
    ] = False,
    pipeline: Pipelines = None,
    watch_config: WatchConfig = False,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Run the writer. SIGTERM finishes the batch in progress, commits it and ends.

    SIGHUP, or `headrace reload`, reads the file again: pipelines that were added, changed or removed begin, begin anew
    or drain, beside the others.

    Exit codes: 0 done, 1 crash (restart), 2 configuration (do not restart), 3 checkpoint unusable (run again with
    --new-run --yes), 4 fenced by another run, 5 stopped by a limit.
    """
    if not new_run:
        if dry_run:
            raise ConfigError("--dry-run shows what --new-run would do. `headrace validate` checks any other start.")
        _run(config, pipeline, once=once, new_run=False, watched=watch_config)

    def work(*, write: bool) -> bool:
        if write:
            _run(config, pipeline, once=once, new_run=True, watched=watch_config)
        settings = load(config)
        _show_new_run(settings, settings.chosen(pipeline))
        return True

    confirm(work, yes=yes, dry_run=dry_run)


def _run(path: Path, only: list[str] | None, *, once: bool, new_run: bool, watched: bool) -> None:
    """Run the writer to its end. Raises HeadraceError, Exit."""
    logging.set_up()
    reload = threading.Event()
    # Before a supervisor learns which process this is: it sends SIGHUP.
    on_hangup(reload)
    link = supervisor_channel.folder()
    if link is not None:
        link.begin()
    try:
        # A supervisor may have been started with a pipeline that the file does not have now.
        file = ReloadableConfig(path, only, reload, watched=watched, missing_ok=link is not None)
        code = run_writer(file, once=once, new_run=new_run, listening=_print_page_url)
    except Exception as error:
        if link is not None:
            link.report(None, error)
        raise
    raise typer.Exit(code)


def run_writer(
    file: ReloadableConfig, *, once: bool, new_run: bool = False, listening: Callable[[str], object] = lambda _: None
) -> int:
    """Run the writer to its end, and print why pipelines failed. Returns the exit code. Raises HeadraceError."""
    errors = job.run(file, once=once, new_run=new_run, listening=listening)
    for line in dict.fromkeys(f"headrace: {sentence(error)}" for error in errors.values() if error is not None):
        typer.echo(line, err=True)
    return most_severe(map(exit_code, errors.values()))


def _show_new_run(config: Config, names: Sequence[str]) -> None:
    """Show which checkpoint a new run leaves aside, and where it begins. Raises CommitFailed."""
    for name in names:
        table = main_table(name, config)
        checkpoints = Checkpoints(config.checkpoints, name, config.s3.settings)
        with reading(table.location):
            newest_run = checkpoints.newest()
            offsets = table.snapshot().parts() if table.exists() else {}
        checkpoint = "there is no checkpoint"
        if newest_run is not None:
            checkpoint = f"{checkpoints.path(newest_run)} is left aside"
        frontier = [f"{part.name} at {offset:,}" for part, offset in sorted(offsets.items())]
        start = join_first(frontier, _PARTITIONS_SHOWN) or "`start` of the configuration: the table has no offsets"
        show_sentence(console(), f"{name}: {checkpoint}; a new run begins from {start}.")
