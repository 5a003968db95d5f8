"""`headrace topic`: declares what Kafka cannot tell about a pipeline's topics."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.core.text import plural
from headrace.writer.offsets.topic_adoption import TopicAdoption
from headrace.writer.offsets.topic_adoption_plan import AdoptionPlan, AdoptionRequest, TopicMove, to_json
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, count_cell, numbers, sentence

_OFFSET = re.compile(r"(?P<topic>[^:=]+):(?P<partition>\d+)=(?P<offset>\d+)")


@dataclass(frozen=True)
class AdoptedPartition:
    """A topic partition: where the table ends, what the log holds, where it is read on.

    `table_end`: None: the table has nothing of it; `same_records`: whether records at the same offsets are the same,
    None: none could be compared.
    """

    topic: str
    incarnation: int
    partition: int
    table_end: int | None
    log_start: int
    log_end: int
    start: int
    same_records: bool | None

    @property
    def cells(self) -> list[str]:
        """Its line on a page."""
        name = TopicPartition(self.topic, self.incarnation, self.partition).name
        offsets = (self.table_end, self.log_start, self.log_end, self.start)
        gap = ""
        if self.start < self.log_start:
            gap = f"the next start records {self.log_start - self.start:,} as a gap"
        return [name, *map(count_cell, offsets), gap]


@dataclass(frozen=True)
class AdoptionReport(Report):
    """What becomes of topics. `version`: of the entry; None: nothing was written."""

    pipeline: str
    version: int | None
    # As the entry of the log carries them.
    topics: Sequence[Mapping[str, Any]]
    starts: Sequence[Mapping[str, Any]]
    partitions: Sequence[AdoptedPartition]
    moves: Sequence[TopicMove] = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether there is a topic to adopt."""
        return bool(self.moves)

    def render(self, out: Console) -> None:
        """Draw each topic, and where its partitions are read on."""
        if not self.moves:
            text = "nothing to adopt; the table knows the ids of all topics that it has read."
            sentence(out, f"{self.pipeline}: {text}")
            return
        for move in self.moves:
            sentence(
                out,
                f"{self.pipeline}: {move.topic} (id {move.id}) goes on for {move.old} (incarnation {move.old_number}, "
                f"id {move.old_id}) as incarnation {move.number}, {self._describe_start(move)}.",
            )
        out.print()
        offsets = numbers("table ends at", "log begins at", "log ends at", "reads on at")
        TextTable(out, [Column("partition", width_min=20), *offsets, Column("")]).add(
            [partition.cells for partition in self.partitions]
        )
        out.print()
        if self.version is None:
            sentence(out, "Stop the driver, if one runs.")
        else:
            sentence(
                out, f"Written as version {self.version} of the table. Start the pipeline: it reads on from there."
            )

    def _describe_start(self, move: TopicMove) -> str:
        if move.offsets != "kept":
            return "at the offsets that were given, as rows of a further incarnation"
        compared = [line for line in self.partitions if line.topic == move.topic and line.same_records is not None]
        if not compared:
            return "where the table ends (none compared)"
        return f"where the table ends ({plural(len(compared), 'partition')} compared: the same records)"


@command(exits={0: "shown or written", 1: "a driver runs or Kafka does not answer", 2: "it cannot be so"})
def adopt(
    pipeline: Pipeline,
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
    *,
    write: bool,
) -> AdoptionReport:
    """Go on with topics that hold the same records under another id or name, as after a move to another cluster.

    The configuration names the new cluster and topics. Records that kept their offsets are read on where the table
    ends. For others, say where: the rows get a further incarnation, and records between the table's end and an offset
    before it come twice. Shows what it would do; writes one entry of the table's log with --yes. Whatever driver still
    runs is fenced by it.
    """
    request = AdoptionRequest(_parse_renames(renamed or []), _parse_offsets(offsets or []))
    adoption = TopicAdoption(pipeline.config, pipeline.name)
    plan = adoption.plan(request, group)
    version = None
    if write and plan.moves:
        version = adoption.carry_out(plan, datetime.now(UTC))
    return describe_adoption(pipeline.name, plan, version)


def describe_adoption(name: str, plan: AdoptionPlan, version: int | None) -> AdoptionReport:
    """Return what an adoption does. `version`: of its entry; None: it is not written."""
    partitions = [
        AdoptedPartition(
            line.part.topic,
            line.part.incarnation,
            line.part.partition,
            line.table_end,
            log_start=line.log_range.earliest,
            log_end=line.log_range.end,
            start=line.start,
            same_records=line.same_records,
        )
        for line in plan.partitions
    ]
    return AdoptionReport(name, version, **to_json(plan), partitions=partitions, moves=plan.moves)


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
