"""Runs a pipeline's tasks in this process without Spark, for a sample, a replay, a backfill and a reprocess."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from headrace import bucketers
from headrace.bucketers.zone_data import find_zone_data
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.record_steps import Group, LeaveOut, RecordSteps
from headrace.writer.batch.schema_reader import Decoders
from headrace.writer.batch.task import Piece, Read, Task
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.commit import builder
from headrace.writer.commit.closed_buckets import closes_buckets
from headrace.writer.commit.event_specs import check_version
from headrace.writer.commit.privacy import (
    RecordedPrivacy,
    check_policies,
    check_recorded_paths,
    open_privacy,
    record_privacy,
)
from headrace.writer.commit.targets import Targets, add_targets
from headrace.writer.commit.task_plan import build_task_plan
from headrace.writer.config.pipeline import Pipeline, zones_of
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import StagedFile
from headrace.writer.framing.wire_format import CONFLUENT, Wire
from headrace.writer.privacy.path_policies import RecordPolicies, overlay_policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas.format_detection import judge, unit_of, wire_of
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.tracker import Admission, Schemas
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.log.zone_records import find_zone_changes
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable

# The age of an event whose broker timestamp is unknown.
ANY_AGE = timedelta(days=36_500)
# Folders of staged files, one for each table.
STAGING_FOLDERS = ("table", "dead_letters", "late")
# The year of the timestamp that stands for none.
_NO_TIME_YEAR = 1970
# Commits that are asked for the unit of event times and the wire format.
_COMMITS_READ = 10


# Returns the plan of a task by its first piece.
BuildPlan = Callable[[Piece | None], TaskPlan]
# Runs a task on what each of these groups reads, of which it takes so many records at once. Returns their reports.
RunTasks = Callable[[TaskPlan, int, Sequence[Iterable[Read]]], list[Report]]


@dataclass(frozen=True)
class DeadLetter:
    """A record that became no row, and why."""

    # Topic, partition and offset.
    position: tuple[str, int, int]
    schema_id: int | None
    value: bytes
    # One of dead_letter, quarantined and filtered.
    outcome: str
    reason: str


@dataclass
class Sample:
    """What became of records: rows, by the schemas that they were read by, or dead letters. Tombstones are neither."""

    groups: list[Group] = field(default_factory=list)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    # Records that specs leave out, and by which rule.
    filtered: list[DeadLetter] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many records became rows."""
        return sum(group.rows.num_rows for group in self.groups)

    def refuse(
        self, records: pa.Table, schema_id: int | None, reason: Callable[[int], str], outcome: str = "dead_letter"
    ) -> None:
        """Take records that become no row."""
        values = records.column("value").to_pylist()
        for index, position in enumerate(record_positions(records)):
            self.dead_letters.append(DeadLetter(position, schema_id, values[index], outcome, reason(index)))

    def leave_out(self, records: pa.Table, schema_id: int | None, spec: str, rule: str) -> None:
        """Take records that a spec leaves out."""
        reason = f"{rule} of spec {spec!r}"
        self.filtered += [
            DeadLetter(position, schema_id, b"", "filtered", reason) for position in record_positions(records)
        ]


@dataclass
class LocalPipeline:
    """One pipeline, ready for records. `schemas` grow by those that the records bring."""

    name: str
    config: Config
    schemas: Schemas
    # Of the event time: as configured, or as the table's commits have it.
    unit: str
    # As configured, or as the table's commits have it; None until records show it.
    wire: Wire | None
    # Files of its table wait for their commit where readers do not look.
    hidden: bool
    # Of its table's files.
    folder: str
    # As `wire`, of keys that are Avro.
    key_wire: Wire | None = None
    # The tables of a route.
    targets: Targets | None = None
    # The version of the event specs, as the table's log has it.
    specs: int = 0
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

    def decode(self, records: pa.RecordBatch) -> Sample:
        """Take the steps up to the rows. Raises RegistryUnreachable, SchemaChanged, UnclearWire."""
        _, sample = self._decode(records, datetime.now(UTC))
        return sample

    def assign_buckets(self, records: pa.RecordBatch, now: datetime) -> Sample:
        """Take the steps up to the buckets. Raises ConfigError when the event-time field is no time; as `decoded`."""
        steps, sample = self._decode(records, now)
        try:
            sample.groups = [steps.assign(group) for group in sample.groups]
        except ValueError as error:
            raise self._event_time_error(error) from error
        return sample

    def stage(
        self,
        records: pa.RecordBatch,
        now: datetime,
        folder: Path,
        *,
        closed_until: datetime | None = None,
        leave_out: LeaveOut | None = None,
        copies: int = 1,
    ) -> Report:
        """Run a whole task on the records, into files below a folder. Raises ConfigError, RegistryUnreachable.

        `closed_until`: buckets that end by then are closed, if the table has any that close. `leave_out` may hear of
        a record again, when the task runs again. `copies`: how often the task gets the records.
        """
        incarnations = dict.fromkeys(pc.unique(records.column("topic")).to_pylist(), 1)
        settings = self.config.pipelines[self.name]
        table, dead_letters, late_table = (str(folder / name) for name in STAGING_FOLDERS)
        if not closes_buckets(settings, bucketers.build(settings.bucket)):
            closed_until = None

        def build_plan(_: Piece | None) -> TaskPlan:
            return replace(
                self.task_plan(now, "sample", incarnations),
                table=table,
                dead_letters=dead_letters,
                late_table=settings.late_table and late_table,
                closed_until=closed_until,
                entropy_bits=0,
                hidden=False,
                folder="",
                small_file_rows=0,
            )

        return self.run(lambda _: [Piece(records)] * copies, build_plan, leave_out)

    def task_plan(
        self, now: datetime, prefix: str, incarnations: Mapping[str, int], older: timedelta = timedelta(0)
    ) -> TaskPlan:
        """Return the plan of a task in this process.

        `older`: how long ago the broker had the records; what was believable then is believed.
        """
        plan = build_task_plan(
            self.config.pipelines[self.name],
            self.config.stores,
            self.plan,
            self.wire or CONFLUENT,
            self.unit,
            now=now,
            prefix=prefix,
            incarnations=incarnations,
            hidden=self.hidden,
            folder=self.folder,
            record_columns=self.schemas.record_columns,
        )
        if self.targets is not None:
            plan = add_targets(plan, self.targets, {})
        if not older:
            return plan
        targets = {
            name: replace(target, time_rule=allow_older_events(target.time_rule, older))
            for name, target in plan.targets.items()
        }
        return replace(plan, time_rule=allow_older_events(plan.time_rule, older), targets=targets)

    def grow(self, main: PipelineTable, table: PipelineTable) -> None:
        """Enter in the log what schemas said is to be protected, then give the table the columns of staged rows.

        `main`: the pipeline's own table. `table`: that gets the rows; those of a route get them in its place. Raises
        PrivacyChanged, CommitFailed.
        """
        record_privacy(main, self.schemas, None)
        if self.targets is not None:
            self.targets.grow(is_staged=True)
        else:
            table.grow(list(self.schemas.columns()))

    def side_files(self, report: Report) -> dict[str, list[StagedFile]]:
        """Files that a task staged for tables beside the pipeline's, by their locations."""
        files = builder.side_files(self.config.pipelines[self.name], report)
        if self.targets is not None:
            files |= self.targets.side_files(report)
        return files

    def run(self, read: Read, build_plan: BuildPlan, leave_out: LeaveOut | None = None) -> Report:
        """Run one task on what `read` gives, and again, read anew, when it met schemas that the plan lacked.

        `build_plan`: returns the task's plan, by the first piece. Raises ConfigError, RegistryUnreachable, what `read`
        raises.
        """

        def run_task(plan: TaskPlan, batch_records: int, groups: Sequence[Iterable[Read]]) -> list[Report]:
            return [Task(plan, leave_out).run_reads(reads, batch_records) for reads in groups]

        (report,) = self.run_tasks([[read]], build_plan, run_task)
        return report

    def run_tasks(self, groups: Sequence[Iterable[Read]], build_plan: BuildPlan, run: RunTasks) -> list[Report]:
        """Run a task on each group of reads, by one plan, and all again when one met schemas that it lacked.

        The same group several times is shared out. `build_plan`: returns the plan, by the first piece. Returns a report
        for each. Raises as `run` does, and what the parameter `run` raises.
        """
        batch_records = self.config.pipelines[self.name].arrow_batch_records
        self.schemas.reopen_decryptions()
        while True:
            first_piece, begun_groups = _begin(groups, self.plan)
            if first_piece is not None and first_piece.rows is None:
                self.settle_wire(self._unseal(first_piece.records))
            try:
                reports = run(build_plan(first_piece), batch_records, begun_groups)
            except ValueError as error:
                raise self._event_time_error(error) from error
            report = builder.merge_reports(reports)
            if not report.lacks_schemas:
                if self.targets is not None:
                    self.targets.keep(report)
                return reports
            self.schemas.learn_from(report)
            if self.targets is not None:
                self.targets.learn_from(report)

    @property
    def needs_headers(self) -> bool:
        """Whether the headers of records are needed: for columns, or for a schema id in them, which may be there."""
        if self.targets is not None and self.targets.needs_headers:
            return True
        if self.config.pipelines[self.name].record_columns.has_headers:
            return True
        wires = [self.wire]
        if self.schemas.keys is not None:
            wires.append(self.key_wire)
        return any(wire is None or wire.reads_headers for wire in wires)

    def settle_wire(self, records: pa.RecordBatch) -> Wire:
        """Return the wire format; from the first records if neither file nor table has it. Raises UnclearWire.

        And find that of the keys, where they are Avro, at the first records that have some.
        """
        if self.wire is None:
            framed = self.schemas.select_framed(pa.Table.from_batches([records]))
            self.wire = judge(framed, self.schemas.knows).wire
            if self.wire != CONFLUENT:
                self.schemas.use_wire(self.wire)
        keys = self.schemas.keys
        if keys is not None and self.key_wire is None and records.column("key").null_count < records.num_rows:
            self.key_wire = judge(pa.Table.from_batches([records]), keys.knows, "key").wire
            if self.key_wire != CONFLUENT:
                keys.use_wire(self.key_wire)
        return self.wire

    def assume_wires(self) -> None:
        """Take Confluent's format where none is known: dead letters show what a format is not."""
        self.wire = self.wire or CONFLUENT
        self.key_wire = self.key_wire or CONFLUENT

    def _unseal(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return records as Kafka had them, also those that a table keeps encrypted."""
        privacy = self.plan.privacy
        return records if privacy is None else privacy.sealing.unseal(records)

    def _decode(self, records: pa.RecordBatch, now: datetime) -> tuple[RecordSteps, Sample]:
        """Take the steps up to the rows, once with all schemas that the records need."""
        records = self._unseal(records)
        self.settle_wire(records)
        # The pipeline of a route has no columns of its own.
        is_routed = self.config.pipelines[self.name].route is not None
        while True:
            sample = Sample()
            plan = self.task_plan(now, "sample", {})
            steps = RecordSteps(plan, sample.refuse, self._decoders, self._key_decoders, leave_out=sample.leave_out)
            groups = steps.decode_values(records) if is_routed else steps.decode_rows(records)
            sample.groups = [group for group in groups if group.records.num_rows]
            if not steps.report.lacks_schemas:
                return steps, sample
            self.schemas.learn_from(steps.report)

    def _event_time_error(self, error: ValueError) -> ConfigError:
        return ConfigError(f"pipelines.{self.name}.event_time: {error}")


def open_local_pipeline(
    name: str,
    config: Config,
    source: SchemaSource,
    *,
    topics: Sequence[str] | None = None,
    with_table: bool = True,
    checked: bool = True,
    tables: Tables | None = None,
    before_route: bool = False,
    forgives: bool = False,
    admission: Admission | None = None,
    recorded: RecordPolicies | None = None,
) -> LocalPipeline:
    """Open a pipeline: its table's columns, if there is a table, and the registered schemas on top.

    `topics`: that it reads; by default those that are named, and those of its pattern that its table knows.
    `tables`: of a command that commits rows; those of a route are opened, and made where records need them.
    `before_route`: records are only decoded, as a route has them. `forgives`: event specs leave no record out, and
    what fails on one gives null. `admission`: of schemas to a table of a route. `recorded`: what the pipeline's log
    protects, for another's table. `checked`: schema ids must mean what they meant when rows were read. Raises
    SchemaChanged, RegistryUnreachable, ConfigError for another pipeline's table, CommitFailed for one without answer.
    """
    pipeline = config.pipelines[name] if before_route or tables is not None else config.one_table(name)
    table = main_table(name, config)
    privacy = open_privacy(name, config)
    transactions = table.transactions if with_table and checked else dict[str, int]
    meanings = IdMeanings(name, config.registry_of(name), transactions)
    state = _TableState.configured(pipeline, recorded or config.protected_before(name))
    if with_table:
        state = _read_state(name, pipeline, table, state, privacy, checks_start=tables is not None)
    schemas = Schemas(
        name,
        source,
        meanings,
        decode_only=pipeline.route is not None,
        bucket_columns=_bucket_columns(pipeline),
        record_columns=pipeline.record_columns,
        rules=pipeline.column_rules,
        wire=state.wire or CONFLUENT,
        key_wire=state.key_wire or CONFLUENT,
        specs=tuple(replace(spec, forgives=forgives) for spec in pipeline.record_specs),
        admission=admission,
        privacy=privacy,
        value_rules=pipeline.value_rules,
    )
    state.fill(schemas, pipeline.topics.among(state.incarnations) if topics is None else topics)
    targets = None if tables is None else _open_targets(name, config, tables, schemas)
    return LocalPipeline(
        name,
        config,
        schemas,
        unit=state.unit,
        wire=state.wire,
        hidden=table.hidden,
        folder=table.folder,
        key_wire=state.key_wire,
        targets=targets,
        specs=state.specs,
    )


@dataclass(frozen=True)
class _TableState:
    """What a pipeline takes from the log of its table; where there is no table, what is configured."""

    unit: str
    wire: Wire | None
    key_wire: Wire | None
    # Paths whose values are protected.
    protected: RecordPolicies
    columns: pa.Schema = field(default_factory=lambda: pa.schema([]))
    # Topic → ids of its incarnations.
    incarnations: Mapping[str, Sequence[str]] = field(default_factory=dict)
    # Version of the event specs.
    specs: int = 0
    # Version of the privacy policies.
    privacy: int = 0

    @classmethod
    def configured(cls, pipeline: Pipeline, protected: RecordPolicies) -> "_TableState":
        """Return what is configured, of a table that does not exist yet."""
        avro_key = pipeline.columns.avro_key
        return cls(
            unit=str(pipeline.event_time.unit),
            wire=pipeline.wire_of_values,
            key_wire=avro_key.wire.fixed if avro_key else None,
            protected=protected,
        )

    def fill(self, schemas: Schemas, topics: Sequence[str]) -> None:
        """Read the schemas of topics, then add the table's protected paths and columns. Raises RegistryUnreachable."""
        schemas.read_topics(topics)
        schemas.remember(self.protected, self.privacy)
        schemas.follow(self.columns)


def _read_state(
    name: str,
    pipeline: Pipeline,
    table: PipelineTable,
    configured: _TableState,
    privacy: Privacy | None,
    *,
    checks_start: bool,
) -> _TableState:
    """Return the state of a table, if there is one; its newest commits say what the configuration leaves open.

    `checks_start`: the pipeline commits rows, and so must have the event specs and policies of the writer's start.
    """
    if not table.exists():
        return configured
    table.check_identity(_bucket_columns(pipeline), "" if pipeline.route is not None else layout(pipeline.bucket))
    snapshot = table.snapshot()
    commits = table.recent_commits(_COMMITS_READ)
    if checks_start:
        _warn_of_zone_changes(name, pipeline, snapshot)
        check_version(name, pipeline, snapshot.specs_fingerprint)
        check_policies(name, pipeline, privacy, RecordedPrivacy.of(snapshot))
    return _TableState(
        unit=unit_of(configured.unit, commits),
        wire=configured.wire or wire_of(commits),
        key_wire=configured.key_wire or wire_of(commits, "key"),
        protected=overlay_policies(configured.protected, snapshot.protected_paths),
        columns=snapshot.columns(),
        incarnations=snapshot.incarnations(),
        specs=snapshot.specs,
        privacy=snapshot.privacy,
    )


def _bucket_columns(pipeline: Pipeline) -> tuple[str, ...]:
    """Return the bucket columns of the pipeline's own table; none of a route's, which has no rows."""
    if pipeline.route is not None:
        return ()
    return tuple(bucketers.build(pipeline.bucket).columns)


def _open_targets(name: str, config: Config, tables: Tables, schemas: Schemas) -> Targets | None:
    """Open the tables of a route; None where there is none.

    Raises ConfigError where a path would be in the clear that the table's log has as protected.
    """
    pipeline = config.pipelines[name]
    check_recorded_paths(name, pipeline, schemas.plan, None if schemas.keys is None else schemas.keys.plan)
    if pipeline.route is None:
        return None
    targets = Targets(name, config, tables, schemas)
    targets.begin(None)
    return targets


def _warn_of_zone_changes(name: str, pipeline: Pipeline, snapshot: PipelineSnapshot) -> None:
    """Log time zones of which this process has other data than those by which the table's rows got their buckets."""
    zone_data = map(find_zone_data, zones_of(pipeline))
    for change in find_zone_changes(snapshot.zone_data, zone_data, datetime.now(UTC)):
        logging.warning("zone_data_differs", pipeline=name, change=change.phrase)


def allow_older_events(rule: TimeRule, older: timedelta) -> TimeRule:
    """Accept event times that were accepted when the broker had them, so long ago; at most `ANY_AGE` in all."""
    if rule.max_age >= ANY_AGE:
        return rule
    return replace(rule, max_age=min(ANY_AGE, rule.max_age + older))


def age_of(oldest: datetime | None, now: datetime) -> timedelta:
    """Return how long ago the broker had its oldest record; if that is unknown, any age is accepted."""
    if oldest is None or oldest.year <= _NO_TIME_YEAR:
        return ANY_AGE
    return max(now - oldest, timedelta(0))


def record_positions(records: pa.Table) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of each record."""
    columns = [records.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return list(zip(*columns, strict=True))


class _BegunRead:
    """A read whose first piece was taken. It goes on from there; in another process it begins anew."""

    def __init__(self, read: Read, first: Piece, rest: Iterator[Piece]) -> None:
        self._read = read
        self._first = first
        self._rest = rest

    def __call__(self, _: SchemaPlan) -> Iterator[Piece]:
        yield self._first
        yield from self._rest

    def __reduce__(self) -> tuple[Callable[[Read], Read], tuple[Read]]:
        return _same_read, (self._read,)


def _same_read(read: Read) -> Read:
    return read


def _begin(groups: Sequence[Iterable[Read]], schemas: SchemaPlan) -> tuple[Piece | None, list[Iterator[Read]]]:
    """Return the first piece of all groups of reads, and the groups with it. A group that is there twice is one."""
    begun = {id(reads): iter(reads) for reads in groups}
    first_piece: Piece | None = None
    for key, reads in begun.items():
        for read in reads:
            pieces = iter(read(schemas))
            first_piece = next(pieces, None)
            if first_piece is not None:
                begun[key] = chain([_BegunRead(read, first_piece, pieces)], reads)
                break
        if first_piece is not None:
            break
    return first_piece, [begun[id(reads)] for reads in groups]
