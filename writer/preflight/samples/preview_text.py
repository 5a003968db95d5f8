"""Text of a preview: records as lines, rows as columns side by side."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.text import Text

from headrace.writer.columns.schema_plan import RejectedSchema, WriterSchema
from headrace.writer.core.text import instant as short_instant, plural, span
from headrace.writer.core.units import show_size
from headrace.writer.framing.compression import inflate_value
from headrace.writer.framing.wire_format import UNNAMED, WIDTHS, show_id, without_message
from headrace.writer.maintenance.local_pipeline import LocalPipeline
from headrace.writer.output import tables
from headrace.writer.output.report import Report
from headrace.writer.output.tables import Column, TextTable, cell, instant, plain, short_type
from headrace.writer.sealing.manifest import bucket_path

Step = Literal["raw", "decoded", "assigned", "staged"]
# One record as a step sees it.
Record = dict[str, Any]
# Bytes of a value that are shown.
_HEAD_BYTES = 48
# On a narrower terminal hex digits and milliseconds would leave no room for the value.
_NARROW = 96
# The first bytes are shown as hex digits, too.
_HEX_BYTES = 4
# The largest width of a column's name.
_NAME = 24
# The least width of a column's value.
_CELL = 20
_STYLES = {"dead_letter": "red", "quarantined": "yellow", "tombstone": "dim", "filtered": "dim"}

_PLACE = [
    Column("partition", width_max=28),
    Column("offset", right=True, width_min=7),
    Column("broker time", width_min=27),
]
_RAW = [
    *_PLACE,
    Column("key", width_max=14),
    Column("schema", right=True),
    Column("size", right=True, width_min=8),
    Column("value"),
]
_RAW_NARROW = [
    *_PLACE[:2],
    Column("broker time"),
    Column("key", width_max=8),
    Column("schema", right=True),
    Column("size", right=True),
    Column("value"),
]
_ASSIGNED = [
    *_PLACE[:2],
    Column("event time", width_min=27),
    Column("behind", right=True, width_min=8),
    Column("bucket", width_min=10),
]


@dataclass(frozen=True)
class PreviewedRecords(Report):
    """Records of a batch as a step sees them; JSON has a line for each."""

    records: Sequence[Record]
    # The table of a route that they go to; None: there is no route, or it is not known yet.
    target: str | None
    step: Step
    # None: they are as Kafka holds them.
    local_pipeline: LocalPipeline | None
    # Of the lines, over all batches.
    sheet: TextTable
    has_summary: bool

    def render(self, out: Console) -> None:
        """Draw rows as columns, other records as lines, and sum up."""
        if self.local_pipeline is None:
            self.sheet.add([_raw_line(record, narrow=out.width < _NARROW) for record in self.records])
            return
        if self.step == "decoded":
            _print_rows(out, [record for record in self.records if record["outcome"] == "row"], self.local_pipeline)
            _print_without_row(out, [record for record in self.records if record["outcome"] != "row"])
        else:
            self.sheet.add([_assigned_line(record) for record in self.records])
        if self.has_summary:
            tables.sentence(out, _summary(self.records, self.local_pipeline), "dim")

    def lines(self) -> Iterator[Any]:
        """Yield each record; of a route with the table that it goes to."""
        for record in self.records:
            yield plain(record if self.target is None else {"target": self.target, **record})


@dataclass(frozen=True)
class UnroutedRecords(Report):
    """Records that go to no table of a route; JSON has a line for each."""

    records: Sequence[Record]

    def render(self, out: Console) -> None:
        """Say of each why."""
        out.print(Text(f"no table: {plural(len(self.records), 'record')}", "bold"))
        _print_without_row(out, self.records)

    def lines(self) -> Iterator[Any]:
        """Yield each record."""
        yield from map(plain, self.records)


def open_sheet(step: Step, out: Console) -> TextTable:
    """Begin the table of records that have a line each, as Kafka holds them or with their buckets."""
    columns = _ASSIGNED
    if step == "raw":
        columns = _RAW_NARROW if out.width < _NARROW else _RAW
    return TextTable(out, columns)


def _raw_line(record: Record, *, narrow: bool) -> list[str | Text]:
    """Return the cells of a record as Kafka holds it."""
    value = record["value_hex"]
    schema = record["schema_id"]
    format_time = short_instant if narrow else instant
    time = format_time(record["timestamp"])
    key = Text("null", "dim") if record["key"] is None else Text(record["key"])
    cells: list[str | Text] = [_partition(record), f"{record['offset']:,}", time, key]
    if value is None:
        return [*cells, "", Text("-", "dim"), Text("tombstone", "dim")]
    if record["wire"] == "none":
        return [*cells, Text("-", "dim"), show_size(len(value)), _value_cell(value, narrow=narrow)]
    if schema is None:
        return [*cells, Text("none", "red"), show_size(len(value)), _value_cell(value, narrow=narrow)]
    return [*cells, show_id(schema), show_size(len(value)), _value_cell(_value_body(record), narrow=narrow)]


def _value_body(record: Record) -> bytes:
    """Return the bytes of a value behind its header; inflated, if they can be."""
    wire = record["wire"]
    value: bytes = record["value_hex"]
    if wire == "glue":
        with suppress(ValueError):
            value = inflate_value(value)
    return value[WIDTHS[wire] :]


def _value_cell(body: bytes, *, narrow: bool) -> Text:
    """Return the beginning of a value. Of binary ones the text in them, or on a narrow terminal their hex digits."""
    cell = Text()
    text = tables.legible(body)
    length_max = _HEAD_BYTES
    if text.startswith("0x"):
        if narrow:
            length_max *= 2
        else:
            cell = Text(body[:_HEX_BYTES].hex(" ") + " ", "dim")
            text = tables.visible(body)
    if len(text) > length_max:
        text = f"{text[:length_max]}…"
    return cell.append(text)


def _assigned_line(record: Record) -> list[str | Text]:
    """Return the cells of a record with its event time and bucket, or why it has none."""
    outcome = record["outcome"]
    if outcome != "row":
        why = outcome
        if "reason" in record:
            why = f"{outcome.replace('_', ' ')}: {record['reason']}"
        return [_partition(record), f"{record['offset']:,}", Text(why, _STYLES[outcome])]
    broker_time = record["timestamp"]
    event_time = record["event_time"]
    behind = ""
    if broker_time is not None:
        behind = span((broker_time - event_time).total_seconds())
    bucket = bucket_path(list(record["bucket"]), tuple(record["bucket"].values()))
    return [_partition(record), f"{record['offset']:,}", instant(event_time), behind, bucket]


def _partition(record: Record) -> str:
    return f"{record['topic']}/{record['partition']}"


def _summary(records: Sequence[Record], local_pipeline: LocalPipeline) -> str:
    """Return the outcomes of the records in one line."""
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
        message += [f"schema {show_id(schema_id)}: {_decoder(local_pipeline, schema_id)}" for schema_id in used]
        if UNNAMED in local_pipeline.plan.schemas:
            message.append(f"values that name no schema: {_decoder(local_pipeline, UNNAMED)}")
    return "; ".join(message)


def _read_as(unit: str) -> str:
    return "as its schema's type says" if unit == "logical" else f"as {unit}"


def _times(outcome: str, number: int) -> str:
    if outcome in ("quarantined", "filtered"):
        return f"{number:,} {outcome}"
    return plural(number, outcome.replace("_", " "))


def _print_rows(out: Console, rows: list[Record], local_pipeline: LocalPipeline) -> None:
    """Print rows as columns, as many side by side as fit into the width."""
    schema = pa.schema([*local_pipeline.plan.columns, *local_pipeline.schemas.record_columns.schema])
    kinds = {field.name: short_type(field.type) for field in schema}
    names_width = min(max(map(len, schema.names), default=0), _NAME) + max(map(len, kinds.values()), default=0)
    step = max(out.width - names_width - 2, _CELL)
    beside = max(1, step // (_CELL + 2))
    for start in range(0, len(rows), beside):
        records = rows[start : start + beside]
        width = min(step // len(records) - 2, 3 * _CELL)
        columns = [Column(_head(record, width), width_min=width, width_max=width) for record in records]
        sheet = TextTable(out, [Column("column", width_max=_NAME), Column("type", style="dim"), *columns])
        sheet.add(
            [[name, kinds[name], *(cell(record["row"][name], width) for record in records)] for name in schema.names]
        )
        out.print()


def _head(record: Record, width: int) -> str:
    text = f"{_partition(record)} @{record['offset']:,}"
    return text if len(text) <= width else "…" + text[-(width - 1) :]


def _print_without_row(out: Console, records: Sequence[Record]) -> None:
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
        if record["outcome"] == "tombstone":
            schema = ""
            why = "it is a tombstone: it has no value"
        else:
            schema = "none" if record["schema_id"] is None else show_id(record["schema_id"])
            why = record["reason"]
        rows.append([_partition(record), f"{record['offset']:,}", schema, Text(why, _STYLES[record["outcome"]])])
    TextTable(out, columns).add(rows)


def _decoder(local_pipeline: LocalPipeline, schema_id: int) -> str:
    schemas = local_pipeline.plan.schemas
    # Of a Protobuf schema each message has a plan of its own.
    texts = [_decoder_of(schema) for known_id, schema in schemas.items() if without_message(known_id) == schema_id]
    return " and ".join(dict.fromkeys(texts)) or "rejected"


def _decoder_of(schema: WriterSchema | RejectedSchema) -> str:
    if isinstance(schema, RejectedSchema):
        return "rejected"
    return f"{plural(len(schema.columns), 'field')}, decoded {'natively' if schema.native else 'one by one'}"
