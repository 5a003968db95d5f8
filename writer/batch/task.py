"""Runs one task of a micro-batch without Spark: Arrow batches of Kafka records in, staged files and counts out.

The steps in order: skip, split by schema, decode, conform, assign, stage, columnar, report. What a task must decide the
same way when it is retried (now, frontier, schema plan, what is closed) comes with the plan, frozen by the driver.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import bucketers
from bucketers.arrow import contiguous
from writer.avro import schema
from writer.avro.schema_plan import Rejected, SchemaPlan, WriterSchema, conform
from writer.avro.wire_format import CONFLUENT, Wire, refusals, split
from writer.batch.bucketing import BucketAssignment, TimeRule, assign
from writer.batch.dead_letters import DeadLetterFile, incarnation_column
from writer.batch.lateness import Late, LatePolicy, follow, late, late_reasons
from writer.batch.parquet_files import Destination
from writer.batch.record_columns import RecordColumns
from writer.batch.schema_reader import DecodedKeys, Decoders, KeyReader, SchemaReader
from writer.batch.skip import skip
from writer.batch.spill_buffer import Stage
from writer.batch.task_report import Counts, Report
from writer.core import fault_points
from writer.core.offsets import Source
from writer.kafka_reader.columns import DecodedRecords
from writer.storage.base import S3Settings
from writer.storage.disk_space import SCRATCH, TABLE, naming_full_disk, scratch
from writer.storage.locations import store_at

_T = TypeVar("_T")


@dataclass(frozen=True)
class TaskPlan:
    """The plan that the driver gives to a task."""

    now: datetime
    frontier: Mapping[Source, int]
    incarnations: Mapping[str, int]
    schemas: SchemaPlan
    time_rule: TimeRule
    bucket: Mapping[str, Any]
    table: str  # location
    dead_letters: str  # location
    prefix: str
    budget: int  # bytes of rows in memory
    target_file_size: int
    topic: str | None = None  # the only one, whose name no batch carries
    entropy_bits: int = 0
    hidden: bool = False  # files wait for their commit where readers do not look
    s3: S3Settings | None = None
    wire: Wire = CONFLUENT
    closed_until: datetime | None = None  # rows of buckets that end by then are late; None: no row is
    late: LatePolicy = "reopen"
    late_table: str | None = None  # location
    record_columns: RecordColumns = field(default_factory=RecordColumns)

    def destination(self, location: str, columns: tuple[str, ...] = (), entropy_bits: int = 0) -> Destination:
        """Where files of a table go. `columns`: of its buckets."""
        store = store_at(location, self.s3)
        return Destination(store, columns, self.prefix, self.target_file_size, entropy_bits, self.hidden)


def run(
    batches: Iterable[pa.RecordBatch | DecodedRecords],
    plan: TaskPlan,
    complete: Callable[[Report], None] = lambda _: None,
    is_unresponsive: Callable[[], bool] = lambda: False,
) -> Iterator[pa.RecordBatch]:
    """Run a task on the batches. Yields one report, as one row of JSON (schema task_report.ROW).

    `complete` adds to the report what is known once all batches were read. `is_unresponsive`: a native decoder of who
    makes the batches is lost.
    """
    began_s, task = time.monotonic(), Task(plan)
    try:
        report = task.run(batches, task.take_either)
        complete(report)
        report.took_s = [round(time.monotonic() - began_s, 3)]
        fault_points.point("in_report")
        yield report.to_row()
    finally:
        if (
            task.unresponsive or is_unresponsive()
        ):  # a thread spins in native code for ever: let this process go, Spark makes another
            threading.Timer(1.0, os._exit, args=[0]).start()


class Refuse(Protocol):
    """Takes records that become no row, with `reason(row)` for each."""

    def __call__(
        self, records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        """Take them; `outcome`: dead_letter, quarantined."""


@dataclass(frozen=True)
class Group:
    """Records that were read by one schema, and their rows, one to one."""

    schema_id: int | None  # None: the rows were decoded elsewhere
    records: pa.Table
    rows: pa.Table
    assigned: BucketAssignment | None = None
    decoded: DecodedRecords | None = None  # where the records come without their values

    def at(self, positions: Mapping[int, str]) -> pa.Table:
        """Return the records at some positions, with their values."""
        some = self.records.take(pa.array(list(positions), pa.int64()))
        return some if self.decoded is None else self.decoded.with_values(some)

    def where(self, mask: pa.BooleanArray | pa.ChunkedArray) -> pa.Table:
        """Return some records, with their values."""
        some = self.records.filter(mask)
        return some if self.decoded is None else self.decoded.with_values(some)


class RecordSteps:
    """The steps of a record up to its bucket: skip, split, decode, conform, assign. They write nothing."""

    def __init__(
        self, plan: TaskPlan, refuse: Refuse, decoders: Decoders | None = None, key_decoders: Decoders | None = None
    ) -> None:
        """`decoders`, `key_decoders`: of earlier steps with the same wire formats, by schema id."""
        self._plan, self._refuse = plan, refuse
        self.bucketer = bucketers.build(plan.bucket)
        self.report, self.counts = Report(), defaultdict[Source, Counts](Counts)
        self._values = SchemaReader(plan.schemas, plan.wire, scratch(), decoders)
        self._keys = KeyReader(plan.record_columns.keys, scratch(), key_decoders)

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._values.unresponsive or self._keys.unresponsive

    def decode(self, batch: pa.RecordBatch) -> Iterator[Group]:
        """Decode an Arrow batch of topic, partition, offset, timestamp, key, value, and headers where they are needed.

        Once a record has met a schema that the plan lacks, nothing more is decoded: the batch will run again.
        """
        with self.clock("skip"):
            records = skip(self._with_topic(batch), self._plan.frontier, self.counts)
            self._weigh(pc.sum(pc.binary_length(records.column("value"))).as_py() or 0, records.num_rows)
        for schema_id, group in split(records, self._plan.wire):
            known = None if schema_id is None else self._plan.schemas.schemas.get(schema_id)
            if schema_id is None:
                self._refuse(group, None, refusals(group, self._plan.wire).__getitem__)
            elif known is None:
                self.report.unknown_schemas.add(schema_id)
            elif isinstance(known, Rejected):
                self._refuse(group, schema_id, lambda _, why=known.reason: why)  # type: ignore[misc]
            elif not self.report.lacks_schemas and (found := self._decoded(group, schema_id, known)) is not None:
                yield found

    def take_decoded(self, decoded: DecodedRecords) -> Group:
        """Count records whose values are decoded already, and give their rows the plan's columns."""
        with self.clock("skip"):
            records = self._with_topic(decoded.records)
            kept = skip(records, self._plan.frontier, self.counts)
            assert kept.num_rows == decoded.rows.num_rows, "the table has none of these records"
            self._weigh(decoded.value_bytes, kept.num_rows)
        self.report.schemas.add(decoded.schema_id)
        known = self._plan.schemas.schemas[decoded.schema_id]
        assert isinstance(known, WriterSchema), "a schema that is not known or rejected decodes nothing"
        with self.clock("conform"):
            rows = conform(decoded.rows, known, self._plan.schemas)
        return self.with_record_columns(Group(decoded.schema_id, kept, rows, decoded=decoded))

    def assign(self, group: Group) -> Group:
        """Give the rows event times and buckets. Raises ValueError when the event-time field is no time."""
        records, plan = group.records, self._plan
        with self.clock("assign"):
            assigned = assign(group.rows, plan.time_rule, self.bucketer, plan.now, records.column("topic"))
            self.report.time_unit = assigned.unit
        if assigned.kept is not None:
            reasons = assigned.quarantined
            self._refuse(group.at(reasons), group.schema_id, _reasons(reasons), outcome="quarantined")
            records = records.filter(assigned.kept)
        return replace(group, records=records, rows=assigned.rows, assigned=assigned)

    @contextmanager
    def clock(self, step: str) -> Iterator[None]:
        """Add the processor time of a block to a step's."""
        start = time.process_time()
        yield
        fault_points.point(f"in_{step}")
        seconds = self.report.seconds
        seconds[step] = seconds.get(step, 0) + time.process_time() - start

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
        if decoded.failures:
            self._refuse(_at(group, decoded.failures), schema_id, _reasons(decoded.failures))
            group = group.take(decoded.taken)
        with self.clock("conform"):
            rows = conform(decoded.rows, known, self._plan.schemas)
        return self.with_record_columns(Group(schema_id, group, rows))

    def with_record_columns(self, group: Group) -> Group:
        """Give the rows the columns of their keys and headers; a record that cannot fill them becomes no row."""
        wanted = self._plan.record_columns
        if not wanted.names or not set(wanted.names).isdisjoint(
            group.rows.column_names
        ):  # the rows of a copy have them
            return group
        with self.clock("conform"):
            arrays, reasons = wanted.of(group.records, self._read_keys)
            rows = pa.table([*group.rows.columns, *arrays], schema=pa.schema([*group.rows.schema, *wanted.schema]))
            if not reasons:
                return replace(group, rows=rows)
            keep = np.ones(rows.num_rows, dtype=bool)
            keep[list(reasons)] = False
            self._refuse(group.at(reasons), group.schema_id, _reasons(reasons))
            return replace(group, records=group.records.filter(keep), rows=rows.filter(keep))

    def _read_keys(self, records: pa.Table) -> DecodedKeys:
        found = self._keys.read(records)
        self.report.unknown_key_schemas |= found.unknown
        self.report.key_schemas |= found.used
        return found


class Task:
    """State of one task: the steps of its records, its stage, its dead letters."""

    def __init__(self, plan: TaskPlan) -> None:
        self._plan, self._scratch = plan, scratch()
        self._dead = DeadLetterFile(plan.destination(plan.dead_letters), plan.incarnations, plan.now)
        self._steps = RecordSteps(plan, self._dead.add)
        self._report, self._counts = self._steps.report, self._steps.counts
        destination = plan.destination(plan.table, self._steps.bucketer.columns, plan.entropy_bits)
        self._stage = Stage(destination, budget=plan.budget, scratch=self._scratch)
        self._late_stage: Stage | None = None  # until a row goes to the late table

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._steps.unresponsive

    def run(self, pieces: Iterable[_T], take: Callable[[_T], None]) -> Report:
        """Take each piece, then finish. What was staged is removed if that fails. Raises StoreError for a full disk."""
        tables = [self._plan.table, self._plan.dead_letters, self._plan.late_table]
        places = {self._scratch: SCRATCH, **{place: TABLE for place in tables if place is not None}}
        try:
            with naming_full_disk(places):  # before what was staged is removed
                for piece in pieces:
                    take(piece)
                return self.finish()
        except BaseException:
            self.abandon()
            raise

    def take(self, batch: pa.RecordBatch) -> None:
        """Take one Arrow batch of records through all steps to the stage."""
        for group in self._steps.decode(batch):
            self._place(group)

    def take_either(self, batch: pa.RecordBatch | DecodedRecords) -> None:
        """Take records as they are, or with values that were decoded with their frames and are not in the table."""
        if isinstance(batch, pa.RecordBatch):
            self.take(batch)
        elif not self._report.lacks_schemas:
            self._place(self._steps.take_decoded(batch))

    def take_rows(self, batch: pa.RecordBatch, rows: pa.Table) -> None:
        """Take rows that were decoded elsewhere: they have the plan's columns, one row for each record of the batch.

        The records have no value of their own that could be read; an empty one stands for it.
        """
        with self._steps.clock("skip"):
            records = skip(pa.Table.from_batches([batch]), self._plan.frontier, self._counts)
            assert records.num_rows == batch.num_rows == rows.num_rows, "each record has a row, and none is known"
        self._place(self._steps.with_record_columns(Group(None, records, rows)))

    def finish(self) -> Report:
        """Complete the files. Raises AssertionError when a record is unaccounted for."""
        report = self._report
        if report.lacks_schemas:
            self.abandon()
            return report
        with self._steps.clock("columnar"):
            report.files = self._stage.finish()
            report.late_files = self._late_stage.finish() if self._late_stage else []
            report.dead_letter_files = self._dead.finish()
        for file in report.files:
            for source, rows in file.rows_by_source.items():
                self._counts[source].rows += rows
        for file in report.late_files:
            for source, rows in file.rows_by_source.items():
                self._counts[source].late += rows
        for (source, outcome), rows in self._dead.counts.items():
            setattr(self._counts[source], outcome, getattr(self._counts[source], outcome) + rows)
        report.failed_records = self._dead.failed_records()
        for source, counts in self._counts.items():
            assert counts.balanced(), f"records of {source} are unaccounted for: {counts}"
        report.counts, report.spilled_bytes = dict(self._counts), self._stage.spilled_bytes
        return report

    def abandon(self) -> None:
        """Remove what was staged."""
        self._stage.abandon()
        if self._late_stage:
            self._late_stage.abandon()
        self._dead.abandon()

    def _place(self, group: Group) -> None:
        """Give rows their buckets, and stage them."""
        plan, group = self._plan, self._steps.assign(group)
        assert group.assigned is not None
        assigned = group.assigned
        with self._steps.clock("stage"):
            rows = _with_provenance(assigned.rows, group.records, plan)
            for source, newest in follow(rows, assigned.event_time, plan.now, self._report.late).items():
                counts = self._counts[source]
                counts.seen = newest if counts.seen is None else max(counts.seen, newest)
            if (found := late(assigned.buckets, plan.closed_until)) is not None:
                rows, assigned = self._set_aside(found, rows, assigned, group)
            self._stage.add(rows, assigned.event_time, assigned.buckets)

    def _set_aside(
        self, found: Late, rows: pa.Table, assigned: BucketAssignment, group: Group
    ) -> tuple[pa.Table, BucketAssignment]:
        """Count late rows and move them as the policy demands (cold: late rows are few). Returns the other rows."""
        plan = self._plan
        assert plan.closed_until is not None
        self._report.late.add(found, plan.closed_until, join=plan.late == "reopen")
        if plan.late == "reopen":
            return rows, assigned
        codes, times, on_time = assigned.buckets.codes, assigned.event_time, pc.invert(found.rows)
        if plan.late == "dead_letter":
            why = late_reasons(times.filter(found.rows), plan.time_rule.field, plan.closed_until)
            self._dead.add(group.where(found.rows), group.schema_id, why.__getitem__)
        else:
            mine = replace(assigned.buckets, codes=codes.filter(found.rows))
            self._lates().add(rows.filter(found.rows), times.filter(found.rows), mine)
        kept = replace(assigned.buckets, codes=codes.filter(on_time))
        rows = rows.filter(on_time)
        return rows, replace(assigned, rows=rows, event_time=times.filter(on_time), buckets=kept)

    def _lates(self) -> Stage:
        plan = self._plan
        assert plan.late_table is not None, "the policy names a late table"
        if self._late_stage is None:
            to = plan.destination(plan.late_table, self._steps.bucketer.columns)
            self._late_stage = Stage(to, budget=plan.budget // 4, scratch=self._scratch)
        return self._late_stage


def _with_provenance(rows: pa.Table, records: pa.Table, plan: TaskPlan) -> pa.Table:
    columns = {
        "_topic": records.column("topic"),
        "_incarnation": incarnation_column(records, plan.incarnations),
        "_partition": records.column("partition"),
        "_offset": records.column("offset"),
        "_kafka_time": records.column("timestamp").cast(schema.TIMESTAMP),
    }
    for name, column in columns.items():
        rows = rows.append_column(name, column)
    return rows


def _at(records: pa.Table, positions: Mapping[int, str]) -> pa.Table:
    return records.take(pa.array(list(positions), pa.int64()))


def _reasons(found: Mapping[int, str]) -> Callable[[int], str]:
    listed = list(found.values())
    return lambda row: listed[row]
