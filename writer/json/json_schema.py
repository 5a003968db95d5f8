"""The record schema of a JSON Schema, draft 4 to 2020-12: the columns of its values.

A column follows `type` alone: integer → long, number → double, boolean, string; `format` date-time and date → timestamp
and date; `contentEncoding` base64 → bytes; an array of one type → array; an object with properties → record, and one
whose members have any name and one type → map. `connect.type`, Connect's Decimal and Connect's Timestamp narrow that.
What has no one type is JSON text: several types, tuples, objects without members that are named, and what contains
itself. Words that only validate, such as `pattern`, `minimum`, `required` and `not`, change nothing. Pure.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import (
    DEPTH_MAX,
    KEYWORDS,
    PARTS_MAX,
    TEXT_MAX,
    UnsupportedSchema,
    is_printable_name,
    quote_name,
)
from headrace.writer.json.field_attributes import read_attributes
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
from headrace.writer.json.schema_documents import JsonSchema, SchemaDocuments, UnreadablePart, read_document
from headrace.writer.json.schema_values import SchemaReader, ValueSchema

# Attribute of the root: `schema_fingerprint` of the JSON Schema.
FINGERPRINT = "headrace.fingerprint"
# Name of the record of a schema without a title.
UNTITLED = "json_schema"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_NAME_CHARACTERS_MAX = 200
_PLAIN_STEP = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_JSON_TEXT: Mapping[str, Any] = {"type": "string", ENCODING: "text"}
_TIMESTAMP: Mapping[str, Any] = {"type": "long", "logicalType": "timestamp-micros"}
_FORMATS: Mapping[str, Any] = {"date-time": _TIMESTAMP, "date": {"type": "int", "logicalType": "date"}}
# Of `connect.type`, by the type of JSON.
_CONNECT_TYPES: Mapping[str, Mapping[str, str]] = {
    "integer": {"int8": "int", "int16": "int", "int32": "int", "int64": "long"},
    "number": {"float32": "float", "float64": "double"},
}
_NUMBERS = {"integer": "long", "number": "double"}
_CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_CONNECT_TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"
# Digits of a decimal in Connect's parameters, which are texts.
_DIGITS = re.compile("[0-9]{1,4}")
# Behind those that have an index.
_NO_INDEX = 2**63
# Steps into the items of an array and the values of a map.
_ITEM = "[]"
_VALUE = "*"


def record_text(schema_text: str, references: Mapping[str, str], *, undeclared: Undeclared, misfit: Misfit) -> str:
    """Return the text of the record schema of a JSON Schema. Raises UnsupportedSchema.

    `references`: the texts of all schemas that it refers to, also through others, by the names in `$ref`.
    """
    builder = _RecordBuilder(schema_text, references, has_rest=has_rest(undeclared, misfit))
    record = {
        **builder.root_record(),
        **root_attributes(undeclared, misfit),
        FINGERPRINT: schema_fingerprint(schema_text, references),
    }
    text = json.dumps(record)
    avro.parse(text)
    return text


def text_columns(schema_text: str, references: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return what has no typed column: the path of each member, such as `$.items[].price`, and the reason.

    Each is a column of JSON text, but for members that the reason says have no column. Raises UnsupportedSchema.
    """
    builder = _RecordBuilder(schema_text, references, has_rest=True)
    builder.root_record()
    return [(_show_path(note.path), note.reason) for note in builder.notes]


def schema_name(schema_text: str) -> str:
    """Return the name of a JSON Schema's record: its title, where that is a name. Raises UnsupportedSchema."""
    return _name_of(read_document(schema_text))


def title_of(schema_text: str) -> str | None:
    """Return the title of a JSON Schema, by which Confluent's serializers name subjects. Raises UnsupportedSchema."""
    return _title(read_document(schema_text))


def schema_fingerprint(schema_text: str, references: Mapping[str, str]) -> int:
    """Return the first 63 bits of the SHA-256 of a JSON Schema and its references, whatever the order of their keys.

    Raises UnsupportedSchema. Tables keep it for good: the spelling must never change.
    """
    document = {
        "schema": _read_canonical(schema_text),
        "references": {name: _read_canonical(text) for name, text in references.items()},
    }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class _Note:
    """Why a member has no typed column. `path`: the names that lead to it."""

    path: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class _Column:
    """The type of a column, and the schemas whose attributes count for it.

    `reason`: why it is JSON text; None for a column with a type.
    """

    type: Any
    sources: Sequence[Mapping[str, Any]]
    reason: str | None = None


class _RecordBuilder:
    """Builds the record of one JSON Schema."""

    def __init__(self, schema_text: str, references: Mapping[str, str], *, has_rest: bool) -> None:
        self._documents = SchemaDocuments(schema_text, references)
        self._reader = SchemaReader(self._documents)
        self._has_rest = has_rest
        self._name = _name_of(self._documents.root)
        self._columns = 0
        # Of names, descriptions and attributes so far.
        self._characters = 0
        # Of the member whose schemas are read, for a message.
        self._path: tuple[str, ...] = ()
        self.notes: list[_Note] = []

    def root_record(self) -> dict[str, Any]:
        """Return the record of the root. Raises UnsupportedSchema where it has no members."""
        try:
            return self._read_root()
        except UnreadablePart as error:
            raise UnsupportedSchema(f"{_show_path(self._path)}: {error}") from None

    def _read_root(self) -> dict[str, Any]:
        root = self._reader.read([self._documents.root])
        types = root.types()
        if types is not None and types != {"object"}:
            _refuse_root(f"the root is {_show_types(types)}, and no object")
        record = self._record(root, (), 0)
        if record is None:
            _refuse_root("the root is no object with properties")
        return {**record, **self._doc(root), **self._attributes(root.parts)}

    def _column(self, value: ValueSchema, path: tuple[str, ...], depth: int) -> _Column:
        """Return the column of a value. Raises UnsupportedSchema. `depth`: how many values are around it."""
        self._path = path
        self._columns += 1
        if self._columns > PARTS_MAX:
            raise UnsupportedSchema(f"it unfolds to more than {PARTS_MAX:,} parts; split it")
        if depth > DEPTH_MAX:
            raise UnsupportedSchema(f"it is more than {DEPTH_MAX} levels deep; flatten it")
        if value.is_recursive:
            return self._text(value, "it contains itself")
        types = value.types()
        if types is None:
            return self._choice(value, path, depth)
        if len(types) != 1:
            return self._text(value, f"it is {_show_types(types)}")
        match next(iter(types)):
            case "boolean":
                return _Column("boolean", value.parts)
            case "integer" | "number" as name:
                return self._number(value, name)
            case "string":
                return _Column(_string_type(value), value.parts)
            case "array":
                return self._array(value, path, depth)
            case "object":
                record = self._record(value, path, depth)
                if record is None:
                    return self._map(value, path, depth)
                return _Column(record, value.parts)
            case other:
                return self._text(value, f"its type {quote_name(other)} is none of JSON Schema")

    def _text(self, value: ValueSchema, reason: str) -> _Column:
        """Return a column of JSON text, which is protected as what is inside it is."""
        return _Column(_JSON_TEXT, list(self._reader.iterate_inside(value.outer)), reason)

    def _choice(self, value: ValueSchema, path: tuple[str, ...], depth: int) -> _Column:
        """Return the column of a value without a type of its own: that of all its branches, where these have one."""
        if not value.choices:
            return self._text(value, "it has no type")
        around = value.around | {id(part) for part in value.parts}
        notes_before = len(self.notes)
        notes_of_first = notes_before
        columns: list[_Column] = []
        for branch in (branch for branches in value.choices for branch in branches):
            self._path = path
            column = self._column(self._reader.read([branch], around), path, depth + 1)
            if column.reason is not None or column.type != (columns or [column])[0].type:
                del self.notes[notes_before:]
                return self._text(value, "its oneOf or anyOf has branches of several types")
            if columns:
                # A branch like the first has the notes of the first.
                del self.notes[notes_of_first:]
            notes_of_first = len(self.notes)
            columns.append(column)
        return _Column(columns[0].type, [*value.parts, *(part for column in columns for part in column.sources)])

    def _number(self, value: ValueSchema, name: str) -> _Column:
        titled = {part["title"]: part for part in value.parts if isinstance(part.get("title"), str)}
        if name == "number" and _CONNECT_DECIMAL in titled:
            decimal = _decimal_type(titled[_CONNECT_DECIMAL])
            if decimal is None:
                reason = f"it is a decimal whose scale is unknown, or of more than {avro.DECIMAL_DIGITS_MAX} digits"
                return self._text(value, reason)
            return _Column(decimal, value.parts)
        if name == "integer" and _CONNECT_TIMESTAMP in titled:
            return _Column({**_TIMESTAMP, ENCODING: "ms"}, value.parts)
        connect_type = value.first_text("connect.type")
        return _Column(_CONNECT_TYPES[name].get(connect_type or "", _NUMBERS[name]), value.parts)

    def _array(self, value: ValueSchema, path: tuple[str, ...], depth: int) -> _Column:
        is_tuple = any("prefixItems" in part or isinstance(part.get("items"), list) for part in value.parts)
        if is_tuple:
            return self._text(value, "it is an array whose items have a type each by their place")
        schemas = list(value.objects("items"))
        if not schemas:
            return self._text(value, "it is an array whose items have no schema")
        notes_before = len(self.notes)
        self._path = (*path, _ITEM)
        items = self._reader.read(schemas, value.around_parts("items"))
        column = self._column(items, (*path, _ITEM), depth + 1)
        if column.reason is not None:
            del self.notes[notes_before:]
            return self._text(value, f"it is an array whose items have no one type: {column.reason}")
        return _Column({"type": "array", "items": ["null", column.type]}, [*value.parts, *column.sources])

    def _map(self, value: ValueSchema, path: tuple[str, ...], depth: int) -> _Column:
        """Return the column of an object without named members."""
        more = list(value.objects("additionalProperties"))
        patterns = [schema for by_name in value.objects("patternProperties") for schema in by_name.values()]
        is_closed = any(part.get("additionalProperties") is False for part in value.parts)
        groups = [[schema] for schema in patterns]
        if not is_closed:
            groups.append(more)
        if [] in groups or not groups:
            return self._text(value, "it is an object that names no members, nor one type for all of them")
        around = value.around_parts("additionalProperties") | value.around_parts("patternProperties")
        notes_before = len(self.notes)
        columns: list[_Column] = []
        for schemas in groups:
            self._path = (*path, _VALUE)
            column = self._column(self._reader.read(schemas, around), (*path, _VALUE), depth + 1)
            if column.reason is not None:
                del self.notes[notes_before:]
                return self._text(value, f"it is an object whose members have no one type: {column.reason}")
            columns.append(column)
        if any(column.type != columns[0].type for column in columns):
            del self.notes[notes_before:]
            return self._text(value, "it is an object whose members have types by their names")
        sources = [*value.parts, *(source for column in columns for source in column.sources)]
        return _Column({"type": "map", "values": ["null", columns[0].type]}, sources)

    def _record(self, value: ValueSchema, path: tuple[str, ...], depth: int) -> dict[str, Any] | None:
        """Return the record of an object; None where it names no members that can have a column."""
        schemas: dict[str, list[JsonSchema]] = {}
        for properties in value.objects("properties"):
            for name, schema in properties.items():
                schemas.setdefault(name, []).append(schema)
        unprintable = {name: schemas.pop(name) for name in list(schemas) if not is_printable_name(name)}
        if not schemas:
            return None
        for name in unprintable:
            self._note((*path, name), "no column can have its name; it is as undeclared as a member without a schema")
        conditional = self._reader.conditional_members(value)
        members = {name: self._member(value, name, schemas[name], (*path, name)) for name in schemas}
        fields = [
            self._field(name, members[name], conditional.pop(name, []), (*path, name), depth)
            for name in sorted(members, key=lambda name: _connect_index(members[name]))
        ]
        for name in conditional:
            self._note((*path, name), "only a part of oneOf, anyOf or if names it; it has no column, and is undeclared")
        hidden = [schema for member in (*unprintable.values(), *conditional.values()) for schema in member]
        self._path = path
        # Whether a schema can be read does not depend on where undeclared members go.
        column = self._rest_field(set(schemas), [*hidden, *_other_members(value)])
        if self._has_rest:
            fields.append(column)
        return {"type": "record", "name": self._type_name(path), "fields": fields}

    def _member(
        self, value: ValueSchema, name: str, schemas: Sequence[JsonSchema], path: tuple[str, ...]
    ) -> ValueSchema:
        """Return what the schemas of a member say. They contain themselves where they lead to a part that names it."""
        self._path = path
        containing = {id(part) for part in value.parts if name in _properties_of(part)}
        return self._reader.read(schemas, value.around | containing)

    def _field(
        self, name: str, value: ValueSchema, conditional: Sequence[JsonSchema], path: tuple[str, ...], depth: int
    ) -> dict[str, Any]:
        """Return the field of a member. `conditional`: what is said of it at times, whose attributes count always."""
        self._spend(len(name))
        column = self._column(value, path, depth + 1)
        if column.reason is not None:
            self._note(path, column.reason)
        self._path = path
        sources = [*column.sources, *self._reader.iterate_inside(conditional)]
        return {
            **nullable_field(name, column.type),
            **self._doc(value),
            **self._attributes([*value.own_parts_first, *sources]),
        }

    def _rest_field(self, names: set[str], hidden: Sequence[JsonSchema]) -> dict[str, Any]:
        """Return the field that takes members without a column. `hidden`: schemas of such members."""
        return {**rest_field(names), **self._attributes(self._reader.iterate_inside(hidden))}

    def _doc(self, value: ValueSchema) -> dict[str, Any]:
        """Return the description, which may have half of a pair of characters, as a field has it."""
        description = value.first_text("description")
        if description is None:
            return {}
        self._spend(len(description))
        return {"doc": description.encode(errors="replace").decode()}

    def _attributes(self, sources: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        attributes = read_attributes(sources)
        self._spend(sum(len(word) + len(str(setting)) for word, setting in attributes.items()))
        return attributes

    def _type_name(self, path: tuple[str, ...]) -> str:
        name = nested_name(self._name, path)
        self._spend(len(name))
        return name

    def _note(self, path: tuple[str, ...], reason: str) -> None:
        self._spend(sum(map(len, path)))
        self.notes.append(_Note(path, reason))

    def _spend(self, characters: int) -> None:
        self._characters += characters
        if self._characters > TEXT_MAX:
            raise UnsupportedSchema(f"it unfolds to more than {TEXT_MAX:,} characters; split it")


def _string_type(value: ValueSchema) -> Any:
    if value.first_text("connect.type") == "bytes" or value.first_text("contentEncoding") == "base64":
        return "bytes"
    return _FORMATS.get(value.first_text("format") or "", "string")


def _decimal_type(part: Mapping[str, Any]) -> Any:
    """Return the type of Connect's Decimal; None where no column holds it."""
    parameters = part.get("connect.parameters")
    if not isinstance(parameters, dict):
        return None
    scale = _read_digits(parameters.get("scale"))
    precision = _read_digits(parameters.get("connect.decimal.precision", avro.DECIMAL_DIGITS_MAX))
    if scale is None or precision is None or not 1 <= precision <= avro.DECIMAL_DIGITS_MAX or scale > precision:
        return None
    # A number, or text in base64, as Connect's `decimal.format` says; the schema is the same.
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    return {**decimal, ENCODING: "connect"}


def _read_digits(parameter: Any) -> int | None:
    """Return a number of digits; None where there is none. Connect's parameters are texts."""
    if isinstance(parameter, bool) or not _DIGITS.fullmatch(str(parameter)):
        return None
    return int(str(parameter))


def _connect_index(value: ValueSchema) -> int:
    """Return the place among the fields that Connect says; one behind all others where it says none."""
    indexes = (part.get("connect.index") for part in value.own_parts_first)
    return next((index for index in indexes if type(index) is int), _NO_INDEX)


def _properties_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = part.get("properties")
    return properties if isinstance(properties, dict) else {}


def _other_members(value: ValueSchema) -> Iterator[JsonSchema]:
    """Yield the schemas of members that an object does not name."""
    yield from value.objects("additionalProperties")
    yield from value.objects("unevaluatedProperties")
    for by_name in value.objects("patternProperties"):
        yield from by_name.values()


def _title(document: JsonSchema) -> str | None:
    title = document.get("title") if isinstance(document, dict) else None
    return title if isinstance(title, str) else None


def _name_of(document: JsonSchema) -> str:
    title = _title(document)
    if title is None or len(title) > _NAME_CHARACTERS_MAX or not _NAME.fullmatch(title):
        return UNTITLED
    return UNTITLED if title in KEYWORDS else title


def _read_canonical(text: str) -> Any:
    return read_document(text, parse_float=_read_number)


def _read_number(text: str) -> float:
    """Read a number as JSON means it: 1.0 is 1."""
    number = float(text)
    return int(number) if number.is_integer() else number


def _show_types(types: set[str]) -> str:
    """Say of which types a value is."""
    if not types:
        return "of no type but null, or of types that exclude one another"
    names = [quote_name(name) for name in sorted(types)]
    return f"of the type {' or '.join(names)}" if len(names) == 1 else f"of the types {' and '.join(names)}"


def _show_path(path: tuple[str, ...]) -> str:
    """Return a path as reasons have it, such as `$.items[].price`."""
    steps = ["$"]
    for step in path:
        if step == _ITEM:
            steps.append(step)
        elif step == _VALUE or _PLAIN_STEP.fullmatch(step):
            steps.append(f".{step}")
        else:
            steps.append(f"[{quote_name(step)}]")
    return "".join(steps)


def _refuse_root(fact: str) -> NoReturn:
    raise UnsupportedSchema(
        f"{fact}, so a table has no columns for it. Give it properties, or declare the columns in the configuration"
    )
