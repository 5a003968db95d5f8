"""Orders as Protobuf: a schema of one message, one of three, and messages of both."""

from typing import Any

from headrace.writer.demo.devstack.protobuf_encoding import message_encoder
from headrace.writer.protobuf.message_types import compile_types
from tests.support.sample_records import NOW

HEAD = 'syntax = "proto3"; package acme; import "google/protobuf/timestamp.proto";'
ORDER = HEAD + "message Order { int64 id = 1; google.protobuf.Timestamp at = 2; optional string note = 3; }"
# Three messages, one inside another.
MANY = HEAD + (
    "message Order { int64 id = 1; google.protobuf.Timestamp at = 2; message Line { int64 id = 1; "
    "google.protobuf.Timestamp at = 2; string sku = 3; } } "
    "message Refund { int64 id = 1; google.protobuf.Timestamp at = 2; string why = 3; }"
)


def encode(text: str, message: str | None = None, **members: Any) -> bytes:
    """Return a message of a schema, without a header."""
    if message is None:
        return message_encoder(text)({"at": NOW, **members})
    from google.protobuf import message_factory

    from headrace.writer.protobuf.schema_files import open_pool

    descriptor = open_pool(compile_types(text).files).FindMessageTypeByName(message)
    return message_factory.GetMessageClass(descriptor)(**{"at": NOW, **members}).SerializeToString()
