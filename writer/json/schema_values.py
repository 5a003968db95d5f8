"""What a JSON Schema says of one value, wherever it says so: behind `$ref`, in `allOf`, beside null. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.writer.avro.schema_text import DEPTH_MAX, UnsupportedSchema
from headrace.writer.json.schema_documents import JsonSchema, SchemaDocuments, UnreadablePart

# Looks at schemas: `$ref` lets a short text mean a long one.
_STEPS_MAX = 500_000
_CHOICES = ("oneOf", "anyOf")
# Words whose value is a schema, a list of schemas, or schemas by name.
_ONE = (
    "items",
    "additionalItems",
    "unevaluatedItems",
    "contains",
    "additionalProperties",
    "unevaluatedProperties",
    "if",
    "then",
    "else",
)
_MANY = ("allOf", *_CHOICES, "prefixItems", "items")
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "dependencies")
# Of these, the schemas of the same value: what they say holds only at times.
_SAME_VALUE_ONE = ("if", "then", "else")
_SAME_VALUE_MANY = ("allOf", *_CHOICES)
_SAME_VALUE_BY_NAME = ("dependentSchemas", "dependencies")
# A number may be an integer.
_NARROWER: Mapping[str, frozenset[str]] = {"number": frozenset(("number", "integer"))}
_IMPLIED_TYPES = {"properties": "object", "items": "array"}
_PYTHON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", list: "array"}


@dataclass(frozen=True)
class ValueSchema:
    """What schemas say of one value together.

    `outer`: the schemas that stand where the value does. `parts`: these, and what they refer to or are made of, each an
    object. `choices`: the branches of each oneOf or anyOf that has several. `around`: identities of the schemas that it
    stands in. `is_recursive`: it is described by one of these.
    """

    outer: Sequence[JsonSchema]
    parts: Sequence[Mapping[str, Any]]
    choices: Sequence[Sequence[JsonSchema]]
    around: frozenset[int]
    is_recursive: bool

    @property
    def own_parts_first(self) -> Iterator[Mapping[str, Any]]:
        """The parts, those that stand where the value does before those behind `$ref` and `allOf`."""
        yield from (schema for schema in self.outer if isinstance(schema, dict))
        yield from self.parts

    def first_text(self, word: str) -> str | None:
        """Return what the first part says that has a text under a word."""
        return next((part[word] for part in self.own_parts_first if isinstance(part.get(word), str)), None)

    def objects(self, word: str) -> Iterator[Mapping[str, Any]]:
        """Yield the objects that parts have under a word."""
        return (part[word] for part in self.parts if isinstance(part.get(word), dict))

    def types(self) -> set[str] | None:
        """Return the names of its types besides null, as all parts allow them; None where none says any."""
        for stated in (_stated_types, _types_of_values):
            types = [names for names in map(stated, self.parts) if names is not None]
            if types:
                common = frozenset.intersection(*types)
                return set(common - {"null"} - ({"integer"} if "number" in common else set()))
        for word, name in _IMPLIED_TYPES.items():
            if any(isinstance(part.get(word), dict) for part in self.parts):
                return {name}
        return None

    def around_parts(self, word: str) -> frozenset[int]:
        """Return the identities of the schemas around a value that parts describe by a word, such as `items`."""
        return self.around | {id(part) for part in self.parts if word in part}


@dataclass
class _Parts:
    """The parts of a value's schema, as far as they are known."""

    around: frozenset[int]
    parts: list[Mapping[str, Any]] = field(default_factory=list)
    choices: list[Sequence[JsonSchema]] = field(default_factory=list)
    # Identities of the schemas that were looked at, and of those that are being looked at.
    met: set[int] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    is_recursive: bool = False


class SchemaReader:
    """Reads what the schemas of some documents say of values."""

    def __init__(self, documents: SchemaDocuments) -> None:
        self._documents = documents
        self._steps = 0

    def read(self, schemas: Sequence[JsonSchema], around: frozenset[int] = frozenset()) -> ValueSchema:
        """Return what schemas say of one value together. Raises UnsupportedSchema.

        `around`: identities of the schemas in which these stand.
        """
        value = _Parts(around)
        for schema in schemas:
            self._add(schema, value)
        return ValueSchema(schemas, value.parts, value.choices, around, value.is_recursive)

    def _add(self, schema: JsonSchema, value: _Parts) -> None:
        self._count_step()
        if isinstance(schema, bool):
            return
        if not isinstance(schema, dict):
            raise UnreadablePart("not a JSON Schema: where a schema should stand is a list, a text, a number or null")
        identity = id(schema)
        if identity in value.open:
            raise UnreadablePart("a $ref leads to itself, so it says nothing; let it name another schema")
        if len(value.open) > DEPTH_MAX:
            raise UnsupportedSchema(
                f"it has more than {DEPTH_MAX} of $ref, allOf or oneOf inside one another; flatten it"
            )
        if identity in value.around:
            value.is_recursive = True
            return
        if identity in value.met:
            return
        value.met.add(identity)
        value.open.add(identity)
        for target in self._documents.iterate_targets(schema):
            self._add(target, value)
        for part in _list_of(schema, "allOf"):
            self._add(part, value)
        value.parts.append(schema)
        for word in _CHOICES:
            branches = [branch for branch in _list_of(schema, word) if not _is_null(branch)]
            if len(branches) == 1:
                self._add(branches[0], value)
            elif branches:
                value.choices.append(branches)
        value.open.remove(identity)

    def iterate_inside(self, schemas: Sequence[JsonSchema]) -> Iterator[Mapping[str, Any]]:
        """Yield schemas and all that is inside them or behind a `$ref`, each once."""
        return self._iterate(schemas, _ONE, _MANY, _BY_NAME)

    def conditional_members(self, value: ValueSchema) -> dict[str, list[JsonSchema]]:
        """Return what schemas say of an object's members that hold only at times, such as branches of oneOf."""
        conditions = [branch for branches in value.choices for branch in branches]
        for part in value.parts:
            conditions += _inner_schemas(part, _SAME_VALUE_ONE, (), _SAME_VALUE_BY_NAME)
        members: dict[str, list[JsonSchema]] = {}
        for schema in self._iterate(conditions, _SAME_VALUE_ONE, _SAME_VALUE_MANY, _SAME_VALUE_BY_NAME):
            properties = schema.get("properties")
            if isinstance(properties, dict):
                for name, member in properties.items():
                    members.setdefault(name, []).append(member)
        return members

    def _iterate(
        self, schemas: Sequence[JsonSchema], one: Sequence[str], many: Sequence[str], by_name: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        pending = [*reversed(schemas)]
        met = set[int]()
        while pending:
            schema = pending.pop()
            self._count_step()
            if not isinstance(schema, dict) or id(schema) in met:
                continue
            met.add(id(schema))
            yield schema
            pending += self._documents.iterate_targets(schema)
            pending += _inner_schemas(schema, one, many, by_name)

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > _STEPS_MAX:
            raise UnsupportedSchema(f"it unfolds to more than {_STEPS_MAX:,} schemas; split it")


def _inner_schemas(
    schema: Mapping[str, Any], one: Sequence[str], many: Sequence[str], by_name: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the objects that are schemas directly inside a schema."""
    for word in one:
        if isinstance(schema.get(word), dict):
            yield schema[word]
    for word in many:
        yield from (inner for inner in _list_of(schema, word) if isinstance(inner, dict))
    for word in by_name:
        if isinstance(schema.get(word), dict):
            yield from (inner for inner in schema[word].values() if isinstance(inner, dict))


def _stated_types(part: Mapping[str, Any]) -> frozenset[str] | None:
    """Return what `type` says; None where it is not there."""
    if "type" not in part:
        return None
    names = part["type"]
    if not isinstance(names, list):
        names = [names]
    # Draft 3 had schemas among the names.
    texts = [name if isinstance(name, str) else "any" for name in names]
    return _with_narrower(texts)


def _types_of_values(part: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the types of the values that `enum` or `const` names; None where neither is there."""
    values = part.get("enum")
    if not isinstance(values, list):
        values = [part["const"]] if "const" in part else []
    if not values:
        return None
    return _with_narrower([_PYTHON_TYPES.get(type(value), "object") for value in values])


def _with_narrower(names: Sequence[str]) -> frozenset[str]:
    return frozenset().union(*(_NARROWER.get(name, frozenset((name,))) for name in names))


def _list_of(schema: Mapping[str, Any], word: str) -> list[JsonSchema]:
    schemas = schema.get(word)
    return schemas if isinstance(schemas, list) else []


def _is_null(branch: JsonSchema) -> bool:
    """Return whether a branch allows null alone."""
    if not isinstance(branch, dict):
        return False
    if "type" in branch:
        return branch["type"] in ("null", ["null"])
    return branch.get("enum") == [None] or ("const" in branch and branch["const"] is None)
