"""`headrace simulate`: simulates a day of load with several scaling policies."""

from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from headrace.autoscaler.decision.policy import DEFAULTS, apply_assignments
from headrace.bench.picture import FORMATS
from headrace.bench.simulation import trace as traces
from headrace.bench.simulation.report import SimulationReport, draw, show_scores
from headrace.bench.simulation.run import RIVALS, Score, compare
from headrace.bench.simulation.trace import Trace, read
from headrace.bench.simulation.workloads import SHAPES, shape
from headrace.writer.core.errors import ConfigError
from headrace.writer.output.command import command
from headrace.writer.output.output_file import check_output_file, write_output_file
from headrace.writer.output.report import Screen


class Rival(StrEnum):
    """What a simulated day may be compared with."""

    STATIC = "static"
    DYNAMIC = "dynamic"
    FLINK = "flink"
    THRESHOLD = "threshold"
    EQUAL = "equal"
    NONE = "none"


@command(exits={0: "played", 1: "a file cannot be read or written", 2: "a trace or a parameter is wrong"})
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
    *,
    screen: Screen,
) -> SimulationReport:
    """Play days in a simulated world: what a scaling policy would cost, how late records would be, beside others.

    The world's truth is not the policy's model: tasks have luck, slots disturb each other, executors come late and die.
    A day takes a second or two for each policy, and ten times as long for `equal`, which searches; all days, minutes.
    """
    policy = apply_assignments(DEFAULTS, assignments or [])
    days = [_trace(name) for name in (trace or SHAPES)]
    _check(plot, save, len(days))
    if save is not None:
        save_failure = write_output_file("--save", save, partial(traces.write, days[0]))
        # Nothing was played yet.
        if save_failure is not None:
            raise save_failure
    names: Sequence[str] = RIVALS
    if rivals is not None:
        names = [rival.value for rival in rivals if rival is not Rival.NONE]
    scores: list[Score] = []
    for day in days:
        day_scores = compare(day, policy, names)
        scores += day_scores
        show_scores(screen.out, day, day_scores)
    failure = None
    if plot is not None:
        failure = write_output_file("--plot", plot, partial(draw, days[0], scores))
    return SimulationReport(policy, scores, failure)


def _trace(name: str) -> Trace:
    is_file_name = name.endswith(".json") or "/" in name
    if is_file_name and name not in SHAPES:
        return read(Path(name))
    return shape(name)


def _check(plot: Path | None, save: Path | None, traces: int) -> None:
    """Raise ConfigError now, not after minutes, for what cannot be written."""
    for option, path in (("--plot", plot), ("--save", save)):
        if path is None:
            continue
        if traces != 1:
            raise ConfigError(f"{option} is of one trace, and {traces} were asked for; name one with --trace")
        check_output_file(option, path)
    if plot is None:
        return
    if plot.suffix not in FORMATS:
        raise ConfigError(f"--plot {plot} has no format that is known; end it in {', '.join(FORMATS)}")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'headrace[bench]'")
