"""`headrace size`: estimates resources for a topic's real traffic, line by line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.writer.clients import kafka_sample
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import PipelineNames
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import hanging, ruled_table, show
from headrace.writer.preflight.capacity.prices import PRICE_ASSUMPTIONS, read_prices
from headrace.writer.preflight.capacity.sizing import UTILISATION, Line, Sizing, add_up, rates, size as compute_size
from headrace.writer.preflight.samples.traffic import measure_traffic

# Columns for a line's name and its value.
_NAME_WIDTH = 33
_VALUE_WIDTH = 13
# Pipelines of which the arithmetic is shown.
_BLOCKS_MAX = 4
_PIPELINE_COLUMNS = ("cores", "on one machine", "lake a day", "files a day", "commits a day", "writes a day")
_TABLE_COLUMNS = ("events per second", "a row in the lake", "lake a day", "files in a commit", "files a day")


@dataclass(frozen=True)
class PipelineSizing:
    """The sizing of a pipeline, and the traffic that it is for."""

    sizing: Sizing
    # What was measured.
    sample: str


@dataclass(frozen=True)
class SizeReport(Report):
    """The sizings of pipelines, by name."""

    pipelines: Mapping[str, PipelineSizing]
    # Of the rates beside those of the sample.
    machine: str = field(metadata=SCREEN_ONLY)
    # The rate that was given.
    rate: float | None = field(metadata=SCREEN_ONLY)
    # Whether prices were given.
    is_priced: bool = field(default=False, metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw the arithmetic of each pipeline, or a line for each of many; their sum, and where rates are from."""
        sizings = {name: pipeline.sizing for name, pipeline in self.pipelines.items()}
        if len(sizings) > _BLOCKS_MAX:
            _render_table(out, "pipeline", _PIPELINE_COLUMNS, sizings)
            out.print()
        else:
            for name, pipeline in self.pipelines.items():
                _render_sizing(out, name, pipeline)
        if len(sizings) > 1:
            _render_sum(out, list(sizings.values()))
        _render_provenance(out, self.machine, self.rate)
        if self.is_priced:
            hanging(out, "", PRICE_ASSUMPTIONS, "dim")


def _render_sizing(out: Console, name: str, pipeline: PipelineSizing) -> None:
    out.print(Text(name, "bold").append(f": {pipeline.sample}", "dim"), soft_wrap=not out.is_terminal)
    group = ""
    for line in pipeline.sizing.lines:
        if line.group != group:
            group = line.group
            out.print()
            out.print(Text(f"  {group}", "bold"))
        _render_line(out, line)
    if pipeline.sizing.tables:
        out.print()
        _render_table(out, "table", _TABLE_COLUMNS, pipeline.sizing.tables)
    for warning in pipeline.sizing.warnings:
        out.print()
        hanging(out, "  ! ", warning, "yellow")
    out.print()


def _render_table(out: Console, title: str, columns: Sequence[str], sizings: Mapping[str, Sizing]) -> None:
    """Print a line for each sizing, the one with most files a day first."""
    table = ruled_table(title, *columns)
    for name, sizing in sorted(sizings.items(), key=lambda item: -item[1].value("files a day")):
        lines = {line.name: line for line in sizing.lines}
        table.add_row(Text(name), *(lines[column].shown for column in columns))
    show(table, out)


def _render_line(out: Console, line: Line) -> None:
    head = f"  {line.name:<{_NAME_WIDTH}}{line.shown:>{_VALUE_WIDTH}}   "
    hanging(out, head, line.how, "dim")


def _render_sum(out: Console, sizings: list[Sizing]) -> None:
    out.print(Text(f"All {len(sizings)} pipelines in one application", "bold"))
    for line in add_up(sizings):
        _render_line(out, line)
    out.print()


def _render_provenance(out: Console, machine: str, rate: float | None) -> None:
    if rate is None:
        hanging(
            out,
            "",
            "Processor time is that of the sample: its records went through the steps of a task on this machine. What "
            f"an event costs beside them is measured by `headrace bench`, on {machine}. --rate gives another.",
            "dim",
        )
    hanging(
        out,
        "",
        f"An estimate, at {UTILISATION:.0%} of the cores. --events-per-second sizes for other traffic.",
        "dim",
    )


@command(
    exits={0: "shown", 1: "Kafka or the registry does not answer", 2: "configuration, or nothing to measure"},
    json_form="one document, with the arithmetic of each pipeline",
)
def size(
    pipelines: PipelineNames,
    sample: Annotated[
        int, typer.Option("--sample", min=1, help="How many of the newest records of each pipeline to measure.")
    ] = 20_000,
    events_per_second: Annotated[
        float | None,
        typer.Option("--events-per-second", min=0.001, help="Size for this traffic, instead of the last hour's."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", min=1, help="Events that one processor second carries, instead of what the sample takes here."
        ),
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            "--prices",
            metavar="FILE",
            help="Reckon dollars by the prices of this YAML file: storage_gb_month, put_list_per_1000, get_per_1000.",
        ),
    ] = None,
) -> SizeReport:
    """Size a pipeline for its topic's traffic: cores, memory, files, requests, with the arithmetic. Changes nothing.

    Processor time is measured: the sample goes through the steps of a task on this machine.

    The tables of a route share its processors and commits; rows and files are listed by table, too. A table of which no
    sampled record becomes a row is left out, and a warning says so. A raw table's bytes, files, memory and processor
    time are counted as well.

    headrace has no prices of its own: those of --prices are yours, of one store. What is reckoned is said beside it.
    """
    price_list = None if prices is None else read_prices(prices)
    settings = pipelines.config
    now = datetime.now(UTC)
    cluster = kafka_sample.open_cluster(settings.kafka)
    measured = rates()
    sizings: dict[str, PipelineSizing] = {}
    for name in pipelines.names:
        measurement = measure_traffic(name, settings, cluster, sample, now, events_per_second)
        sizing = compute_size(
            measurement.traffic, settings.pipelines[name], measured, rate, measurement.tables, price_list
        )
        omissions = [f"{target} is left out of rows and files: {why}" for target, why in measurement.left_out.items()]
        sizing = replace(sizing, warnings=[*omissions, *sizing.warnings])
        sizings[name] = PipelineSizing(sizing, measurement.looked_at)
    return SizeReport(sizings, measured.machine, rate, is_priced=price_list is not None)
