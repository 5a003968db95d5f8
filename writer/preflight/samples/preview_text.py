"""Text of a preview: records as lines, rows as columns side by side."""

from collections import Counter
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from writer.avro.schema_plan import RejectedSchema
from writer.avro.wire_format import WIDTHS, show_id
from writer.core.text import instant as short_instant, plural, span
from writer.core.units import show_size
from writer.maintenance.local_pipeline import LocalPipeline
from writer.output import tables
from writer.output.tables import Column, TextTable, cell, instant, short_type
from writer.sealing.manifest import bucket_path

Record = dict[str, Any]  # one record as a step sees it
_HEAD_BYTES = 48  # of a value, for the eye
NARROW = 96  # columns; below them, hex digits and milliseconds would leave no room for the value
_HEX_BYTES = 4  # of them, as hex digits too
_NAME = 24  # columns for the name of a decoded value, at most
_CELL = 20  # for the value itself, at least
_TROUBLE = {"dead_letter": "red", "quarantined": "yellow", "tombstone": "dim", "filtered": "dim"}

_PLACE = [
    Column("partition", width_max=28),
    Column("offset", right=True, width_min=7),
    Column("broker time", width_min=27),
]
RAW = [
    *_PLACE, Column("key", width_max=14), Column("schema", right=True), Column("size", right=True, width_min=8),
    Column("value"),
]  # fmt: skip
RAW_NARROW = [
    *_PLACE[:2], Column("broker time"), Column("key", width_max=8), Column("schema", right=True),
    Column("size", right=True), Column("value"),
]  # fmt: skip
ASSIGNED = [
    *_PLACE[:2], Column("event time", width_min=27), Column("behind", right=True, width_min=8),
    Column("bucket", width_min=10),
]  # fmt: skip


def raw_line(record: Record, *, narrow: bool) -> list[str | Text]:
    """Return the cells of a record as Kafka holds it."""
    value, schema = record["value_hex"], record["schema_id"]
    place: list[str | Text] = [_partition(record), f"{record['offset']:,}", instant(record["timestamp"])]
    if narrow:
        place[-1] = short_instant(record["timestamp"])
    key = Text("null", "dim") if record["key"] is None else Text(record["key"])
    if value is None:
        return [*place, key, "", Text("-", "dim"), Text("tombstone", "dim")]
    body = value[0 if schema is None else WIDTHS[record["wire"]] :]
    head, binary = Text(), (text := tables.legible(body)).startswith("0x")
    if binary and not narrow:  # the text that may stand in it
        head, text = Text(body[:_HEX_BYTES].hex(" ") + " ", "dim"), tables.visible(body)
    cut = 2 * _HEAD_BYTES if binary and narrow else _HEAD_BYTES
    head.append(text[:cut] + ("…" if len(text) > cut else ""))
    return [*place, key, Text("none", "red") if schema is None else show_id(schema), show_size(len(value)), head]


def assigned_line(record: Record) -> list[str | Text]:
    """Return the cells of a record with its event time and bucket, or why it has none."""
    outcome = record["outcome"]
    if outcome != "row":
        why = Text(
            f"{outcome.replace('_', ' ')}: {record['reason']}" if "reason" in record else outcome, _TROUBLE[outcome]
        )
        return [_partition(record), f"{record['offset']:,}", why]
    came, event = record["timestamp"], record["event_time"]
    behind = "" if came is None else span((came - event).total_seconds())
    bucket = bucket_path(list(record["bucket"]), tuple(record["bucket"].values()))
    return [_partition(record), f"{record['offset']:,}", instant(event), behind, bucket]


def _partition(record: Record) -> str:
    return f"{record['topic']}/{record['partition']}"


def summary(records: list[Record], walk: LocalPipeline) -> str:
    """Return in one line what became of the records."""
    outcomes = Counter(record["outcome"] for record in records)
    message = [
        ", ".join([plural(outcomes.pop("row", 0), "row"), *(_times(*item) for item in sorted(outcomes.items()))])
    ]
    buckets = {tuple(record["bucket"].values()) for record in records if "bucket" in record}
    if buckets:
        units = sorted({_read_as(record["unit"]) for record in records if "unit" in record})
        message.append(f"{plural(len(buckets), 'bucket')}, event time read {' and '.join(units)}")
        message.append("behind: how long after the event the broker had it")
    else:
        used = sorted({record["schema_id"] for record in records if record["schema_id"] is not None})
        message += [f"schema {show_id(schema_id)}: {_way(walk, schema_id)}" for schema_id in used]
    return "; ".join(message)


def _read_as(unit: str) -> str:
    return "as its schema's type says" if unit == "logical" else f"as {unit}"


def _times(outcome: str, number: int) -> str:
    return (
        f"{number:,} {outcome}" if outcome in ("quarantined", "filtered") else plural(number, outcome.replace("_", " "))
    )


def transposed(out: Console, rows: list[Record], walk: LocalPipeline) -> None:
    """Print rows as columns, as many side by side as the width holds."""
    schema = pa.schema([*walk.plan.columns, *walk.schemas.record_columns.schema])
    kinds = {field.name: short_type(field.type) for field in schema}
    names_width = min(max(map(len, schema.names), default=0), _NAME) + max(map(len, kinds.values()), default=0)
    step = max(out.width - names_width - 2, _CELL)
    beside = max(1, step // (_CELL + 2))
    for at in range(0, len(rows), beside):
        some = rows[at : at + beside]
        width = min(step // len(some) - 2, 3 * _CELL)
        records = [Column(_head(record, width), width_min=width, width_max=width) for record in some]
        sheet = TextTable(out, [Column("column", width_max=_NAME), Column("type", style="dim"), *records])
        sheet.add(
            [[name, kinds[name], *(cell(record["row"][name], width) for record in some)] for name in schema.names]
        )
        out.print()


def _head(record: Record, width: int) -> str:
    text = f"{_partition(record)} @{record['offset']:,}"
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def others(out: Console, records: list[Record]) -> None:
    """Print the records that became no row, and why."""
    if not records:
        return
    columns = [
        Column("partition"),
        Column("offset", right=True),
        Column("schema", right=True),
        Column("no row, because"),
    ]
    rows: list[list[str | Text]] = []
    for record in records:
        dead_letter = record["outcome"] != "tombstone"
        why = record["reason"] if dead_letter else "it is a tombstone: it has no value"
        schema = "none" if record["schema_id"] is None else show_id(record["schema_id"])
        schema = schema if dead_letter else ""
        rows.append([_partition(record), f"{record['offset']:,}", schema, Text(why, _TROUBLE[record["outcome"]])])
    TextTable(out, columns).add(rows)


def _way(walk: LocalPipeline, schema_id: int) -> str:
    known = walk.plan.schemas[schema_id]
    if isinstance(known, RejectedSchema):
        return "rejected"
    return f"{plural(len(known.columns), 'field')}, decoded {'natively' if known.native else 'one by one'}"
