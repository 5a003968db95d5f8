"""`headrace pause` and `headrace resume`: hold pipelines without stopping their driver."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated

import typer

from writer.config.loader import load
from writer.output.cli_options import AsJson, ConfigFile, Pipelines, default_author
from writer.output.tables import console, emit_whole, sentence
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
    settings = load(config)
    now = datetime.now(UTC)
    author = by or default_author()
    names = settings.chosen(pipeline)
    states = {name: pauses.pause(main_table(name, settings).store, author, reason, now) for name in names}
    if as_json:
        emit_whole({name: {"paused": asdict(state), "new": is_new} for name, (state, is_new) in states.items()})
        return
    for name, (state, is_new) in states.items():
        if is_new:
            sentence(
                console(),
                f"{name}: {state.text}. A driver finishes its batch first. `headrace resume` ends it.",
            )
        else:
            sentence(console(), f"{name}: already {state.text}. It stays so.")


def resume(config: ConfigFile, pipeline: Pipelines = None, as_json: AsJson = False) -> None:
    """End the pause of the pipelines. A driver goes on within seconds.

    Exit codes: 0 no pipeline is paused any more, 1 the storage does not answer, 2 configuration.
    """
    settings = load(config)
    states = {name: pauses.resume(main_table(name, settings).store) for name in settings.chosen(pipeline)}
    if as_json:
        emit_whole({name: {"was_paused": state and asdict(state)} for name, state in states.items()})
        return
    for name, state in states.items():
        if state is None:
            sentence(console(), f"{name}: it was not paused.")
        else:
            sentence(console(), f"{name}: it was {state.text}; a driver goes on within seconds.")
