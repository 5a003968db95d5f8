"""What a message type means, as a number that a table's log keeps: the same for each spelling of its schema.

A registry writes schemas out anew, as text or as descriptors, and protoc adds what it derives. So the spelling here has
only what decides over columns and over how values are read: of each message that the type leads to, the fields; of each
enum, the names. What decides over nothing goes: comments, options, names in JSON, files, messages that it does not use.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.protobuf.schema_files import open_pool

# Google's types are the same everywhere.
_GOOGLE = "google.protobuf."


def message_fingerprint(file_set: bytes, message: str) -> int:
    """Return the first 63 bits of the SHA-256 of the one spelling of a message type. Raises UnsupportedSchema.

    `file_set`: a serialized FileDescriptorSet. Tables keep the number for good: the spelling must never change.
    """
    return message_fingerprints(file_set, [message])[message]


def message_fingerprints(file_set: bytes, messages: Iterable[str]) -> dict[str, int]:
    """Return the same of several messages, by their full names. Raises UnsupportedSchema."""
    pool = open_pool(file_set)
    return {message: _fingerprint(pool, message) for message in messages}


def _fingerprint(pool: DescriptorPool, message: str) -> int:
    try:
        descriptor = pool.FindMessageTypeByName(message)
    except KeyError:
        raise UnsupportedSchema(f"the schema has no message {message}") from None
    text = json.dumps({"message": message, "types": _types_of(descriptor)}, sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _types_of(descriptor: Descriptor) -> dict[str, Any]:
    """Return the messages and enums that a message leads to, itself among them, by their full names."""
    types: dict[str, Any] = {}
    pending: list[Descriptor | EnumDescriptor] = [descriptor]
    while pending:
        part = pending.pop()
        if part.full_name in types:
            continue
        if isinstance(part, EnumDescriptor):
            types[part.full_name] = [[symbol.number, symbol.name] for symbol in part.values]
            continue
        types[part.full_name] = [_field(field) for field in sorted(part.fields, key=lambda field: field.number)]
        for field in part.fields:
            inner = field.message_type or field.enum_type
            if inner is not None and not inner.full_name.startswith(_GOOGLE):
                pending.append(inner)
    return types


def _field(field: FieldDescriptor) -> dict[str, Any]:
    inner = field.message_type or field.enum_type
    form: dict[str, Any] = {"number": field.number, "name": field.name, "type": field.type}
    if inner is not None:
        form["of"] = inner.full_name
    if field.is_repeated:
        form["repeated"] = True
    elif field.has_presence:
        form["presence"] = True
    oneof = field.containing_oneof
    # Of a single member: as an optional field has it.
    if oneof is not None and len(oneof.fields) > 1:
        form["oneof"] = oneof.name
    return form
