"""Canonical form of an Avro schema and its fingerprint, which tells another schema from another spelling.

Registries write a schema out anew, in their own order of keys and with names made short or full. Avro's Parsing
Canonical Form (1.12) settles that, but leaves out defaults, aliases and logical types, which decide here over columns
and over what stands in them: so these stay. What decides over nothing goes: doc, order, attributes that Avro does not
know. The fingerprint that producers write, CRC-64-AVRO, is of Avro's own form. Pure.
"""

import hashlib
import json
from functools import lru_cache
from typing import Any

from fastavro.schema import fingerprint as fingerprint_of_form

from headrace.writer.avro.parsing_form import ParsingForm
from headrace.writer.avro.schema_text import NAMED, PRIMITIVES, Schema, UnsupportedSchema, parse_schema, read_json


def canonical_text(text: str) -> str:
    """Return the one spelling of a schema's JSON text. Raises UnsupportedSchema when it is none."""
    document = read_json(text, parse_float=_read_number)
    try:
        return json.dumps(_canonical_type(document, ""), sort_keys=True, separators=(",", ":"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedSchema(f"not an Avro schema: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1024)
def schema_fingerprint(text: str) -> int:
    """Return the first 63 bits of the SHA-256 of a schema's one spelling: what a `txn` of a table's log can hold.

    Raises UnsupportedSchema. Tables keep it for good: the spelling must never change.
    """
    digest = hashlib.sha256(canonical_text(text).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def crc_fingerprint(text: str) -> int:
    """Return a schema's CRC-64-AVRO, signed as Java gives it. Raises UnsupportedSchema when it is none.

    Avro 1.12, "Schema Fingerprints": of the parsing canonical form.
    """
    form = parse_schema(text)
    parsing_form = json.dumps(ParsingForm(form).write(form.root), separators=(",", ":"), ensure_ascii=False)
    digits = fingerprint_of_form(parsing_form, "CRC-64-AVRO")
    return int.from_bytes(bytes.fromhex(digits), "little", signed=True)


def _canonical_type(schema: Schema, space: str) -> Schema:
    """Return a type in canonical form. `space`: its enclosing namespace."""
    if isinstance(schema, list):
        return [_canonical_type(branch, space) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full_name(schema, space)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _canonical_type(kind, space)
    form: dict[str, Any] = {"type": kind}
    if kind in NAMED:
        form["name"] = _full_name(schema["name"], schema.get("namespace", space))
        space = form["name"].rpartition(".")[0]
        if schema.get("aliases"):
            form["aliases"] = [_full_name(alias, space) for alias in schema["aliases"]]
    match kind:
        case "record" | "error":
            form["fields"] = [_canonical_field(field, space) for field in schema["fields"]]
        case "enum":
            form |= {key: schema[key] for key in ("symbols", "default") if key in schema}
        case "fixed":
            form["size"] = schema["size"]
        case "array":
            form["items"] = _canonical_type(schema["items"], space)
        case "map":
            form["values"] = _canonical_type(schema["values"], space)
        case _:
            form["type"] = _canonical_type(kind, space)
    form |= {key: schema[key] for key in ("logicalType", "precision", "scale") if schema.get(key)}
    return form["type"] if form.keys() == {"type"} else form


def _canonical_field(field: Any, space: str) -> dict[str, Any]:
    form = {key: field[key] for key in ("name", "default") if key in field}
    if field.get("aliases"):
        form["aliases"] = field["aliases"]
    form["type"] = _canonical_type(field["type"], space)
    return form


def _full_name(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _read_number(text: str) -> float:
    """Read a number as JSON means it: a default of 1.0 is one of 1."""
    number = float(text)
    return int(number) if number.is_integer() else number
