"""A message type and the descriptors that it needs, as one text: what a source of schemas hands over. Pure."""

import base64
import binascii
import json

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json

PROTOBUF = "headrace.protobuf"


def wrap_message(file_set: bytes, message: str) -> str:
    """Return the text of a message type. `file_set`: a serialized FileDescriptorSet, dependencies first."""
    return json.dumps({PROTOBUF: {"files": base64.b64encode(file_set).decode(), "message": message}})


def read_message(text: str) -> tuple[bytes, str] | None:
    """Return the descriptors and the full name of a message type; None where a text is none."""
    if PROTOBUF not in text:
        return None
    try:
        document = read_json(text)
    except UnsupportedSchema:
        return None
    parts = document.get(PROTOBUF) if isinstance(document, dict) else None
    if not isinstance(parts, dict):
        return None
    files = parts.get("files")
    message = parts.get("message")
    if not isinstance(files, str) or not isinstance(message, str):
        return None
    try:
        return base64.b64decode(files, validate=True), message
    except binascii.Error:
        return None
