"""Writes a parsed Avro schema in Parsing Canonical Form (Avro 1.12, "Transforming into Parsing Canonical Form"). Pure.

It has what decides over bytes alone: no logical types, defaults, aliases, or words for people.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from headrace.writer.avro.schema_text import Schema, SchemaForm


class ParsingForm:
    """Writes types of a schema, each named one where it is first, and by its name from there on."""

    def __init__(
        self,
        form: SchemaForm,
        spell_name: Callable[[str], str] = str,
        choose_attributes: Callable[[Mapping[str, Any]], Collection[str]] = lambda _: (),
    ) -> None:
        """`spell_name`: writes a full name. `choose_attributes`: names what a named type keeps besides its parts."""
        self._form = form
        self._spell_name = spell_name
        self._choose_attributes = choose_attributes
        self._defined = set[str]()

    def write(self, schema: Schema) -> Schema:
        """Return a type in its form."""
        schema = self._form.resolve(schema)
        if isinstance(schema, list):
            return [self.write(branch) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        match schema["type"]:
            case "array":
                return {"type": "array", "items": self.write(schema["items"])}
            case "map":
                return {"type": "map", "values": self.write(schema["values"])}
            case "record" | "enum" | "fixed":
                return self._write_named_type(schema)
            case primitive:
                return primitive

    def _write_named_type(self, schema: Mapping[str, Any]) -> Schema:
        name = self._spell_name(schema["name"])
        if name in self._defined:
            return name
        self._defined.add(name)
        # Avro fixes the order of the keys, which a fingerprint depends on.
        form: dict[str, Any] = {"name": name, "type": schema["type"]}
        if schema["type"] == "record":
            form["fields"] = [{"name": field["name"], "type": self.write(field["type"])} for field in schema["fields"]]
        keys = ("symbols", "size", *self._choose_attributes(schema))
        return form | {key: schema[key] for key in keys if key in schema}
