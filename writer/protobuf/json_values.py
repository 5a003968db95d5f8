"""Writes Struct, Value and ListValue as JSON text, as Protobuf's JSON mapping has them, with sorted names.

https://protobuf.dev/programming-guides/json/
"""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

# A double holds such integers one by one.
_INTEGERS_MAX = 2**53


class NoJson(ValueError):
    """Bytes are no such message, or it has a number that JSON has not."""


def write_json(message: str, content: bytes) -> str:
    """Return the JSON text of a serialized Struct, Value or ListValue, by its full name. Raises NoJson."""
    parse, read = _READERS[message]
    try:
        document = read(parse(content))
    except DecodeError:
        raise NoJson(f"its bytes are no {message}") from None
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _read_struct(struct: struct_pb2.Struct) -> dict[str, Any]:
    return {name: _read_value(value) for name, value in struct.fields.items()}


def _read_list(values: struct_pb2.ListValue) -> list[Any]:
    return [_read_value(value) for value in values.values]


def _read_value(value: struct_pb2.Value) -> Any:
    """Return a value; null for one that is not set."""
    match value.WhichOneof("kind"):
        case "number_value":
            return _read_number(value.number_value)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "struct_value":
            return _read_struct(value.struct_value)
        case "list_value":
            return _read_list(value.list_value)
    return None


def _read_number(number: float) -> float:
    """Return a number; an integer where it is one, so that 3.0 is 3. Raises NoJson for NaN and Infinity."""
    if not math.isfinite(number):
        raise NoJson("NaN and Infinity are no JSON")
    if number.is_integer() and abs(number) <= _INTEGERS_MAX:
        return int(number)
    return number


_READERS: Mapping[str, tuple[Callable[[bytes], Any], Callable[[Any], Any]]] = {
    "google.protobuf.Struct": (struct_pb2.Struct.FromString, _read_struct),
    "google.protobuf.Value": (struct_pb2.Value.FromString, _read_value),
    "google.protobuf.ListValue": (struct_pb2.ListValue.FromString, _read_list),
}
