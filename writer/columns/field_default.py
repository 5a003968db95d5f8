"""Reads the default of a field, which stands in its schema as JSON, into a value of its column. Pure."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.value_reader import branch_members, value_converter

_INT_RANGE = range(-(2**31), 2**31)
_LONG_RANGE = range(-(2**63), 2**63)


class _NoValue(ValueError):
    """A default that is no value of its field's type, which Avro forbids and not every registry notices."""


def read_default(record: avro.Record, field: Mapping[str, Any]) -> pa.Array | None:
    """Return a field's default as an array of one; None when it has none, or null, or one that its type cannot hold."""
    if field.get("default") is None:
        return None
    kind = avro.table_type(record, field["type"])
    try:
        return pa.array([_read_json(record, field["type"], field["default"])], kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        return None


def _read_json(record: avro.Record, schema: avro.Schema, document: Any) -> Any:
    """Turn JSON into the value of a column. Raises _NoValue, and ValueError for what the column cannot hold."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _read_union(record, schema, document)
    value = _read_plain_value(record, schema, document)
    convert = value_converter(schema)
    return value if convert is None else convert(value)


def _read_plain_value(record: avro.Record, schema: avro.Schema, document: Any) -> Any:
    """Turn JSON into a value of no union, as it is written. Avro 1.12, "Complex Types": bytes are code points."""
    kind = avro.type_name(schema)
    match kind, document:
        case "null", None:
            return None
        case "boolean", bool():
            return document
        case "int", int() if not isinstance(document, bool) and document in _INT_RANGE:
            return document
        case "long", int() if not isinstance(document, bool) and document in _LONG_RANGE:
            return document
        case "float" | "double", int() | float() if not isinstance(document, bool):
            return float(document)
        case "string", str():
            return document
        case "enum", str() if document in schema["symbols"]:
            return document
        case "bytes", str():
            return document.encode("latin-1")
        case "fixed", str() if len(document) == schema["size"]:
            return document.encode("latin-1")
        case "array", list():
            return [_read_json(record, schema["items"], item) for item in document]
        case "map", dict():
            return {str(key): _read_json(record, schema["values"], item) for key, item in document.items()}
        case "record", dict():
            return {
                field["name"]: _read_json(record, field["type"], _field_json(field, document))
                for field in schema["fields"]
            }
    raise _NoValue(f"{document!r} is no {kind}")


def _field_json(field: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    if field["name"] in document:
        return document[field["name"]]
    if "default" in field:
        return field["default"]
    raise _NoValue(f"it has no {field['name']!r}")


def _read_union(record: avro.Record, schema: list[Any], document: Any) -> Any:
    """Choose the first branch that can hold it, as Avro 1.12 defines; older versions allowed only the first branch."""
    for member, branch in zip(branch_members(record, schema), schema, strict=True):
        try:
            value = _read_json(record, branch, document)
        except _NoValue:
            continue
        return value if member is None else {member: value}
    raise _NoValue(f"{document!r} is of none of the types of its union")
