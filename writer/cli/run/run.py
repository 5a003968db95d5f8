"""`headrace run`: runs the writer until it is stopped."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.config.loader import ReloadableConfig, load
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, ExitCode, exit_code, most_severe
from headrace.writer.core.signals import on_hangup
from headrace.writer.core.text import join_first
from headrace.writer.driver import main as job, supervisor_channel
from headrace.writer.driver.restart_policy import sentence
from headrace.writer.lease.run_leases import RunLeases, open_run_leases
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.output.cli_options import ConfigFile, Pipelines, WatchConfig
from headrace.writer.output.command import command
from headrace.writer.output.report import Report
from headrace.writer.output.tables import sentence as show_sentence
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import reading

# Of a table's offsets, for a person.
_PARTITIONS_SHOWN = 20


def _print_page_url(url: str) -> None:
    """Print it for a person; among lines of JSON the event `http_listening` has it."""
    if os.environ.get("HEADRACE_LOG") != "json":
        typer.echo(f"headrace: page at {url}/")


@dataclass(frozen=True)
class NewRunReport(Report):
    """What `--new-run` would leave aside and begin: a sentence for each pipeline."""

    sentences: Sequence[str]

    def render(self, out: Console) -> None:
        """Draw the sentences."""
        for text in self.sentences:
            show_sentence(out, text)


@command(
    exits={
        0: "done",
        1: "crash (restart)",
        2: "configuration (do not restart)",
        3: "checkpoint unusable (run again with --new-run --yes)",
        4: "fenced by another run",
        5: "stopped by a limit",
        6: "another process runs it",
    },
    json_form=None,
)
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
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Also while another process runs it: that one ends with exit 4, or waits."),
    ] = False,
    dry_run: bool = False,
    *,
    write: bool,
) -> NewRunReport | ExitCode:
    """Run the writer. SIGTERM finishes the batch in progress, commits it and ends.

    SIGHUP, or `headrace reload`, reads the file again: pipelines that were added, changed or removed begin, begin anew
    or drain, beside the others.

    It holds the lease of each pipeline. While another run or a supervisor holds one, it is refused. After one that was
    killed it waits for the end of its lease (`supervisor.lease_expiry`).
    """
    options = RunOptions(once=once, watched=watch_config, takes_over=take_over)
    if new_run and not write:
        settings = load(config)
        return NewRunReport([_describe_new_run(settings, name) for name in settings.chosen(pipeline)])
    if dry_run:
        raise ConfigError("--dry-run shows what --new-run would do. `headrace validate` checks any other start.")
    return _run(config, pipeline, options, new_run=new_run)


@dataclass(frozen=True)
class RunOptions:
    """How the writer is run."""

    once: bool
    # It reads its file again when that changes.
    watched: bool
    # Another process that runs a pipeline is no reason against it.
    takes_over: bool


def _run(path: Path, only: list[str] | None, options: RunOptions, *, new_run: bool) -> ExitCode:
    """Run the writer to its end. Returns the exit code. Raises HeadraceError."""
    logging.set_up()
    reload = threading.Event()
    # Before a supervisor learns which process this is: it sends SIGHUP.
    on_hangup(reload)
    link = supervisor_channel.folder()
    if link is not None:
        link.begin()
    try:
        # A supervisor may have been started with a pipeline that the file does not have now.
        file = ReloadableConfig(path, only, reload, watched=options.watched, missing_ok=link is not None)
        # A supervisor holds the leases of its driver.
        leases = open_run_leases(file, takes_over=options.takes_over) if link is None else None
        return run_writer(file, once=options.once, new_run=new_run, listening=_print_page_url, leases=leases)
    except Exception as error:
        if link is not None:
            link.report(None, error)
        raise


def run_writer(
    file: ReloadableConfig,
    *,
    once: bool,
    new_run: bool = False,
    listening: Callable[[str], object] = lambda _: None,
    leases: RunLeases | None = None,
) -> ExitCode:
    """Run the writer to its end, and print why pipelines failed. Returns the exit code. Raises HeadraceError.

    `leases` are held meanwhile; None: it needs none.
    """
    errors = job.run(file, once=once, new_run=new_run, listening=listening, leases=leases)
    for line in dict.fromkeys(f"headrace: {sentence(error)}" for error in errors.values() if error is not None):
        typer.echo(line, err=True)
    return most_severe(map(exit_code, errors.values()))


def _describe_new_run(config: Config, name: str) -> str:
    """Return which checkpoint a new run leaves aside, and where it begins. Raises CommitFailed."""
    table = main_table(name, config)
    checkpoints = Checkpoints(config.checkpoints, name, config.stores)
    with reading(table.location):
        newest_run = checkpoints.newest()
        offsets = table.snapshot().parts() if table.exists() else {}
    checkpoint = "there is no checkpoint"
    if newest_run is not None:
        checkpoint = f"{checkpoints.path(newest_run)} is left aside"
    frontier = [f"{part.name} at {offset:,}" for part, offset in sorted(offsets.items())]
    start = join_first(frontier, _PARTITIONS_SHOWN) or "`start` of the configuration: the table has no offsets"
    return f"{name}: {checkpoint}; a new run begins from {start}."
