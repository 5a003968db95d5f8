"""Shows records as each step of the writer sees them, on a terminal or as JSON. Changes nothing."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from rich.text import Text

from headrace import bucketers
from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.commit.privacy import record_screen
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import Source, Span
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import plural
from headrace.writer.framing.wire_format import Wire, detect_wire, named_id, values_with_headers
from headrace.writer.maintenance.local_pipeline import (
    DeadLetter,
    LocalPipeline,
    Sample,
    open_local_pipeline,
    record_positions,
)
from headrace.writer.output import tables
from headrace.writer.output.report import Screen
from headrace.writer.preflight.samples.preview_text import (
    PreviewedRecords,
    Record,
    Step,
    UnroutedRecords,
    open_sheet,
)
from headrace.writer.preflight.samples.route_sample import TargetPart, open_part, split
from headrace.writer.preflight.samples.staged_sample import stage_sample
from headrace.writer.privacy.record_sealing import RecordScreen
from headrace.writer.schemas import saved_sample
from headrace.writer.schemas.format_detection import RECORDS_MAX
from headrace.writer.schemas.registry import SchemaSource, source
from headrace.writer.schemas.saved_sample import SavedSample, SavedSchemas, SchemaRecorder


@dataclass(frozen=True)
class PreviewRequest:
    """What is shown of records."""

    # None: the only one of the configuration.
    pipeline: str | None
    # A table of the pipeline's route; None: all of them.
    target: str | None
    step: Step


@dataclass(frozen=True)
class TopicSelection:
    """Which records of topics are read."""

    records: int
    # latest, earliest, or a time.
    start: str
    # Without an end, until Ctrl-C.
    follows: bool = False
    # A new file to which they are written with their schemas.
    save: Path | None = None


def preview_topics(
    config: Config, request: PreviewRequest, selection: TopicSelection, *, screen: Screen, now: datetime
) -> None:
    """Show records of a pipeline's topics at a step; of a route by the tables that they go to, or of one of these.

    Raises HeadraceError.
    """
    name = _choose_pipeline(config, request)
    _check_selection(config, name, request.step, selection)
    cluster, topics = _open_cluster(config, name)
    start = kafka_sample.position(selection.start)
    spans = kafka_sample.spans(cluster, topics, selection.records, start)
    session = PreviewSession(name, config, request.step, screen, now, is_finite=not selection.follows)
    if selection.follows:
        if session.is_routed:
            raise ConfigError("--follow does not split records by a route; show them as they are: --at raw")
        with suppress(KeyboardInterrupt):
            session.show(kafka_sample.follow(config.kafka, {source: first for source, (first, _) in spans.items()}))
        return
    batch = kafka_sample.read(config.kafka, spans)
    session.show_sample(batch, request.target, _scope(name, topics, batch, spans, selection.start))
    if selection.save is not None:
        sample = record_sample(config, name, topics, batch, source(config.registry_of(name)))
        saved_sample.save(selection.save, sample)
        records = plural(batch.num_rows, "record")
        schemas = plural(len(sample.schemas.saved), "schema")
        tables.sentence(screen.out, f"{records} and {schemas} are in {selection.save}", "dim")


def _check_selection(config: Config, name: str, step: Step, selection: TopicSelection) -> None:
    """Raise ConfigError for options that do not go together."""
    if selection.follows and step == "staged":
        raise ConfigError("--at staged shows finished files, which --follow never has; leave one of them out")
    if selection.follows and selection.save is not None:
        raise ConfigError("--save writes a sample that has an end, which --follow never has; leave one of them out")
    if selection.save is not None and record_screen(name, config).hides:
        raise ConfigError(
            f"--save writes records as Kafka has them, and pipeline {name!r} protects fields of them (privacy). Write "
            f"records for tests by hand ({page_address('docs/TESTING.md')})."
        )


def preview_file(config: Config, request: PreviewRequest, path: Path, *, screen: Screen, now: datetime) -> None:
    """Show records of a file that `save` wrote, without Kafka and registry, as if there were no table yet.

    Raises HeadraceError.
    """
    sample = saved_sample.load(path)
    if request.pipeline is None and sample.pipeline in config.pipelines:
        request = replace(request, pipeline=sample.pipeline)
    name = _choose_pipeline(config, request)
    session = PreviewSession(name, config, request.step, screen, now, is_finite=True, saved=sample)
    records = plural(sample.records.num_rows, "record")
    session.show_sample(sample.records, request.target, f"{name}: {records} of {path}; times in UTC")


def record_sample(
    config: Config, name: str, topics: list[str], batch: pa.RecordBatch, schemas: SchemaSource
) -> SavedSample:
    """Return records with the schemas that their steps ask for. Raises HeadraceError."""
    recorder = SchemaRecorder(schemas)
    is_routed = config.pipelines[name].route is not None
    local_pipeline = open_local_pipeline(
        name, config, recorder, topics=topics, with_table=False, before_route=is_routed
    )
    if batch.num_rows and is_routed:
        for part in split(local_pipeline, batch).parts:
            open_part(name, part, recorder, with_table=False).decode(part.records)
    elif batch.num_rows:
        local_pipeline.decode(batch)
    return SavedSample(name, topics, batch, SavedSchemas(recorder.saved))


def _choose_pipeline(config: Config, request: PreviewRequest) -> str:
    """Return the pipeline that is meant. Raises ConfigError for a target that it has not."""
    name = config.one(request.pipeline)
    if request.target is not None:
        config.at_target(name, request.target)
        if request.step == "raw":
            raise ConfigError("--at raw shows records before the route; leave --target out, or show them decoded")
    return name


def newest_records(config: Config, name: str, *, step: Step, records: int, now: datetime) -> list[Record]:
    """Return the newest records of a pipeline's topics as a step sees them. Raises HeadraceError."""
    cluster, topics = _open_cluster(config, name)
    batch = kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, records))
    if batch.num_rows == 0:
        return []
    if config.pipelines[name].route is None or step == "raw":
        return _describe(config, name, step, batch, _open_pipeline(config, name, step), now)
    schemas = source(config.registry_of(name))
    route_split = split(open_local_pipeline(name, config, schemas, topics=topics, before_route=True), batch)
    parts = [
        {"target": part.target, **record}
        for part in route_split.parts
        for record in _describe(part.config, name, step, part.records, open_part(name, part, schemas), now)
    ]
    return [*parts, *map(_describe_unrouted, route_split.refused)]


def _open_pipeline(config: Config, name: str, step: Step) -> LocalPipeline | None:
    """Open the pipeline with its wire format, found by the newest records where it is not known; None for raw ones."""
    if step == "raw":
        return None
    cluster, topics = _open_cluster(config, name)
    local_pipeline = open_local_pipeline(name, config, source(config.registry_of(name)), topics=topics)
    if local_pipeline.wire is None:
        local_pipeline.settle_wire(kafka_sample.read(config.kafka, kafka_sample.spans(cluster, topics, RECORDS_MAX)))
    return local_pipeline


def _open_cluster(config: Config, name: str) -> tuple[Cluster, list[str]]:
    """Open the cluster. Return it, and the topics that the pipeline reads."""
    cluster = kafka_sample.open_cluster(config.kafka)
    return cluster, choose_topics(cluster, config.pipelines[name].topics).names


def _describe(
    config: Config, name: str, step: Step, batch: pa.RecordBatch, local_pipeline: LocalPipeline | None, now: datetime
) -> list[Record]:
    if local_pipeline is None:
        records = describe_bytes(batch, config.pipelines[name].wire_of_values)
        return record_screen(name, config).hide_values(records)
    if step == "decoded":
        records = describe_rows(local_pipeline, batch)
    else:
        records = describe_buckets(local_pipeline, batch, now)
    return RecordScreen(local_pipeline.plan.privacy is not None).hide_values(records)


@dataclass
class PreviewSession:
    """One step of one pipeline, shown batch by batch."""

    name: str
    config: Config
    step: Step
    screen: Screen
    now: datetime
    _: KW_ONLY
    # One batch comes, and a summary may follow it.
    is_finite: bool
    # The sample of a file: neither registry nor table is asked.
    saved: SavedSample | None = None

    @property
    def is_routed(self) -> bool:
        """Whether records are shown by the tables of a route."""
        return self.config.pipelines[self.name].route is not None and self.step != "raw"

    def show_sample(self, batch: pa.RecordBatch, target: str | None, scope: str) -> None:
        """Show a sample, of a route by its tables. `scope`: what it is of."""
        if self.is_routed:
            self.show_route(batch, target)
            return
        tables.sentence(self.screen.out, scope, "dim")
        if batch.num_rows:
            self.show([batch])

    def show(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Show each batch as it comes."""
        if self.saved is None or self.step == "raw":
            local_pipeline = _open_pipeline(self.config, self.name, self.step)
        else:
            local_pipeline = open_local_pipeline(
                self.name, self.config, self.saved.schemas, topics=self.saved.topics, with_table=False
            )
        sheet = open_sheet(self.step, self.screen.out)
        for batch in batches:
            if local_pipeline is not None and self.step == "staged":
                self.screen.show(stage_sample(local_pipeline, batch, self.now))
            else:
                records = _describe(self.config, self.name, self.step, batch, local_pipeline, self.now)
                self.screen.show(
                    PreviewedRecords(records, None, self.step, local_pipeline, sheet, has_summary=self.is_finite)
                )

    def show_route(self, batch: pa.RecordBatch, target: str | None) -> None:
        """Show the records of each table of a route, and those that go to none; with `target` those of one table."""
        if batch.num_rows == 0:
            tables.sentence(self.screen.out, f"{self.name}: the topics hold no records", "dim")
            return
        schemas = source(self.config.registry_of(self.name)) if self.saved is None else self.saved.schemas
        topics = batch.column("topic").unique().to_pylist()
        with_table = self.saved is None
        local_pipeline = open_local_pipeline(
            self.name, self.config, schemas, topics=topics, before_route=True, with_table=with_table
        )
        route_split = split(local_pipeline, batch)
        for part in route_split.parts:
            if target in (None, part.target):
                self._part(part, open_part(self.name, part, schemas, with_table=with_table))
        if target is None and route_split.refused:
            self.screen.show(UnroutedRecords([_describe_unrouted(dead_letter) for dead_letter in route_split.refused]))
        elif target is not None and not any(part.target == target for part in route_split.parts):
            tables.sentence(
                self.screen.out, f"{self.name}: none of {plural(batch.num_rows, 'record')} goes to {target}."
            )

    def _part(self, part: TargetPart, local_pipeline: LocalPipeline) -> None:
        location = part.config.pipelines[self.name].table.location
        out = self.screen.out
        out.print(Text(part.target, "bold").append(f" → {location}", "dim"), soft_wrap=True)
        if self.step == "staged":
            self.screen.show(stage_sample(local_pipeline, part.records, self.now))
        else:
            records = _describe(part.config, self.name, self.step, part.records, local_pipeline, self.now)
            sheet = open_sheet(self.step, self.screen.out)
            self.screen.show(
                PreviewedRecords(records, part.target, self.step, local_pipeline, sheet, has_summary=self.is_finite)
            )
        out.print()


def describe_bytes(batch: pa.RecordBatch, wire: Wire | None = None) -> list[Record]:
    """Describe records as Kafka holds them. `wire`: the format that they are to have; None: the one that each has."""
    table = pa.Table.from_batches([batch])
    records = []
    for (_, keys), (value, headers) in zip(_record_keys(table), values_with_headers(table), strict=True):
        wire_format, schema_id = _wire_format(value, headers, wire)
        records.append(
            {
                **keys,
                "wire": wire_format,
                "schema_id": schema_id,
                "bytes": len(value or b""),
                "value_hex": value,
            }
        )
    return records


def _wire_format(value: bytes | None, headers: Mapping[str, bytes], wire: Wire | None) -> tuple[str | None, int | None]:
    """Return the name of a value's wire format and its schema id; None where it has none."""
    if value is None:
        return None, None
    if wire is None:
        recognition = detect_wire(value, headers)
        if recognition is None:
            return None, None
        value_wire, schema_id = recognition
        return value_wire.format, schema_id
    fixed_id = wire.find_schema_id(value, headers)
    if fixed_id is None:
        return None, None
    value_wire, own_id = wire.of_id(fixed_id)
    return value_wire.format, named_id(own_id)


def describe_rows(local_pipeline: LocalPipeline, batch: pa.RecordBatch) -> list[Record]:
    """Describe records after decode and conform: the row, or why there is none."""
    return _records(batch, local_pipeline.decode(batch), local_pipeline)


def describe_buckets(local_pipeline: LocalPipeline, batch: pa.RecordBatch, now: datetime) -> list[Record]:
    """Describe records after assign: event time and bucket, or why there is none."""
    return _records(batch, local_pipeline.assign_buckets(batch, now), local_pipeline)


def _describe_unrouted(dead_letter: DeadLetter) -> Record:
    topic, partition, offset = dead_letter.position
    position = {"topic": topic, "partition": partition, "offset": offset}
    return {"target": None, **position, **_describe_dead_letter(dead_letter)}


def _describe_dead_letter(dead_letter: DeadLetter) -> Record:
    return {"schema_id": named_id(dead_letter.schema_id), "outcome": dead_letter.outcome, "reason": dead_letter.reason}


def _records(batch: pa.RecordBatch, sample: Sample, local_pipeline: LocalPipeline) -> list[Record]:
    columns = bucketers.build(local_pipeline.config.pipelines[local_pipeline.name].bucket).columns
    records: dict[tuple[str, int, int], Record] = {}
    # A sample is small, so Python objects do no harm.
    for group in sample.groups:
        keys: Record = {"schema_id": named_id(group.schema_id), "outcome": "row"}
        if (assigned := group.assigned) is not None:
            times = assigned.event_time.to_pylist()
            codes = assigned.buckets.codes.to_pylist()
            buckets = [dict(zip(columns, assigned.buckets.values[code], strict=True)) for code in codes]
            results: Iterable[Record] = (
                {"event_time": time, "unit": assigned.unit, "bucket": bucket}
                for time, bucket in zip(times, buckets, strict=True)
            )
        else:
            results = ({"row": row} for row in group.rows.to_pylist())
        for position, result in zip(record_positions(group.records), results, strict=True):
            records[position] = {**keys, **result}
    for dead_letter in (*sample.dead_letters, *sample.filtered):
        records[dead_letter.position] = _describe_dead_letter(dead_letter)
    tombstone = {"schema_id": None, "outcome": "tombstone"}
    return [
        {**keys, **records.get(position, tombstone)} for position, keys in _record_keys(pa.Table.from_batches([batch]))
    ]


def _record_keys(table: pa.Table) -> Iterator[tuple[tuple[str, int, int], Record]]:
    """Yield the position of each record, and what all steps show of it: topic, partition, offset, timestamp, key."""
    # The records are few, for a screen.
    for row in table.select(["topic", "partition", "offset", "timestamp", "key"]).to_pylist():
        key = row.pop("key")
        row["key"] = None if key is None else tables.legible(key)
        yield (row["topic"], row["partition"], row["offset"]), row


def _scope(name: str, topics: list[str], batch: pa.RecordBatch, spans: Mapping[Source, Span], start: str) -> str:
    since = "" if start in ("latest", "earliest") else f" from {start} on"
    offsets = sum(stop - first for first, stop in spans.values())
    partitions = f"{plural(len(spans), 'partition')} of {', '.join(topics)}"
    if offsets == 0:
        return f"{name}: nothing to show, {partitions} hold no records{since}"
    if batch.num_rows < offsets:
        partitions += f" ({offsets - batch.num_rows:,} offsets hold no record)"
    which = "newest" if start == "latest" else "first"
    return f"{name}: the {which} {plural(batch.num_rows, 'record')}{since} in {partitions}; times in UTC"
