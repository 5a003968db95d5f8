"""The ways on which registered texts become part of a plan, with a good schema on either side of them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema

from headrace.writer.avro.schema import parse
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import ColumnRules, RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.commit.target_table import admit_schema
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.config.sections.registry import Registry
from headrace.writer.privacy.keyring import KeyId, KeyringPlace, KeySource
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas.schema_id_check import IdMeanings, fingerprint_of
from headrace.writer.schemas.subjects import full_name
from headrace.writer.schemas.tracker import Admission, Schemas
from headrace.writer.table.iceberg.metadata.schema import columns_of, mapping_of, schema_of
from headrace.writer.table.schema_evolution import merge_columns
from tests.support.schema_texts import MILLIS, record

GOOD = 1
WIDER = 2
TEXT = 10  # id of the first text; those of the others follow
LATER = 1_000  # the same for texts of which no subject of the topic has a version
_GOOD_FIELDS = (("good_at", MILLIS), ("good", "long"))
TEXTS = {
    GOOD: json.dumps(record("Good", *_GOOD_FIELDS, namespace="g")),
    WIDER: json.dumps(record("Good", *_GOOD_FIELDS, ("more", ["null", "string"]), namespace="g")),
}
KEYS = KeySource(KeyringPlace(env="KEYS"), None, KeyId("h1", "0" * 16), KeyId("k1", "0" * 16))
POLICIES = Policies(
    tags=(("PII", Action("hash")), ("SECRET", Action("drop"))),
    attributes=("pii", "x"),
    fields=(("buyer.street", Action("encrypt")), ("notes", Action("clear")), ("a.b", Action("mask", 4))),
)
SPEC = EventSpec.model_validate({"derive": {"made": "1"}, "flatten": True}).spec("*")
REGISTRY = Registry.model_validate({"url": "http://registry"})
KEY_COLUMNS = RecordColumns(key=("_key", "avro"))


@dataclass(frozen=True)
class Source:
    """A registry with the schemas of a topic."""

    values: Mapping[int, str] = field(default_factory=dict)
    keys: Mapping[int, str] = field(default_factory=dict)

    def schema(self, schema_id: int) -> str:
        return self.values[schema_id]

    def topic_schemas(self, topic: str) -> Mapping[int, str]:  # noqa: ARG002 - one topic
        return {schema_id: text for schema_id, text in self.values.items() if schema_id < LATER}

    def of_keys(self) -> "Source":
        return Source(self.keys)


@dataclass(frozen=True)
class Outcome:
    """What became of schemas, by their ids, and the columns of the table."""

    schemas: Mapping[int, WriterSchema | RejectedSchema]
    columns: pa.Schema


def start(source: Source, rules: ColumnRules | None = None, **more: Any) -> Schemas:
    """Return the schemas of a pipeline that has started, and then has met records of what no subject has."""
    schemas = Schemas(
        "p",
        source,
        IdMeanings("p", REGISTRY, dict),
        bucket_columns=("hour",),
        record_columns=more.pop("record_columns", RecordColumns()),
        rules=rules or ColumnRules(),
        **more,
    )
    schemas.begin(["t"])
    unregistered = [schema_id for schema_id in source.values if schema_id >= LATER]
    if unregistered:
        schemas.follow(schemas.columns())
        schemas.learn(unregistered)
    schemas.meanings_of(
        [number for number, admitted in schemas.plan.schemas.items() if isinstance(admitted, WriterSchema)]
    )
    return schemas


def texts_by_id(texts: Sequence[str], first: int = TEXT) -> dict[int, str]:
    return dict(enumerate(texts, first))


def around(texts: Sequence[str]) -> dict[int, str]:
    return {GOOD: TEXTS[GOOD], **texts_by_id(texts), WIDER: TEXTS[WIDER]}


def as_value(texts: Sequence[str]) -> Outcome:
    """Fill a Delta or a Parquet table, whose log has Delta's schema."""
    schemas = start(Source(around(texts) | texts_by_id(texts, LATER)))
    before = DeltaSchema.from_arrow(pa.schema([pa.field("good", pa.int64())])).to_json()
    after, _ = merge_columns(before, list(schemas.columns()))
    assert len(DeltaSchema.from_json(after).fields) == len(schemas.columns())
    for schema_id, text in texts_by_id(texts).items():
        if isinstance(schemas.plan.schemas[schema_id], WriterSchema):
            assert fingerprint_of(text) is not None
            assert full_name(text) == parse(text).root["name"]
    return Outcome(schemas.plan.schemas, schemas.plan.columns)


def as_key(texts: Sequence[str]) -> Outcome:
    keys = start(Source(keys={**texts_by_id(texts), WIDER: '"string"'}), record_columns=KEY_COLUMNS).keys
    assert keys is not None
    return Outcome(keys.plan.schemas, keys.plan.columns)


def with_privacy(texts: Sequence[str]) -> Outcome:
    plan = start(Source(around(texts)), privacy=Privacy(POLICIES, KEYS)).plan
    return Outcome(plan.schemas, plan.columns)


def with_specs(texts: Sequence[str]) -> Outcome:
    plan = start(Source(around(texts)), specs=(SPEC,)).plan
    return Outcome(plan.schemas, plan.columns)


def in_iceberg(texts: Sequence[str]) -> Outcome:
    schemas = start(Source(around(texts)), settings("iceberg").column_rules)
    schema = schema_of(schemas.columns())
    mapping_of(schema)
    assert len(columns_of(schema)) == len(schemas.columns())
    return Outcome(schemas.plan.schemas, schemas.plan.columns)


def by_route(texts: Sequence[str]) -> Outcome:
    """Decode by one plan, and fill a table of a route by another, which needs an event time and a bucket."""
    decoding = start(Source(around(texts)), admission=Admission(extend=SchemaPlan.decode_only)).plan
    plan = SchemaPlan(pa.schema([]))
    for schema_id, admitted in decoding.schemas.items():
        if isinstance(admitted, WriterSchema):
            plan = admit_schema(settings("delta"), "auto", plan, schema_id, admitted.text)
    return Outcome({**decoding.schemas, **plan.schemas}, plan.columns)


@cache
def settings(form: str) -> Pipeline:
    return Pipeline.model_validate(
        {
            "topics": ["t"],
            "table": {"location": "/lake/t", "format": form},
            "event_time": {"field": "good_at"},
            "bucket": {"type": "event_time", "width": "1 h"},
        }
    )


WAYS: dict[str, Callable[[Sequence[str]], Outcome]] = {
    "value": as_value,
    "key": as_key,
    "privacy": with_privacy,
    "specs": with_specs,
    "iceberg": in_iceberg,
    "route": by_route,
}
