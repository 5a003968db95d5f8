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
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa
from fastavro.schema import fingerprint as canonical_fingerprint, parse_schema, to_parsing_canonical_form

TIMESTAMP = pa.timestamp("us", "UTC")
DECIMAL_DIGITS_MAX = 38  # decimal128, and what every engine reads
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
_PARTS_MAX = 20_000  # a few records that name each other can unfold to more than a machine holds
_DEPTH_MAX = 64
_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
Schema = Any  # Avro schemas are JSON: str | list | dict


class UnsupportedSchema(ValueError):
    """A schema whose records cannot become rows. Its message names the part and the reason."""


@dataclass(frozen=True)
class Record:
    """An Avro record schema, parsed: full names, also in aliases of types, and every named type by its name."""

    text: str
    root: Mapping[str, Any]
    named: Mapping[str, Schema]

    @property
    def fields(self) -> list[Mapping[str, Any]]:
        """The record's fields in writing order."""
        return list(self.root["fields"])

    def resolve(self, schema: Schema) -> Schema:
        """Replace a reference by the definition it names."""
        while isinstance(schema, dict) and isinstance(schema["type"], dict | list) and "name" not in schema:
            schema = schema["type"]
        return self.named[schema] if isinstance(schema, str) and schema in self.named else schema


def parse(text: str) -> Record:
    """Parse a schema's JSON text. Raises UnsupportedSchema when it is no record, refers to itself, or holds nothing."""
    named: dict[str, Schema] = {}
    try:
        root = parse_schema(json.loads(text, object_hook=_without_bad_decimal), named_schemas=named, _force=True)
    except Exception as error:  # fastavro raises what it stumbles over, such as KeyError for a missing "items"
        raise UnsupportedSchema(f"not an Avro schema: {type(error).__name__}: {error}") from error
    if not isinstance(root, dict) or root.get("type") != "record":
        raise UnsupportedSchema(f"the root is {_name(root)}, not a record; wrap it in a record with one field")
    for schema in named.values():
        _name_aliases_in_full(schema)
    record = Record(text, root, named)
    _refuse_recursion(record, root, (), count())
    _refuse_nonsense(record, root)
    if not table_fields(record):
        raise UnsupportedSchema("none of its fields holds a value; a table has no column for it")
    return record


def fingerprint(text: str) -> int:
    """Return a schema's CRC-64-AVRO, signed as Java gives it. Raises UnsupportedSchema when it is none.

    Avro 1.12, "Schema Fingerprints": of the parsing canonical form.
    """
    try:
        canonical = to_parsing_canonical_form(json.loads(text, object_hook=_without_bad_decimal))
        return int.from_bytes(bytes.fromhex(canonical_fingerprint(canonical, "CRC-64-AVRO")), "little", signed=True)
    except Exception as error:
        raise UnsupportedSchema(f"not an Avro schema: {type(error).__name__}: {error}") from error


def table_fields(record: Record) -> dict[str, pa.DataType]:
    """Columns that the record's fields become, in order. Fields without a value (null) are left out."""
    types = ((str(field["name"]), table_type(record, field["type"])) for field in record.fields)
    return {name: kind for name, kind in types if kind is not None}


def table_type(record: Record, schema: Schema) -> pa.DataType | None:
    """Type of the table for one Avro type, None where there is nothing to store."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _union_type([table_type(record, branch) for branch in schema if _name(record.resolve(branch)) != "null"])
    logical = _logical_type(schema)
    if logical is not None:
        return logical
    match _name(schema):
        case "null":
            return None
        case "record":
            children = [(f["name"], table_type(record, f["type"])) for f in schema["fields"]]
            kept = [(name, kind) for name, kind in children if kind is not None]
            return pa.struct(kept) if kept else None
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
    """Arrow's unit (`ms`, `us`, `ns`) of an Avro timestamp type, None for any other type."""
    logical = schema.get("logicalType", "") if isinstance(schema, dict) else ""
    if _name(schema) == "long" and logical.startswith(("timestamp-", "local-timestamp-")):
        return _UNITS.get(logical.rsplit("-", 1)[1])
    return None


def is_uuid(schema: Schema) -> bool:
    """Return whether a fixed type is a UUID in 16 bytes, which becomes text."""
    is_uuid_type = isinstance(schema, dict) and schema.get("logicalType") == "uuid"
    return is_uuid_type and schema["type"] == "fixed" and schema["size"] == UUID_BYTES


def decimal_digits(schema: Schema) -> tuple[int, int] | None:
    """Precision and scale of a decimal, None for any other type."""
    if not isinstance(schema, dict) or schema.get("logicalType") != "decimal":
        return None
    if _name(schema) not in ("bytes", "fixed"):
        return None
    precision, scale = int(schema.get("precision", 0)), int(schema.get("scale", 0))
    return (precision, scale) if precision >= 1 and 0 <= scale <= precision else None


def framed(record: Record, before: Mapping[str, Schema], after: Mapping[str, Schema]) -> tuple[str, dict[str, str]]:
    """Schema that reads other fields before and after each value, as one record. Returns it as JSON, and their names.

    Logical types are taken off, so the decoder hands over the plain numbers, text and bytes; but decimals of a fixed
    size stay. The names given are lengthened until no field of the record has them.
    """
    taken = {field["name"] for field in record.fields}
    names = {name: _free(name, taken) for name in (*before, *after)}
    fields = [
        *({"name": names[name], "type": schema} for name, schema in before.items()),
        *({"name": f["name"], "type": _plain(f["type"])} for f in record.fields),
        *({"name": names[name], "type": schema} for name, schema in after.items()),
    ]
    return json.dumps({"type": "record", "name": _flat_name(record.root["name"]), "fields": fields}), names


def fixed(name: str, size: int) -> Schema:
    """Return the type of so many bytes, for a field of `framed`."""
    return {"type": "fixed", "name": f"headrace_frame.{name}", "size": size}


def plain_schema(record: Record) -> Schema:
    """Parse the schema without its logical types, for writing raw numbers and bytes.

    A branch of a union of several becomes `record{value: branch}`, which is the same in binary, and has a name.
    """
    return parse_schema(_tagged(_plain(record.root, ()), count()), _force=True)


def samples(record: Record, number: int) -> Iterator[dict[str, Any]]:
    """Values for `plain_schema`, the same at each call, through every branch: what a decoder is probed with."""
    named: dict[str, Schema] = {}
    root = parse_schema(_tagged(_plain(record.root, ("bytes", "fixed")), count()), named_schemas=named, _force=True)
    tagged = Record(record.text, root, named)
    for n in range(number):
        yield {field["name"]: _sample(tagged, field["type"], n) for field in tagged.fields}


def fixed_bytes(record: Record, schema: Schema) -> int:
    """Return how many bytes the fixed types in a type take together, each counted wherever it stands."""
    schema = record.resolve(schema)
    own = int(schema["size"]) if _name(schema) == "fixed" else 0
    return own + sum(fixed_bytes(record, child) for child in _children(schema))


def branch_names(schema: Schema) -> tuple[str, ...]:
    """Return the names by which a branch of a union is known: its full name and its aliases, or its type."""
    if not isinstance(schema, dict):
        return (str(schema),)
    return (str(schema["name"]), *schema.get("aliases", ())) if "name" in schema else (str(schema["type"]),)


def short_name(full: str) -> str:
    """Return a name without its namespace."""
    return full.rpartition(".")[2]


def _name_aliases_in_full(schema: Schema) -> None:
    """Give the aliases of a named type its namespace where they have none. Avro 1.12, "Aliases"."""
    namespace = schema["name"].rpartition(".")[0]
    if namespace and "aliases" in schema:
        schema["aliases"] = [alias if "." in alias else f"{namespace}.{alias}" for alias in schema["aliases"]]


def _without_bad_decimal(part: dict[str, Any]) -> dict[str, Any]:
    """Ignore the logical type of an invalid decimal, as Avro defines; fastavro would refuse the schema."""
    if part.get("logicalType") != "decimal" or _is_decimal(part):
        return part
    return {key: value for key, value in part.items() if key != "logicalType"}


def _is_decimal(part: dict[str, Any]) -> bool:
    precision, scale, size = part.get("precision"), part.get("scale", 0), part.get("size")
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or precision < 1:
        return False
    if part.get("type") != "fixed":
        return True
    # Avro 1.12, "Decimal": at most floor(log10(2^(8n-1) - 1)) digits. No power of 2 is one of 10, so the 1 is nothing.
    return isinstance(size, int) and size > 0 and precision <= math.floor((8 * size - 1) * math.log10(2))


def _name(schema: Schema) -> str:
    if isinstance(schema, list):
        return "union"
    return str(schema["type"]) if isinstance(schema, dict) else str(schema)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _logical_type(schema: Schema) -> pa.DataType | None:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return None
    if timestamp_unit(schema) is not None:
        return TIMESTAMP
    digits = decimal_digits(schema)
    if digits is not None:
        return pa.decimal128(*digits) if digits[0] <= DECIMAL_DIGITS_MAX else pa.string()
    if is_uuid(schema):
        return pa.string()
    return pa.date32() if schema["logicalType"] == "date" and schema["type"] == "int" else None


def _union_type(members: list[pa.DataType | None]) -> pa.DataType | None:
    if not members:
        return None
    if len(members) == 1:
        return members[0]
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if members in ([narrow, wide], [wide, narrow]):
            return wide
    named = [(f"member{i}", kind) for i, kind in enumerate(members) if kind is not None]
    return pa.struct(named) if named else None


def _plain(schema: Schema, decimals: tuple[str, ...] = ("fixed",)) -> Schema:
    """Take off the logical types, but of `decimals` of these types, and the namespaces: names are unique without them.

    The native decoder hands over decimals of `bytes` as bytes: a decimal does not show how many bytes it had.
    """
    if isinstance(schema, list):
        return [_plain(branch, decimals) for branch in schema]
    if not isinstance(schema, dict):
        return schema if schema == "null" or schema in _PRIMITIVES else _flat_name(schema)
    if isinstance(schema["type"], dict | list):
        return _plain(schema["type"], decimals)
    keep = {"type", "size", "symbols"}
    if decimal_digits(schema) is not None and schema["type"] in decimals:
        keep |= {"logicalType", "precision", "scale"}
    out = {key: value for key, value in schema.items() if key in keep}
    if "name" in schema:
        out["name"] = _flat_name(schema["name"])
    return out | _parts(schema, partial(_plain, decimals=decimals))


def _parts(schema: Mapping[str, Any], change: Callable[[Schema], Schema]) -> dict[str, Any]:
    """Return what a type is made of, each part changed: its items, its values, or its fields."""
    parts = {key: change(schema[key]) for key in ("items", "values") if key in schema}
    if "fields" in schema:
        parts["fields"] = [{"name": f["name"], "type": change(f["type"])} for f in schema["fields"]]
    return parts


def _flat_name(full: str) -> str:
    """One name without dots for each full name: a part of a name never starts with a digit."""
    return full.replace("_", "__").replace(".", "_0")


def _tagged(schema: Schema, numbers: Iterator[int]) -> Schema:
    """Wrap the branches of unions of several in records of their own."""
    if isinstance(schema, list):
        branches = [_tagged(branch, numbers) for branch in schema]
        if sum(_name(branch) != "null" for branch in branches) < 2:  # noqa: PLR2004
            return branches
        union = next(numbers)
        return [
            branch
            if _name(branch) == "null"
            else {"type": "record", "name": f"_headrace_{union}_{at}", "fields": [{"name": "value", "type": branch}]}
            for at, branch in enumerate(branches)
        ]
    if not isinstance(schema, dict):
        return schema
    return {**schema, **_parts(schema, lambda part: _tagged(part, numbers))}


def _refuse_recursion(record: Record, schema: Schema, path: tuple[str, ...], parts: Iterator[int]) -> None:
    """Refuse what has no end, or one too far away. `path`: records around this part, nothing for other types."""
    schema = record.resolve(schema)
    name = schema["name"] if _name(schema) == "record" else ""
    if name and name in path:
        raise UnsupportedSchema(f"record {name} contains itself; a table has no type for that")
    if next(parts) >= _PARTS_MAX:
        raise UnsupportedSchema(f"it unfolds to more than {_PARTS_MAX:,} parts; split it")
    if len(path) > _DEPTH_MAX:
        raise UnsupportedSchema(f"it is more than {_DEPTH_MAX} levels deep; flatten it")
    for child in _children(schema):
        _refuse_recursion(record, child, (*path, name), parts)


def _children(schema: Schema) -> list[Schema]:
    if isinstance(schema, list):
        return schema
    match _name(schema):
        case "record":
            return [field["type"] for field in schema["fields"]]
        case "array":
            return [schema["items"]]
        case "map":
            return [schema["values"]]
    return []


def _refuse_nonsense(record: Record, schema: Schema) -> None:
    """Refuse what no value can have, and arrays of nothing: ten bytes claim 2^62 items, and a reader counts them."""
    schema = record.resolve(schema)
    match schema if isinstance(schema, list) else _name(schema):
        case []:
            raise UnsupportedSchema("it has a union without branches; name its types")
        case "enum" if not schema["symbols"]:
            raise UnsupportedSchema(f"enum {schema['name']} has no symbols; give it one")
        case "fixed" if schema["size"] < 0:
            raise UnsupportedSchema(f"fixed {schema['name']} has the size {schema['size']}; make it positive")
        case "array" if takes_no_bytes(record, schema["items"]):
            raise UnsupportedSchema("it has an array whose items take no bytes; give them a field with a value")
    for child in _children(schema):
        _refuse_nonsense(record, child)


def takes_no_bytes(record: Record, schema: Schema) -> bool:
    """Return whether values of a type are empty in binary."""
    schema = record.resolve(schema)
    if _name(schema) == "record":
        return all(takes_no_bytes(record, field["type"]) for field in schema["fields"])
    return _name(schema) == "null" or (_name(schema) == "fixed" and schema["size"] == 0)


def _sample(record: Record, schema: Schema, n: int) -> Any:
    schema = record.resolve(schema)
    if isinstance(schema, list):
        branch = record.resolve(schema[n % len(schema)])
        value = _sample(record, branch, n)
        # Of several, each but null is a record with a name of its own; fastavro knows no other type by its name.
        several = sum(_name(record.resolve(each)) != "null" for each in schema) > 1
        return (branch["name"], value) if several and _name(branch) == "record" else value
    digits = decimal_digits(schema)
    if digits is not None:
        number = n % 2**7 % 10 ** digits[0] * (-1 if n % 2 else 1)
        return number.to_bytes(schema.get("size", 1), "big", signed=True)
    match _name(schema):
        case "null":
            return None
        case "boolean":
            return n % 2 == 0
        case "int" | "long":
            return (n * 7919) % 2**20
        case "float" | "double":
            return n / 4
        case "bytes":
            return bytes([n % 256]) * (n % 5)
        case "string":
            return f"é{n}" * (n % 4)
        case "fixed":
            return bytes([n % 100]) * schema["size"]
        case "enum":
            return schema["symbols"][n % len(schema["symbols"])]
        case "array":
            return [_sample(record, schema["items"], n + i) for i in range(n % 3)]
        case "map":
            return {f"k{i}": _sample(record, schema["values"], n + i) for i in range(n % 3)}
        case _:
            return {f["name"]: _sample(record, f["type"], n) for f in schema["fields"]}
