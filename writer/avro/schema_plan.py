"""The schema plan: the table's columns, and how each writer schema fills them.

The driver owns it and hands it to the tasks of a batch, so two new schemas in one batch have one arbiter. Pure.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache, partial

import pyarrow as pa

from bucketers.arrow import contiguous
from writer.avro import schema
from writer.avro.column_cast import PLAIN_CAST, CastRules, cast_values, default_values
from writer.avro.decoding.decode import is_native
from writer.avro.partial_schema import PartialRecord, read_records
from writer.avro.resolution import Reader, ResolvedSchema, Widening, check_depth, check_dotted_paths, resolve
from writer.avro.schema_text import is_path_step, read_json
from writer.avro.union_members import TABLE, Branches, UnionMembers
from writer.privacy.column_protection import Protection
from writer.privacy.field_decryption import Decryption
from writer.privacy.path_policies import RecordPolicies
from writer.privacy.policy import PrivacyError
from writer.privacy.protected_schema import Privacy, record_names
from writer.specs.avro_schema import avro_schema
from writer.specs.spec import Spec, SpecError, spec_of
from writer.specs.step import Step, compile_step

UNFORESEEN = "headrace fails on it, which is no fault of the schema"
_REASON_MAX = 1_000  # characters
# What every row carries besides its own fields: the lake proves itself, and the frontier can be rebuilt from the files.
PROVENANCE = pa.schema(
    [
        pa.field("_topic", pa.string()),
        pa.field("_incarnation", pa.int32()),
        pa.field("_partition", pa.int32()),
        pa.field("_offset", pa.int64()),
        pa.field("_kafka_time", schema.TIMESTAMP),
    ]
)


@dataclass(frozen=True)
class WriterSchema:
    """One registered schema: its text, the decoder it gets, and the column that each of its fields fills."""

    text: str
    native: bool
    columns: Mapping[str, str]  # field of the record → column of the table
    cast_rules: CastRules = PLAIN_CAST
    shaped: str = ""  # full name of the record, where a spec shapes its rows; then `columns` are of the spec's input
    protection: Protection | None = None  # of decoded rows; then `columns` are of those that it leaves

    @property
    def rows_text(self) -> str:
        """Text of the schema of the rows, once they are protected."""
        return self.text if self.protection is None else self.protection.text


@dataclass(frozen=True)
class RejectedSchema:
    """A schema whose records become dead letters, and the reason, which stands in each of these."""

    reason: str

    def __post_init__(self) -> None:
        if len(self.reason) > _REASON_MAX:
            object.__setattr__(self, "reason", f"{self.reason[:_REASON_MAX]}…")


@dataclass(frozen=True)
class ColumnRules:
    """How the columns of a table may grow, by its format and its configuration."""

    widen: Widening = "any"
    reserved: frozenset[str] = frozenset()  # lower-case names that the format keeps for itself
    dotted_paths: bool = False  # the format finds fields by their names with dots between them


@dataclass(frozen=True)
class ShapedRecord:
    """One record type that a spec shapes: the columns that its schemas have together, and how the spec's fill a table.

    The spec sees the rows as a table of this type alone would hold them, so it reads older and newer schemas alike.
    """

    spec: Spec
    input: "SchemaPlan"
    output: WriterSchema | None = None  # how the columns of the spec fill those of the table; None: `problem` says why
    problem: str = ""  # what no schema so far gives the spec

    @property
    def step(self) -> Step:
        """The spec, compiled for the columns of the record."""
        return compile_step(self.spec, self.input.columns)


@dataclass(frozen=True)
class SchemaPlan:
    """Columns of the table (without provenance and bucket columns), and what is known of each schema id."""

    columns: pa.Schema
    reserved: frozenset[str] = frozenset()  # lower-case names that no field may take
    schemas: Mapping[int, WriterSchema | RejectedSchema] = field(default_factory=dict)
    reader: Reader = field(default_factory=Reader)
    widen: Widening = "any"  # which columns may get a wider type
    dotted_paths: bool = False  # the table finds fields by their names with dots between them
    since: Mapping[int, datetime] = field(default_factory=dict)  # ids that meant other schemas for older records
    specs: tuple[Spec, ...] = ()
    shaped: Mapping[str, ShapedRecord] = field(default_factory=dict)  # by the full name of the record
    privacy: Privacy | None = None
    known_texts: tuple[str, ...] = ()  # of schemas, admitted or not, where there is privacy
    ranks: Mapping[int, int] = field(default_factory=dict)  # of registered schemas, by their age, the oldest first
    input_branches: Mapping[str, Branches] = field(default_factory=dict)  # of records that a spec shapes, by name

    @property
    def union_members(self) -> UnionMembers:
        """Which branches of unions fill which members, as the table is to keep it."""
        return {**self.input_branches, TABLE: self.reader.branches}

    def with_union_members(self, members: UnionMembers) -> "SchemaPlan":
        """Return the plan, of no schema yet, with the members of unions that the table has."""
        of_inputs = {record: branches for record, branches in members.items() if record != TABLE}
        return replace(self, reader=Reader(branches=members.get(TABLE, {})), input_branches=of_inputs)

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
        kept = {schema_id: known for schema_id, known in self.schemas.items() if schema_id not in ids}
        shaped = {name: replace(one, input=one.input.without(ids)) for name, one in self.shaped.items()}
        return replace(self, schemas=kept, shaped=shaped)

    def extend(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema: what is new in it grows the columns, what is known fills them by Avro's rules.

        A text that is no schema, or one that cannot fill the table's columns, or not be protected, is rejected: only
        its own records are parked. One that says that more is to be protected says so for all of its record's schemas.
        """
        return self.extend_with(schema_id, text, SchemaPlan.admit)

    def decryption(self, schema_id: int) -> Decryption | None:
        """Return how fields are decrypted that producers encrypted by a schema; None: there are none."""
        found = None if self.privacy is None else self.privacy.decryptions.get(schema_id)
        return found if found is not None and (found.rules or found.problem) else None

    def reopen_decryptions(self) -> "SchemaPlan":
        """Return the plan for a new batch, for which keys that it lacks may be asked for again."""
        known = {} if self.privacy is None else self.privacy.decryptions
        if not any(one.is_settled for one in known.values()):
            return self
        return self.with_decryptions({schema_id: replace(one, is_settled=False) for schema_id, one in known.items()})

    def with_decryptions(self, decryptions: Mapping[int, Decryption]) -> "SchemaPlan":
        """Return the plan with other decryptions, by schema id."""
        return self if self.privacy is None else replace(self, privacy=replace(self.privacy, decryptions=decryptions))

    def learn_privacy(self, texts: Iterable[str]) -> "SchemaPlan":
        """Return the plan with what these schemas say of privacy, before any of them is admitted."""
        if self.privacy is None:
            return self
        given = list(dict.fromkeys(texts))
        known = tuple(dict.fromkeys((*self.known_texts, *given)))
        privacy = self.privacy.learned(_records_of(given))
        # A schema from before may have an alias of what is protected now.
        if privacy.tagged != self.privacy.tagged and len(known) > len(given):
            privacy = privacy.learned(_records_of(known))
        return replace(self, privacy=privacy, known_texts=known)

    def extend_with(self, schema_id: int, text: str, admit: "Admit") -> "SchemaPlan":
        """Protect what a schema says, and then admit it, or reject it. Whatever its text is, nothing is raised."""
        try:
            return self._decide(schema_id, text, admit)
        except Exception as error:  # noqa: BLE001 - one schema never stops those of others
            return self.reject(
                schema_id, f"schema id {schema_id}: {UNFORESEEN} ({type(error).__name__}); report it with the schema"
            )

    def _decide(self, schema_id: int, text: str, admit: "Admit") -> "SchemaPlan":
        if self.privacy is None:
            return admit(self, schema_id, text, None)
        plan = self._learned_anew(text, admit)
        assert plan.privacy is not None
        if (decryption := self.decryption(schema_id)) is not None and decryption.problem:
            return plan.reject(schema_id, f"schema id {schema_id}: {decryption.problem}")
        try:
            record = schema.parse(text)
            _check_path_names(record)
            protection = plan.privacy.protection(record, self.specs)
        except (PrivacyError, schema.UnsupportedSchema) as error:
            return plan.reject(schema_id, f"schema id {schema_id}: {error}")
        return admit(plan, schema_id, text, protection)

    def restore_policies(self, recorded: RecordPolicies, extend: "Extend") -> "SchemaPlan":
        """Return the plan with what the table's log has of protected paths, its schemas admitted anew."""
        if self.privacy is None:
            return self
        privacy = self.privacy.forgetting_schemas().remembering(recorded).learned(_records_of(self.known_texts))
        return self._readmitted(replace(self, privacy=privacy), extend)

    def after_recording(self, recorded: RecordPolicies) -> "SchemaPlan":
        """Return the plan once the table's log has these protected paths."""
        return self if self.privacy is None else replace(self, privacy=self.privacy.recording(recorded))

    def _learned_anew(self, text: str, admit: "Admit") -> "SchemaPlan":
        """Learn what a schema says of privacy, and admit the schemas of its record anew where more is protected."""
        return self._readmitted(self.learn_privacy([text]), partial(SchemaPlan.extend_with, admit=admit))

    def _readmitted(self, plan: "SchemaPlan", extend: "Extend") -> "SchemaPlan":
        """Return a plan with the schemas admitted anew of records of which other paths are protected than here."""
        assert self.privacy is not None
        assert plan.privacy is not None
        before = self.privacy.tagged
        after = plan.privacy.tagged
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        # The cost of a schema is not to grow with the schemas before it.
        if not changed:
            return plan
        known = {schema_id: text for schema_id, text in self.texts() if not changed.isdisjoint(_names_of(text))}
        of_records = {str(schema.parse(text).root["name"]) for text in known.values()}
        shaped = {name: record for name, record in plan.shaped.items() if name not in of_records}
        plan = replace(plan.without(known), shaped=shaped)
        for schema_id, text in known.items():
            plan = extend(plan, schema_id, text)
        return plan

    @property
    def unmeasured(self) -> frozenset[str]:
        """Columns with protected values: their least and largest ones stand in no file's footer and no log."""
        found = set[str]()
        for known in self.schemas.values():
            if isinstance(known, WriterSchema) and known.protection is not None:
                fields = {place[0] for place in known.protection.places}
                columns = {column for name, column in known.columns.items() if name in fields}
                found |= self.shaped[known.shaped].step.made_of(columns) if known.shaped else columns
        return frozenset(found)

    def changed_ids(self, before: Mapping[int, WriterSchema | RejectedSchema]) -> list[int]:
        """Return the ids of whose records more is protected than before, or that are rejected now."""

        def state(known: WriterSchema | RejectedSchema) -> object:
            return None if isinstance(known, RejectedSchema) else (known.protection,)

        return [n for n, one in self.schemas.items() if n in before and state(one) != state(before[n])]

    def texts(self) -> Iterator[tuple[int, str]]:
        """Yield the schemas in their order: those by which values are decoded, and those that wait for a spec."""
        waiting = {n: one for record in self.shaped.values() for n, one in record.input.schemas.items()}
        for schema_id, known in self.schemas.items():
            one = known if isinstance(known, WriterSchema) else waiting.get(schema_id)
            if isinstance(one, WriterSchema):
                yield schema_id, one.text

    def admit(self, schema_id: int, text: str, protection: Protection | None) -> "SchemaPlan":
        """Let a schema, of which this is protected, grow the columns and fill them."""
        try:
            record = schema.parse(text if protection is None else protection.text)
            if (spec := spec_of(self.specs, name := record.root["name"])) is not None:
                return self._extend_shaped(name, spec, schema_id, text, protection)
            found = self._resolved(record, schema_id)
        except schema.UnsupportedSchema as error:
            return self.reject(schema_id, f"schema id {schema_id}: {error}")
        known = WriterSchema(text, _probed(text), found.mapping, found.cast_rules, protection=protection)
        schemas = {**self.schemas, schema_id: known}
        return replace(self, columns=found.columns, schemas=schemas, reader=found.reader)

    def _resolved(self, record: schema.Record, schema_id: int | None = None) -> ResolvedSchema:
        """Resolve a schema against the columns. `schema_id`: None for what a spec makes, which is always the newest."""
        is_newest = schema_id is None or self._is_newest(schema_id)
        resolved = resolve(record, self.columns, self.reader, self.reserved, widen=self.widen, is_newest=is_newest)
        check_depth(resolved.columns)
        if self.dotted_paths:
            check_dotted_paths(resolved.columns, self.reserved)
        return resolved

    def _is_newest(self, schema_id: int) -> bool:
        """Return whether no admitted schema is newer. One that is not registered for the topics is newer than those."""
        admitted = (other for other, known in self.schemas.items() if isinstance(known, WriterSchema))
        newest = max((self._rank(other) for other in admitted), default=0)
        return self._rank(schema_id) >= newest

    def _rank(self, schema_id: int) -> int:
        return self.ranks.get(schema_id, len(self.ranks))

    def _extend_shaped(
        self, name: str, spec: Spec, schema_id: int, text: str, protection: Protection | None
    ) -> "SchemaPlan":
        """Admit a schema of a record that a spec shapes.

        While no schema gives the spec what it names, all of the record are rejected; once one does, a further one that
        the spec does not fit is rejected alone.
        """
        reader = Reader(branches=self.input_branches.get(name, {}))
        columns = SchemaPlan(pa.schema([]), self.reserved, widen=self.widen, ranks=self.ranks, reader=reader)
        before = self.shaped.get(name) or ShapedRecord(spec, columns)
        grown = before.input.admit(schema_id, text, protection)
        if isinstance(rejected := grown.schemas[schema_id], RejectedSchema):
            return self.reject(schema_id, rejected.reason)
        input_branches = {**self.input_branches, name: grown.reader.branches}
        admitted = {n: replace(one, shaped=name) for n, one in grown.schemas.items() if isinstance(one, WriterSchema)}
        try:
            output = avro_schema(compile_step(spec, grown.columns).columns)
            found = self._resolved(schema.parse(output))
        except (SpecError, schema.UnsupportedSchema) as error:
            why = f"schema id {schema_id}: spec {spec.name!r}: {error}"
            if before.output is not None:
                return self.reject(schema_id, why)
            waiting = replace(before, input=grown, problem=str(error))
            schemas = {**self.schemas, **{number: RejectedSchema(why) for number in admitted}}
            shaped = {**self.shaped, name: waiting}
            return replace(self, schemas=schemas, shaped=shaped, input_branches=input_branches)
        ready = ShapedRecord(
            spec, grown, WriterSchema(output, native=False, columns=found.mapping, cast_rules=found.cast_rules)
        )
        return replace(
            self, columns=found.columns, reader=found.reader, schemas={**self.schemas, **admitted},
            shaped={**self.shaped, name: ready}, input_branches=input_branches,
        )  # fmt: skip

    @property
    def inputs(self) -> list[pa.Schema]:
        """Columns from which event times are read: of the table, and of each record that a spec shapes."""
        shaped = [one.input.columns for one in self.shaped.values()]
        known = [one for one in self.schemas.values() if isinstance(one, WriterSchema)]
        return [*([self.columns] if not shaped or any(not one.shaped for one in known) else []), *shaped]

    def input_of(self, known: WriterSchema) -> pa.Schema:
        """Columns from which event times of a schema's records are read."""
        return self.shaped[known.shaped].input.columns if known.shaped else self.columns

    def decode_only(self, schema_id: int, text: str) -> "SchemaPlan":
        """Admit a schema whose values are decoded and then given to other plans: it is held against no column."""
        return self.extend_with(schema_id, text, SchemaPlan.admit_alone)

    def admit_alone(self, schema_id: int, text: str, protection: Protection | None) -> "SchemaPlan":
        """Let values of a schema be decoded, of which this is protected."""
        alone = SchemaPlan(pa.schema([]), self.reserved).admit(schema_id, text, protection)
        return replace(self, schemas={**self.schemas, **alone.schemas})


Admit = Callable[[SchemaPlan, int, str, Protection | None], SchemaPlan]
Extend = Callable[[SchemaPlan, int, str], SchemaPlan]


def parse_records(texts: Iterable[str]) -> Iterator[schema.Record]:
    """Yield the records of texts that are schemas of some, and whose fields paths can name."""
    for text in texts:
        with suppress(schema.UnsupportedSchema):
            record = schema.parse(text)
            _check_path_names(record)
            yield record


def _check_path_names(record: schema.Record) -> None:
    """Raise UnsupportedSchema for a field, or an alias, that a path of `privacy` cannot name: it would mean another."""
    for named in record.named.values():
        for part in named.get("fields", ()):
            for name in (part["name"], *part.get("aliases", ())):
                if not is_path_step(name):
                    raise schema.UnsupportedSchema(
                        f"record {named['name']!r} has a field {name!r}, which no path of privacy can name; rename it"
                    )


def _records_of(texts: Iterable[str]) -> Iterator[schema.Record | PartialRecord]:
    """Yield the records of texts; of one that is no schema, as far as it can be read."""
    for text in texts:
        try:
            record = schema.parse(text)
            _check_path_names(record)
        except schema.UnsupportedSchema:
            with suppress(schema.UnsupportedSchema):
                yield from read_records(read_json(text))
        else:
            yield record


def _names_of(text: str) -> list[str]:
    return record_names(schema.parse(text))


@lru_cache(maxsize=1024)
def _probed(text: str) -> bool:
    return is_native(schema.parse(text))


def conform(rows: pa.Table, schema: WriterSchema, plan: SchemaPlan) -> pa.Table:
    """Give the rows exactly the plan's columns, in its order; where the writer lacks one, its default or null."""
    source = {column: name for name, column in schema.columns.items()}
    cast_rules, defaults = schema.cast_rules, plan.reader.defaults
    columns = []
    for column in plan.columns:
        place = (column.name,)
        if column.name not in source:
            columns.append(default_values(rows.num_rows, column.type, place, defaults))
            continue
        values = rows.column(source[column.name])
        same = values.type == column.type and not cast_rules.has_rule_for(place)
        columns.append(values if same else cast_values(contiguous(values), column.type, place, cast_rules, defaults))
    return pa.table(columns, schema=plan.columns)
