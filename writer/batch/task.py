"""Runs one task of a micro-batch without Spark: Arrow batches of Kafka records in, staged files and counts out.

The steps in order: skip, keep the raw record, split by schema, decode, route, shape, conform, assign, stage, columnar,
report. What a task must decide the same way when it is tried again (now, frontier, schema plan, what is closed) comes
with the plan, frozen by the driver.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers import Buckets
from headrace.bucketers.timestamps import kafka_times
from headrace.writer.avro import schema
from headrace.writer.batch.bucketing import BucketAssignment
from headrace.writer.batch.dead_letters import DeadLetterFile, incarnation_column
from headrace.writer.batch.lateness import LateRows, find_late_rows, follow_event_times, late_reasons
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.record_steps import Group, LeaveOut, RecordSteps
from headrace.writer.batch.route import NoTarget, Route, Share
from headrace.writer.batch.schema_blocks import HELD_BYTES_MAX, ROUTE_HELD_BYTES_MAX, SchemaBlocks
from headrace.writer.batch.skip import skip
from headrace.writer.batch.staging.raw_records import RAW_BUCKET_COLUMNS, RawRecords, raw_columns
from headrace.writer.batch.staging.spill_buffer import ScratchFailed, Stage
from headrace.writer.batch.task_report import NAMES_MAX, Counts, Report
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.core import fault_points
from headrace.writer.core.offsets import Source
from headrace.writer.privacy.record_sealing import HIDDEN
from headrace.writer.storage.disk_space import SCRATCH, TABLE, name_full_disk, scratch
from headrace.writer.storage.missing_bucket import name_missing_bucket
from headrace.writer.storage.requests.counts import REQUEST_COUNTS

_T = TypeVar("_T")
# The beginning of 1900. What is earlier Spark moves by days or minutes, to the calendar and the zones of its day
# (`RebaseDateTime.rebaseJulianToGregorianMicros`).
_SPARK_TIMES_FROM_US = -2_208_988_800_000_000
# The columns by which one record is told from another.
POSITION_COLUMNS = ["topic", "partition", "offset"]


@dataclass(frozen=True)
class Piece:
    """Records as a task takes them; `rows`: the same, decoded elsewhere, one row for each."""

    records: pa.RecordBatch
    rows: pa.Table | None = None

    def filter(self, mask: pa.BooleanArray) -> "Piece":
        """Return those records that are chosen."""
        return Piece(self.records.filter(mask), None if self.rows is None else self.rows.filter(mask))


# Returns pieces by a schema plan, from the beginning. One that a process of a task calls can be pickled.
Read = Callable[[SchemaPlan], Iterable[Piece]]
# Returns which records of a piece a task takes, when it may take them, by their POSITION_COLUMNS; None: all of them.
Admit = Callable[[pa.RecordBatch], pa.BooleanArray | None]


def run(
    batches: Iterable[pa.RecordBatch],
    plan: TaskPlan,
    complete: Callable[[Report], None] = lambda _: None,
) -> Iterator[pa.RecordBatch]:
    """Run a task on the batches. Yields one report, as one row of JSON (schema task_report.ROW).

    `complete` adds to the report what is known once all batches were read.
    """
    began_s = time.monotonic()
    task = Task(plan)
    try:
        report = task.run(batches, task.take)
        complete(report)
        report.took_s = [round(time.monotonic() - began_s, 3)]
        report.requests = REQUEST_COUNTS.take()
        fault_points.point("in_report")
        yield report.to_row()
    finally:
        # A thread spins in native code for ever: let this process go, Spark makes another.
        if task.unresponsive:
            threading.Timer(1.0, os._exit, args=[0]).start()


def run_spark_rows(batches: Iterable[pa.RecordBatch], plan: TaskPlan) -> Iterator[pa.RecordBatch]:
    """Run a task on the rows of Spark's Kafka source, as `run` does."""
    return run(map(_with_kafka_times, batches), plan)


def _with_kafka_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Read the timestamps that Spark hands over: null for none, and for what Spark may have moved."""
    numbers = batch.column("timestamp").cast(pa.int64())
    least = pc.min(numbers).as_py()
    if least is not None and least < _SPARK_TIMES_FROM_US:
        numbers = pc.if_else(pc.less(numbers, _SPARK_TIMES_FROM_US), None, numbers)
    times = kafka_times(numbers, "us")
    return batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", times)


class Task:
    """State of one task: the steps of its records, the rows of each table, its dead letters, its raw records."""

    def __init__(self, plan: TaskPlan, leave_out: LeaveOut | None = None) -> None:
        self._plan = plan
        self._leave_out = leave_out
        self._counts = defaultdict[Source, Counts](Counts)
        self._dead_letters = DeadLetterFile(
            plan.destination(plan.dead_letters), plan.incarnations, plan.now, plan.sealing
        )
        self._raw = None if plan.raw is None else raw_records(plan, plan.raw)
        keep = None if self._raw is None else partial(self._stage_raw, self._raw)
        self._steps = RecordSteps(plan, self._dead_letters.add, counts=self._counts, keep=keep, leave_out=leave_out)
        self._report = self._steps.report
        self._blocks = SchemaBlocks(HELD_BYTES_MAX if plan.route is None else ROUTE_HELD_BYTES_MAX)
        # The tables that got a record, by name; without a route the one table has no name.
        self._tables = dict[str, TableRows]()
        # Of the tables of a route together: a look at all of them for each group would cost the square of their number.
        self._held_bytes = 0
        self._a_table_lacks_schemas = False
        if plan.route is None:
            self._tables[""] = TableRows(plan, self._steps, self._dead_letters)

    @property
    def unresponsive(self) -> bool:
        """A native decoder of this process is lost."""
        return self._steps.unresponsive or any(table.steps.unresponsive for table in self._tables.values())

    def run(self, pieces: Iterable[_T], take: Callable[[_T], None]) -> Report:
        """Take each piece, then finish. What was staged is removed if that fails. Raises StoreError for a full disk."""
        locations = set[str]()
        for plan in (self._plan, *self._plan.targets.values()):
            locations.update(filter(None, (plan.table, plan.dead_letters, plan.late_table, plan.raw)))
        try:
            # The disk is looked at before what was staged is removed.
            with name_missing_bucket(), name_full_disk({scratch(): SCRATCH, **dict.fromkeys(locations, TABLE)}):
                for piece in pieces:
                    take(piece)
                return self.finish()
        except BaseException:
            self.abandon()
            raise

    def run_reads(self, reads: Iterable[Read], batch_records: int, admit: Admit | None = None) -> Report:
        """Run the task on what these read. Raises as `run` does, what they raise, and what `admit` raises.

        `batch_records`: that it takes at once. `admit`: None takes all records.
        """
        return self.run(self._read_pieces(reads, admit), partial(self._take_piece, batch_records))

    def _read_pieces(self, reads: Iterable[Read], admit: Admit | None) -> Iterator[Piece]:
        """Yield what these read and the task takes, as Kafka had it: a table may keep it encrypted."""
        privacy = self._plan.schemas.privacy
        for read in reads:
            for piece in read(self._plan.schemas):
                mask = None if admit is None else admit(piece.records.select(POSITION_COLUMNS))
                taken = piece if mask is None else piece.filter(mask)
                if privacy is not None:
                    taken = replace(taken, records=privacy.sealing.unseal(taken.records))
                yield taken

    def _take_piece(self, batch_records: int, piece: Piece) -> None:
        for start in range(0, piece.records.num_rows, batch_records):
            records = piece.records.slice(start, batch_records)
            if piece.rows is None:
                self.take(records)
            else:
                self.take_rows(records, piece.rows.slice(start, batch_records))

    def take(self, batch: pa.RecordBatch) -> None:
        """Take one Arrow batch of records through all steps to the stage, some of them with those of a later batch."""
        for schema_id, records in self._blocks.add(self._steps.split_values(batch), batch.num_rows):
            self._take_block(schema_id, records)

    def take_rows(self, batch: pa.RecordBatch, rows: pa.Table) -> None:
        """Take rows that were decoded elsewhere: they have the plan's columns, one row for each record of the batch.

        The records have no value of their own that could be read; an empty one stands for it.
        """
        with self._steps.clock("skip"):
            records = skip(pa.Table.from_batches([batch]), self._plan.frontier, self._counts)
            assert records.num_rows == batch.num_rows == rows.num_rows, "each record has a row, and none is known"
        self._tables[""].stage(self._steps.with_record_columns(Group(None, records, rows)))

    def finish(self) -> Report:
        """Complete the files. Raises AssertionError when a record is unaccounted for."""
        for schema_id, records in self._blocks.take_rest():
            self._take_block(schema_id, records)
        report = self._report
        if self._plan.route is not None:
            report.targets = {name: table.steps.report for name, table in self._tables.items()}
        if report.lacks_schemas:
            self.abandon()
            return report
        with self._steps.clock("columnar"):
            for table in self._tables.values():
                table.finish(self._counts)
                if table.steps.report.refused:
                    self.abandon()
                    return report
                if table.steps is not self._steps:
                    report.add_seconds(table.steps.report)
                    report.add_filter_counts(table.steps.report.filtered, table.steps.report.filtered_newest)
            report.dead_letter_files = self._dead_letters.finish()
        if self._raw is not None:
            with self._steps.clock("raw"):
                report.raw_files = self._raw.finish()
            for file in report.raw_files:
                for source, records in file.rows_by_source.items():
                    self._counts[source].raw += records
        for (source, outcome), records in self._dead_letters.counts.items():
            self._counts[source].add_outcome(outcome, records)
        report.failed_records = self._dead_letters.failed_records()
        for source, counts in self._counts.items():
            assert counts.is_balanced(), f"records of {source} are unaccounted for: {counts}"
            assert self._raw is None or counts.raw == counts.read, f"raw records of {source} are missing: {counts}"
        report.counts = dict(self._counts)
        return report

    def abandon(self) -> None:
        """Remove what was staged."""
        for table in self._tables.values():
            table.abandon()
        self._dead_letters.abandon()
        if self._raw is not None:
            self._raw.abandon()

    def _stage_raw(self, raw: RawRecords, records: pa.Table) -> None:
        """Stage records as Kafka has them, unless they are to be read again."""
        if not self._lacks_schemas:
            with self._steps.clock("raw"):
                raw.add(raw_rows(records, self._plan))

    @property
    def _lacks_schemas(self) -> bool:
        return self._a_table_lacks_schemas or self._report.lacks_schemas

    def _take_block(self, schema_id: int, records: pa.Table) -> None:
        """Decode records of one schema, and take them to the tables."""
        for group in self._steps.decode_records(schema_id, records):
            self._route_group(group)

    def _route_group(self, group: Group) -> None:
        """Take decoded values to the tables of their records."""
        route = self._plan.route
        if route is None:
            self._tables[""].take(group)
            return
        # A group of which no value decodes needs no table, and ends no batch.
        if group.records.num_rows == 0:
            return
        for share in route.shares(group.schema_id, group.records, group.rows):
            self._note_names_beyond(route, share)
            if share.target is NoTarget.UNKNOWN:
                self._report.unknown_names |= share.distinct_names()
            elif share.target is NoTarget.UNROUTED:
                self._refuse_unrouted(route, share, group.filter(share.mask))
            else:
                self._take_share(share.target, group.filter(share.mask))

    def _take_share(self, name: str, group: Group) -> None:
        """Take the decoded values of one table, and keep the rows of all tables within the budget."""
        table = self._table_rows(name)
        held_before = table.held_bytes
        table.take(group, is_staged=not self._lacks_schemas)
        self._held_bytes += table.held_bytes - held_before
        self._a_table_lacks_schemas |= table.steps.report.lacks_schemas
        if self._held_bytes > self._plan.budget:
            self._share_memory()

    def _note_names_beyond(self, route: Route, share: Share) -> None:
        """Remember names that have no table only because no further one is made, up to a number."""
        if not route.is_full:
            return
        names_left = NAMES_MAX - len(self._report.beyond_names)
        if names_left > 0:
            self._report.beyond_names |= set(islice(filter(route.is_beyond, share.distinct_names()), names_left))

    def _refuse_unrouted(self, route: Route, share: Share, group: Group) -> None:
        """Let the records of a share that has no table be dead letters."""
        self._report.unrouted += share.count(route.is_on_purpose, group.records.num_rows)
        hides_name = self._plan.sealing is not None and route.by == "header"
        reason = partial(_unrouted_reason, route, share, hides_name=hides_name)
        self._dead_letters.add(group.records, group.schema_id, reason)

    def _table_rows(self, name: str) -> "TableRows":
        if name not in self._tables:
            plan = self._plan.targets[name]
            steps = RecordSteps(plan, self._dead_letters.add, counts=self._counts, leave_out=self._leave_out)
            self._tables[name] = TableRows(plan, steps, self._dead_letters)
        return self._tables[name]

    def _share_memory(self) -> None:
        """Move rows to disk until those of all tables are within the budget, of the largest table first."""
        for table in sorted(self._tables.values(), key=lambda table: table.held_bytes, reverse=True):
            if self._held_bytes <= self._plan.budget:
                return
            held_before = table.held_bytes
            table.spill()
            self._held_bytes += table.held_bytes - held_before


class TableRows:
    """The rows of one table in a task: the steps that depend on the table, what is staged, and late rows."""

    def __init__(self, plan: TaskPlan, steps: RecordSteps, dead_letters: DeadLetterFile) -> None:
        self._plan = plan
        self.steps = steps
        self._dead_letters = dead_letters
        self._scratch = scratch()
        destination = plan.destination(plan.table, steps.bucketer.columns, plan.entropy_bits)
        self._stage = Stage(destination, budget=plan.budget, scratch=self._scratch)
        steps.report.number = plan.number
        steps.report.is_held = bool(plan.held_location)
        # Made when the first row goes to the late table.
        self._late_stage: Stage | None = None

    def take(self, group: Group, *, is_staged: bool = True) -> None:
        """Take decoded values to the stage; or see only whether the plan has what they need."""
        with self._refusal():
            conformed = self.steps.conform(group)
            if conformed is not None and is_staged and not self.steps.report.lacks_schemas:
                self.stage(conformed)

    @contextmanager
    def _refusal(self) -> Iterator[None]:
        """Report what the storage of a route's table refuses, for the next try; else raise it."""
        try:
            with name_missing_bucket():
                yield
        except ScratchFailed:
            # The local disk is one for all tables.
            raise
        except OSError as error:
            if not self._plan.may_refuse:
                raise
            self.steps.report.refused = str(error)

    @property
    def held_bytes(self) -> int:
        """Bytes of rows in memory."""
        return self._stage.held_bytes

    def spill(self) -> None:
        """Move the rows in memory to local disk."""
        with self._refusal():
            self._stage.empty_memory()

    def finish(self, counts: Mapping[Source, Counts]) -> None:
        """Complete the files, and count their rows."""
        report = self.steps.report
        with self._refusal():
            report.files = self._stage.finish()
            report.late_files = self._late_stage.finish() if self._late_stage else []
        report.spilled_bytes = self._stage.spilled_bytes
        for file in report.files:
            for source, rows in file.rows_by_source.items():
                counts[source].rows += rows
        for file in report.late_files:
            for source, rows in file.rows_by_source.items():
                counts[source].late += rows

    def abandon(self) -> None:
        """Remove what was staged."""
        self._stage.abandon()
        if self._late_stage:
            self._late_stage.abandon()

    def stage(self, group: Group) -> None:
        """Give rows their buckets, and stage them."""
        plan = self._plan
        group = self.steps.assign(group)
        assigned = group.assigned
        assert assigned is not None
        with self.steps.clock("stage"):
            rows = _with_provenance(assigned.rows, group.records, plan)
            window = plan.time_rule.window(plan.now)
            newest_times = follow_event_times(rows, assigned.event_time, window, plan.now, self.steps.report.late)
            for source, newest in newest_times.items():
                self.steps.counts[source].add_event_time(newest)
            late_rows = find_late_rows(assigned.buckets, plan.closed_until, plan.watermark, plan.late)
            if late_rows is not None:
                rows, assigned = self._move_late_rows(late_rows, rows, assigned, group)
            self._stage.add(rows, assigned.event_time, assigned.buckets)

    def _move_late_rows(
        self, late_rows: LateRows, rows: pa.Table, assigned: BucketAssignment, group: Group
    ) -> tuple[pa.Table, BucketAssignment]:
        """Count late rows and move them as their tier demands (cold: late rows are few). Returns the other rows."""
        plan = self._plan
        assert plan.closed_until is not None
        self.steps.report.late.count_late_rows(late_rows, plan.closed_until)
        policies = {bucket.policy for bucket in late_rows.buckets}
        if policies == {"reopen"}:
            return rows, assigned
        times = assigned.event_time
        if "dead_letter" in policies:
            mask = late_rows.mask("dead_letter")
            reasons = late_reasons(times.filter(mask), plan.time_rule.field, plan.closed_until)
            self._dead_letters.add(group.records.filter(mask), group.schema_id, reasons.__getitem__)
        if "late_table" in policies:
            mask = late_rows.mask("late_table")
            self._open_late_stage().add(rows.filter(mask), times.filter(mask), _filter_buckets(assigned.buckets, mask))
        mask = pc.invert(late_rows.mask("dead_letter", "late_table"))
        rows = rows.filter(mask)
        buckets = _filter_buckets(assigned.buckets, mask)
        return rows, replace(assigned, rows=rows, event_time=times.filter(mask), buckets=buckets)

    def _open_late_stage(self) -> Stage:
        plan = self._plan
        assert plan.late_table is not None, "the policy names a late table"
        if self._late_stage is None:
            destination = plan.destination(plan.late_table, self.steps.bucketer.columns)
            self._late_stage = Stage(destination, budget=plan.budget // 4, scratch=self._scratch)
        return self._late_stage


def raw_records(plan: TaskPlan, location: str) -> RawRecords:
    """Return what stages a task's records for the raw table at a location."""
    destination = plan.destination(location, RAW_BUCKET_COLUMNS)
    window = plan.time_rule.window(plan.now)
    return RawRecords(destination, window, plan.now, budget=plan.budget // 4, scratch=scratch())


def raw_rows(records: pa.Table, plan: TaskPlan) -> pa.Table:
    """Return records as the raw table has them."""
    rows = raw_columns(records)
    if plan.sealing is not None:
        rows = plan.sealing.seal(rows)
    return _with_provenance(rows, records, plan)


def _filter_buckets(buckets: Buckets, mask: pa.BooleanArray) -> Buckets:
    return replace(buckets, codes=buckets.codes.filter(mask))


def _unrouted_reason(route: Route, share: Share, row: int, *, hides_name: bool) -> str:
    name = share.name(row)
    return route.reason(HIDDEN.decode() if hides_name and name else name)


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
