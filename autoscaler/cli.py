"""The commands `headrace autoscaler`."""

import threading
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from headrace.autoscaler.decision.decide import Decision, tick
from headrace.autoscaler.decision.explanation import lines, to_dict
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import DEFAULTS, Policy, apply_assignments
from headrace.autoscaler.runtime import state_store
from headrace.autoscaler.runtime.main import collect_once, policy_of, run as scale
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.core import logging
from headrace.writer.core.config_location import SHOWN, default_config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.signals import on_hangup
from headrace.writer.output.cli_options import WatchConfig, config_argument
from headrace.writer.output.command import command
from headrace.writer.output.output_file import write_output_file
from headrace.writer.output.report import Report


@dataclass(frozen=True)
class ExplainReport(Report):
    """What would be decided of the facts of a time."""

    policy: Policy
    decision: Decision
    now: datetime
    # Why the facts could not be saved.
    failure: HeadraceError | None = None

    def document(self) -> dict[str, Any]:
        """Return the decision with its arithmetic."""
        return to_dict(self.decision, self.now)

    def render(self, out: Console) -> None:
        """Write it line by line."""
        for line in lines(self.policy, self.decision, self.now):
            out.print(Text(line), soft_wrap=True)


@command(
    exits={
        0: "stopped",
        1: "crash (restart)",
        2: "configuration: also where there are no executors to scale, such as with local[*]",
    }
)
def run(
    config: Annotated[Path, config_argument("Configuration file (YAML), the driver's own.")],
    pipeline: Annotated[
        list[str] | None,
        typer.Option("--pipeline", help="Only this pipeline, as the driver was told; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Decide and say so; ask for nothing.")] = False,
    interval: Annotated[
        str | None,
        typer.Option("--interval", help="Time between two decisions, such as 15 s; the policy's `interval`."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter, such as utilization_target=0.7; may be repeated.")
    ] = None,
    watch_config: WatchConfig = False,
) -> None:
    """Keep as many executors as the lag asks for, until SIGTERM or Ctrl-C. Runs beside the driver, without Spark.

    Asks Kafka and the driver, decides, and asks the driver for executors; says each decision with its reason. Answers
    at 127.0.0.1:9645 (`autoscaler` in the configuration): /metrics, /status, /healthz. What it remembers outlives it.
    SIGHUP lets it read again which pipelines there are.
    """
    logging.set_up()
    reload = threading.Event()
    on_hangup(reload)
    file = ReloadableConfig(config, pipeline, reload, watched=watch_config)
    all_assignments = list(assignments or [])
    if interval is not None:
        all_assignments.append(f"interval={interval}")
    policy = policy_of(file.config, all_assignments)
    scale(file, policy, dry_run=dry_run)


@command(exits={0: "explained", 1: "a file cannot be read or written", 2: "a file or a parameter is wrong"})
def explain(
    config: Annotated[
        Path | None,
        typer.Argument(help="Configuration file (YAML): ask driver, Kafka and lake now.", show_default=SHOWN),
    ] = None,
    facts: Annotated[
        Path | None, typer.Option("--facts", help="Or recorded facts (JSON): neither driver nor Kafka is asked.")
    ] = None,
    pipeline: Annotated[
        list[str] | None, typer.Option("--pipeline", help="Only this pipeline of the file; may be repeated.")
    ] = None,
    memory: Annotated[
        Path | None,
        typer.Option("--memory", help="What is remembered of earlier decisions (JSON); default: what is kept of them."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter, such as utilization_target=0.7; may be repeated.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the facts here, to be explained again.")
    ] = None,
) -> ExplainReport:
    """Explain what would be decided: what goes in, the arithmetic, the verdict, what is in the way. Changes nothing."""
    if config is not None and facts is not None:
        raise ConfigError("give either a configuration file, to ask now, or recorded facts (--facts)")
    current_facts, policy, current_memory = _read_inputs(config, facts, pipeline, assignments or [])
    if memory is not None:
        current_memory = state_store.read_file(Memory, memory)
    now = current_facts.at
    decision, _ = tick(policy, current_memory, current_facts, now)
    failure = None
    if save is not None:
        failure = write_output_file("--save", save, partial(state_store.write_file, current_facts))
    return ExplainReport(policy, decision, now, failure)


def _read_inputs(
    config: Path | None, facts: Path | None, pipelines: list[str] | None, assignments: list[str]
) -> tuple[Facts, Policy, Memory]:
    """Return facts, policy and memory: from a file of facts, or of the configuration as things are now."""
    if facts is None:
        return collect_once(config or default_config(), pipelines, assignments)
    return state_store.read_file(Facts, facts), apply_assignments(DEFAULTS, assignments), Memory()
