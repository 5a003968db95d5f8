"""`headrace shadow`: writes the offsets of a table to a second one, by another file or from another image."""

import shlex
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.audit.coverage import Coverage, coverage
from writer.cli.run.run import run_writer
from writer.config.loader import ReloadableConfig, load
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.signals import on_hangup
from writer.core.text import plural
from writer.maintenance.migration.shadow import revive_shadow, shadow_start_offsets, shadow_writer_config
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.tables import Column, TextTable, console, count_cell, emit_whole, numbers, sentence

OtherFile = Annotated[
    Path | None,
    typer.Option("--with", help="Configuration of the shadow. Default: the same file, where the image is another."),
]


def shadow(
    config: ConfigFile,
    location: Annotated[str, typer.Option("--location", help="Where the second table lies; what is beside it, too.")],
    pipeline: OnePipeline = None,
    other: OtherFile = None,
    begin: Annotated[
        str,
        typer.Option("--from", help="Where a new shadow begins: start (as the first table), now, or a version of it."),
    ] = "start",
    follow: Annotated[
        bool, typer.Option("--follow", help="Read on beside the first until it is stopped. Default: what is there now.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the offsets of a pipeline's table to a second one, without touching the first.

    The writer runs as `headrace run` does, with --with FILE for other rules, or from another image; its table, what is
    beside that and its checkpoints have places of their own, and no hook, receiver or consumer group hears of it. If it
    ends, run it again: it goes on where its table ends. Compare the two with `headrace diff`, switch with `headrace
    promote`.

    Exit codes: 0 done, 1 crash, 2 configuration, 4 fenced by another run, 5 stopped by a limit.
    """
    first, name = load_pipeline(config, pipeline)
    offsets = shadow_start_offsets(first, name, begin)
    path = other or config
    reload = threading.Event()

    def read(file: Path) -> Config:
        return shadow_writer_config(first, load(file), name, location, offsets)

    file = ReloadableConfig(path, [name], reload, read=read)
    logging.set_up()
    on_hangup(reload)
    revive_shadow(first, file.config, name)
    code = run_writer(file, once=not follow)
    if code:
        raise typer.Exit(code)
    document = _document(name, coverage(first, name), coverage(file.config, name))
    options = f" --with {shlex.quote(str(other))}" if other else ""
    document["diff"] = (
        f"headrace diff {shlex.quote(str(config))} --pipeline {name}{options} --shadow {document['location']}"
    )
    if as_json:
        emit_whole(document)
    else:
        _show(console(), document)


def _document(name: str, first: Coverage, shadow: Coverage) -> dict[str, Any]:
    total = shadow.audit.reconciliation.total
    return {
        "pipeline": name,
        "location": shadow.location,
        "rows": total("rows"),
        "dead_letters": total("dead_letters") + total("quarantined"),
        "partitions": _partition_documents(first, shadow),
    }


def _partition_documents(first: Coverage, shadow: Coverage) -> list[dict[str, Any]]:
    documents = []
    for key, line in sorted(shadow.lines.items(), key=lambda item: item[1].part):
        line_of_first = first.lines.get(key)
        documents.append(
            {
                "topic": line.part.topic,
                "partition": line.part.partition,
                "start": line.range.start,
                "end": line.range.end,
                "first_end": line_of_first and line_of_first.range.end,
                "gap": line.gap,
            }
        )
    return documents


def _show(out: Console, document: Mapping[str, Any]) -> None:
    sentence(
        out,
        f"{document['pipeline']}: the shadow at {document['location']} has {plural(document['rows'], 'row')}, and "
        f"{plural(document['dead_letters'], 'dead letter')}.",
    )
    table = TextTable(out, [Column("partition"), *numbers("from", "to", "the first to", "in gaps")])
    table.add([_partition_row(partition) for partition in document["partitions"]])
    sentence(out, f"Compare: {document['diff']}")


def _partition_row(partition: Mapping[str, Any]) -> list[str]:
    return [
        f"{partition['topic']}/{partition['partition']}",
        f"{partition['start']:,}",
        f"{partition['end']:,}",
        count_cell(partition["first_end"], "none"),
        f"{partition['gap']:,}",
    ]
