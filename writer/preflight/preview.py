"""Shows records as each step of the writer sees them, on a terminal or as JSON. Changes nothing."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

import pyarrow as pa
from rich.console import Console
from rich.text import Text

import bucketers
from writer.avro.schema_plan import Rejected
from writer.avro.wire_format import WIDTHS, Wire, each, recognised, show_id
from writer.clients import kafka_sample
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.offsets import Source, Span
from writer.core.text import instant as short_instant, plural, span
from writer.core.units import show_size
from writer.maintenance.local_pipeline import DeadLetter, LocalPipeline, Sample, opened, record_places
from writer.output import tables
from writer.output.tables import Column, TextTable, cell, emit, instant, plain, short_type
from writer.preflight.route_sample import TargetPart, opened_part, split
from writer.preflight.staged_sample import show_staged
from writer.privacy.record_sealing import described
from writer.schemas.format_detection import RECORDS_MAX
from writer.schemas.registry import source
from writer.sealing.manifest import bucket_path

Step = Literal["raw", "decoded", "assigned", "staged"]
Record = dict[str, Any]  # one record as a step sees it
_HEAD_BYTES = 48  # of a value, for the eye
_NARROW = 96  # columns; below them, hex digits and milliseconds would leave no room for the value
_HEX_BYTES = 4  # of them, as hex digits too
_NAME = 24  # columns for the name of a decoded value, at most
_CELL = 20  # for the value itself, at least
_TROUBLE = {"dead_letter": "red", "quarantined": "yellow", "tombstone": "dim", "filtered": "dim"}


def preview(
    config: Config, name: str | None, *, target: str | None = None, at: Step, records: int, start: str, follow: bool,
    as_json: bool, now: datetime,
) -> None:  # fmt: skip
    """Show records of a pipeline's topics at a step; of a route by the tables that they go to, or of one of these.

    Raises HeadraceError.
    """
    name = config.one(name)
    if target is not None:
        config.at_target(name, target)  # says that it does not exist
    if follow and at == "staged":
        raise ConfigError("--at staged shows finished files, which --follow never has; leave one of them out")
    cluster, topics = _asked(config, name)
    spans = kafka_sample.spans(cluster, topics, records, kafka_sample.position(start))
    out = tables.console()
    look = PreviewSession(name, config, at, out, now, as_json=as_json, whole=not follow)
    if config.pipelines[name].route is not None and at != "raw":
        if follow:
            raise ConfigError("--follow does not split records by a route; show them as they are: --at raw")
        look.show_route(kafka_sample.read(config.kafka, spans), target)
        return
    if target is not None:
        raise ConfigError("--at raw shows records before the route; leave --target out, or show them decoded")
    if follow:
        with suppress(KeyboardInterrupt):
            look.show(kafka_sample.follow(config.kafka, {source: first for source, (first, _) in spans.items()}))
        return
    batch = kafka_sample.read(config.kafka, spans)
    if not as_json:
        tables.sentence(out, _scope(name, topics, batch, spans, start), "dim")
    if batch.num_rows:
        look.show([batch])


def looked(config: Config, name: str, *, at: Step, records: int, now: datetime) -> list[Record]:
    """Return the newest records of a pipeline's topics as a step sees them. Raises HeadraceError."""
    cluster, topics = _asked(config, name)
    batch = kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, records))
    if batch.num_rows == 0:
        return []
    if config.pipelines[name].route is None or at == "raw":
        return _described(config, name, at, batch, _walk(config, name, at), now)
    schemas = source(config.registry)
    found = split(opened(name, config, schemas, topics=topics, before_route=True), batch)
    parts = [
        {"target": part.target, **record}
        for part in found.parts
        for record in _described(part.config, name, at, part.records, opened_part(name, part, schemas), now)
    ]
    return [*parts, *map(_refused, found.refused)]


def _walk(config: Config, name: str, at: Step) -> LocalPipeline | None:
    """Open the pipeline with its wire format, found by the newest records where it is not known; None for raw ones."""
    if at == "raw":
        return None
    cluster, topics = _asked(config, name)
    walk = opened(name, config, source(config.registry), topics=topics)
    if walk.wire is None:
        walk.settled(kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, RECORDS_MAX)))
    return walk


def _asked(config: Config, name: str) -> tuple[Cluster, list[str]]:
    """Open the cluster. Return it, and the topics that the pipeline reads."""
    cluster = kafka_sample.asked(config.kafka)
    return cluster, choose_topics(cluster, config.pipelines[name].topics).names


def _described(
    config: Config, name: str, at: Step, batch: pa.RecordBatch, walk: LocalPipeline | None, now: datetime
) -> list[Record]:
    of, by = config.pipelines[name], decoded if at == "decoded" else partial(assigned, now=now)
    return described(raw(batch, of.wire.fixed) if walk is None else by(walk, batch), of.privacy)


@dataclass
class PreviewSession:
    """One step of one pipeline, shown batch by batch."""

    name: str
    config: Config
    at: Step
    out: Console
    now: datetime
    _: KW_ONLY
    as_json: bool
    whole: bool  # one batch comes, and may be summed up
    _sheet: TextTable | None = None
    _target: str | None = None  # of a route, whose records are shown

    def show(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Show each batch as it comes."""
        walk = _walk(self.config, self.name, self.at)
        for batch in batches:
            if walk is not None and self.at == "staged":
                show_staged(walk, batch, self.now, self.out, as_json=self.as_json)
            else:
                self._records(_described(self.config, self.name, self.at, batch, walk, self.now), walk)

    def show_route(self, batch: pa.RecordBatch, target: str | None) -> None:
        """Show the records of each table of a route, and those that go to none; with `target` those of one table."""
        if batch.num_rows == 0:
            tables.sentence(self.out, f"{self.name}: the topics hold no records", "dim")
            return
        schemas = source(self.config.registry)
        topics = batch.column("topic").unique().to_pylist()  # a sample's
        found = split(opened(self.name, self.config, schemas, topics=topics, before_route=True), batch)
        for part in found.parts:
            if target in (None, part.target):
                self._part(part, opened_part(self.name, part, schemas))
        if target is None and found.refused:
            refused = list(map(_refused, found.refused))
            if self.as_json:
                self._emit(refused, None)
            else:
                self.out.print(Text(f"no table: {plural(len(refused), 'record')}", "bold"))
                _others(self.out, refused)
        elif target is not None and not any(part.target == target for part in found.parts):
            tables.sentence(self.out, f"{self.name}: none of {plural(batch.num_rows, 'record')} goes to {target}.")

    def _part(self, part: TargetPart, walk: LocalPipeline) -> None:
        if not self.as_json:
            location = part.config.pipelines[self.name].table.location
            self.out.print(Text(part.target, "bold").append(f" → {location}", "dim"), soft_wrap=True)
        if self.at == "staged":
            show_staged(walk, part.records, self.now, self.out, as_json=self.as_json)
        else:
            self._target, self._sheet = part.target, None
            self._records(_described(part.config, self.name, self.at, part.records, walk, self.now), walk)
        if not self.as_json:
            self.out.print()

    def _emit(self, records: list[Record], target: str | None) -> None:
        for record in records:
            emit(plain(record if target is None else {"target": target, **record}))

    def _records(self, records: list[Record], walk: LocalPipeline | None = None) -> None:
        if self.as_json:
            self._emit(records, self._target)
            return
        if walk is None:
            narrow = self.out.width < _NARROW
            self._lines(_RAW_NARROW if narrow else _RAW, [_raw_line(record, narrow=narrow) for record in records])
        elif self.at == "decoded":
            _transposed(self.out, [record for record in records if record["outcome"] == "row"], walk)
            _others(self.out, [record for record in records if record["outcome"] != "row"])
        else:
            self._lines(_ASSIGNED, [_assigned_line(record) for record in records])
        if walk is not None and self.whole:
            tables.sentence(self.out, _summary(records, walk), "dim")

    def _lines(self, columns: list[Column], rows: list[list[str | Text]]) -> None:
        self._sheet = self._sheet or TextTable(self.out, columns)
        self._sheet.add(rows)


def raw(batch: pa.RecordBatch, wire: Wire | None = None) -> list[Record]:
    """Describe records as Kafka holds them. `wire`: the format that they are to have; None: the one that each has."""
    table = pa.Table.from_batches([batch])
    found = []
    for (_, about), (value, headers) in zip(_about(table), each(table), strict=True):
        found_wire, schema_id = wire, None
        if value is not None and wire is not None:
            schema_id = wire.found(value, headers)
        elif value is not None and (seen := recognised(value, headers)) is not None:
            found_wire, schema_id = seen
        name = None if schema_id is None or found_wire is None else found_wire.format
        found.append({**about, "wire": name, "schema_id": schema_id, "bytes": len(value or b""), "value_hex": value})
    return found


def decoded(walk: LocalPipeline, batch: pa.RecordBatch) -> list[Record]:
    """Describe records after decode and conform: the row, or why there is none."""
    return _records(batch, walk.decoded(batch), walk)


def assigned(walk: LocalPipeline, batch: pa.RecordBatch, now: datetime) -> list[Record]:
    """Describe records after assign: event time and bucket, or why there is none."""
    return _records(batch, walk.assigned(batch, now), walk)


def _refused(one: DeadLetter) -> Record:
    place = dict(zip(("topic", "partition", "offset"), one.place, strict=True))
    return {"target": None, **place, "schema_id": one.schema_id, "outcome": one.outcome, "reason": one.reason}


def _records(batch: pa.RecordBatch, sample: Sample, walk: LocalPipeline) -> list[Record]:
    columns = bucketers.build(walk.config.pipelines[walk.name].bucket).columns
    found: dict[tuple[str, int, int], Record] = {}
    for group in sample.groups:  # cold: to_pylist() over a sample of some records, for a screen
        about: Record = {"schema_id": group.schema_id, "outcome": "row"}
        if (assigned := group.assigned) is not None:
            times, codes = assigned.event_time.to_pylist(), assigned.buckets.codes.to_pylist()
            buckets = [dict(zip(columns, assigned.buckets.values[code], strict=True)) for code in codes]
            more: Iterable[Record] = (
                {"event_time": time, "unit": assigned.unit, "bucket": bucket}
                for time, bucket in zip(times, buckets, strict=True)
            )
        else:
            more = ({"row": row} for row in group.rows.to_pylist())
        found |= {place: {**about, **rest} for place, rest in zip(record_places(group.records), more, strict=True)}
    found |= {
        one.place: {"schema_id": one.schema_id, "outcome": one.outcome, "reason": one.reason}
        for one in (*sample.dead_letters, *sample.filtered)
    }
    none = {"schema_id": None, "outcome": "tombstone"}
    return [{**about, **found.get(place, none)} for place, about in _about(pa.Table.from_batches([batch]))]


def _about(table: pa.Table) -> Iterator[tuple[tuple[str, int, int], Record]]:
    shown = table.select(["topic", "partition", "offset", "timestamp", "key"])
    for row in shown.to_pylist():  # cold: records for a screen
        key = row.pop("key")
        row["key"] = None if key is None else tables.legible(key)
        yield (row["topic"], row["partition"], row["offset"]), row


def _scope(name: str, topics: list[str], batch: pa.RecordBatch, spans: Mapping[Source, Span], start: str) -> str:
    since = "" if start in ("latest", "earliest") else f" from {start} on"
    offsets = sum(end - first for first, end in spans.values())
    where = f"{plural(len(spans), 'partition')} of {', '.join(topics)}"
    if offsets == 0:
        return f"{name}: nothing to show, {where} hold no records{since}"
    empty = "" if batch.num_rows == offsets else f" ({offsets - batch.num_rows:,} offsets hold no record)"
    which = "newest" if start == "latest" else "first"
    return f"{name}: the {which} {plural(batch.num_rows, 'record')}{since} in {where}{empty}; times in UTC"


_PLACE = [
    Column("partition", width_max=28),
    Column("offset", right=True, width_min=7),
    Column("broker time", width_min=27),
]
_RAW = [
    *_PLACE, Column("key", width_max=14), Column("schema", right=True), Column("size", right=True, width_min=8),
    Column("value"),
]  # fmt: skip
_RAW_NARROW = [
    *_PLACE[:2], Column("broker time"), Column("key", width_max=8), Column("schema", right=True),
    Column("size", right=True), Column("value"),
]  # fmt: skip
_ASSIGNED = [
    *_PLACE[:2], Column("event time", width_min=27), Column("behind", right=True, width_min=8),
    Column("bucket", width_min=10),
]  # fmt: skip


def _raw_line(record: Record, *, narrow: bool) -> list[str | Text]:
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


def _assigned_line(record: Record) -> list[str | Text]:
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


def _summary(records: list[Record], walk: LocalPipeline) -> str:
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


def _transposed(out: Console, rows: list[Record], walk: LocalPipeline) -> None:
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


def _others(out: Console, records: list[Record]) -> None:
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
    if isinstance(known, Rejected):
        return "rejected"
    return f"{plural(len(known.columns), 'field')}, decoded {'natively' if known.native else 'by fastavro'}"
