"""Encodes the events of the demo in Protobuf, behind a registry's id and the index of their message."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.demo.devstack.events import SCHEMAS, Encode
from headrace.writer.framing.message_indexes import write_indexes

_SCALARS: Mapping[str, str] = {
    "string": "string",
    "long": "int64",
    "int": "int32",
    "double": "double",
    "boolean": "bool",
}
# Of the file that a schema is compiled as.
_FILE = "events.proto"


@dataclass(frozen=True)
class ProtobufEncoding:
    """Protobuf behind Confluent's header, with the schemas in a registry.

    `subject`: of the schemas, by default `<topic>-value`.
    """

    registry_url: str
    subject: str = ""

    def open_encoder(self, topic: str, kind: str) -> Encode:
        """Register the schema, and return what encodes by it. Raises SchemaRegistryError."""
        text = schema_text(kind)
        subject = self.subject or f"{topic}-value"
        with SchemaRegistryClient({"url": self.registry_url}) as registry:
            schema_id: int = registry.register_schema(subject, Schema(text, "PROTOBUF"))
        header = struct.pack(">bI", 0, schema_id) + write_indexes([0])
        encode = message_encoder(text)
        return lambda record: header + encode(record)

    def broken_value(self, record: Mapping[str, Any], encode: Encode, turn: int) -> bytes:
        """Return a value with its end cut off, without a header, or of a message that its schema does not have."""
        value = encode(record)
        return (value[:-1], value[6:], value[:5] + write_indexes([7]) + value[6:])[turn % 3]


def schema_text(kind: str) -> str:
    """Return the Protobuf schema of a kind of events: one message, whose fields are those of the Avro record."""
    schema = SCHEMAS[kind]
    lines = [
        'syntax = "proto3";',
        f"package {schema['namespace']};",
        'import "google/protobuf/timestamp.proto";',
        *_message_lines(schema),
    ]
    return "\n".join(lines) + "\n"


@cache
def message_encoder(text: str) -> Encode:
    """Return what encodes events as the first message of a schema, without a header."""
    from google.protobuf import message_factory

    from headrace.writer.protobuf.schema_files import compile_files, message_at, open_pool

    files = compile_files({_FILE: text}, _FILE)
    descriptor = open_pool(files).FindMessageTypeByName(message_at(files, [0]))
    message_class = message_factory.GetMessageClass(descriptor)
    return lambda record: message_class(**_members(record)).SerializeToString()


def _message_lines(schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"message {schema['name']} {{"
    for number, field in enumerate(schema["fields"], 1):
        kind = field["type"]
        label = ""
        if isinstance(kind, list):
            label = "optional "
            kind = kind[1]
        if isinstance(kind, dict) and kind["type"] == "array":
            label = "repeated "
            kind = kind["items"]
        if isinstance(kind, dict) and kind["type"] == "record":
            yield from (f"  {line}" for line in _message_lines(kind))
        yield f"  {label}{_type_name(kind)} {field['name']} = {number};"
    yield "}"


def _type_name(kind: Any) -> str:
    if isinstance(kind, str):
        return _SCALARS[kind]
    if kind["type"] == "record":
        return str(kind["name"])
    if kind["logicalType"] == "decimal":
        # Protobuf has no decimal.
        return "string"
    return "google.protobuf.Timestamp"


def _members(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a message is made of: no members for nulls."""
    return {name: _member(value) for name, value in record.items() if value is not None}


def _member(value: Any) -> Any:
    match value:
        case datetime():
            # A Timestamp is made of it.
            return value
        case Decimal():
            return f"{value:f}"
        case Mapping():
            return _members(value)
        case _:
            return value
