"""The schema plan: the table's columns, and how each writer schema fills them.

The driver owns it and hands it to the tasks of a batch, so two new schemas in one batch have one arbiter. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial

import pyarrow as pa

from headrace.bucketers.arrow import contiguous
from headrace.writer.avro import schema as avro
from headrace.writer.avro.partial_schema import PartialRecord, read_records
from headrace.writer.avro.schema_text import is_path_step, read_json, refuse_unforeseen
from headrace.writer.columns.column_cast import PLAIN_CAST, CastRules, ColumnPath, cast_values, default_values
from headrace.writer.columns.former_names import add_former_names
from headrace.writer.columns.resolution import Reader, ResolvedSchema, Widening, find_conflicts, resolve
from headrace.writer.columns.union_members import TABLE, Branches, UnionMembers
from headrace.writer.formats.formats import format_of
from headrace.writer.framing.wire_format import UNNAMED, show_id
from headrace.writer.privacy.column_protection import Protection
from headrace.writer.privacy.field_decryption import Decryption
from headrace.writer.privacy.path_policies import RecordPolicies
from headrace.writer.privacy.policy import PrivacyError
from headrace.writer.privacy.protected_schema import Privacy, record_names
from headrace.writer.protobuf.message_types import read_types
from headrace.writer.specs.spec import Spec, SpecError, spec_of
from headrace.writer.specs.step import Step, avro_schema, compile_step, find_mistakes

_REASON_CHARACTERS_MAX = 1_000
# What every row carries besides its own fields: the table proves itself, and the committed offsets can be rebuilt from
# the files.
PROVENANCE = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_incarnation", pa.int32()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_kafka_time", avro.TIMESTAMP),
    ]
)
# Of JSON, inside one another: delta-rs reads at most 127, and the table around the columns has some.
_BRACKETS_MAX = 121
# Of types inside one another: Arrow hands none of more to other libraries, such as delta-rs.
_LEVELS_MAX = 60


def describe_schema(schema_id: int) -> str:
    """Name a schema for a person: by its id, or by the setting that declares it."""
    return "columns.declared" if schema_id == UNNAMED else f"schema id {show_id(schema_id)}"


@dataclass(frozen=True)
class WriterSchema:
    """One registered schema: its text, the decoder it gets, and the column that each of its fields fills."""

    text: str
    native: bool
    # Field of the record → column of the table.
    columns: Mapping[str, str]
    cast_rules: CastRules = PLAIN_CAST
    # Full name of the record, where a spec shapes its rows; then `columns` are of the spec's input.
    shaped: str = ""
    # Of decoded rows; then `columns` are of those that it leaves.
    protection: Protection | None = None

    @property
    def rows_text(self) -> str:
        """Text of the schema of the rows, once they are protected."""
        return self.text if self.protection is None else self.protection.text


@dataclass(frozen=True)
class RejectedSchema:
    """A schema whose records become dead letters, and the reason, which stands in each of these."""

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > _REASON_CHARACTERS_MAX:
            object.__setattr__(self, "reason", f"{self.reason[:_REASON_CHARACTERS_MAX]}…")


@dataclass(frozen=True)
class ColumnRules:
    """How the columns of a table may grow, by its format and its configuration."""

    widen: Widening = "any"
    # Lower-case names that the format keeps for itself.
    reserved: frozenset[str] = frozenset()
    # The format finds fields by their names with dots between them.
    dotted_paths: bool = False


@dataclass(frozen=True)
class ShapedRecord:
    """One record type that a spec shapes: the columns that its schemas have together, and how the spec's fill a table.

    The spec sees the rows as a table of this type alone would hold them, so it reads older and newer schemas alike.
    """

    spec: Spec
    input: "SchemaPlan"
    # How the columns of the spec fill those of the table; None: `problem` says why they do not.
    output: WriterSchema | None = None
    # What no schema so far gives the spec.
    problem: str = ""

    @property
    def step(self) -> Step:
        """The spec, compiled for the columns of the record."""
        return compile_step(self.spec, self.input.columns)


@dataclass(frozen=True)
class SchemaPlan:
    """Columns of the table (without provenance and bucket columns), and what is known of each schema id."""

    columns: pa.Schema
    # Lower-case names that no field may take.
    reserved: frozenset[str] = frozenset()
    schemas: Mapping[int, WriterSchema | RejectedSchema] = field(default_factory=dict)
    reader: Reader = field(default_factory=Reader)
    # Which columns may get a wider type.
    widen: Widening = "any"
    # The table finds fields by their names with dots between them.
    dotted_paths: bool = False
    # Ids that meant other schemas for older records.
    since: Mapping[int, datetime] = field(default_factory=dict)
    specs: tuple[Spec, ...] = ()
    # By the full name of the record.
    shaped: Mapping[str, ShapedRecord] = field(default_factory=dict)
    privacy: Privacy | None = None
    # Of schemas, admitted or not, where there is privacy.
    known_texts: tuple[str, ...] = ()
    # Of registered schemas, by their age, the oldest first.
    ranks: Mapping[int, int] = field(default_factory=dict)
    # Of schemas whose values name one of several messages, Protobuf's: full names by the bytes that name them.
    message_types: Mapping[int, Mapping[bytes, str]] = field(default_factory=dict)
    # Of records that a spec shapes, by name.
    input_branches: Mapping[str, Branches] = field(default_factory=dict)

    @property
    def union_members(self) -> UnionMembers:
        """Which branches of unions fill which members, as the table is to keep it."""
        return {**self.input_branches, TABLE: self.reader.branches}

    def with_union_members(self, members: UnionMembers) -> "SchemaPlan":
        """Return the plan, of no schema yet, with the members of unions that the table has."""
        input_branches = {record: branches for record, branches in members.items() if record != TABLE}
        return replace(self, reader=Reader(branches=members.get(TABLE, {})), input_branches=input_branches)

    def reject(self, schema_id: int, reason: str) -> "SchemaPlan":
        """Park the records of this schema id."""
        return self.reject_all({schema_id: reason})

    def reject_all(self, reasons: Mapping[int, str]) -> "SchemaPlan":
        """Park the records of these schema ids."""
        rejected = {schema_id: RejectedSchema(reason) for schema_id, reason in reasons.items()}
        return replace(self, schemas={**self.schemas, **rejected})

    def without(self, ids: Collection[int]) -> "SchemaPlan":
        """Forget what is known of these ids; their columns stay."""
        if not ids:
            return self
        schemas = {schema_id: schema for schema_id, schema in self.schemas.items() if schema_id not in ids}
        shaped = {name: replace(record, input=record.input.without(ids)) for name, record in self.shaped.items()}
        return replace(self, schemas=schemas, shaped=shaped)

    def extend(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema: what is new in it grows the columns, what is known fills them by Avro's rules.

        A text that is no schema, or one that cannot fill the table's columns, or not be protected, is rejected: only
        its own records are parked. One that says that more is to be protected says so for all of its record's schemas.
        """
        return self.extend_with(schema_id, text, SchemaPlan.admit)

    def decryption(self, schema_id: int) -> Decryption | None:
        """Return how fields are decrypted that producers encrypted by a schema; None: there are none."""
        if self.privacy is None:
            return None
        decryption = self.privacy.decryptions.get(schema_id)
        if decryption is None or not (decryption.rules or decryption.problem):
            return None
        return decryption

    def reopen_decryptions(self) -> "SchemaPlan":
        """Return the plan for a new batch, for which keys that it lacks may be asked for again."""
        if self.privacy is None:
            return self
        decryptions = self.privacy.decryptions
        if not any(decryption.is_settled for decryption in decryptions.values()):
            return self
        return self.with_decryptions(
            {schema_id: replace(decryption, is_settled=False) for schema_id, decryption in decryptions.items()}
        )

    def with_decryptions(self, decryptions: Mapping[int, Decryption]) -> "SchemaPlan":
        """Return the plan with other decryptions, by schema id."""
        if self.privacy is None:
            return self
        return replace(self, privacy=replace(self.privacy, decryptions=decryptions))

    def learn_privacy(self, texts: Iterable[str]) -> "SchemaPlan":
        """Return the plan with what these schemas say of privacy, before any of them is admitted."""
        if self.privacy is None:
            return self
        new_texts = [text for text in dict.fromkeys(texts) if read_types(text) is None]
        known_texts = tuple(dict.fromkeys((*self.known_texts, *new_texts)))
        privacy = self.privacy.with_schemas(_read_any_records(new_texts, known_texts))
        # A schema from before may have an alias of what is protected now.
        if privacy.tagged != self.privacy.tagged and len(known_texts) > len(new_texts):
            privacy = privacy.with_schemas(_read_any_records(known_texts, known_texts))
        return replace(self, privacy=privacy, known_texts=known_texts)

    def extend_with(self, schema_id: int, text: str, admit: "Admit") -> "SchemaPlan":
        """Protect what a schema says, and then admit it, or reject it, whatever its text is.

        Raises OSError and MemoryError alone, which say nothing of a schema.

        Of a schema whose values name one of several messages, the messages are noted; each has an id of its own.
        """
        message_types = read_types(text)
        if message_types is not None:
            return replace(self, message_types={**self.message_types, schema_id: message_types})
        try:
            with refuse_unforeseen():
                return self._admit_or_reject(schema_id, text, admit)
        except avro.UnsupportedSchema as error:
            return self.reject(schema_id, f"{describe_schema(schema_id)}: {error}")

    def _admit_or_reject(self, schema_id: int, text: str, admit: "Admit") -> "SchemaPlan":
        if self.privacy is None:
            return admit(self, schema_id, text, None)
        extend = partial(SchemaPlan.extend_with, admit=admit)
        plan = self._readmit_schemas(self.learn_privacy([text]), extend)
        assert plan.privacy is not None
        decryption = self.decryption(schema_id)
        if decryption is not None and decryption.problem:
            return plan.reject(schema_id, f"{describe_schema(schema_id)}: {decryption.problem}")
        try:
            record = avro.parse(add_former_names(text, plan.known_texts))
            _check_path_names(record)
            protection = plan.privacy.protection(record, self.specs)
        except (PrivacyError, avro.UnsupportedSchema) as error:
            return plan.reject(schema_id, f"{describe_schema(schema_id)}: {error}")
        return admit(plan, schema_id, text, protection)

    def restore_policies(self, recorded: RecordPolicies, extend: "Extend") -> "SchemaPlan":
        """Return the plan with what the table's log has of protected paths, its schemas admitted anew."""
        if self.privacy is None:
            return self
        privacy = (
            self.privacy.without_schemas()
            .with_log_policies(recorded)
            .with_schemas(_read_any_records(self.known_texts, self.known_texts))
        )
        return self._readmit_schemas(replace(self, privacy=privacy), extend)

    def after_recording(self, recorded: RecordPolicies) -> "SchemaPlan":
        """Return the plan once the table's log has these protected paths."""
        if self.privacy is None:
            return self
        return replace(self, privacy=self.privacy.note_log_policies(recorded))

    def _readmit_schemas(self, plan: "SchemaPlan", extend: "Extend") -> "SchemaPlan":
        """Return a plan with the schemas admitted anew of records of which other paths are protected than here."""
        assert self.privacy is not None
        assert plan.privacy is not None
        before = self.privacy.tagged
        after = plan.privacy.tagged
        changed_names = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        # The cost of a schema is not to grow with the schemas before it.
        if not changed_names:
            return plan
        texts = {
            schema_id: text
            for schema_id, text in self.texts()
            if not changed_names.isdisjoint(record_names(avro.parse(text)))
        }
        roots = {str(avro.parse(text).root["name"]) for text in texts.values()}
        shaped = {name: record for name, record in plan.shaped.items() if name not in roots}
        plan = replace(plan.without(texts), shaped=shaped)
        for schema_id, text in texts.items():
            plan = extend(plan, schema_id, text)
        return plan

    @property
    def unmeasured(self) -> frozenset[str]:
        """Columns with protected values: their least and largest ones stand in no file's footer and no log."""
        protected_columns = set[str]()
        for schema in self.schemas.values():
            if not isinstance(schema, WriterSchema) or schema.protection is None:
                continue
            fields = {path[0] for path in schema.protection.actions}
            columns = {column for name, column in schema.columns.items() if name in fields}
            if schema.shaped:
                columns = self.shaped[schema.shaped].step.dependent_columns(columns)
            protected_columns |= columns
        return frozenset(protected_columns)

    def changed_ids(self, before: Mapping[int, WriterSchema | RejectedSchema]) -> list[int]:
        """Return the ids of whose records more is protected than before, or that are rejected now."""
        return [
            schema_id
            for schema_id, schema in self.schemas.items()
            if schema_id in before and not _has_same_protection(schema, before[schema_id])
        ]

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the schemas in their order: those by which values are decoded, and those that wait for a spec."""
        input_schemas: dict[int, WriterSchema | RejectedSchema] = {}
        for record in self.shaped.values():
            input_schemas |= record.input.schemas
        for schema_id, schema in self.schemas.items():
            decoded_by = schema if isinstance(schema, WriterSchema) else input_schemas.get(schema_id)
            if isinstance(decoded_by, WriterSchema):
                yield schema_id, decoded_by.text

    def admit(self, schema_id: int, text: str, protection: Protection | None) -> "SchemaPlan":
        """Let a schema, of which this is protected, grow the columns and fill them."""
        try:
            record = avro.parse(text if protection is None else protection.text)
            name = str(record.root["name"])
            spec = spec_of(self.specs, name)
            if spec is not None:
                return self._admit_to_spec(name, spec, schema_id, text, protection)
            resolved = self._resolve(record, is_newest=self._is_newest(schema_id))
        except avro.UnsupportedSchema as error:
            return self.reject(schema_id, f"{describe_schema(schema_id)}: {error}")
        schema = WriterSchema(text, _is_native(text), resolved.mapping, resolved.cast_rules, protection=protection)
        schemas = {**self.schemas, schema_id: schema}
        return replace(self, columns=resolved.columns, schemas=schemas, reader=resolved.reader)

    def find_problems(self, text: str) -> list[str]:
        """Return every reason for which a schema would be rejected as the next one. What is no schema has its first."""
        try:
            record = avro.parse(text)
            learned = self.learn_privacy([text])
            privacy = learned.privacy
            if privacy is not None:
                record = avro.parse(add_former_names(text, learned.known_texts))
                _check_path_names(record)
                protection = privacy.protection(record, self.specs)
                record = record if protection is None else avro.parse(protection.text)
        except (PrivacyError, avro.UnsupportedSchema) as error:
            return [str(error)]
        name = str(record.root["name"])
        spec = spec_of(self.specs, name)
        if spec is None:
            return find_conflicts(record, self.columns, self.reader, self.reserved, widen=self.widen)
        columns = SchemaPlan(pa.schema([]), self.reserved, widen=self.widen)
        if name in self.shaped:
            columns = self.shaped[name].input
        conflicts = find_conflicts(record, columns.columns, columns.reader, self.reserved, widen=self.widen)
        if conflicts:
            return conflicts
        resolved = columns._resolve(record, is_newest=True)  # noqa: SLF001 - of this class
        return [f"spec {spec.name!r}: {problem}" for problem in find_mistakes(spec, resolved.columns)]

    def _resolve(self, record: avro.Record, *, is_newest: bool) -> ResolvedSchema:
        """Resolve a schema against the columns. `is_newest`: no schema that is newer decides over defaults."""
        resolved = resolve(record, self.columns, self.reader, self.reserved, widen=self.widen, is_newest=is_newest)
        _check_depth(resolved.columns)
        if self.dotted_paths:
            _check_dotted_paths(resolved.columns, self.reserved)
        return resolved

    def _is_newest(self, schema_id: int) -> bool:
        """Return whether no admitted schema is newer. One that is not registered for the topics is newer than those."""
        admitted = (other for other, schema in self.schemas.items() if isinstance(schema, WriterSchema))
        newest_rank = max((self._rank(other) for other in admitted), default=0)
        return self._rank(schema_id) >= newest_rank

    def _rank(self, schema_id: int) -> int:
        return self.ranks.get(schema_id, len(self.ranks))

    def _admit_to_spec(
        self, name: str, spec: Spec, schema_id: int, text: str, protection: Protection | None
    ) -> "SchemaPlan":
        """Admit a schema of a record that a spec shapes.

        While no schema gives the spec what it names, all of the record are rejected; once one does, a further one that
        the spec does not fit is rejected alone.
        """
        reader = Reader(branches=self.input_branches.get(name, {}))
        columns = SchemaPlan(pa.schema([]), self.reserved, widen=self.widen, ranks=self.ranks, reader=reader)
        before = self.shaped.get(name) or ShapedRecord(spec, columns)
        grown_input = before.input.admit(schema_id, text, protection)
        admitted = grown_input.schemas[schema_id]
        if isinstance(admitted, RejectedSchema):
            return self.reject(schema_id, admitted.reason)
        input_branches = {**self.input_branches, name: grown_input.reader.branches}
        input_schemas = {
            input_id: replace(schema, shaped=name)
            for input_id, schema in grown_input.schemas.items()
            if isinstance(schema, WriterSchema)
        }
        try:
            output_text = avro_schema(compile_step(spec, grown_input.columns).columns)
            # What a spec makes is always the newest.
            resolved = self._resolve(avro.parse(output_text), is_newest=True)
        except (SpecError, avro.UnsupportedSchema) as error:
            reason = f"{describe_schema(schema_id)}: spec {spec.name!r}: {error}"
            if before.output is not None:
                return self.reject(schema_id, reason)
            waiting = replace(before, input=grown_input, problem=str(error))
            plan = self.reject_all(dict.fromkeys(input_schemas, reason))
            return replace(plan, shaped={**self.shaped, name: waiting}, input_branches=input_branches)
        output = WriterSchema(output_text, native=False, columns=resolved.mapping, cast_rules=resolved.cast_rules)
        return replace(
            self,
            columns=resolved.columns,
            reader=resolved.reader,
            schemas={**self.schemas, **input_schemas},
            shaped={**self.shaped, name: ShapedRecord(spec, grown_input, output)},
            input_branches=input_branches,
        )

    @property
    def inputs(self) -> list[pa.Schema]:
        """Columns from which event times are read: of the table, and of each record that a spec shapes."""
        inputs = [record.input.columns for record in self.shaped.values()]
        schemas = [schema for schema in self.schemas.values() if isinstance(schema, WriterSchema)]
        if not inputs or any(not schema.shaped for schema in schemas):
            inputs.insert(0, self.columns)
        return inputs

    def input_of(self, schema: WriterSchema) -> pa.Schema:
        """Return the columns from which event times of a schema's records are read."""
        return self.shaped[schema.shaped].input.columns if schema.shaped else self.columns

    def decode_only(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema whose values are decoded and then given to other plans: it is compared with no column."""
        return self.extend_with(schema_id, text, SchemaPlan.admit_alone)

    def admit_alone(self, schema_id: int, text: str, protection: Protection | None) -> "SchemaPlan":
        """Let values of a schema be decoded, of which this is protected."""
        alone = SchemaPlan(pa.schema([]), self.reserved).admit(schema_id, text, protection)
        return replace(self, schemas={**self.schemas, **alone.schemas})


Admit = Callable[[SchemaPlan, int, str, Protection | None], SchemaPlan]
Extend = Callable[[SchemaPlan, int, str], SchemaPlan]


def _has_same_protection(schema: WriterSchema | RejectedSchema, before: WriterSchema | RejectedSchema) -> bool:
    """Return whether two states of a schema protect the same; of rejected ones, whether both are."""
    if isinstance(schema, RejectedSchema) or isinstance(before, RejectedSchema):
        return isinstance(schema, RejectedSchema) and isinstance(before, RejectedSchema)
    return schema.protection == before.protection


def parse_records(texts: Iterable[str]) -> Iterator[avro.Record]:
    """Yield the records of texts that are schemas of some, and whose fields paths can name."""
    for text in texts:
        with suppress(avro.UnsupportedSchema):
            record = avro.parse(text)
            _check_path_names(record)
            yield record


def _check_path_names(record: avro.Record) -> None:
    """Raise UnsupportedSchema for a field, or an alias, that a path of `privacy` cannot name: it would mean another."""
    for record_type in record.named.values():
        for record_field in record_type.get("fields", ()):
            for name in (record_field["name"], *record_field.get("aliases", ())):
                if not is_path_step(name):
                    raise avro.UnsupportedSchema(
                        f"record {record_type['name']!r} has a field {name!r}, which no path of privacy can name; "
                        "rename it"
                    )


def _read_any_records(texts: Iterable[str], known_texts: Collection[str]) -> Iterator[avro.Record | PartialRecord]:
    """Yield the records of texts; of one that is no schema, as far as it can be read.

    `known_texts`: of all schemas, which may have other names for the fields.
    """
    for text in texts:
        try:
            record = avro.parse(add_former_names(text, known_texts))
            _check_path_names(record)
        except avro.UnsupportedSchema:
            with suppress(avro.UnsupportedSchema):
                yield from read_records(read_json(text))
        else:
            yield record


@lru_cache(maxsize=1024)
def _is_native(text: str) -> bool:
    record = avro.parse(text)
    return format_of(record).is_native(record)


def conform(rows: pa.Table, schema: WriterSchema, plan: SchemaPlan) -> pa.Table:
    """Give the rows exactly the plan's columns, in its order; where the writer lacks one, its default or null."""
    sources = {column: name for name, column in schema.columns.items()}
    defaults = plan.reader.defaults
    columns = []
    for column in plan.columns:
        path = (column.name,)
        if column.name not in sources:
            columns.append(default_values(rows.num_rows, column.type, path, defaults))
            continue
        values = rows.column(sources[column.name])
        if values.type == column.type and not schema.cast_rules.has_rule_for(path):
            columns.append(values)
        else:
            columns.append(cast_values(contiguous(values), column.type, path, schema.cast_rules, defaults))
    return pa.table(columns, schema=plan.columns)


def _check_depth(columns: pa.Schema) -> None:
    """Raise UnsupportedSchema for columns that lie too deep for readers: of a log, as JSON, or of Arrow's types."""
    if max((_bracket_depth(column.type) for column in columns), default=0) > _BRACKETS_MAX:
        raise avro.UnsupportedSchema("its records and unions lie more than 40 levels inside one another; flatten it")
    if max((_type_depth(column.type) for column in columns), default=0) > _LEVELS_MAX:
        raise avro.UnsupportedSchema(
            f"its types lie more than {_LEVELS_MAX} levels inside one another, where a map is two; flatten it"
        )


def _check_dotted_paths(columns: pa.Schema, reserved: frozenset[str]) -> None:
    """Raise UnsupportedSchema for two fields whose paths, with dots between the names, are alike but for their case.

    `reserved`: lower-case names of columns besides these.
    """
    first_of_name: dict[str, ColumnPath] = {}
    for path in _paths(list(columns), ()):
        name = ".".join(path)
        column, dot, _ = name.lower().partition(".")
        is_of_reserved_column = len(path) == 1 and dot and column in reserved
        if is_of_reserved_column or first_of_name.setdefault(name.lower(), path) != path:
            raise avro.UnsupportedSchema(
                f"field {name!r} has the name of a field inside another, as the table's format writes names; rename it"
            )


def _bracket_depth(kind: pa.DataType) -> int:
    """Return how many brackets stand inside one another where a type is written as Delta and Iceberg do."""
    if pa.types.is_map(kind):
        return 1 + max(_bracket_depth(kind.key_type), _bracket_depth(kind.item_type))
    inner = max((_bracket_depth(child.type) for child in _children(kind)), default=0)
    return inner + (3 if pa.types.is_struct(kind) else 1)


def _type_depth(kind: pa.DataType) -> int:
    """Return how many types lie inside one another, as Arrow counts them: a map has entries, which are structs."""
    return 1 + max((_type_depth(child.type) for child in _children(kind)), default=0)


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _paths(fields: Iterable[pa.Field], parent: ColumnPath) -> Iterator[ColumnPath]:
    """Yield the path of each of these fields, and of each part of them."""
    for column in fields:
        path = (*parent, column.name)
        yield path
        if pa.types.is_map(column.type):
            yield from _paths([column.type.key_field, column.type.item_field], path)
        else:
            yield from _paths(_children(column.type), path)
