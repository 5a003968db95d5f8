"""Encodes values that are written as JSON in Avro's binary form, for tests of a pipeline.

Avro 1.12, "JSON Encoding": a value of a union stands in an object under the name of its type, bytes are text of one
character a byte. Beyond that, a value of a union may stand for itself where one type alone takes it, a time or date may
be ISO 8601, and a decimal a number. Only primitive values are left to fastavro, which would choose the type of a union
anew.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

from fastavro import schemaless_writer

from headrace.writer.avro.schema_text import Schema, parse_schema
from headrace.writer.config.base import did_you_mean
from headrace.writer.core.units import parse_instant

# Where a value is: names of fields, positions in lists.
ValuePath = tuple[str, ...]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PER_SECOND = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
_PYTHON: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float, int),
    "double": (float, int),
    "string": (str,),
}
_WORDS = {list: "a list", dict: "an object", str: "text"}


class NotOfType(ValueError):
    """A value that its type does not take. The message has its place in the value."""


class AvroEncoder:
    """Encodes values of one schema, of any type."""

    def __init__(self, text: str) -> None:
        """Raise UnsupportedSchema for what is no Avro schema."""
        self._form = parse_schema(text)

    def __call__(self, value: Any) -> bytes:
        """Return the binary form of a value. Raises NotOfType."""
        out = BytesIO()
        self._write(out, value, self._form.root, ())
        return out.getvalue()

    def _write(self, out: BytesIO, value: Any, kind: Schema, path: ValuePath) -> None:
        kind = self._form.resolve(kind)
        if isinstance(kind, list):
            number, inner = self._branch(value, kind, path)
            schemaless_writer(out, "long", number)
            self._write(out, inner, kind[number], path)
            return
        match type_name(kind):
            case "record":
                self._record(out, _of(dict, value, path), kind, path)
            case "array":
                for position, item in _block(out, list(enumerate(_of(list, value, path)))):
                    self._write(out, item, kind["items"], (*path, str(position)))
            case "map":
                for key, item in _block(out, list(_of(dict, value, path).items())):
                    schemaless_writer(out, "string", _of(str, key, path))
                    self._write(out, item, kind["values"], (*path, key))
            case name:
                _write_leaf(out, name, _datum(value, name, kind, path), kind, path)

    def _record(self, out: BytesIO, value: Mapping[str, Any], kind: Schema, path: ValuePath) -> None:
        names = [field["name"] for field in kind["fields"]]
        if unknown := next((name for name in value if name not in names), None):
            raise _error((*path, str(unknown)), f"the schema has no such field{did_you_mean(str(unknown), names)}")
        for field in kind["fields"]:
            if field["name"] not in value and "default" not in field:
                raise _error((*path, field["name"]), "it is missing, and the schema has no default for it")
            self._write(out, value.get(field["name"], field.get("default")), field["type"], (*path, field["name"]))

    def _branch(self, value: Any, kinds: Sequence[Schema], path: ValuePath) -> tuple[int, Any]:
        """Return which type of a union a value has, and the value itself."""
        names = [self._branch_name(kind) for kind in kinds]
        if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in names:
            return names.index(name), value[name]
        errors = dict[int, NotOfType]()
        for number, kind in enumerate(kinds):
            try:
                self._write(BytesIO(), value, kind, path)
            except NotOfType as error:
                errors[number] = error
        candidates = [number for number in range(len(kinds)) if number not in errors]
        if len(candidates) == 1:
            return candidates[0], value
        if candidates:
            first = names[candidates[0]]
            raise _error(
                path, f"it may be {' or '.join(names[n] for n in candidates)}; say which, such as {{{first}: …}}"
            )
        values = [number for number, name in enumerate(names) if name != "null"]
        if len(values) == 1:
            raise errors[values[0]]
        raise _error(path, f"{_quote(value)} is none of {', '.join(names)}")

    def _branch_name(self, kind: Schema) -> str:
        """Return the name of a type in a union: in full, of a type that has one."""
        kind = self._form.resolve(kind)
        if isinstance(kind, dict) and "name" in kind:
            return str(kind["name"])
        return type_name(kind)


def type_name(kind: Schema) -> str:
    """Return `record`, `array`, `long` and so on."""
    while isinstance(kind, dict):
        kind = kind["type"]
    return str(kind)


def _block(out: BytesIO, items: list[Any]) -> Any:
    """Yield the items of a list or a map, and write what stands before and behind them."""
    if items:
        schemaless_writer(out, "long", len(items))
        yield from items
    schemaless_writer(out, "long", 0)


def _write_leaf(out: BytesIO, name: str, datum: Any, kind: Schema, path: ValuePath) -> None:
    if name == "enum":
        if datum not in kind["symbols"]:
            raise _error(
                path, f"{_quote(datum)} is no symbol of {kind['name']}{did_you_mean(str(datum), kind['symbols'])}"
            )
        schemaless_writer(out, "int", kind["symbols"].index(datum))
    elif name == "fixed":
        if len(datum) != kind["size"]:
            raise _error(path, f"it has {len(datum)} bytes, and {kind['name']} has {kind['size']}")
        out.write(datum)
    else:
        try:
            schemaless_writer(out, name, datum)
        except (ValueError, TypeError, OverflowError) as error:
            raise _error(path, f"{_quote(datum)} is no {name} ({error})") from error


def _datum(value: Any, name: str, kind: Schema, path: ValuePath) -> Any:
    """Return a value as the type beneath its logical type has it."""
    logical = kind.get("logicalType", "") if isinstance(kind, dict) else ""
    if name in ("long", "int") and isinstance(value, str | date):
        return _time(value, name, logical, path)
    if name in ("bytes", "fixed"):
        if logical == "decimal" and isinstance(value, int | float) and not isinstance(value, bool):
            return _decimal(value, kind, path)
        try:
            return _of(str, value, path).encode("latin-1")
        except UnicodeEncodeError as error:
            raise _error(path, "text of bytes has a character for each byte, from \\u0000 to \\u00ff") from error
    if name == "enum":
        return _of(str, value, path)
    if type(value) not in _PYTHON[name] or (name == "int" and not -(2**31) <= value < 2**31):
        raise _error(path, f"{_quote(value)} is no {name}")
    return value


def _time(value: Any, name: str, logical: str, path: ValuePath) -> int:
    """Return a time or a date as its type counts: of a datetime, a date, or their text."""
    unit = None
    if "timestamp" in logical:
        unit = _PER_SECOND.get(logical.rpartition("-")[2])
    try:
        if unit is not None:
            return (parse_instant(value) - _EPOCH) // timedelta(microseconds=1) * unit // 10**6
        if logical == "date":
            return (date.fromisoformat(str(value)) - _EPOCH.date()).days
    except ValueError as error:
        raise _error(path, f"{_quote(value)} is no {logical}: {error}") from error
    raise _error(path, f"{_quote(value)} is no {name}")


def _decimal(value: float, kind: Schema, path: ValuePath) -> bytes:
    unscaled = Decimal(str(value)).scaleb(kind.get("scale", 0))
    number = int(unscaled)
    if number != unscaled:
        raise _error(path, f"{value} has more than {kind.get('scale', 0)} digits behind the point")
    try:
        return number.to_bytes(kind.get("size", number.bit_length() // 8 + 1), "big", signed=True)
    except OverflowError as error:
        raise _error(path, f"{value} does not fit into {kind['size']} bytes") from error


def _of(expected: Any, value: Any, path: ValuePath) -> Any:
    if not isinstance(value, expected):
        raise _error(path, f"{_quote(value)} is not {_WORDS[expected]}")
    return value


def _error(path: ValuePath, why: str) -> NotOfType:
    return NotOfType(f"{'.'.join(path)}: {why}" if path else why)


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
