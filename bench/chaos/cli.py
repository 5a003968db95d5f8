"""`headrace chaos`: injects random faults into a stack of its own."""

import secrets
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from headrace.bench.chaos.report import ChaosReport
from headrace.bench.chaos.schedule import script
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.signals import SignalCode
from headrace.writer.demo.terminal import Screen as Terminal
from headrace.writer.output.command import command
from headrace.writer.output.report import Screen


@command(
    exits={0: "every record is accounted for", 1: "not, or the writer did not recover", 2: "something is missing"},
    json_form="one document, at the end",
)
def chaos(
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="What happens, and when. By default a new one, which is said.")
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0.5, help="How long faults are done.")] = 10.0,
    form: Annotated[TableFormat, typer.Option("--format", help="Format of the table.")] = "delta",
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Put everything into this new directory and keep it.")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would happen.")] = False,
    *,
    screen: Screen,
) -> ChaosReport | Literal[0] | SignalCode:
    """Do faults to a real stack on this machine while events flow, and judge the lake: nothing lost, nothing twice.

    Broker, registry, supervisor and writer are started here; processes are killed and frozen, checkpoints damaged,
    storage fails, topics are created again, retention takes records. The same seed plays the same script.
    """
    seed = secrets.randbelow(2**31) if seed is None else seed
    lasts = timedelta(minutes=minutes)
    terminal = Terminal(Console(highlight=False, stderr=screen.as_json and not plan))
    terminal.write(f"headrace chaos: seed {seed}, {minutes:g} minutes of faults, {form}", style="bold")
    if plan:
        for event in script(seed, lasts):
            terminal.write(f"  {timedelta(seconds=int(event.offset.total_seconds()))}  {event}")
        return 0
    if find_spec("psutil") is None:
        raise ConfigError("headrace chaos needs psutil: pip install 'headrace[bench]'")
    from headrace.bench.chaos.run import chaos as run

    return run(seed, lasts, form, keep, terminal)
