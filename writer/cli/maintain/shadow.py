"""`headrace shadow`: writes the offsets of a table to a second one, by another file or from another image."""

import shlex
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.audit.coverage import Coverage, coverage
from headrace.writer.cli.run.run import run_writer
from headrace.writer.config.loader import ReloadableConfig, load
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ExitCode
from headrace.writer.core.signals import on_hangup
from headrace.writer.core.text import plural
from headrace.writer.maintenance.migration.shadow import revive_shadow, shadow_start_offsets, shadow_writer_config
from headrace.writer.output.cli_options import ConfigFile
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import Report
from headrace.writer.output.tables import Column, TextTable, count_cell, numbers, sentence

OtherFile = Annotated[
    Path | None,
    typer.Option("--with", help="Configuration of the shadow. Default: the same file, where the image is another."),
]


@dataclass(frozen=True)
class ShadowPartition:
    """The offsets of a partition that a shadow has, from `start` to before `end`."""

    topic: str
    partition: int
    start: int
    end: int
    # Of the first table; None: it has none of the partition.
    first_end: int | None
    # Offsets that Kafka held no longer.
    gap: int


@dataclass(frozen=True)
class ShadowReport(Report):
    """What a shadow has, and the command that compares it."""

    pipeline: str
    location: str
    rows: int
    dead_letters: int
    partitions: Sequence[ShadowPartition]
    diff: str

    def render(self, out: Console) -> None:
        """Draw its rows and its partitions."""
        rows = plural(self.rows, "row")
        dead_letters = plural(self.dead_letters, "dead letter")
        sentence(out, f"{self.pipeline}: the shadow at {self.location} has {rows}, and {dead_letters}.")
        table = TextTable(out, [Column("partition"), *numbers("from", "to", "the first to", "in gaps")])
        table.add([_cells(partition) for partition in self.partitions])
        sentence(out, f"Compare: {self.diff}")


def _cells(partition: ShadowPartition) -> list[str]:
    return [
        f"{partition.topic}/{partition.partition}",
        f"{partition.start:,}",
        f"{partition.end:,}",
        count_cell(partition.first_end, "none"),
        f"{partition.gap:,}",
    ]


@command(
    exits={
        0: "done",
        1: "crash",
        2: "configuration",
        3: "checkpoint unusable",
        4: "fenced by another run",
        5: "stopped by a limit",
    },
)
def shadow(
    config: ConfigFile,
    pipeline: Pipeline,
    location: Annotated[str, typer.Option("--location", help="Where the second table lies; what is beside it, too.")],
    other: OtherFile = None,
    begin: Annotated[
        str,
        typer.Option("--from", help="Where a new shadow begins: start (as the first table), now, or a version of it."),
    ] = "start",
    follow: Annotated[
        bool, typer.Option("--follow", help="Read on beside the first until it is stopped. Default: what is there now.")
    ] = False,
) -> ShadowReport | ExitCode:
    """Write the offsets of a pipeline's table to a second one, without touching the first.

    The writer runs as `headrace run` does, with --with FILE for other rules, or from another image; its table, what is
    beside that and its checkpoints have places of their own, and no hook, receiver or consumer group hears of it. If it
    ends, run it again: it goes on where its table ends. Compare the two with `headrace diff`, switch with `headrace
    promote`.
    """
    first = pipeline.config
    name = pipeline.name
    offsets = shadow_start_offsets(first, name, begin)
    reload = threading.Event()

    def read(path: Path) -> Config:
        return shadow_writer_config(first, load(path), name, location, offsets)

    file = ReloadableConfig(other or config, [name], reload, read=read)
    logging.set_up()
    on_hangup(reload)
    revive_shadow(first, file.config, name)
    code = run_writer(file, once=not follow)
    if code:
        return code
    files = [shlex.quote(str(config)), "--pipeline", name]
    if other:
        files += ["--with", shlex.quote(str(other))]
    return _report(name, coverage(first, name), coverage(file.config, name), " ".join(files))


def _report(name: str, first: Coverage, shadow: Coverage, files: str) -> ShadowReport:
    """Return what the shadow has. `files`: the words of `headrace diff` before its location."""
    total = shadow.audit.reconciliation.total
    return ShadowReport(
        pipeline=name,
        location=shadow.location,
        rows=total("rows"),
        dead_letters=total("dead_letters") + total("quarantined"),
        partitions=_partitions(first, shadow),
        diff=f"headrace diff {files} --shadow {shadow.location}",
    )


def _partitions(first: Coverage, shadow: Coverage) -> list[ShadowPartition]:
    partitions: list[ShadowPartition] = []
    for key, line in sorted(shadow.lines.items(), key=lambda item: item[1].part):
        first_end = None
        if key in first.lines:
            first_end = first.lines[key].range.end
        part = line.part
        partitions.append(
            ShadowPartition(part.topic, part.partition, line.range.start, line.range.end, first_end, line.gap)
        )
    return partitions
