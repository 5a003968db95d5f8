"""A JSON Schema and the schemas that it refers to, as one text: what a source of schemas hands over. Pure."""

import json
from collections.abc import Mapping
from typing import Any

from headrace.writer.avro.schema_text import NAMED, UnsupportedSchema, read_json

FORMAT = "headrace.format"
JSON_SCHEMA = "json_schema"
_ENCRYPTING_RULE = "encrypting_rule"


def envelope(schema_text: str, references: Mapping[str, str], encrypting_rule: str | None = None) -> str:
    """Return the text of a JSON Schema with its references.

    `references`: texts by the names in `$ref`. `encrypting_rule`: the name of a rule by which producers encrypt.
    """
    document = {FORMAT: JSON_SCHEMA, "schema": schema_text, "references": dict(references)}
    if encrypting_rule is not None:
        document[_ENCRYPTING_RULE] = encrypting_rule
    return json.dumps(document)


def read_envelope(text: str) -> tuple[str, dict[str, str]] | None:
    """Return the text of a JSON Schema and its references; None where a text is none.

    A plain JSON Schema, as a file has it, is one without references.
    """
    try:
        document = read_json(text)
    except UnsupportedSchema:
        return None
    if not isinstance(document, dict):
        return None
    if FORMAT in document:
        return _read_parts(document)
    return (text, {}) if _is_plain_schema(document) else None


def read_encrypting_rule(text: str) -> str | None:
    """Return the name of the rule by which producers encrypt values of a JSON Schema; None where they do not.

    `text`: one that `read_envelope` reads.
    """
    document = read_json(text)
    rule = document.get(_ENCRYPTING_RULE) if FORMAT in document else None
    return rule if isinstance(rule, str) else None


def _read_parts(document: Mapping[str, Any]) -> tuple[str, dict[str, str]] | None:
    schema_text = document.get("schema")
    references = document.get("references")
    if document[FORMAT] != JSON_SCHEMA or not isinstance(schema_text, str) or not isinstance(references, dict):
        return None
    if not all(isinstance(reference, str) for reference in references.values()):
        return None
    return schema_text, references


def _is_plain_schema(document: Mapping[str, Any]) -> bool:
    """Return whether an object is a JSON Schema, and no type of Avro with words that Avro does not know."""
    kind = document.get("type")
    if isinstance(kind, str) and kind in NAMED:
        return False
    return "$schema" in document or isinstance(document.get("properties"), dict) or kind == "object"
