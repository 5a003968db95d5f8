"""The names that a field of Protobuf has in other schemas of its message, found by its number.

What one schema says of a field counts in all schemas of a record, by the field's names. A rename keeps the number, so
the other names become aliases of the field. Pure.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.protobuf.attributes import FORMAT, NUMBER, PROTOBUF

# Numbers of the fields that lead to a field, its own last.
NumberPath = tuple[int, ...]


def add_former_names(text: str, texts: Collection[str]) -> str:
    """Return a record schema of Protobuf, each field with the names that it has in others of its message as aliases.

    `texts`: other schemas, of any format. A schema of another format, and one without such names, stays as it is.
    """
    if NUMBER not in text:
        return text
    message, own_names = _read_names(text)
    if not message:
        return text
    former_names = defaultdict[NumberPath, set[str]](set)
    for other in texts:
        if NUMBER not in other:
            continue
        other_message, names = _read_names(other)
        if other_message != message:
            continue
        for path, name in names.items():
            if own_names.get(path, name) != name:
                former_names[path].add(name)
    if not former_names:
        return text
    document = read_json(text)
    for path, record_field in _iterate_fields(document, ()):
        if path in former_names:
            record_field["aliases"] = sorted(former_names[path])
    return json.dumps(document)


@lru_cache(maxsize=1024)
def _read_names(text: str) -> tuple[str, Mapping[NumberPath, str]]:
    """Return the name of a message, and those of its fields by their numbers; an empty name for another schema."""
    try:
        document = read_json(text)
    except UnsupportedSchema:
        return "", {}
    if not isinstance(document, dict) or document.get(FORMAT) != PROTOBUF:
        return "", {}
    names = {path: str(record_field["name"]) for path, record_field in _iterate_fields(document, ())}
    return str(document["name"]), names


def _iterate_fields(schema: Any, around: NumberPath) -> Iterator[tuple[NumberPath, dict[str, Any]]]:
    """Yield the fields of a type as record schemas of Protobuf have it, with their paths."""
    if isinstance(schema, list):
        schema = schema[-1]
    if not isinstance(schema, dict):
        return
    for record_field in schema.get("fields", ()):
        path = (*around, record_field[NUMBER])
        yield path, record_field
        yield from _iterate_fields(record_field["type"], path)
    for part in ("items", "values"):
        yield from _iterate_fields(schema.get(part), around)
