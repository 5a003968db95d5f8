"""Converts an Avro schema to table columns, and frames a block of values for the native decoder.

Everything here is a pure function of the schema. Types of the table:

boolean, int, long, float, double, bytes, string → the same; fixed → binary; enum, uuid → string; date → date32;
timestamp-* and local-timestamp-* → timestamp[us, UTC] (nanoseconds are floored); time-millis → int32, time-micros →
int64 (of the day: Delta has no time type); duration → binary; decimal up to 38 digits → decimal128, wider → string;
array → list; map → map<string, …>; record → struct; [null, T] and [T] → T; [int, long] → long and [float, double] →
double; other unions → struct<member0, member1, …>, as Spark names them; null and records without fields are left out.
A logical type that does not fit the type it stands on is ignored, as Avro says.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from headrace.writer.avro.parsing_form import ParsingForm
from headrace.writer.avro.schema_text import (
    DEPTH_MAX,
    PARTS_MAX,
    TEXT_MAX,
    Schema,
    SchemaForm,
    UnsupportedSchema,
    parse_schema,
)
from headrace.writer.avro.type_visitor import TypePart, iterate_types

__all__ = ["Record", "Schema", "UnsupportedSchema", "parse"]
TIMESTAMP = pa.timestamp("us", "UTC")
# What decimal128 holds, and what every engine reads.
DECIMAL_DIGITS_MAX = 38
_PRIMITIVES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
UUID_BYTES = 16
_DECIMAL_KEYS = ("logicalType", "precision", "scale")
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}


@dataclass(frozen=True)
class Record:
    """An Avro record schema, parsed: full names, also in aliases of types, and every named type by its name."""

    text: str
    form: SchemaForm

    @property
    def root(self) -> Mapping[str, Any]:
        """The record itself."""
        root: Mapping[str, Any] = self.form.root
        return root

    @property
    def fields(self) -> list[Mapping[str, Any]]:
        """The record's fields in writing order."""
        return list(self.root["fields"])

    def resolve(self, schema: Schema) -> Schema:
        """Replace a name by its definition, and an object around a type by the type."""
        return self.form.resolve(schema)

    @property
    def named(self) -> Mapping[str, Schema]:
        """Every named type by its full name."""
        return self.form.named


# A task of a route reads the schemas of all its tables, one after the other in each batch.
@lru_cache(maxsize=1024)
def parse(text: str) -> Record:
    """Parse a schema's JSON text. Raises UnsupportedSchema when it is no record, refers to itself, or holds nothing."""
    form = parse_schema(text)
    if not isinstance(form.root, dict) or form.root["type"] != "record":
        root = _root_kind(form.root)
        raise UnsupportedSchema(f"the root is {root}, not a record; wrap it in a record with one field")
    record = Record(text, form)
    parts = _list_parts(record)
    _refuse_empty_types(record, parts)
    if sum(_path_lengths(record, parts)) > TEXT_MAX:
        raise UnsupportedSchema(
            f"the paths of its fields have more than {TEXT_MAX:,} characters together; shorten names"
        )
    if not table_fields(record):
        raise UnsupportedSchema("none of its fields holds a value; a table has no column for it")
    return record


def _root_kind(root: Schema) -> str:
    if isinstance(root, dict) and not isinstance(root["type"], str):
        return "a type with attributes around it"
    return type_name(root)


def table_fields(record: Record) -> dict[str, pa.DataType]:
    """Return the columns that the record's fields become, in order. Fields without a value (null) are left out."""
    types = ((str(field["name"]), table_type(record, field["type"])) for field in record.fields)
    return {name: kind for name, kind in types if kind is not None}


def table_type(record: Record, schema: Schema) -> pa.DataType | None:
    """Return the type of the table for one Avro type, None where there is nothing to store."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        branches = [branch for branch in schema if type_name(record.resolve(branch)) != "null"]
        return _union_type([table_type(record, branch) for branch in branches])
    logical = _logical_type(schema)
    if logical is not None:
        return logical
    match type_name(schema):
        case "null":
            return None
        case "record":
            children = [(field["name"], table_type(record, field["type"])) for field in schema["fields"]]
            members = [(name, kind) for name, kind in children if kind is not None]
            return pa.struct(members) if members else None
        case "array":
            item = table_type(record, schema["items"])
            return None if item is None else pa.list_(pa.field("element", item))
        case "map":
            value = table_type(record, schema["values"])
            return None if value is None else pa.map_(pa.string(), value)
        case "enum":
            return pa.string()
        case "fixed":
            return pa.binary()
        case primitive:
            return _PRIMITIVES[primitive]


def timestamp_unit(schema: Schema) -> str | None:
    """Return Arrow's unit (`ms`, `us`, `ns`) of an Avro timestamp type, None for any other type."""
    if not isinstance(schema, dict) or schema["type"] != "long":
        return None
    logical = str(schema.get("logicalType", ""))
    if not logical.startswith(("timestamp-", "local-timestamp-")):
        return None
    return _UNITS.get(logical.rsplit("-", 1)[1])


def is_uuid(schema: Schema) -> bool:
    """Return whether a fixed type is a UUID in 16 bytes, which becomes text."""
    is_uuid_type = isinstance(schema, dict) and schema.get("logicalType") == "uuid"
    return is_uuid_type and schema["type"] == "fixed" and schema["size"] == UUID_BYTES


def decimal_digits(schema: Schema) -> tuple[int, int] | None:
    """Return precision and scale of a decimal, None for any other type."""
    if not isinstance(schema, dict) or schema.get("logicalType") != "decimal":
        return None
    if type_name(schema) not in ("bytes", "fixed"):
        return None
    precision = int(schema.get("precision", 0))
    scale = int(schema.get("scale", 0))
    return (precision, scale) if precision >= 1 and 0 <= scale <= precision else None


def frame_schema(
    record: Record, before: Mapping[str, Schema], after: Mapping[str, Schema]
) -> tuple[str, dict[str, str]]:
    """Return, as JSON, a schema that reads other fields before and after each value as one record, and their names.

    Logical types are taken off, so the decoder hands over the plain numbers, text and bytes; but decimals of a fixed
    size stay. The names are lengthened until no field of the record has them.
    """
    field_names = {field["name"] for field in record.fields}
    names = {name: _unused_name(name, field_names) for name in (*before, *after)}
    plain = ParsingForm(record.form, _flat_name, _decimal_attributes)
    fields = [
        *({"name": names[name], "type": schema} for name, schema in before.items()),
        *({"name": field["name"], "type": plain.write(field["type"])} for field in record.fields),
        *({"name": names[name], "type": schema} for name, schema in after.items()),
    ]
    frame = {"type": "record", "name": _flat_name(record.root["name"]), "fields": fields}
    # The native decoder reads no escape in a name.
    return json.dumps(frame, ensure_ascii=False), names


def fixed_type(name: str, size: int) -> Schema:
    """Return the type of so many bytes, for a field of `frame_schema`."""
    return {"type": "fixed", "name": f"headrace_frame.{name}", "size": size}


def fixed_bytes(record: Record, schema: Schema) -> int:
    """Return how many bytes the fixed types in a type take together, each counted wherever it stands."""
    types = (part.schema for part in iterate_types(record.form, schema))
    return sum(int(schema["size"]) for schema in types if type_name(schema) == "fixed")


def branch_names(schema: Schema) -> tuple[str, ...]:
    """Return the names by which a branch of a union is known: its full name and its aliases, or its type."""
    if not isinstance(schema, dict):
        return (str(schema),)
    if "name" not in schema:
        return (str(schema["type"]),)
    return (str(schema["name"]), *schema.get("aliases", ()))


def type_name(schema: Schema) -> str:
    """Return the name of a type: `union` for one, of a named type the kind, such as `record`."""
    if isinstance(schema, list):
        return "union"
    if isinstance(schema, dict):
        return str(schema["type"])
    return str(schema)


def short_name(full: str) -> str:
    """Return a name without its namespace."""
    return full.rpartition(".")[2]


def _unused_name(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    return name


def _logical_type(schema: Schema) -> pa.DataType | None:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    if timestamp_unit(schema) is not None:
        return TIMESTAMP
    digits = decimal_digits(schema)
    if digits is not None:
        precision, scale = digits
        return pa.decimal128(precision, scale) if precision <= DECIMAL_DIGITS_MAX else pa.string()
    if is_uuid(schema):
        return pa.string()
    if schema["logicalType"] == "date" and schema["type"] == "int":
        return pa.date32()
    return None


def _union_type(members: list[pa.DataType | None]) -> pa.DataType | None:
    if not members:
        return None
    if len(members) == 1:
        return members[0]
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if members in ([narrow, wide], [wide, narrow]):
            return wide
    fields = [(f"member{i}", kind) for i, kind in enumerate(members) if kind is not None]
    return pa.struct(fields) if fields else None


def _decimal_attributes(schema: Mapping[str, Any]) -> Collection[str]:
    """Return the attributes of a decimal of a fixed size; none of another type.

    The native decoder hands over decimals of `bytes` as bytes: a decimal does not show how many bytes it had.
    """
    if schema["type"] != "fixed" or decimal_digits(schema) is None:
        return ()
    return _DECIMAL_KEYS


def _flat_name(full: str) -> str:
    """Return a name without dots, another for each full name: a part of a name never starts with a digit."""
    return full.replace("_", "__").replace(".", "_0")


def _list_parts(record: Record) -> list[TypePart]:
    """Return all types of a record. Raises UnsupportedSchema for what has no end, or one too far away."""
    parts: list[TypePart] = []
    for part in iterate_types(record.form, record.root):
        if part.is_recursive:
            raise UnsupportedSchema(f"record {part.schema['name']} contains itself; a table has no type for that")
        if len(parts) >= PARTS_MAX:
            raise UnsupportedSchema(f"it unfolds to more than {PARTS_MAX:,} parts; split it")
        if part.depth > DEPTH_MAX:
            raise UnsupportedSchema(f"it is more than {DEPTH_MAX} levels deep; flatten it")
        parts.append(part)
    return parts


def _refuse_empty_types(record: Record, parts: list[TypePart]) -> None:
    """Refuse what no value can have, and arrays of nothing: ten bytes claim 2^62 items, and a reader counts them."""
    for part in parts:
        match type_name(part.schema):
            case "union" if not part.schema:
                raise UnsupportedSchema("it has a union without branches; name its types")
            case "array" if takes_no_bytes(record, part.schema["items"]):
                raise UnsupportedSchema("it has an array whose items take no bytes; give them a field with a value")


def _path_lengths(record: Record, parts: list[TypePart]) -> Iterator[int]:
    """Yield how many characters the paths to a record's parts have, by all their names: logs and footers repeat each.

    The path to a branch or a field has the names of the fields around it.
    """
    for part in parts:
        names: list[str] = []
        match type_name(part.schema):
            case "union":
                for branch in part.schema:
                    names += branch_names(record.resolve(branch))
            case "record":
                for field in part.schema["fields"]:
                    names += (field["name"], *field.get("aliases", ()))
        if names:
            path_length = sum(len(step.name) for step in part.steps if step.kind == "field")
            yield sum(path_length + len(name) for name in names)


def takes_no_bytes(record: Record, schema: Schema) -> bool:
    """Return whether values of a type are empty in binary: it is null, a fixed type of size 0, or a record of these."""
    return all(_is_empty(part.schema) for part in iterate_types(record.form, schema))


def _is_empty(schema: Schema) -> bool:
    """Return whether a type itself adds no bytes to a value, whatever its fields add."""
    if type_name(schema) == "fixed":
        return bool(schema["size"] == 0)
    return type_name(schema) in ("null", "record")
