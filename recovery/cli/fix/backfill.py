"""`headrace backfill`: fills gaps from Kafka, a mirror or an archive."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Literal, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from headrace.recovery.backfill import archive_source, source_factory
from headrace.recovery.backfill.chunk_commit import ChunkCommit
from headrace.recovery.backfill.fill_gaps import (
    ROWS_PER_TASK,
    BackfillRequest,
    GapOutcome,
    fill_gaps,
    read_gap_records,
    select_gap_records,
)
from headrace.recovery.backfill.source import Source
from headrace.recovery.cli.fix.gap_choice import find_gaps
from headrace.recovery.cli.fix.wait_line import WaitLine
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.freed_memory import keep_freed_memory
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.text import join_first, plural
from headrace.writer.core.units import duration, show_size
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.maintenance.task_pool import TaskPool, usable_cores
from headrace.writer.output.cli_options import By, Tasks
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import ChosenPipelines, PipelineNames
from headrace.writer.output.report import SCREEN_ONLY, Report, Screen, json_value
from headrace.writer.output.tables import sentence
from headrace.writer.schemas import registry
from headrace.writer.table.gap_records import ID_SHOWN
from headrace.writer.table.ledger.gap_record import GapRecord

# Rows a second of one task, where nothing was measured: decoding, writing, small chunks.
ROWS_A_SECOND = 60_000
# Ranges that a sentence names.
_RANGES_SHOWN = 3
Sources = Callable[[GapRecord], Sequence[Source]]


@dataclass(frozen=True)
class ChunkLine(Report):
    """One chunk that is in the table."""

    pipeline: str
    gap: str
    chunk: ChunkCommit

    def render(self, out: Console) -> None:
        """Draw what it brought, and what is left."""
        chunk = self.chunk
        rows = f"{plural(chunk.offsets, 'offset')}, {plural(chunk.rows, 'row')} in {plural(chunk.files, 'file')}"
        sentence(out, f"  version {chunk.version}: {rows}; {chunk.left:,} left")

    def document(self) -> Any:
        """Return it with the fields of the chunk."""
        return json_value({"event": "chunk", "pipeline": self.pipeline, "gap": self.gap, **vars(self.chunk)})


@dataclass(frozen=True)
class BackfilledGap:
    """What became of a gap. `absent`: open offsets that no source has; `approximate`: rows came by event time."""

    gap: str
    state: str
    rows: int
    chunks: int
    left: int
    approximate: bool
    absent: Sequence[OffsetRange]
    # Rows that came by event time, in all.
    unplaced: int = field(metadata=SCREEN_ONLY)

    def render(self, pipeline: str, out: Console) -> None:
        """Draw its state, and where else to look."""
        gap = f"{pipeline}: gap {self.gap[:ID_SHOWN]}"
        rows = plural(self.rows, "row")
        if self.state == "open":
            absent = plural(sum(r.count for r in self.absent), "offset")
            ranges = join_first([r.name for r in self.absent], _RANGES_SHOWN)
            sentence(
                out,
                f"{gap} got {rows}; {absent} are not in this source: {ranges}. Try --from-mirror, --from-raw or "
                "--from-archive; `headrace gaps close` gives up.",
                "yellow",
            )
            return
        if self.approximate:
            rows += f" about right, by event time: {self.unplaced:,} rows in all"
        sentence(out, f"{gap} is {self.state}: {rows}.", "green")


@dataclass(frozen=True)
class PipelineBackfill(Report):
    """What became of the gaps of a pipeline."""

    event: str = field(default="ended", init=False)
    pipeline: str
    gaps: Sequence[BackfilledGap]

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a gap is open still."""
        return 1 if any(gap.state == "open" for gap in self.gaps) else 0

    def render(self, out: Console) -> None:
        """Draw each gap."""
        if not self.gaps:
            sentence(out, f"{self.pipeline}: no gap is open.")
        for gap in self.gaps:
            gap.render(self.pipeline, out)


@dataclass(frozen=True)
class GapEstimate:
    """What filling a gap takes."""

    gap: str
    # Open offsets.
    offsets: int
    # Of these, offsets that the sources have.
    available: int
    chunks: int
    seconds: float
    bytes: int
    files_min: int
    objects_put_min: int
    cpu_seconds: float


@dataclass(frozen=True)
class PipelineEstimate:
    """What filling the gaps of a pipeline takes."""

    pipeline: str
    rows_a_second: float
    # How many work at once.
    tasks: int
    gaps: Sequence[GapEstimate]

    def render(self, out: Console) -> None:
        """Draw rows, time and cost of each gap."""
        if not self.gaps:
            sentence(out, f"{self.pipeline}: no gap is open.")
        for gap in self.gaps:
            sentence(
                out,
                f"{self.pipeline}: gap {gap.gap[:ID_SHOWN]}: {gap.available:,} of {plural(gap.offsets, 'offset')} "
                f"are there; {plural(gap.chunks, 'chunk')}, about {gap.seconds:,.0f} s at {self.rows_a_second:,.0f} "
                f"rows a second with {plural(self.tasks, 'task')}, {show_size(gap.bytes)} in {gap.files_min:,} files "
                f"or more, {gap.objects_put_min:,} objects put or more.",
            )


@dataclass(frozen=True)
class BackfillPreview(Report):
    """What filling the gaps of each pipeline takes: a line each."""

    pipelines: Sequence[PipelineEstimate]

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to bring."""
        return any(gap.available for pipeline in self.pipelines for gap in pipeline.gaps)

    def render(self, out: Console) -> None:
        """Draw each pipeline."""
        for pipeline in self.pipelines:
            pipeline.render(out)

    def lines(self) -> Iterable[Any]:
        """Return a line for each pipeline."""
        return [json_value(pipeline) for pipeline in self.pipelines]


class ProgressListener:
    """Shows a backfill's progress: a bar on a terminal, else a line for each chunk."""

    def __init__(self, pipeline: str, screen: Screen) -> None:
        self._pipeline = pipeline
        self._screen = screen
        self._has_bar = screen.out.is_terminal and not screen.as_json
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("offsets"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=screen.out,
            disable=not self._has_bar,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_begin(self, gap_record: GapRecord, offsets: int) -> None:
        """A gap record is being filled."""
        gap = gap_record.id[:ID_SHOWN]
        self._task = self._bar.add_task(f"{self._pipeline} gap {gap}", total=offsets, note="")
        if not self._has_bar and not self._screen.as_json:
            sentence(self._screen.out, f"{self._pipeline}: gap {gap}, {plural(offsets, 'offset')} open")

    def on_chunk(self, gap_record: GapRecord, chunk: ChunkCommit) -> None:
        """One chunk more is in the table."""
        if not self._has_bar:
            self._screen.show(ChunkLine(self._pipeline, gap_record.id, chunk))
        if self._task is not None:
            self._bar.update(self._task, advance=chunk.offsets, note="")

    def on_wait(self, why: str) -> None:
        """It waits."""
        if self._task is not None:
            self._bar.update(self._task, note=f"waits: {why}")
        if self._screen.as_json and "behind" in why:
            self._screen.show(WaitLine(self._pipeline, why))


_Gaps = Annotated[
    list[str] | None,
    typer.Option("--gap", help="Only this gap, by its id or its beginning; of any pipeline; may be repeated."),
]
_Mirror = Annotated[
    str | None, typer.Option("--from-mirror", metavar="BOOTSTRAP/TOPIC", help="From a copy of the topic, with --map.")
]
_Mapped = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="PARTITION:OFFSET=OFFSET",
        help="With --from-mirror: the record of this offset is at that offset of the mirror. Holds up to the next "
        "one of the partition; may be repeated. TOPIC/PARTITION:OFFSET=OFFSET where the gap has several topics.",
    ),
]
_Raw = Annotated[
    str | None,
    typer.Option("--from-raw", metavar="LOCATION", help="From a raw table (table.raw), of the pipeline's format."),
]
_Archives = Annotated[
    list[str] | None,
    typer.Option("--from-archive", metavar="LOCATION", help="From Parquet, Avro or Delta files; may be repeated."),
]
_Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        help="With --from-archive: its columns, such as offset=kafka_offset,partition=kafka_partition,value=body. "
        "Known: topic, partition, offset, time, key, value. With value it holds records, else rows.",
    ),
]
_ByTime = Annotated[
    str | None,
    typer.Option(
        "--by-time",
        metavar="KEYS",
        help="With --from-archive that knows no offsets: rows by their event time, each once by these columns. "
        "About right: the gap record and the audit say so.",
    ),
]
_ChunkRows = Annotated[
    int | None,
    typer.Option(
        "--chunk-rows",
        min=1,
        help=f"Offsets of one commit. Default: {ROWS_PER_TASK:,} for each of --tasks.",
        show_default=False,
    ),
]
_Rate = Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many rows a second.")]
_LagMax = Annotated[
    str | None,
    typer.Option("--lag-max", help="Wait while the live writer is further behind. Default: by commit.max_delay."),
]


@command(
    exits={
        0: "nothing is left open, or it was only shown",
        1: "something is open, or it failed",
        2: "configuration",
        5: "too many failed records",
    },
    json_form="a line for each chunk, and one at the end of each pipeline",
    has_lines=True,
)
def backfill(
    pipelines: PipelineNames,
    gap: _Gaps = None,
    mirror: _Mirror = None,
    mapped: _Mapped = None,
    raw: _Raw = None,
    archive: _Archives = None,
    columns: _Columns = None,
    by_time: _ByTime = None,
    chunk_rows: _ChunkRows = None,
    rate: _Rate = None,
    lag_max: _LagMax = None,
    tasks: Tasks = None,
    by: By = None,
    *,
    write: bool,
    screen: Screen,
) -> BackfillPreview | Literal[0, 1]:
    """Bring the records of gaps: from Kafka as far as it holds them, a mirror, a raw table, or an archive.

    Oldest first, in chunks that are one commit each, while the live writer goes on. If the command is interrupted, run
    it again: each offset is settled once. It waits while the live writer is behind.
    """
    create_sources = _source_creator(mirror, mapped or [], raw, archive or [], columns, by_time)
    pool = TaskPool(tasks or usable_cores())
    rows_max = chunk_rows or ROWS_PER_TASK * pool.size
    request = BackfillRequest((), rows_max, rate, _parse_lag_max(lag_max), by or "")
    fills = _open_tables(pipelines, request, gap or [], pool)
    if not write:
        estimates = [
            estimate_backfill(table, partial(create_sources, table), table_request) for table, table_request in fills
        ]
        return BackfillPreview(estimates)
    # The live writer comes first where both share a machine.
    os.nice(5)
    keep_freed_memory()
    exit_code: Literal[0, 1] = 0
    with pool:
        for table, table_request in fills:
            with ProgressListener(table.name, screen) as listener:
                outcomes = fill_gaps(table, partial(create_sources, table), table_request, listener)
            # At once: the next pipeline may take hours, or fail.
            report = describe_outcomes(table.name, outcomes)
            screen.show(report)
            exit_code = report.exit_code or exit_code
    return exit_code


def _open_tables(
    pipelines: ChosenPipelines, request: BackfillRequest, gaps: Sequence[str], pool: TaskPool
) -> list[tuple[RecordTable, BackfillRequest]]:
    """Open the tables to fill, each with what is asked for of it. `gaps`: ids or their beginnings; none: all tables.

    Raises NoSuchGap, AmbiguousGap, HeadraceError where there is no table.
    """
    requests = dict.fromkeys(pipelines.names, request)
    if gaps:
        chosen_gaps = find_gaps(pipelines, gaps)
        ids_by_pipeline = {
            name: tuple(dict.fromkeys(gap.gap_record.id for gap in chosen_gaps if gap.pipeline == name))
            for name in pipelines.names
        }
        requests = {name: replace(request, gaps=ids) for name, ids in ids_by_pipeline.items() if ids}
    settings = pipelines.config
    return [
        (RecordTable(name, settings, registry.source(settings.registry_of(name)), pool), table_request)
        for name, table_request in requests.items()
    ]


def describe_outcomes(name: str, outcomes: Sequence[GapOutcome]) -> PipelineBackfill:
    """Return what became of the gap records of a pipeline."""
    return PipelineBackfill(
        name,
        [
            BackfilledGap(
                gap=outcome.gap_record.id,
                state=outcome.gap_record.state,
                rows=outcome.rows,
                chunks=len(outcome.chunks),
                left=outcome.gap_record.unfilled_offsets.count,
                approximate=outcome.gap_record.unplaced > 0,
                absent=outcome.absent.ranges(),
                unplaced=outcome.gap_record.unplaced,
            )
            for outcome in outcomes
        ],
    )


def estimate_backfill(record_table: RecordTable, sources: Sources, request: BackfillRequest) -> PipelineEstimate:
    """Estimate what a backfill would take: rows, time, and what it costs. Raises HeadraceError."""
    _, gap_records = read_gap_records(record_table)
    row_bytes = record_table.bytes_per_row
    tasks = record_table.pool.size
    speed_max = ROWS_A_SECOND * tasks
    speed = min(request.rate or speed_max, speed_max)
    file_bytes = record_table.settings.roll.target_file_size
    estimates: list[GapEstimate] = []
    for gap_record in select_gap_records(gap_records, request):
        unfilled_offsets = gap_record.unfilled_offsets
        available = sum(source.available(unfilled_offsets).count for source in sources(gap_record))
        chunks = -(-available // request.rows_max)
        files = max(chunks, round(available * row_bytes / file_bytes))
        estimates.append(
            GapEstimate(
                gap_record.id,
                offsets=unfilled_offsets.count,
                available=available,
                chunks=chunks,
                seconds=round(available / speed + chunks, 1),
                bytes=round(available * row_bytes),
                files_min=files,
                objects_put_min=files + chunks,
                cpu_seconds=round(available / ROWS_A_SECOND, 1),
            )
        )
    return PipelineEstimate(record_table.name, speed, tasks, estimates)


def _parse_lag_max(text: str | None) -> timedelta | None:
    """Read how far the live writer may be behind. Raises BadParameter."""
    try:
        return duration(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--lag-max") from error


def _source_creator(
    mirror: str | None,
    mappings: Sequence[str],
    raw: str | None,
    archive: Sequence[str],
    columns: str | None,
    by_time: str | None,
) -> Callable[[RecordTable, GapRecord], Sequence[Source]]:
    """Return what creates the sources of a gap record. Raises ConfigError for options that do not go together."""
    if mappings and not mirror:
        raise ConfigError("--map says where records stand in a mirror; say which with --from-mirror")
    if (columns or by_time) and not archive:
        raise ConfigError("--columns and --by-time speak of an archive; say which with --from-archive")
    if mirror and not mappings:
        raise ConfigError("--from-mirror needs --map: a mirror's offsets are other offsets")

    def create_sources(record_table: RecordTable, gap_record: GapRecord) -> Sequence[Source]:
        sources: list[Source] = []
        if raw:
            sources.append(source_factory.raw(record_table, raw))
        if mirror:
            sources.append(source_factory.mirror(record_table, gap_record, mirror, mappings))
        if archive:
            sources.append(archive_source.open_archive(record_table, gap_record, archive, columns, by_time))
        return sources or [source_factory.kafka(record_table)]

    return create_sources
