"""`headrace pause` and `headrace resume`: hold pipelines without stopping their driver."""

import getpass
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from writer.config.loader import load
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, Pipelines
from writer.output.tables import console
from writer.status import pause as pauses
from writer.table.factory import main_table


def pause(
    config: ConfigFile,
    pipeline: Pipelines = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown while it is paused.")] = "",
    by: Annotated[
        str | None, typer.Option("--by", help="Who asks. Default: this user at this machine.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold the pipelines: a driver finishes its batch, then commits nothing until `headrace resume`. It stays healthy.

    A start waits, too; with `run --once` it ends with exit 5. The lag goes on being measured, and SIGTERM still drains.
    Commands that people run, such as `dlq replay` and `delete-rows`, are not held.

    Exit codes: 0 paused, by this or an earlier call, 1 the storage does not answer, 2 configuration.
    """
    settings, now = load(config), datetime.now(UTC)
    author = by or f"{getpass.getuser()}@{socket.gethostname()}"
    names = settings.chosen(pipeline)
    states = {name: pauses.pause(main_table(name, settings).store, author, reason, now) for name in names}
    if as_json:
        tables.emit_whole({name: {"paused": asdict(one), "new": new} for name, (one, new) in states.items()})
        return
    for name, (one, new) in states.items():
        after = "A driver finishes its batch first. `headrace resume` ends it." if new else "It stays so."
        tables.sentence(console(), f"{name}: {'' if new else 'already '}{one.words}. {after}")


def resume(config: ConfigFile, pipeline: Pipelines = None, as_json: AsJson = False) -> None:
    """End the pause of the pipelines. A driver goes on within seconds.

    Exit codes: 0 no pipeline is paused any more, 1 the storage does not answer, 2 configuration.
    """
    settings = load(config)
    states = {name: pauses.resume(main_table(name, settings).store) for name in settings.chosen(pipeline)}
    if as_json:
        tables.emit_whole({name: {"was_paused": None if one is None else asdict(one)} for name, one in states.items()})
        return
    for name, one in states.items():
        what = "it was not paused" if one is None else f"it was {one.words}; a driver goes on within seconds"
        tables.sentence(console(), f"{name}: {what}.")
