"""The record schema of a message type: the columns of its values.

int32, sint32, sfixed32 → int; int64, sint64, sfixed64, uint32, fixed32 → long; uint64, fixed64 → decimal(20, 0); float,
double, bool, string, bytes → the same; enum → string (its name, or the digits of a number without one); Timestamp →
timestamp; Duration → long, in microseconds; wrappers → their value; Struct, Value, ListValue → JSON text; a message →
record, and none where it has no fields; repeated → array; map → map, its keys as text; a member of a oneof → a field;
a message inside itself → bytes.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.protobuf.attributes import DESCRIPTORS, FINGERPRINT, FORMAT, NUMBER, PROTOBUF
from headrace.writer.protobuf.fingerprint import message_fingerprint
from headrace.writer.protobuf.message_tree import (
    Enum,
    Instant,
    JsonText,
    Kind,
    Member,
    Message,
    MessageBytes,
    Scalar,
    TimeSpan,
    Wrapper,
    read_tree,
)

_TIMESTAMP: Mapping[str, Any] = {"type": "long", "logicalType": "timestamp-micros"}
_UINT64: Mapping[str, Any] = {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 0}
_JSON_TEXT: Mapping[str, Any] = {"type": "string", "headrace.json": "text"}
_SCALARS: Mapping[int, Any] = {
    FieldDescriptor.TYPE_DOUBLE: "double",
    FieldDescriptor.TYPE_FLOAT: "float",
    FieldDescriptor.TYPE_INT64: "long",
    FieldDescriptor.TYPE_UINT64: _UINT64,
    FieldDescriptor.TYPE_INT32: "int",
    FieldDescriptor.TYPE_FIXED64: _UINT64,
    FieldDescriptor.TYPE_FIXED32: "long",
    FieldDescriptor.TYPE_BOOL: "boolean",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_UINT32: "long",
    FieldDescriptor.TYPE_SFIXED32: "int",
    FieldDescriptor.TYPE_SFIXED64: "long",
    FieldDescriptor.TYPE_SINT32: "int",
    FieldDescriptor.TYPE_SINT64: "long",
}


def protobuf_record(file_set: bytes, message: str) -> str:
    """Return the text of the record schema of a message type. Raises UnsupportedSchema.

    `file_set`: a serialized FileDescriptorSet, dependencies first.
    """
    tree = read_tree(file_set, message)
    if not tree.columns:
        raise UnsupportedSchema(f"message {message} has no field that a column can hold; give it one")
    record = _record_type(tree, message)
    root = {
        "type": "record",
        "name": message,
        FORMAT: PROTOBUF,
        FINGERPRINT: message_fingerprint(file_set, message),
        DESCRIPTORS: base64.b64encode(file_set).decode(),
        "fields": record["fields"],
    }
    text = json.dumps(root)
    avro.parse(text)
    return text


def tree_of(record: avro.Record) -> Message:
    """Return the message type that a record schema was made of."""
    return read_tree(base64.b64decode(record.root[DESCRIPTORS]), str(record.root["name"]))


def _record_type(message: Message, name: str) -> dict[str, Any]:
    """Return the record of a message. `name`: of the record, which leads to no other one."""
    fields = [_field(member, f"{name}_{len(member.name)}_{member.name}") for member in message.columns]
    return {"type": "record", "name": name, "fields": fields}


def _field(member: Member, record_name: str) -> dict[str, Any]:
    attributes = {**member.attributes, NUMBER: member.number}
    kind = _type_of(member.kind, record_name)
    match member.shape:
        case "list":
            kind = {"type": "array", "items": kind}
        case "map":
            kind = {"type": "map", "values": kind}
    if member.has_presence:
        return {"name": member.name, "type": ["null", kind], "default": None, **attributes}
    return {"name": member.name, "type": kind, **attributes}


def _type_of(kind: Kind, record_name: str) -> Any:
    match kind:
        case Scalar():
            return _SCALARS[kind.type]
        case Wrapper():
            return _SCALARS[kind.value.type]
        case Enum():
            return "string"
        case Instant():
            return _TIMESTAMP
        case TimeSpan():
            return "long"
        case JsonText():
            return _JSON_TEXT
        case MessageBytes():
            return "bytes"
        case Message():
            return _record_type(kind, record_name)
