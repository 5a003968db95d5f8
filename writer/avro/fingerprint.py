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

from writer.avro.schema_text import NAMED, PRIMITIVES, Schema, UnsupportedSchema, parse_schema, read_json


def canonical_text(text: str) -> str:
    """Return the one spelling of a schema's JSON text. Raises UnsupportedSchema when it is none."""
    document = read_json(text, parse_float=_number)
    try:
        normalised = _type(document, "")
        return json.dumps(normalised, sort_keys=True, separators=(",", ":"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnsupportedSchema(f"not an Avro schema: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1024)
def schema_fingerprint(text: str) -> int:
    """Return the first 63 bits of the SHA-256 of a schema's one spelling: what a `txn` of a table's log can hold.

    Raises UnsupportedSchema. Tables keep it for good: the spelling must never change.
    """
    return int.from_bytes(hashlib.sha256(canonical_text(text).encode()).digest()[:8], "big") >> 1


def crc_fingerprint(text: str) -> int:
    """Return a schema's CRC-64-AVRO, signed as Java gives it. Raises UnsupportedSchema when it is none.

    Avro 1.12, "Schema Fingerprints": of the parsing canonical form.
    """
    form = parse_schema(text)
    written = json.dumps(_parsing_form(form.root, set()), separators=(",", ":"), ensure_ascii=False)
    return int.from_bytes(bytes.fromhex(fingerprint_of_form(written, "CRC-64-AVRO")), "little", signed=True)


def _parsing_form(schema: Schema, defined: set[str]) -> Schema:
    """Return a type in Avro's Parsing Canonical Form. `defined`: full names of the types before."""
    while isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        schema = schema["type"]
    if isinstance(schema, list):
        return [_parsing_form(branch, defined) for branch in schema]
    if isinstance(schema, str):
        return schema
    match schema["type"]:
        case "array":
            return {"type": "array", "items": _parsing_form(schema["items"], defined)}
        case "map":
            return {"type": "map", "values": _parsing_form(schema["values"], defined)}
        case "record" | "enum" | "fixed":
            name = schema["name"]
            if name in defined:
                return name
            defined.add(name)
            own: dict[str, Any] = {"name": name, "type": schema["type"]}
            if schema["type"] == "record":
                fields = ((field["name"], _parsing_form(field["type"], defined)) for field in schema["fields"])
                own["fields"] = [{"name": field, "type": kind} for field, kind in fields]
            return own | {key: schema[key] for key in ("symbols", "size") if key in schema}
    return schema["type"]


def _type(schema: Schema, space: str) -> Schema:
    """Write a type in canonical form. `space`: its enclosing namespace."""
    if isinstance(schema, list):
        return [_type(branch, space) for branch in schema]
    if isinstance(schema, str):
        return schema if schema in PRIMITIVES else _full(schema, space)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _type(kind, space)
    normalised: dict[str, Any] = {"type": kind}
    if kind in NAMED:
        normalised["name"] = _full(schema["name"], schema.get("namespace", space))
        space = normalised["name"].rpartition(".")[0]
        normalised |= {"aliases": [_full(alias, space) for alias in schema["aliases"]]} if schema.get("aliases") else {}
    match kind:
        case "record" | "error":
            normalised["fields"] = [_field(field, space) for field in schema["fields"]]
        case "enum":
            normalised |= {key: schema[key] for key in ("symbols", "default") if key in schema}
        case "fixed":
            normalised["size"] = schema["size"]
        case "array" | "map":
            key = "items" if kind == "array" else "values"
            normalised[key] = _type(schema[key], space)
        case _:
            normalised["type"] = _type(kind, space)
    normalised |= {key: schema[key] for key in ("logicalType", "precision", "scale") if schema.get(key)}
    return normalised["type"] if normalised.keys() == {"type"} else normalised


def _field(field: Any, space: str) -> dict[str, Any]:
    kept = {key: field[key] for key in ("name", "default") if key in field}
    aliases = {"aliases": field["aliases"]} if field.get("aliases") else {}
    return {**kept, **aliases, "type": _type(field["type"], space)}


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _number(text: str) -> float:
    """Read a number as JSON means it: a default of 1.0 is one of 1."""
    number = float(text)
    return int(number) if number.is_integer() else number
