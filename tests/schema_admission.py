"""The ways on which a registered text becomes part of a plan, each with a good schema on either side of it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pyarrow as pa
from deltalake import Schema as DeltaSchema

from tests.schema_texts import MILLIS, record
from writer.avro.schema import parse
from writer.avro.schema_plan import ColumnRules, RejectedSchema, SchemaPlan, WriterSchema
from writer.batch.record_columns import RecordColumns
from writer.commit.target_table import admitted
from writer.config.connections import Registry
from writer.config.pipeline import Pipeline
from writer.config.record_rules import EventSpec
from writer.privacy.keyring import KeyId, KeyringPlace, KeySource
from writer.privacy.policy import Action, Policies
from writer.privacy.protected_schema import Privacy
from writer.schemas.schema_id_check import IdMeanings, meant
from writer.schemas.subjects import full_name
from writer.schemas.tracker import Admission, Schemas
from writer.table.iceberg.metadata.schema import columns_of, mapping_of, schema_of
from writer.table.schema_evolution import grown

GOOD = 1
TEXT = 2
WIDER = 3
LATER = 4  # id of the same text, of which no subject of the topic has a version
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

    def known(self, topic: str) -> Mapping[int, str]:  # noqa: ARG002 - one topic
        return {schema_id: text for schema_id, text in self.values.items() if schema_id != LATER}

    def of_keys(self) -> "Source":
        return Source(self.keys)


@dataclass(frozen=True)
class Outcome:
    """What became of schemas, by their ids, and the columns of the table."""

    schemas: Mapping[int, WriterSchema | RejectedSchema]
    columns: pa.Schema


def start(source: Source, rules: ColumnRules | None = None, **more: Any) -> Schemas:
    """Return the schemas of a pipeline that has started, and then has met a record of the text, if it is there."""
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
    if LATER in source.values:
        schemas.follow(schemas.columns())
        schemas.learn([LATER])
    schemas.meant_by([number for number, known in schemas.plan.schemas.items() if isinstance(known, WriterSchema)])
    return schemas


def around(text: str | None) -> dict[int, str]:
    return TEXTS if text is None else {GOOD: TEXTS[GOOD], TEXT: text, WIDER: TEXTS[WIDER]}


def as_value(text: str | None) -> Outcome:
    """Fill a Delta or a Parquet table, whose log has Delta's schema."""
    values = around(text)
    schemas = start(Source(values if text is None else values | {LATER: text}))
    before = DeltaSchema.from_arrow(pa.schema([pa.field("good", pa.int64())])).to_json()
    after, _ = grown(before, list(schemas.columns()))
    assert len(DeltaSchema.from_json(after).fields) == len(schemas.columns())
    if text is not None and isinstance(schemas.plan.schemas[TEXT], WriterSchema):
        assert meant(text) is not None
        assert full_name(text) == parse(text).root["name"]
    return Outcome(schemas.plan.schemas, schemas.plan.columns)


def as_key(text: str | None) -> Outcome:
    texts = {} if text is None else {TEXT: text}
    keys = start(Source(keys={**texts, WIDER: '"string"'}), record_columns=KEY_COLUMNS).keys
    assert keys is not None
    return Outcome(keys.plan.schemas, keys.plan.columns)


def with_privacy(text: str | None) -> Outcome:
    plan = start(Source(around(text)), privacy=Privacy(POLICIES, KEYS)).plan
    return Outcome(plan.schemas, plan.columns)


def with_specs(text: str | None) -> Outcome:
    plan = start(Source(around(text)), specs=(SPEC,)).plan
    return Outcome(plan.schemas, plan.columns)


def in_iceberg(text: str | None) -> Outcome:
    schemas = start(Source(around(text)), settings("iceberg").column_rules)
    made = schema_of(schemas.columns())
    mapping_of(made)
    assert len(columns_of(made)) == len(schemas.columns())
    return Outcome(schemas.plan.schemas, schemas.plan.columns)


def by_route(text: str | None) -> Outcome:
    """Decode by one plan, and fill a table of a route by another, which needs an event time and a bucket."""
    decoding = start(Source(around(text)), admission=Admission(extended=SchemaPlan.decode_only)).plan
    plan = SchemaPlan(pa.schema([]))
    for schema_id, known in decoding.schemas.items():
        if isinstance(known, WriterSchema):
            plan = admitted(settings("delta"), "auto", plan, schema_id, known.text)
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


WAYS: dict[str, Callable[[str | None], Outcome]] = {
    "value": as_value,
    "key": as_key,
    "privacy": with_privacy,
    "specs": with_specs,
    "iceberg": in_iceberg,
    "route": by_route,
}
