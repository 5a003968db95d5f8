"""Runs a pipeline's tasks in this process without Spark, for a sample, a replay and a backfill."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import bucketers
from bucketers.zone_data import find_zone_data
from writer.avro.schema_plan import SchemaPlan
from writer.avro.wire_format import CONFLUENT, Wire
from writer.batch.bucketing import TimeRule
from writer.batch.plan import TaskPlan
from writer.batch.record_steps import Group, LeaveOut, RecordSteps
from writer.batch.schema_reader import Decoders
from writer.batch.task import Task
from writer.batch.task_report import Report
from writer.commit import builder
from writer.commit.closed_buckets import closes_buckets
from writer.commit.event_specs import check_version
from writer.commit.privacy import RecordedPrivacy, check_policies, check_recorded_paths, open_privacy, record_privacy
from writer.commit.targets import Targets, add_targets
from writer.commit.task_plan import build_task_plan
from writer.config.pipeline import Pipeline, zones_of
from writer.config.pipelines import Config
from writer.config.table_sections import layout
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.files import StagedFile
from writer.privacy.path_policies import RecordPolicies, overlaid
from writer.schemas.format_detection import judge, unit_of, wire_of
from writer.schemas.registry import SchemaSource
from writer.schemas.schema_id_check import IdMeanings
from writer.schemas.tracker import Admission, Schemas
from writer.table.factory import main_table
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.log.zone_records import find_zone_changes
from writer.table.pipeline_tables import Tables
from writer.table.table import PipelineTable

ANY_AGE = timedelta(days=36_500)  # of an event whose broker timestamp is unknown
PLACES = ("table", "dead_letters", "late")  # folders of staged files
_NO_TIME_YEAR = 1970  # of the timestamp that stands for none


@dataclass(frozen=True)
class Piece:
    """Records as a task takes them; `rows`: the same, decoded elsewhere, one row for each."""

    records: pa.RecordBatch
    rows: pa.Table | None = None


@dataclass(frozen=True)
class DeadLetter:
    """A record that became no row, and why."""

    place: tuple[str, int, int]  # topic, partition, offset
    schema_id: int | None
    value: bytes
    outcome: str  # dead_letter, quarantined, filtered
    reason: str


@dataclass
class Sample:
    """What became of records: rows, by the schemas that they were read by, or dead letters. Tombstones are neither."""

    groups: list[Group] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    filtered: list[DeadLetter] = field(default_factory=list)  # what specs leave out, and by which rule

    @property
    def rows(self) -> int:
        """How many records became rows."""
        return sum(group.rows.num_rows for group in self.groups)

    def refuse(
        self, records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        """Take records that become no row."""
        for at, (place, value) in enumerate(
            zip(record_places(records), records.column("value").to_pylist(), strict=True)
        ):
            self.dead_letters.append(DeadLetter(place, schema_id, value, outcome, reason(at)))

    def leave_out(self, records: pa.Table, schema_id: int | None, spec: str, rule: str) -> None:
        """Take records that a spec leaves out."""
        why = f"{rule} of spec {spec!r}"
        self.filtered += [DeadLetter(place, schema_id, b"", "filtered", why) for place in record_places(records)]


@dataclass
class LocalPipeline:
    """One pipeline, ready for records. `schemas` grow by those that the records bring."""

    name: str
    config: Config
    schemas: Schemas
    unit: str  # of the event time; as configured, or as the table's commits have found it
    wire: Wire | None  # likewise; None until records show it
    hidden: bool  # files of its table wait for their commit where readers do not look
    folder: str  # of its table's files
    key_wire: Wire | None = None  # as `wire`, of keys that are Avro
    targets: Targets | None = None  # of a route
    specs: int = 0  # version of the event specs, as the table's log has it
    _decoders: Decoders = field(default_factory=dict)
    _key_decoders: Decoders = field(default_factory=dict)

    @property
    def plan(self) -> SchemaPlan:
        """The schema plan."""
        return self.schemas.plan

    @property
    def time_rule(self) -> TimeRule:
        """The pipeline's rule for event times."""
        return self.config.pipelines[self.name].event_time.rule(self.unit)

    def decoded(self, records: pa.RecordBatch) -> Sample:
        """Take the steps up to the rows. Raises RegistryUnreachable, SchemaChanged, UnclearWire."""
        return self._sample(records, datetime.now(UTC))[1]

    def assigned(self, records: pa.RecordBatch, now: datetime) -> Sample:
        """Take the steps up to the buckets. Raises ConfigError when the event-time field is no time; as `decoded`."""
        steps, sample = self._sample(records, now)
        try:
            sample.groups = [steps.assign(group) for group in sample.groups]
        except ValueError as error:
            raise self._no_time(error) from error
        return sample

    def staged(
        self, records: pa.RecordBatch, now: datetime, into: Path, *, closed_until: datetime | None = None,
        leave_out: LeaveOut | None = None,
    ) -> Report:  # fmt: skip
        """Run a whole task on the records, into files below `into`. Raises ConfigError, RegistryUnreachable.

        `closed_until`: buckets that end by then are closed, if the table has any that close. `leave_out` may hear of
        a record again, when the task runs again.
        """
        incarnations = dict.fromkeys(pc.unique(records.column("topic")).to_pylist(), 1)
        settings, (table, dead_letters, late) = self.config.pipelines[self.name], (str(into / one) for one in PLACES)
        closed_until = closed_until if closes_buckets(settings, bucketers.build(settings.bucket)) else None

        def plan(_: Piece | None) -> TaskPlan:
            return replace(
                self.task_plan(now, "sample", incarnations), table=table, dead_letters=dead_letters,
                late_table=settings.late_table and late, closed_until=closed_until, entropy_bits=0, hidden=False,
                folder="",
            )  # fmt: skip

        return self.run(lambda _: [Piece(records)], plan, leave_out)

    def task_plan(
        self, now: datetime, prefix: str, incarnations: Mapping[str, int], older: timedelta = timedelta(0)
    ) -> TaskPlan:
        """Return the plan of a task in this process.

        `older`: how long ago the broker had the records; what was believable then is believed.
        """
        plan = build_task_plan(
            self.config.pipelines[self.name], self.config.s3.settings, self.plan, self.wire or CONFLUENT, self.unit,
            now=now, prefix=prefix, incarnations=incarnations, hidden=self.hidden,
            folder=self.folder,
            record_columns=self.schemas.record_columns,
        )  # fmt: skip
        plan = plan if self.targets is None else add_targets(plan, self.targets, {})
        targets = {name: replace(one, time_rule=believing(one.time_rule, older)) for name, one in plan.targets.items()}
        return replace(plan, time_rule=believing(plan.time_rule, older), targets=targets) if older else plan

    def grow(self, table: PipelineTable) -> None:
        """Give the table, or those of the route, the columns that staged rows have. Raises CommitFailed.

        And enter in the log what schemas said is to be protected. `table`: the pipeline's own.
        """
        record_privacy(table, self.schemas, None)
        if self.targets is not None:
            self.targets.grow(is_staged=True)
        else:
            table.grow(list(self.schemas.columns()))

    def side_files(self, report: Report) -> dict[str, list[StagedFile]]:
        """Files that a task staged for tables beside the pipeline's, by their locations."""
        of_targets = {} if self.targets is None else self.targets.side_files(report)
        return {**builder.side_files(self.config.pipelines[self.name], report), **of_targets}

    def run(
        self, read: Callable[[SchemaPlan], Iterable[Piece]], plan: Callable[[Piece | None], TaskPlan],
        leave_out: LeaveOut | None = None,
    ) -> Report:  # fmt: skip
        """Run one task on what `read` gives, and again, read anew, when it met schemas that the plan lacked.

        `plan`: of the task, by the first piece. Raises ConfigError, RegistryUnreachable, what `read` raises.
        """
        size = self.config.pipelines[self.name].arrow_batch_records
        self.schemas.unsettle()
        while True:
            pieces = map(self._unsealed, read(self.plan))
            first = next(pieces, None)
            if first is not None and first.rows is None:
                self.settled(first.records)
            task = Task(plan(first), leave_out)
            try:
                report = task.run(chain([] if first is None else [first], pieces), partial(_take, task, size))
            except ValueError as error:
                raise self._no_time(error) from error
            if not report.lacks_schemas:
                if self.targets is not None:
                    self.targets.keep(report)
                return report
            self.schemas.learn_from(report)
            if self.targets is not None:
                self.targets.learn_from(report)

    @property
    def needs_headers(self) -> bool:
        """Whether the headers of records are needed: for columns, or for a schema id in them, which may be there."""
        wires = [self.wire, *([] if self.schemas.keys is None else [self.key_wire])]
        columns = self.config.pipelines[self.name].record_columns
        if self.targets is not None and self.targets.needs_headers:
            return True
        return columns.has_headers or any(wire is None or wire.header is not None for wire in wires)

    def settled(self, records: pa.RecordBatch) -> Wire:
        """Return the wire format; from the first records if neither file nor table has it. Raises UnclearWire.

        And find that of the keys, where they are Avro, at the first records that have some.
        """
        if self.wire is None:
            self.wire = judge(pa.Table.from_batches([records]), self.schemas.knows).wire
            if self.wire != CONFLUENT:
                self.schemas.read_by(self.wire)
        keys = self.schemas.keys
        if keys is not None and self.key_wire is None and records.column("key").null_count < records.num_rows:
            self.key_wire = judge(pa.Table.from_batches([records]), keys.knows, "key").wire
            if self.key_wire != CONFLUENT:
                keys.read_by(self.key_wire)
        return self.wire

    def assume_wires(self) -> None:
        """Take Confluent's format where none is known: dead letters show what a format is not."""
        self.wire, self.key_wire = self.wire or CONFLUENT, self.key_wire or CONFLUENT

    def _unsealed(self, piece: Piece) -> Piece:
        """Return records as Kafka had them, also those that a table keeps encrypted."""
        privacy = self.plan.privacy
        return piece if privacy is None else replace(piece, records=privacy.sealing.unsealed(piece.records))

    def _sample(self, records: pa.RecordBatch, now: datetime) -> tuple[RecordSteps, Sample]:
        records = self._unsealed(Piece(records)).records
        self.settled(records)
        while True:
            sample = Sample()
            plan = self.task_plan(now, "sample", {})
            steps = RecordSteps(
                plan, sample.refuse, self._decoders, self._key_decoders, leave_out=sample.leave_out
            )  # fmt: skip
            is_routed = self.config.pipelines[self.name].route is not None  # it has no columns of its own
            groups = steps.decode_values(records) if is_routed else steps.decode_rows(records)
            sample.groups = [group for group in groups if group.records.num_rows]
            if not steps.report.lacks_schemas:
                return steps, sample
            self.schemas.learn_from(steps.report)

    def _no_time(self, error: ValueError) -> ConfigError:
        return ConfigError(f"pipelines.{self.name}.event_time: {error}")


def opened(
    name: str, config: Config, schemas: SchemaSource, *, topics: Sequence[str] | None = None, with_table: bool = True,
    checked: bool = True, tables: Tables | None = None, before_route: bool = False, forgives: bool = False,
    admission: Admission | None = None, recorded: RecordPolicies | None = None,
) -> LocalPipeline:  # fmt: skip
    """Open a pipeline: its table's columns, if there is a table, and the registered schemas on top.

    `topics`: that it reads; by default those that are named, and those of its pattern that its table knows.
    `tables`: of a command that commits rows; those of a route are opened, and made where records need them.
    `before_route`: records are only decoded, as a route has them before it splits them.
    `forgives`: event specs leave no record out, and what fails on one gives null.
    `admission`: of schemas to one table of a route; by default, all fill the table.
    `recorded`: what the log of the pipeline has as protected, where the table is not the pipeline's own.
    Unless `checked` is off, schema ids must mean what they meant when the table's rows were read: else SchemaChanged.
    Raises ConfigError for a table that is not the pipeline's, CommitFailed for one that cannot be read,
    RegistryUnreachable.
    """
    pipeline = config.pipelines[name] if before_route or tables is not None else config.one_table(name)
    is_routed = pipeline.route is not None
    buckets = () if is_routed else bucketers.build(pipeline.bucket).columns
    table, columns, seen = main_table(name, config), pa.schema([]), dict[str, list[str]]()
    unit, wire, key = str(pipeline.event_time.unit), pipeline.wire.fixed, pipeline.columns.avro_key
    specs, privacy = 0, open_privacy(name, config)
    key_wire = None if key is None else key.wire.fixed
    version = 0
    recorded = recorded or config.protected_before(name)
    meanings = IdMeanings(name, config.registry, table.transactions if with_table and checked else dict[str, int])
    if with_table and table.exists():
        table.check_identity(buckets, "" if is_routed else layout(pipeline.bucket))
        snapshot, recent = table.snapshot(), table.recent_commits(10)
        columns, seen = snapshot.columns(), snapshot.incarnations()
        unit, wire = unit_of(unit, recent), wire or wire_of(recent)
        key_wire = key_wire or wire_of(recent, "key")
        specs, version = snapshot.specs, snapshot.privacy
        recorded = overlaid(recorded, snapshot.protected_paths)
        if tables is not None:
            _warn_of_zone_changes(name, pipeline, snapshot)
            check_version(name, pipeline, snapshot.specs_fingerprint)
            check_policies(name, pipeline, privacy, RecordedPrivacy.of(snapshot))
    known = Schemas(
        name, schemas, meanings, decode_only=is_routed, bucket_columns=buckets,
        record_columns=pipeline.record_columns, rules=pipeline.column_rules,
        wire=wire or CONFLUENT, key_wire=key_wire or CONFLUENT,
        specs=tuple(replace(one, forgives=forgives) for one in pipeline.record_specs),
        admission=admission, privacy=privacy,
    )  # fmt: skip
    known.read_topics(pipeline.topics.among(seen) if topics is None else topics)
    known.remember(recorded, version)
    known.follow(columns)
    if tables is not None:
        check_recorded_paths(name, pipeline, known.plan, None if known.keys is None else known.keys.plan)
    targets = None if tables is None or not is_routed else Targets(name, config, tables, known)
    if targets is not None:
        targets.begin(None)
    return LocalPipeline(name, config, known, unit, wire, table.hidden, table.folder, key_wire, targets, specs)


def _warn_of_zone_changes(name: str, pipeline: Pipeline, snapshot: PipelineSnapshot) -> None:
    """Log time zones of which this process has other data than those by which the table's rows got their buckets."""
    data = map(find_zone_data, zones_of(pipeline))
    for change in find_zone_changes(snapshot.zone_data, data, datetime.now(UTC)):
        logging.warning("zone_data_differs", pipeline=name, change=change.phrase)


def believing(rule: TimeRule, older: timedelta) -> TimeRule:
    """Believe what was believable when the broker had it: its records may be far older than `event_time.max_age`."""
    return rule if rule.age_max >= ANY_AGE else replace(rule, age_max=min(ANY_AGE, rule.age_max + older))


def age_of(oldest: datetime | None, now: datetime) -> timedelta:
    """Return how long ago the broker had its oldest record; if that is unknown, any age is accepted."""
    return ANY_AGE if oldest is None or oldest.year <= _NO_TIME_YEAR else max(now - oldest, timedelta(0))


def record_places(records: pa.Table) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of each record."""
    columns = [records.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return list(zip(*columns, strict=True))


def _take(task: Task, size: int, piece: Piece) -> None:
    for at in range(0, piece.records.num_rows, size):
        records = piece.records.slice(at, size)
        if piece.rows is None:
            task.take(records)
        else:
            task.take_rows(records, piece.rows.slice(at, size))
