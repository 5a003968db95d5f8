"""`headrace dlq`: lists, shows and replays dead letters."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from writer.avro.wire_format import CONFLUENT
from writer.commit.privacy import record_screen
from writer.config.pipelines import Config
from writer.core import text
from writer.core.errors import SchemaChanged
from writer.core.text import iso, plural
from writer.maintenance import local_pipeline
from writer.maintenance.dead_letters import Selection, as_read, read
from writer.maintenance.local_pipeline import LocalPipeline, record_places
from writer.maintenance.replay import Replaying, ReplayResult
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline, options_of, time_of
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, emit, emit_whole, hanging, legible, plain, visible
from writer.schemas.registry import RegistryUnreachable, SchemaSource, source
from writer.table.factory import side_table

_NUMBERS = re.compile(r"\d[\d.,:TZ-]*")
_DUMP = 16  # bytes of a line
_KINDS_MAX = 10_000  # of dead letters that are told apart
_LIST = [
    Column("records", right=True), Column("outcome"), Column("topic", width_max=24), Column("schema", right=True),
    Column("offsets", width_max=24), Column("newest"), Column("oldest", right=True),
]  # fmt: skip


@dataclass
class Kind:
    """Dead letters that share outcome, topic, schema id and reason, numbers in it aside."""

    outcome: str
    topic: str
    schema_id: int | None
    reason: str  # of the first
    records: int
    offset_min: int
    offset_max: int
    time_min: datetime | None  # of those that have one
    time_max: datetime | None

    def add_time(self, at: datetime | None) -> None:
        """Widen the times by that of another dead letter; None: it has none."""
        times = [time for time in (self.time_min, self.time_max, at) if time is not None]
        self.time_min = min(times, default=None)
        self.time_max = max(times, default=None)


def kinds(name: str, config: Config, selection: Selection) -> list[Kind]:
    """Group the chosen dead letters, most first. Raises HeadraceError when there is no dead-letter table."""
    found: dict[tuple[str, str, int | None, str], Kind] = {}
    columns = ["_topic", "_partition", "_offset", "_kafka_time", "schema_id", "outcome", "error"]
    screen = record_screen(name, config)
    for batch in _dead_letters(name, config, selection, [*columns, *(["value"] if screen.hides else [])]):
        reasons = screen.reasons(pa.Table.from_batches([batch]))
        for row, reason in zip(batch.select(columns).to_pylist(), reasons, strict=True):  # cold: dead letters only
            row["error"] = reason
            offset, at = row["_offset"], row["_kafka_time"]
            key = (row["outcome"], row["_topic"], row["schema_id"], _NUMBERS.sub("#", row["error"]))
            if len(found) >= _KINDS_MAX and key not in found:
                key = (row["outcome"], row["_topic"], None, "others")
            kind = found.get(key)
            if kind is None:
                found[key] = Kind(*key[:3], row["error"], 1, offset, offset, at, at)
                continue
            kind.records += 1
            kind.offset_min, kind.offset_max = min(kind.offset_min, offset), max(kind.offset_max, offset)
            kind.add_time(at)
    return sorted(found.values(), key=lambda kind: -kind.records)


def _heads(found: list[Kind]) -> list[list[str]]:
    return [
        [
            f"{k.records:,}", k.outcome, k.topic, "-" if k.schema_id is None else str(k.schema_id),
            f"{k.offset_min} to {k.offset_max}", text.instant(k.time_max), text.instant(k.time_min),
        ]
        for k in found
    ]  # fmt: skip


def _to_dict(found: ReplayResult) -> dict[str, Any]:
    return {
        "chosen": found.chosen, "rows": found.rows, "filtered": found.filtered, "versions": found.versions,
        "failed": [
            {"outcome": outcome, "schema_id": schema_id, "reason": why, "records": count}
            for (outcome, schema_id, why), count in found.failed.items()
        ],
    }  # fmt: skip


def _dead_letters(
    name: str, config: Config, selection: Selection, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    table = side_table(name, config, config.pipelines[name].dead_letters)
    table.check_exists()
    return read(table.store, table.bucket_files(table.snapshot()), selection, columns=columns)


def _first(name: str, config: Config, selection: Selection, limit: int, *, values: bool) -> pa.Table:
    columns = ["_topic", "_partition", "_offset", "_kafka_time", "_incarnation", "key", "schema_id", "outcome", "error"]
    held: list[pa.RecordBatch] = []
    left = limit
    for batch in _dead_letters(name, config, selection, [*columns, *(["value", "headers"] if values else [])]):
        held.append(batch.slice(0, left))
        left -= held[-1].num_rows
        if left == 0:
            break
    return pa.Table.from_batches(held) if held else pa.table({})


def _decoded(
    name: str, config: Config, source: SchemaSource, rows: pa.Table, out: Console
) -> Mapping[tuple[str, int, int], dict[str, Any]]:
    """Decode what can be: quarantined records, and those whose schema is known by now."""
    records = as_read(rows)
    try:
        walk: LocalPipeline = local_pipeline.opened(name, config, source)
        walk.wire = walk.wire or CONFLUENT  # dead letters show what a format is not
        found = [g for batch in records.combine_chunks().to_batches() for g in walk.decoded(batch).groups]
    except (RegistryUnreachable, SchemaChanged) as error:
        tables.sentence(out, f"not decoded: {error}", "yellow")
        return {}
    decoded = {}
    for group in found:
        # cold: the dead letters of one screen
        for place, row in zip(record_places(group.records), group.rows.to_pylist(), strict=True):
            decoded[place] = {column: value for column, value in row.items() if value is not None}
    return decoded


def _print(out: Console, row: Mapping[str, Any], decoded: Mapping[str, Any] | None, *, values: bool) -> None:
    key = "no key" if row["key"] is None else f"key {legible(row['key'])}"
    schema = "" if row["schema_id"] is None else f", schema id {row['schema_id']}"
    where = f"{row['_topic']}/{row['_partition']} offset {row['_offset']}"
    out.print(Text.assemble((where, "bold"), f"  {text.instant(row['_kafka_time'])}, {key}{schema}"), soft_wrap=True)
    hanging(out, f"  {row['outcome']}: ", row["error"], "yellow")
    value = row["value"] if values else None
    if value is None:
        return
    for at in range(0, min(len(value), 8 * _DUMP), _DUMP):
        piece = value[at : at + _DUMP]
        out.print(Text(f"  {at:04x}  {piece.hex(' '):<{3 * _DUMP}} {visible(piece)}", "dim"), soft_wrap=True)
    if len(value) > 8 * _DUMP:
        out.print(Text(f"  … {len(value):,} bytes", "dim"), soft_wrap=True)
    if decoded is not None:
        hanging(out, "  decoded: ", str(plain(decoded)))


dlq = typer.Typer(no_args_is_help=True, help="Dead letters: list them, look at them, carry them through once more.")


def selection(
    outcome: Annotated[
        Literal["dead_letter", "quarantined"] | None, typer.Option("--outcome", help="Only these.", show_default=False)
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only where the reason has this text in it.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only of this topic.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", help="Only of this partition.")] = None,
    offsets: Annotated[str | None, typer.Option("--offsets", help="Only from START to before END: 100:200.")] = None,
    schema_id: Annotated[int | None, typer.Option("--schema-id", help="Only with this schema id.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only written to Kafka at or after this time.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only written to Kafka before this time.")] = None,
) -> Selection:
    """Choose dead letters by the options that each command of the group has. Raises BadParameter."""
    return Selection(
        outcome, reason, topic, partition, _span(offsets), schema_id,
        time_of("--since", since), time_of("--until", until),
    )  # fmt: skip


@dlq.command("list")
@options_of(selection)
def list_(config: ConfigFile, pipeline: OnePipeline = None, *, chosen: Selection, as_json: AsJson = False) -> None:
    """List dead letters by outcome, topic, schema and reason. Reads the lake only.

    Exit codes: 0 shown, 1 the table is not there or cannot be read, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    found = kinds(name, settings, chosen)
    if as_json:
        emit_whole(
            [
                {**vars(k), "time_min": k.time_min and iso(k.time_min), "time_max": k.time_max and iso(k.time_max)}
                for k in found
            ]
        )
        return
    _show_kinds(name, found)


def _show_kinds(name: str, found: list[Kind]) -> None:
    out, total = console(), sum(kind.records for kind in found)
    quarantined = sum(kind.records for kind in found if kind.outcome == "quarantined")
    counts = f"{plural(total - quarantined, 'dead letter')} and {quarantined:,} quarantined"
    tables.sentence(out, f"{name}: {counts}, of {plural(len(found), 'kind')}", "bold")
    sheet = TextTable(out, _LIST)
    heads = _heads(found)
    sheet.settle(heads)
    for head, kind in zip(heads, found, strict=True):
        sheet.add([head])
        hanging(out, "    ", kind.reason, "dim")


@dlq.command()
@options_of(selection)
def show(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    *,
    chosen: Selection,
    dead_letters: Annotated[int, typer.Option("-n", "--limit", min=1, help="How many.")] = 20,
    values: Annotated[
        bool, typer.Option("--values", help="Show what is in them, too: it may be about people.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show dead letters one by one: where they stood, why they are no rows, their keys.

    Exit codes: 0 shown, 1 the table is not there or cannot be read, 2 configuration.
    """
    (settings, name), out = load_pipeline(config, pipeline), console()
    screen = record_screen(name, settings)
    rows = _first(name, settings, chosen, dead_letters, values=values or screen.hides)
    decoded = _decoded(name, settings, source(settings.registry), rows, out) if values and rows.num_rows else {}
    rows = screen.table(rows) if rows.num_rows else rows
    for row in rows.to_pylist():  # cold: at most --limit rows
        place = (row["_topic"], row["_partition"], row["_offset"])
        about = {name.lstrip("_"): value for name, value in row.items() if name not in ("value", "headers")}
        if as_json:
            extra = {"value": row["value"], "decoded": decoded.get(place)} if values else {}
            emit(plain({**about, **extra}))
            continue
        _print(out, row, decoded.get(place), values=values)
    if not (rows.num_rows or as_json):
        tables.sentence(out, f"{name}: no such dead letters")


@dlq.command()
@options_of(selection)
def replay(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    *,
    chosen: Selection,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Carry dead letters through the writer once more, by today's schemas and configuration, exactly once.

    What becomes a row leaves the dead letters in the same commit; what fails again stays, with its new reason. May be
    killed, repeated, and run beside the writer, which goes on.

    Exit codes: 0 done or shown, 1 Kafka's registry or the storage does not answer, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(_run_replay, name, settings, chosen, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _run_replay(name: str, config: Config, chosen: Selection, *, write: bool, as_json: bool) -> bool:
    """Show which dead letters are chosen, or replay them. Returns whether there are any. Raises HeadraceError."""
    if not write:
        waiting = kinds(name, config, chosen)
        if as_json:
            emit_whole(_to_dict(ReplayResult(sum(kind.records for kind in waiting))))
        else:
            _show_kinds(name, waiting)
        return bool(waiting)
    found = Replaying(name, config, source(config.registry)).run(chosen, datetime.now(UTC))
    if as_json:
        emit_whole(_to_dict(found))
        return True
    out, failed = console(), sum(found.failed.values())
    commits = f" in {plural(len(found.versions), 'commit')}" if found.versions else ""
    tables.sentence(
        out, f"{name}: of {plural(found.chosen, 'dead letter')} {found.rows:,} became rows{commits}", "bold"
    )
    if found.filtered:
        tables.sentence(out, f"{plural(found.filtered, 'dead letter')} went, which event specs leave out.")
    if failed:
        tables.sentence(out, f"{plural(failed, 'dead letter')} failed again and stay:")
    for (_, _, why), count in sorted(found.failed.items(), key=lambda item: -item[1])[:10]:
        hanging(out, f"{count:>8,} ", why)
    return True


def _span(given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    start, _, end = given.partition(":")
    try:
        found = int(start or 0), int(end) if end else 2**63 - 1
    except ValueError as error:
        raise typer.BadParameter(f"{given!r} is no range; write 100:200", param_hint="--offsets") from error
    return found
