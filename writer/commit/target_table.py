"""One table of a route: how it is opened, what lies at its place and is not the route's, which schemas fit it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch.bucketing import times_of_columns
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import PROVENANCE, RejectedSchema, SchemaPlan, WriterSchema, describe_schema
from headrace.writer.columns.union_members import union_members, with_members
from headrace.writer.commit.privacy import check_uses
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.pages import page_address
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas.format_detection import unit_of
from headrace.writer.table import held_files
from headrace.writer.table.log.foreign_writes import CommitFailed, reading
from headrace.writer.table.log.snapshot import PipelineSnapshot, TargetRecord
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable

# Entries of a table's log that are read for the unit of its event times.
_ENTRIES_READ = 50


@dataclass
class Target:
    """One table of a route.

    `number`: in the log of the pipeline. `unit`: of the event time. `table_columns`: that the tables are known to have.
    `saved_columns`: that are kept at the log. `texts`: of the schemas that the plan knows, by id. `asked_s`: when these
    were admitted or rejected, by id, monotonic.
    """

    name: str
    number: int
    settings: Pipeline
    table: PipelineTable
    late: PipelineTable | None
    plan: SchemaPlan
    unit: str
    table_columns: pa.Schema | None = None
    saved_columns: pa.Schema | None = None
    texts: dict[int, str] = field(default_factory=dict)
    asked_s: dict[int, float] = field(default_factory=dict)

    @property
    def bucketer(self) -> bucketers.Bucketer:
        """What maps its event times to buckets."""
        return bucketers.build(self.settings.bucket)

    @property
    def rejected(self) -> dict[int, RejectedSchema]:
        """The schemas that do not fit it, by id."""
        return {
            schema_id: schema for schema_id, schema in self.plan.schemas.items() if isinstance(schema, RejectedSchema)
        }

    def admit(
        self, schema_id: int, writer_schema: WriterSchema, privacy: Privacy | None, now_s: float
    ) -> WriterSchema | RejectedSchema:
        """Let a schema fill its columns, or reject it. `now_s`: of a monotonic clock."""
        self.texts[schema_id] = writer_schema.rows_text
        self.asked_s[schema_id] = now_s
        new_plan = self.plan.admit(schema_id, writer_schema.text, writer_schema.protection)
        self.plan = _reject_misfit(
            self.settings, self.unit, self.plan, new_plan, schema_id, writer_schema.text, privacy
        )
        return self.plan.schemas[schema_id]

    def forget(self, schema_ids: Collection[int]) -> None:
        """Leave schemas to the next batch that meets them."""
        self.plan = self.plan.without(schema_ids)
        for schema_id in schema_ids:
            del self.texts[schema_id], self.asked_s[schema_id]

    def columns(self, record_columns: RecordColumns) -> pa.Schema:
        """Columns that the table needs, but those of buckets."""
        columns = pa.schema([*self.plan.columns, *record_columns.schema, *PROVENANCE])
        return with_members(columns, self.plan.union_members)


def check_settings(record: TargetRecord, settings: Pipeline, name: str) -> None:
    """Raise ConfigError where the settings are not those that a table was made by; `name`: in the catalog, if any."""
    facts = (
        ("has format", record.format, settings.table.format, "the format"),
        ("is bucketed by", record.layout, layout(settings.bucket), "'bucket'"),
        ("is called", record.table, name, "the name"),
    )
    for verb, recorded, configured, subject in facts:
        if recorded not in ("", configured):
            raise ConfigError(
                f"the table of target {record.name!r} at {record.location} {verb} {recorded}, the configuration says "
                f"{configured}; keep {subject} as it was, or choose a new location"
            )


def open_target(
    record: TargetRecord, settings: Pipeline, tables: Tables, *, may_wait: bool = False
) -> tuple[Target, str]:
    """Open a table, which is made if the log does not know one. Returns it, and why it refuses; empty if it does not.

    Of one that refuses, the columns are those that the log keeps. Raises ConfigError when it is another's,
    CommitFailed where nothing is kept; `may_wait`: unless it is still to be made.
    """
    bucket_columns = bucketers.build(settings.bucket).columns
    table = tables.side(record.location)
    late = None if settings.late_table is None else tables.side(settings.late_table, record)
    first_columns = pa.schema(
        [
            *settings.record_columns.schema,
            *PROVENANCE,
            *(pa.field(column, pa.string()) for column in bucket_columns),
        ]
    )
    unit = str(settings.event_time.unit)
    refusal = ""
    try:
        check_ours(table, record, tables.main.location)
        for new_table in filter(None, (table, late)):
            with transient_refusals(record.name):
                snapshot = new_table.check(bucket_columns, layout(settings.bucket))
                if new_table is late:
                    _check_late_table(late, snapshot, record)
                new_table.create_or_repair(first_columns, bucket_columns, layout(settings.bucket), snapshot)
        columns = table.snapshot().columns()
        unit = _unit(settings, table)
    except (CommitFailed, OSError) as error:
        with reading(tables.main.location):
            saved_columns = held_files.saved_columns(tables.main.store, record.number)
        if saved_columns is None and may_wait and not record.id:
            saved_columns = first_columns
        if saved_columns is None:
            raise
        columns = saved_columns
        refusal = str(error)
    plan = _target_plan(settings, columns, bucket_columns)
    return Target(record.name, record.number, settings, table, late, plan, unit), refusal


def _target_plan(settings: Pipeline, columns: pa.Schema, bucket_columns: Collection[str]) -> SchemaPlan:
    """Return the schema plan of a table with these columns, before it knows a schema."""
    rules = settings.column_rules
    own_names = (*PROVENANCE.names, *bucket_columns, *settings.record_columns.names)
    reserved = frozenset(column.lower() for column in own_names) | rules.reserved
    value_columns = [column for column in columns if column.name.lower() not in reserved]
    plan = SchemaPlan(
        pa.schema(value_columns),
        reserved,
        widen=rules.widen,
        dotted_paths=rules.dotted_paths,
        specs=settings.record_specs,
    )
    return plan.with_union_members(union_members(columns))


@contextmanager
def transient_refusals(target: str) -> Iterator[None]:
    """Raise CommitFailed for what a storage refuses, which may take it later; ConfigError stays one."""
    try:
        yield
    except ConfigError as error:
        if isinstance(error.__cause__, OSError):
            raise CommitFailed(f"target {target!r}: {error}") from error
        raise


def check_ours(table: PipelineTable, record: TargetRecord, log: str) -> None:
    """Raise ConfigError when what lies at a target's place is not the table that this log fills.

    CommitFailed when that is away, which may be a mount that is not there: it is waited for.
    """
    snapshot = table.snapshot() if table.exists() else None
    if record.id and (snapshot is None or snapshot.state.metadata["id"] != record.id):
        change = "removed" if snapshot is None else "removed and made again"
        raise CommitFailed(
            f"the table of target {record.name!r} at {record.location} was {change}: what was committed for it is not "
            "there. Restore it, or give the target another location"
        )
    if not record.id and snapshot is not None and (snapshot.applied >= 0 or snapshot.epoch or snapshot.parts()):
        raise ConfigError(
            f"the table at {record.location} holds rows that the log at {log} does not know of: they would be there "
            f"twice, or others be taken for them. Give target {record.name!r} a location of its own "
            f"({page_address('docs/ROUTING.md')})"
        )


def _check_late_table(late: PipelineTable, snapshot: PipelineSnapshot | None, record: TargetRecord) -> None:
    """Raise CommitFailed when a target's table of late rows that was made is away: it is waited for as the target is.

    `snapshot`: its newest version; None: it is not there.
    """
    is_known = bool(record.late_id) and late.location == record.late
    if is_known and (snapshot is None or snapshot.table_id != record.late_id):
        change = "removed" if snapshot is None else "removed and made again"
        raise CommitFailed(
            f"the table of late rows of target {record.name!r} at {late.location} was {change}: what was committed for "
            "it is not there. Restore it, or give the target another location"
        )


def admit_schema(settings: Pipeline, unit: str, plan: SchemaPlan, schema_id: int, text: str) -> SchemaPlan:
    """Return the plan of a target with one more schema; rejected there, too, if event time or bucket is no column."""
    return _reject_misfit(settings, unit, plan, plan.extend(schema_id, text), schema_id, text, plan.privacy)


def _reject_misfit(
    settings: Pipeline,
    unit: str,
    plan: SchemaPlan,
    new_plan: SchemaPlan,
    schema_id: int,
    text: str,
    privacy: Privacy | None,
) -> SchemaPlan:
    """Return the plan with a schema, or that before with the schema rejected, where it does not fit a table."""
    writer_schema = new_plan.schemas[schema_id]
    if not isinstance(writer_schema, WriterSchema):
        return new_plan
    key = ""
    try:
        check_uses(privacy, text, settings)
        key = "event_time: "
        rule = settings.event_time.rule(unit)
        times = times_of_columns(new_plan.input_of(writer_schema), rule, settings.record_columns.schema)
        key = "bucket: "
        bucketers.build(settings.bucket).assign(new_plan.columns.empty_table(), times)
    except ValueError as error:
        return plan.reject(schema_id, f"{describe_schema(schema_id)}: {key}{error}")
    return new_plan


def _unit(settings: Pipeline, table: PipelineTable) -> str:
    """Return the unit of the event times: that of earlier rows, where it is to be detected."""
    configured = settings.event_time.unit
    if configured != "auto":
        return unit_of(configured, ())
    return unit_of(configured, [entry.facts for entry in table.history(_ENTRIES_READ)])
