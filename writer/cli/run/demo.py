"""`headrace demo`: a broker, a registry, events, the writer and a query, on this machine."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.signals import SignalCode
from headrace.writer.demo.main import show
from headrace.writer.demo.value_formats import VALUE_FORMATS, ValueFormatName
from headrace.writer.output.command import command


@command(exits={0: "every event is accounted for", 1: "not", 2: "something that it needs is missing"})
def demo(
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Put lake, logs and configuration here and keep them.")
    ] = None,
    lake_location: Annotated[
        str | None,
        typer.Option(
            "--lake",
            metavar="LOCATION",
            help="Put the tables into this new folder, such as s3://bucket/folder, gs://…, az://… or abfss://…. "
            "Without --keep it is emptied at the end.",
        ),
    ] = None,
    stores: Annotated[
        Path | None,
        typer.Option(
            "--stores",
            metavar="FILE",
            help="A configuration whose sections s3, gcs or azure say how the store of --lake is reached; without it, "
            "the environment does.",
        ),
    ] = None,
    events: Annotated[int, typer.Option("--events", min=1000, help="How many events to produce.")] = 200_000,
    value_format: Annotated[
        ValueFormatName,
        typer.Option("--format", help="Format of the events: Avro or Protobuf by a registry, or JSON without schemas."),
    ] = "avro",
    table_format: Annotated[
        TableFormat,
        typer.Option("--table-format", metavar="FORMAT", help="Format of the table: delta, parquet or iceberg."),
    ] = "delta",
    hold: Annotated[
        bool | None,
        typer.Option(
            "--hold/--no-hold",
            help="After the account, let broker, registry and writer run until Ctrl-C. By default with --keep on a "
            "terminal; never in a pipe or a script.",
            show_default=False,
        ),
    ] = None,
) -> Literal[0, 1] | SignalCode:
    """Show it all on this machine: a real broker and registry, events, the writer, and a query over the lake.

    Half-way the events get one more field; some are late, from the future, or broken. At the end each is counted, and
    the values of the rows are compared with the events.

    Ctrl-C leaves nothing running, and no files, here or in the folder of --lake, unless --keep names a directory.
    """
    return show(
        events,
        keep,
        form=table_format,
        value_format=VALUE_FORMATS[value_format],
        hold=hold,
        lake_location=lake_location,
        stores=stores,
    )
