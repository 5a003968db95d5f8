"""`headrace dlq`: what became no row, why, and carrying it through the writer once more."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from writer.config import Config
from writer.errors import HeadraceError, SchemaChanged
from writer.ledger.letters import Selection, as_read, read
from writer.ledger.replay import Replayed, Replaying
from writer.registry import RegistryUnreachable, SchemaSource
from writer.rooms.wire import CONFLUENT
from writer.surface import lines
from writer.surface.lines import Column, Sheet, emit, emit_whole, hanging, instant, visible
from writer.surface.walk import Walk, opened, plain
from writer.surface.words import iso, plural
from writer.tables.formats import side_table

_NUMBERS = re.compile(r"\d[\d.,:TZ-]*")
_DUMP = 16  # bytes of a line
_KINDS_MAX = 10_000  # of letters that are told apart
_LIST = [
    Column("letters", right=True), Column("outcome"), Column("topic", width_max=24), Column("schema", right=True),
    Column("offsets", width_max=24), Column("newest"), Column("oldest", right=True),
]  # fmt: skip


@dataclass
class Kind:
    """Letters that share outcome, topic, schema id and reason, numbers in it aside."""

    outcome: str
    topic: str
    schema_id: int | None
    reason: str  # of the first
    letters: int
    offset_min: int
    offset_max: int
    time_min: datetime
    time_max: datetime


def kinds(name: str, config: Config, selection: Selection) -> list[Kind]:
    """Group the chosen letters, most first. Raises HeadraceError when there is no dead-letter table."""
    found: dict[tuple[str, str, int | None, str], Kind] = {}
    columns = ["_topic", "_partition", "_offset", "_kafka_time", "schema_id", "outcome", "error"]
    for batch in _letters(name, config, selection, columns):
        for row in batch.to_pylist():  # cold: letters only
            offset, at = row["_offset"], row["_kafka_time"]
            key = (row["outcome"], row["_topic"], row["schema_id"], _NUMBERS.sub("#", row["error"]))
            if len(found) >= _KINDS_MAX and key not in found:
                key = (row["outcome"], row["_topic"], None, "others")
            kind = found.get(key)
            if kind is None:
                found[key] = Kind(*key[:3], row["error"], 1, offset, offset, at, at)
                continue
            kind.letters += 1
            kind.offset_min, kind.offset_max = min(kind.offset_min, offset), max(kind.offset_max, offset)
            kind.time_min, kind.time_max = min(kind.time_min, at), max(kind.time_max, at)
    return sorted(found.values(), key=lambda kind: -kind.letters)


def listed(name: str, config: Config, selection: Selection, *, as_json: bool, out: Console) -> int:
    """Show the kinds of letters. Returns 0."""
    found = kinds(name, config, selection)
    if as_json:
        emit_whole([{**vars(k), "time_min": iso(k.time_min), "time_max": iso(k.time_max)} for k in found])
        return 0
    letters = sum(kind.letters for kind in found)
    lines.sentence(out, f"{name}: {plural(letters, 'letter')} of {plural(len(found), 'kind')}", "bold")
    sheet = Sheet(out, _LIST)
    for head, kind in zip(_heads(found), found, strict=True):
        sheet.add([head])
        hanging(out, "    ", kind.reason, "dim")
    return 0


def shown(
    name: str, config: Config, selection: Selection, source: SchemaSource, *, limit: int, values: bool, as_json: bool,
    out: Console,
) -> int:  # fmt: skip
    """Show letters one by one; what is in them only with `values`. Returns 0."""
    rows = _first(name, config, selection, limit, values=values)
    decoded = _decoded(name, config, source, rows, out) if values and rows.num_rows else {}
    for row in rows.to_pylist():
        place = (row["_topic"], row["_partition"], row["_offset"])
        about = {name.lstrip("_"): value for name, value in row.items() if name not in ("value", "headers")}
        if as_json:
            extra = {"value": row["value"], "decoded": decoded.get(place)} if values else {}
            emit(plain({**about, **extra}))
            continue
        _print(out, row, decoded.get(place), values=values)
    if not (rows.num_rows or as_json):
        lines.sentence(out, f"{name}: no such letters")
    return 0


def replayed(
    name: str, config: Config, selection: Selection, source: SchemaSource, *, now: datetime, as_json: bool, out: Console
) -> int:
    """Replay letters and say what became of them. Returns 0."""
    found = Replaying(name, config, source).run(selection, now)
    if as_json:
        emit_whole(_told(found))
        return 0
    failed = sum(found.failed.values())
    commits = f" in {plural(len(found.versions), 'commit')}" if found.versions else ""
    lines.sentence(out, f"{name}: of {plural(found.chosen, 'letter')} {found.rows:,} became rows{commits}", "bold")
    if failed:
        lines.sentence(out, f"{plural(failed, 'letter')} failed again and stay:")
    for (_, _, why), count in sorted(found.failed.items(), key=lambda item: -item[1])[:10]:
        hanging(out, f"{count:>8,} ", why)
    return 0


def _heads(found: list[Kind]) -> list[list[str]]:
    """A line for each kind, its cells as wide as the widest, so that all lines stand below each other."""
    rows = [
        [
            f"{k.letters:,}", k.outcome, k.topic, "-" if k.schema_id is None else str(k.schema_id),
            f"{k.offset_min} to {k.offset_max}", f"{k.time_max:%Y-%m-%d %H:%M}", f"{k.time_min:%Y-%m-%d %H:%M}",
        ]
        for k in found
    ]  # fmt: skip
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, _LIST, strict=True)
        ]
        for row in rows
    ]


def _told(found: Replayed) -> dict[str, Any]:
    return {
        "chosen": found.chosen, "rows": found.rows, "versions": found.versions,
        "failed": [
            {"outcome": outcome, "schema_id": schema_id, "reason": why, "letters": count}
            for (outcome, schema_id, why), count in found.failed.items()
        ],
    }  # fmt: skip


def _letters(
    name: str, config: Config, selection: Selection, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    place = config.pipelines[name].dead_letters
    table = side_table(name, config, place)
    if not table.exists():
        raise HeadraceError(f"pipeline {name!r} has no dead-letter table at {place} yet. `headrace run` makes it.")
    return read(table.store, table.files(table.snapshot().version), selection, columns=columns)


def _first(name: str, config: Config, selection: Selection, limit: int, *, values: bool) -> pa.Table:
    columns = ["_topic", "_partition", "_offset", "_kafka_time", "_incarnation", "key", "schema_id", "outcome", "error"]
    held: list[pa.RecordBatch] = []
    left = limit
    for batch in _letters(name, config, selection, [*columns, *(["value", "headers"] if values else [])]):
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
        walk: Walk = opened(name, config, source)
        walk.wire = walk.wire or CONFLUENT  # letters show what a format is not
        found = [g for batch in records.combine_chunks().to_batches() for g in walk.decoded(batch)]
    except (RegistryUnreachable, SchemaChanged) as error:
        lines.sentence(out, f"not decoded: {error}", "yellow")
        return {}
    decoded = {}
    for group in found:
        places = zip(*(group.kept.column(n).to_pylist() for n in ("topic", "partition", "offset")), strict=True)
        for place, row in zip(places, group.rows.to_pylist(), strict=True):
            decoded[place] = {column: value for column, value in row.items() if value is not None}
    return decoded


def _print(out: Console, row: Mapping[str, Any], decoded: Mapping[str, Any] | None, *, values: bool) -> None:
    key = "no key" if row["key"] is None else f"key {visible(row['key'])}"
    schema = "" if row["schema_id"] is None else f", schema id {row['schema_id']}"
    where = f"{row['_topic']}/{row['_partition']} offset {row['_offset']}"
    out.print(Text.assemble((where, "bold"), f"  {instant(row['_kafka_time'])}, {key}{schema}"), soft_wrap=True)
    hanging(out, f"  {row['outcome']}: ", row["error"], "yellow")
    if not values:
        return
    value = row["value"]
    for at in range(0, min(len(value), 8 * _DUMP), _DUMP):
        piece = value[at : at + _DUMP]
        out.print(Text(f"  {at:04x}  {piece.hex(' '):<{3 * _DUMP}} {visible(piece)}", "dim"), soft_wrap=True)
    if len(value) > 8 * _DUMP:
        out.print(Text(f"  … {len(value):,} bytes", "dim"), soft_wrap=True)
    if decoded is not None:
        hanging(out, "  decoded: ", str(plain(decoded)))
