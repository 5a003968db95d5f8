"""The commands `headrace autoscaler`."""

import threading
from pathlib import Path
from typing import Annotated

import typer

from autoscaler.decision.decide import tick
from autoscaler.decision.explanation import lines, to_dict
from autoscaler.decision.facts import Facts
from autoscaler.decision.history import Memory
from autoscaler.decision.policy import DEFAULTS, assigned
from autoscaler.runtime import state_store
from autoscaler.runtime.main import asked, policy_of, run as scale
from writer.config.loader import ReloadableConfig
from writer.core import logging
from writer.core.config_location import SHOWN, default_config
from writer.core.errors import ConfigError
from writer.core.signals import on_hangup
from writer.output.cli_options import AsJson, WatchConfig, config_argument
from writer.output.tables import emit_whole

autoscaler = typer.Typer(name="autoscaler", no_args_is_help=True, help="How many executors there should be, and why.")


@autoscaler.command()
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

    Exit codes: 0 stopped, 2 configuration: also where there are no executors to scale, such as with local[*].
    """
    logging.set_up()
    reload = threading.Event()
    on_hangup(reload)
    file = ReloadableConfig(config, pipeline, reload, watched=watch_config)
    every = [] if interval is None else [f"interval={interval}"]
    policy = policy_of(file.config, [*(assignments or []), *every])
    raise typer.Exit(scale(file, policy, dry_run=dry_run))


@autoscaler.command()
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
    as_json: AsJson = False,
) -> None:
    """Explain what would be decided: what goes in, the arithmetic, the verdict, what is in the way. Changes nothing.

    Exit codes: 0 explained, 2 a file or a parameter is wrong.
    """
    if config is not None and facts is not None:
        raise ConfigError("give either a configuration file, to ask now, or recorded facts (--facts)")
    if facts is None:
        known, policy, remembered = asked(config or default_config(), pipeline, assignments or [])
    else:
        known, policy, remembered = state_store.read_file(Facts, facts), assigned(DEFAULTS, assignments or []), Memory()
    if memory is not None:
        remembered = state_store.read_file(Memory, memory)
    if save is not None:
        state_store.write_file(known, save)
    decision, _ = tick(policy, remembered, known, known.at)
    if as_json:
        emit_whole(to_dict(decision, known.at))
    else:
        typer.echo("\n".join(lines(policy, decision, known.at)))
