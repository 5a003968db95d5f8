"""Shows what a schema would do to a table, with the writer's own schema plan."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from bucketers.arrow import column as column_of
from writer.avro import schema as avro
from writer.avro.column_cast import Place
from writer.avro.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.maintenance.local_pipeline import opened
from writer.output import tables
from writer.output.tables import plain
from writer.schemas.registry import SchemaSource, source
from writer.schemas.subjects import full_name
from writer.specs.spec import Spec, spec_of

_NOT_REGISTERED = 0  # no registry gives this id
_FIXES = {
    "dead_letter": "Give the field a type that fits, or another name; docs/SCHEMAS.md has the rules.",
    "spec": "Keep what the spec names, or change the spec before the schema is registered; docs/SPECS.md.",
    "quarantined": "Keep the field, or set event_time.field to one that every schema has.",
}
_EVERY, _SPECCED = (
    "Every record of it becomes a row.",
    "Every record of it becomes a row, unless the spec says otherwise.",
)
_HEAD = 9  # columns for what happens
_NAME_MIN = 16  # columns for a column's name


@dataclass(frozen=True)
class SchemaEffect:
    """One thing that a schema does, or that is done to its records, at a column or a place inside one."""

    effect: Literal["adds", "widens", "casts", "renames", "lacks"]
    column: str  # dotted
    was: str | None = None  # type, or name of the field
    now: str | None = None
    value: Any = None  # what records without the field have there


def plan(config: Config, name: str | None, *, schema_id: int | None, file: Path | None, as_json: bool) -> int:
    """Show what a schema would do to a pipeline's table. Returns the exit code. Raises HeadraceError."""
    name = config.one(name)
    if (schema_id is None) == (file is None):
        raise ConfigError("name one schema: --id N for one of the registry, or --file schema.avsc")
    known = source(config.registry)
    if file is None:
        assert schema_id is not None
        number, text, shown = schema_id, known.schema(schema_id), f"schema id {schema_id}"
    else:
        number, text, shown = _NOT_REGISTERED, _read(file), str(file)
    before = opened(name, config, SourceWithout(known, number), checked=False).plan
    after = before.extend(number, text)
    found = after.schemas[number]
    effects = [] if isinstance(found, RejectedSchema) else list(_effects(before, after, found))
    spec = SpecEffect.of(spec_of(before.specs, full_name(text)), before, after, found)
    time_field = config.pipelines[name].event_time.field
    times = isinstance(found, RejectedSchema) or _has(after.input_of(found), time_field)
    verdict = Verdict(name, shown, before, found, effects, time_field, spec, has_time=times)
    if as_json:
        tables.emit_whole(_document(verdict))
    else:
        _show(verdict, config.pipelines[name].table.location)
    return 0 if verdict.reason is None else 1


@dataclass(frozen=True)
class SpecEffect:
    """What the spec of its record makes of a schema."""

    name: str
    adds: list[str]  # columns of the table that it adds or widens, with their types
    leaves_out: list[str]  # columns of the record that do not come to the table under their names

    @classmethod
    def of(
        cls, spec: Spec | None, before: SchemaPlan, after: SchemaPlan, found: WriterSchema | RejectedSchema
    ) -> "SpecEffect | None":
        """Compare the columns of the table before and after; None where no spec is of the record."""
        if spec is None:
            return None
        if isinstance(found, RejectedSchema):
            return cls(spec.name, [], [])
        grown = _grown((), pa.struct(list(before.columns)), pa.struct(list(after.columns)), {})
        made = after.shaped[found.shaped].step.columns.names
        return cls(
            spec.name, [f"{one.column} ({one.now})" for one in grown],
            [name for name in after.shaped[found.shaped].input.columns.names if name not in made],
        )  # fmt: skip


@dataclass(frozen=True)
class Verdict:
    """The effects of a schema."""

    pipeline: str
    shown: str  # which schema it is
    before: SchemaPlan
    found: WriterSchema | RejectedSchema
    effects: list[SchemaEffect]
    event_time: str  # its field
    spec: SpecEffect | None = None  # None: its record has none
    has_time: bool = True  # the columns of which its event times are read have the field

    @property
    def reason(self) -> str | None:
        """Why its records would not become rows; None when they would."""
        if isinstance(self.found, RejectedSchema):
            return self.found.reason.removeprefix(f"schema id {_NOT_REGISTERED}: ")
        lacks = f"it lacks {self.event_time!r}, the event time, which has no default"
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
        return "dead_letter" if isinstance(self.found, RejectedSchema) else "quarantined"

    @property
    def decoder(self) -> str | None:
        """What reads its records; None when nothing does."""
        if isinstance(self.found, RejectedSchema):
            return None
        return "native" if self.found.native else "single"


@dataclass(frozen=True)
class SourceWithout:
    """A source of schemas that does not list one of them: it is to be looked at as the next one."""

    schemas: SchemaSource
    schema_id: int

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text."""
        return self.schemas.schema(schema_id)

    def known(self, topic: str) -> Mapping[int, str]:
        """List the others."""
        return {number: text for number, text in self.schemas.known(topic).items() if number != self.schema_id}


def _has(columns: pa.Schema, field: str) -> bool:
    try:
        column_of(columns.empty_table(), field)
    except ValueError:
        return False
    return True


def _effects(before: SchemaPlan, after: SchemaPlan, schema: WriterSchema) -> Iterator[SchemaEffect]:
    """Yield the effects on the table; where a spec shapes the record, those on the columns that the spec sees."""
    if not schema.shaped:
        return effects_of(before, after, schema)
    known = before.shaped.get(schema.shaped)
    given = SchemaPlan(pa.schema([])) if known is None else known.input
    return effects_of(given, after.shaped[schema.shaped].input, schema)


def effects_of(before: SchemaPlan, after: SchemaPlan, schema: WriterSchema) -> Iterator[SchemaEffect]:
    """Yield how the columns grew, then what is done to the schema's records to fill them."""
    defaults = {place: found[0].as_py() for place, found in after.reader.defaults.items()}
    yield from _grown((), pa.struct(list(before.columns)), pa.struct(list(after.columns)), defaults)
    fields = avro.table_fields(avro.parse(schema.rows_text))
    sources = {column: name for name, column in schema.columns.items()}
    for column in after.columns:
        place = (column.name,)
        name = sources.get(column.name)
        if name is None:
            yield SchemaEffect("lacks", column.name, now=_type(column.type), value=defaults.get(place))
        else:
            yield from _renamed(place, name)
            yield from _Filling(after, schema, defaults).at(place, fields[name], column.type)


def _grown(place: Place, had: pa.DataType, now: pa.DataType, defaults: Mapping[Place, Any]) -> Iterator[SchemaEffect]:
    if had == now:
        return
    if pa.types.is_struct(now):
        for part in now:
            inside = (*place, part.name)
            if part.name in had.names:
                yield from _grown(inside, had.field(part.name).type, part.type, defaults)
            else:
                yield SchemaEffect("adds", ".".join(inside), now=_type(part.type), value=defaults.get(inside))
    elif pa.types.is_list(now):
        yield from _grown((*place, "element"), had.value_type, now.value_type, defaults)
    elif pa.types.is_map(now):
        yield from _grown((*place, "value"), had.item_type, now.item_type, defaults)
    else:
        yield SchemaEffect("widens", ".".join(place), _type(had), _type(now))


def _renamed(place: Place, name: str) -> Iterator[SchemaEffect]:
    if name != place[-1]:
        yield SchemaEffect("renames", ".".join(place), was=name)


@dataclass(frozen=True)
class _Filling:
    """What is done to values of a schema, at each place of the table."""

    plan: SchemaPlan
    schema: WriterSchema
    defaults: Mapping[Place, Any]

    def at(self, place: Place, writes: pa.DataType, kind: pa.DataType) -> Iterator[SchemaEffect]:
        """Compare what the schema writes with what the place holds."""
        wrapped = self.schema.seams.wrapped.get(place)
        if wrapped is not None:
            yield from self.at((*place, wrapped), writes, kind.field(wrapped).type)
        elif pa.types.is_struct(kind):
            yield from self._members(place, writes, kind)
        elif pa.types.is_list(kind):
            yield from self.at((*place, "element"), writes.value_type, kind.value_type)
        elif pa.types.is_map(kind):
            yield from self.at((*place, "value"), writes.item_type, kind.item_type)
        elif writes != kind:
            yield SchemaEffect("casts", ".".join(place), _type(writes), _type(kind))

    def _members(self, place: Place, writes: pa.StructType, kind: pa.StructType) -> Iterator[SchemaEffect]:
        sources = self.schema.seams.members.get(place, {name: name for name in writes.names})
        is_union = any(known[:-1] == place for known in self.plan.reader.branches)
        for part in kind:
            inside = (*place, part.name)
            if part.name in sources:
                yield from () if is_union else _renamed(inside, sources[part.name])
                yield from self.at(inside, writes.field(sources[part.name]).type, part.type)
            elif not is_union:
                yield SchemaEffect("lacks", ".".join(inside), now=_type(part.type), value=self.defaults.get(inside))


def _type(kind: pa.DataType) -> str:
    """Name a type as docs/TYPES.md does."""
    return str(kind).replace("[us, tz=UTC]", "").replace("[day]", "").replace("element: ", "")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"cannot read {file}: {why}. Give the path of a schema (.avsc).") from error


def _document(verdict: Verdict) -> dict[str, Any]:
    return {
        "pipeline": verdict.pipeline, "schema": verdict.shown, "columns": len(verdict.before.columns),
        "registered": len(verdict.before.schemas), "compatible": verdict.reason is None, "outcome": verdict.outcome,
        "reason": verdict.reason, "decoder": verdict.decoder,
        "spec": verdict.spec and asdict(verdict.spec),
        "effects": [{key: plain(value) for key, value in asdict(effect).items()} for effect in verdict.effects],
    }  # fmt: skip


def _show(verdict: Verdict, location: str) -> None:
    out, before = tables.console(), verdict.before
    columns, others = plural(len(before.columns), "column"), plural(len(before.schemas), "registered schema")
    tables.sentence(
        out, f"{verdict.pipeline}: {verdict.shown} on top of {columns} and {others}, for {location}", "bold"
    )
    width = max([_NAME_MIN, *(len(effect.column) for effect in verdict.effects)])
    for effect in verdict.effects:
        tables.hanging(out, f"  {effect.effect:<{_HEAD}}{effect.column:<{width}}  ", _words(effect))
    if not verdict.effects and verdict.decoder is not None:
        tables.sentence(out, "  It fills the columns as they are.")
    if verdict.spec is not None and verdict.decoder is not None:
        tables.hanging(out, f"  {'spec':<{_HEAD}}{verdict.spec.name:<{width}}  ", _shaping(verdict.spec))
    if verdict.decoder is not None:
        slow = (
            "" if verdict.decoder == "native" else ", one record at a time, at a fraction of the speed (docs/TYPES.md)"
        )
        tables.hanging(out, f"  {'decoder':<{_HEAD}}", f"{verdict.decoder}{slow}", "yellow" if slow else "")
    if verdict.reason is None:
        tables.sentence(out, _EVERY if verdict.spec is None else _SPECCED, "green")
        return
    fate = "become dead letters" if verdict.outcome == "dead_letter" else "are quarantined"
    message = f"{verdict.reason}. Its records {fate}; all others go on."
    tables.hanging(out, f"  {'parked':<{_HEAD}}", message, "red")
    by_spec = verdict.spec is not None and f"spec {verdict.spec.name!r}:" in verdict.reason
    tables.hanging(out, f"  {'':<{_HEAD}}", _FIXES["spec" if by_spec else verdict.outcome])


def _shaping(spec: SpecEffect) -> str:
    adds = f"the table gets {', '.join(spec.adds)}" if spec.adds else "the table's columns stay as they are"
    return adds + (f"; left out or renamed: {', '.join(spec.leaves_out)}" if spec.leaves_out else "")


def _words(effect: SchemaEffect) -> str:
    filled = "null" if effect.value is None else f"the default {json.dumps(plain(effect.value), ensure_ascii=False)}"
    match effect.effect:
        case "adds":
            return f"{effect.now}; records of schemas without it get {filled}"
        case "widens":
            return f"{effect.was} → {effect.now}; files that are there stay as they are"
        case "casts":
            return f"{effect.was} → {effect.now}, in this schema's records"
        case "renames":
            return f"filled by field {effect.was}"
        case "lacks":
            return f"{effect.now}; its records get {filled}"
