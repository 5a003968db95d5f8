"""Columns of JSON Schemas: the mapping table, references, tags, and texts that are no schema."""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.json.envelope import envelope, read_envelope
from headrace.writer.json.json_schema import (
    record_text,
    schema_fingerprint,
    schema_name,
    text_columns,
)
from headrace.writer.schemas.schema_id_check import fingerprint_of
from headrace.writer.schemas.subjects import full_name

TIMESTAMP = pa.timestamp("us", "UTC")
STRING = {"type": "string"}
INTEGER = {"type": "integer"}
TEXT = "JSON text"


def record_of(schema: Any, references: Mapping[str, Any] | None = None, **rules: str) -> avro.Record:
    texts = {name: json.dumps(part) for name, part in (references or {}).items()}
    settings: Any = {"undeclared": "drop", "misfit": "dead_letter", **rules}
    return avro.parse(record_text(json.dumps(schema), texts, **settings))


def column_of(member: Any, references: Mapping[str, Any] | None = None, **schema: Any) -> Any:
    """The type of the only column of an object, or TEXT."""
    document = {"type": "object", "properties": {"v": member}, **schema}
    record = record_of(document, references)
    texts = {name: json.dumps(part) for name, part in (references or {}).items()}
    paths = [text.path for text in text_columns(json.dumps(document), texts)]
    return TEXT if "v" in paths else avro.table_fields(record)["v"]


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ({"type": "boolean"}, pa.bool_()),
        (INTEGER, pa.int64()),
        ({"type": "integer", "connect.type": "int8"}, pa.int32()),
        ({"type": "integer", "connect.type": "int32"}, pa.int32()),
        ({"type": "integer", "connect.type": "int64"}, pa.int64()),
        ({"type": "integer", "minimum": 0, "maximum": 3}, pa.int64()),
        ({"type": "number"}, pa.float64()),
        ({"type": "number", "connect.type": "float32"}, pa.float32()),
        (
            {
                "type": "number", "title": "org.apache.kafka.connect.data.Decimal",
                "connect.parameters": {"scale": "2", "connect.decimal.precision": "9"},
            },
            pa.decimal128(9, 2),
        ),
        ({"type": "number", "title": "org.apache.kafka.connect.data.Decimal"}, TEXT),
        (STRING, pa.string()),
        ({"type": "string", "format": "date-time"}, TIMESTAMP),
        ({"type": "string", "format": "date"}, pa.date32()),
        ({"type": "string", "format": "uuid"}, pa.string()),
        ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
        ({"type": "string", "connect.type": "bytes"}, pa.binary()),
        ({"enum": ["a", "b"]}, pa.string()),
        ({"enum": ["a", "b", None]}, pa.string()),
        ({"const": 5}, pa.int64()),
        ({"enum": [1, "a"]}, TEXT),
        ({"type": ["string", "null"]}, pa.string()),
        ({"type": ["null", "integer"]}, pa.int64()),
        ({"oneOf": [{"type": "null"}, STRING]}, pa.string()),
        ({"anyOf": [INTEGER, {"type": "null"}]}, pa.int64()),
        ({"anyOf": [INTEGER, STRING]}, TEXT),
        ({"oneOf": [STRING, {"type": "string", "maxLength": 5}]}, pa.string()),
        ({"type": ["string", "integer"]}, TEXT),
        ({"type": "array", "items": STRING}, pa.list_(pa.field("element", pa.string()))),
        ({"type": "array", "items": {"anyOf": [STRING, INTEGER]}}, TEXT),
        ({"type": "array", "items": [STRING]}, TEXT),
        ({"type": "array", "prefixItems": [STRING], "items": STRING}, TEXT),
        ({"type": "array"}, TEXT),
        ({"type": "object", "properties": {"a": INTEGER}}, pa.struct([("a", pa.int64())])),
        ({"properties": {"a": INTEGER}}, pa.struct([("a", pa.int64())])),
        ({"type": "object", "additionalProperties": INTEGER}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object", "patternProperties": {"^x": INTEGER}}, pa.map_(pa.string(), pa.int64())),
        ({"type": "object", "patternProperties": {"^x": INTEGER, "^y": STRING}}, TEXT),
        ({"type": "object", "additionalProperties": {}}, TEXT),
        ({"type": "object"}, TEXT),
        ({}, TEXT),
        (True, TEXT),
        ({"allOf": [{"type": "object", "properties": {"a": INTEGER}}, {"properties": {"b": STRING}}]},
         pa.struct([("b", pa.string()), ("a", pa.int64())])),
        ({"allOf": [STRING, {"maxLength": 3}]}, pa.string()),
    ],
)  # fmt: skip
def test_a_member_becomes_a_column(member: Any, expected: Any) -> None:
    found = column_of(member)
    if isinstance(expected, pa.DataType) and pa.types.is_struct(expected):
        assert {field.name: field.type for field in found} == {field.name: field.type for field in expected}
    else:
        assert found == expected


def test_references_lead_into_the_schema_and_to_those_that_the_registry_lists() -> None:
    definitions = {"$defs": {"money": {"type": "number"}}, "definitions": {"old": INTEGER}}
    assert column_of({"$ref": "#/$defs/money"}, **definitions) == pa.float64()
    assert column_of({"$ref": "#/definitions/old"}, **definitions) == pa.int64()
    assert column_of({"$ref": "#m"}, **{"$defs": {"money": {"$anchor": "m", "type": "number"}}}) == pa.float64()
    person = {"type": "object", "properties": {"born": {"$ref": "#/$defs/day"}, "home": {"$ref": "place.json"}},
              "$defs": {"day": {"type": "string", "format": "date"}}}  # fmt: skip
    references = {"person.json": person, "place.json": STRING}
    assert column_of({"$ref": "person.json"}, references) == pa.struct([("born", pa.date32()), ("home", pa.string())])
    assert column_of({"$ref": "person.json#/$defs/day"}, references) == pa.date32()


def test_what_contains_itself_is_json_text_there() -> None:
    node = {"type": "object", "properties": {"n": INTEGER, "next": {"$ref": "#/$defs/node"}}}
    assert column_of({"$ref": "#/$defs/node"}, **{"$defs": {"node": node}}) == pa.struct(
        [("n", pa.int64()), ("next", pa.string())]
    )
    assert column_of({"$ref": "#"}) == TEXT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a JSON Schema: its text is no JSON"),
        ("5", "not a JSON Schema"),
        ('{"type": "string"}', "the root of the JSON Schema is no object with properties"),
        ('{"type": "object"}', "no object with properties"),
        ('{"type": ["object", "array"], "properties": {"a": {}}}', "no object with properties"),
        ('{"$ref": "#"}', "a $ref leads to itself"),
        ('{"$ref": "x.json"}', "register the schema with a reference of the name 'x.json'"),
        ('{"properties": {"a": {"$ref": "#/nope"}}}', "$ref '#/nope' leads to no schema"),
        ('{"properties": {"a": {"$ref": 5}}}', "a $ref that is no text"),
        ('{"properties": {"rest": {}, "rest_": {}}}', "leaves no name for the others; rename one"),
    ],
)
def test_a_text_that_gives_no_columns_is_refused_with_a_sentence(text: str, message: str) -> None:
    with pytest.raises(UnsupportedSchema) as refusal:
        record_text(text, {}, undeclared="rest", misfit="dead_letter")
    assert message in str(refusal.value)


def test_a_deep_schema_is_refused() -> None:
    schema: Any = INTEGER
    for _ in range(200):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(UnsupportedSchema, match="deep"):
        record_of(schema)


def test_columns_are_in_the_order_of_connect_or_of_the_schema() -> None:
    properties = {"b": {**STRING, "connect.index": 1}, "a": {**STRING, "connect.index": 0}}
    assert list(avro.table_fields(record_of({"type": "object", "properties": properties}))) == ["a", "b"]
    assert list(avro.table_fields(record_of({"properties": {"b": STRING, "a": STRING}}))) == ["b", "a"]


def test_tags_reach_the_columns_that_hold_what_they_mark() -> None:
    pii = {**STRING, "confluent:tags": ["PII"]}
    schema = {
        "type": "object",
        "properties": {
            "mail": pii,
            "card": {"$ref": "#/$defs/card"},
            "either": {"anyOf": [INTEGER, pii]},
            "user": {"type": "object", "properties": {"name": pii}},
        },
        "patternProperties": {"^x": pii},
        "$defs": {"card": {**STRING, "confluent:tags": ["CARD"]}},
    }
    fields = {field["name"]: field for field in record_of(schema, undeclared="rest").fields}
    assert fields["mail"]["confluent:tags"] == ["PII"]
    assert fields["card"]["confluent:tags"] == ["CARD"]
    assert fields["either"]["confluent:tags"] == ["PII"]
    assert "confluent:tags" not in fields["user"]
    assert fields["rest"]["confluent:tags"] == ["PII"]


def test_a_member_with_a_name_that_nobody_can_show_has_no_column() -> None:
    schema = {"properties": {"a": STRING, "b\u0000": STRING, "": STRING}}
    assert list(avro.table_fields(record_of(schema, undeclared="rest"))) == ["a", "rest"]


@pytest.mark.parametrize(
    ("title", "name"), [("com.acme.Click", "com.acme.Click"), (None, "json_schema"), ("", "json_schema"),
                        ("string", "json_schema"), ("a b", "a b"), (5, "json_schema"), ("x.", "json_schema")],
)  # fmt: skip
def test_the_title_names_the_record(title: Any, name: str) -> None:
    schema = {"title": title, "type": "object", "properties": {"a": STRING}}
    assert schema_name(json.dumps(schema)) == name
    assert record_of(schema).root["name"] == name
    assert full_name(json.dumps(schema)) == name


def test_a_fingerprint_is_that_of_the_schema_and_its_references_however_they_are_written() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "x"}}}
    text = json.dumps(schema, indent=2)
    other = json.dumps(dict(reversed(schema.items())))
    reference = {"x": '{"type": "string"}'}
    assert schema_fingerprint(text, reference) == schema_fingerprint(other, {"x": '{"type":"string"}'})
    assert schema_fingerprint(text, reference) != schema_fingerprint(text, {"x": '{"type": "integer"}'})
    record = record_text(text, reference, undeclared="rest", misfit="null")
    assert fingerprint_of(record) == fingerprint_of(envelope(text, reference)) == schema_fingerprint(text, reference)
    assert record_text(text, reference, undeclared="drop", misfit="null") != record


def test_an_envelope_is_read_back_and_no_avro_schema_is_one() -> None:
    assert read_envelope(envelope("{}", {"a": "[]"})) == ("{}", {"a": "[]"})
    plain = '{"type": "object", "properties": {"a": {}}}'
    assert read_envelope(plain) == (plain, {})
    for text in ("", "[]", '"string"', '{"type": "record", "name": "R", "fields": []}', '{"type": "enum"}'):
        assert read_envelope(text) is None
