"""The commands `headrace autoscaler`."""

import json
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from autoscaler.decision.decide import tick
from autoscaler.decision.explanation import lines, to_dict
from autoscaler.decision.facts import Facts
from autoscaler.decision.history import Memory
from autoscaler.decision.policy import DEFAULTS, Policy, assigned
from autoscaler.runtime import state_store
from autoscaler.runtime.main import asked, policy_of, run as scale
from autoscaler.simulate import report, trace as traces
from autoscaler.simulate.report import draw
from autoscaler.simulate.run import RIVALS, compare
from autoscaler.simulate.trace import Trace, read
from autoscaler.simulate.workloads import SHAPES, shape
from writer.config.loader import load
from writer.core import logging
from writer.core.errors import ConfigError
from writer.output.tables import console

autoscaler = typer.Typer(name="autoscaler", no_args_is_help=True, help="How many executors there should be, and why.")
_FORMATS = (".png", ".svg", ".pdf")


class Rival(StrEnum):
    """What a simulated day may be compared with."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    FLINK = "flink"
    THRESHOLD = "threshold"
    EQUAL = "equal"
    NONE = "none"


@autoscaler.command()
def run(
    config: Annotated[Path, typer.Argument(help="Configuration file (YAML), the driver's own.")],
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
) -> None:
    """Keep as many executors as the lag asks for, until SIGTERM or Ctrl-C. Runs beside the driver, without Spark.

    Asks Kafka and the driver, decides, and asks the driver for executors; says each decision with its reason. Answers
    at 127.0.0.1:9645 (`autoscaler` in the configuration): /metrics, /status, /healthz. What it remembers outlives it.

    Exit codes: 0 stopped, 2 configuration: also where there are no executors to scale, such as with local[*].
    """
    logging.set_up()
    settings = load(config)
    every = [] if interval is None else [f"interval={interval}"]
    policy = policy_of(settings, [*(assignments or []), *every])
    raise typer.Exit(scale(settings, settings.chosen(pipeline), policy, dry_run=dry_run))


@autoscaler.command()
def explain(
    config: Annotated[
        Path | None, typer.Argument(help="Configuration file (YAML): ask driver, Kafka and lake now.")
    ] = None,
    facts: Annotated[Path | None, typer.Option("--facts", help="Or recorded facts (JSON): nobody is asked.")] = None,
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
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Explain what would be decided: what goes in, the arithmetic, the verdict, what is in the way. Changes nothing.

    Exit codes: 0 explained, 2 a file or a parameter is wrong.
    """
    if (config is None) == (facts is None):
        raise ConfigError("give either a configuration file, to ask now, or recorded facts (--facts)")
    if config is not None:
        known, policy, remembered = asked(config, pipeline, assignments or [])
    else:
        assert facts is not None, "one of the two is given"
        known, policy, remembered = state_store.read_file(Facts, facts), assigned(DEFAULTS, assignments or []), Memory()
    if memory is not None:
        remembered = state_store.read_file(Memory, memory)
    if save is not None:
        state_store.write_file(known, save)
    decision, _ = tick(policy, remembered, known, known.at)
    if as_json:
        typer.echo(json.dumps(to_dict(decision, known.at), indent=2))
    else:
        typer.echo("\n".join(lines(policy, decision, known.at)))


@autoscaler.command()
def simulate(
    trace: Annotated[
        list[str] | None,
        typer.Option("--trace", help="A name, or a file of a trace (JSON); may be repeated. Default: all names."),
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter, such as utilization_target=0.7; may be repeated.")
    ] = None,
    rivals: Annotated[
        list[Rival] | None,
        typer.Option(
            "--policy",
            help="What to compare with, may be repeated; equal is the lag threshold that costs as much. Default: all.",
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw load, lag and executors (.png, .svg, .pdf).")
    ] = None,
    save: Annotated[
        Path | None, typer.Option("--save", metavar="FILE", help="Write the trace here, to be changed and read again.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Play days in a simulated world: what this policy would cost, how late records would be, and what others do there.

    The world's truth is not the policy's model: tasks have luck, slots disturb each other, executors come late and die.
    A day takes a second or two for each policy, and ten times as long for `equal`, which searches; all days, minutes.

    Exit codes: 0 played, 2 a trace or a parameter is wrong.
    """
    policy = assigned(DEFAULTS, assignments or [])
    found = [_trace(name) for name in (trace or SHAPES)]
    _check(plot, save, len(found))
    if save is not None:
        traces.write(found[0], save)
    _play(found, policy, rivals, plot, as_json=as_json)


def _play(
    traces: "list[Trace]", policy: "Policy", rivals: list[Rival] | None, plot: Path | None, *, as_json: bool
) -> None:

    chosen = RIVALS if rivals is None else [one.value for one in rivals if one is not Rival.NONE]
    scores = []
    for one in traces:
        played = compare(one, policy, chosen)
        scores += played
        if not as_json:
            report.show(console(), one, played)
    if as_json:
        typer.echo(json.dumps(report.as_json(scores, policy), indent=1))
    if plot is not None:
        draw(traces[0], scores, plot)


def _trace(name: str) -> "Trace":

    return shape(name) if name in SHAPES or not (name.endswith(".json") or "/" in name) else read(Path(name))


def _check(plot: Path | None, save: Path | None, traces: int) -> None:
    """Raise ConfigError now, not after minutes, for what cannot be written."""
    for option, path in (("--plot", plot), ("--save", save)):
        if path is None:
            continue
        if traces != 1:
            raise ConfigError(f"{option} is of one trace, and {traces} were asked for; name one with --trace")
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise ConfigError(f"{option} {path} cannot be written: its directory must exist, and it must be a file")
    if plot is None:
        return
    if plot.suffix not in _FORMATS:
        raise ConfigError(f"--plot {plot} has no format that is known; end it in {', '.join(_FORMATS)}")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'headrace[bench]'")
