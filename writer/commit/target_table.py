"""One table of a route: how it is opened, what lies at its place and is not the route's, which schemas fit it."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

import bucketers
from writer.avro.schema_plan import PROVENANCE, RejectedSchema, SchemaPlan, WriterSchema
from writer.avro.union_members import union_members, with_members
from writer.batch.bucketing import times_of
from writer.batch.record_columns import RecordColumns
from writer.commit.privacy import check_uses
from writer.config.pipeline import Pipeline
from writer.config.table_sections import layout
from writer.core.errors import ConfigError
from writer.privacy.protected_schema import Privacy
from writer.schemas.format_detection import unit_of
from writer.table import held_files
from writer.table.log.foreign_writes import CommitFailed, reading
from writer.table.log.snapshot import TargetRecord
from writer.table.pipeline_tables import Tables
from writer.table.table import PipelineTable

_LOOKED_AT = 50  # entries of a table's log, for the unit of its event times


@dataclass
class Target:
    """One table of a route."""

    name: str
    number: int  # in the log of the pipeline
    settings: Pipeline
    table: PipelineTable
    late: PipelineTable | None
    plan: SchemaPlan
    unit: str  # of the event time
    grown: pa.Schema | None = None  # columns that the tables are known to have
    kept: pa.Schema | None = None  # columns that are kept at the log
    texts: dict[int, str] = field(default_factory=dict)  # of the schemas that the plan knows, by id
    asked_s: dict[int, float] = field(default_factory=dict)  # when they were admitted or rejected, by id

    @property
    def bucketer(self) -> bucketers.Bucketer:
        """What maps its event times to buckets."""
        return bucketers.build(self.settings.bucket)

    @property
    def rejected(self) -> dict[int, RejectedSchema]:
        """The schemas that do not fit it, by id."""
        return {schema_id: one for schema_id, one in self.plan.schemas.items() if isinstance(one, RejectedSchema)}

    def admit(
        self, schema_id: int, known: WriterSchema, privacy: Privacy | None, now_s: float
    ) -> WriterSchema | RejectedSchema:
        """Let a schema fill its columns, or reject it. `now_s`: of a monotonic clock."""
        self.texts[schema_id], self.asked_s[schema_id] = known.rows_text, now_s
        grown = self.plan.admit(schema_id, known.text, known.protection)
        self.plan = _fitting(self.settings, self.unit, self.plan, grown, schema_id, known.text, privacy)
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
    was = {"has format": record.format, "is bucketed by": record.layout, "is called": record.table}
    now = {"has format": settings.table.format, "is bucketed by": layout(settings.bucket), "is called": name}
    for what, fix in {"has format": "the format", "is bucketed by": "'bucket'", "is called": "the name"}.items():
        if was[what] not in ("", now[what]):
            raise ConfigError(
                f"the table of target {record.name!r} at {record.location} {what} {was[what]}, the configuration says "
                f"{now[what]}; keep {fix} as it was, or choose a new location"
            )


def open_target(
    record: TargetRecord, settings: Pipeline, tables: Tables, *, may_wait: bool = False
) -> tuple[Target, str]:
    """Open a table, which is made if the log does not know one. Returns it, and why it refuses; empty if it does not.

    Of one that refuses, the columns are those that the log keeps. Raises ConfigError when it is another's,
    CommitFailed where nothing is kept; `may_wait`: unless it is still to be made.
    """
    main, buckets, why = tables.main, bucketers.build(settings.bucket).columns, ""
    table = tables.side(record.location)
    late = None if settings.late_table is None else tables.side(settings.late_table, record)
    own, unit = settings.record_columns, str(settings.event_time.unit)
    columns = pa.schema([*own.schema, *PROVENANCE, *(pa.field(column, pa.string()) for column in buckets)])
    try:
        check_ours(table, record, main.location)
        for one in filter(None, (table, late)):
            with may_pass(record.name):
                one.create(columns, buckets, layout(settings.bucket))
        known, unit = table.snapshot().columns(), _unit(settings, table)
    except (CommitFailed, OSError) as error:
        with reading(main.location):
            kept = held_files.saved_columns(main.store, record.number)
        if kept is None and may_wait and not record.id:
            kept = columns
        if kept is None:
            raise
        known, why = kept, str(error)
    rules = settings.column_rules
    reserved = frozenset(column.lower() for column in (*PROVENANCE.names, *buckets, *own.names)) | rules.reserved
    there = [field for field in known if field.name.lower() not in reserved]
    plan = SchemaPlan(
        pa.schema(there), reserved, widen=rules.widen, dotted_paths=rules.dotted_paths, specs=settings.record_specs
    )
    plan = plan.with_union_members(union_members(known))
    return Target(record.name, record.number, settings, table, late, plan, unit), why


@contextmanager
def may_pass(target: str) -> Iterator[None]:
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
    there = table.exists()
    snapshot = table.snapshot() if there else None
    if record.id and (snapshot is None or snapshot.state.metadata["id"] != record.id):
        what = "removed and made again" if there else "removed"
        raise CommitFailed(
            f"the table of target {record.name!r} at {record.location} was {what}: what was committed for it is not "
            "there. Restore it, or give the target another location"
        )
    if not record.id and snapshot is not None and (snapshot.applied >= 0 or snapshot.epoch or snapshot.parts()):
        raise ConfigError(
            f"the table at {record.location} holds rows that the log at {log} does not know of: they would be there "
            f"twice, or others be taken for them. Give target {record.name!r} a location of its own (docs/ROUTING.md)"
        )


def admitted(settings: Pipeline, unit: str, plan: SchemaPlan, schema_id: int, text: str) -> SchemaPlan:
    """Return the plan of a target with one more schema; rejected there, too, if event time or bucket is no column."""
    return _fitting(settings, unit, plan, plan.extend(schema_id, text), schema_id, text, plan.privacy)


def _fitting(
    settings: Pipeline, unit: str, plan: SchemaPlan, grown: SchemaPlan, schema_id: int, text: str,
    privacy: Privacy | None,
) -> SchemaPlan:  # fmt: skip
    """Return the plan that grew by a schema, or that before with the schema rejected, where it does not fit a table."""
    found, what = grown.schemas[schema_id], ""
    try:
        if isinstance(found, WriterSchema):
            check_uses(privacy, text, settings)
            what, rule = "event_time: ", settings.event_time.rule(unit)
            times, _ = times_of(grown.input_of(found).empty_table(), rule, pa.array([], pa.string()))
            what = "bucket: "
            bucketers.build(settings.bucket).assign(grown.columns.empty_table(), times)
    except ValueError as error:
        return plan.reject(schema_id, f"schema id {schema_id}: {what}{error}")
    return grown


def _unit(settings: Pipeline, table: PipelineTable) -> str:
    """Return the unit of the event times: that of earlier rows, where it is to be detected."""
    configured = settings.event_time.unit
    return unit_of(configured, [one.facts for one in table.history(_LOOKED_AT)] if configured == "auto" else ())
