"""What a schema says of a field that a record lacks: the field's default, as JSON, in the type of the table."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from writer.rooms import avro
from writer.rooms.singly import table_value

_INT, _LONG = range(-(2**31), 2**31), range(-(2**63), 2**63)


class NoValue(ValueError):
    """A default that is no value of its field's type, which Avro forbids and not every registry notices."""


def default_of(record: avro.Record, field: Mapping[str, Any]) -> pa.Array | None:
    """Return a field's default as an array of one; None when it has none, or null, or one that its type cannot hold."""
    if field.get("default") is None:
        return None
    kind = avro.table_type(record, field["type"])
    try:
        return pa.array([table_value(record, field["type"], _read(record, field["type"], field["default"]))], kind)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None


def _read(record: avro.Record, schema: avro.Schema, given: Any) -> Any:
    """Turn JSON into what fastavro reads with `plain_schema`. Avro 1.12, "Complex Types": bytes are code points."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _branch(record, schema, given)
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind, given:
        case "null", None:
            return None
        case "boolean", bool():
            return given
        case ("int", int()) | ("long", int()) if not isinstance(given, bool):
            if given in (_INT if kind == "int" else _LONG):
                return given
        case "float" | "double", int() | float() if not isinstance(given, bool):
            return float(given)
        case "string", str():
            return given
        case "enum", str() if given in schema["symbols"]:
            return given
        case "bytes", str():
            return given.encode("latin-1")
        case "fixed", str() if len(given) == schema["size"]:
            return given.encode("latin-1")
        case "array", list():
            return [_read(record, schema["items"], item) for item in given]
        case "map", dict():
            return {str(key): _read(record, schema["values"], item) for key, item in given.items()}
        case "record", dict():
            return {f["name"]: _read(record, f["type"], _given(f, given)) for f in schema["fields"]}
    raise NoValue(f"{given!r} is no {kind}")


def _given(field: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    if field["name"] in values:
        return values[field["name"]]
    if "default" in field:
        return field["default"]
    raise NoValue(f"it has no {field['name']!r}")


def _branch(record: avro.Record, schema: list[Any], given: Any) -> Any:
    """Choose the first branch that can hold it, as Avro 1.12 says; older versions allowed the first branch only."""
    several = sum(record.resolve(branch) != "null" for branch in schema) > 1
    for at, branch in enumerate(schema):
        try:
            value = _read(record, branch, given)
        except NoValue:
            continue
        return value if value is None or not several else avro.tag_branch(at, value)
    raise NoValue(f"{given!r} is of none of the types of its union")
