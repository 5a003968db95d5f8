"""Defines the named types of a protected schema, of which each place may have left another part."""

import json
from collections.abc import Collection
from itertools import count
from typing import Any


class TypeFolding:
    """Defines each named type once again, and gives another name to one that is left otherwise in two places.

    The former name is its alias: so a branch of a union is known by it, wherever else the type stands.
    """

    def __init__(self, names: Collection[str]) -> None:
        """`names`: of all types, none of which is given to another."""
        self._taken = set(names)
        self._names = dict[str, dict[str, str]]()  # full name → content → name

    def fold(self, schema: Any) -> Any:
        """Return a schema whose types are defined where they first stand."""
        if isinstance(schema, list):
            return [self.fold(branch) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        if "name" in schema:
            contents = self._names.setdefault(schema["name"], {})
            content = json.dumps(schema, sort_keys=True)
            if content in contents:
                return contents[content]
            name = schema["name"] if not contents else self._free_name(schema["name"])
            contents[content] = name
            if name != schema["name"]:
                schema = {**schema, "name": name, "aliases": [schema["name"], *schema.get("aliases", ())]}
            if "." not in name:
                schema["namespace"] = ""
        inside = {key: self.fold(schema[key]) for key in ("items", "values", "type") if key in schema}
        if "fields" in schema:
            inside["fields"] = [{**part, "type": self.fold(part["type"])} for part in schema["fields"]]
        return {**schema, **inside}

    def _free_name(self, name: str) -> str:
        """Return a name like this one that no type has."""
        free = next(other for number in count(2) if (other := f"{name}_{number}") not in self._taken)
        self._taken.add(free)
        return free
