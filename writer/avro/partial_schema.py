"""Reads the records of a schema that is none, as far as its JSON goes: their fields, and the words beside these.

Such a schema has no rows, but its tags say what is to be protected in the others of its record type. Its text may have
types that name themselves, types that are defined twice, or names that nothing defines. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.writer.avro.schema_text import (
    DEPTH_MAX,
    PARTS_MAX,
    PRIMITIVES,
    attributes_of,
    find_definitions,
    full_name,
    is_full_name,
    is_path_step,
    qualify_name,
)

# Of a type in itself.
_LEVELS_MAX = 3
# In place of what cannot be read: what is said of the field around it counts all the same.
_UNREADABLE = "string"
_UNNAMED = "headrace.unnamed"


@dataclass(frozen=True)
class PartialRecord:
    """A record as far as it can be read. Types stand where they are named."""

    root: Mapping[str, Any]
    named: Mapping[str, Any] = field(default_factory=dict)


def read_records(schema: Any) -> Iterator[PartialRecord]:
    """Yield the records that a schema has at its root, also in a union. `schema`: its JSON."""
    document = _Reader(schema).read(schema, "", Counter(), 0)
    roots = document if isinstance(document, list) else [document]
    for root in roots:
        if isinstance(root, dict) and root["type"] == "record":
            yield PartialRecord(root)


class _Reader:
    """One schema on its way to types without names of others."""

    def __init__(self, schema: Any) -> None:
        # Full name → definition, and the namespace around it. The first of a name counts.
        self._definitions = dict[str, tuple[Mapping[str, Any], str]]()
        self._parts = 0
        for definition, space in find_definitions(schema):
            self._definitions.setdefault(_type_name(definition, space), (definition, space))

    def read(self, schema: Any, space: str, levels: "Counter[str]", depth: int) -> Any:
        """Return a type as a walk through fields takes it. `levels`: how often each name stands around it."""
        self._parts += 1
        if depth > DEPTH_MAX or self._parts > PARTS_MAX:
            return _UNREADABLE
        if isinstance(schema, list):
            return [self.read(branch, space, levels, depth + 1) for branch in schema] or _UNREADABLE
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._read_name(schema, space, levels, depth)
        if not isinstance(schema, dict):
            return _UNREADABLE
        kind = schema.get("type")
        attributes = attributes_of(schema)
        match kind:
            case "record" | "error":
                return self._read_record(schema, space, levels, depth)
            case "array":
                return {**attributes, "type": kind, "items": self.read(schema.get("items"), space, levels, depth + 1)}
            case "map":
                return {**attributes, "type": kind, "values": self.read(schema.get("values"), space, levels, depth + 1)}
            case "enum" | "fixed":
                return {**attributes, "type": kind, **_names(schema, space)}
            case str() if kind in PRIMITIVES:
                return {**attributes, "type": kind}
        return {**attributes, "type": self.read(kind, space, levels, depth + 1)}

    def _read_name(self, name: str, space: str, levels: "Counter[str]", depth: int) -> Any:
        definition = self._definitions.get(qualify_name(name, space)) or self._definitions.get(name)
        if definition is None:
            return _UNREADABLE
        return self.read(*definition, levels, depth + 1)

    def _read_record(self, schema: Mapping[str, Any], space: str, levels: "Counter[str]", depth: int) -> Any:
        names = _names(schema, space)
        name = names["name"]
        if levels[name] >= _LEVELS_MAX:
            return _UNREADABLE
        inner_levels = levels + Counter([name])
        inner_space = name.rpartition(".")[0]
        fields: list[dict[str, Any]] = []
        listed_fields = schema.get("fields")
        if not isinstance(listed_fields, list):
            listed_fields = []
        for listed in listed_fields:
            if not isinstance(listed, dict) or not is_path_step(listed.get("name")):
                continue
            aliases = [alias for alias in _aliases(listed) if is_path_step(alias)]
            kind = self.read(listed.get("type"), inner_space, inner_levels, depth + 1)
            fields.append({**listed, "aliases": aliases, "type": kind})
        return {**attributes_of(schema), **names, "type": "record", "fields": fields}


def _names(schema: Mapping[str, Any], space: str) -> dict[str, Any]:
    """Return a type's name and aliases, in full."""
    name = _type_name(schema, space)
    aliases = [qualify_name(alias, name.rpartition(".")[0]) for alias in _aliases(schema)]
    return {"name": name, "aliases": [alias for alias in aliases if is_full_name(alias)]}


def _type_name(schema: Mapping[str, Any], space: str) -> str:
    name = full_name(schema, space) or ""
    return name if is_full_name(name) else _UNNAMED


def _aliases(part: Mapping[str, Any]) -> list[str]:
    aliases = part.get("aliases")
    if not isinstance(aliases, list):
        return []
    return [alias for alias in aliases if isinstance(alias, str)]
