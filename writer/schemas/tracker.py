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

from writer.avro.schema_plan import PROVENANCE, ColumnRules, RejectedSchema, SchemaPlan, WriterSchema
from writer.avro.schema_text import UnsupportedSchema, read_json
from writer.avro.union_members import TABLE, UnionMembers, union_members, with_members
from writer.avro.wire_format import CONFLUENT, Part, Wire, show_id
from writer.batch.record_columns import RecordColumns
from writer.batch.schema_reader import KeyPlan
from writer.batch.task_report import Report
from writer.core import logging
from writer.core.errors import ConfigError
from writer.privacy.field_decryption import Decryption
from writer.privacy.keyring import KeyringPlace, KeySource
from writer.privacy.path_policies import RecordPolicies, is_any_protected
from writer.privacy.policy import Policies
from writer.privacy.protected_schema import Privacy
from writer.schemas.field_encryption import decryption_of
from writer.schemas.registry import (
    ConfluentRegistry,
    RegistryUnreachable,
    SchemaNotFound,
    SchemaSource,
    by,
    of_keys,
)
from writer.schemas.registry_client import ReferenceNotFound
from writer.schemas.registry_hold import IdQuestion, NotAsked, RegistryHold
from writer.schemas.schema_id_check import IdMeanings
from writer.schemas.start_schemas import choose_start_schemas
from writer.schemas.unknown_ids import UnknownIds
from writer.specs.spec import Spec
from writer.storage.base import Store

ASK_AGAIN = timedelta(minutes=5)  # before a refused schema is requested again: as long as the default timeout
_REJECTED_MAX = 1_000  # of earlier batches, that a plan keeps
_STRAYS_SHOWN = 10  # of one batch, each in a log line of its own
KEY_RECORD = "headrace_key"  # name of the record around a key's schema; no name of the schema is inside a namespace


def _knows(source: SchemaSource, topics: Iterable[str], wire: Wire, schema_id: int) -> bool:
    """Return whether a schema can be had by this id of a wire format. Raises RegistryUnreachable."""
    try:
        schemas = by(source, wire.ids)
        if wire.ids == "fingerprint":  # no registry is asked by it
            return any(schema_id in schemas.known(topic) for topic in topics)
        schemas.schema(schema_id)
    except (SchemaNotFound, ConfigError):
        return False
    return True


@dataclass(frozen=True)
class Admission:
    """Which schemas fill a table, and how."""

    registered: Callable[[str], bool] = lambda _: True  # of the topics, before a record brings them; by their text
    extended: Callable[[SchemaPlan, int, str], SchemaPlan] = SchemaPlan.extend  # a plan with one more, or that rejected


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
        remembered_at: Store | None = None,
        wire: Wire = CONFLUENT,
        key_wire: Wire = CONFLUENT,
        decode_only: bool = False,
        specs: tuple[Spec, ...] = (),
        admission: Admission | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        """Let columns grow by `rules`. `record_columns`: of the records' keys and headers.

        `decode_only`: the values are decoded by this plan, and fill the columns of others. `admission`: of schemas to
        one table of a route.
        Wait at most `unknown_id_timeout` for unknown ids, and no longer when `stopping` is set. When each was first met
        is remembered at `remembered_at`.
        """
        self._pipeline, self._named, self._topics = pipeline, source, list[str]()
        self.meanings, self._wire, self._source = meanings, wire, self._opened(source, meanings, wire)
        self._unknown_id_timeout = unknown_id_timeout
        self._admission = admission or Admission(extended=SchemaPlan.decode_only if decode_only else SchemaPlan.extend)
        # Names that no field of a schema may take, in lower case.
        own = (*PROVENANCE.names, *bucket_columns, *record_columns.names)
        self._reserved = frozenset(name.lower() for name in own) | (frozenset() if decode_only else rules.reserved)
        self._record_columns = record_columns
        self.keys: _KeySchemas | None = None
        unknown_ids = None if unknown_id_timeout is None else UnknownIds(pipeline, unknown_id_timeout, remembered_at)
        self._hold = RegistryHold(pipeline, stopping or threading.Event(), unknown_ids)
        self._specs = () if decode_only else specs  # of a route, those of its tables
        self.plan = SchemaPlan(
            pa.schema([]), self._reserved, widen=rules.widen, dotted_paths=rules.dotted_paths, specs=self._specs,
            privacy=privacy,
        )  # fmt: skip
        if privacy is not None:
            self._record_columns = replace(record_columns, key_source=privacy.keys)
        self.privacy_version = 0  # of the table's log, whose protected paths these begin from
        self._registered_texts: list[tuple[int, str]] | None = None  # as this start has read them
        self._asked_s: dict[int, float] = {}  # when an id was last asked for, or seen, monotonic
        if record_columns.avro_key is not None:
            self.keys = _KeySchemas(
                pipeline, of_keys(source), meanings, bucket_columns=(), column=record_columns.avro_key,
                rules=rules, unknown_id_timeout=unknown_id_timeout, stopping=stopping, wire=key_wire,
                privacy=privacy,
            )  # fmt: skip

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
        self.plan = self._registered(self.plan)
        for schema_id in self.plan.schemas:
            self._log_admission(schema_id)
        if self.keys is not None:
            self.keys.begin(self._topics)

    def remember(self, recorded: RecordPolicies, version: int) -> None:
        """Take what the table's log has of protected paths, as if the schemas that said so were still there.

        `version`: of the log's privacy entries. A pipeline without policies, whose start is refused, has no keys: its
        schemas with protected fields are rejected.
        """
        self.privacy_version = version
        if self.plan.privacy is None and is_any_protected(recorded):
            self.plan = replace(self.plan, privacy=Privacy(Policies(redacts=True), KeySource(KeyringPlace())))
        self.plan = self.plan.restore_policies(recorded, self._admission.extended)
        if self.keys is not None:
            self.keys.remember(recorded, version)

    def note_recorded(self, recorded: RecordPolicies, version: int) -> None:
        """Note that the table's log has these protected paths, by the version of an entry of this process."""
        self.privacy_version = version
        self.plan = self.plan.after_recording(recorded)
        if self.keys is not None:
            self.keys.note_recorded(recorded, version)

    @property
    def privacy_news(self) -> RecordPolicies:
        """What the table's log is to have of protected paths before rows are protected by it."""
        news = {} if self.plan.privacy is None else self.plan.privacy.news
        return news if self.keys is None else {**news, **self.keys.privacy_news}

    def follow(self, table: pa.Schema) -> None:
        """Let the columns that the table already has decide, and admit the schemas again on top of them.

        So do the members of its unions, where the table says whose they are.
        """
        columns = [f for f in table if self._is_mine(f.name)]
        members = self._members_of(table) if columns else self.plan.union_members
        self._anew(pa.schema(columns) if columns else self.plan.columns, members)
        if self.keys is not None:
            self.keys.follow(table)

    def read_by(self, wire: Wire) -> None:
        """Take the schema ids of the records for those of this format from now on. Raises as `begin` does."""
        self._wire, self._source = wire, self._opened(self._named, self.meanings, wire)
        self._registered_texts = None
        self.plan = self.plan.with_decryptions({})  # those were by ids of the former format
        self._anew(self.plan.columns, self.plan.union_members)

    def _members_of(self, table: pa.Schema) -> UnionMembers:
        """Return what a table says of unions in the columns over which schemas decide here."""
        return {
            record: {place: member for place, member in branches.items() if record != TABLE or self._is_mine(place[0])}
            for record, branches in union_members(table).items()
        }

    def _opened(self, source: SchemaSource, meanings: IdMeanings, wire: Wire) -> SchemaSource:
        return meanings.checked(by(source, wire.ids), wire.ids)

    def _is_mine(self, column: str) -> bool:
        """Return whether schemas decide over this column of the table."""
        return column.lower() not in self._reserved

    def _anew(self, columns: pa.Schema, members: UnionMembers) -> None:
        since = self.meanings.since(self._wire.ids)
        plan = SchemaPlan(
            columns,
            self._reserved,
            widen=self.plan.widen,
            dotted_paths=self.plan.dotted_paths,
            since=since,
            specs=self._specs,
            privacy=self.plan.privacy,
        )
        self.plan = self._registered(plan.with_union_members(members))

    def _registered(self, plan: SchemaPlan) -> SchemaPlan:
        """Extend the plan by schemas that are registered for the topics, oldest first. Raises RegistryUnreachable.

        Where one schema is that of all values, by that one alone. Raises ConfigError when it does not exist.
        """
        if self._wire.schema_id is not None:
            try:
                return self._admitted(plan, self._wire.schema_id, self._source.schema(self._wire.schema_id))
            except SchemaNotFound as error:
                setting = "wire" if self._part == "value" else "columns.key.wire"
                raise ConfigError(f"{setting}.schema_id: {error}. Register the schema, or name another.") from error
        if self._registered_texts is None:
            self._registered_texts = [entry for topic in self._topics for entry in self._source.known(topic).items()]
        registered = self._registered_texts
        plan = replace(plan, ranks={schema_id: rank for rank, (schema_id, _) in enumerate(registered)})
        plan = plan.learn_privacy(text for _, text in registered)
        chosen = choose_start_schemas(registered)
        for schema_id, text in registered:
            if schema_id in chosen and self._admission.registered(text):
                plan = self._admitted(plan, schema_id, text)
        return plan

    def _admitted(self, plan: SchemaPlan, schema_id: int, text: str) -> SchemaPlan:
        """Extend the plan by a schema, and by how its fields are decrypted, which is asked for once."""
        known = {} if plan.privacy is None else plan.privacy.decryptions
        plan = plan if schema_id in known else self._decrypting(plan, schema_id, text)
        return self._admission.extended(plan, schema_id, text)

    def _decrypting(self, plan: SchemaPlan, schema_id: int, text: str, *, is_settled: bool = False) -> SchemaPlan:
        """Return the plan with how fields are decrypted that producers encrypt by a schema.

        Raises SchemaNotFound, RegistryUnreachable.
        """
        privacy = plan.privacy
        if privacy is None or not privacy.keks:
            return plan
        if self._wire.ids != "confluent":
            raise ConfigError(
                f"pipelines.{self._pipeline}.privacy.decrypt needs ids of Confluent's registry, whose schemas have the "
                f"rules, and values of this pipeline have {self._wire.ids} ids; take `decrypt` out"
            )
        if not isinstance(self._named, ConfluentRegistry):  # schemas of a file or a test, which have no rules
            return plan
        found = decryption_of(self._named, schema_id, text, self._topics, privacy) or Decryption()
        return plan.with_decryptions({**privacy.decryptions, schema_id: replace(found, is_settled=is_settled)})

    @property
    def wire(self) -> Wire:
        """The wire format whose schema ids these are."""
        return self._wire

    def knows(self, wire: Wire, schema_id: int) -> bool:
        """Return whether a schema can be had, holding the batch while the registry is down. Raises Draining."""
        return self._hold.ask(partial(_knows, self._named, self._topics, wire, schema_id), self._id_name(schema_id))

    def columns(self) -> pa.Schema:
        """Columns that the table needs: of values, of keys and headers, and provenance; bucket columns not."""
        columns = pa.schema([*self.plan.columns, *self.record_columns.schema, *PROVENANCE])
        return with_members(columns, self._union_members())

    def _union_members(self) -> UnionMembers:
        of_keys = {} if self.keys is None else self.keys.plan.union_members[TABLE]
        members = self.plan.union_members
        return {**members, TABLE: {**members[TABLE], **of_keys}}

    @property
    def record_columns(self) -> RecordColumns:
        """Columns of keys and headers, with all that is known of the keys' schemas."""
        if self.keys is None:
            return self._record_columns
        return replace(self._record_columns, keys=KeyPlan(self.keys.plan, self.keys.wire))

    def forget_rejected(self, now_s: float) -> None:
        """Leave ids that were rejected ASK_AGAIN ago to the next batch that meets them, and keys that were lacking."""
        rejected = [schema_id for schema_id, known in self.plan.schemas.items() if isinstance(known, RejectedSchema)]
        due = {schema_id for schema_id in rejected if self._is_due(schema_id, now_s)}
        forgotten = due.union(rejected[:-_REJECTED_MAX])
        self.plan = self.plan.without(forgotten)
        for schema_id in forgotten:
            self._asked_s.pop(schema_id, None)
        if self.keys is not None:
            self.keys.forget_rejected(now_s)
        self.unsettle()

    def unsettle(self) -> None:
        """Let a new batch ask again for data keys that the registry lacked."""
        self.plan = self.plan.reopen_decryptions()
        if self.keys is not None:
            self.keys.unsettle()

    def confirm(self, report: Report, now_s: float) -> dict[str, int]:
        """Return what the ids mean by which records were read, as a commit keeps it. Raises SchemaChanged.

        Those that were last asked for ASK_AGAIN ago are asked for anew; a registry that does not answer holds nothing.
        """
        self.ask_anew(report.schemas, now_s)
        if self.keys is not None:
            self.keys.ask_anew(report.key_schemas, now_s)
        return self.meant(report)

    def meant(self, report: Report) -> dict[str, int]:
        """Return what the ids mean by which records were read, as a commit keeps it."""
        keys = {} if self.keys is None else self.keys.meant_by(report.key_schemas)
        return {**self.meant_by(report.schemas), **keys}

    def ask_anew(self, used: Iterable[int], now_s: float) -> None:
        """Ask for those of these ids that were last asked for ASK_AGAIN ago. Raises SchemaChanged."""
        due = [schema_id for schema_id in sorted(used) if self._is_due(schema_id, now_s)]
        self._asked_s |= dict.fromkeys(due, now_s)
        with suppress(RegistryUnreachable):
            for schema_id in due:
                with suppress(SchemaNotFound):
                    self._source.schema(schema_id)

    def meant_by(self, used: Iterable[int]) -> dict[str, int]:
        """Return what these ids mean, as a commit keeps it."""
        known = ((schema_id, self.plan.schemas[schema_id]) for schema_id in used)
        texts = {schema_id: self._registered_text(one) for schema_id, one in known if isinstance(one, WriterSchema)}
        return self.meanings.of(texts, self._wire.ids)

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
        of_keys = [] if self.keys is None else self.keys.id_questions(key_ids)
        answers = self._hold.ask_all([*questions, *of_keys])
        self.admit_answers(ids, answers)
        if self.keys is not None:
            self.keys.admit_answers(key_ids, answers)

    def id_questions(self, ids: Iterable[int]) -> list[IdQuestion]:
        """Return what the registry is to be asked: nothing of a schema that is there, and lacks a key."""
        lacking = [number for number in sorted(ids) if not isinstance(self.plan.schemas.get(number), WriterSchema)]
        return [IdQuestion(number, self._id_name(number), partial(self._source.schema, number)) for number in lacking]

    def _id_name(self, schema_id: int) -> str:
        part = "" if self._part == "value" else f"{self._part} "
        return f"{part}schema id {show_id(schema_id)}"

    def admit_answers(self, ids: Iterable[int], answers: Mapping[str, str | SchemaNotFound]) -> None:
        """Extend the plan by what the registry has answered about ids, in their order."""
        absent = {
            schema_id: answer
            for schema_id in sorted(ids)
            if isinstance(answer := answers.get(self._id_name(schema_id)), SchemaNotFound)
        }
        self._reject_absent(absent)
        for schema_id in sorted(ids):
            if schema_id in absent:
                continue
            if isinstance(known := self.plan.schemas.get(schema_id), WriterSchema):  # a value has a key that came since
                self._extend(schema_id, known.text, is_settled=True)
                continue
            self._asked_s.pop(schema_id, None)
            before = self.plan.schemas
            text = answers[self._id_name(schema_id)]
            assert isinstance(text, str), "those that are absent are rejected"
            self._extend(schema_id, text)
            self._log_admission(schema_id)
            for other in self.plan.changed_ids(before):  # what is protected of one may be of its record's others
                if other != schema_id:
                    self._log_admission(other)

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
        decrypting = partial(self._decrypting, self.plan, schema_id, text, is_settled=is_settled)
        try:
            plan = self._hold.ask(decrypting, self._id_name(schema_id))
        except SchemaNotFound as error:
            self.plan = self.plan.reject(schema_id, _reason(schema_id, error))
        else:
            self.plan = self._admission.extended(plan, schema_id, text)

    def _log_admission(self, schema_id: int) -> None:
        if self._unknown_id_timeout is None:
            return
        known, part = self.plan.schemas[schema_id], {} if self._part == "value" else {"part": self._part}
        if isinstance(known, RejectedSchema):
            logging.warning(
                "schema_rejected", pipeline=self._pipeline, schema_id=schema_id, reason=known.reason, **part
            )
            return
        decoder, fields = "native" if known.native else "single", len(known.columns)
        logging.event(
            "schema_admitted", pipeline=self._pipeline, schema_id=schema_id, decoder=decoder, fields=fields, **part
        )


def _reason(schema_id: int, error: SchemaNotFound) -> str:
    """Return why the records of an id are rejected."""
    if isinstance(error, ReferenceNotFound | NotAsked):
        return str(error)
    return f"schema id {show_id(schema_id)} is unknown to the registry"


class _KeySchemas(Schemas):
    """The schema plan of the keys: it fills one column.

    A key's schema may be of any type. It is read as that of the one field of a record, which has the same encoding.
    """

    _part: Part = "key"

    def __init__(self, *given: Any, column: str, **settings: Any) -> None:
        self._column = column
        super().__init__(*given, record_columns=RecordColumns(), **settings)

    def _opened(self, source: SchemaSource, meanings: IdMeanings, wire: Wire) -> SchemaSource:
        return _Wrapped(super()._opened(source, meanings, wire), self._column)

    def _is_mine(self, column: str) -> bool:
        return column == self._column

    @staticmethod
    def _registered_text(schema: WriterSchema) -> str:
        return json.dumps(json.loads(schema.text)["fields"][0]["type"])


@dataclass(frozen=True)
class _Wrapped:
    """Schemas, each as that of the one field of a record."""

    schemas: SchemaSource
    field: str

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text."""
        return self._around(self.schemas.schema(schema_id))

    def known(self, topic: str) -> Mapping[int, str]:
        """Schemas registered for a topic's keys, by id."""
        return {schema_id: self._around(text) for schema_id, text in self.schemas.known(topic).items()}

    def _around(self, text: str) -> str:
        try:
            fields = [{"name": self.field, "type": read_json(text)}]
        except UnsupportedSchema:
            return text  # no Avro, such as Protobuf: rejected as it is
        return json.dumps({"type": "record", "name": KEY_RECORD, "fields": fields})
