"""`headrace pause` and `headrace resume`: hold pipelines without stopping their driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.output.cli_options import default_author
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import PipelineNames
from headrace.writer.output.report import Report
from headrace.writer.output.tables import sentence
from headrace.writer.status import pause as pauses
from headrace.writer.status.pause import Pause
from headrace.writer.table.factory import main_table


@dataclass(frozen=True)
class PausedPipeline:
    """The pause of a pipeline; `new`: it is of this call, not of an earlier one."""

    paused: Pause
    new: bool


@dataclass(frozen=True)
class PauseReport(Report):
    """The pauses of pipelines, by name."""

    pipelines: Mapping[str, PausedPipeline]

    def render(self, out: Console) -> None:
        """Say of each pipeline since when it is paused."""
        for name, pipeline in self.pipelines.items():
            text = f"paused {pipeline.paused.text}"
            if pipeline.new:
                sentence(out, f"{name}: {text}. A driver finishes its batch first. `headrace resume` ends it.")
            else:
                sentence(out, f"{name}: already {text}. It stays so.")


@dataclass(frozen=True)
class ResumedPipeline:
    """The pause of a pipeline that ended; None: there was none."""

    was_paused: Pause | None


@dataclass(frozen=True)
class ResumeReport(Report):
    """The pauses that ended, by pipeline."""

    pipelines: Mapping[str, ResumedPipeline]

    def render(self, out: Console) -> None:
        """Say of each pipeline what ended."""
        for name, pipeline in self.pipelines.items():
            if pipeline.was_paused is None:
                sentence(out, f"{name}: it was not paused.")
            else:
                sentence(out, f"{name}: it was paused {pipeline.was_paused.text}; a driver goes on within seconds.")


@command(exits={0: "paused, by this or an earlier call", 1: "the storage does not answer", 2: "configuration"})
def pause(
    pipelines: PipelineNames,
    reason: Annotated[str, typer.Option("--reason", help="Why; shown while it is paused.")] = "",
    by: Annotated[
        str | None, typer.Option("--by", help="Who asks. Default: this user at this machine.", show_default=False)
    ] = None,
) -> PauseReport:
    """Hold the pipelines: a driver finishes its batch, then commits nothing until `headrace resume`. It stays healthy.

    A start waits, too; with `run --once` it ends with exit 5. The lag goes on being measured, and SIGTERM still drains.
    Commands that people run, such as `dlq replay` and `delete-rows`, are not held.
    """
    now = datetime.now(UTC)
    author = by or default_author()
    states: dict[str, PausedPipeline] = {}
    for name in pipelines.names:
        state, is_new = pauses.pause(main_table(name, pipelines.config).store, author, reason, now)
        states[name] = PausedPipeline(state, is_new)
    return PauseReport(states)


@command(exits={0: "no pipeline is paused any more", 1: "the storage does not answer", 2: "configuration"})
def resume(pipelines: PipelineNames) -> ResumeReport:
    """End the pause of the pipelines. A driver goes on within seconds."""
    stores = {name: main_table(name, pipelines.config).store for name in pipelines.names}
    return ResumeReport({name: ResumedPipeline(pauses.resume(store)) for name, store in stores.items()})
