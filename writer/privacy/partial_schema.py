"""Reads the records of a schema that is none, as far as its JSON goes: their fields, and the words beside these.

Such a schema has no rows, but its tags say what is to be protected in the others of its record type. Its text may have
types that name themselves, types that are defined twice, or names that nothing defines.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_LEVELS_MAX = 3  # of a type in itself
_PARTS_MAX = 20_000  # of one schema: types that name each other unfold to more than a machine holds
_DEPTH_MAX = 64
_UNREAD = "string"  # in place of what cannot be read: what is said of the field around it counts all the same
_UNNAMED = "headrace.unnamed"


@dataclass(frozen=True)
class PartialRecord:
    """A record as far as it can be read. Types stand where they are named."""

    root: Mapping[str, Any]
    named: Mapping[str, Any] = field(default_factory=dict)


def read_records(schema: Any) -> Iterator[PartialRecord]:
    """Yield the records that a schema has at its root, also in a union. `schema`: its JSON."""
    reader = _Reader()
    reader.collect(schema, "", 0)
    whole = reader.read(schema, "", Counter(), 0)
    for root in whole if isinstance(whole, list) else [whole]:
        if isinstance(root, dict) and root["type"] == "record":
            yield PartialRecord(root)


class _Reader:
    """One schema on its way to types without names of others."""

    def __init__(self) -> None:
        self._definitions = dict[str, tuple[Mapping[str, Any], str]]()  # full name → definition, namespace around it
        self._parts = 0

    def collect(self, schema: Any, namespace: str, depth: int) -> None:
        """Note each named type, the first of a name."""
        if depth > _DEPTH_MAX:
            return
        if isinstance(schema, list):
            for branch in schema:
                self.collect(branch, namespace, depth + 1)
        if not isinstance(schema, dict):
            return
        inside = namespace
        if isinstance(schema.get("name"), str) and "type" in schema:
            name = _full_name(schema, namespace)
            self._definitions.setdefault(name, (schema, namespace))
            inside = name.rpartition(".")[0]
        for part in (schema.get("type"), schema.get("items"), schema.get("values")):
            if isinstance(part, dict | list):
                self.collect(part, inside, depth + 1)
        for one in _fields(schema):
            self.collect(one.get("type"), inside, depth + 1)

    def read(self, schema: Any, namespace: str, around: "Counter[str]", depth: int) -> Any:
        """Return a type as a walk through fields takes it. `around`: how often each name stands around it."""
        self._parts += 1
        if depth > _DEPTH_MAX or self._parts > _PARTS_MAX:
            return _UNREAD
        if isinstance(schema, list):
            return [self.read(branch, namespace, around, depth + 1) for branch in schema] or _UNREAD
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVES else self._of_name(schema, namespace, around, depth)
        if not isinstance(schema, dict):
            return _UNREAD
        kind = schema.get("type")
        match kind:
            case "record" | "error":
                return self._record(schema, namespace, around, depth)
            case "array":
                return {**schema, "items": self.read(schema.get("items"), namespace, around, depth + 1)}
            case "map":
                return {**schema, "values": self.read(schema.get("values"), namespace, around, depth + 1)}
            case "enum" | "fixed":
                return {**schema, **_names(schema, namespace)}
        words = {key: value for key, value in schema.items() if key not in ("name", "aliases")}
        return {**words, "type": kind if kind in _PRIMITIVES else self._wrapped(kind, namespace, around, depth)}

    def _wrapped(self, kind: Any, namespace: str, around: "Counter[str]", depth: int) -> Any:
        """Return the type inside a type. One that is text would be taken for that of the outer one."""
        inner = self.read(kind, namespace, around, depth + 1)
        return {"type": inner} if isinstance(inner, str) and inner not in _PRIMITIVES else inner

    def _of_name(self, name: str, namespace: str, around: "Counter[str]", depth: int) -> Any:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        definition = self._definitions.get(full) or self._definitions.get(name)
        if definition is None:
            return _UNREAD
        return self.read(*definition, around, depth + 1)

    def _record(self, schema: Mapping[str, Any], namespace: str, around: "Counter[str]", depth: int) -> Any:
        names = _names(schema, namespace)
        name = names["name"]
        if around[name] >= _LEVELS_MAX:
            return _UNREAD
        inside = around + Counter([name])
        fields = [
            {**_words(one), "type": self.read(one.get("type"), name.rpartition(".")[0], inside, depth + 1)}
            for one in _fields(schema)
        ]
        return {**schema, **names, "type": "record", "fields": fields}


def _fields(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    fields = schema.get("fields")
    listed = fields if isinstance(fields, list) else []
    return [one for one in listed if isinstance(one, dict) and _can_be_in_path(one.get("name"))]


def _can_be_in_path(name: Any) -> bool:
    """Return whether a path can name a field. `a.b` would be a field of another, `<x>` a branch of a union."""
    return isinstance(name, str) and "." not in name and not name.startswith("<")


def _words(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands beside a name, with aliases that are some."""
    return {**part, "aliases": _aliases(part)}


def _aliases(part: Mapping[str, Any]) -> list[str]:
    aliases = part.get("aliases")
    return [one for one in aliases if isinstance(one, str)] if isinstance(aliases, list) else []


def _names(schema: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    return {"name": _full_name(schema, namespace), "aliases": _aliases(schema)}


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    """Return a type's name in full. Avro 1.12, "Names"."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        return _UNNAMED
    own = schema.get("namespace", namespace)
    return name if "." in name or not isinstance(own, str) or not own else f"{own}.{name}"
