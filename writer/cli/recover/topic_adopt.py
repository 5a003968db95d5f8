"""`headrace topic`: declares what Kafka cannot tell about a pipeline's topics."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.offsets import Source
from writer.core.text import plural
from writer.offsets.topic_adoption import TopicAdoption
from writer.offsets.topic_adoption_plan import AdoptionPlan, AdoptionRequest, PartitionAdoption, TopicMove, to_dict
from writer.output.cli_options import AsJson, OnePipeline, config_argument, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, count_cell, emit_whole, numbers, sentence

_OFFSET = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d+)=(?P<offset>\d+)")


def run_adopt(
    config: Config, name: str, request: AdoptionRequest, group: str | None, *, write: bool, as_json: bool
) -> bool:
    """Show what an adoption does, and write it if asked. Returns whether there is any. Raises HeadraceError.

    `group`: whose committed offsets say where to read on, except for those of the request.
    """
    adoption = TopicAdoption(config, name)
    plan = adoption.plan(request, group)
    version = None
    if write and plan.moves:
        version = adoption.carry_out(plan, datetime.now(UTC))
    if as_json:
        partitions = [_partition_document(line) for line in plan.partitions]
        emit_whole({"pipeline": name, "version": version, **to_dict(plan), "partitions": partitions})
    else:
        _show(console(), name, plan, version)
    return bool(plan.moves)


def _partition_document(line: PartitionAdoption) -> dict[str, Any]:
    return {
        "topic": line.part.topic,
        "incarnation": line.part.incarnation,
        "partition": line.part.partition,
        "table_end": line.table_end,
        "log_start": line.log_range.earliest,
        "log_end": line.log_range.end,
        "start": line.start,
        "same_records": line.same_records,
    }


def _show(out: Console, name: str, plan: AdoptionPlan, version: int | None) -> None:
    if not plan.moves:
        sentence(out, f"{name}: nothing to adopt; the table knows the ids of all topics that it has read.")
        return
    for move in plan.moves:
        sentence(
            out,
            f"{name}: {move.topic} (id {move.id}) goes on for {move.old} (incarnation {move.old_number}, id "
            f"{move.old_id}) as incarnation {move.number}, {_describe_start(move, plan.partitions)}.",
        )
    out.print()
    _show_partitions(out, plan.partitions)
    out.print()
    if version is None:
        sentence(out, "Stop the driver, if one runs.")
    else:
        sentence(out, f"Written as version {version} of the table. Start the pipeline: it reads on from there.")


def _describe_start(move: TopicMove, lines: Sequence[PartitionAdoption]) -> str:
    if move.offsets != "kept":
        return "at the offsets that were given, as rows of a further incarnation"
    compared = [line for line in lines if line.part.topic == move.topic and line.same_records is not None]
    if not compared:
        return "where the table ends (none compared)"
    return f"where the table ends ({plural(len(compared), 'partition')} compared: the same records)"


def _show_partitions(out: Console, lines: Sequence[PartitionAdoption]) -> None:
    offset_columns = numbers("table ends at", "log begins at", "log ends at", "reads on at")
    rows = []
    for line in lines:
        offsets = (line.table_end, line.log_range.earliest, line.log_range.end, line.start)
        rows.append([line.part.name, *map(count_cell, offsets), _describe_gap(line)])
    TextTable(out, [Column("partition", width_min=20), *offset_columns, Column("")]).add(rows)


def _describe_gap(line: PartitionAdoption) -> str:
    if line.start < line.log_range.earliest:
        return f"the next start records {line.log_range.earliest - line.start:,} as a gap"
    return ""


topic = typer.Typer(no_args_is_help=True, help="Say what became of a pipeline's topics.")


@topic.callback()
def _group() -> None:
    """Say what became of a pipeline's topics."""


@topic.command()
def adopt(
    config: Annotated[Path, config_argument("Configuration file (YAML), with the new cluster and topic names.")],
    pipeline: OnePipeline = None,
    renamed: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="old=new: the topic that the table knows as old is called new now. May be repeated."
        ),
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option("--offsets", help="topic:partition=offset where to read on, for records with other offsets."),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option("--offsets-of", help="Consumer group whose committed offsets say where to read on."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Go on with topics that hold the same records under another id or name, as after a move to another cluster.

    Records that kept their offsets are read on where the table ends. For others, say where: the rows get a further
    incarnation, and records between the table's end and an offset before it come twice. Shows what it would do; writes
    one entry of the table's log with --yes. Whatever driver still runs is fenced by it.

    Exit codes: 0 shown or written, 1 a driver runs or Kafka does not answer, 2 it cannot be so.
    """
    settings, name = load_pipeline(config, pipeline)
    request = AdoptionRequest(_parse_renames(renamed or []), _parse_offsets(offsets or []))
    work = partial(run_adopt, settings, name, request, group, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _parse_renames(texts: Sequence[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for text in texts:
        old, _, new = text.partition("=")
        if not (old and new):
            raise ConfigError(f"--map {text} is no pair; write --map old=new")
        names[old] = new
    return names


def _parse_offsets(texts: Sequence[str]) -> dict[Source, int]:
    offsets: dict[Source, int] = {}
    for text in texts:
        match = _OFFSET.fullmatch(text)
        if match is None:
            raise ConfigError(f"--offsets {text} is none; write --offsets topic:partition=offset")
        offsets[match["topic"], int(match["partition"])] = int(match["offset"])
    return offsets
