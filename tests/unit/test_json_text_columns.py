"""A column of JSON text stays one, and a column of strings as well: the one has JSON's quotes, the other none."""

import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.json.json_schema import record_text

STRING = {"type": "string"}
MIXED = {"type": ["string", "integer"]}
ANY: dict[str, Any] = {}


def text_of(properties: dict[str, Any]) -> str:
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, **properties}}
    return record_text(json.dumps(schema), {}, undeclared="rest", misfit="dead_letter")


def extend(*versions: dict[str, Any]) -> SchemaPlan:
    plan = SchemaPlan(pa.schema([]), frozenset())
    for schema_id, properties in enumerate(versions, start=1):
        plan = plan.extend(schema_id, text_of(properties))
    return plan


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ({"x": STRING}, {"x": MIXED}, "field 'x' is JSON text, but column 'x' holds plain text"),
        ({"x": MIXED}, {"x": STRING}, "field 'x' is plain text, but column 'x' holds JSON text"),
        (
            {"o": {"properties": {"x": STRING}}},
            {"o": {"properties": {"x": ANY}}},
            "field 'o.x' is JSON text, but column 'o.x' holds plain text",
        ),
        (
            {"l": {"items": STRING}, "m": {"type": "object", "additionalProperties": STRING}},
            {"l": MIXED},
            "field 'l' is string, but column 'l' holds list<element: string>",
        ),
        (
            {},
            {"rest": STRING},
            "field 'rest' is plain text, but column 'rest' holds JSON text of members without a column",
        ),
    ],
)
def test_a_version_that_changes_what_a_text_is_is_rejected(before: Any, after: Any, reason: str) -> None:
    plan = extend(before, after)
    assert isinstance(plan.schemas[1], WriterSchema)
    rejected = plan.schemas[2]
    assert isinstance(rejected, RejectedSchema)
    assert rejected.reason == f"schema id 2: {reason}"


def test_texts_of_one_kind_share_a_column() -> None:
    plan = extend({"x": MIXED, "y": STRING}, {"x": ANY, "y": {"enum": ["a"]}})
    assert all(isinstance(schema, WriterSchema) for schema in plan.schemas.values())
    assert plan.columns.field("x").type == pa.string()


def test_strings_of_avro_are_any_text() -> None:
    avro = {"type": "record", "name": "A", "fields": [{"name": name, "type": "string"} for name in ("x", "rest")]}
    plan = SchemaPlan(pa.schema([]), frozenset()).extend(1, json.dumps(avro)).extend(2, text_of({"x": MIXED}))
    assert all(isinstance(schema, WriterSchema) for schema in plan.schemas.values())
