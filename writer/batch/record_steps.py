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

import bucketers
from bucketers.arrow import contiguous
from bucketers.zone_data import install
from writer.avro.schema import TIMESTAMP
from writer.avro.schema_plan import RejectedSchema, ShapedRecord, WriterSchema, conform
from writer.avro.wire_format import refusal_reasons, split_by_schema_id
from writer.batch.bucketing import BucketAssignment, assign_buckets, is_believable, times_of
from writer.batch.lateness import newest_event_times
from writer.batch.plan import TaskPlan
from writer.batch.schema_reader import DecodedKeys, Decoders, KeyReader, SchemaReader
from writer.batch.skip import drop_tombstones, skip
from writer.batch.task_report import Counts, Report
from writer.core import fault_points
from writer.core.offsets import Source
from writer.storage.disk_space import scratch


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
    """Records that were read by one schema, and their rows, one to one."""

    schema_id: int | None  # None: the rows were decoded elsewhere
    records: pa.Table
    rows: pa.Table
    assigned: BucketAssignment | None = None
    times: tuple[pa.TimestampArray, str] | None = None  # event times and their unit, of rows that a spec shaped

    def part(self, mask: pa.BooleanArray | pa.ChunkedArray | None) -> "Group":
        """Return some of the records with their rows; None: all."""
        if mask is None:
            return self
        times = self.times and (self.times[0].filter(mask), self.times[1])
        return replace(self, records=self.records.filter(mask), rows=self.rows.filter(mask), times=times)


class RecordSteps:
    """The steps of a record up to its bucket: skip, split, decode, shape, conform, assign. They write nothing."""

    def __init__(
        self, plan: TaskPlan, refuse: Refuse, decoders: Decoders | None = None, key_decoders: Decoders | None = None,
        counts: defaultdict[Source, Counts] | None = None, keep: Callable[[pa.Table], None] | None = None,
        leave_out: LeaveOut | None = None,
    ) -> None:  # fmt: skip
        """`decoders`, `key_decoders`: of earlier steps with the same wire formats, by schema id.

        `counts`: of steps that take other records of the same task. `keep` takes all records as Kafka has them.
        """
        self._plan, self._refuse, self._keep, self._leave_out = plan, refuse, keep, leave_out
        install(plan.zones)
        self.bucketer = bucketers.build(plan.bucket)
        self.report, self.counts = Report(), defaultdict(Counts) if counts is None else counts
        self._values = SchemaReader(plan.schemas, plan.wire, scratch(), decoders)
        self._shown = str if plan.sealing is None else plan.sealing.reason
        self._keys = KeyReader(plan.record_columns.keys, scratch(), key_decoders, self._shown)

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._values.unresponsive or self._keys.unresponsive

    def decode(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """Decode an Arrow batch of topic, partition, offset, timestamp, key, value, and headers where they are needed.

        Yields rows with the plan's columns.
        """
        for values in self.values(batch):
            if (group := self.conform(values)) is not None:
                yield group

    def values(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """Skip what the table has, and decode the other values by their schemas, to the columns of these.

        Once a record has met a schema that the plan lacks, nothing more is decoded: the batch will run again. What
        lacks a table is decoded to the end, so that the driver learns of all such names at once.
        """
        with self.clock("skip"):
            new = skip(self._with_topic(batch), self._plan.frontier, self.counts)
            records = drop_tombstones(new)
            self._weigh(pc.sum(pc.binary_length(records.column("value"))).as_py() or 0, records.num_rows)
        if self._keep is not None:
            self._keep(new)
        for schema_id, group in split_by_schema_id(records, self._plan.wire):
            known = None if schema_id is None else self._plan.schemas.schemas.get(schema_id)
            if schema_id is None:
                self._refuse(group, None, refusal_reasons(group, self._plan.wire).__getitem__)
            elif known is None:
                self.report.unknown_schemas.add(schema_id)
            elif isinstance(known, RejectedSchema):
                self._refuse(group, schema_id, lambda _, why=known.reason: why)  # type: ignore[misc]
            elif not self._lacks_ids and (found := self._decoded(group, schema_id, known)) is not None:
                yield found

    def conform(self, group: Group) -> Group | None:
        """Give decoded values the plan's columns, and those of keys and headers; None where the plan has no schema."""
        assert group.schema_id is not None, "values were decoded by a schema"
        known = self._plan.schemas.schemas.get(group.schema_id)
        if known is None:
            self.report.unknown_schemas.add(group.schema_id)
            return None
        if isinstance(known, RejectedSchema):
            self._refuse(group.records, group.schema_id, lambda _: known.reason)
            return None
        if known.shaped:
            return self.with_record_columns(self._shaped(group, known, self._plan.schemas.shaped[known.shaped]))
        with self.clock("conform"):
            rows = conform(group.rows, known, self._plan.schemas)
        return self.with_record_columns(replace(group, rows=rows))

    def assign(self, group: Group) -> Group:
        """Give the rows event times and buckets. Raises ValueError when the event-time field is no time."""
        records, plan = group.records, self._plan
        with self.clock("assign"):
            topics = records.column("topic")
            assigned = assign_buckets(group.rows, plan.time_rule, self.bucketer, plan.now, topics, group.times)
            if assigned.unit != "auto":
                self.report.time_unit = assigned.unit
        if assigned.mask is not None:
            reasons = assigned.quarantined
            self._refuse(_at(group.records, reasons), group.schema_id, _reasons(reasons), outcome="quarantined")
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

    def _shaped(self, group: Group, known: WriterSchema, record: ShapedRecord) -> Group:
        """Let a spec decide which rows stay, and with which columns. The event times are those before it."""
        assert record.output is not None, "a spec that does not fit rejects its schemas"
        with self.clock("shape"):
            rows = conform(group.rows, known, record.input)
            times = self._times(rows, group.records.column("topic"))
            found = record.step.apply(rows)
            shaped = conform(found.rows, record.output, self._plan.schemas)
        for rule, out in found.filtered.items():
            self._filter(group, pa.array(out), times[0], record.spec.name, rule)
        if found.failed:
            reasons = {at: f"spec {record.spec.name!r}: {why}" for at, why in found.failed.items()}
            self._refuse(_at(group.records, reasons), group.schema_id, _reasons(reasons))
        if found.kept is None:
            return replace(group, rows=shaped, times=times)
        kept = pa.array(found.kept)
        left = times[0].filter(kept), times[1]
        return replace(group, records=group.records.filter(kept), rows=shaped, times=left)

    def _times(self, rows: pa.Table, topics: pa.ChunkedArray) -> tuple[pa.TimestampArray, str]:
        """Return event times and their unit; null where a record type, which no start has seen, has no such field."""
        try:
            return times_of(rows, self._plan.time_rule, topics, self._plan.now)
        except ValueError:
            return pa.nulls(rows.num_rows, TIMESTAMP), self._plan.time_rule.unit

    def _filter(self, group: Group, out: pa.BooleanArray, times: pa.TimestampArray, spec: str, rule: str) -> None:
        """Count records that a rule leaves out. They show how far their partitions have come, as rows do."""
        records, plan = group.records.filter(out), self._plan
        for row in (
            records.group_by(["topic", "partition"], use_threads=False).aggregate([([], "count_all")]).to_pylist()
        ):
            self.counts[row["topic"], row["partition"]].filtered += row["count_all"]  # one turn a partition
        good = is_believable(times := times.filter(out), plan.time_rule, plan.now)
        latest = pc.max(times.filter(good)).cast(pa.int64()).as_py()
        for source, newest in newest_event_times(
            records.filter(good), times.filter(good), plan.time_rule.window(plan.now), plan.now
        ).items():
            counts = self.counts[source]
            counts.seen = newest if counts.seen is None else max(counts.seen, newest)
        self.report.add_filtered({spec: {rule: records.num_rows}}, latest)
        if self._leave_out is not None:
            self._leave_out(records, group.schema_id, spec, rule)

    @property
    def _lacks_ids(self) -> bool:
        return bool(self.report.unknown_schemas or self.report.unknown_key_schemas)

    def _with_topic(self, batch: pa.RecordBatch) -> pa.Table:
        records, topic = pa.Table.from_batches([batch]), self._plan.topic
        return records if topic is None else records.append_column("topic", pa.repeat(topic, batch.num_rows))

    def _weigh(self, value_bytes: int, records: int) -> None:
        self.report.value_bytes += value_bytes
        self.report.record_bytes_max = max(self.report.record_bytes_max, value_bytes / max(records, 1))

    def _decoded(self, group: pa.Table, schema_id: int, known: WriterSchema) -> Group | None:
        """Decode records of one schema id; None where all of them are older than the id's meaning."""
        self.report.schemas.add(schema_id)
        if (old := self._values.older(group.column("timestamp"), schema_id)) is not None:
            older, why = old
            self._refuse(group.filter(older), schema_id, lambda _: why)
            group = group.filter(pc.invert(older))
            if group.num_rows == 0:
                return None
        with self.clock("decode"):
            decoded = self._values.decoded(contiguous(group.column("value")), schema_id, known)
            self.report.unknown_schemas |= self._values.lacking
        if decoded.failures:
            shown = {at: self._shown(why) for at, why in decoded.failures.items()}
            self._refuse(_at(group, shown), schema_id, _reasons(shown))
            group = group.take(decoded.positions)
        return Group(schema_id, group, decoded.rows)

    def with_record_columns(self, group: Group) -> Group:
        """Give the rows the columns of their keys and headers; a record that cannot fill them becomes no row."""
        wanted = self._plan.record_columns
        if not wanted.names or not set(wanted.names).isdisjoint(
            group.rows.column_names
        ):  # the rows of a copy have them
            return group
        with self.clock("conform"):
            arrays, reasons = wanted.build_arrays(group.records, self._read_keys)
            rows = pa.table([*group.rows.columns, *arrays], schema=pa.schema([*group.rows.schema, *wanted.schema]))
            if not reasons:
                return replace(group, rows=rows)
            keep = np.ones(rows.num_rows, dtype=bool)
            keep[list(reasons)] = False
            self._refuse(_at(group.records, reasons), group.schema_id, _reasons(reasons))
            return replace(group, rows=rows).part(pa.array(keep))

    def _read_keys(self, records: pa.Table) -> DecodedKeys:
        found = self._keys.read(records)
        self.report.unknown_key_schemas |= found.unknown
        self.report.key_schemas |= found.used
        return found


def _at(records: pa.Table, positions: Mapping[int, str]) -> pa.Table:
    return records.take(pa.array(list(positions), pa.int64()))


def _reasons(found: Mapping[int, str]) -> Callable[[int], str]:
    listed = list(found.values())
    return lambda row: listed[row]
