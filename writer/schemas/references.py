"""Puts the schemas that a schema refers to into its text, as Java's parser resolves their names. Pure but for `read`.

A JSON Schema, or a Protobuf one, and those that it refers to become an envelope. Of two under one name the first
counts, as in Confluent's client, which reads what a reference refers to before the next reference.

Java's parser (Avro 1.12, `Schema.Parser`) parses the referenced schemas one after the other, each after those that it
refers to itself, and then the schema. A name means the type of that full name, whatever the reference is called. A
name without a dot means the type of the namespace around it, or else the one without a namespace.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.writer.avro.schema_text import (
    KEYWORDS,
    NAMED,
    PRIMITIVES,
    Schema,
    UnsupportedSchema,
    find_definitions,
    full_name,
    read_json,
)
from headrace.writer.json.envelope import envelope
from headrace.writer.protobuf.registered_schema import wrap_schema

# Types of a schema as an answer has them; Avro is left out.
_AVRO = (None, "", "AVRO")
JSON = "JSON"
PROTOBUF = "PROTOBUF"


@dataclass(frozen=True)
class Reference:
    """A version of another subject that a schema refers to. `group`: of an Apicurio artifact, else empty."""

    name: str
    subject: str
    version: str
    group: str = ""

    @property
    def target(self) -> tuple[str, str, str]:
        """What it refers to, whatever it is called."""
        return self.group, self.subject, self.version

    def __str__(self) -> str:
        return f"version {self.version} of subject {self.subject!r}"


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema as a registry has it. `kind`: AVRO, PROTOBUF or JSON; None: not said, and so Avro.

    `encrypting_rule`: the name of a rule by which producers encrypt values.
    """

    text: str
    kind: str | None = None
    references: Sequence[Reference] = ()
    encrypting_rule: str | None = None


def inline_references(schema: RegisteredSchema, read: Callable[[Reference], RegisteredSchema]) -> str:
    """Return a schema's text, each named type of its references defined where the text names it first.

    Of a JSON Schema it is an envelope (`headrace.writer.json.envelope`), also without references, and of a Protobuf
    schema, too (`headrace.writer.protobuf.registered_schema`). An Avro text that is no JSON is returned as it is, for
    the parser to refuse. `read` fetches a referenced schema; its errors are raised.
    """
    if schema.kind == JSON:
        texts: dict[str, str] = {}
        _collect_texts(schema.references, read, texts)
        return envelope(schema.text, texts, schema.encrypting_rule)
    if schema.kind == PROTOBUF:
        imports: dict[str, str] = {}
        _collect_texts(schema.references, read, imports)
        return wrap_schema(schema.text, imports, schema.encrypting_rule)
    if not schema.references or schema.kind not in _AVRO:
        return schema.text
    parts: list[tuple[Reference, str]] = []
    types = _NamedTypes()
    try:
        _collect_parts(schema.references, read, set(), parts)
        for reference, text in parts:
            types.add(read_json(text), reference.name)
        root = types.add(read_json(schema.text), "")
        return json.dumps(types.expand(root, "", set()))
    except (UnsupportedSchema, RecursionError):
        return schema.text


def _collect_texts(
    references: Sequence[Reference], read: Callable[[Reference], RegisteredSchema], texts: dict[str, str]
) -> None:
    """Add the text of each referenced schema, and of those that it refers to itself, by the names in `$ref`."""
    # No recursion: a chain of references may be longer than Python's stack is deep.
    pending = [*reversed(references)]
    while pending:
        reference = pending.pop()
        if reference.name in texts:
            continue
        part = read(reference)
        texts[reference.name] = part.text
        pending += reversed(part.references)


def _collect_parts(
    references: Sequence[Reference],
    read: Callable[[Reference], RegisteredSchema],
    targets: set[tuple[str, str, str]],
    parts: list[tuple[Reference, str]],
) -> None:
    """Append the text of each referenced schema once, behind those that it refers to."""
    for reference in references:
        if reference.target in targets:
            continue
        targets.add(reference.target)
        part = read(reference)
        _collect_parts(part.references, read, targets, parts)
        parts.append((reference, part.text))


@dataclass(frozen=True)
class _Definition:
    """A named type, with full names in its parts. `text`: number of the text that defines it, under `reference`."""

    schema: Mapping[str, Any]
    reference: str
    text: int


class _NamedTypes:
    """The named types of some texts, by their full names."""

    def __init__(self) -> None:
        self._definitions: dict[str, _Definition] = {}
        # Full name → another definition of it.
        self._conflicts: dict[str, Mapping[str, Any]] = {}
        # Name of the reference to the text that is added; empty: the schema itself.
        self._reference = ""
        self._texts = 0
        # Of all definitions, also of those that come later in a text.
        self._names = set[str | None]()

    def add(self, schema: Schema, reference: str) -> Schema:
        """Add the named types of a text. Returns its schema, with full names in the places of the types."""
        self._reference = reference
        self._texts += 1
        self._names |= {full_name(definition, space) for definition, space in find_definitions(schema)}
        return self._qualify(schema, "")

    def _qualify(self, schema: Schema, space: str) -> Schema:
        if isinstance(schema, str):
            return self._full_name_of(schema, space)
        if isinstance(schema, list):
            return [self._qualify(branch, space) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        kind = schema.get("type")
        if isinstance(kind, str) and kind in NAMED and isinstance(schema.get("name"), str):
            return self._define(schema, space)
        if isinstance(kind, str) and kind not in KEYWORDS:
            name = self._full_name_of(kind, space)
            # What stands beside a name, such as a tag, may be what protects the values.
            return name if len(schema) == 1 else {**schema, "type": name}
        return _change_parts(schema, lambda part: self._qualify(part, space))

    def _define(self, schema: Mapping[str, Any], space: str) -> str:
        """Add a named type.

        Where texts define a name differently, the schema itself goes before its references, and of these the first
        counts, as long as one name refers to both.
        """
        name = full_name(schema, space) or ""
        before = self._definitions.get(name)
        # A record may contain itself.
        if before is None:
            self._definitions[name] = _Definition(schema, self._reference, self._texts)
        inner = name.rpartition(".")[0]
        own = {key: value for key, value in schema.items() if key != "namespace"}
        qualified = {**_change_parts(own, lambda part: self._qualify(part, inner)), "name": name}
        definition = _Definition(qualified, self._reference, self._texts)
        if before is None or (not self._reference and before.text != self._texts):
            self._definitions[name] = definition
        elif before.schema != qualified and (before.text == self._texts or before.reference != self._reference):
            self._conflicts[name] = qualified
        return name

    def _full_name_of(self, name: str, space: str) -> str:
        if name in PRIMITIVES or "." in name or not space:
            return name
        full = f"{space}.{name}"
        return name if full not in self._names and name in self._names else full

    def expand(self, schema: Schema, space: str, defined: set[str]) -> Schema:
        """Define each named type where it is named first.

        One with two meanings is defined twice: parsers refuse that, and name the type.

        `space`: the namespace around. `defined`: full names of the types before.
        """
        if isinstance(schema, str):
            return self._expand_name(schema, space, defined)
        if isinstance(schema, list):
            return [self.expand(branch, space, defined) for branch in schema]
        if not isinstance(schema, dict):
            return schema
        return _change_parts(schema, lambda part: self.expand(part, space, defined))

    def _expand_name(self, name: str, space: str, defined: set[str]) -> Schema:
        if name not in self._definitions or name in defined:
            return name
        defined.add(name)
        inner = name.rpartition(".")[0]
        expanded = _change_parts(self._definitions[name].schema, lambda part: self.expand(part, inner, defined))
        if space and not inner:
            expanded = {**expanded, "namespace": ""}
        return [expanded, self._conflicts[name]] if name in self._conflicts else expanded


def _change_parts(schema: Mapping[str, Any], change: Callable[[Schema], Schema]) -> dict[str, Any]:
    """Return a type, or a field, with what it is made of changed: its type, items, values, or the types of fields."""
    parts = {key: change(schema[key]) for key in ("items", "values") if key in schema}
    if "type" in schema and not (isinstance(schema["type"], str) and schema["type"] in KEYWORDS):
        parts["type"] = change(schema["type"])
    if isinstance(schema.get("fields"), list):
        fields = schema["fields"]
        parts["fields"] = [_change_parts(field, change) if isinstance(field, dict) else field for field in fields]
    return {**schema, **parts}
