"""`headrace backfill`: fills gaps from Kafka, a mirror or an archive."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from recovery.backfill import archive_source, source_factory
from recovery.backfill.chunk_commit import ChunkCommit
from recovery.backfill.fill_gaps import BackfillRequest, GapOutcome, fill_gaps, read_gap_records, select_gap_records
from recovery.backfill.source import Source
from writer.commit.builder import bytes_per_row
from writer.config.loader import load
from writer.core.errors import ConfigError
from writer.core.offsets import OffsetRange
from writer.core.text import join_first, plural
from writer.core.units import duration, show_size
from writer.maintenance.record_commit import RecordTable
from writer.output import tables
from writer.output.cli_options import By, ConfigFile, Pipelines, json_option
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.schemas import registry
from writer.table.ledger.gap_record import GapRecord

# Rows a second of one process, where nothing was measured: decoding, writing, small chunks.
ROWS_A_SECOND = 60_000
# Bytes of a row in Parquet, until a commit has shown them.
_BYTES_PER_ROW = 60.0
# Characters of an id that are shown.
_ID_LENGTH = 8
# Ranges that a sentence names.
_RANGES_SHOWN = 3
Sources = Callable[[GapRecord], Sequence[Source]]


class ProgressListener:
    """Tells a terminal."""

    def __init__(self, pipeline: str, out: Console, *, as_json: bool) -> None:
        """`as_json`: one line for each chunk."""
        self._pipeline = pipeline
        self._out = out
        self._json = as_json
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("offsets"),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[note]}"),
            console=out,
            disable=as_json or not out.is_terminal,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def on_begin(self, gap_record: GapRecord, offsets: int) -> None:
        """A gap record is being filled."""
        gap = gap_record.id[:_ID_LENGTH]
        self._task = self._bar.add_task(f"{self._pipeline} gap {gap}", total=offsets, note="")
        if not self._out.is_terminal and not self._json:
            tables.sentence(self._out, f"{self._pipeline}: gap {gap}, {plural(offsets, 'offset')} open")

    def on_chunk(self, gap_record: GapRecord, chunk: ChunkCommit) -> None:
        """One chunk more is in the table."""
        if self._json:
            tables.emit({"event": "chunk", "pipeline": self._pipeline, "gap": gap_record.id, **vars(chunk)})
        elif not self._out.is_terminal:
            rows = f"{plural(chunk.offsets, 'offset')}, {plural(chunk.rows, 'row')} in {plural(chunk.files, 'file')}"
            tables.sentence(self._out, f"  version {chunk.version}: {rows}; {chunk.left:,} left")
        if self._task is not None:
            self._bar.update(self._task, advance=chunk.offsets, note="")

    def on_wait(self, why: str) -> None:
        """It waits."""
        if self._task is not None:
            self._bar.update(self._task, note=f"waits: {why}")
        if self._json and "behind" in why:
            tables.emit({"event": "waits", "pipeline": self._pipeline, "reason": why})


def show_outcomes(name: str, outcomes: Sequence[GapOutcome], *, as_json: bool, out: Console) -> int:
    """Show what became of the gap records. Returns 1 when one of them is open still."""
    if as_json:
        tables.emit({"event": "ended", "pipeline": name, "gaps": [_to_dict(outcome) for outcome in outcomes]})
    elif not outcomes:
        tables.sentence(out, f"{name}: no gap is open.")
    else:
        for outcome in outcomes:
            _show_outcome(name, outcome, out)
    return int(any(outcome.gap_record.state == "open" for outcome in outcomes))


def _show_outcome(name: str, outcome: GapOutcome, out: Console) -> None:
    gap_record = outcome.gap_record
    gap = f"{name}: gap {gap_record.id[:_ID_LENGTH]}"
    rows = plural(outcome.rows, "row")
    if gap_record.state == "open":
        tables.sentence(
            out,
            f"{gap} got {rows}; {plural(outcome.absent.count, 'offset')} are not in this source: "
            f"{_list_ranges(outcome.absent.ranges())}. Try --from-mirror, --from-raw or --from-archive; "
            "`headrace gaps close` gives up.",
            "yellow",
        )
        return
    if gap_record.unplaced:
        rows += f" about right, by event time: {gap_record.unplaced:,} rows in all"
    tables.sentence(out, f"{gap} is {gap_record.state}: {rows}.", "green")


@dataclass(frozen=True)
class _Estimate:
    """What filling a gap takes. JSON names the fields as they are."""

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


def show_estimate(
    record_table: RecordTable, sources: Sources, request: BackfillRequest, *, as_json: bool, out: Console
) -> bool:
    """Show what a backfill would take: rows, time, and what it costs. Returns whether there is anything to bring."""
    _, gap_records = read_gap_records(record_table)
    row_bytes = bytes_per_row(record_table.table.recent_commits(10)) or _BYTES_PER_ROW
    speed = min(request.rate or ROWS_A_SECOND, ROWS_A_SECOND)
    file_bytes = record_table.settings.roll.target_file_size
    estimates: list[_Estimate] = []
    for gap_record in select_gap_records(gap_records, request):
        unfilled_offsets = gap_record.unfilled_offsets
        available = sum(source.available(unfilled_offsets).count for source in sources(gap_record))
        chunks = -(-available // request.rows_max)
        files = max(chunks, round(available * row_bytes / file_bytes))
        estimates.append(
            _Estimate(
                gap_record.id,
                offsets=unfilled_offsets.count,
                available=available,
                chunks=chunks,
                seconds=round(available / speed + chunks, 1),
                bytes=round(available * row_bytes),
                files_min=files,
                objects_put_min=files + chunks,
                cpu_seconds=round(available / speed, 1),
            )
        )
    name = record_table.name
    if as_json:
        gaps = [vars(estimate) for estimate in estimates]
        tables.emit_whole({"pipeline": name, "rows_a_second": speed, "gaps": gaps})
    elif not estimates:
        tables.sentence(out, f"{name}: no gap is open.")
    else:
        for estimate in estimates:
            tables.sentence(
                out,
                f"{name}: gap {estimate.gap[:_ID_LENGTH]}: {estimate.available:,} of "
                f"{plural(estimate.offsets, 'offset')} are there; {plural(estimate.chunks, 'chunk')}, about "
                f"{estimate.seconds:,.0f} s at {speed:,.0f} rows a second on one core, {show_size(estimate.bytes)} in "
                f"{estimate.files_min:,} files or more, {estimate.objects_put_min:,} objects put or more.",
            )
    return any(estimate.available for estimate in estimates)


def _to_dict(outcome: GapOutcome) -> dict[str, Any]:
    gap_record = outcome.gap_record
    return {
        "gap": gap_record.id,
        "state": gap_record.state,
        "rows": outcome.rows,
        "chunks": len(outcome.chunks),
        "left": gap_record.unfilled_offsets.count,
        "approximate": gap_record.unplaced > 0,
        "absent": [r.to_json() for r in outcome.absent.ranges()],
    }


def _list_ranges(ranges: Sequence[OffsetRange]) -> str:
    return join_first([offset_range.name for offset_range in ranges], _RANGES_SHOWN)


_Gaps = Annotated[
    list[str] | None, typer.Option("--gap", help="Only this gap, by its id or its beginning; may be repeated.")
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
_ChunkRows = Annotated[int, typer.Option("--chunk-rows", min=1, help="Offsets of one commit.")]
_Rate = Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many rows a second.")]
_LagMax = Annotated[
    str | None,
    typer.Option("--lag-max", help="Wait while the live writer is further behind. Default: by commit.max_delay."),
]


def backfill(
    config: ConfigFile,
    pipeline: Pipelines = None,
    gap: _Gaps = None,
    mirror: _Mirror = None,
    mapped: _Mapped = None,
    raw: _Raw = None,
    archive: _Archives = None,
    columns: _Columns = None,
    by_time: _ByTime = None,
    chunk_rows: _ChunkRows = 500_000,
    rate: _Rate = None,
    lag_max: _LagMax = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    by: By = None,
    as_json: Annotated[bool, json_option("a line for each chunk, and one at the end")] = False,
) -> None:
    """Bring the records of gaps: from Kafka as far as it holds them, a mirror, a raw table, or an archive.

    Oldest first, in chunks that are one commit each, while the live writer goes on. If the command is interrupted, run
    it again: each offset is settled once. It waits while the live writer is behind.

    Exit codes: 0 nothing is left open, or it was only shown, 1 something is open, or it failed, 2 configuration,
    5 too many failed records.
    """
    settings = load(config)
    create_sources = _source_creator(mirror, mapped or [], raw, archive or [], columns, by_time)
    request = BackfillRequest(tuple(gap or ()), chunk_rows, rate, _parse_lag_max(lag_max), by or "")
    record_tables = [
        RecordTable(name, settings, registry.source(settings.registry)) for name in settings.chosen(pipeline)
    ]

    def work(*, write: bool) -> bool:
        out = console()
        if not write:
            has_work = [
                show_estimate(table, partial(create_sources, table), request, as_json=as_json, out=out)
                for table in record_tables
            ]
            return any(has_work)
        # The live writer comes first where both share a machine.
        os.nice(5)
        code = 0
        for table in record_tables:
            with ProgressListener(table.name, out, as_json=as_json) as listener:
                outcomes = fill_gaps(table, partial(create_sources, table), request, listener)
            code = max(code, show_outcomes(table.name, outcomes, as_json=as_json, out=out))
        raise typer.Exit(code)

    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


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
