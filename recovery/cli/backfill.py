"""`headrace backfill`: fills gaps from Kafka, a mirror or an archive."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from recovery.backfill import archive_source, source_factory
from recovery.backfill.chunk_commit import BackfilledTable, ChunkCommit
from recovery.backfill.loop import BackfillRequest, Outcome, chosen, fill
from recovery.backfill.source import Source
from writer.commit.builder import bytes_per_row
from writer.config.loader import load
from writer.core.errors import ConfigError
from writer.core.offsets import OffsetRange
from writer.core.text import plural
from writer.core.units import duration, show_size
from writer.output import tables
from writer.output.cli_options import By, ConfigFile, Pipelines, json_option
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.schemas import registry
from writer.table.ledger.gap_record import GapRecord

ROWS_A_SECOND = 60_000  # of one process, where nothing was measured: decoding, writing, small chunks
_BYTES_PER_ROW = 60.0  # of Parquet, until a commit has shown it
_SHOWN = 8  # characters of an id


class ProgressListener:
    """Tells a terminal."""

    def __init__(self, pipeline: str, out: Console, *, as_json: bool) -> None:
        """`as_json`: one line for each chunk."""
        self._pipeline, self._out, self._json = pipeline, out, as_json
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("offsets"),
            TimeRemainingColumn(), TextColumn("[dim]{task.fields[note]}"), console=out,
            disable=as_json or not out.is_terminal,
        )  # fmt: skip
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def began(self, gap_record: GapRecord, offsets: int) -> None:
        """A gap record is being filled."""
        self._task = self._bar.add_task(f"{self._pipeline} gap {gap_record.id[:_SHOWN]}", total=offsets, note="")
        if not self._out.is_terminal and not self._json:
            tables.sentence(
                self._out, f"{self._pipeline}: gap {gap_record.id[:_SHOWN]}, {plural(offsets, 'offset')} open"
            )

    def settled(self, gap_record: GapRecord, chunk: ChunkCommit) -> None:
        """One chunk more is in the table."""
        if self._json:
            tables.emit({"event": "chunk", "pipeline": self._pipeline, "gap": gap_record.id, **vars(chunk)})
        elif not self._out.is_terminal:
            brought = f"{plural(chunk.offsets, 'offset')}, {plural(chunk.rows, 'row')} in {plural(chunk.files, 'file')}"
            tables.sentence(self._out, f"  version {chunk.version}: {brought}; {chunk.left:,} left")
        if self._task is not None:
            self._bar.update(self._task, advance=chunk.offsets, note="")

    def waits(self, why: str) -> None:
        """It waits."""
        if self._task is not None:
            self._bar.update(self._task, note=f"waits: {why}")
        if self._json and "behind" in why:
            tables.emit({"event": "waits", "pipeline": self._pipeline, "reason": why})


def ended(name: str, outcomes: Sequence[Outcome], *, as_json: bool, out: Console) -> int:
    """Show what became of the gap records. Returns 1 when one of them is open still."""
    if as_json:
        tables.emit({"event": "ended", "pipeline": name, "gaps": [_to_dict(one) for one in outcomes]})
    elif not outcomes:
        tables.sentence(out, f"{name}: no gap is open.")
    for one in outcomes if not as_json else ():
        gap = f"{name}: gap {one.gap_record.id[:_SHOWN]}"
        if one.gap_record.state == "open":
            left = sum(r.end - r.start for r in one.absent)
            tables.sentence(
                out,
                f"{gap} got {plural(one.rows, 'row')}; {plural(left, 'offset')} are not in this source: "
                f"{_listed(one.absent)}. Try --from-mirror, --from-raw or --from-archive; `headrace gaps close` gives "
                "up.",
                "yellow",
            )
        else:
            about = (
                f" about right, by event time: {one.gap_record.unplaced:,} rows in all"
                if one.gap_record.unplaced
                else ""
            )
            tables.sentence(out, f"{gap} is {one.gap_record.state}: {plural(one.rows, 'row')}{about}.", "green")
    return int(any(one.gap_record.state == "open" for one in outcomes))


def estimated(
    filling: BackfilledTable,
    sources: Callable[[GapRecord], Sequence[Source]],
    wish: BackfillRequest,
    *,
    as_json: bool,
    out: Console,
) -> bool:
    """Show what a backfill would take: rows, time, and what it costs. Returns whether there is anything to bring."""
    _, gap_records = filling.look()
    each = bytes_per_row(filling.table.recent_commits(10)) or _BYTES_PER_ROW
    speed = min(wish.rate or ROWS_A_SECOND, ROWS_A_SECOND)
    found: list[dict[str, Any]] = []
    for gap_record in chosen(gap_records, wish):
        left = gap_record.left()
        held: list[OffsetRange] = []
        for source in sources(gap_record):
            held += source.available(left)
        offsets, there = (sum(r.end - r.start for r in some) for some in (left, held))
        chunks = -(-there // wish.rows_max)
        files = max(chunks, round(there * each / filling.settings.roll.target_file_size))
        found.append({
            "gap": gap_record.id, "offsets": offsets, "available": there, "chunks": chunks,
            "seconds": round(there / speed + chunks, 1), "bytes": round(there * each), "files_min": files,
            "objects_put_min": files + chunks, "cpu_seconds": round(there / speed, 1),
        })  # fmt: skip
    some = any(one["available"] for one in found)
    if as_json:
        tables.emit_whole({"pipeline": filling.name, "rows_a_second": speed, "gaps": found})
        return some
    if not found:
        tables.sentence(out, f"{filling.name}: no gap is open.")
    for one in found:
        tables.sentence(
            out,
            f"{filling.name}: gap {one['gap'][:_SHOWN]}: {one['available']:,} of {plural(one['offsets'], 'offset')} "
            f"are there; {plural(one['chunks'], 'chunk')}, about {one['seconds']:,.0f} s at {speed:,.0f} rows a second "
            f"on one core, {show_size(one['bytes'])} in {one['files_min']:,} files or more, "
            f"{one['objects_put_min']:,} objects put or more.",
        )
    return some


def _to_dict(one: Outcome) -> dict[str, Any]:
    return {
        "gap": one.gap_record.id, "state": one.gap_record.state, "rows": one.rows, "chunks": len(one.chunks),
        "left": sum(r.end - r.start for r in one.gap_record.left()), "approximate": one.gap_record.unplaced > 0,
        "absent": [r.to_dict() for r in one.absent],
    }  # fmt: skip


def _listed(ranges: Sequence[OffsetRange]) -> str:
    shown = [f"{r.part.topic}/{r.part.partition} [{r.start:,}, {r.end:,})" for r in ranges[:3]]
    return ", ".join(shown) + (f" and {len(ranges) - 3} more" if len(ranges) > 3 else "")  # noqa: PLR2004


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
    made = _sources(mirror, mapped or [], raw, archive or [], columns, by_time)
    wish = BackfillRequest(tuple(gap or ()), chunk_rows, rate, _limit(lag_max), by or "")
    fillings = [
        BackfilledTable(name, settings, registry.source(settings.registry)) for name in settings.chosen(pipeline)
    ]

    def work(*, write: bool) -> bool:
        out = console()
        if not write:
            waiting = [estimated(one, partial(made, one), wish, as_json=as_json, out=out) for one in fillings]
            return any(waiting)
        os.nice(5)  # the live writer comes first where both share a machine
        code = 0
        for one in fillings:
            with ProgressListener(one.name, out, as_json=as_json) as listener:
                found = fill(one, partial(made, one), wish, listener)
            code = max(code, ended(one.name, found, as_json=as_json, out=out))
        raise typer.Exit(code)

    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _limit(lag_max: str | None) -> timedelta | None:
    """Read how far the live writer may be behind. Raises BadParameter."""
    try:
        return duration(lag_max) if lag_max else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--lag-max") from error


def _sources(
    mirror: str | None,
    mapped: Sequence[str],
    raw: str | None,
    archive: Sequence[str],
    columns: str | None,
    by_time: str | None,
) -> Callable[[BackfilledTable, GapRecord], Sequence[Source]]:
    """Return what makes the sources of a gap record. Raises ConfigError for options that do not go together."""
    if mapped and not mirror:
        raise ConfigError("--map says where records stand in a mirror; say which with --from-mirror")
    if (columns or by_time) and not archive:
        raise ConfigError("--columns and --by-time speak of an archive; say which with --from-archive")
    if mirror and not mapped:
        raise ConfigError("--from-mirror needs --map: a mirror's offsets are other offsets")

    def made(filling: BackfilledTable, gap_record: GapRecord) -> Sequence[Source]:
        if not mirror and not archive and not raw:
            return [source_factory.kafka(filling)]
        found: list[Source] = [source_factory.raw(filling, raw)] if raw else []
        if mirror:
            found.append(source_factory.mirror(filling, gap_record, mirror, mapped))
        if archive:
            found.append(archive_source.opened(filling, gap_record, archive, columns, by_time))
        return found

    return made
