"""Finds what `$ref` means in the texts of a JSON Schema: in the schema itself, and in those that its registry lists.

A document has the name by which `$ref` has it, and a base from there: `$id` changes the base of the schemas inside
(2020-12 Core, 8.2). A `$ref` is resolved against the base around it, then against the name of its document, and then it
is taken for the name of a document. Nothing is fetched. Pure.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urljoin

from headrace.writer.avro.schema_text import UnsupportedSchema, quote_name, read_json

# JSON: a mapping, or true and false.
JsonSchema = Any
REFERENCE_WORDS = ("$ref", "$dynamicRef", "$recursiveRef")
_ANCHORS = ("$anchor", "$dynamicAnchor")
# Words whose values are data, and no schemas.
_DATA = frozenset(("enum", "const", "default", "examples", "example"))
# Drafts that call `$id` so; a schema without `$schema` may be of one of these.
_WITH_ID = ("draft-03", "draft-04")
_MISSING = object()
_AVRO_PREFIX = "not an Avro schema: "
# Characters of a base: nested ones become longer and longer.
_URI_MAX = 8_192
# Digits of the longest index in a list.
_INDEX_DIGITS_MAX = 9


class UnreadablePart(UnsupportedSchema):
    """A part of a JSON Schema cannot be read, such as a `$ref` to no schema. The message does not say where it is."""


@dataclass(frozen=True)
class _Place:
    """Where a schema stands: the base around it, and the name of its document."""

    base: str = ""
    document: str = ""


class SchemaDocuments:
    """A JSON Schema and the schemas that it may refer to."""

    def __init__(self, schema_text: str, references: Mapping[str, str]) -> None:
        """`references`: texts by the names in `$ref`. Raises UnsupportedSchema for a text that is no JSON."""
        self.root = read_document(schema_text)
        # Base or name → the schema, and (base, anchor) → the schema.
        self._resources: dict[str, JsonSchema] = {}
        self._anchors: dict[tuple[str, str], JsonSchema] = {}
        # By the identity of a schema, which stays as long as its document.
        self._places: dict[int, _Place] = {}
        self._documents = {name: read_document(text, name) for name, text in references.items()}
        self._add_document(self.root, "")
        for name, document in self._documents.items():
            self._add_document(document, name)

    def iterate_targets(self, schema: Mapping[str, Any]) -> Iterator[JsonSchema]:
        """Yield what a schema refers to itself. Raises UnreadablePart where there is no such schema."""
        for word in REFERENCE_WORDS:
            if word in schema:
                yield self._resolve(schema, schema[word])

    def _resolve(self, schema: Mapping[str, Any], reference: Any) -> JsonSchema:
        if not isinstance(reference, str):
            raise UnreadablePart("not a JSON Schema: it has a $ref that is no text")
        name, _, fragment = reference.partition("#")
        place = self._places.get(id(schema), _Place())
        resources = [place.base, place.document]
        if name:
            resources = [_join(place.base, name), _join(place.document, name), name]
        for resource in resources:
            target = self._find(resource, unquote(fragment))
            if isinstance(target, dict | bool):
                return target
        if any(resource in self._resources for resource in resources):
            raise UnreadablePart(f"$ref {quote_name(reference)} leads to no schema; correct it, or add what it names")
        raise UnreadablePart(
            f"$ref {quote_name(reference)} is neither in the schema nor among its references; register the schema with "
            f"a reference of the name {quote_name(name)}"
        )

    def _find(self, resource: str, fragment: str) -> Any:
        if resource not in self._resources:
            return _MISSING
        schema = self._resources[resource]
        if not fragment:
            return schema
        if not fragment.startswith("/"):
            return self._anchors.get((resource, fragment), _MISSING)
        for step in fragment[1:].split("/"):
            schema = _member(schema, step.replace("~1", "/").replace("~0", "~"))
        return schema

    def _add_document(self, document: JsonSchema, name: str) -> None:
        self._resources.setdefault(name, document)
        has_old_id = _has_old_id(document)
        pending: list[tuple[Any, str]] = [(document, name)]
        while pending:
            part, base = pending.pop()
            if isinstance(part, list):
                pending += [(item, base) for item in part]
            if not isinstance(part, dict):
                continue
            base = self._add_resource(part, base, has_old_id=has_old_id)
            self._places[id(part)] = _Place(base, name)
            pending += [(inner, base) for word, inner in part.items() if word not in _DATA or isinstance(inner, dict)]

    def _add_resource(self, schema: Mapping[str, Any], base: str, *, has_old_id: bool) -> str:
        """Add a schema by its own names. Returns the base of the schemas inside."""
        own_id = schema.get("$id")
        if own_id is None and has_old_id:
            own_id = schema.get("id")
        names = [schema[word] for word in _ANCHORS if isinstance(schema.get(word), str)]
        if isinstance(own_id, str):
            uri, _, fragment = own_id.partition("#")
            if uri:
                base = _join(base, uri)
                self._resources.setdefault(base, schema)
            if fragment:
                names.append(fragment)
        for name in names:
            self._anchors.setdefault((base, name), schema)
        return base


def read_document(text: str, reference: str | None = None, parse_float: Callable[[str], float] = float) -> JsonSchema:
    """Return the JSON of a JSON Schema's text. Raises UnsupportedSchema. `reference`: its name, where it is one."""
    try:
        return read_json(text, parse_float)
    except UnsupportedSchema as error:
        reason = str(error).removeprefix(_AVRO_PREFIX)
        where = "" if reference is None else f"reference {quote_name(reference)}: "
        raise UnsupportedSchema(f"not a JSON Schema: {where}{reason}") from None


def _has_old_id(document: JsonSchema) -> bool:
    """Return whether the schemas of a document may call their base `id`."""
    if not isinstance(document, dict):
        return False
    dialect = document.get("$schema")
    return dialect is None or any(draft in str(dialect) for draft in _WITH_ID)


def _join(base: str, uri: str) -> str:
    """Return a URI against its base; as it is where it is none, or too long."""
    if len(base) + len(uri) > _URI_MAX:
        return uri
    try:
        return urljoin(base, uri)
    except ValueError:
        return uri


def _member(part: Any, step: str) -> Any:
    if isinstance(part, dict):
        return part.get(step, _MISSING)
    if isinstance(part, list) and step.isdecimal() and len(step) <= _INDEX_DIGITS_MAX and int(step) < len(part):
        return part[int(step)]
    return _MISSING
