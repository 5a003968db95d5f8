"""The columns of a JSON Schema: what each kind of member becomes, what `$ref` means, and which texts are refused."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.json.envelope import envelope, read_envelope
from headrace.writer.json.json_schema import record_text, schema_fingerprint, schema_name, text_columns, title_of
from headrace.writer.preflight.checks import source_checks
from headrace.writer.schemas.registry import ConfluentRegistry
from headrace.writer.schemas.registry_client import SchemaNotFound, UnreadableSchema
from headrace.writer.schemas.schema_id_check import fingerprint_of
from headrace.writer.schemas.subjects import full_name
from headrace.writer.schemas.tracker import _reason
from tests.servers.confluent_api import ConfluentApi, reference
from tests.servers.scripted import serve_script

TIMESTAMP = pa.timestamp("us", "UTC")
TEXT = "JSON text"
DRAFTS = (
    "http://json-schema.org/draft-04/schema#",
    "http://json-schema.org/draft-06/schema#",
    "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)
DECIMAL = "org.apache.kafka.connect.data.Decimal"


def of_objects(properties: Mapping[str, Any], **words: Any) -> str:
    return json.dumps({"type": "object", "properties": properties, **words})


def record(text: str, references: Mapping[str, str] | None = None, undeclared: str = "drop") -> avro.Record:
    return avro.parse(record_text(text, references or {}, undeclared=undeclared, misfit="dead_letter"))


def field(parsed: avro.Record, name: str) -> Mapping[str, Any]:
    return next(each for each in parsed.fields if each["name"] == name)


def column(schema: Any, references: Mapping[str, str] | None = None, **words: Any) -> Any:
    """Return the type of a member's column, or TEXT."""
    parsed = record(of_objects({"m": schema}, **words), references)
    if field(parsed, "m")["type"][1] == {"type": "string", "headrace.json": "text"}:
        return TEXT
    return avro.table_fields(parsed)["m"]


def connect_decimal(**parameters: Any) -> dict[str, Any]:
    return {"type": "number", "title": DECIMAL, "connect.type": "bytes", "connect.parameters": parameters}


MEMBERS: dict[str, tuple[Any, Any]] = {
    "integer": ({"type": "integer"}, pa.int64()),
    "bounds change nothing": ({"type": "integer", "minimum": 0, "maximum": 7}, pa.int64()),
    "Connect's int8": ({"type": "integer", "connect.type": "int8"}, pa.int32()),
    "Connect's int16": ({"type": "integer", "connect.type": "int16"}, pa.int32()),
    "Connect's int32": ({"type": "integer", "connect.type": "int32"}, pa.int32()),
    "Connect's int64": ({"type": "integer", "connect.type": "int64"}, pa.int64()),
    "number": ({"type": "number"}, pa.float64()),
    "Connect's float32": ({"type": "number", "connect.type": "float32"}, pa.float32()),
    "Connect's float64": ({"type": "number", "connect.type": "float64"}, pa.float64()),
    "a type of Connect that JSON's type is not": ({"type": "number", "connect.type": "int8"}, pa.float64()),
    "Connect's decimal": (connect_decimal(scale="2"), pa.decimal128(38, 2)),
    "and its precision": (connect_decimal(scale=3, **{"connect.decimal.precision": "9"}), pa.decimal128(9, 3)),
    "a decimal without a scale": (connect_decimal(), TEXT),
    "a decimal of 50 digits": (connect_decimal(scale="2", **{"connect.decimal.precision": "50"}), TEXT),
    "a decimal with a scale of 39": (connect_decimal(scale="39"), TEXT),
    "Connect's timestamp": ({"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp"}, TIMESTAMP),
    "boolean": ({"type": "boolean"}, pa.bool_()),
    "string": ({"type": "string", "pattern": "^a", "maxLength": 3}, pa.string()),
    "date-time": ({"type": "string", "format": "date-time"}, TIMESTAMP),
    "date": ({"type": "string", "format": "date"}, pa.date32()),
    "time": ({"type": "string", "format": "time"}, pa.string()),
    "uuid": ({"type": "string", "format": "uuid"}, pa.string()),
    "a format of what is no text": ({"type": "integer", "format": "date"}, pa.int64()),
    "base64": ({"type": "string", "contentEncoding": "base64"}, pa.binary()),
    "another encoding": ({"type": "string", "contentEncoding": "base16"}, pa.string()),
    "Connect's bytes": ({"type": "string", "connect.type": "bytes"}, pa.binary()),
    "enum": ({"enum": ["a", "b"]}, pa.string()),
    "enum with null": ({"enum": ["a", None]}, pa.string()),
    "enum of numbers": ({"enum": [1, 2.5]}, pa.float64()),
    "enum of true and 1": ({"enum": [True, 1]}, TEXT),
    "enum of texts and integers": ({"enum": ["a", 1]}, TEXT),
    "const": ({"const": 5}, pa.int64()),
    "const null": ({"const": None}, TEXT),
    "the type goes before the values": ({"type": "number", "enum": [1, 2]}, pa.float64()),
    "[T, null]": ({"type": ["null", "string"], "format": "date"}, pa.date32()),
    "null alone": ({"type": "null"}, TEXT),
    "two types": ({"type": ["string", "integer"]}, TEXT),
    "a number is an integer too": ({"type": ["number", "integer"]}, pa.float64()),
    "oneOf with null": ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, pa.int64()),
    "anyOf with null": ({"anyOf": [{"type": "boolean"}, {"enum": [None]}]}, pa.bool_()),
    "oneOf of one type": ({"oneOf": [{"type": "string"}, {"const": "a"}]}, pa.string()),
    "oneOf of two types": ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, TEXT),
    "a type beside oneOf": ({"type": "string", "oneOf": [{"minLength": 3}, {"pattern": "a"}]}, pa.string()),
    "a oneOf of oneOf": (
        {"oneOf": [{"type": "null"}, {"anyOf": [{"type": "integer"}, {"type": "null"}]}]}, pa.int64(),
    ),
    "array": ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.field("element", pa.int64()))),
    "array without type": ({"items": {"type": "integer"}}, pa.list_(pa.field("element", pa.int64()))),
    "array of arrays": (
        {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
        pa.list_(pa.field("element", pa.list_(pa.field("element", pa.string())))),
    ),
    "array of anything": ({"type": "array"}, TEXT),
    "array of true": ({"type": "array", "items": True}, TEXT),
    "array of two types": ({"type": "array", "items": {"type": ["string", "integer"]}}, TEXT),
    "tuple of 2020": ({"type": "array", "prefixItems": [{"type": "string"}], "items": {"type": "string"}}, TEXT),
    "tuple of before": ({"type": "array", "items": [{"type": "string"}]}, TEXT),
    "map": ({"type": "object", "additionalProperties": {"type": "integer"}}, pa.map_(pa.string(), pa.int64())),
    "Connect's map": (
        {"type": "object", "connect.type": "map", "additionalProperties": {"type": "boolean"}},
        pa.map_(pa.string(), pa.bool_()),
    ),
    "map by patterns": (
        {"type": "object", "patternProperties": {"^x": {"type": "string"}}, "additionalProperties": False},
        pa.map_(pa.string(), pa.string()),
    ),
    "patterns, and anything else": ({"type": "object", "patternProperties": {"^x": {"type": "string"}}}, TEXT),
    "map by patterns of two types": (
        {
            "type": "object", "additionalProperties": False,
            "patternProperties": {"^x": {"type": "string"}, "^y": {"type": "integer"}},
        },
        TEXT,
    ),
    "map of two types": ({"type": "object", "additionalProperties": {"type": ["string", "integer"]}}, TEXT),
    "object without schema": ({"type": "object"}, TEXT),
    "open object": ({"type": "object", "additionalProperties": True}, TEXT),
    "object that is always empty": ({"type": "object", "additionalProperties": False}, TEXT),
    "no type": ({}, TEXT),
    "true": (True, TEXT),
    "false": (False, TEXT),
    "a type of nobody": ({"type": "money"}, TEXT),
    "a schema among types, as in draft 3": ({"type": ["string", {"type": "object"}]}, TEXT),
    "object": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        pa.struct([("a", pa.int64())]),
    ),
    "object without type": ({"properties": {"a": {"type": "integer"}}}, pa.struct([("a", pa.int64())])),
    "object with open members": (
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        pa.struct([("a", pa.int64())]),
    ),
    "allOf": (
        {
            "allOf": [
                {"properties": {"a": {"type": "integer"}}},
                {"allOf": [{"properties": {"b": {"type": "string"}, "a": {"minimum": 0}}}]},
            ],
            "properties": {"c": {"type": "boolean"}},
        },
        pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.bool_())]),
    ),
    "allOf of one type": ({"allOf": [{"type": "number"}, {"type": "integer"}]}, pa.int64()),
    "allOf that nothing is": ({"allOf": [{"type": "string"}, {"type": "integer"}]}, TEXT),
    "allOf around a format": ({"allOf": [{"type": "string"}, {"format": "date"}]}, pa.date32()),
}  # fmt: skip


@pytest.mark.parametrize("case", MEMBERS)
def test_a_member_becomes_the_column_of_its_type(case: str) -> None:
    schema, kind = MEMBERS[case]
    assert column(schema) == kind


@pytest.mark.parametrize("case", MEMBERS)
def test_a_reason_stands_beside_each_column_of_json_text_and_beside_no_other(case: str) -> None:
    schema, kind = MEMBERS[case]
    columns = text_columns(of_objects({"m": schema}), {})
    assert [path for path, _ in columns] == (["$.m"] if kind is TEXT else [])
    assert all(reason.startswith("it") for _, reason in columns)


@pytest.mark.parametrize("draft", DRAFTS)
def test_each_draft_names_and_refers_in_its_words(draft: str) -> None:
    definitions = "$defs" if "20" in draft else "definitions"
    own_id = "id" if "04" in draft else "$id"
    address = {own_id: "address.json", "type": "object", "properties": {"street": {"type": "string"}}}
    text = of_objects(
        {
            "a": {"$ref": f"#/{definitions}/address"},
            "b": {"$ref": "address.json"},
            "c": {"$ref": "http://x.com/s/address.json#/properties/street"},
        },
        **{"$schema": draft, own_id: "http://x.com/s/order.json", definitions: {"address": address}},
    )
    street = pa.struct([("street", pa.string())])
    assert avro.table_fields(record(text)) == {"a": street, "b": street, "c": pa.string()}


def test_an_id_that_is_a_member_or_a_value_is_no_base() -> None:
    text = of_objects(
        {"id": {"type": "integer"}, "a": {"$ref": "#/definitions/t"}},
        definitions={"t": {"type": "string", "enum": [{"$id": "http://x.com/"}], "id": "other.json"}},
        **{"$schema": DRAFTS[2]},
    )
    assert avro.table_fields(record(text)) == {"id": pa.int64(), "a": pa.string()}


REFERENCES: dict[str, tuple[dict[str, Any], dict[str, Any], Any]] = {
    "a definition with signs in its name": (
        {"$ref": "#/$defs/a~1b~0c%20d"}, {"$defs": {"a/b~c d": {"type": "integer"}}}, pa.int64(),
    ),
    "an anchor": ({"$ref": "#int"}, {"$defs": {"x": {"$anchor": "int", "type": "integer"}}}, pa.int64()),
    "an anchor of draft 6": ({"$ref": "#int"}, {"definitions": {"x": {"$id": "#int", "type": "integer"}}}, pa.int64()),
    "a list": ({"$ref": "#/allOf/0/properties/x"}, {"allOf": [{"properties": {"x": {"type": "integer"}}}]}, pa.int64()),
    "a chain": (
        {"$ref": "#/$defs/a"}, {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}}, pa.int64(),
    ),
    "a dynamic one": (
        {"$dynamicRef": "#n"}, {"$defs": {"a": {"$dynamicAnchor": "n", "type": "integer"}}}, pa.int64(),
    ),
    "oneOf with null": (
        {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/a"}]}, {"$defs": {"a": {"type": "integer"}}}, pa.int64(),
    ),
    "words beside it": (
        {"$ref": "#/$defs/a", "format": "date"}, {"$defs": {"a": {"type": "string"}}}, pa.date32(),
    ),
    "the root, so itself": ({"$ref": "#"}, {}, TEXT),
    "the root in an array": ({"type": "array", "items": {"$recursiveRef": "#"}}, {}, TEXT),
    "the root in a map": ({"additionalProperties": {"$ref": "#"}, "type": "object"}, {}, TEXT),
    "itself among branches": (
        {"$ref": "#/$defs/a"}, {"$defs": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/a"}]}}}, TEXT,
    ),
    "a definition inside a resource of its own": (
        {"$ref": "inner.json"},
        {
            "$id": "http://x.com/outer.json",
            "$defs": {
                "i": {"$id": "inner.json", "$ref": "#/$defs/j", "$defs": {"j": {"type": "integer"}}},
                "j": {"type": "string"},
            },
        },
        pa.int64(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFERENCES)
def test_a_local_reference_is_followed(case: str) -> None:
    schema, words, kind = REFERENCES[case]
    assert column(schema, **words) == kind


def test_references_refer_to_others_relative_to_themselves() -> None:
    references = {
        "types/person.json": '{"type":"object","properties":{"home":{"$ref":"address.json"}}}',
        "types/address.json": '{"type":"object","properties":{"street":{"$ref":"#/$defs/t"},"by":{"$ref":"base.json"}},'
        '"$defs":{"t":{"type":"string"}}}',
        "base.json": '{"type":"integer"}',
    }
    address = pa.struct([("street", pa.string()), ("by", pa.int64())])
    assert column({"$ref": "types/person.json"}, references) == pa.struct([("home", address)])
    words = {"$id": "https://x.com/schemas/order.json"}
    assert column({"$ref": "types/address.json#/properties/by"}, references, **words) == pa.int64()


def test_a_reference_is_found_by_its_own_id() -> None:
    references = {"any name": '{"$id":"https://x.com/a.json","type":"integer"}'}
    assert column({"$ref": "https://x.com/a.json"}, references) == pa.int64()


def test_recursion_ends_in_json_text_with_the_tags_inside() -> None:
    node = {"type": "object", "properties": {
        "value": {"type": "string", "confluent:tags": ["PII"]}, "next": {"$ref": "#/$defs/node"},
    }}  # fmt: skip
    parsed = record(of_objects({"n": {"$ref": "#/$defs/node"}}, **{"$defs": {"node": node}}))
    next_field = field(parsed, "n")["type"][1]["fields"][1]
    assert next_field["type"][1]["headrace.json"] == "text"
    assert next_field["confluent:tags"] == ["PII"]


def test_a_type_that_is_used_twice_is_no_recursion() -> None:
    person = {"properties": {"name": {"type": "string"}}}
    employee = {"allOf": [{"$ref": "#/$defs/person"}, {"properties": {"boss": {"$ref": "#/$defs/person"}}}]}
    text = of_objects({"a": {"$ref": "#/$defs/e"}, "b": {"$ref": "#/$defs/e"}},
                      **{"$defs": {"person": person, "e": employee}})  # fmt: skip
    kind = pa.struct([("name", pa.string()), ("boss", pa.struct([("name", pa.string())]))])
    assert avro.table_fields(record(text)) == {"a": kind, "b": kind}


def test_each_record_has_a_name_of_its_own() -> None:
    inner = {"properties": {"c": {"type": "integer"}}}
    text = of_objects({"a.b": inner, "a": {"properties": {"b": inner}}, "a_b": inner, "l": {"items": inner},
                       "m": {"type": "object", "additionalProperties": inner}}, title="com.x.Order")  # fmt: skip
    names = list(record(text).named)
    assert len(set(names)) == len(names) == 7
    assert names[0] == "com.x.Order"
    assert all(name.startswith("com.x.Order_") for name in names[1:])


def test_the_order_is_connect_s_or_that_of_the_schema() -> None:
    members = {"z": 1, "y": None, "x": 0, "w": None}
    schemas = {
        name: {"oneOf": [{"type": "null"}, {"type": "string"}], **({} if index is None else {"connect.index": index})}
        for name, index in members.items()
    }
    assert list(avro.table_fields(record(of_objects(schemas)))) == ["x", "z", "y", "w"]


# --- attributes ----------------------------------------------------------------------------------------------------

TAGGED: dict[str, Any] = {
    "itself": {"type": "string", "confluent:tags": ["PII"]},
    "a tag that is no list": {"type": "string", "confluent:tags": "PII"},
    "behind a reference": {"$ref": "#/$defs/tagged"},
    "beside a reference": {"$ref": "#/$defs/plain", "confluent:tags": ["PII"]},
    "beside null": {"oneOf": [{"type": "null"}, {"type": "string", "confluent:tags": ["PII"]}]},
    "in a part of allOf": {"allOf": [{"type": "string"}, {"$ref": "#/$defs/tagged"}]},
    "in items": {"type": "array", "items": {"type": "string", "confluent:tags": ["PII"]}},
    "in values": {"type": "object", "additionalProperties": {"$ref": "#/$defs/tagged"}},
    "of an object": {"properties": {"a": {"type": "string"}}, "confluent:tags": ["PII"]},
    "in branches of one type": {"oneOf": [{"type": "string"}, {"type": "string", "confluent:tags": ["PII"]}]},
    "in branches of several types": {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/object"}]},
    "deep in what is JSON text": {"type": "array", "prefixItems": [{"items": {"$ref": "#/$defs/object"}}]},
}


@pytest.mark.parametrize("where", TAGGED)
def test_a_tag_protects_the_column_wherever_it_stands(where: str) -> None:
    definitions = {
        "plain": {"type": "string"},
        "tagged": {"type": "string", "confluent:tags": ["PII"]},
        "object": {"properties": {"a": {"$ref": "#/$defs/tagged"}, "b": {"type": "integer"}}},
    }
    parsed = record(of_objects({"m": TAGGED[where], "n": {"type": "string"}}, **{"$defs": definitions}))
    assert field(parsed, "m")["confluent:tags"] == ["PII"]
    assert "confluent:tags" not in field(parsed, "n")


def test_a_tag_that_holds_at_times_protects_always() -> None:
    tagged = {"properties": {"a": {"confluent:tags": ["PII"]}, "hidden": {"confluent:tags": ["SECRET"]}}}
    parsed = record(of_objects({"a": {"type": "string"}}, oneOf=[tagged, {"required": ["a"]}]), undeclared="rest")
    assert field(parsed, "a")["confluent:tags"] == ["PII"]
    assert field(parsed, "rest")["confluent:tags"] == ["SECRET"]


def test_a_tag_of_a_member_inside_is_that_of_its_own_field() -> None:
    inner = {"properties": {"a": {"type": "string", "confluent:tags": ["PII"]}}}
    parsed = record(of_objects({"m": inner}, **{"confluent:tags": ["ALL"]}))
    assert "confluent:tags" not in field(parsed, "m")
    assert field(parsed, "m")["type"][1]["fields"][0]["confluent:tags"] == ["PII"]
    assert parsed.root["confluent:tags"] == ["ALL"]


def test_tags_of_all_parts_count_and_what_is_no_text_stays_to_be_refused() -> None:
    schema = {"allOf": [{"type": "string", "confluent:tags": ["A", "B"]}], "confluent:tags": ["B", 7]}
    assert field(record(of_objects({"m": schema})), "m")["confluent:tags"] == ["B", "7", "A"]


def test_other_words_that_policies_may_name_are_attributes() -> None:
    schema = {"type": "string", "pii": True, "policy": "hash", "level": {"mask": 4}, "minLength": 3, "example": "Ann",
              "headrace.json": "text", "doc": "x", "name": "y", "$comment": "z", "aliases": ["q"]}  # fmt: skip
    parsed = field(record(of_objects({"m": schema})), "m")
    assert parsed == {
        "name": "m", "type": ["null", "string"], "default": None, "pii": True, "policy": "hash", "level": {"mask": 4},
    }  # fmt: skip


def test_settings_that_contradict_one_another_are_no_policy() -> None:
    schema = {"allOf": [{"type": "string", "policy": "hash"}], "policy": "clear"}
    assert field(record(of_objects({"m": schema})), "m")["policy"] == ["clear", "hash"]


def test_a_description_is_the_field_s_doc() -> None:
    schema = {"$ref": "#/$defs/a", "description": "Own \ud800"}
    text = of_objects({"m": schema, "n": {"$ref": "#/$defs/a"}}, description="An order",
                      **{"$defs": {"a": {"type": "string", "description": "Of the type"}}})  # fmt: skip
    parsed = record(text)
    assert [parsed.root["doc"], field(parsed, "m")["doc"], field(parsed, "n")["doc"]] == [
        "An order", "Own ?", "Of the type",
    ]  # fmt: skip


# --- the root ------------------------------------------------------------------------------------------------------


def test_the_root_says_how_values_are_read() -> None:
    text = of_objects({"a": {"type": "integer"}}, title="Click")
    parsed = record_text(text, {}, undeclared="dead_letter", misfit="null")
    assert json.loads(parsed) == {
        "type": "record", "name": "Click",
        "fields": [
            {"name": "a", "type": ["null", "long"], "default": None},
            {"name": "rest", "type": ["null", {"type": "string", "headrace.json": "rest"}], "default": None},
        ],
        "headrace.format": "json", "headrace.undeclared": "dead_letter", "headrace.misfit": "null",
        "headrace.fingerprint": schema_fingerprint(text, {}),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("undeclared", "misfit", "has_rest"),
    [("rest", "dead_letter", True), ("drop", "null", True), ("drop", "dead_letter", False), ("rest", "null", True)],
)
def test_each_record_has_a_rest_where_members_may_go_there(undeclared: str, misfit: str, has_rest: bool) -> None:
    inner = {"properties": {"rest": {"type": "string"}, "Rest_": {"type": "string"}}}
    text = of_objects({"a": inner, "l": {"type": "array", "items": inner}})
    columns = avro.table_fields(avro.parse(record_text(text, {}, undeclared=undeclared, misfit=misfit)))
    names = ["rest", "Rest_", *(["rest__"] if has_rest else [])]
    assert list(columns) == ["a", "l", *(["rest"] if has_rest else [])]
    assert [member.name for member in columns["a"]] == names
    assert [member.name for member in columns["l"].value_type] == names


ROOTS: dict[str, Any] = {
    "a reference": {"$ref": "#/$defs/order", "$defs": {"order": {"properties": {"a": {"type": "integer"}}}}},
    "allOf": {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}]},
    "oneOf with null": {"oneOf": [{"type": "null"}, {"properties": {"a": {"type": "integer"}}}]},
    "[object, null]": {"type": ["object", "null"], "properties": {"a": {"type": "integer"}}},
    "properties and oneOf": {"properties": {"a": {"type": "integer"}}, "oneOf": [{"required": ["a"]}, {}]},
}


@pytest.mark.parametrize("case", ROOTS)
def test_a_root_that_is_an_object_has_columns(case: str) -> None:
    assert avro.table_fields(record(json.dumps(ROOTS[case]))) == {"a": pa.int64()}


@pytest.mark.parametrize(
    "root",
    [
        True, {}, {"type": "object"}, {"type": "string"}, {"type": "array", "items": {"properties": {"a": True}}},
        {"type": "object", "properties": {}}, {"properties": {"": {"type": "string"}}}, {"type": ["object", "string"]},
        {"oneOf": [{"properties": {"a": True}}, {"properties": {"b": True}}]},
        {"type": "object", "additionalProperties": {"type": "integer"}}, {"$defs": {"a": {"properties": {}}}},
    ],
)  # fmt: skip
def test_a_root_without_members_is_refused_with_what_to_do(root: Any) -> None:
    with pytest.raises(UnsupportedSchema, match="Give it properties, or declare the columns in the configuration"):
        record(json.dumps(root))


def test_members_without_a_column_are_named_with_the_reason() -> None:
    text = of_objects(
        {"a": {"type": "array", "items": {"properties": {"": True, "x y": {}}}}, "b\x00": {"type": "string"}},
        anyOf=[{"properties": {"c": {"type": "string"}}}, {"properties": {"d": True}}],
    )
    columns = dict(text_columns(text, {}))
    assert list(columns) == ["$['b\\x00']", "$.a[]['']", "$.a[]['x y']", "$.c", "$.d"]
    assert "no column can have its name" in columns["$['b\\x00']"]
    assert "it has no column" in columns["$.c"]
    assert list(avro.table_fields(record(text))) == ["a"]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Click", "Click"), ("com.shop.Click", "com.shop.Click"), ("My clicks", "json_schema"), ("", "json_schema"),
        (7, "json_schema"), ("string", "json_schema"), ("record", "json_schema"), ("a..b", "json_schema"),
        ("Click\n", "json_schema"), ("x" * 300, "json_schema"),
    ],
)  # fmt: skip
def test_the_title_is_the_name_where_it_can_be_one(title: Any, name: str) -> None:
    text = of_objects({"a": {"type": "integer"}}, title=title)
    assert schema_name(text) == name
    assert record(text).root["name"] == name
    assert title_of(text) == (title if isinstance(title, str) else None)


# --- hostile texts -------------------------------------------------------------------------------------------------


def deep(levels: int) -> Any:
    schema: Any = {"type": "integer"}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


def laughs(levels: int, word: str) -> str:
    """Return a short text of a long schema: each level means the next one twice. `word`: by members, or branches."""
    definitions: dict[str, Any] = {f"d{levels}": {"type": "integer"}}
    for level in range(levels):
        inner = {"$ref": f"#/$defs/d{level + 1}"}
        definitions[f"d{level}"] = {"properties": {"a": inner, "b": inner}}
        if word == "oneOf":
            definitions[f"d{level}"] = {"oneOf": [inner, {**inner}]}
    return of_objects({"m": {"$ref": "#/$defs/d0"}}, **{"$defs": definitions})


HOSTILE: dict[str, tuple[str, str]] = {
    "nothing": ("", "not a JSON Schema: its text is no JSON"),
    "no JSON": ("{'a': 1}", "not a JSON Schema: its text is no JSON"),
    "a list": ("[1]", "not a JSON Schema: where a schema should stand"),
    "a number": ("1", "not a JSON Schema: where a schema should stand"),
    "null": ("null", "not a JSON Schema: where a schema should stand"),
    "brackets": ("[" * 100_000, "brackets inside one another"),
    "nested objects": (json.dumps(deep(60)), "levels deep; flatten it"),
    "more nested objects": (json.dumps(deep(240)), "levels deep; flatten it"),
    "nested allOf": ('{"allOf":[' * 240 + "{}" + "]}" * 240, "inside one another; flatten it"),
    "nested oneOf": ('{"oneOf":[' * 240 + "{}" + "]}" * 240, "inside one another; flatten it"),
    "nested items": ('{"properties":{"a":' + '{"items":' * 200 + "{}" + "}" * 202, "levels deep; flatten it"),
    "a number of many digits": (of_objects({"a": {"maximum": 0}}).replace("0", "9" * 5000), "thousands of digits"),
    "many members": (of_objects({f"m{n}": {"type": "integer"} for n in range(20_001)}), "20,000 parts; split it"),
    "billions of members": (laughs(40, "properties"), "parts; split it|levels deep"),
    "billions of branches": (laughs(40, "oneOf"), "parts; split it"),
    "a long description, often": (
        of_objects({f"m{n}": {"$ref": "#/$defs/a"} for n in range(300)},
                   **{"$defs": {"a": {"type": "string", "description": "x" * 100_000}}}),
        "characters; split it",
    ),
    "a loop": (
        of_objects({"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        "leads to itself",
    ),
    "a loop through allOf": (of_objects({"a": {"allOf": [{"$ref": "#/properties/a"}]}}), "leads to itself"),
    "a loop at the root": ('{"$ref":"#"}', "leads to itself"),
    "nowhere": (of_objects({"a": {"$ref": "#/$defs/a"}}), r"\$ref '#/\$defs/a' leads to no schema"),
    "no anchor": (of_objects({"a": {"$ref": "#a"}}), r"\$ref '#a' leads to no schema"),
    "no schema": (of_objects({"a": {"$ref": "#/type"}}), r"\$ref '#/type' leads to no schema"),
    "no place in a list": (
        of_objects({"a": {"$ref": "#/allOf/7"}}, allOf=[{}]), r"\$ref '#/allOf/7' leads to no schema",
    ),
    "a large place in a list": (
        of_objects({"a": {"$ref": f"#/allOf/{'9' * 5000}"}}, allOf=[{}]), "leads to no schema",
    ),
    "an unknown file": (
        of_objects({"a": {"$ref": "person.json"}}),
        r"\$ref 'person.json' is neither in the schema nor among its references; register the schema with a reference",
    ),
    "the draft itself": (of_objects({"a": {"$ref": DRAFTS[2]}}), "neither in the schema nor among its references"),
    "no URI": (of_objects({"a": {"$ref": "http://[x"}}, **{"$id": "http://[y"}), "neither in the schema"),
    "a reference that is no text": (of_objects({"a": {"$ref": 7}}), r"a \$ref that is no text"),
    "a member that is no schema": (of_objects({"a": "string"}), "where a schema should stand"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_text_that_is_no_table_is_refused_by_a_sentence(case: str) -> None:
    text, reason = HOSTILE[case]
    with pytest.raises(UnsupportedSchema, match=reason) as refusal:
        record(text)
    assert len(str(refusal.value)) < 1_000


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"x": {"$ref": "#/no"}}}, "$.a.x"),
        ({"type": "array", "items": {"properties": {"price": {"$ref": "b.json"}}}}, "$.a[].price"),
        ({"type": "array", "items": {"$ref": "#/no"}}, "$.a[]"),
        ({"additionalProperties": {"$ref": "#/no"}, "type": "object"}, "$.a.*"),
        ({"oneOf": [{"type": "string"}, {"$ref": "#/no"}]}, "$.a"),
        ({"allOf": [{"$ref": "#/properties/a"}]}, "$.a"),
        ({"properties": {"x": "string"}}, "$.a.x"),
        ({"properties": {"x": {"type": "string"}}, "additionalProperties": {"$ref": "#/no"}}, "$.a"),
    ],
)
def test_a_part_that_cannot_be_read_is_named_by_its_path(schema: Any, path: str) -> None:
    # What stands before and behind it can be read.
    sound = {"properties": {"y": {"type": "array", "items": {"type": "string"}}}}
    with pytest.raises(UnsupportedSchema) as refusal:
        record(of_objects({"0": sound, "a": schema, "z": sound}))
    assert str(refusal.value).startswith(f"{path}: ")


def test_a_reference_that_is_no_json_is_named() -> None:
    with pytest.raises(UnsupportedSchema, match=r"reference 'person\.json': its text is no JSON"):
        column({"type": "string"}, {"person.json": "{"})


# --- envelope and fingerprint --------------------------------------------------------------------------------------


def test_an_envelope_holds_a_schema_with_its_references() -> None:
    text = of_objects({"a": {"$ref": "b.json"}}, title="com.x.Order")
    assert read_envelope(envelope(text, {"b.json": "{}"})) == (text, {"b.json": "{}"})
    assert full_name(envelope(text, {"b.json": "{}"})) == "com.x.Order"
    assert full_name(envelope("{", {})) is None


@pytest.mark.parametrize(
    "text", ['{"$schema":"x"}', '{"properties":{}}', '{"type":"object"}', '{"$schema":"x","type":"array","items":{}}']
)
def test_a_plain_schema_is_an_envelope_without_references(text: str) -> None:
    assert read_envelope(text) == (text, {})


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '"string"', "{}", '{"type":"record","name":"R","fields":[],"properties":{},"$schema":"x"}',
        '{"type":"string"}', '{"headrace.format":"json","type":"object"}', '{"headrace.format":"json_schema"}',
        '{"headrace.format":"json_schema","schema":{},"references":{}}', '{"type":"enum","name":"E","$schema":1}',
        '{"headrace.format":"json_schema","schema":"{}","references":{"a":1}}',
    ],
)  # fmt: skip
def test_what_is_no_json_schema_is_no_envelope(text: str) -> None:
    assert read_envelope(text) is None


def test_a_fingerprint_tells_another_schema_from_another_spelling() -> None:
    text = '{"type": "object", "properties": {"a": {"type": "integer", "maximum": 1.0}}, "title": "T"}'
    same = '{"title":"T","properties":{"a":{"maximum":1,"type":"integer"}},"type":"object"}'
    fingerprint = schema_fingerprint(text, {"a": "{}", "b": "[]"})
    # Tables have it: it never changes.
    assert fingerprint == 4208376326656753663
    assert schema_fingerprint(same, {"b": "[ ]", "a": "{}"}) == fingerprint
    others = [
        schema_fingerprint(text, {}),
        schema_fingerprint(text, {"a": "[]", "b": "{}"}),
        schema_fingerprint(text.replace("integer", "number"), {"a": "{}", "b": "[]"}),
    ]
    assert len({fingerprint, *others}) == 4
    assert all(0 <= each < 2**63 for each in others)


def test_the_fingerprint_of_a_schema_is_that_of_its_envelope_and_of_its_record() -> None:
    text = of_objects({"a": {"$ref": "b.json"}})
    references = {"b.json": '{"type":"integer"}'}
    fingerprint = schema_fingerprint(text, references)
    assert fingerprint_of(envelope(text, references)) == fingerprint
    for undeclared in ("rest", "drop"):
        record_schema = record_text(text, references, undeclared=undeclared, misfit="dead_letter")
        assert fingerprint_of(record_schema) == fingerprint
    assert fingerprint_of(text) == schema_fingerprint(text, {})
    assert fingerprint_of(envelope("{", {})) is None
    plain = '{"type":"record","name":"R","fields":[]}'
    assert fingerprint_of(plain[:-1] + ',"headrace.fingerprint":7}') == fingerprint_of(plain) != 7


# --- the registry --------------------------------------------------------------------------------------------------


@pytest.fixture
def api() -> ConfluentApi:
    return ConfluentApi()


@pytest.fixture
def registry(api: ConfluentApi) -> Iterator[ConfluentRegistry]:
    with serve_script(api) as server:
        yield ConfluentRegistry(server.url)


def test_a_registry_hands_over_a_schema_with_all_that_it_refers_to(
    api: ConfluentApi, registry: ConfluentRegistry
) -> None:
    api.add("city", {"type": "string", "format": "date"}, kind="JSON")
    address = {"type": "object", "properties": {"city": {"$ref": "city.json"}}}
    api.add("address", address, [reference("city.json", "city")], kind="JSON")
    order = {"title": "Order", "properties": {"to": {"$ref": "address.json"}, "in": {"$ref": "city.json"}}}
    references = [reference("address.json", "address"), reference("city.json", "city")]
    schema_id = api.add("orders-value", order, references, kind="JSON")
    text = registry.schema(schema_id)
    assert registry.topic_schemas("orders") == {schema_id: text}
    parts = read_envelope(text)
    assert parts is not None
    assert set(parts[1]) == {"address.json", "city.json"}
    assert avro.table_fields(record(*parts)) == {"to": pa.struct([("city", pa.date32())]), "in": pa.date32()}


def test_of_two_references_of_one_name_the_first_counts(api: ConfluentApi, registry: ConfluentRegistry) -> None:
    api.add("a", {"type": "integer"}, kind="JSON")
    api.add("a", {"type": "string"}, kind="JSON")
    api.add("b", {"$ref": "a.json"}, [reference("a.json", "a", 2)], kind="JSON")
    order = {"properties": {"a": {"$ref": "a.json"}, "b": {"$ref": "b.json"}}}
    first = api.add("o", order, [reference("a.json", "a", 1), reference("b.json", "b")], kind="JSON")
    second = api.add("o", order, [reference("b.json", "b"), reference("a.json", "a", 1)], kind="JSON")
    kinds: list[Any] = []
    for schema_id in (first, second):
        parts = read_envelope(registry.schema(schema_id))
        assert parts is not None
        kinds.append(avro.table_fields(record(*parts))["a"])
    assert kinds == [pa.int64(), pa.string()]


def test_a_reference_that_the_registry_lacks_is_named(api: ConfluentApi, registry: ConfluentRegistry) -> None:
    schema_id = api.add("o", {"properties": {"a": {"$ref": "a.json"}}}, [reference("a.json", "a")], kind="JSON")
    with pytest.raises(SchemaNotFound, match="refers to version 1 of subject 'a', which is not in the registry"):
        registry.schema(schema_id)


def test_a_schema_without_references_is_an_envelope_too(api: ConfluentApi, registry: ConfluentRegistry) -> None:
    assert read_envelope(registry.schema(api.add("o", "true", kind="JSON"))) == ("true", {})


def test_an_unreadable_schema_is_the_reason_of_dead_letters() -> None:
    assert _reason(7, UnreadableSchema("schema id 7 is no JSON Schema")) == "schema id 7 is no JSON Schema"
    assert _reason(7, SchemaNotFound("x")) == "schema id 7 is unknown to the registry"


def test_validate_names_the_columns_that_are_json_text() -> None:
    text = record_text(
        of_objects({"a": {"type": "integer"}, "b": {}, "c": {"properties": {"d": {"type": "array"}}}}), {},
        undeclared="rest", misfit="dead_letter",
    )  # fmt: skip
    (finding,) = source_checks._json_texts(SchemaPlan(pa.schema([])).extend(7, text))
    assert finding.status == "ok"
    assert finding.message.startswith("2 columns of JSON Schemas without one type: b, c.d; kept as JSON text.")
