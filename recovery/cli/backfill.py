"""The verb `backfill`."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from writer.options import ConfigFile, Pipelines

if TYPE_CHECKING:
    from recovery.backfill.carry import Filling
    from recovery.backfill.source import Source
    from writer.gaps.ticket import Ticket


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
        "About right: the ticket and the audit say so.",
    ),
]
_ChunkRows = Annotated[int, typer.Option("--chunk-rows", min=1, help="Offsets of one commit.")]
_Rate = Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many rows a second.")]
_LagMax = Annotated[
    str | None,
    typer.Option("--lag-max", help="Wait while the live writer is further behind. Default: by commit.max_delay."),
]
_By = Annotated[str | None, typer.Option("--by", help="Who. Default: this user at this machine.", show_default=False)]


def backfill(
    config: ConfigFile,
    pipeline: Pipelines = None,
    gap: _Gaps = None,
    mirror: _Mirror = None,
    mapped: _Mapped = None,
    archive: _Archives = None,
    columns: _Columns = None,
    by_time: _ByTime = None,
    chunk_rows: _ChunkRows = 500_000,
    rate: _Rate = None,
    lag_max: _LagMax = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would take.")] = False,
    by: _By = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON: one line for each chunk, and one at the end.")] = False,
) -> None:
    """Bring the records of gaps: from Kafka as far as it holds them, from a mirror, or from an archive.

    Oldest first, in chunks that are one commit each, while the live writer goes on. May be broken off and run
    again: each offset is settled once. It waits while the live writer is behind.

    Exit codes: 0 nothing is left open, 1 something is, or it failed, 2 configuration, 5 too much poison.
    """
    import os

    from recovery.backfill import show
    from recovery.backfill.carry import Filling
    from recovery.backfill.run import Wish, fill
    from writer.file import load
    from writer.registry import source
    from writer.surface.lines import console

    settings = load(config)
    made = _sources(mirror, mapped or [], archive or [], columns, by_time)
    wish = Wish(tuple(gap or ()), chunk_rows, rate, _limit(lag_max), by or "")
    code, out = 0, console()
    if not dry_run:
        os.nice(5)  # the live writer comes first where both share a machine
    for name in settings.chosen(pipeline):
        filling = Filling(name, settings, source(settings.registry))
        if dry_run:
            code = max(code, show.estimated(filling, made(filling), wish, as_json=as_json, out=out))
            continue
        with show.Board(name, out, as_json=as_json, now=datetime.now(UTC)) as board:
            found = fill(filling, made(filling), wish, board)
        code = max(code, show.ended(name, found, as_json=as_json, out=out))
    raise typer.Exit(code)


def _limit(lag_max: str | None) -> timedelta | None:
    """Read how far the live writer may be behind. Raises BadParameter."""
    from writer.units import duration

    try:
        return duration(lag_max) if lag_max else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--lag-max") from error


def _sources(
    mirror: str | None, mapped: Sequence[str], archive: Sequence[str], columns: str | None, by_time: str | None
) -> "Callable[[Filling], Callable[[Ticket], Sequence[Source]]]":
    """Return who makes the sources of a ticket. Raises ConfigError for options that do not go together."""
    from writer.errors import ConfigError

    if mapped and not mirror:
        raise ConfigError("--map says where records stand in a mirror; say which with --from-mirror")
    if (columns or by_time) and not archive:
        raise ConfigError("--columns and --by-time speak of an archive; say which with --from-archive")
    if mirror and not mapped:
        raise ConfigError("--from-mirror needs --map: a mirror's offsets are other offsets")
    from recovery.backfill import places

    def of(filling: "Filling") -> "Callable[[Ticket], Sequence[Source]]":
        def made(ticket: "Ticket") -> "Sequence[Source]":
            if not mirror and not archive:
                return [places.kafka(filling)]
            found: list[Source] = []
            if mirror:
                found.append(places.mirror(filling, ticket, mirror, mapped))
            if archive:
                found.append(places.archive(filling, ticket, archive, columns, by_time))
            return found

        return made

    return of


def join(app: typer.Typer) -> None:
    """Hang the verb into the command; a second time does nothing."""
    if not any(command.name == "backfill" for command in app.registered_commands):
        app.command(name="backfill")(backfill)
