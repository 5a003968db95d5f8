"""The record schema of columns that a configuration declares for JSON values.

A declaration is a mapping of members to types. A type is a name such as `long`, `timestamp(ms)` or `decimal(10, 2)`.
A mapping is an object with members of its own, a list of one type is an array of it, and a mapping whose only key is
`*` is an object with members of any name that have this one type.
"""

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from headrace.writer.avro import schema as avro
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

# Name of the record.
DECLARED = "declared"
# Key that stands for members of any name.
ANY_NAME = "*"
_NAMED_TYPES: Mapping[str, Any] = {
    "string": "string",
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "binary": "bytes",
    "date": {"type": "int", "logicalType": "date"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros"},
    "json": {"type": "string", ENCODING: "text"},
}
_UNITS = ("s", "ms", "us", "ns")
_TIMESTAMP = re.compile(r"timestamp\(\s*(\w+)\s*\)")
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_TYPES = (*_NAMED_TYPES, "timestamp(ms)", "decimal(10, 2)")


def declared_record(declared: Mapping[str, Any], undeclared: Undeclared, misfit: Misfit) -> str:
    """Return the text of the record schema of declared members. Raises ValueError, which names the member."""
    schema = {
        **_RecordBuilder(has_rest=has_rest(undeclared, misfit)).record(declared, ()),
        **root_attributes(undeclared, misfit),
    }
    text = json.dumps(schema)
    avro.parse(text)
    return text


class _RecordBuilder:
    def __init__(self, *, has_rest: bool) -> None:
        self._has_rest = has_rest

    def record(self, members: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
        """Return the record of an object's members. `path`: names of the members that lead to it."""
        if not members:
            raise ValueError(f"{_show_path(path)}an object without members has no column; name them, or write json")
        fields = []
        for name, declaration in members.items():
            if not isinstance(name, str):
                raise ValueError(f"{_show_path(path)}the member {name!r} is no text; put it in quotes")  # noqa: TRY004
            fields.append(nullable_field(name, self._type(declaration, (*path, name))))
        if self._has_rest:
            fields.append(rest_field(members))
        return {"type": "record", "name": nested_name(DECLARED, path), "fields": fields}

    def _type(self, declaration: Any, path: tuple[str, ...]) -> Any:
        if isinstance(declaration, str):
            return _named_type(declaration, path)
        if isinstance(declaration, list) and len(declaration) == 1:
            return {"type": "array", "items": ["null", self._type(declaration[0], (*path, "[]"))]}
        if isinstance(declaration, Mapping) and list(declaration) == [ANY_NAME]:
            return {"type": "map", "values": ["null", self._type(declaration[ANY_NAME], (*path, ANY_NAME))]}
        if isinstance(declaration, Mapping):
            return self.record(declaration, path)
        raise ValueError(
            f"{_show_path(path)}{declaration!r} is no type; write a name such as long, a mapping of members, a list of "
            f"one type, or {{'*': type}} for members of any name"
        )


def _named_type(declaration: str, path: tuple[str, ...]) -> Any:
    if declaration in _NAMED_TYPES:
        return _NAMED_TYPES[declaration]
    unit = _TIMESTAMP.fullmatch(declaration)
    if unit is not None and unit[1] in _UNITS:
        return {"type": "long", "logicalType": "timestamp-micros", ENCODING: unit[1]}
    if unit is not None:
        raise ValueError(f"{_show_path(path)}{declaration!r} has none of the units {', '.join(_UNITS)}")
    digits = _DECIMAL.fullmatch(declaration)
    if digits is not None:
        precision = int(digits[1])
        scale = int(digits[2])
        if not (1 <= precision <= avro.DECIMAL_DIGITS_MAX and scale <= precision):
            raise ValueError(
                f"{_show_path(path)}{declaration!r} has 1 to {avro.DECIMAL_DIGITS_MAX} digits, of which no more than "
                "these stand behind the point"
            )
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    close = difflib.get_close_matches(declaration, _TYPES, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_TYPES)}"
    raise ValueError(f"{_show_path(path)}{declaration!r} is no type; {hint}")


def _show_path(path: tuple[str, ...]) -> str:
    return f"{'.'.join(path)}: " if path else ""
