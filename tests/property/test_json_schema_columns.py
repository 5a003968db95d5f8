"""Any JSON Schema has columns or is refused by a sentence, and each value that is valid by it fits its columns.

The library `jsonschema` is the witness of what is valid.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given, strategies as st
from jsonschema import Draft202012Validator

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.json.envelope import envelope, read_envelope
from headrace.writer.json.json_schema import record_text, schema_fingerprint, schema_name, text_columns
from headrace.writer.schemas.schema_id_check import fingerprint_of
from headrace.writer.schemas.subjects import full_name

VALUES_OF_SCHEMA = 8
# Of the values that are drawn by a schema, how many must be valid, and typed columns to one of text, so that the test
# says something.
SHARE_MIN = 0.2
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
NAMES = ("a", "b", "rest", "id", "$ref", "x y", "", "\x00", "enum", "properties")
URIS = (
    "#", "#/", "#/$defs/a", "#/definitions/b", "#/properties/a", "#a", "a", "b.json", "b.json#/properties/a", "c.json",
    "http://x.com/a.json", "http://[", "#/allOf/0", "#/allOf/-1", "?", "%", "#%ff",
)  # fmt: skip
WORDS = (
    "type", "properties", "items", "prefixItems", "additionalProperties", "patternProperties", "allOf", "oneOf",
    "anyOf", "enum", "const", "$ref", "$id", "id", "$anchor", "$defs", "definitions", "format", "title", "description",
    "if", "then", "connect.type", "connect.index", "connect.parameters", "confluent:tags", "contentEncoding", "$schema",
    "pii", "dependentSchemas", "$dynamicRef", "unevaluatedProperties", "headrace.json", "name",
)  # fmt: skip

junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from((*TYPES, *URIS)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from((*WORDS, *NAMES)), inner, max_size=3),
    max_leaves=6,
)


def word_values(schemas: st.SearchStrategy[Any]) -> Mapping[str, st.SearchStrategy[Any]]:
    """Return what stands under each word in most schemas."""
    many = st.lists(schemas, max_size=3)
    by_name = st.dictionaries(st.sampled_from(NAMES), schemas, max_size=3)
    uris = st.sampled_from(URIS)
    types = st.sampled_from(TYPES)
    return {
        "type": types | st.lists(types, max_size=3),
        "properties": by_name,
        "items": schemas | many,
        "prefixItems": many,
        "additionalProperties": schemas,
        "unevaluatedProperties": schemas,
        "patternProperties": by_name,
        "dependentSchemas": by_name,
        "allOf": many,
        "oneOf": many,
        "anyOf": many,
        "if": schemas,
        "then": schemas,
        "enum": st.lists(junk, max_size=3),
        "$ref": uris,
        "$dynamicRef": uris,
        "$id": uris,
        "id": uris,
        "$anchor": st.sampled_from(("a", "b")),
        "$defs": st.dictionaries(st.sampled_from(("a", "b")), schemas),
        "definitions": st.dictionaries(st.sampled_from(("a", "b")), schemas),
        "format": st.sampled_from(("date", "date-time", "uuid")),
        "title": st.sampled_from(("T", "org.apache.kafka.connect.data.Decimal", "x y", "string")),
        "connect.type": st.sampled_from(("int8", "int64", "float32", "bytes", "map")),
        "connect.parameters": st.fixed_dictionaries({"scale": st.sampled_from(("2", 2, "-1", "99", "²", True))}),
        "$schema": st.sampled_from(
            ("http://json-schema.org/draft-04/schema#", "https://json-schema.org/draft/2020-12")
        ),
    }


@st.composite
def odd_schema(draw: st.DrawFn, schemas: st.SearchStrategy[Any]) -> Any:
    """Draw an object of words of JSON Schema, in one of ten with something else under a word."""
    usual = word_values(schemas)
    schema: dict[str, Any] = {}
    for word in draw(st.lists(st.sampled_from(WORDS), max_size=4, unique=True)):
        is_odd = word not in usual or draw(st.integers(0, 9)) == 0
        schema[word] = draw(junk if is_odd else usual[word])
    return schema


odd_schemas = st.recursive(st.booleans() | st.builds(dict), odd_schema, max_leaves=12)


@st.composite
def odd_roots(draw: st.DrawFn) -> Any:
    """Draw a schema, in most cases of an object with members."""
    root = draw(odd_schemas)
    if isinstance(root, dict) and draw(st.integers(0, 4)):
        members = draw(st.dictionaries(st.sampled_from(("a", "b", "c", "d")), odd_schemas, min_size=1))
        root = {**root, "type": "object", "properties": members}
    return root


@st.composite
def odd_texts(draw: st.DrawFn) -> str:
    """Draw a schema's text, in one of eight with a part of it cut, doubled or replaced."""
    text = json.dumps(draw(odd_roots()))
    if draw(st.integers(0, 7)):
        return text
    begin = draw(st.integers(0, len(text)))
    end = draw(st.integers(begin, min(len(text), begin + 8)))
    return (
        text[:begin]
        + draw(st.sampled_from(("", text[begin:end] * 2, "{", "null", "\ud800", "//", "1e999")))
        + text[end:]
    )


@given(
    text=odd_texts(),
    references=st.dictionaries(st.sampled_from(("a", "b.json", "http://x.com/a.json", "")), odd_texts(), max_size=2),
    undeclared=st.sampled_from(("rest", "drop", "dead_letter")),
    misfit=st.sampled_from(("null", "dead_letter")),
)
def test_any_text_has_columns_or_is_refused_by_a_sentence(
    text: str, references: dict[str, str], undeclared: str, misfit: str
) -> None:
    read_envelope(text)
    full_name(text)
    fingerprint_of(text)
    packed = envelope(text, references)
    assert read_envelope(packed) == (text, references)
    try:
        first = record_text(text, references, undeclared=undeclared, misfit=misfit)
    except UnsupportedSchema as refusal:
        assert 10 < len(str(refusal)) < 1_000  # noqa: PT017 - either has a meaning of its own
        return
    assert record_text(text, references, undeclared=undeclared, misfit=misfit) == first
    record = avro.parse(first)
    assert record.root["name"] == schema_name(text)
    assert fingerprint_of(first) == fingerprint_of(packed) == schema_fingerprint(text, references)
    rests = sum('"headrace.json": "rest"' in json.dumps(field["type"]) for field in record.fields)
    assert (rests > 0) == (undeclared == "rest" or misfit == "null")
    notes = text_columns(text, references)
    texts = first.count('{"type": "string", "headrace.json": "text"}')
    assert sum("it has no column" not in reason and "no column can" not in reason for _, reason in notes) == texts


# --- values of schemas, against the oracle -------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.sampled_from(("a", "b", "2020-01-01"))
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abx"), inner, max_size=2),
    max_leaves=5,
)


class SchemaDrawing:
    """Draws schemas that say their types. A `$ref` stands inside a member or an item, so that it has an end."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw

    def root(self) -> dict[str, Any]:
        definitions = {name: self.schema(2, refers=False) for name in ("d0", "d1")}
        return {**self.object(3), "$defs": definitions}

    def schema(self, depth: int, *, refers: bool = True) -> Any:
        kinds = ["scalar", "scalar", "scalar", "types", "values", "any"]
        if depth:
            kinds += ["object", "object", "array", "map", "choice", "null", "all"]
        if refers:
            kinds.append("reference")
        match self.draw(st.sampled_from(kinds)):
            case "types":
                return {"type": self.draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=2, unique=True))}
            case "values":
                return {"enum": self.draw(st.lists(scalars, min_size=1, max_size=3))}
            case "any":
                return self.draw(st.sampled_from((True, {}, {"description": "x"})))
            case "object":
                return self.object(depth)
            case "array":
                return self.array(depth)
            case "map":
                return self.map(depth)
            case "choice" | "null" as kind:
                word = self.draw(st.sampled_from(("oneOf", "anyOf")))
                other = {"type": "null"} if kind == "null" else self.schema(depth - 1, refers=refers)
                return {word: [self.schema(depth - 1, refers=refers), other]}
            case "all":
                return {"allOf": [self.schema(depth - 1, refers=refers), self.schema(depth - 1, refers=refers)]}
            case "reference":
                return {"$ref": self.draw(st.sampled_from(("#/$defs/d0", "#/$defs/d1")))}
        return self.draw(
            st.sampled_from(
                [
                    *({"type": name} for name in ("boolean", "integer", "number", "string")),
                    {"type": ["string", "null"]},
                    {"type": "string", "format": "date"},
                    {"type": "integer", "minimum": 0},
                    {"type": "string", "if": {"const": "a"}, "then": {"maxLength": 1}},
                ]
            )
        )

    def object(self, depth: int) -> dict[str, Any]:
        names = self.draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True))
        schema: dict[str, Any] = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        if self.draw(st.booleans()):
            schema["additionalProperties"] = self.schema(0)
        if self.draw(st.booleans()):
            schema["required"] = names[:1]
        if self.draw(st.integers(0, 3)) == 0:
            schema["oneOf"] = [{"required": names[:1]}, {"properties": {names[0]: False}}]
        return schema

    def array(self, depth: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "array", "items": self.schema(depth - 1)}
        if self.draw(st.integers(0, 3)) == 0:
            schema["prefixItems"] = [self.schema(0)]
        return schema

    def map(self, depth: int) -> dict[str, Any]:
        if self.draw(st.booleans()):
            return {"type": "object", "additionalProperties": self.schema(depth - 1)}
        patterns = {"^a": self.schema(depth - 1), "^b": self.schema(0)}
        closed = self.draw(st.sampled_from(({"additionalProperties": False}, {})))
        return {"type": "object", "patternProperties": patterns, **closed}


class ValueDrawing:
    """Draws values that are valid in many cases, by the words of a schema."""

    def __init__(self, draw: st.DrawFn, definitions: Mapping[str, Any]) -> None:
        self.draw = draw
        self.definitions = definitions

    def value(self, schema: Any, depth: int = 6) -> Any:
        if not isinstance(schema, dict) or depth == 0 or self.draw(st.integers(0, 19)) == 0:
            return self.draw(json_values)
        if "$ref" in schema:
            return self.value(self.definitions[schema["$ref"].rpartition("/")[2]], depth - 1)
        if "enum" in schema:
            return self.draw(st.sampled_from(schema["enum"]))
        if "type" not in schema:
            branches = [branch for word in ("oneOf", "anyOf", "allOf") for branch in schema.get(word, ())]
            return self.value(self.draw(st.sampled_from(branches)) if branches else True, depth - 1)
        kind = schema["type"]
        if isinstance(kind, list):
            kind = self.draw(st.sampled_from(kind))
        match kind:
            case "object":
                return self.object(schema, depth)
            case "array":
                items = [self.value(inner, depth - 1) for inner in schema.get("prefixItems", ())]
                return items + [
                    self.value(schema.get("items", True), depth - 1) for _ in range(self.draw(st.integers(0, 2)))
                ]
            case "null":
                return None
            case "boolean":
                return self.draw(st.booleans())
            case "integer":
                return self.draw(st.integers(0, 9) | st.just(1.0))
            case "number":
                return self.draw(st.integers(-9, 9) | st.floats(-9, 9))
        return self.draw(st.sampled_from(("a", "b", "2020-01-01")))

    def object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        members = {
            name: self.value(inner, depth - 1)
            for name, inner in schema.get("properties", {}).items()
            if name in schema.get("required", ()) or self.draw(st.booleans())
        }
        more = schema.get("additionalProperties", True)
        if more is not False and self.draw(st.booleans()):
            members.setdefault("x", self.value(more, depth - 1))
        for pattern, inner in schema.get("patternProperties", {}).items():
            if self.draw(st.booleans()):
                members.setdefault(pattern[1:], self.value(inner, depth - 1))
        return members


def misfit(record: avro.Record, kind: Any, value: Any, path: str = "$") -> str | None:
    """Return where a value does not fit the type of its column; None where it fits."""
    kind = record.resolve(kind)
    if isinstance(kind, list):
        return None if value is None else misfit(record, kind[1], value, path)
    if value is None or (isinstance(kind, dict) and kind.get("headrace.json") == "text"):
        return None
    match avro.type_name(kind):
        case "record" if isinstance(value, dict):
            fields = {field["name"]: field for field in kind["fields"]}
            pairs = [(fields[name]["type"], inner, f"{path}.{name}") for name, inner in value.items() if name in fields]
        case "map" if isinstance(value, dict):
            pairs = [(kind["values"], inner, f"{path}.{name}") for name, inner in value.items()]
        case "array" if isinstance(value, list):
            pairs = [(kind["items"], inner, f"{path}[]") for inner in value]
        case name:
            return None if fits_scalar(name, kind, value) else f"{path}: {value!r} in {kind}"
    return next(filter(None, (misfit(record, *pair) for pair in pairs)), None)


def fits_scalar(name: str, kind: Any, value: Any) -> bool:
    if isinstance(kind, dict):
        # Dates and times are text.
        return isinstance(value, str)
    match name:
        case "boolean":
            return isinstance(value, bool)
        case "long":
            # JSON Schema says of 1.0 that it is an integer.
            return type(value) is int or (type(value) is float and value.is_integer())
        case "double":
            return type(value) in (int, float)
        case "string":
            return isinstance(value, str)
    return False


@pytest.fixture(scope="module")
def tally() -> Iterator[Counter[str]]:
    """Count values, and check at the end that enough of them were valid."""
    counts = Counter[str]()
    yield counts
    assert counts["valid"] >= SHARE_MIN * counts["drawn"], counts
    assert counts["typed"] >= SHARE_MIN * counts["text"], counts


@given(data=st.data())
def test_a_value_that_is_valid_fits_its_columns(data: st.DataObject, tally: Counter[str]) -> None:
    schema = SchemaDrawing(data.draw).root()
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    text = json.dumps(schema)
    record = avro.parse(record_text(text, {}, undeclared="drop", misfit="dead_letter"))
    for field in record.fields:
        tally["text" if "headrace.json" in json.dumps(field["type"]) else "typed"] += 1
    drawing = ValueDrawing(data.draw, schema["$defs"])
    for _ in range(VALUES_OF_SCHEMA):
        value = drawing.value(schema)
        tally["drawn"] += 1
        if isinstance(value, dict) and validator.is_valid(value):
            tally["valid"] += 1
            assert misfit(record, record.root["name"], value) is None
