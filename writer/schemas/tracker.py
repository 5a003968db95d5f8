"""The driver's schema plan: registered schemas, those of a batch, and the table's columns that follow."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.schema_reader import KeyPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import PROVENANCE, ColumnRules, RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.columns.union_members import TABLE, UnionMembers, union_members, with_members
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    NO_WIRE,
    UNNAMED,
    Part,
    Wire,
    detect_wire,
    framed_id,
    id_facts,
    looks_like_json,
    show_id,
    show_message,
    values_with_headers,
    without_message,
)
from headrace.writer.privacy.field_decryption import Decryption
from headrace.writer.privacy.keyring import KeyringPlace, KeySource
from headrace.writer.privacy.path_policies import RecordPolicies, is_any_protected
from headrace.writer.privacy.policy import Policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas.record_source import FramedSources, KeyRecordSource, RecordSource
from headrace.writer.schemas.registry import (
    RegistryUnreachable,
    SchemaNotFound,
    SchemaSource,
    confluent_registry,
    of_keys,
    with_ids,
)
from headrace.writer.schemas.registry_client import ReferenceNotFound, UnavailableSchema, UnreadableSchema
from headrace.writer.schemas.registry_hold import (
    IdQuestion,
    NotAsked,
    RegistryHold,
    RegistryWait,
    UnknownIds,
    ignore_wait,
)
from headrace.writer.schemas.schema_id_check import IdMeanings
from headrace.writer.schemas.start_schemas import choose_start_schemas
from headrace.writer.specs.spec import Spec
from headrace.writer.storage.base import Store

# A rejected schema is requested again after this time, which is as long as the default timeout.
ASK_AGAIN = timedelta(minutes=5)
# Of earlier batches, that a plan keeps.
_REJECTIONS_MAX = 1_000
# Of one batch, each in a log line of its own.
_STRAYS_SHOWN = 10


def _knows(source: SchemaSource, topics: Iterable[str], wire: Wire, schema_id: int) -> bool:
    """Return whether a schema can be had by this id of a wire format. Raises RegistryUnreachable."""
    try:
        schemas = with_ids(source, wire.ids)
        # No registry is asked by a fingerprint.
        if wire.ids == "fingerprint":
            return any(schema_id in schemas.topic_schemas(topic) for topic in topics)
        schemas.schema(schema_id)
    except (SchemaNotFound, ConfigError):
        return False
    return True


@dataclass(frozen=True)
class Admission:
    """Which schemas fill a table, and how.

    `at_start`: whether a schema that is registered for the topics is admitted before a record brings it, by its text.
    `extend`: a plan with one more schema, or with that rejected.
    """

    at_start: Callable[[str], bool] = lambda _: True
    extend: Callable[[SchemaPlan, int, str], SchemaPlan] = SchemaPlan.extend


class Schemas:
    """The schema plan of one pipeline. It only grows, and is handed to the tasks batch by batch.

    A driver's waits for the registry and logs what it admits. A command's, without `unknown_id_timeout`, asks once.
    Where keys are Avro, `keys` is the same for them, and follows all that is asked of this one.
    """

    _part: Part = "value"

    def __init__(
        self,
        pipeline: str,
        source: SchemaSource,
        meanings: IdMeanings,
        *,
        bucket_columns: Sequence[str],
        record_columns: RecordColumns,
        rules: ColumnRules,
        unknown_id_timeout: timedelta | None = None,
        stopping: threading.Event | None = None,
        unknown_ids_store: Store | None = None,
        on_wait: Callable[[RegistryWait | None], None] = ignore_wait,
        wire: Wire = CONFLUENT,
        key_wire: Wire = CONFLUENT,
        decode_only: bool = False,
        specs: tuple[Spec, ...] = (),
        admission: Admission | None = None,
        privacy: Privacy | None = None,
        value_rules: ValueRules | None = None,
    ) -> None:
        """Let columns grow by `rules`. `record_columns`: of the records' keys and headers.

        `value_rules`: the formats of the values; by default, Avro.
        `decode_only`: the values are decoded by this plan, and fill the columns of others. `admission`: of schemas to
        one table of a route.
        Wait at most `unknown_id_timeout` for unknown ids, and no longer when `stopping` is set. When each was first met
        is remembered in `unknown_ids_store`. `on_wait` gets what a batch waits for, and None when it goes on.
        """
        self._pipeline = pipeline
        self._original_source = source
        self._topics: list[str] = []
        self.meanings = meanings
        self._wire = wire
        self._value_rules = value_rules or ValueRules()
        self._source = self._open_source(source, meanings, wire)
        self._unknown_id_timeout = unknown_id_timeout
        default_admission = Admission(extend=SchemaPlan.decode_only) if decode_only else Admission()
        self._admission = admission or default_admission
        # Names that no field of a schema may take, in lower case.
        self._reserved = frozenset(name.lower() for name in (*PROVENANCE.names, *bucket_columns, *record_columns.names))
        if not decode_only:
            self._reserved |= rules.reserved
        self._record_columns = record_columns
        if privacy is not None:
            self._record_columns = replace(record_columns, key_source=privacy.keys)
        unknown_ids = None
        if unknown_id_timeout is not None:
            unknown_ids = UnknownIds(pipeline, unknown_id_timeout, unknown_ids_store)
        self._hold = RegistryHold(pipeline, stopping or threading.Event(), unknown_ids, on_wait)
        # Of a route, those of its tables.
        self._specs = () if decode_only else specs
        self.plan = self._empty_plan(rules, privacy)
        # Of the table's log, whose protected paths these begin from.
        self.privacy_version = 0
        # The texts that are registered for the topics, as this start has read them.
        self._registered_texts: list[tuple[int, str]] | None = None
        # When an id was last asked for, or first used, monotonic.
        self._asked_s: dict[int, float] = {}
        self.keys = self._open_keys(rules, privacy, key_wire, stopping)

    def _open_keys(
        self, rules: ColumnRules, privacy: Privacy | None, wire: Wire, stopping: threading.Event | None
    ) -> "_KeySchemas | None":
        """Return the same for the keys; None where they are no Avro."""
        column = self._record_columns.avro_key
        if column is None:
            return None
        return _KeySchemas(
            self._pipeline,
            of_keys(self._original_source),
            self.meanings,
            column=column,
            rules=rules,
            unknown_id_timeout=self._unknown_id_timeout,
            stopping=stopping,
            wire=wire,
            privacy=privacy,
        )

    def _empty_plan(self, rules: ColumnRules, privacy: Privacy | None) -> SchemaPlan:
        """Return a plan without columns."""
        return SchemaPlan(
            pa.schema([]),
            self._reserved,
            widen=rules.widen,
            dotted_paths=rules.dotted_paths,
            specs=self._specs,
            privacy=privacy,
        )

    def read_topics(self, topics: Iterable[str]) -> None:
        """Set the topics whose registered schemas are admitted."""
        self._topics = list(topics)
        if self.keys is not None:
            self.keys.read_topics(self._topics)

    def begin(self, topics: Iterable[str]) -> None:
        """Admit schemas that are registered for the topics, as many as a start needs.

        Raises RegistryUnreachable, SchemaChanged.
        """
        self._topics = list(topics)
        self._registered_texts = None
        self.plan = self._admit_registered_schemas(self.plan)
        for schema_id in self.plan.schemas:
            self._log_admission(schema_id)
        if self.keys is not None:
            self.keys.begin(self._topics)

    def remember(self, policies: RecordPolicies, version: int) -> None:
        """Take what the table's log has of protected paths, as if the schemas that said so were still there.

        `version`: of the log's privacy entries. A pipeline without policies, whose start is refused, has no keys: its
        schemas with protected fields are rejected.
        """
        self.privacy_version = version
        if self.plan.privacy is None and is_any_protected(policies):
            self.plan = replace(self.plan, privacy=Privacy(Policies(redacts=True), KeySource(KeyringPlace())))
        self.plan = self.plan.restore_policies(policies, self._admission.extend)
        if self.keys is not None:
            self.keys.remember(policies, version)

    def note_logged_policies(self, policies: RecordPolicies, version: int) -> None:
        """Note that the table's log has these protected paths, by the version of an entry of this process."""
        self.privacy_version = version
        self.plan = self.plan.after_recording(policies)
        if self.keys is not None:
            self.keys.note_logged_policies(policies, version)

    @property
    def privacy_news(self) -> RecordPolicies:
        """What the table's log is to have of protected paths before rows are protected by it."""
        news: RecordPolicies = {}
        if self.plan.privacy is not None:
            news = self.plan.privacy.news
        if self.keys is None:
            return news
        return {**news, **self.keys.privacy_news}

    def follow(self, table: pa.Schema) -> None:
        """Let the columns that the table already has decide, and admit the schemas again on top of them.

        So do the members of its unions, where the table says whose they are.
        """
        columns = [field for field in table if self._is_mine(field.name)]
        if columns:
            self._start_plan(pa.schema(columns), self._members_of(table))
        else:
            self._start_plan(self.plan.columns, self.plan.union_members)
        if self.keys is not None:
            self.keys.follow(table)

    def use_wire(self, wire: Wire) -> None:
        """Take the schema ids of the records for those of this format from now on. Raises as `begin` does."""
        self._wire = wire
        self._source = self._open_source(self._original_source, self.meanings, wire)
        self._registered_texts = None
        # The decryptions are by ids of the earlier format.
        self.plan = self.plan.with_decryptions({})
        self._start_plan(self.plan.columns, self.plan.union_members)

    def _members_of(self, table: pa.Schema) -> UnionMembers:
        """Return what a table says of unions in the columns over which schemas decide here."""
        members = dict(union_members(table))
        if TABLE in members:
            members[TABLE] = {path: member for path, member in members[TABLE].items() if self._is_mine(path[0])}
        return members

    def _open_source(self, source: SchemaSource, meanings: IdMeanings, wire: Wire) -> SchemaSource:
        sources = [
            RecordSource(meanings.check_source(with_ids(source, one.ids), one.ids), self._value_rules, one, used)
            for one in wire.all
            for used in [partial(meanings.messages, one.ids)]
        ]
        return sources[0] if len(sources) == 1 else FramedSources(tuple(sources))

    def _is_mine(self, column: str) -> bool:
        """Return whether schemas decide over this column of the table."""
        return column.lower() not in self._reserved

    def _start_plan(self, columns: pa.Schema, members: UnionMembers) -> None:
        """Start the plan anew from columns and members of unions, and admit registered schemas."""
        since = {
            framed_id(number, own_id): instant
            for number, wire in enumerate(self._wire.all)
            for own_id, instant in self.meanings.since(wire.ids).items()
        }
        plan = SchemaPlan(
            columns,
            self._reserved,
            widen=self.plan.widen,
            dotted_paths=self.plan.dotted_paths,
            since=since,
            specs=self._specs,
            privacy=self.plan.privacy,
        )
        self.plan = self._admit_registered_schemas(plan.with_union_members(members))

    def _admit_registered_schemas(self, plan: SchemaPlan) -> SchemaPlan:
        """Extend the plan by schemas that are registered for the topics, oldest first. Raises RegistryUnreachable.

        Where one schema is that of all values, by that one alone. Raises ConfigError when it does not exist.
        """
        plan = self._admit_unnamed_schema(plan)
        if self._wire == NO_WIRE:
            return plan
        if self._wire.schema_id is not None:
            try:
                return self._admit(plan, self._wire.schema_id, self._source.schema(self._wire.schema_id))
            except SchemaNotFound as error:
                setting = "wire" if self._part == "value" else "columns.key.wire"
                raise ConfigError(f"{setting}.schema_id: {error}. Register the schema, or name another.") from error
        if self._registered_texts is None:
            # Kept once the registry has answered for all topics: part of them would be taken for all.
            registered_texts: list[tuple[int, str]] = []
            for topic in self._topics:
                registered_texts.extend(self._source.topic_schemas(topic).items())
            self._registered_texts = registered_texts
        texts = self._registered_texts
        plan = replace(plan, ranks={schema_id: rank for rank, (schema_id, _) in enumerate(texts)})
        plan = plan.learn_privacy(text for _, text in texts)
        start_ids = choose_start_schemas(texts)
        for schema_id, text in texts:
            if schema_id in start_ids and self._admission.at_start(text):
                plan = self._admit(plan, schema_id, text)
        return plan

    def _admit_unnamed_schema(self, plan: SchemaPlan) -> SchemaPlan:
        """Extend the plan by the schema of values that name none, if there are such. Raises ConfigError."""
        text = self._value_rules.unnamed_schema
        if text is None:
            return plan
        plan = self._admission.extend(plan.learn_privacy([text]), UNNAMED, text)
        schema = plan.schemas[UNNAMED]
        if isinstance(schema, RejectedSchema) and self._admission.at_start(text):
            raise ConfigError(f"pipelines.{self._pipeline}.{schema.reason}")
        return plan

    def _admit(self, plan: SchemaPlan, schema_id: int, text: str) -> SchemaPlan:
        """Extend the plan by a schema, and by how its fields are decrypted, which is asked for once."""
        if plan.privacy is None or schema_id not in plan.privacy.decryptions:
            plan = self._with_decryption(plan, schema_id, text)
        return self._admission.extend(plan, schema_id, text)

    def _with_decryption(self, plan: SchemaPlan, schema_id: int, text: str, *, is_settled: bool = False) -> SchemaPlan:
        """Return the plan with how fields are decrypted that producers encrypt by a schema.

        Raises SchemaNotFound, RegistryUnreachable.
        """
        privacy = plan.privacy
        if privacy is None or not privacy.keks or schema_id in plan.message_types:
            return plan
        wire, own_id = self._wire.of_id(schema_id)
        if wire.ids != "confluent":
            raise ConfigError(
                f"pipelines.{self._pipeline}.privacy.decrypt needs ids of Confluent's registry, whose schemas have the "
                f"rules, and values of this pipeline have {wire.ids} ids; take `decrypt` out"
            )
        # Schemas of a file or a test have no rules.
        registry = confluent_registry(self._original_source)
        if registry is None:
            return plan
        # It imports Confluent's client of registries, which takes a tenth of a second.
        from headrace.writer.schemas.field_encryption import decryption_of

        decryption = decryption_of(registry, own_id, text, self._topics, privacy) or Decryption()
        return plan.with_decryptions({**privacy.decryptions, schema_id: replace(decryption, is_settled=is_settled)})

    @property
    def wire(self) -> Wire:
        """The wire format whose schema ids these are."""
        return self._wire

    def select_framed(self, records: pa.Table) -> pa.Table:
        """Return the records whose values show a wire format: of a pipeline of JSON, no JSON that names no schema."""
        if "json" not in self._value_rules.formats:
            return records
        is_framed = [
            not looks_like_json(value or b"") or detect_wire(value, headers) is not None
            for value, headers in values_with_headers(records)
        ]
        return records.filter(pa.array(is_framed, pa.bool_()))

    def knows(self, wire: Wire, schema_id: int) -> bool:
        """Return whether a schema can be had, holding the batch while the registry is down. Raises Draining."""
        ask = partial(_knows, self._original_source, self._topics, wire, schema_id)
        return self._hold.ask(ask, self._id_name(schema_id))

    def columns(self) -> pa.Schema:
        """Return the columns that the table needs: of values, keys and headers, and provenance; bucket columns not."""
        columns = pa.schema([*self.plan.columns, *self.record_columns.schema, *PROVENANCE])
        return with_members(columns, self._union_members())

    def _union_members(self) -> UnionMembers:
        members = self.plan.union_members
        if self.keys is None:
            return members
        return {**members, TABLE: {**members[TABLE], **self.keys.plan.union_members[TABLE]}}

    @property
    def record_columns(self) -> RecordColumns:
        """Columns of keys and headers, with all that is known of the keys' schemas."""
        if self.keys is None:
            return self._record_columns
        return replace(self._record_columns, keys=KeyPlan(self.keys.plan, self.keys.wire))

    def forget_rejections(self, now_s: float) -> None:
        """Leave ids that were rejected ASK_AGAIN ago to the next batch that meets them, and keys that were lacking."""
        rejected_ids = [
            schema_id for schema_id, schema in self.plan.schemas.items() if isinstance(schema, RejectedSchema)
        ]
        rejected_ids = [schema_id for schema_id in rejected_ids if schema_id != UNNAMED]
        due_ids = {schema_id for schema_id in rejected_ids if self._is_due(schema_id, now_s)}
        due_ids.update(rejected_ids[:-_REJECTIONS_MAX])
        self.plan = self.plan.without(due_ids)
        for schema_id in due_ids:
            self._asked_s.pop(schema_id, None)
        if self.keys is not None:
            self.keys.forget_rejections(now_s)
        self.reopen_decryptions()

    def reopen_decryptions(self) -> None:
        """Let a new batch ask again for data keys that the registry lacked."""
        self.plan = self.plan.reopen_decryptions()
        if self.keys is not None:
            self.keys.reopen_decryptions()

    def confirm(self, report: Report, now_s: float) -> dict[str, int]:
        """Return what the ids mean by which records were read, as a commit keeps it. Raises SchemaChanged.

        Those that were last asked for ASK_AGAIN ago are asked for anew; a registry that does not answer holds nothing.
        """
        self.ask_anew(report.schemas, now_s)
        if self.keys is not None:
            self.keys.ask_anew(report.key_schemas, now_s)
        return self.id_meanings(report)

    def id_meanings(self, report: Report) -> dict[str, int]:
        """Return what the ids mean by which records were read, as a commit keeps it."""
        meanings = self.meanings_of(report.schemas)
        if self.keys is not None:
            meanings |= self.keys.meanings_of(report.key_schemas)
        return meanings

    def ask_anew(self, ids: Iterable[int], now_s: float) -> None:
        """Ask for those of these ids that were last asked for ASK_AGAIN ago. Raises SchemaChanged."""
        due_ids = [schema_id for schema_id in sorted(ids) if schema_id != UNNAMED and self._is_due(schema_id, now_s)]
        self._asked_s |= dict.fromkeys(due_ids, now_s)
        with suppress(RegistryUnreachable):
            for schema_id in due_ids:
                with suppress(SchemaNotFound):
                    self._source.schema(schema_id)

    def meanings_of(self, ids: Iterable[int]) -> dict[str, int]:
        """Return what these ids mean, as a commit keeps it."""
        meanings: dict[str, int] = {}
        for schema_id in ids:
            schema = self.plan.schemas[schema_id]
            # What the configuration declares may change with every start.
            if isinstance(schema, WriterSchema) and schema_id != UNNAMED:
                wire, own_id = self._wire.of_id(schema_id)
                meanings |= self.meanings.of({own_id: self._registered_text(schema)}, wire.ids)
        return meanings

    @staticmethod
    def _registered_text(schema: WriterSchema) -> str:
        """Return the text as the registry has it."""
        return schema.text

    def _is_due(self, schema_id: int, now_s: float) -> bool:
        return now_s - self._asked_s.setdefault(schema_id, now_s) >= ASK_AGAIN.total_seconds()

    def learn_from(self, report: Report) -> None:
        """Extend the plans by schemas that a batch has met, of values and of keys. Raises as `learn` does."""
        self.learn(report.unknown_schemas, report.unknown_key_schemas)

    def learn(self, ids: Iterable[int], key_ids: Iterable[int] = ()) -> None:
        """Extend the plan by schemas that a batch has met, in the order of their ids. Raises Draining, SchemaChanged.

        All ids have their grace at once. Without one: raises RegistryUnreachable.
        """
        questions = self.id_questions(ids)
        if self.keys is not None:
            questions += self.keys.id_questions(key_ids)
        answers = self._hold.ask_all(questions)
        self.admit_answers(ids, answers)
        if self.keys is not None:
            self.keys.admit_answers(key_ids, answers)

    def id_questions(self, ids: Iterable[int]) -> list[IdQuestion]:
        """Return what the registry is to be asked: nothing of a schema that is there, and lacks a key."""
        questions: list[IdQuestion] = []
        for schema_id in sorted(ids):
            if not isinstance(self.plan.schemas.get(schema_id), WriterSchema):
                read = partial(self._source.schema, schema_id)
                questions.append(IdQuestion(without_message(schema_id), self._id_name(schema_id), read))
        return questions

    def _id_name(self, schema_id: int) -> str:
        """Name an id for people and in storage. No two ids have one name: two formats may have the same number."""
        part = "" if self._part == "value" else f"{self._part} "
        return f"{part}schema id {show_id(schema_id)}{self._wire.show_format(schema_id)}{show_message(schema_id)}"

    def admit_answers(self, ids: Iterable[int], answers: Mapping[str, str | SchemaNotFound]) -> None:
        """Extend the plan by what the registry has answered about ids, in their order."""
        absent: dict[int, SchemaNotFound] = {}
        for schema_id in sorted(ids):
            answer = answers.get(self._id_name(schema_id))
            if isinstance(answer, SchemaNotFound):
                absent[schema_id] = answer
        self._reject_absent(absent)
        for schema_id in sorted(ids):
            if schema_id in absent:
                continue
            schema = self.plan.schemas.get(schema_id)
            if isinstance(schema, WriterSchema):
                # A value has a data key that came since.
                self._extend(schema_id, schema.text, is_settled=True)
                continue
            self._asked_s.pop(schema_id, None)
            before = self.plan.schemas
            text = answers[self._id_name(schema_id)]
            assert isinstance(text, str), "those that are absent are rejected"
            self._extend(schema_id, text)
            self._log_admission(schema_id)
            # What is protected of a schema may be protected of others of its record.
            for other_id in self.plan.changed_ids(before):
                if other_id != schema_id:
                    self._log_admission(other_id)

    def _reject_absent(self, absent: Mapping[int, SchemaNotFound]) -> None:
        """Reject ids that the registry does not know. The log names a few, and counts the others."""
        self.plan = self.plan.reject_all({schema_id: _reason(schema_id, error) for schema_id, error in absent.items()})
        for schema_id in list(absent)[:_STRAYS_SHOWN]:
            self._log_admission(schema_id)
        for schema_id in absent:
            self._asked_s.pop(schema_id, None)
        others = len(absent) - _STRAYS_SHOWN
        if others > 0 and self._unknown_id_timeout is not None:
            logging.warning("schemas_rejected", pipeline=self._pipeline, count=others, reason="unknown to the registry")

    def _extend(self, schema_id: int, text: str, *, is_settled: bool = False) -> None:
        """Extend the plan by a schema. `is_settled`: it is there, and what its keys lack then, the registry lacks."""
        add_decryption = partial(self._with_decryption, self.plan, schema_id, text, is_settled=is_settled)
        try:
            plan = self._hold.ask(add_decryption, self._id_name(schema_id))
        except SchemaNotFound as error:
            self.plan = self.plan.reject(schema_id, _reason(schema_id, error))
        else:
            self.plan = self._admission.extend(plan, schema_id, text)

    def _log_admission(self, schema_id: int) -> None:
        if self._unknown_id_timeout is None or schema_id in self.plan.message_types:
            return
        schema = self.plan.schemas[schema_id]
        facts = id_facts(schema_id) | ({} if self._part == "value" else {"part": self._part})
        if isinstance(schema, RejectedSchema):
            logging.warning("schema_rejected", pipeline=self._pipeline, reason=schema.reason, **facts)
            return
        decoder = "native" if schema.native else "single"
        fields = len(schema.columns)
        logging.event("schema_admitted", pipeline=self._pipeline, decoder=decoder, fields=fields, **facts)


def _reason(schema_id: int, error: SchemaNotFound) -> str:
    """Return why the records of an id are rejected."""
    if isinstance(error, NotAsked | ReferenceNotFound | UnavailableSchema | UnreadableSchema):
        return str(error)
    return f"schema id {show_id(schema_id)} is unknown to the registry"


class _KeySchemas(Schemas):
    """The schema plan of the keys: it fills one column.

    A key's schema may be of any type. It is read as that of the one field of a record, which has the same encoding.
    """

    _part: Part = "key"

    def __init__(self, *arguments: Any, column: str, **settings: Any) -> None:
        self._column = column
        super().__init__(*arguments, bucket_columns=(), record_columns=RecordColumns(), **settings)

    def _open_source(self, source: SchemaSource, meanings: IdMeanings, wire: Wire) -> SchemaSource:
        return KeyRecordSource(super()._open_source(source, meanings, wire), self._column)

    def _is_mine(self, column: str) -> bool:
        return column == self._column

    @staticmethod
    def _registered_text(schema: WriterSchema) -> str:
        return json.dumps(json.loads(schema.text)["fields"][0]["type"])
