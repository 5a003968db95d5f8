"""The tables that a route fills: made when a name needs one, each with columns and an event-time unit of its own."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.route import Route
from headrace.writer.batch.task_report import NAMES_MAX, Report
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.commit.closed_buckets import buckets_closed_between, closes_buckets
from headrace.writer.commit.privacy import protected_columns
from headrace.writer.commit.target_claims import TargetClaims
from headrace.writer.commit.target_table import Target, check_ours, check_settings, open_target, transient_refusals
from headrace.writer.commit.task_plan import build_task_plan
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, LimitReached
from headrace.writer.core.files import BucketKey, StagedFile
from headrace.writer.core.units import show_duration, show_size
from headrace.writer.framing.wire_format import id_facts
from headrace.writer.privacy.record_sealing import RecordScreen
from headrace.writer.schemas.subjects import full_name
from headrace.writer.schemas.tracker import ASK_AGAIN, Schemas
from headrace.writer.table import held_files
from headrace.writer.table.log.foreign_writes import CommitFailed, reading
from headrace.writer.table.log.snapshot import TargetRecord
from headrace.writer.table.pipeline_tables import Tables, TargetState
from headrace.writer.table.schema_evolution import ColumnTypeMismatch

# Seconds between two attempts to open a table that refused.
_RETRY_S = 30.0
# Names that are remembered as having no table, before no further table is made.
_REFUSED_MAX = 1_000


class Targets:
    """All tables of one pipeline's route. `begin` after each start of the pipeline.

    `refused`: names that get no table because they can be none, and why. `beyond`: names that get none because as many
    were made as may be; NAMES_MAX at most.
    """

    def __init__(self, name: str, config: Config, tables: Tables, schemas: Schemas) -> None:
        """`schemas`: the plan by which values are decoded."""
        settings = config.pipelines[name]
        assert settings.route is not None, "only a route has targets"
        self._pipeline = name
        self._settings = settings
        self.section = settings.route
        self._config = config
        self._tables = tables
        self._schemas = schemas
        self._targets = dict[str, Target]()
        self._epoch: int | None = None
        # When a table that refuses was last asked, by name, monotonic.
        self._asked_s = dict[str, float]()
        # The tables whose storage refused, by name, and its error; and those that are behind since.
        self._refusals = dict[str, str]()
        # The targets as the log has them, by number.
        self._records = dict[int, TargetRecord]()
        self._claims = TargetClaims(name, config)
        # Names that matched a pattern of many tables, and their targets; None: they get none.
        self._own_targets = dict[str, str | None]()
        self.refused = dict[str, str]()
        self.beyond = set[str]()

    @property
    def needs_headers(self) -> bool:
        """Whether a record's headers decide where it goes, or fill a column."""
        columns = (target.settings.record_columns for target in self._targets.values())
        return self.section.by_key[0] == "header" or any(each.has_headers for each in columns)

    def begin(self, epoch: int | None) -> None:
        """Open the tables that the route names, and those that were made before. Raises Fenced, CommitFailed.

        `epoch`: of the start; None for a command, which works beside the writer.
        """
        self._epoch = epoch
        self._claims.raw_locations = self._tables.main.snapshot().raw_locations
        fixed_records = [self._record(name, name) for name in self.section.fixed]
        self._records = self._tables.main.add_targets(self._epoch, fixed_records)
        for record in self._records.values():
            rule = self._settings.rule_of(record.name, record.location)
            # Without a rule the configuration is another by now: its rows are applied, new ones go elsewhere.
            if rule is not None:
                self._open_again(rule, record)
        self._enter_ids()
        route = self.route()
        if route.by == "record":
            for schema_id, record_name in route.records.items():
                target = route.target(record_name)
                if isinstance(target, str):
                    self._admit(self._targets[target], schema_id)

    def _open_again(self, rule: str, record: TargetRecord) -> None:
        """Open a table that the log has. Raises ConfigError for one that the route names."""
        is_fixed = rule in self.section.fixed
        try:
            self._open(rule, self._enter_late(rule, record))
        except ConfigError as error:
            if is_fixed:
                raise
            self._refuse(record.name, str(error))
            return
        if not is_fixed:
            self._own_targets[record.name] = record.name

    def route(self) -> Route:
        """Return the route as tasks follow it."""
        by, key = self.section.by_key
        unrouted = self.section.unrouted
        return Route(
            by,
            key,
            self.section.rules,
            dict(self._own_targets),
            is_full=self._is_full,
            stops=unrouted == "stop",
            otherwise=None if unrouted in ("dead_letters", "stop") else unrouted,
            shut=self._shut_targets(),
            records=record_names(self._schemas.plan),
        )

    def plans(self, pipeline_plan: TaskPlan, closed: Mapping[int, datetime]) -> dict[str, TaskPlan]:
        """Return the plan of each table's rows in a batch; `closed`: how far buckets are closed, by target number."""
        refusals = self._current_refusals()
        for target in self._targets.values():
            self._forget_changed_schemas(target)
        return {
            name: self._plan(target, pipeline_plan, closed.get(target.number), is_refusing=name in refusals)
            for name, target in self._targets.items()
        }

    def _plan(
        self, target: Target, pipeline_plan: TaskPlan, closed_until: datetime | None, *, is_refusing: bool
    ) -> TaskPlan:
        if not closes_buckets(target.settings, target.bucketer):
            closed_until = None
        held_location = ""
        if is_refusing:
            held_location = self._tables.main.store.path(held_files.held_folder(target.number))
        return build_task_plan(
            target.settings,
            self._config.stores,
            target.plan,
            pipeline_plan.wire,
            target.unit,
            now=pipeline_plan.now,
            prefix=pipeline_plan.prefix,
            incarnations=pipeline_plan.incarnations,
            frontier=pipeline_plan.frontier,
            record_columns=self._record_columns(target),
            topic=pipeline_plan.topic,
            hidden=target.table.hidden,
            folder=target.table.folder,
            closed_until=closed_until,
            number=target.number,
            may_refuse=not is_refusing,
            seen=pipeline_plan.seen,
            held_location=held_location,
        )

    def learn_from(self, report: Report) -> None:
        """Make the tables that a batch needs, and admit the schemas that it met, to the tables that met them.

        Raises LimitReached where a record has no table and `unrouted` is stop; Fenced, CommitFailed.
        """
        if report.unknown_names:
            # Another process may have made tables.
            snapshot = self._tables.main.snapshot()
            self._records = snapshot.targets()
            self._claims.raw_locations = snapshot.raw_locations
        beyond = [name for name in sorted(report.unknown_names) if not self._make(name)]
        self._note_beyond(beyond)
        self._enter_ids()
        for name, target_report in report.targets.items():
            if target_report.refused:
                self._refusals[name] = target_report.refused
            for schema_id in sorted(target_report.unknown_schemas):
                self._admit(self._targets[name], schema_id)

    def grow(self, *, is_staged: bool = False) -> None:
        """Give the tables the columns that rows have by now. Raises CommitFailed.

        They are kept at the log, too; one that refuses gets them from there before its next rows. `is_staged`: files
        have them already, so a table that refuses only now is an error.
        """
        log = self._tables.main
        for name, target in self._targets.items():
            columns = target.columns(self._record_columns(target))
            with reading(log.location):
                if not _are_same_columns(columns, target.saved_columns):
                    held_files.save_columns(log.store, target.number, columns)
                    target.saved_columns = columns
            try:
                if not _are_same_columns(columns, target.table_columns) and name not in self._current_refusals():
                    for table in filter(None, (target.table, target.late)):
                        table.grow(list(columns))
                    target.table_columns = columns
            except CommitFailed as error:
                if is_staged or isinstance(error.__cause__, ColumnTypeMismatch):
                    raise
                self._refusals[name] = str(error)

    def keep(self, report: Report) -> None:
        """Store the units that `auto` detected, so that a later batch uses the same, and names that got no table."""
        self._note_beyond(sorted(report.beyond_names))
        for name, target_report in report.targets.items():
            target = self._targets[name]
            if target.unit == "auto" and target_report.time_unit not in ("", "auto"):
                target.unit = target_report.time_unit

    def side_files(self, report: Report) -> dict[str, list[StagedFile]]:
        """Files that tasks staged for the targets, by the locations of these."""
        files = dict[str, list[StagedFile]]()
        for name, target_report in report.targets.items():
            target = self._targets[name]
            if target_report.files:
                files[target.table.location] = target_report.files
            if target_report.late_files:
                files[target.settings.late_place] = target_report.late_files
        return files

    def closed_between(
        self, report: Report, before: Mapping[int, datetime], after: Mapping[int, datetime]
    ) -> set[tuple[str, BucketKey]]:
        """Return the buckets of a report, by table, that are closed by `after`, and were not by `before`."""
        closed = set[tuple[str, BucketKey]]()
        for name, target_report in report.targets.items():
            target = self._targets[name]
            buckets = buckets_closed_between(
                target_report.files, target.bucketer, before.get(target.number), after.get(target.number)
            )
            closed.update((name, bucket) for bucket in buckets)
        return closed

    @property
    def count(self) -> int:
        """How many tables the route has."""
        return len(self._targets)

    def states(self) -> dict[str, TargetState]:
        """Return how far the tables are, by name."""
        for name in list(self._refusals):
            self._try_again(name)
        current = {target.number for target in self._targets.values()}
        return self._tables.target_states(self._records.values(), current, self._refusals)

    def rejected_schemas(self) -> dict[int, RejectedSchema]:
        """Return the schemas that one of the tables rejects, by id."""
        rejected = dict[int, RejectedSchema]()
        for target in self._targets.values():
            rejected.update(target.rejected)
        return rejected

    def forget_rejected_schemas(self, now_s: float) -> None:
        """Leave schemas that tables rejected a while ago to the next batch that meets them."""
        asked_until_s = now_s - ASK_AGAIN.total_seconds()
        for target in self._targets.values():
            target.forget([schema_id for schema_id in target.rejected if target.asked_s[schema_id] <= asked_until_s])

    @property
    def _is_full(self) -> bool:
        tables_made = sum(target is not None for target in self._own_targets.values())
        if tables_made >= self.section.max_targets:
            return True
        return len(self._own_targets) >= self.section.max_targets + _REFUSED_MAX

    def _record_columns(self, target: Target) -> RecordColumns:
        if target.settings.columns == self._settings.columns:
            return self._schemas.record_columns
        return protected_columns(target.settings.record_columns, self._schemas.plan.privacy)

    def _record(self, rule: str, name: str) -> TargetRecord:
        """Return the record of a table: that of the log, if it has one."""
        settings = self._settings.of_target(rule, name)
        table = settings.table
        late = settings.late_table or ""
        new_record = TargetRecord(
            name,
            table.location,
            table.format,
            late,
            layout=layout(settings.bucket),
            table=str(self._config.in_catalog(table) or ""),
        )
        for record in self._records.values():
            if record[:2] == new_record[:2]:
                return record._replace(late=late)
        return new_record

    def _make(self, name: str) -> bool:
        """Make a table for a name, unless it may have none. False: there are enough, which the route knows then."""
        shown_name = name
        rule: str | None = None
        if name:
            shown_name = self._show_name(name)
            rule = self.section.rule_of(name)
        if rule is None:
            refusal = self.route().reason(shown_name)
            self._check_unrouted(shown_name, refusal)
            self._refuse(name, refusal)
            return True
        record = self._record(rule, name)
        refusal = self._find_obstacle(rule, record)
        if refusal and shown_name != name:
            # The reason may name a location, which is called as the header's value is.
            refusal = "its place, or its name in the catalog, is another table's"
        if self._is_full:
            self._check_unrouted(shown_name, refusal or self._max_targets_reason)
            return False
        if refusal:
            self._check_unrouted(shown_name, refusal)
            self._refuse(name, refusal)
            return True
        self._records = self._tables.main.add_targets(self._epoch, [record])
        number = next(number for number, other in self._records.items() if other.location == record.location)
        self._open(rule, number)
        self._own_targets[name] = name
        logging.event("target_made", pipeline=self._pipeline, name=name, location=record.location)
        return True

    def _check_unrouted(self, shown_name: str, reason: str) -> None:
        """Raise LimitReached where a name has no table, and `unrouted` is stop."""
        if self.section.unrouted != "stop":
            return
        raise LimitReached(
            f"pipeline {self._pipeline!r} has no table for {shown_name or 'a record'}: {reason}, and route.unrouted is "
            "stop. Nothing of the batch was committed. Add a target, or let such records be dead letters; "
            "`headrace preview` shows them."
        )

    @property
    def _max_targets_reason(self) -> str:
        return f"route.max_targets is {self.section.max_targets}"

    def _enter_late(self, rule: str, record: TargetRecord) -> int:
        """Enter the table of late rows of a target that has one by now. Returns the target's number.

        Raises ConfigError where it would lie at another table.
        """
        late = self._settings.of_target(rule, record.name).late_table or ""
        if rule not in self.section.fixed and late not in ("", record.late):
            others = [other for other in self._records.values() if other.number != record.number]
            if reason := self._claims.find_late_collision(late, others):
                raise ConfigError(f"target {record.name!r} can have no table of late rows: {reason}")
            self._records = self._tables.main.add_targets(self._epoch, [record._replace(late=late)])
        return record.number

    def _find_obstacle(self, rule: str, record: TargetRecord) -> str:
        """Return why a table cannot be made at a location; empty if it can. Raises CommitFailed."""
        if reason := self._claims.find_collision(rule, record, self._records.values()):
            return reason
        settings = self._settings.of_target(rule, record.name)
        try:
            with transient_refusals(record.name):
                table = self._tables.side(record.location, record)
                table.check(bucketers.build(settings.bucket).columns, layout(settings.bucket))
                check_ours(table, record, self._tables.main.location)
        except ConfigError as error:
            return str(error)
        except CommitFailed as error:
            # Its storage is away: the table is made when it answers.
            logging.warning("target_away", pipeline=self._pipeline, target=record.name, reason=str(error))
        return ""

    def _note_beyond(self, names: Sequence[str]) -> None:
        shown_names = [self._show_name(name) for name in names]
        if shown_names and not self.beyond:
            logging.warning(
                "targets_beyond_max",
                pipeline=self._pipeline,
                names=len(shown_names),
                first=shown_names[0],
                reason=self._max_targets_reason,
            )
        self.beyond.update(shown_names[: NAMES_MAX - len(self.beyond)])

    def _refuse(self, name: str, reason: str) -> None:
        shown_name = self._show_name(name)
        self._own_targets[name] = None
        self.refused[shown_name] = reason
        logging.warning("target_refused", pipeline=self._pipeline, name=shown_name, reason=reason)

    def _show_name(self, name: str) -> str:
        """Return a name that gets no table as it may be shown: where there is privacy, not that of a header."""
        hides = self.section.by_key[0] == "header" and self._schemas.plan.privacy is not None
        return RecordScreen(hides).text(name)

    def _open(self, rule: str, number: int) -> None:
        """Open a table, which is made if the log does not know one. Raises ConfigError when it is another's."""
        record = self._records[number]
        settings = self._settings.of_target(rule, record.name)
        check_settings(record, settings, str(self._config.in_catalog(settings.table) or ""))
        may_wait = rule not in self.section.fixed
        target, refusal = open_target(record, settings, self._tables, may_wait=may_wait)
        self._targets[record.name] = target
        if refusal:
            self._refusals[record.name] = refusal

    def _try_again(self, name: str) -> None:
        """Open a table again that refused, now and then. It is back when it has all that was committed for it."""
        target = self._targets[name]
        now_s = time.monotonic()
        if now_s < self._asked_s.get(name, 0.0) + _RETRY_S:
            return
        self._asked_s[name] = now_s
        with suppress(CommitFailed, ConfigError, OSError):
            _, refusal = open_target(self._records[target.number], target.settings, self._tables)
            if not refusal:
                self._enter_ids([name])
                if not self._tables.pending_entries(target.table.location).entries:
                    del self._refusals[name]

    def _current_refusals(self) -> dict[str, str]:
        """Return the tables whose files wait at the log for now, by name, and the errors by which they refused."""
        behind = self._tables.behind
        refusals = dict(self._refusals)
        for name, target in self._targets.items():
            for location in (target.table.location, target.settings.late_place):
                if location in behind:
                    refusals[name] = behind[location]
        return refusals

    def _shut_targets(self) -> frozenset[str]:
        """Return the tables for which too much waits, by name. Raises LimitReached where that is a stop."""
        limits = self.section.held
        shut = set[str]()
        for name, refusal in self._current_refusals().items():
            target = self._targets[name]
            pending = self._tables.pending_entries(target.table.location, target.settings.late_place)
            age = datetime.now(UTC) - pending.since if pending.since else timedelta(0)
            if pending.held_bytes < limits.max_bytes and age < limits.max_age:
                continue
            if limits.on_limit == "stop":
                shown_age = show_duration(timedelta(seconds=round(age.total_seconds())))
                raise LimitReached(
                    f"the table of target {name!r} of pipeline {self._pipeline!r} refuses, and "
                    f"{show_size(pending.held_bytes)} wait for it, the first for {shown_age} ({refusal}). Nothing is "
                    "lost: repair its storage, then start again; or raise route.held.max_bytes and max_age."
                )
            shut.add(name)
        return frozenset(shut)

    def _enter_ids(self, names: Iterable[str] | None = None) -> None:
        """Enter the ids of tables that were made, so that one that is made again is not taken for them.

        `names`: of which; None: of all that do not refuse.
        """
        if names is None:
            names = [name for name in self._targets if name not in self._refusals]
        new_records = list[TargetRecord]()
        for name in names:
            target = self._targets[name]
            record = self._records[target.number]
            if not record.id:
                record = record._replace(id=target.table.snapshot().table_id)
            if target.late is not None and not record.late_id:
                record = record._replace(late_id=target.late.snapshot().table_id)
            if record != self._records[target.number]:
                new_records.append(record)
        if new_records:
            self._records = self._tables.main.add_targets(self._epoch, new_records)

    def _forget_changed_schemas(self, target: Target) -> None:
        """Forget schemas whose ids mean others by now, because the records turned out to be framed in another way."""
        schemas = self._schemas.plan.schemas
        changed = [
            schema_id
            for schema_id, text in target.texts.items()
            if getattr(schemas.get(schema_id), "rows_text", text) != text
        ]
        target.forget(changed)

    def _admit(self, target: Target, schema_id: int) -> None:
        """Let a schema fill the columns of a table, or reject it there."""
        plan = self._schemas.plan
        writer_schema = plan.schemas[schema_id]
        assert isinstance(writer_schema, WriterSchema), "what is not decoded is not routed"
        admitted = target.admit(schema_id, writer_schema, plan.privacy, time.monotonic())
        fields = {"pipeline": self._pipeline, "target": target.name, **id_facts(schema_id)}
        if isinstance(admitted, RejectedSchema):
            logging.warning("schema_rejected", reason=admitted.reason, **fields)
        else:
            logging.event("schema_admitted", decoder="native" if writer_schema.native else "single", **fields)


def record_names(plan: SchemaPlan) -> dict[int, str]:
    """Return the full name of each schema's record, by schema id."""
    names = dict[int, str]()
    for schema_id, schema in plan.schemas.items():
        if not isinstance(schema, WriterSchema):
            continue
        name = full_name(schema.text)
        if name is not None:
            names[schema_id] = name
    return names


def add_targets(plan: TaskPlan, targets: Targets, closed: Mapping[int, datetime]) -> TaskPlan:
    """Return the plan of tasks that fill the tables of a route; `closed`: how far buckets are closed, by number."""
    return replace(plan, route=targets.route(), targets=targets.plans(plan, closed))


def _are_same_columns(columns: pa.Schema, others: pa.Schema | None) -> bool:
    return others is not None and columns.equals(others, check_metadata=True)
