"""Reads the text of a schema, as leniently as Java's parser does, into one form. Pure.

A schema is refused for what makes its values unreadable, and by a sentence; whatever a text holds, nothing else is
raised. Names are looked up as Avro 1.12 defines ("Names"): a short name means the type of the namespace around it, or
else the one without a namespace; it may stand before its definition. Defaults are not looked at. (docs/adr/0053)

The form: names of types, and their aliases, are full; each type is defined where it is named first, and is its full
name from there on; `error` is `record`; an attribute that is of no use to its type is gone, and so is a logical type
that its type does not have. All other attributes stay. Where some stand beside a name, or around a type,
the type is the `type` of an object with them: its definition, even where it was defined before.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Avro schemas are JSON: str | list | dict.
Schema = Any
PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
NAMED = frozenset(("record", "error", "enum", "fixed"))
KEYWORDS = PRIMITIVES | NAMED | {"array", "map"}
# A table with more columns is none.
PARTS_MAX = 20_000
DEPTH_MAX = 64
# In characters; registries take a megabyte by default.
TEXT_MAX = 2**24
# Bytes of the largest record, and what Java counts digits by.
INT_MAX = 2**31 - 1
# Of brackets: Python's stack ends at twice as many.
_NESTING_MAX = 500
# Attribute of what stands for a schema that is refused; no producer sets it.
_REFUSED = "headrace.refused"
# Characters of a name in a message.
_QUOTE_MAX = 80
# Keys that belong to one kind of type each.
_PART_KEYS = {"fields", "symbols", "size", "items", "values"}
_NAME_KEYS = {"type", "name", "namespace", "aliases"}
# A comment that nothing closes is one token up to the end: looked for at each `/*`, the end would take hours.
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"?|//[^\n]*|/\*(?:.*?\*/|.*)|[\[\]{}]', re.DOTALL)
_CLOSED_COMMENT = re.compile(r"//.*|/\*.*\*/", re.DOTALL)
_BYTE_ORDER_MARK = "\ufeff"
# Control characters, and halves of a pair.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Begin of the reason for which a schema is refused where headrace raises what it should not.
UNFORESEEN = "headrace fails on it, which is no fault of the schema"


class UnsupportedSchema(ValueError):
    """A schema whose records cannot become rows. Its message names the part and the reason."""


@contextmanager
def refuse_unforeseen() -> Iterator[None]:
    """Raise UnsupportedSchema for what is raised by mistake: one schema never stops those of others.

    An OSError or a MemoryError says nothing of a schema, and is raised as it is.
    """
    try:
        yield
    except (UnsupportedSchema, OSError, MemoryError):
        raise
    except Exception as error:
        raise UnsupportedSchema(f"{UNFORESEEN} ({type(error).__name__}); report it with the schema") from error


@dataclass(frozen=True)
class SchemaForm:
    """A schema in its one form, and every named type by its full name."""

    root: Schema
    named: Mapping[str, Schema]

    def resolve(self, schema: Schema) -> Schema:
        """Replace a name by its definition, and an object around a type by the type."""
        while isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            schema = schema["type"]
        if isinstance(schema, str):
            return self.named.get(schema, schema)
        return schema


def read_json(text: str, parse_float: Callable[[str], float] = float) -> Any:
    """Read JSON with comments, `//` and `/* */`, and a byte order mark. Raises UnsupportedSchema for other text.

    Of a key that stands twice, the last counts, as in Java. `parse_float`: reads a number with a point or an exponent.
    """
    if len(text) > TEXT_MAX:
        raise _refusal(f"its text has {len(text):,} characters, and may have {TEXT_MAX:,}")
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if "/" in text:
        text = _TOKEN.sub(_blank_comment, text)
    if text.count("[") + text.count("{") > _NESTING_MAX and _nesting(text) > _NESTING_MAX:
        raise _refusal(f"its text has more than {_NESTING_MAX} brackets inside one another")
    try:
        return json.loads(text, parse_float=parse_float)
    except json.JSONDecodeError as error:
        raise _refusal(f"its text is no JSON: {error}") from None
    except ValueError:
        # Python reads no number of more digits.
        raise _refusal("its text has a number of thousands of digits") from None


def refused_text(reason: str) -> str:
    """Return a text that stands for a schema which is no record, and whose parsing fails for this reason."""
    return json.dumps({_REFUSED: reason})


def parse_schema(text: str) -> SchemaForm:
    """Parse a schema's JSON text, of any type. Raises UnsupportedSchema."""
    document = read_json(text)
    if isinstance(document, dict) and isinstance(document.get(_REFUSED), str):
        raise UnsupportedSchema(document[_REFUSED])
    writer = _FormWriter(document)
    root = writer.write(document, _PartContext())
    return SchemaForm(root, writer.named)


def full_name(schema: Mapping[str, Any], space: str = "") -> str | None:
    """Return the full name of a named type; None where it has none. Avro 1.12, "Names".

    `space`: the namespace around it, which counts where its own is no text.
    """
    name = schema.get("name")
    if not isinstance(name, str):
        return None
    own_space = schema.get("namespace")
    if isinstance(own_space, str):
        space = own_space
    return qualify_name(name, space)


def qualify_name(name: str, space: str) -> str:
    """Return a name in full. `space`: the namespace around it, which counts where the name has none."""
    # Avro 1.12: a name that begins with its only dot is one without a namespace.
    if name.rfind(".") == 0:
        return name.removeprefix(".")
    if "." in name or not space:
        return name
    return f"{space}.{name}"


def is_full_name(name: str) -> bool:
    """Return whether a full name is one of a type: neither it nor its last part is empty."""
    return not (name == "" or name.endswith("."))


def is_path_step(name: Any) -> bool:
    """Return whether a path of `privacy` can name such a field: `a.b` would lie in another, `<x>` in a union."""
    return isinstance(name, str) and "." not in name and not name.startswith("<")


def _blank_comment(token: re.Match[str]) -> str:
    """Return a blank for a comment, and all else as it is, also a comment that nothing closes."""
    return " " if _CLOSED_COMMENT.fullmatch(token[0]) else token[0]


def _nesting(text: str) -> int:
    """Return how many brackets stand inside one another at most."""
    depth = 0
    deepest = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        deepest = max(deepest, depth)
    return deepest


@dataclass(frozen=True)
class _PartContext:
    """Where a part of a schema stands: the fields that lead to it, the namespace around it, and its depth."""

    path: tuple[str, ...] = ()
    space: str = ""
    depth: int = 0

    def inner(self, space: str | None = None) -> "_PartContext":
        """Return the context of a part one level deeper. `space`: the namespace around it, where that is another."""
        if space is None:
            space = self.space
        return _PartContext(self.path, space, self.depth + 1)

    def of_field(self, name: str) -> "_PartContext":
        """Return the context of the type of a field."""
        return _PartContext((*self.path, name), self.space, self.depth)

    def __str__(self) -> str:
        if not self.path:
            return "it"
        return f"field {quote_name('.'.join(self.path))}"


class _FormWriter:
    """Writes the form of one schema."""

    def __init__(self, document: Any) -> None:
        self.named: dict[str, dict[str, Any]] = {}
        # Full name → the definition as it stands, and the namespace around it.
        self._definitions: dict[str, tuple[Mapping[str, Any], str]] = {}
        self._parts = 0
        for schema, space in find_definitions(document):
            name = full_name(schema, space)
            if name is None:
                continue
            first, _ = self._definitions.setdefault(name, (schema, space))
            if _without_names(first) != _without_names(schema):
                raise _refusal(f"type {quote_name(name)} is defined twice, and not alike")

    def write(self, schema: Any, context: _PartContext) -> Schema:
        """Return a type in its form. Raises UnsupportedSchema."""
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise UnsupportedSchema(f"it has more than {PARTS_MAX:,} parts; split it")
        if context.depth > DEPTH_MAX:
            raise UnsupportedSchema(f"it is more than {DEPTH_MAX} levels deep; flatten it")
        if isinstance(schema, str):
            return schema if schema in PRIMITIVES else self._write_name(schema, context)
        if isinstance(schema, list):
            return self._write_union(schema, context)
        if not isinstance(schema, dict):
            raise _refusal(f"{context} is {_kind_of(schema)}, and no type")
        if "type" not in schema:
            raise _refusal(f"{context} is an object without a 'type'")
        kind = schema["type"]
        match kind:
            case "record" | "error" | "enum" | "fixed":
                return self._write_definition(schema, context)
            case "array":
                return self._write_collection(schema, "items", context)
            case "map":
                return self._write_collection(schema, "values", context)
            case str() if kind in PRIMITIVES:
                attributes = attributes_of(schema)
                if not attributes or kind == "null":
                    return kind
                return {"type": kind, **attributes}
        return self._write_around(schema, context)

    def _write_collection(self, schema: Mapping[str, Any], part: str, context: _PartContext) -> Schema:
        """Return an array or a map. `part`: the key of its items or values."""
        kind = schema["type"]
        if part not in schema:
            raise _refusal(f"{context} is of type {kind}, without {part!r}")
        return {"type": kind, part: self.write(schema[part], context.inner()), **attributes_of(schema)}

    def _write_union(self, schema: list[Any], context: _PartContext) -> Schema:
        """Return a union. Its branches differ by their names, as Avro 1.12 says ("Unions"), and columns by these."""
        branches = [self.write(branch, context.inner()) for branch in schema]
        names: set[str] = set()
        for branch in branches:
            kind = branch
            while isinstance(kind, dict) and isinstance(kind["type"], dict | list):
                kind = kind["type"]
            if isinstance(kind, list):
                raise _refusal(f"{context} has a union inside a union; put the branches of both into one")
            name = kind if isinstance(kind, str) else kind.get("name", kind["type"])
            if name in names:
                raise _refusal(f"{context} is a union with two branches {quote_name(name)}; take one out")
            names.add(name)
        return branches

    def _write_around(self, schema: Mapping[str, Any], context: _PartContext) -> Schema:
        """Return a type with the attributes of the object around it."""
        inner = self.write(schema["type"], context.inner())
        attributes = {key: value for key, value in attributes_of(schema).items() if key != "logicalType"}
        if not attributes or inner == "null":
            return inner
        if isinstance(inner, str):
            inner = self.named.get(inner, {"type": inner})
        return {"type": inner, **attributes}

    def _write_name(self, name: str, context: _PartContext) -> Schema:
        """Return the type of a name: its definition where it is the first."""
        full = qualify_name(name, context.space)
        if full not in self._definitions and "." not in name:
            full = name
        if full not in self._definitions:
            if name in KEYWORDS:
                raise _refusal(f"{context} is a bare {name!r}, which stands in an object of its own")
            raise _refusal(f"{context} is of type {quote_name(name)}, which is defined nowhere in the schema")
        if full in self.named:
            return full
        schema, space = self._definitions[full]
        return self._write_definition(schema, _PartContext(context.path, space, context.depth))

    def _write_definition(self, schema: Mapping[str, Any], context: _PartContext) -> Schema:
        kind = schema["type"]
        name = full_name(schema, context.space)
        if name is None:
            raise _refusal(f"{context} is of type {kind}, without a name")
        if name in self.named:
            return name
        _check_name(name, f"the {kind} of {context}")
        if not is_full_name(name):
            raise _refusal(f"the {kind} of {context} has an empty name in its namespace")
        if name in PRIMITIVES:
            raise _refusal(f"the {kind} of {context} is named {name!r}, like a type of Avro; rename it")
        form: dict[str, Any] = {"type": "record" if kind == "error" else kind, "name": name, **attributes_of(schema)}
        self.named[name] = form
        space = name.rpartition(".")[0]
        if "aliases" in schema:
            form["aliases"] = [qualify_name(alias, space) for alias in _aliases(schema, f"{kind} {quote_name(name)}")]
            if not all(map(is_full_name, form["aliases"])):
                raise _refusal(f"an alias of {kind} {quote_name(name)} has an empty name in its namespace")
        match kind:
            case "enum":
                form["symbols"] = _symbols(schema, name)
            case "fixed":
                form["size"] = _size(schema, name)
                _drop_bad_decimal(form)
            case _:
                form["fields"] = self._write_fields(schema, name, context.inner(space))
        return form

    def _write_fields(self, schema: Mapping[str, Any], name: str, context: _PartContext) -> list[dict[str, Any]]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _refusal(f"record {quote_name(name)} has no list of fields")
        names: set[str] = set()
        forms: list[dict[str, Any]] = []
        for field in fields:
            if not isinstance(field, dict) or not isinstance(field.get("name"), str):
                raise _refusal(f"record {quote_name(name)} has a field without a name")
            _check_name(field["name"], f"a field of record {quote_name(name)}")
            if field["name"] in names:
                raise _refusal(f"record {quote_name(name)} has two fields {quote_name(field['name'])}")
            names.add(field["name"])
            forms.append(self._write_field(field, context))
        return forms

    def _write_field(self, field: Mapping[str, Any], context: _PartContext) -> dict[str, Any]:
        field_context = context.of_field(field["name"])
        if "type" not in field:
            raise _refusal(f"{field_context} has no type")
        form = {**field, "type": self.write(field["type"], field_context)}
        if "aliases" in field:
            form["aliases"] = _aliases(field, str(field_context))
        return form


def find_definitions(document: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the named types of a schema as they stand, each with the namespace around it, in their order."""
    pending: list[tuple[Any, str, int]] = [(document, "", 0)]
    while pending:
        schema, space, depth = pending.pop()
        # `_FormWriter.write` refuses what lies deeper.
        if depth > 2 * DEPTH_MAX:
            continue
        if isinstance(schema, list):
            pending += [(branch, space, depth + 1) for branch in reversed(schema)]
        if not isinstance(schema, dict):
            continue
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            pending.append((kind, space, depth + 1))
        if not isinstance(kind, str):
            continue
        if kind in NAMED:
            yield schema, space
            space = (full_name(schema, space) or "").rpartition(".")[0]
        pending += [(part, space, depth + 1) for part in reversed(_inner_types(schema, kind))]


def _inner_types(schema: Mapping[str, Any], kind: str) -> list[Any]:
    """Return the types of a record's fields, of an array's items or of a map's values, as far as they are there."""
    if kind in ("record", "error") and isinstance(schema.get("fields"), list):
        return [field.get("type") for field in schema["fields"] if isinstance(field, dict)]
    if kind == "array" and "items" in schema:
        return [schema["items"]]
    if kind == "map" and "values" in schema:
        return [schema["values"]]
    return []


def _without_names(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a named type without its name, which may be short or full, and without its words for people."""
    return {key: value for key, value in schema.items() if key not in ("name", "namespace", "doc")}


def attributes_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return what stands in a type besides what makes it, without a logical type that it does not have."""
    attributes = {key: value for key, value in schema.items() if key not in _PART_KEYS and key not in _NAME_KEYS}
    if not isinstance(attributes.get("logicalType", ""), str):
        del attributes["logicalType"]
    if schema.get("type") == "bytes":
        _drop_bad_decimal(attributes)
    return attributes


def _drop_bad_decimal(part: dict[str, Any]) -> None:
    """Take off the logical type of an invalid decimal, as Avro defines. `part`: of bytes, or of a fixed type."""
    if part.get("logicalType") == "decimal" and not _is_decimal(part):
        del part["logicalType"]


def _is_decimal(part: Mapping[str, Any]) -> bool:
    """Return whether precision and scale are those of a decimal, and its fixed size, if any, can hold the digits."""
    precision = part.get("precision")
    scale = part.get("scale", 0)
    if type(precision) is not int or type(scale) is not int:
        return False
    if not 1 <= precision <= INT_MAX or not 0 <= scale <= precision:
        return False
    if "size" not in part:
        return True
    # Avro 1.12, "Decimal": at most floor(log10(2^(8n-1) - 1)) digits. No power of 2 is one of 10, so the 1 is nothing.
    size = part["size"]
    return bool(size > 0 and precision <= math.floor((8 * size - 1) * math.log10(2)))


def _symbols(schema: Mapping[str, Any], name: str) -> list[str]:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(symbol, str) for symbol in symbols):
        raise _refusal(f"enum {quote_name(name)} has no list of symbols")
    if not symbols:
        raise _refusal(f"enum {quote_name(name)} has no symbols; give it one")
    if any(map(_SURROGATE.search, symbols)):
        raise _refusal(f"enum {quote_name(name)} has a symbol that is no text: half of a pair of characters")
    return symbols


def _size(schema: Mapping[str, Any], name: str) -> int:
    size = schema.get("size")
    if type(size) is not int:
        raise _refusal(f"fixed {quote_name(name)} has no size")
    if size < 0:
        raise _refusal(f"fixed {quote_name(name)} has a negative size; make it positive")
    if size > INT_MAX:
        raise _refusal(f"fixed {quote_name(name)} is larger than any record")
    return size


def _aliases(schema: Mapping[str, Any], where: str) -> list[str]:
    aliases = schema["aliases"]
    if not isinstance(aliases, list) or not all(isinstance(alias, str) for alias in aliases):
        raise _refusal(f"the aliases of {where} are no list of names")
    for alias in aliases:
        _check_name(alias, f"an alias of {where}")
    return list(aliases)


def is_printable_name(name: str) -> bool:
    """Return whether tables, pages and logs can show a name."""
    return bool(name) and _UNPRINTABLE.search(name) is None


def _check_name(name: str, where: str) -> None:
    """Raise UnsupportedSchema for what no table, page or log can show as a name."""
    if not name:
        raise _refusal(f"{where} has an empty name")
    if _UNPRINTABLE.search(name):
        raise _refusal(f"{where} is named {quote_name(name)}, with a control character or half of a pair of characters")


def quote_name(name: str) -> str:
    """Return a name in quotes, as much of it as a person reads."""
    if len(name) > _QUOTE_MAX:
        return ascii(name[:_QUOTE_MAX]) + "…"
    return repr(name)


def _kind_of(value: Any) -> str:
    return {bool: "true or false", type(None): "null"}.get(type(value), "a number")


def _refusal(reason: str) -> UnsupportedSchema:
    return UnsupportedSchema(f"not an Avro schema: {reason}")
