"""`headrace size`: estimates resources for a topic's real traffic, line by line."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from writer.clients import kafka_sample
from writer.config.loader import load
from writer.core.text import listed
from writer.output import tables
from writer.output.cli_options import ConfigFile, Pipelines, json_option
from writer.preflight.sizing import UTILISATION, Line, Rates, Sizing, document, rates, size as compute_size
from writer.preflight.traffic import measured

_NAME, _VALUE = 33, 13  # columns for a line's name and its value
_BLOCKS_MAX = 4  # tables of which the arithmetic is shown
_SUMMED = ("cores", "on one machine", "lake a day", "files a day", "commits a day", "writes a day")


def _show(out: Console, name: str, sizing: Sizing, looked_at: str) -> None:
    out.print(Text(name, "bold").append(f": {looked_at}", "dim"), soft_wrap=not out.is_terminal)
    group = ""
    for line in sizing.lines:
        if line.group != group:
            group = line.group
            out.print()
            out.print(Text(f"  {group}", "bold"))
        _print(out, line)
    for warning in sizing.warnings:
        out.print()
        tables.hanging(out, "  ! ", warning, "yellow")
    out.print()


def _listed(out: Console, sizings: Mapping[str, Sizing]) -> None:
    """Print a line for each, the one with most files a day first."""
    table = tables.ruled("table", *_SUMMED)
    for label, sizing in sorted(sizings.items(), key=lambda one: -one[1].value("files a day")):
        lines = {line.name: line for line in sizing.lines}
        table.add_row(Text(label), *(lines[name].shown for name in _SUMMED))
    tables.show(table, out)
    out.print()


def _print(out: Console, line: Line) -> None:
    head = f"  {line.name:<{_NAME}}{line.shown:>{_VALUE}}   "
    tables.hanging(out, head, line.how, "dim")


def _together(out: Console, sizings: list[Sizing]) -> None:
    out.print(Text(f"All {len(sizings)} tables in one application", "bold"))
    for name in _SUMMED:
        parts = [next(line for line in sizing.lines if line.name == name) for sizing in sizings]
        how = listed([part.shown for part in parts], _BLOCKS_MAX, " + ")
        total = Line("", name, sum(part.value for part in parts), parts[0].unit, how)
        _print(out, total)
    out.print()


def _provenance(out: Console, known: Rates, rate: float | None) -> None:
    note = "" if rate else f"{known.source} Measured on {known.machine}. --rate gives another.\n"
    note += f"An estimate, at {UTILISATION:.0%} of the cores. --events-per-second sizes for other traffic."
    for line in note.splitlines():
        tables.hanging(out, "", line, "dim")


def size(
    config: ConfigFile,
    pipeline: Pipelines = None,
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="How many of the newest records of each pipeline to measure.")
    ] = 20_000,
    events_per_second: Annotated[
        float | None,
        typer.Option("--events-per-second", min=0.001, help="Size for this traffic, instead of the last hour's."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", min=1, help="Events that one processor second carries, instead of the measured rate."),
    ] = None,
    as_json: Annotated[bool, json_option("a list with the arithmetic of each pipeline")] = False,
) -> None:
    """Size a pipeline for its topic's traffic: cores, memory, files, requests, with the arithmetic. Changes nothing.

    The tables of a route are sized one by one, by their share of the sampled records.

    Exit codes: 0 shown, 1 Kafka or the registry does not answer, 2 configuration, or nothing to measure.
    """
    settings, now = load(config), datetime.now(UTC)
    cluster = kafka_sample.asked(settings.kafka)
    known, out = rates(), tables.console()
    done: dict[str, tuple[Sizing, str]] = {}
    for name in settings.chosen(pipeline):
        by_table = measured(name, settings, cluster, sample, now, events_per_second)
        for label, (traffic, looked_at, table) in by_table.items():
            done[label] = (compute_size(traffic, table, known, rate), looked_at)
    if as_json:
        tables.emit_whole(
            [{**document(name, sizing), "sample": looked_at} for name, (sizing, looked_at) in done.items()]
        )
        return
    if len(done) > _BLOCKS_MAX:
        _listed(out, {label: sizing for label, (sizing, _) in done.items()})
    else:
        for label, found in done.items():
            _show(out, label, *found)
    if len(done) > 1:
        _together(out, [sizing for sizing, _ in done.values()])
    _provenance(out, known, rate)
