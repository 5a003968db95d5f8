"""The record schema of a JSON Schema, drafts 4 to 2020-12.

Columns follow `type` alone, in whatever part of a schema it stands: bounds, patterns, `required`, `if` and `not` make
none. What has no one type that a column can have is a column of JSON text. Pure; nothing is fetched.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import DEPTH_MAX, PRIMITIVES, UnsupportedSchema, is_printable_name
from headrace.writer.json.record_schema import (
    ENCODING,
    Misfit,
    Undeclared,
    has_rest,
    nested_name,
    nullable_field,
    rest_field,
    root_attributes,
)
from headrace.writer.json.schema_documents import JsonSchema, SchemaDocuments, read_document
from headrace.writer.json.schema_values import SchemaReader, ValueSchema

# Name of the record of a schema without a title.
NAME = "json_schema"
FINGERPRINT = "headrace.fingerprint"
TAGS = "confluent:tags"
_JSON_TEXT: Mapping[str, Any] = {"type": "string", ENCODING: "text"}
_INTEGERS: Mapping[str | None, str] = {"int8": "int", "int16": "int", "int32": "int"}
_DECIMAL_TITLE = "org.apache.kafka.connect.data.Decimal"
_FORMATS: Mapping[str | None, Any] = {
    "date-time": {"type": "long", "logicalType": "timestamp-micros"},
    "date": {"type": "int", "logicalType": "date"},
}
_FINGERPRINT_BYTES = 8


class _NoType(Exception):
    """A value has no one type that a column can have; the message says why."""


@dataclass(frozen=True)
class TextColumn:
    """A column of JSON text: the path to it, and why it has no type."""

    path: str
    reason: str


@dataclass
class _RecordWriter:
    """Writes the record schema of what schemas say of a value."""

    reader: SchemaReader
    name: str
    has_rest: bool
    texts: list[TextColumn] = field(default_factory=list)

    def write_record(self, value: ValueSchema, path: tuple[str, ...]) -> dict[str, Any]:
        """Return the record of an object with properties. Raises UnsupportedSchema."""
        if len(path) > DEPTH_MAX:
            raise UnsupportedSchema(f"it is more than {DEPTH_MAX} levels deep; flatten it")
        fields = [
            self._write_field(name, schemas, value, path)
            for name, schemas in _properties(value).items()
            if is_printable_name(name)
        ]
        if self.has_rest:
            fields.append(self._write_rest({column["name"] for column in fields}, value))
        return {"type": "record", "name": nested_name(self.name, path), "fields": fields}

    def _write_rest(self, names: set[str], value: ValueSchema) -> dict[str, Any]:
        """Return the field of members without a column, with the tags of all that may go there."""
        try:
            column = rest_field(names)
        except ValueError as error:
            raise UnsupportedSchema(f"{error}; rename one") from error
        tags = self._tags_inside(list(self._members_without_column(value)))
        if tags:
            column[TAGS] = tags
        return column

    def _members_without_column(self, value: ValueSchema) -> Iterator[JsonSchema]:
        """Yield the schemas of members that have no column: they go to `rest`, and so must what protects them."""
        columns = {name for name in _properties(value) if is_printable_name(name)}
        for name, schemas in {**self.reader.conditional_members(value), **_properties(value)}.items():
            if name not in columns:
                yield from schemas
        for word in ("additionalProperties", "unevaluatedProperties"):
            yield from value.objects(word)
        for patterns in value.objects("patternProperties"):
            yield from patterns.values()

    def _write_field(
        self, name: str, schemas: list[JsonSchema], around: ValueSchema, path: tuple[str, ...]
    ) -> dict[str, Any]:
        value = self.reader.read(schemas, around.around)
        member_path = (*path, name)
        attributes: dict[str, Any] = {}
        tags = _tags_of(value)
        try:
            kind = self.write_type(value, member_path)
        except _NoType as reason:
            self.texts.append(TextColumn(".".join(member_path), str(reason)))
            kind = dict(_JSON_TEXT)
            # The text has all that is inside.
            tags = self._tags_inside(schemas)
        description = value.first_text("description")
        if description is not None:
            attributes["doc"] = description
        if tags:
            attributes[TAGS] = tags
        return {**nullable_field(name, kind), **attributes}

    def write_type(self, value: ValueSchema, path: tuple[str, ...]) -> Any:
        """Return the type of a column in a record schema. Raises _NoType."""
        if value.is_recursive:
            raise _NoType("it contains itself")
        kinds = value.types()
        if kinds == {"object"} and _properties(value):
            return self.write_record(value, path)
        branch_type = self._type_of_branches(value, path)
        if branch_type is not None:
            return branch_type
        if not kinds:
            raise _NoType("it says no type")
        if len(kinds) > 1:
            raise _NoType(f"it may be {' or '.join(sorted(kinds))}")
        match next(iter(kinds)):
            case "boolean":
                return "boolean"
            case "integer" | "number" as number:
                return _number_type(value, number)
            case "string":
                return _string_type(value)
            case "array":
                return self._write_array(value, path)
            case "object":
                return self._write_map(value, path)
        raise _NoType("it has a type that JSON does not have")

    def _type_of_branches(self, value: ValueSchema, path: tuple[str, ...]) -> Any:
        """Return the one type of all branches of oneOf and anyOf that say some; None where none says any."""
        types = []
        for branch in (branch for branches in value.choices for branch in branches):
            branch_value = self.reader.read([branch], value.around)
            if branch_value.is_recursive:
                raise _NoType("it contains itself")
            if branch_value.types() is not None or branch_value.choices:
                types.append(self.write_type(branch_value, path))
        if any(kind != types[0] for kind in types):
            raise _NoType("it has several types, by oneOf or anyOf")
        return types[0] if types else None

    def _write_array(self, value: ValueSchema, path: tuple[str, ...]) -> Any:
        if any("prefixItems" in part or isinstance(part.get("items"), list) for part in value.parts):
            raise _NoType("it is a tuple")
        if value.first_text("connect.type") == "map":
            raise _NoType("it is a map of Connect, an array of keys and values")
        items = list(value.objects("items"))
        if not items:
            raise _NoType("it is an array of anything")
        item = self.write_type(self.reader.read(items, value.around), (*path, "[]"))
        return {"type": "array", "items": ["null", item]}

    def _write_map(self, value: ValueSchema, path: tuple[str, ...]) -> Any:
        values = list(value.objects("additionalProperties"))
        patterns = [schema for schemas in value.objects("patternProperties") for schema in schemas.values()]
        if not values and len(patterns) == 1:
            values = patterns
        elif patterns:
            raise _NoType("it has members of several patterns")
        if not values:
            raise _NoType("it is an object without properties")
        item = self.write_type(self.reader.read(values, value.around), (*path, "*"))
        return {"type": "map", "values": ["null", item]}

    def _tags_inside(self, schemas: list[JsonSchema]) -> list[str]:
        """Return the tags of schemas, and of all that is inside them."""
        tags: dict[str, None] = {}
        for schema in self.reader.iterate_inside(schemas):
            tags |= dict.fromkeys(_tags(schema))
        return list(tags)


def record_text(schema_text: str, references: Mapping[str, str], *, undeclared: Undeclared, misfit: Misfit) -> str:
    """Return the text of the record schema of a JSON Schema. `references`: texts by the names in `$ref`.

    Raises UnsupportedSchema for what is no JSON Schema, leads nowhere, or has no properties at its root.
    """
    record, _ = _write(schema_text, references, keeps_rest=has_rest(undeclared, misfit))
    fingerprint = {FINGERPRINT: schema_fingerprint(schema_text, references)}
    return json.dumps({**record, **root_attributes(undeclared, misfit), **fingerprint})


def text_columns(schema_text: str, references: Mapping[str, str]) -> list[TextColumn]:
    """Return the columns of a JSON Schema that are JSON text. Raises as `record_text` does."""
    _, texts = _write(schema_text, references, keeps_rest=False)
    return texts


def schema_name(schema_text: str) -> str:
    """Return the name of the record of a JSON Schema: its title, or NAME."""
    try:
        document = read_document(schema_text)
    except UnsupportedSchema:
        return NAME
    title = None
    if isinstance(document, dict):
        title = document.get("title")
    is_name = isinstance(title, str) and is_printable_name(title) and not title.endswith(".")
    if not is_name or title in PRIMITIVES:
        return NAME
    return str(title)


def schema_fingerprint(schema_text: str, references: Mapping[str, str]) -> int:
    """Return what tells a JSON Schema from others: signed, 64 bits of the SHA-256 of its JSON, and its references'."""
    documents = {name: _canonical(text) for name, text in references.items()}
    content = json.dumps([_canonical(schema_text), documents], sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(content).digest()[:_FINGERPRINT_BYTES], "big", signed=True)


def _canonical(text: str) -> str:
    try:
        return json.dumps(read_document(text), sort_keys=True)
    except UnsupportedSchema:
        return text


def _write(
    schema_text: str, references: Mapping[str, str], *, keeps_rest: bool
) -> tuple[dict[str, Any], list[TextColumn]]:
    documents = SchemaDocuments(schema_text, references)
    reader = SchemaReader(documents)
    root = reader.read([documents.root])
    if root.types() != {"object"} or not _properties(root):
        raise UnsupportedSchema(
            "the root of the JSON Schema is no object with properties, so it has no columns; register an object, or "
            "read the topic by `columns.declared`"
        )
    writer = _RecordWriter(reader, schema_name(schema_text), has_rest=keeps_rest)
    record = writer.write_record(root, ())
    return record, writer.texts


def _properties(value: ValueSchema) -> dict[str, list[JsonSchema]]:
    """Return the schemas of an object's members, by name: in the order of Connect's index, else as they stand."""
    members: dict[str, list[JsonSchema]] = {}
    for properties in value.objects("properties"):
        for name, schema in properties.items():
            members.setdefault(name, []).append(schema)
    return dict(sorted(members.items(), key=lambda member: _connect_index(member[1])))


def _connect_index(schemas: list[JsonSchema]) -> int:
    indexes = [schema.get("connect.index") for schema in schemas if isinstance(schema, dict)]
    return next((index for index in indexes if isinstance(index, int)), 1 << 30)


def _number_type(value: ValueSchema, number: str) -> Any:
    connect_type = value.first_text("connect.type")
    if value.first_text("title") == _DECIMAL_TITLE:
        return _decimal_type(value)
    if number == "integer":
        return _INTEGERS.get(connect_type, "long")
    return "float" if connect_type == "float32" else "double"


def _decimal_type(value: ValueSchema) -> Any:
    parameters = next(value.objects("connect.parameters"), {})
    try:
        precision = int(parameters.get("connect.decimal.precision", avro.DECIMAL_DIGITS_MAX))
        scale = int(parameters["scale"])
    except (LookupError, TypeError, ValueError):
        raise _NoType("it is a Decimal of Connect without a scale") from None
    if not (1 <= precision <= avro.DECIMAL_DIGITS_MAX and 0 <= scale <= precision):
        raise _NoType(f"it is a Decimal of Connect of more than {avro.DECIMAL_DIGITS_MAX} digits")
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _string_type(value: ValueSchema) -> Any:
    if value.first_text("connect.type") == "bytes" or value.first_text("contentEncoding") == "base64":
        return "bytes"
    return _FORMATS.get(value.first_text("format"), "string")


def _tags_of(value: ValueSchema) -> list[str]:
    tags: dict[str, None] = {}
    for part in value.own_parts_first:
        tags |= dict.fromkeys(_tags(part))
    return list(tags)


def _tags(schema: JsonSchema) -> list[str]:
    tags = None
    if isinstance(schema, dict):
        tags = schema.get(TAGS)
    if isinstance(tags, str):
        return [tags]
    if not isinstance(tags, list):
        return []
    return [tag for tag in tags if isinstance(tag, str)]
