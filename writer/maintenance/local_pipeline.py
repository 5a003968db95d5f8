"""A sample on the line that a record walks: the writer's own rooms, without Spark and without a table to change."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import bucketers
from writer.avro import schema
from writer.avro.block_decoder import NativeDecoder
from writer.avro.decode import decode
from writer.avro.record_decoder import SingleDecoder
from writer.avro.schema_plan import Rejected, SchemaPlan, WriterSchema, conform
from writer.avro.wire_format import CONFLUENT, Wire, refusals, show_id, split
from writer.batch import task
from writer.batch.bucketing import TimeRule, assign
from writer.batch.task import older, older_said
from writer.batch.task_report import Counts, Report
from writer.config.pipelines import Config, layout
from writer.core.errors import ConfigError
from writer.core.offsets import Source
from writer.schemas.registry import SchemaNotFound, SchemaSource, by
from writer.schemas.schema_id_check import Meanings
from writer.schemas.tracker import knows, registered, reserved
from writer.schemas.wire_detection import judge
from writer.table.factory import main_table


@dataclass(frozen=True)
class DeadLetter:
    """A record that became no row: its place in the records it came with, and why."""

    position: int
    outcome: str  # dead_letter, quarantined
    reason: str


@dataclass(frozen=True)
class Group:
    """Records of one schema id as far as they came. `rows` and what is assigned go with `kept`, one to one."""

    schema_id: int | None
    records: pa.Table  # with a value
    kept: pa.Table  # those of them that became rows
    rows: pa.Table
    letters: list[DeadLetter]
    event_time: pa.Array | None = None
    buckets: tuple[tuple[str | None, ...], ...] = ()  # of each row
    unit: str = ""


@dataclass
class LocalPipeline:
    """One pipeline's rooms, ready for a sample. `plan` grows by the schemas that the sample brings."""

    name: str
    config: Config
    schemas: SchemaSource
    plan: SchemaPlan
    unit: str  # of the event time; as configured, or as the table's commits have found it
    wire: Wire | None = None  # likewise; None until records show it
    meanings: Meanings | None = None  # of the table's schema ids; None: they are not looked at
    _decoders: dict[int, tuple[NativeDecoder | None, SingleDecoder]] = field(default_factory=dict)

    def decoded(self, records: pa.RecordBatch) -> Iterator[Group]:
        """Skip tombstones, split by schema, decode and conform. Raises RegistryUnreachable."""
        wire = self.settled(records)
        groups = list(split(without_tombstones(records), wire))
        self.learn(schema_id for schema_id, _ in groups if schema_id is not None)
        for schema_id, group in groups:
            known = None if schema_id is None else self.plan.schemas[schema_id]
            if schema_id is not None and isinstance(known, WriterSchema):
                yield self._rows(schema_id, group, known)
                continue
            reasons = [known.reason] * group.num_rows if isinstance(known, Rejected) else refusals(group, wire)
            letters = [DeadLetter(position, "dead_letter", reason) for position, reason in enumerate(reasons)]
            yield Group(schema_id, group, group.slice(0, 0), self.plan.columns.empty_table(), letters)

    def assigned(self, records: pa.RecordBatch, now: datetime) -> Iterator[Group]:
        """Decode, then find event times and buckets. Raises ConfigError when the event-time field is no time."""
        pipeline = self.config.pipelines[self.name]
        bucketer = bucketers.build(pipeline.bucket)
        for group in self.decoded(records):
            if group.kept.num_rows == 0:
                yield group
                continue
            try:
                found = assign(group.rows, self.time_rule, bucketer, now, group.kept.column("topic"))
            except ValueError as error:
                raise ConfigError(f"pipelines.{self.name}.event_time: {error}") from error
            failed = {letter.position for letter in group.letters}
            places = [position for position in range(group.records.num_rows) if position not in failed]
            late = [DeadLetter(places[at], "quarantined", reason) for at, reason in found.quarantined.items()]
            yield Group(
                group.schema_id,
                group.records,
                group.kept if found.kept is None else group.kept.filter(found.kept),
                found.rows,
                [*group.letters, *late],
                found.event_time,
                tuple(found.buckets.values[code] for code in found.buckets.codes.to_pylist()),
                found.unit,
            )

    def staged(self, records: pa.RecordBatch, now: datetime, into: Path) -> Report:
        """Carry the records through a whole task, into files below `into`. Raises ConfigError, RegistryUnreachable."""
        pipeline = self.config.pipelines[self.name]
        wire = self.settled(records)
        groups = split(without_tombstones(records), wire)
        self.learn(schema_id for schema_id, _ in groups if schema_id is not None)
        plan = task.TaskPlan(
            now=now, wire=wire, frontier={}, incarnations=dict.fromkeys(pipeline.topics, 1), schemas=self.plan,
            time_rule=self.time_rule, bucket=pipeline.bucket,
            bucket_columns=bucketers.build(pipeline.bucket).columns,
            table=str(into / "table"), dead_letters=str(into / "dead_letters"), prefix="sample",
            budget=pipeline.memory.buffer, target_file_size=pipeline.roll.target_file_size,
        )  # fmt: skip
        carried = task.Task(plan)
        try:
            for at in range(0, records.num_rows, pipeline.memory.batch_records):
                carried.take(records.slice(at, pipeline.memory.batch_records))
            return carried.finish()
        except ValueError as error:
            carried.abandon()
            raise ConfigError(f"pipelines.{self.name}.event_time: {error}") from error

    @property
    def time_rule(self) -> TimeRule:
        """The pipeline's rule for event times."""
        return self.config.pipelines[self.name].event_time.rule(self.unit)

    def settled(self, records: pa.RecordBatch) -> Wire:
        """Return the wire format; the first records show it where neither file nor table says. Raises UnclearWire."""
        if self.wire is None:
            topics = self.config.pipelines[self.name].topics
            found = judge(
                pa.Table.from_batches([records]),
                lambda wire, schema_id: knows(self.schemas, topics, wire, schema_id),
            )
            self.wire = found.wire
            if found.wire != CONFLUENT:
                since = self.meanings.since(found.wire.ids) if self.meanings else {}
                plan = SchemaPlan(self.plan.columns, self.plan.reserved, widen=self.plan.widen, since=since)
                self.plan = registered(_source(self.schemas, found.wire, self.meanings), topics, plan, found.wire)
        return self.wire

    def learn(self, ids: Iterable[int]) -> None:
        """Extend the plan by schemas that it lacks, in the order of their ids.

        Raises RegistryUnreachable, SchemaChanged.
        """
        source = _source(self.schemas, self.wire, self.meanings)
        for schema_id in sorted(set(ids) - self.plan.schemas.keys()):
            try:
                self.plan = self.plan.extend(schema_id, source.schema(schema_id))
            except SchemaNotFound:
                self.plan = self.plan.reject(schema_id, f"schema id {show_id(schema_id)} is unknown to the registry")

    def meant(self, used: Iterable[int]) -> dict[str, int]:
        """Return what schema ids of the plan mean, as a commit keeps it."""
        return self.meanings.of(self.plan, used, (self.wire or CONFLUENT).ids) if self.meanings else {}

    def _rows(self, schema_id: int, group: pa.Table, known: WriterSchema) -> Group:
        if schema_id not in self._decoders:
            record = schema.parse(known.text)
            before = (self.wire or CONFLUENT).header_bytes
            native = NativeDecoder(record, header_bytes=before) if known.native else None
            self._decoders[schema_id] = (native, SingleDecoder(record, header_bytes=before))
        decoded = decode(pa.concat_arrays(group.column("value").chunks), *self._decoders[schema_id])
        failures, taken = dict(decoded.failures), decoded.taken
        rows = conform(decoded.rows, known, self.plan)
        if (since := self.plan.since.get(schema_id)) is not None:
            before = older(group, since)
            failures |= dict.fromkeys(pc.indices_nonzero(before).to_pylist(), older_said(schema_id, since))
            kept = pc.invert(before.take(taken))
            rows, taken = rows.filter(kept), taken.filter(kept)
        letters = [DeadLetter(at, "dead_letter", why) for at, why in failures.items()]
        return Group(schema_id, group, group.take(taken), rows, letters)


def opened(
    name: str, config: Config, schemas: SchemaSource, *, with_table: bool = True, checked: bool = True
) -> LocalPipeline:
    """Make a pipeline's rooms ready: its table's columns, if there is a table, and the registered schemas on top.

    Unless `checked` is off, schema ids must mean what they meant when the table's rows were read: else SchemaChanged.
    Raises ConfigError for a table that is not the pipeline's, CommitFailed for one that cannot be read,
    RegistryUnreachable.
    """
    pipeline = config.pipelines[name]
    buckets = bucketers.build(pipeline.bucket).columns
    kept, unit = reserved(buckets), str(pipeline.event_time.unit)
    table = main_table(name, config)
    have, wire = pa.schema([]), pipeline.wire.fixed
    meanings = Meanings(name, config.registry, table.transactions) if with_table and checked else None
    if with_table and table.exists():
        table.check_identity(buckets, layout(pipeline.bucket))
        have = pa.schema([f for f in table.snapshot().columns() if f.name.lower() not in kept])
        recent = table.recent(10)
        found = next((facts["time_unit"] for facts in recent if facts["time_unit"]), "auto")
        wire = wire or next((Wire(**facts["wire"]) for facts in recent if facts.get("wire")), None)
        unit = found if unit == "auto" else unit
    since = meanings.since((wire or CONFLUENT).ids) if meanings else {}
    empty = SchemaPlan(have, kept, widen=pipeline.schemas.widen == "in_place", since=since)
    plan = registered(_source(schemas, wire, meanings), pipeline.topics, empty, wire or CONFLUENT)
    return LocalPipeline(name, config, schemas, plan, unit, wire, meanings)


def _source(schemas: SchemaSource, wire: Wire | None, meanings: Meanings | None) -> SchemaSource:
    """Return the schemas by the ids of a wire format, held against what these meant."""
    found, ids = schemas if wire is None else by(schemas, wire.ids), (wire or CONFLUENT).ids
    return meanings.checked(found, ids) if meanings else found


def without_tombstones(records: pa.RecordBatch) -> pa.Table:
    """Drop the records without a value, as the writer's first room does."""
    counts: defaultdict[Source, Counts] = defaultdict(Counts)
    return task.skip(pa.Table.from_batches([records]), {}, counts)
