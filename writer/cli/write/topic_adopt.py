"""`headrace topic`: declares what Kafka cannot tell about a pipeline's topics."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.clients import kafka_sample
from writer.clients.driver_endpoint import check_no_driver
from writer.clients.kafka import Cluster, Topic, choose_topics
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.offsets import Source, TopicPartition
from writer.core.text import plural
from writer.offsets.spark_checkpoint import Checkpoints
from writer.offsets.start_decision import LogRange
from writer.offsets.topic_adoption_plan import AdoptionRequest, Line, Plan, TopicMove, moves, plan, to_dict
from writer.output import tables
from writer.output.cli_options import AsJson, OnePipeline, config_argument, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.table.factory import main_table
from writer.table.kafka_timestamps import read_kafka_timestamps
from writer.table.log.operations import Adoption
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

_COMPARED_ROWS = 50  # of a partition, the last that the table has
_COMPARED_PARTITIONS = 16  # of a topic, spread over all


def _facts(
    config: Config,
    table: PipelineTable,
    cluster: Cluster,
    snapshot: PipelineSnapshot,
    found: Sequence[TopicMove],
    topics: Mapping[str, Topic],
) -> tuple[dict[TopicPartition, int], dict[Source, LogRange], dict[Source, bool]]:
    """Ask table and Kafka: frontier of all parts, what each log holds, whether records at the same offsets agree."""
    sources = [(move.topic, p) for move in found for p in range(topics[move.topic].partitions)]
    earliest, ends = cluster.earliest(sources), cluster.latest(sources)
    held = {source: LogRange(earliest[source], ends[source]) for source in sources}
    frontier = snapshot.parts()
    same: dict[Source, bool] = {}
    for move in found:
        if move.offsets == "kept":
            ends_of = {p: at for p, at in frontier.items() if (p.topic, p.incarnation) == (move.old, move.old_number)}
            for part in sorted(ends_of)[:: max(1, len(ends_of) // _COMPARED_PARTITIONS)]:
                source = (move.topic, part.partition)
                agree = _agree(config, table, part, ends_of[part], source, held.get(source))
                if agree is not None:
                    same[source] = agree
    return frontier, held, same


def _agree(
    config: Config, table: PipelineTable, part: TopicPartition, end: int, source: Source, held: LogRange | None
) -> bool | None:
    """Compare the timestamps of the table's last rows of a part with the records at the same offsets.

    None when there are none to compare: no rows so near the end, or Kafka does not hold them.
    """
    first = max(end - _COMPARED_ROWS, held.earliest if held else end)
    if held is None or not first < end <= held.end:
        return None
    rows = read_kafka_timestamps(table, part, first, end)
    batch = kafka_sample.read(config.kafka, {source: (first, end)})
    # cold: at most _COMPARED_ROWS, once a command
    there = dict(zip(batch.column("offset").to_pylist(), batch.column("timestamp").to_pylist(), strict=True))
    if not rows.keys() & there.keys():
        return None
    return all(there.get(offset) == at for offset, at in rows.items())


def _committed(
    cluster: Cluster, group: str, topics: Mapping[str, Topic], known: Mapping[str, Sequence[str]]
) -> dict[Source, int]:
    """Offsets of a consumer group, of the topics whose id the table does not know."""
    moved = [t for t in topics.values() if t.id not in known.get(t.name, ())]
    return cluster.committed_offsets(group, [(t.name, p) for t in moved for p in range(t.partitions)])


def _partitions(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "topic": line.now.topic, "incarnation": line.now.incarnation, "partition": line.now.partition,
            "table_end": line.table_end, "log_start": line.held.earliest, "log_end": line.held.end,
            "start": line.start, "same_records": line.same,
        }
        for line in plan.lines
    ]  # fmt: skip


def _show(out: Console, name: str, plan: Plan, version: int | None) -> None:
    if not plan.moves:
        tables.sentence(out, f"{name}: nothing to adopt; the table knows the ids of all topics that it has read.")
        return
    for move in plan.moves:
        of = [line for line in plan.lines if line.now.topic == move.topic]
        compared = [line for line in of if line.same is not None]
        how = "at the offsets that were given, as rows of a further incarnation"
        if move.offsets == "kept":
            proof = f"{plural(len(compared), 'partition')} compared: the same records" if compared else "none compared"
            how = f"where the table ends ({proof})"
        tables.sentence(
            out,
            f"{name}: {move.topic} (id {move.id}) goes on for {move.old} (incarnation {move.old_number}, id "
            f"{move.old_id}) as incarnation {move.number}, {how}.",
        )
    ends = tables.numbers("table ends at", "log begins at", "log ends at", "reads on at")
    columns = [tables.Column("partition", width_min=20), *ends, tables.Column("")]
    out.print()
    tables.TextTable(out, columns).add([
        [
            f"{line.now.topic}/{line.now.partition}", "-" if line.table_end is None else f"{line.table_end:,}",
            f"{line.held.earliest:,}", f"{line.held.end:,}", f"{line.start:,}", _remark(line),
        ]
        for line in plan.lines
    ])  # fmt: skip
    out.print()
    tables.sentence(
        out,
        "Stop the driver, if one runs."
        if version is None
        else f"Written as version {version} of the table. Start the pipeline: it reads on from there.",
    )


def _remark(line: Line) -> str:
    if line.start < line.held.earliest:
        return f"the next start records {line.held.earliest - line.start:,} as a gap"
    return ""


_OFFSET = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d+)=(?P<offset>\d+)")

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
    wanted = AdoptionRequest(_pairs(renamed or []), _offsets(offsets or []))
    work = partial(run_adopt, settings, name, wanted, group, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def run_adopt(
    settings: Config, name: str, wanted: AdoptionRequest, group: str | None, *, write: bool, as_json: bool
) -> bool:
    """Show what an adoption does, and write it if asked. Returns whether there is any. Raises HeadraceError.

    `group`: whose committed offsets say where to read on, but for those of `wanted`.
    """
    table = main_table(name, settings)
    if not table.exists():
        raise ConfigError(f"pipeline {name!r} has no table at {table.location}; there is nothing to go on with.")
    snapshot, cluster = table.snapshot(), kafka_sample.open_cluster(settings.kafka)
    known = snapshot.incarnations()
    topics = cluster.topics(choose_topics(cluster, settings.pipelines[name].topics, known).names)
    if group is not None:
        wanted = AdoptionRequest(wanted.renamed, {**_committed(cluster, group, topics, known), **wanted.offsets})
    found = moves(known, topics, wanted)
    ready = plan(found, known, *_facts(settings, table, cluster, snapshot, found, topics), wanted)
    version = None
    if write and found:
        check_no_driver(settings, name, "Stop it, then adopt: it may commit once more.")
        closed = Checkpoints(settings.checkpoints, name, settings.s3.settings).newest() or 0
        facts = {"at": datetime.now(UTC).isoformat(), **to_dict(ready)}
        version = table.adopt(snapshot, Adoption(ready.incarnations, ready.starts, closed, facts))
    if as_json:
        tables.emit_whole({"pipeline": name, "version": version, **to_dict(ready), "partitions": _partitions(ready)})
    else:
        _show(tables.console(), name, ready, version)
    return bool(found)


def _pairs(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for old, sign, new in pairs:
        if not (old and sign and new):
            raise ConfigError(f"--map {old}{sign}{new} is no pair; write --map old=new")
    return {old: new for old, _, new in pairs}


def _offsets(given: Sequence[str]) -> dict["Source", int]:
    found = {}
    for text in given:
        if (match := _OFFSET.fullmatch(text)) is None:
            raise ConfigError(f"--offsets {text} is none; write --offsets topic:partition=offset")
        found[match["topic"], int(match["partition"])] = int(match["offset"])
    return found
