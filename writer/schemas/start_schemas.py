"""Chooses which of a topic's registered schemas a start admits: not all of thousands of versions. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.protobuf.message_types import read_types
from headrace.writer.schemas.subjects import full_name

# Versions of each record that a start admits, whatever their fields are.
NEWEST_COUNT = 20


def choose_start_schemas(registered: Sequence[tuple[int, str]]) -> set[int]:
    """Return the ids that a start admits of schemas with their ids, oldest first.

    Of each record these are the NEWEST_COUNT newest ones, and each older one with a field that no newer one has. So
    the columns of all fields are there, each as the newest schema with that field declares it, and the cost does not
    grow with versions that only add to what is there. The others are admitted once a record names them.
    """
    by_record: dict[str | None, list[tuple[int, str]]] = defaultdict(list)
    chosen: set[int] = set()
    for schema_id, text in registered:
        # The names of messages cost nothing.
        if read_types(text) is not None:
            chosen.add(schema_id)
            continue
        by_record[full_name(text)].append((schema_id, text))
    for versions in by_record.values():
        chosen |= {schema_id for schema_id, _ in versions[-NEWEST_COUNT:]}
        if len(versions) > NEWEST_COUNT:
            chosen |= set(_needed_for_fields(versions))
    return chosen


def _needed_for_fields(versions: Sequence[tuple[int, str]]) -> Iterable[int]:
    """Yield the ids of versions, newest first, with a field that no newer one has."""
    names: set[str] = set()
    for schema_id, text in reversed(versions):
        fields = _field_names(text)
        if not fields <= names:
            yield schema_id
        names |= fields


def _field_names(text: str) -> set[str]:
    """Return the names of a record's fields; none of what is no record."""
    try:
        schema = read_json(text)
    except UnsupportedSchema:
        return set()
    fields = schema.get("fields") if isinstance(schema, Mapping) else None
    if not isinstance(fields, list):
        return set()
    names = (field.get("name") for field in fields if isinstance(field, Mapping))
    return {name for name in names if isinstance(name, str)}
