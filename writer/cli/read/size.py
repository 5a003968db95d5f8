"""`headrace size`: estimates resources for a topic's real traffic, line by line."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from writer.clients import kafka_sample
from writer.config.loader import load
from writer.output import tables
from writer.output.cli_options import ConfigFile, Pipelines, json_option
from writer.preflight.sizing import UTILISATION, Line, Rates, Sizing, add_up, document, rates, size as compute_size
from writer.preflight.traffic import measure_traffic

_NAME, _VALUE = 33, 13  # columns for a line's name and its value
_BLOCKS_MAX = 4  # pipelines of which the arithmetic is shown
_LISTED = ("cores", "on one machine", "lake a day", "files a day", "commits a day", "writes a day")
_OF_TABLES = ("events per second", "a row in the lake", "lake a day", "files in a commit", "files a day")


def _show(out: Console, name: str, sizing: Sizing, looked_at: str) -> None:
    out.print(Text(name, "bold").append(f": {looked_at}", "dim"), soft_wrap=not out.is_terminal)
    group = ""
    for line in sizing.lines:
        if line.group != group:
            group = line.group
            out.print()
            out.print(Text(f"  {group}", "bold"))
        _print(out, line)
    if sizing.tables:
        out.print()
        _listed(out, "table", _OF_TABLES, sizing.tables)
    for warning in sizing.warnings:
        out.print()
        tables.hanging(out, "  ! ", warning, "yellow")
    out.print()


def _listed(out: Console, what: str, names: Sequence[str], sizings: Mapping[str, Sizing]) -> None:
    """Print a line for each, the one with most files a day first."""
    table = tables.ruled_table(what, *names)
    for label, sizing in sorted(sizings.items(), key=lambda one: -one[1].value("files a day")):
        lines = {line.name: line for line in sizing.lines}
        table.add_row(Text(label), *(lines[name].shown for name in names))
    tables.show(table, out)


def _print(out: Console, line: Line) -> None:
    head = f"  {line.name:<{_NAME}}{line.shown:>{_VALUE}}   "
    tables.hanging(out, head, line.how, "dim")


def _together(out: Console, sizings: list[Sizing]) -> None:
    out.print(Text(f"All {len(sizings)} pipelines in one application", "bold"))
    for line in add_up(sizings):
        _print(out, line)
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

    The tables of a route share its processors and commits; rows and files are listed by table, too. A table of which no
    sampled record becomes a row is left out, and a warning says so. A raw table's bytes, files, memory and processor
    time are counted as well.

    Exit codes: 0 shown, 1 Kafka or the registry does not answer, 2 configuration, or nothing to measure.
    """
    settings, now = load(config), datetime.now(UTC)
    cluster = kafka_sample.open_cluster(settings.kafka)
    known, out = rates(), tables.console()
    done: dict[str, tuple[Sizing, str]] = {}
    for name in settings.chosen(pipeline):
        found = measure_traffic(name, settings, cluster, sample, now, events_per_second)
        sizing = compute_size(found.traffic, settings.pipelines[name], known, rate, found.tables)
        left_out = [f"{target} is left out of rows and files: {why}" for target, why in found.left_out.items()]
        done[name] = replace(sizing, warnings=[*left_out, *sizing.warnings]), found.looked_at
    if as_json:
        tables.emit_whole(
            [{**document(name, sizing), "sample": looked_at} for name, (sizing, looked_at) in done.items()]
        )
        return
    if len(done) > _BLOCKS_MAX:
        _listed(out, "pipeline", _LISTED, {name: sizing for name, (sizing, _) in done.items()})
        out.print()
    else:
        for name, one in done.items():
            _show(out, name, *one)
    if len(done) > 1:
        _together(out, [sizing for sizing, _ in done.values()])
    _provenance(out, known, rate)
