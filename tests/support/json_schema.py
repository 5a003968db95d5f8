"""Holds values against a JSON schema, as far as the project's own schemas go: the configuration's and the chart's."""

import re
from collections.abc import Mapping
from typing import Any

_KINDS: Mapping[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
_SILENT = {"title", "description", "default", "format", "writeOnly", "discriminator", "$schema", "$defs"}
Schema = Mapping[str, Any]


def fits(value: Any, schema: Schema, root: Schema | None = None) -> bool:
    """Return whether a value is what a schema describes. `root`: the document of its references.

    Raises LookupError for a keyword that this does not know.
    """
    root = schema if root is None else root
    return all(_obeys(value, word, schema, root) for word in schema if word not in _SILENT)


def _obeys(value: Any, word: str, schema: Schema, root: Schema) -> bool:
    """Return whether a value obeys one keyword of a schema."""
    wanted = schema[word]
    match word:
        case "$ref":
            return fits(value, root["$defs"][wanted.removeprefix("#/$defs/")], root)
        case "anyOf" | "oneOf":
            return any(fits(value, branch, root) for branch in wanted)
        case "not":
            return not fits(value, wanted, root)
        case "type":
            return any(_is_kind(value, kind) for kind in ([wanted] if isinstance(wanted, str) else wanted))
        case "enum":
            return value in wanted
        case "const":
            return bool(value == wanted)
    if isinstance(value, dict):
        return _object_obeys(value, word, schema, root)
    if isinstance(value, list):
        return _list_obeys(value, word, wanted, root)
    if isinstance(value, str):
        return _text_obeys(value, word, wanted)
    return _number_obeys(value, word, wanted)


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, _KINDS[kind]) and not isinstance(value, bool)


def _object_obeys(value: Mapping[str, Any], word: str, schema: Schema, root: Schema) -> bool:
    wanted = schema[word]
    match word:
        case "required":
            return set(wanted) <= set(value)
        case "properties":
            return all(fits(value[key], wanted[key], root) for key in wanted if key in value)
        case "additionalProperties":
            rest = set(value) - set(schema.get("properties", {}))
            return all(wanted is True or (wanted is not False and fits(value[key], wanted, root)) for key in rest)
        case "propertyNames":
            return all(fits(key, wanted, root) for key in value)
        case "minProperties":
            return len(value) >= wanted
    return _is_of_another_kind(word)


def _list_obeys(value: list[Any], word: str, wanted: Any, root: Schema) -> bool:
    match word:
        case "items":
            return all(fits(item, wanted, root) for item in value)
        case "minItems":
            return len(value) >= wanted
        case "uniqueItems":
            return not wanted or all(item not in value[:index] for index, item in enumerate(value))
    return _is_of_another_kind(word)


def _text_obeys(value: str, word: str, wanted: Any) -> bool:
    match word:
        case "minLength":
            return len(value) >= wanted
        case "maxLength":
            return len(value) <= wanted
        case "pattern":
            return re.search(wanted, value) is not None
    return _is_of_another_kind(word)


def _number_obeys(value: Any, word: str, wanted: Any) -> bool:
    if not isinstance(value, (int, float)):
        return _is_of_another_kind(word)
    match word:
        case "minimum":
            return value >= wanted
        case "maximum":
            return value <= wanted
    return _is_of_another_kind(word)


_OF_KINDS = {
    *("required", "properties", "additionalProperties", "propertyNames", "minProperties", "items", "minItems"),
    *("uniqueItems", "minLength", "maxLength", "pattern", "minimum", "maximum"),
}


def _is_of_another_kind(word: str) -> bool:
    """Return True for a keyword of values of another kind, which says nothing here. Raises LookupError."""
    if word not in _OF_KINDS:
        raise LookupError(f"nothing here knows the keyword {word}")
    return True
