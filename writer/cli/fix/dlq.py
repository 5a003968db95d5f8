"""`headrace dlq`: lists, shows and replays dead letters."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.console import Console
from rich.text import Text

from writer.commit.privacy import record_screen
from writer.config.pipelines import Config
from writer.core.errors import SchemaChanged
from writer.core.offsets import Span
from writer.core.text import instant, iso, plural
from writer.maintenance.dead_letters.listing import (
    DeadLetterGroup,
    RecordPosition,
    decode_dead_letters,
    first_dead_letters,
    group_dead_letters,
)
from writer.maintenance.dead_letters.replay import DeadLetterReplay, ReplayResult
from writer.maintenance.dead_letters.selection import Selection
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline, options_of, time_of
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import (
    Column,
    TextTable,
    console,
    emit,
    emit_whole,
    hanging,
    legible,
    plain,
    sentence,
    visible,
)
from writer.schemas.registry import RegistryUnreachable, source

_BYTES_PER_LINE = 16
_BYTES_SHOWN = 8 * _BYTES_PER_LINE
_REASONS_SHOWN = 10
_OFFSET_MAX = 2**63 - 1
_GROUP_TABLE = [
    Column("records", right=True),
    Column("outcome"),
    Column("topic", width_max=24),
    Column("schema", right=True),
    Column("offsets", width_max=24),
    Column("newest"),
    Column("oldest", right=True),
]

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
        outcome,
        reason,
        topic,
        partition,
        _parse_range(offsets),
        schema_id,
        time_of("--since", since),
        time_of("--until", until),
    )


@dlq.command("list")
@options_of(selection)
def list_(config: ConfigFile, pipeline: OnePipeline = None, *, chosen: Selection, as_json: AsJson = False) -> None:
    """List dead letters by outcome, topic, schema and reason. Reads the lake only.

    Exit codes: 0 shown, 1 the table is not there or cannot be read, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    groups = group_dead_letters(name, settings, chosen)
    if as_json:
        emit_whole([_group_document(group) for group in groups])
    else:
        _show_groups(name, groups)


def _group_document(group: DeadLetterGroup) -> Mapping[str, Any]:
    return {
        **vars(group),
        "time_min": group.time_min and iso(group.time_min),
        "time_max": group.time_max and iso(group.time_max),
    }


def _show_groups(name: str, groups: Sequence[DeadLetterGroup]) -> None:
    out = console()
    records = sum(group.records for group in groups)
    quarantined = sum(group.records for group in groups if group.outcome == "quarantined")
    counts = f"{plural(records - quarantined, 'dead letter')} and {quarantined:,} quarantined"
    sentence(out, f"{name}: {counts}, of {plural(len(groups), 'kind')}", "bold")
    table = TextTable(out, _GROUP_TABLE)
    rows = [_group_row(group) for group in groups]
    table.settle(rows)
    for row, group in zip(rows, groups, strict=True):
        table.add([row])
        hanging(out, "    ", group.reason, "dim")


def _group_row(group: DeadLetterGroup) -> list[str]:
    return [
        f"{group.records:,}",
        group.outcome,
        group.topic,
        "-" if group.schema_id is None else str(group.schema_id),
        f"{group.offset_min} to {group.offset_max}",
        instant(group.time_max),
        instant(group.time_min),
    ]


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
    settings, name = load_pipeline(config, pipeline)
    out = console()
    screen = record_screen(name, settings)
    # Whether a reason may quote a value, the value says.
    records = first_dead_letters(name, settings, chosen, dead_letters, has_values=values or screen.hides)
    decoded: Mapping[RecordPosition, dict[str, Any]] = {}
    if values and records.num_rows:
        decoded = _decode(name, settings, records, out)
    if records.num_rows:
        records = screen.table(records)
    # cold: at most --limit records
    for record in records.to_pylist():
        row = decoded.get((record["_topic"], record["_partition"], record["_offset"]))
        if as_json:
            emit(plain(_record_document(record, row, values=values)))
        else:
            _show_record(out, record, row, values=values)
    if not (records.num_rows or as_json):
        sentence(out, f"{name}: no such dead letters")


def _decode(name: str, config: Config, records: pa.Table, out: Console) -> Mapping[RecordPosition, dict[str, Any]]:
    try:
        return decode_dead_letters(name, config, source(config.registry), records)
    except (RegistryUnreachable, SchemaChanged) as error:
        sentence(out, f"not decoded: {error}", "yellow")
        return {}


def _record_document(record: Mapping[str, Any], row: Mapping[str, Any] | None, *, values: bool) -> Mapping[str, Any]:
    document = {key.lstrip("_"): value for key, value in record.items() if key not in ("value", "headers")}
    if values:
        document |= {"value": record["value"], "decoded": row}
    return document


def _show_record(out: Console, record: Mapping[str, Any], row: Mapping[str, Any] | None, *, values: bool) -> None:
    position = f"{record['_topic']}/{record['_partition']} offset {record['_offset']}"
    properties = [instant(record["_kafka_time"])]
    properties.append("no key" if record["key"] is None else f"key {legible(record['key'])}")
    if record["schema_id"] is not None:
        properties.append(f"schema id {record['schema_id']}")
    out.print(Text.assemble((position, "bold"), f"  {', '.join(properties)}"), soft_wrap=True)
    hanging(out, f"  {record['outcome']}: ", record["error"], "yellow")
    if not values or record["value"] is None:
        return
    _show_bytes(out, record["value"])
    if row is not None:
        hanging(out, "  decoded: ", str(plain(row)))


def _show_bytes(out: Console, value: bytes) -> None:
    for start in range(0, min(len(value), _BYTES_SHOWN), _BYTES_PER_LINE):
        piece = value[start : start + _BYTES_PER_LINE]
        line = f"  {start:04x}  {piece.hex(' '):<{3 * _BYTES_PER_LINE}} {visible(piece)}"
        out.print(Text(line, "dim"), soft_wrap=True)
    if len(value) > _BYTES_SHOWN:
        out.print(Text(f"  … {len(value):,} bytes", "dim"), soft_wrap=True)


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

    Exit codes: 0 rows came, or it is only shown; 1 no row came, or the registry or the storage does not answer; 2
    configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(_run_replay, name, settings, chosen, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _run_replay(name: str, config: Config, chosen: Selection, *, write: bool, as_json: bool) -> bool:
    """Show which dead letters are chosen, or replay them. Returns whether there are any.

    Raises typer.Exit if a replay brings no row, HeadraceError.
    """
    if not write:
        groups = group_dead_letters(name, config, chosen)
        if as_json:
            emit_whole(_replay_document(ReplayResult(sum(group.records for group in groups))))
        else:
            _show_groups(name, groups)
        return bool(groups)
    result = DeadLetterReplay(name, config, source(config.registry)).run(chosen, datetime.now(UTC))
    if as_json:
        emit_whole(_replay_document(result))
    else:
        _show_replay(name, result, console())
    if result.rows == 0:
        raise typer.Exit(1)
    return True


def _replay_document(result: ReplayResult) -> Mapping[str, Any]:
    return {
        "chosen": result.chosen,
        "rows": result.rows,
        "filtered": result.filtered,
        "versions": result.versions,
        "failed": [
            {"outcome": outcome, "schema_id": schema_id, "reason": reason, "records": count}
            for (outcome, schema_id, reason), count in result.failed.items()
        ],
    }


def _show_replay(name: str, result: ReplayResult, out: Console) -> None:
    if result.chosen == 0:
        sentence(out, f"{name}: no dead letter that has its bytes is chosen, so no row came.")
        return
    summary = f"{name}: of {plural(result.chosen, 'dead letter')} {result.rows:,} became rows"
    if result.rows == 0:
        summary = f"{name}: of {plural(result.chosen, 'dead letter')} none became a row"
    if result.versions:
        summary += f" in {plural(len(result.versions), 'commit')}"
    sentence(out, summary, "bold")
    if result.filtered:
        sentence(out, f"{plural(result.filtered, 'dead letter')} went, which event specs leave out.")
    if result.failed:
        sentence(out, f"{plural(sum(result.failed.values()), 'dead letter')} failed again and stay:")
    most_frequent = sorted(result.failed.items(), key=lambda item: -item[1])
    for (_, _, reason), count in most_frequent[:_REASONS_SHOWN]:
        hanging(out, f"{count:>8,} ", reason)


def _parse_range(text: str | None) -> Span | None:
    if text is None:
        return None
    start, _, end = text.partition(":")
    try:
        return int(start or 0), int(end) if end else _OFFSET_MAX
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no range; write 100:200", param_hint="--offsets") from error
