"""Shows records as each step of the writer sees them, on a terminal or as JSON. Changes nothing."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa
from rich.console import Console
from rich.text import Text

import bucketers
from writer.avro.wire_format import Wire, each, recognised
from writer.clients import kafka_sample
from writer.clients.kafka import Cluster, choose_topics
from writer.commit.privacy import record_screen
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.offsets import Source, Span
from writer.core.text import plural
from writer.maintenance.local_pipeline import DeadLetter, LocalPipeline, Sample, opened, record_places
from writer.output import tables
from writer.output.tables import Column, TextTable, emit, plain
from writer.preflight.samples.preview_text import (
    ASSIGNED,
    NARROW,
    RAW,
    RAW_NARROW,
    Record,
    assigned_line,
    others,
    raw_line,
    summary,
    transposed,
)
from writer.preflight.samples.route_sample import TargetPart, opened_part, split
from writer.preflight.samples.staged_sample import show_staged
from writer.privacy.record_sealing import RecordScreen
from writer.schemas import saved_sample
from writer.schemas.format_detection import RECORDS_MAX
from writer.schemas.registry import SchemaSource, source
from writer.schemas.saved_sample import SavedSample, SavedSchemas, SchemaRecorder

Step = Literal["raw", "decoded", "assigned", "staged"]


def preview(
    config: Config, name: str | None, *, target: str | None = None, at: Step, records: int, start: str, follow: bool,
    as_json: bool, now: datetime, save: Path | None = None,
) -> None:  # fmt: skip
    """Show records of a pipeline's topics at a step; of a route by the tables that they go to, or of one of these.

    `save`: file to which the records are written with their schemas. Raises HeadraceError.
    """
    name = _chosen(config, name, target, at)
    if follow and at == "staged":
        raise ConfigError("--at staged shows finished files, which --follow never has; leave one of them out")
    if follow and save is not None:
        raise ConfigError("--save writes a sample that has an end, which --follow never has; leave one of them out")
    if save is not None and record_screen(name, config).hides:
        raise ConfigError(
            f"--save writes records as Kafka has them, and pipeline {name!r} protects fields of them (privacy). Write "
            "records for tests by hand (docs/TESTING.md)."
        )
    cluster, topics = _asked(config, name)
    spans = kafka_sample.spans(cluster, topics, records, kafka_sample.position(start))
    out = tables.console()
    look = PreviewSession(name, config, at, out, now, as_json=as_json, whole=not follow)
    if follow:
        if look.is_routed:
            raise ConfigError("--follow does not split records by a route; show them as they are: --at raw")
        with suppress(KeyboardInterrupt):
            look.show(kafka_sample.follow(config.kafka, {source: first for source, (first, _) in spans.items()}))
        return
    batch = kafka_sample.read(config.kafka, spans)
    if save is not None:
        sample = recorded(config, name, topics, batch, source(config.registry))
        saved_sample.save(save, sample)
    look.show_sample(batch, target, _scope(name, topics, batch, spans, start))
    if save is not None and not as_json:
        of = plural(batch.num_rows, "record"), plural(len(sample.schemas.saved), "schema")
        tables.sentence(out, f"{of[0]} and {of[1]} are in {save}", "dim")


def preview_file(
    config: Config, name: str | None, path: Path, *, target: str | None, at: Step, as_json: bool, now: datetime
) -> None:
    """Show records of a file that `save` wrote, without Kafka and registry, as if there were no table yet.

    Raises HeadraceError.
    """
    sample = saved_sample.load(path)
    name = _chosen(config, name or (sample.pipeline if sample.pipeline in config.pipelines else None), target, at)
    look = PreviewSession(name, config, at, tables.console(), now, as_json=as_json, whole=True, saved=sample)
    look.show_sample(
        sample.records, target, f"{name}: {plural(sample.records.num_rows, 'record')} of {path}; times in UTC"
    )


def recorded(config: Config, name: str, topics: list[str], batch: pa.RecordBatch, schemas: SchemaSource) -> SavedSample:
    """Return records with the schemas that their steps ask for. Raises HeadraceError."""
    recorder = SchemaRecorder(schemas)
    is_routed = config.pipelines[name].route is not None
    walk = opened(name, config, recorder, topics=topics, with_table=False, before_route=is_routed)
    if batch.num_rows and is_routed:
        for part in split(walk, batch).parts:
            opened_part(name, part, recorder, with_table=False).decoded(part.records)
    elif batch.num_rows:
        walk.decoded(batch)
    return SavedSample(name, topics, batch, SavedSchemas(recorder.saved))


def _chosen(config: Config, name: str | None, target: str | None, at: Step) -> str:
    """Return the pipeline that is meant. Raises ConfigError for a target that it has not."""
    name = config.one(name)
    if target is not None:
        config.at_target(name, target)  # says that it does not exist
        if at == "raw":
            raise ConfigError("--at raw shows records before the route; leave --target out, or show them decoded")
    return name


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
    describe = decoded if at == "decoded" else partial(assigned, now=now)
    records = raw(batch, config.pipelines[name].wire.fixed) if walk is None else describe(walk, batch)
    screen = record_screen(name, config) if walk is None else RecordScreen(walk.plan.privacy is not None)
    return screen.described(records)


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
    saved: SavedSample | None = None  # of a file: neither registry nor table is asked
    _sheet: TextTable | None = None
    _target: str | None = None  # of a route, whose records are shown

    @property
    def is_routed(self) -> bool:
        """Whether records are shown by the tables of a route."""
        return self.config.pipelines[self.name].route is not None and self.at != "raw"

    def show_sample(self, batch: pa.RecordBatch, target: str | None, scope: str) -> None:
        """Show a sample, of a route by its tables. `scope`: what it is of."""
        if self.is_routed:
            self.show_route(batch, target)
            return
        if not self.as_json:
            tables.sentence(self.out, scope, "dim")
        if batch.num_rows:
            self.show([batch])

    def show(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Show each batch as it comes."""
        if self.saved is None or self.at == "raw":
            walk = _walk(self.config, self.name, self.at)
        else:
            walk = opened(self.name, self.config, self.saved.schemas, topics=self.saved.topics, with_table=False)
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
        schemas = source(self.config.registry) if self.saved is None else self.saved.schemas
        topics = batch.column("topic").unique().to_pylist()  # a sample's
        with_table = self.saved is None
        walk = opened(self.name, self.config, schemas, topics=topics, before_route=True, with_table=with_table)
        found = split(walk, batch)
        for part in found.parts:
            if target in (None, part.target):
                self._part(part, opened_part(self.name, part, schemas, with_table=with_table))
        if target is None and found.refused:
            refused = list(map(_refused, found.refused))
            if self.as_json:
                self._emit(refused, None)
            else:
                self.out.print(Text(f"no table: {plural(len(refused), 'record')}", "bold"))
                others(self.out, refused)
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
            narrow = self.out.width < NARROW
            self._lines(RAW_NARROW if narrow else RAW, [raw_line(record, narrow=narrow) for record in records])
        elif self.at == "decoded":
            transposed(self.out, [record for record in records if record["outcome"] == "row"], walk)
            others(self.out, [record for record in records if record["outcome"] != "row"])
        else:
            self._lines(ASSIGNED, [assigned_line(record) for record in records])
        if walk is not None and self.whole:
            tables.sentence(self.out, summary(records, walk), "dim")

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
