"""Finds what a schema would do to a table, with the writer's own schema plan."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from headrace.bucketers.arrow import column as column_of
from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.batch.bucketing import KAFKA_TIME
from headrace.writer.columns.column_cast import ColumnPath
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, describe_schema
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.formats.value_rules import TextColumn
from headrace.writer.framing.wire_format import Ids, is_guid
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.output.report import RECORD_VALUES
from headrace.writer.preflight.planned_schema import NOT_REGISTERED, find_planned_schema
from headrace.writer.schemas.registry import HasOtherIds, SchemaSource, TwoRegistries, source, with_ids
from headrace.writer.schemas.subjects import full_name
from headrace.writer.specs.spec import Spec, spec_of


@dataclass(frozen=True)
class SchemaEffect:
    """One thing that a schema does, or that is done to its records, at a column or a place inside one."""

    effect: Literal["adds", "widens", "casts", "renames", "lacks"]
    # Its dotted name.
    column: str
    # A type, or the name of a field.
    was: str | None = None
    now: str | None = None
    # What records without the field get.
    value: Any = field(default=None, metadata=RECORD_VALUES)


def plan_schema(
    config: Config, name: str, *, schema_id: int | None, file: Path | None, message: str | None = None
) -> "Verdict":
    """Find what a schema of the registry, or of a file, would do to a pipeline's table. Raises HeadraceError.

    `message`: of a Protobuf schema with several.
    """
    if (schema_id is None) == (file is None):
        raise ConfigError("name one schema: --id N for one of the registry, or --file schema.avsc")
    settings = config.pipelines[name]
    schemas = source(config.registry_of(name))
    id_source = _source_of_id(schemas, settings, schema_id)
    schema = find_planned_schema(name, settings, id_source, schema_id=schema_id, file=file, message=message)
    number = schema.schema_id
    label = schema.label
    before = open_local_pipeline(name, config, SourceWithout(schemas, number), checked=False).plan
    try:
        json_texts = schema.text_columns(settings.value_rules)
        text = schema.record_text(settings.value_rules)
    except UnsupportedSchema as error:
        rejected = RejectedSchema(f"{describe_schema(number)}: {error}")
        return Verdict(label, before, rejected, [], settings.event_time.field, problems=[str(error)])
    after = before.extend(number, text)
    planned = after.schemas[number]
    spec = SpecEffect.of(spec_of(before.specs, full_name(text)), before, after, planned)
    time_field = settings.event_time.field
    if isinstance(planned, RejectedSchema):
        problems = before.find_problems(text)
        if not _is_of_record(settings, time_field) and _lacks_time(before, text, time_field):
            problems.append(_lacks_time_text(time_field))
        return Verdict(label, before, planned, [], time_field, spec, problems=problems)
    effects = list(_effects(before, after, planned))
    has_time = _is_of_record(settings, time_field) or _has(after.input_of(planned), time_field)
    return Verdict(label, before, planned, effects, time_field, spec, has_time=has_time, json_texts=json_texts)


def _source_of_id(schemas: SchemaSource, settings: Pipeline, schema_id: int | None) -> SchemaSource:
    """Return the registry that has a schema by its id: of two AWS Glue's, for a GUID of a pipeline that reads these."""
    wire = settings.wire_of_values
    reads_glue = wire is None or any(single_wire.ids == "glue" for single_wire in wire.all)
    if isinstance(schemas, TwoRegistries) and reads_glue and schema_id is not None and is_guid(schema_id):
        return schemas.glue
    return schemas


def _is_of_record(settings: Pipeline, field: str) -> bool:
    """Return whether a column is of the record, whatever its value is: Kafka's timestamp, the key, a header."""
    return field == KAFKA_TIME or field.partition(".")[0] in settings.record_columns.names


@dataclass(frozen=True)
class SpecEffect:
    """What the spec of its record makes of a schema."""

    name: str
    # Columns that the table gets or that become wider, with their types.
    adds: list[str]
    # Columns of the record that the table does not have under their names.
    leaves_out: list[str]

    @classmethod
    def of(
        cls, spec: Spec | None, before: SchemaPlan, after: SchemaPlan, schema: WriterSchema | RejectedSchema
    ) -> "SpecEffect | None":
        """Compare the columns of the table before and after; None where no spec is of the record."""
        if spec is None:
            return None
        if isinstance(schema, RejectedSchema):
            return cls(spec.name, [], [])
        changes = _type_changes((), pa.struct(list(before.columns)), pa.struct(list(after.columns)), {})
        produced = after.shaped[schema.shaped].step.columns.names
        return cls(
            spec.name,
            [f"{change.column} ({change.now})" for change in changes],
            [name for name in after.shaped[schema.shaped].input.columns.names if name not in produced],
        )


@dataclass(frozen=True)
class Verdict:
    """The effects of a schema."""

    # How the schema was named in the command.
    label: str
    before: SchemaPlan
    planned: WriterSchema | RejectedSchema
    effects: list[SchemaEffect]
    # The field with the event time.
    event_time: str
    # None: the record has no spec.
    spec: SpecEffect | None = None
    # Whether the columns that event times are read from have the field.
    has_time: bool = True
    # Columns that are JSON text.
    json_texts: Sequence[TextColumn] = ()
    # Of a schema that is rejected, all that is wrong with it.
    problems: list[str] = field(default_factory=list)

    @property
    def reasons(self) -> list[str]:
        """All reasons why its records would not become rows, the first one first."""
        if self.reason is None:
            return []
        return list(dict.fromkeys([self.reason, *self.problems]))

    @property
    def reason(self) -> str | None:
        """Why its records would not become rows; None when they would."""
        if isinstance(self.planned, RejectedSchema):
            return self.planned.reason.removeprefix(f"schema id {NOT_REGISTERED}: ")
        lacks = _lacks_time_text(self.event_time)
        if not self.has_time:
            return lacks
        for effect in self.effects:
            holds_time = f"{self.event_time}.".startswith(f"{effect.column}.")
            if effect.effect == "lacks" and holds_time and effect.value is None:
                return lacks
        return None

    @property
    def outcome(self) -> str:
        """What its records become."""
        if self.reason is None:
            return "row"
        if isinstance(self.planned, RejectedSchema):
            return "dead_letter"
        return "quarantined"

    @property
    def decoder(self) -> str | None:
        """What reads its records; None when nothing does."""
        if isinstance(self.planned, RejectedSchema):
            return None
        return "native" if self.planned.native else "single"


@dataclass(frozen=True)
class SourceWithout:
    """A source of schemas that does not list one of them: it is to be looked at as the next one."""

    schemas: SchemaSource
    schema_id: int

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text."""
        return self.schemas.schema(schema_id)

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """List the others."""
        return {number: text for number, text in self.schemas.topic_schemas(topic).items() if number != self.schema_id}

    def with_ids(self, ids: Ids) -> SchemaSource:
        """Return the others by ids of a kind."""
        if isinstance(self.schemas, HasOtherIds):
            return SourceWithout(with_ids(self.schemas, ids), self.schema_id)
        return self


def _lacks_time_text(time_field: str) -> str:
    return f"it lacks {time_field!r}, the event time, which has no default"


def _lacks_time(before: SchemaPlan, text: str, time_field: str) -> bool:
    """Return whether a rejected schema has no field of the event time, under no name, and the column no default."""
    try:
        record = avro.parse(text)
    # Of a text that is no schema this is not known.
    except avro.UnsupportedSchema:
        return False
    aliases = {alias for record_field in record.fields for alias in record_field.get("aliases", ())}
    root = time_field.partition(".")[0]
    if root in aliases or (root,) in before.reader.defaults:
        return False
    return not _has(pa.schema(list(avro.table_fields(record).items())), time_field)


def _has(columns: pa.Schema, name: str) -> bool:
    try:
        column_of(columns.empty_table(), name)
    except ValueError:
        return False
    return True


def _effects(before: SchemaPlan, after: SchemaPlan, schema: WriterSchema) -> Iterator[SchemaEffect]:
    """Yield the effects on the table; where a spec shapes the record, those on the columns that the spec sees."""
    if not schema.shaped:
        return effects_of(before, after, schema)
    shaped = before.shaped.get(schema.shaped)
    columns = SchemaPlan(pa.schema([])) if shaped is None else shaped.input
    return effects_of(columns, after.shaped[schema.shaped].input, schema)


def effects_of(before: SchemaPlan, after: SchemaPlan, schema: WriterSchema) -> Iterator[SchemaEffect]:
    """Yield how the columns grew, then what is done to the schema's records to fill them."""
    defaults = {path: default[0].as_py() for path, default in after.reader.defaults.items()}
    yield from _type_changes((), pa.struct(list(before.columns)), pa.struct(list(after.columns)), defaults)
    fields = avro.table_fields(avro.parse(schema.rows_text))
    sources = {column: name for name, column in schema.columns.items()}
    for column in after.columns:
        path = (column.name,)
        name = sources.get(column.name)
        if name is None:
            yield SchemaEffect("lacks", column.name, now=_type(column.type), value=defaults.get(path))
        else:
            yield from _rename_effects(path, name)
            yield from _FillEffects(after, schema, defaults).compare(path, fields[name], column.type)


def _type_changes(
    path: ColumnPath, before: pa.DataType, after: pa.DataType, defaults: Mapping[ColumnPath, Any]
) -> Iterator[SchemaEffect]:
    if before == after:
        return
    if pa.types.is_struct(after):
        for member in after:
            inside = (*path, member.name)
            if member.name in before.names:
                yield from _type_changes(inside, before.field(member.name).type, member.type, defaults)
            else:
                yield SchemaEffect("adds", ".".join(inside), now=_type(member.type), value=defaults.get(inside))
    elif pa.types.is_list(after):
        yield from _type_changes((*path, "element"), before.value_type, after.value_type, defaults)
    elif pa.types.is_map(after):
        yield from _type_changes((*path, "value"), before.item_type, after.item_type, defaults)
    else:
        yield SchemaEffect("widens", ".".join(path), _type(before), _type(after))


def _rename_effects(path: ColumnPath, name: str) -> Iterator[SchemaEffect]:
    if name != path[-1]:
        yield SchemaEffect("renames", ".".join(path), was=name)


@dataclass(frozen=True)
class _FillEffects:
    """What is done to values of a schema, at each place of the table."""

    plan: SchemaPlan
    schema: WriterSchema
    defaults: Mapping[ColumnPath, Any]

    def compare(self, path: ColumnPath, written: pa.DataType, column_type: pa.DataType) -> Iterator[SchemaEffect]:
        """Yield the effects where the type that the schema writes is not the type of the column at a path."""
        wrapped = self.schema.cast_rules.union_members.get(path)
        if wrapped is not None:
            yield from self.compare((*path, wrapped), written, column_type.field(wrapped).type)
        elif pa.types.is_struct(column_type):
            yield from self._members(path, written, column_type)
        elif pa.types.is_list(column_type):
            yield from self.compare((*path, "element"), written.value_type, column_type.value_type)
        elif pa.types.is_map(column_type):
            yield from self.compare((*path, "value"), written.item_type, column_type.item_type)
        elif written != column_type:
            yield SchemaEffect("casts", ".".join(path), _type(written), _type(column_type))

    def _members(self, path: ColumnPath, written: pa.StructType, column_type: pa.StructType) -> Iterator[SchemaEffect]:
        sources = self.schema.cast_rules.sources.get(path, {name: name for name in written.names})
        is_union = any(branch[:-1] == path for branch in self.plan.reader.branches)
        for part in column_type:
            inside = (*path, part.name)
            if part.name in sources:
                if not is_union:
                    yield from _rename_effects(inside, sources[part.name])
                yield from self.compare(inside, written.field(sources[part.name]).type, part.type)
            elif not is_union:
                yield SchemaEffect("lacks", ".".join(inside), now=_type(part.type), value=self.defaults.get(inside))


def _type(data_type: pa.DataType) -> str:
    """Name a type as docs/TYPES.md does."""
    return str(data_type).replace("[us, tz=UTC]", "").replace("[day]", "").replace("element: ", "")
