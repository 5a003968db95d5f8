"""Schemas with tags, and the places of their fields."""

from typing import Any

from headrace.writer.columns.schema_plan import RejectedSchema, WriterSchema
from headrace.writer.privacy.keyring import KeyId, KeyringPlace, KeySource
from tests.support.avro_records import record

KEYS = KeySource(KeyringPlace(env="KEYS"), None, KeyId("h1", "0" * 16), KeyId("k1", "0" * 16))


def places(schema: WriterSchema | RejectedSchema) -> dict[str, str]:
    assert isinstance(schema, WriterSchema), schema
    return (
        {}
        if schema.protection is None
        else {".".join(path): str(action) for path, action in schema.protection.actions.items()}
    )


def tagged(kind: Any, **properties: Any) -> Any:
    return record("Event", ("kept", "int")) | {
        "fields": [{"name": "kept", "type": "int"}, {"name": "x", "type": kind, **properties}]
    }


def nest(depth: int, **of_field: Any) -> Any:
    """Return a record with a field in a field in a field."""
    kind: Any = "string"
    for level in range(depth, 0, -1):
        kind = record(f"Level{level}", ("x", kind))
        kind["fields"][0] |= of_field
    return kind
