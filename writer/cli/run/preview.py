"""`headrace preview`: shows what becomes of records, without Spark."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from headrace.writer.config.loader import load, load_pipelines
from headrace.writer.core.errors import ConfigError
from headrace.writer.output.cli_options import ConfigFile, OnePipeline, OneTarget
from headrace.writer.output.command import command
from headrace.writer.output.report import Screen
from headrace.writer.preflight.samples.preview import PreviewRequest, TopicSelection, preview_file, preview_topics
from headrace.writer.preflight.samples.preview_text import Step


@command(
    exits={0: "shown", 1: "Kafka or the registry does not answer", 2: "configuration"},
    json_form="a line for each record, or file",
    has_lines=True,
)
def preview(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    at: Annotated[
        Step,
        typer.Option("--at", help="As Kafka holds them, as rows, with event times and buckets, or as Parquet files."),
    ] = "decoded",
    records: Annotated[int, typer.Option("-n", "--records", min=1, help="How many records.")] = 20,
    start: Annotated[
        str, typer.Option("--from", help="latest: the newest; or from earliest, or from a time, on.")
    ] = "latest",
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C; from a position: all from there on.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write the records and their schemas to this new file, too.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Show the records of such a file, without Kafka and registry.")
    ] = None,
    *,
    screen: Screen,
) -> None:
    """Show records of a pipeline's topics as a step of the writer sees them. Without Spark; changes nothing.

    Of a route, the records of each table one after the other, or of one with --target.
    """
    now = datetime.now(UTC)
    request = PreviewRequest(pipeline, target, at)
    if file is not None:
        if follow or save is not None or start != "latest":
            raise ConfigError("--file shows all records of a file; leave --follow, --from and --save out")
        preview_file(load_pipelines(config, os.environ), request, file, screen=screen, now=now)
        return
    selection = TopicSelection(records, start, follows=follow, save=save)
    preview_topics(load(config), request, selection, screen=screen, now=now)
