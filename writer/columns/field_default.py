"""Reads the default of a field, which stands in its schema as JSON, into a value of its column. Pure."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.value_reader import branch_members, value_converter
from headrace.writer.avro.schema_text import quote_name

_INT_RANGE = range(-(2**31), 2**31)
_LONG_RANGE = range(-(2**63), 2**63)
# Looks at a part of a default. A million of numbers take two seconds.
_STEPS_MAX = 2_000_000


class _NoValue(ValueError):
    """A default that is no value of its field's type, which Avro forbids and not every registry notices.

    It has no message: a default may be as long as a schema, and each branch of a union may refuse it.
    """


def read_default(record: avro.Record, field: Mapping[str, Any]) -> pa.Array | None:
    """Return a field's default as an array of one; None when it has none, or null, or one that its type cannot hold.

    Raises UnsupportedSchema for one with more parts than anybody means.
    """
    if field.get("default") is None:
        return None
    kind = avro.table_type(record, field["type"])
    reader = _DefaultReader(record, str(field["name"]))
    try:
        return pa.array([reader.read(field["type"], field["default"])], kind)
    except avro.UnsupportedSchema:
        raise
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        return None


class _DefaultReader:
    """Reads one default, of which each item may be tried as each branch of a union."""

    def __init__(self, record: avro.Record, field_name: str) -> None:
        self._record = record
        self._field_name = field_name
        self._steps = 0
        # By the identity of a union: the member of each branch.
        self._members = dict[int, list[str | None]]()

    def read(self, schema: avro.Schema, document: Any) -> Any:
        """Turn JSON into the value of a column.

        Raises _NoValue, ValueError for what the column cannot hold, and UnsupportedSchema.
        """
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise avro.UnsupportedSchema(
                f"the default of field {quote_name(self._field_name)} takes more than {_STEPS_MAX:,} steps to read; "
                "shorten it"
            )
        schema = self._record.resolve(schema)
        if isinstance(schema, list):
            return self._read_union(schema, document)
        value = self._read_plain_value(schema, document)
        convert = value_converter(schema)
        return value if convert is None else convert(value)

    def _read_plain_value(self, schema: avro.Schema, document: Any) -> Any:
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
                return [self.read(schema["items"], item) for item in document]
            case "map", dict():
                return {str(key): self.read(schema["values"], item) for key, item in document.items()}
            case "record", dict():
                return {
                    field["name"]: self.read(field["type"], _field_json(field, document)) for field in schema["fields"]
                }
        raise _NoValue

    def _read_union(self, schema: list[Any], document: Any) -> Any:
        """Choose the first branch that can hold it, as Avro 1.12 defines; older versions allowed only the first."""
        members = self._members.get(id(schema))
        if members is None:
            members = self._members[id(schema)] = branch_members(self._record, schema)
        for member, branch in zip(members, schema, strict=True):
            try:
                value = self.read(branch, document)
            except _NoValue:
                continue
            return value if member is None else {member: value}
        raise _NoValue


def _field_json(field: Mapping[str, Any], document: Mapping[str, Any]) -> Any:
    if field["name"] in document:
        return document[field["name"]]
    if "default" in field:
        return field["default"]
    raise _NoValue
