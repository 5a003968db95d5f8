"""The steps of a record up to its bucket: skip, split by schema, decode, shape, conform, assign. They write nothing."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace import bucketers
from headrace.bucketers.arrow import contiguous
from headrace.bucketers.zone_data import install_zone_data
from headrace.writer.avro.schema import TIMESTAMP
from headrace.writer.batch.bucketing import (
    BucketAssignment,
    assign_buckets,
    is_believable,
    times_of,
    with_kafka_time,
)
from headrace.writer.batch.lateness import newest_event_times
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.schema_reader import DecodedKeys, Decoders, KeyReader, SchemaReader
from headrace.writer.batch.skip import drop_tombstones, skip
from headrace.writer.batch.task_report import Counts, Report
from headrace.writer.columns.schema_plan import RejectedSchema, ShapedRecord, WriterSchema, conform
from headrace.writer.core import fault_points
from headrace.writer.core.offsets import Source
from headrace.writer.core.text import join_first
from headrace.writer.framing.compression import KEYS_AT_ONCE, has_compressed
from headrace.writer.framing.message_header import split_by_name_header
from headrace.writer.framing.message_marks import lack_of_mark, lack_of_message, split_by_mark
from headrace.writer.framing.wire_format import (
    UNNAMED,
    canonical_mark,
    message_mark,
    message_style,
    refusal_reasons,
    show_id,
    split_by_schema_id,
    split_json,
    with_message,
    without_message,
)
from headrace.writer.storage.disk_space import scratch

# Names of messages in a reason.
_NAMES_SHOWN = 5


class Refuse(Protocol):
    """Takes records that become no row, with `reason(row)` for each."""

    def __call__(
        self, records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        """Take them; `outcome`: dead_letter, quarantined."""


class LeaveOut(Protocol):
    """Is told of records that a rule of a spec leaves out, once they are counted."""

    def __call__(self, records: pa.Table, schema_id: int | None, spec: str, rule: str) -> None:
        """Take them, without their values."""


@dataclass(frozen=True)
class Group:
    """Records that were read by one schema, and their rows, one to one.

    `schema_id`: None where the rows were decoded elsewhere. `times`: event times and their unit, of rows that a spec
    shaped.
    """

    schema_id: int | None
    records: pa.Table
    rows: pa.Table
    assigned: BucketAssignment | None = None
    times: tuple[pa.TimestampArray, str] | None = None

    def filter(self, mask: pa.BooleanArray | pa.ChunkedArray | None) -> "Group":
        """Return some of the records with their rows; None: all."""
        if mask is None:
            return self
        times = self.times and (self.times[0].filter(mask), self.times[1])
        return replace(self, records=self.records.filter(mask), rows=self.rows.filter(mask), times=times)


class RecordSteps:
    """The steps of a record up to its bucket: skip, split, decode, shape, conform, assign. They write nothing."""

    def __init__(
        self,
        plan: TaskPlan,
        refuse: Refuse,
        decoders: Decoders | None = None,
        key_decoders: Decoders | None = None,
        counts: defaultdict[Source, Counts] | None = None,
        keep: Callable[[pa.Table], None] | None = None,
        leave_out: LeaveOut | None = None,
    ) -> None:
        """`decoders`, `key_decoders`: of earlier steps with the same wire formats, by schema id.

        `counts`: of steps that take other records of the same task. `keep` takes all records as Kafka has them.
        """
        self._plan = plan
        self._refuse = refuse
        self._keep = keep
        self._leave_out = leave_out
        install_zone_data(plan.zones)
        self.bucketer = bucketers.build(plan.bucket)
        self.report = Report()
        self.counts = defaultdict(Counts) if counts is None else counts
        self._values = SchemaReader(plan.schemas, plan.wire, scratch(), decoders)
        self._show_reason = str if plan.sealing is None else plan.sealing.reason
        self._keys = KeyReader(plan.record_columns.keys, scratch(), key_decoders, self._show_reason)

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._values.unresponsive or self._keys.unresponsive

    def decode_rows(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """Decode an Arrow batch of topic, partition, offset, timestamp, key, value, and headers where they are needed.

        Yields rows with the plan's columns.
        """
        for values in self.decode_values(batch):
            group = self.conform(values)
            if group is not None:
                yield group

    def decode_values(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """Skip what the table has, and decode the other values by their schemas, to the columns of these.

        What lacks a table is decoded to the end, so that the driver learns of all such names at once.
        """
        for schema_id, records in self.split_values(batch):
            yield from self.decode_records(schema_id, records)

    def split_values(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.Table]]:
        """Skip what the table has, and split the other records by the schemas of their values, which the plan has."""
        with self.clock("skip"):
            keeps_tombstones = self._plan.keeps_tombstones
            new_records = skip(
                self._with_topic(batch), self._plan.frontier, self.counts, keeps_tombstones=keeps_tombstones
            )
            records = new_records if keeps_tombstones else drop_tombstones(new_records)
            self._count_bytes(records)
        if self._keep is not None:
            self._keep(new_records)
        for schema_id, group in self._split_by_schema(records):
            writer_schema = None if schema_id is None else self._plan.schemas.schemas.get(schema_id)
            if schema_id is None:
                self._refuse(group, None, refusal_reasons(group, self._plan.wire).__getitem__)
            elif self._lacks_message(schema_id):
                self._refuse(group, schema_id, _same_reason(self._message_reason(schema_id)))
            elif writer_schema is None:
                self.report.unknown_schemas.add(schema_id)
            elif isinstance(writer_schema, RejectedSchema):
                self._refuse(group, schema_id, _same_reason(writer_schema.reason))
            else:
                yield schema_id, group

    def decode_records(self, schema_id: int, records: pa.Table) -> Iterator[Group]:
        """Decode records that `split_values` gave, of one schema, of any number of Arrow batches.

        Once a record has met a schema that the plan lacks, nothing more is decoded: the batch will run again.
        """
        if self._lacks_ids:
            return
        writer_schema = self._plan.schemas.schemas[schema_id]
        assert not isinstance(writer_schema, RejectedSchema), "these records were refused"
        for decoded in self._decode_group(records, schema_id, writer_schema):
            yield from self._bound_keys(decoded)

    def _split_by_schema(self, records: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
        """Split records by the schemas of their values; None where a value has no format of the pipeline."""
        has_json = UNNAMED in self._plan.schemas.schemas
        for schema_id, group in split_by_schema_id(records, self._plan.wire):
            if schema_id is not None or not has_json:
                yield from self._split_by_message(schema_id, group)
                continue
            json_records, others = split_json(group)
            if json_records.num_rows:
                yield UNNAMED, json_records
            if others.num_rows:
                yield None, others

    def _split_by_message(self, schema_id: int | None, group: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
        """Split records of one schema by the messages that their values name, where its values do so."""
        if schema_id is None or schema_id not in self._plan.schemas.message_types:
            yield schema_id, group
            return
        wire, _ = self._plan.wire.of_id(schema_id)
        style = wire.message_style
        # Message indexes in a Kafka header are part of the id that was read there.
        if style is None or (wire.header is not None and style == "indexes"):
            yield schema_id, group
            return
        if style == "header_name":
            groups = split_by_name_header(group)
        else:
            is_compressed = wire.format == "glue" and has_compressed(group.column("value"))
            groups = split_by_mark(group, wire.header_bytes, style, is_compressed=is_compressed)
        for mark, records in groups:
            message_id = schema_id
            if mark is not None:
                message_id = with_message(schema_id, mark, style)
            yield message_id, records

    def _lacks_message(self, schema_id: int) -> bool:
        """Return whether values of an id name no message of its schema, which has some."""
        message_types = self._plan.schemas.message_types.get(without_message(schema_id))
        if message_types is None:
            return False
        mark = message_mark(schema_id)
        return mark is None or canonical_mark(mark, message_style(schema_id)) not in message_types

    def _message_reason(self, schema_id: int) -> str:
        """Say that values name no message of their schema."""
        message_types = self._plan.schemas.message_types[without_message(schema_id)]
        names = join_first(list(message_types.values()), _NAMES_SHOWN)
        wire, _ = self._plan.wire.of_id(schema_id)
        style = wire.message_style or "indexes"
        mark = message_mark(schema_id)
        lack = lack_of_mark(style) if mark is None else lack_of_message(mark, style)
        return f"schema id {show_id(schema_id)} is Protobuf, and {lack}; its messages are {names}"

    def conform(self, group: Group) -> Group | None:
        """Give decoded values the plan's columns, and those of keys and headers; None where the plan has no schema."""
        assert group.schema_id is not None, "values were decoded by a schema"
        schemas = self._plan.schemas
        writer_schema = schemas.schemas.get(group.schema_id)
        if writer_schema is None:
            self.report.unknown_schemas.add(group.schema_id)
            return None
        if isinstance(writer_schema, RejectedSchema):
            self._refuse(group.records, group.schema_id, _same_reason(writer_schema.reason))
            return None
        if writer_schema.shaped:
            record = schemas.shaped[writer_schema.shaped]
            return self.with_record_columns(self._apply_spec(group, writer_schema, record))
        with self.clock("conform"):
            rows = conform(group.rows, writer_schema, schemas)
        return self.with_record_columns(replace(group, rows=rows))

    def assign(self, group: Group) -> Group:
        """Give the rows event times and buckets. Raises ValueError when the event-time field is no time."""
        records = group.records
        plan = self._plan
        with self.clock("assign"):
            topics = records.column("topic")
            times = group.times
            if times is None:
                times = times_of(self._with_time_column(group.rows, records), plan.time_rule, topics, plan.now)
            assigned = assign_buckets(group.rows, plan.time_rule, self.bucketer, plan.now, topics, times)
            if assigned.unit != "auto":
                self.report.time_unit = assigned.unit
        if assigned.mask is not None:
            reasons = assigned.quarantined
            refused = _take_rows(group.records, reasons)
            self._refuse(refused, group.schema_id, _reason_of_row(reasons), outcome="quarantined")
            records = records.filter(assigned.mask)
        return replace(group, records=records, rows=assigned.rows, assigned=assigned)

    @contextmanager
    def clock(self, step: str) -> Iterator[None]:
        """Add the processor time of a block to a step's."""
        start = time.process_time()
        yield
        fault_points.point(f"in_{step}")
        seconds = self.report.seconds
        seconds[step] = seconds.get(step, 0) + time.process_time() - start

    def _apply_spec(self, group: Group, writer_schema: WriterSchema, record: ShapedRecord) -> Group:
        """Let a spec decide which rows stay, and with which columns. The event times are those before it."""
        assert record.output is not None, "a spec that does not fit rejects its schemas"
        with self.clock("shape"):
            rows = conform(group.rows, writer_schema, record.input)
            times, unit = self._event_times(rows, group.records)
            shaped = record.step.apply(rows)
            shaped_rows = conform(shaped.rows, record.output, self._plan.schemas)
        for rule, is_filtered in shaped.filtered.items():
            self._count_filtered(group, pa.array(is_filtered), times, record.spec.name, rule)
        if shaped.failures:
            reasons = {row: f"spec {record.spec.name!r}: {why}" for row, why in shaped.failures.items()}
            self._refuse(_take_rows(group.records, reasons), group.schema_id, _reason_of_row(reasons))
        if shaped.mask is None:
            return replace(group, rows=shaped_rows, times=(times, unit))
        mask = pa.array(shaped.mask)
        records = group.records.filter(mask)
        return replace(group, records=records, rows=shaped_rows, times=(times.filter(mask), unit))

    def _with_time_column(self, rows: pa.Table, records: pa.Table) -> pa.Table:
        """Return rows with the column of the event time, where that is not of the value but of its record."""
        field = self._plan.time_rule.field
        rows = with_kafka_time(rows, records, field)
        record_columns = self._plan.record_columns
        if field in rows.column_names or field.partition(".")[0] not in record_columns.names:
            return rows
        # Rows get these columns behind their spec; what cannot fill them becomes no row there.
        arrays, _ = record_columns.build_arrays(records, self._read_keys)
        return pa.table([*rows.columns, *arrays], schema=pa.schema([*rows.schema, *record_columns.schema]))

    def _event_times(self, rows: pa.Table, records: pa.Table) -> tuple[pa.TimestampArray, str]:
        """Return event times and their unit; null where a record type, which no start has seen, has no such field."""
        topics = records.column("topic")
        try:
            return times_of(self._with_time_column(rows, records), self._plan.time_rule, topics, self._plan.now)
        except ValueError:
            return pa.nulls(rows.num_rows, TIMESTAMP), self._plan.time_rule.unit

    def _count_filtered(
        self, group: Group, is_filtered: pa.BooleanArray, times: pa.TimestampArray, spec: str, rule: str
    ) -> None:
        """Count records that a rule leaves out. They show how far their partitions have come, as rows do."""
        plan = self._plan
        records = group.records.filter(is_filtered)
        # One turn a partition.
        by_source = records.group_by(["topic", "partition"], use_threads=False).aggregate([([], "count_all")])
        for row in by_source.to_pylist():
            self.counts[row["topic"], row["partition"]].filtered += row["count_all"]
        filtered_times = times.filter(is_filtered)
        mask = is_believable(filtered_times, plan.time_rule, plan.now)
        believed_times = filtered_times.filter(mask)
        window = plan.time_rule.window(plan.now)
        newest_times = newest_event_times(records.filter(mask), believed_times, window, plan.now)
        for source, newest in newest_times.items():
            self.counts[source].add_event_time(newest)
        newest_of_all = pc.max(believed_times).cast(pa.int64()).as_py()
        self.report.add_filter_counts({spec: {rule: records.num_rows}}, newest_of_all)
        if self._leave_out is not None:
            self._leave_out(records, group.schema_id, spec, rule)

    @property
    def _lacks_ids(self) -> bool:
        return bool(self.report.unknown_schemas or self.report.unknown_key_schemas)

    def _with_topic(self, batch: pa.RecordBatch) -> pa.Table:
        records = pa.Table.from_batches([batch])
        topic = self._plan.topic
        if topic is None:
            return records
        return records.append_column("topic", pa.repeat(topic, batch.num_rows))

    def _count_bytes(self, records: pa.Table) -> None:
        value_bytes = pc.sum(pc.binary_length(records.column("value"))).as_py() or 0
        self.report.value_bytes += value_bytes
        mean = value_bytes / max(records.num_rows, 1)
        self.report.record_bytes_max = max(self.report.record_bytes_max, mean)

    def _decode_group(self, records: pa.Table, schema_id: int, writer_schema: WriterSchema) -> Iterator[Group]:
        """Decode records of one schema id, compressed ones in parts; none where all are older than the id's meaning."""
        self.report.schemas.add(schema_id)
        older = self._values.find_older(records.column("timestamp"), schema_id)
        if older is not None:
            is_older, why = older
            self._refuse(records.filter(is_older), schema_id, _same_reason(why))
            records = records.filter(pc.invert(is_older))
        parts = self._values.decode_parts(contiguous(records.column("value")), schema_id, writer_schema)
        while records.num_rows:
            with self.clock("decode"):
                start, stop, block = next(parts)
                self.report.unknown_schemas |= self._values.ids_without_key
                self.report.unfit_members.update(block.unfit)
            part = records
            if stop - start < records.num_rows:
                part = records.slice(start, stop - start)
            if block.failures:
                reasons = {row: self._show_reason(why) for row, why in block.failures.items()}
                self._refuse(_take_rows(part, reasons), schema_id, _reason_of_row(reasons))
                part = part.take(block.positions)
            yield Group(schema_id, part, block.rows)
            if stop == records.num_rows:
                return

    def _bound_keys(self, group: Group) -> Iterator[Group]:
        """Yield a group, in parts where some of its keys are compressed: a key may be larger than its record."""
        record_columns = self._plan.record_columns
        may_inflate = record_columns.avro_key is not None and any(
            wire.format == "glue" for wire in record_columns.keys.wire.all
        )
        if not may_inflate or not has_compressed(group.records.column("key")):
            yield group
            return
        for start in range(0, len(group.rows), KEYS_AT_ONCE):
            records = group.records.slice(start, KEYS_AT_ONCE)
            yield replace(group, records=records, rows=group.rows.slice(start, KEYS_AT_ONCE))

    def with_record_columns(self, group: Group) -> Group:
        """Give the rows the columns of their keys and headers; a record that cannot fill them becomes no row."""
        record_columns = self._plan.record_columns
        names = record_columns.names
        # The rows of a copy have these columns.
        if not names or not set(names).isdisjoint(group.rows.column_names):
            return group
        with self.clock("conform"):
            arrays, reasons = record_columns.build_arrays(group.records, self._read_keys)
            schema = pa.schema([*group.rows.schema, *record_columns.schema])
            rows = pa.table([*group.rows.columns, *arrays], schema=schema)
            if not reasons:
                return replace(group, rows=rows)
            is_complete = np.ones(rows.num_rows, dtype=bool)
            is_complete[list(reasons)] = False
            self._refuse(_take_rows(group.records, reasons), group.schema_id, _reason_of_row(reasons))
            return replace(group, rows=rows).filter(pa.array(is_complete))

    def _read_keys(self, records: pa.Table) -> DecodedKeys:
        keys = self._keys.read(records)
        self.report.unknown_key_schemas |= keys.unknown_ids
        self.report.key_schemas |= keys.used_ids
        return keys


def _take_rows(records: pa.Table, reasons: Mapping[int, str]) -> pa.Table:
    """Return the records at the positions that have a reason, in the order of the reasons."""
    return records.take(pa.array(list(reasons), pa.int64()))


def _reason_of_row(reasons: Mapping[int, str]) -> Callable[[int], str]:
    """Return what gives the reason for each of the records of `_take_rows`."""
    return list(reasons.values()).__getitem__


def _same_reason(reason: str) -> Callable[[int], str]:
    return lambda _: reason
