"""`headrace bench`: measures the writer beside plain Spark jobs."""

import re
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.signals import SignalCode
from headrace.writer.output.command import command
from headrace.writer.output.output_file import check_output_file, write_output_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from headrace.bench.figures import Run
    from headrace.bench.machine import Machine
    from headrace.bench.rounds import Setting

_COUNT = re.compile(r"^(\d+(?:\.\d+)?)\s*([kKmM]?)$")
_FACTORS = {"": 1, "k": 1000, "m": 1_000_000}
_Data = Annotated[
    str,
    typer.Option(
        "--data",
        help="Data sets, such as 200B,200B-json: 200B, 1KB, 4KB, 200col or nested in Avro; the same with "
        "-protobuf is Protobuf, with -json JSON, with -json-rest JSON with three undeclared members. Of the "
        "contenders only headrace reads these. 200B-headers has two tracing headers, and mixed three versions of "
        "the schema in turn.",
    ),
]


@command(
    exits={
        0: "measured",
        1: "a contender failed, lost or doubled events, or a file could not be written",
        2: "something that it needs is missing, or a file could not be written",
    }
)
def bench(
    data: _Data = "200B",
    events: Annotated[str, typer.Option("--events", help="How many, such as 500K or 10M.")] = "2M",
    contenders: Annotated[
        str | None,
        typer.Option(
            "--contenders",
            help="a: headrace, b: plain PySpark, c: b repartitioned, d: the steps alone, e: f with fetches that wait "
            "500 ms, f: a with kafka.reader: spark, g: Flink's FileSink, h: g tuned, i: a Python "
            "script. Default: a,b,c,d; with --partitions: a.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each, in turn.")] = 1,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write JSON to this file: settings, figures and runs.")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw the figures here (.png, .svg, .pdf).")
    ] = None,
    keep: Annotated[Path | None, typer.Option("--keep", help="Put tables and logs here and keep them.")] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Also tell where the CPU time goes.")] = False,
    warm_from: Annotated[
        float, typer.Option("--warm-from", help="Share of the events after which measuring begins.")
    ] = 0.2,
    slots: Annotated[int, typer.Option("--slots", min=1, help="Tasks of a contender that run at once.")] = 2,
    partitions: Annotated[
        str | None,
        typer.Option(
            "--partitions",
            help="Compare topics of so many partitions, such as 4,100,1000: each once with 200 events a partition, and "
            "once with --events in all.",
        ),
    ] = None,
) -> Literal[0] | SignalCode:
    """Measure the writer on this machine, beside the PySpark job one would write first and the limit of its design.

    Everything is real: a broker, a registry, a pinned data set, each contender a process tree of its own, measured from
    outside. The default takes some minutes; the published figures are of --events 24M --warm-from 0.67
    --contenders a,h,g,d,b,f.
    """
    count = number(events)
    _require(plot=plot_file is not None)
    _check(json_file, plot_file)
    from headrace.bench.contenders.contenders import parse_contenders
    from headrace.bench.data.dataset import parse_data_sets
    from headrace.bench.rounds import Setting

    counts = [number(each) for each in partitions.split(",")] if partitions else []
    if counts and (profile or plot_file is not None):
        raise ConfigError("--partitions has no warm part, which --profile and --plot show. Leave them out.")
    named = contenders or ("a" if counts else "a,b,c,d")
    setting = Setting(parse_data_sets(data), count, parse_contenders(named), repeats, profile, counts, warm_from, slots)
    return _measure(setting, keep, json_file, plot_file)


def number(text: str) -> int:
    """Read `500K` or `10M` as a count. Raises ConfigError."""
    match = _COUNT.match(text.replace(",", "").replace("_", "").strip())
    if match is None:
        raise ConfigError(f"{text!r} is no number of events; write 500K, 2M or 10000000")
    return int(float(match[1]) * _FACTORS[match[2].lower()])


def _require(*, plot: bool) -> None:
    """Raise ConfigError unless the extra is installed, and a Java for the registry."""
    from headrace.writer.clients import java_artifacts
    from headrace.writer.demo.devstack import registry

    missing = [name for name in ("psutil", *(("matplotlib",) if plot else ())) if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the bench needs {' and '.join(missing)}: pip install 'headrace[bench]'")
    java_artifacts.java(registry.JAVA_MIN)


def _check(json_file: Path | None, plot_file: Path | None) -> None:
    """Raise ConfigError now, not after an hour, for a file that cannot be written."""
    from headrace.bench.picture import FORMATS

    for option, path in (("--json", json_file), ("--plot", plot_file)):
        if path is not None:
            check_output_file(option, path)
    if plot_file is not None and plot_file.suffix not in FORMATS:
        raise ConfigError(f"--plot {plot_file} has no format that is known; end it in {', '.join(FORMATS)}")


def _measure(
    setting: "Setting", keep: Path | None, json_file: Path | None, plot_file: Path | None
) -> Literal[0] | SignalCode:
    from rich.console import Console

    from headrace.bench import machine, show
    from headrace.bench.figures import costs
    from headrace.bench.rounds import BenchDirectory, play
    from headrace.writer.demo.devstack.workspace import Interruption
    from headrace.writer.output import tables

    console = Console(highlight=False)
    directory = BenchDirectory(keep)
    machine_facts = machine.inspect_machine()
    interruption = Interruption()
    console.print(show.header(setting, machine_facts), "")
    with show.Screen(console) as screen:
        runs = play(setting, directory, screen, interruption)
    if runs is None:
        console.print("stopped; nothing is left running" + (f"; what there is lies in {keep}" if keep else ""))
        return interruption.exit_code
    console.print()
    if setting.partitions:
        tables.show(show.by_partitions(costs(runs)), console)
    else:
        _show_race(console, runs, setting)
    if keep is not None:
        console.print(f"written: {keep}", soft_wrap=True)
    write_results(runs, setting, machine_facts, json_file, plot_file, console)
    return 0


def _show_race(console: "Console", runs: "Sequence[Run]", setting: "Setting") -> None:
    from headrace.bench import show
    from headrace.writer.output import tables

    tables.show(show.results(runs, console.width), console)
    console.print()
    for sentence in [*show.comparison(runs, setting), *show.short_window_sentences(runs)]:
        console.print(sentence, soft_wrap=True)
    if setting.profile:
        console.print()
        tables.show(show.profile(runs), console)
    console.print()
    console.print(show.legend(setting.warm_from), style="dim")
    if hint := show.smaller_setting_hint(setting):
        console.print(hint, style="dim")


def write_results(
    runs: "Sequence[Run]",
    setting: "Setting",
    machine: "Machine",
    json_file: Path | None,
    plot_file: Path | None,
    console: "Console",
) -> None:
    """Write the files that were asked for, and name them. Raises HeadraceError for those that cannot be written."""
    from headrace.bench import plot, show

    writers: dict[str, tuple[Path | None, Callable[[Path], None]]] = {
        "--json": (json_file, partial(show.write_json, runs, setting, machine)),
        "--plot": (plot_file, partial(plot.draw, runs, setting, machine)),
    }
    failures: list[HeadraceError] = []
    for option, (path, write) in writers.items():
        if path is None:
            continue
        failure = write_output_file(option, path, write)
        if failure is None:
            console.print(f"written: {path}", soft_wrap=True)
        else:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise HeadraceError("\nheadrace: ".join(map(str, failures)))
