"""Short schemas of Protobuf, decoders of them, and fields on the wire that no sound message has."""

from typing import Any

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.formats.formats import FORMATS
from headrace.writer.protobuf.block_decoder import ProtobufDecoder
from headrace.writer.protobuf.record_schema import protobuf_record
from headrace.writer.protobuf.schema_files import compile_files
from tests.support.protobuf_schemas import message_class

IMPORTS = " ".join(
    f'import "google/protobuf/{name}.proto";'
    for name in ("any", "descriptor", "duration", "empty", "struct", "timestamp", "wrappers")
)


def compile_text(body: str, syntax: str = 'syntax = "proto3";') -> bytes:
    """Compile declarations of the package `shop`, with Google's types at hand."""
    return compile_files({"shop.proto": f"{syntax} package shop; {IMPORTS} {body}"}, "shop.proto")


def record_of(body: str, message: str = "shop.Order", syntax: str = 'syntax = "proto3";') -> avro.Record:
    return avro.parse(protobuf_record(compile_text(body, syntax), message))


class MessageType:
    """A message type: google.protobuf's class of it, its record schema, and its decoder."""

    def __init__(self, body: str, message: str = "shop.Order", syntax: str = 'syntax = "proto3";') -> None:
        file_set = compile_text(body, syntax)
        self.new: Any = message_class(file_set, message)
        self.record = avro.parse(protobuf_record(file_set, message))
        self.native = FORMATS["protobuf"].is_native(self.record)

    def open(self, header_bytes: int = 0) -> ProtobufDecoder:
        decoder = FORMATS["protobuf"].open_decoder(
            self.record, native=self.native, header_bytes=header_bytes, scratch=""
        )
        assert isinstance(decoder, ProtobufDecoder)
        return decoder

    def rows(self, *values: Any) -> list[dict[str, Any]]:
        """Return the rows of messages, or of serialized ones, as both ways read them. None of them fails."""
        contents = [value if isinstance(value, bytes) else value.SerializeToString() for value in values]
        # So many that a block is decoded at once.
        column = pa.array([*contents, *[contents[0]] * 20], pa.binary())
        decoder = self.open()
        block = decoder.decode(column)
        alone = decoder.single(column)
        assert not block.failures, block.failures
        assert block.rows.equals(alone.rows)
        return list(block.rows.slice(0, len(values)).to_pylist())

    def reason(self, value: Any) -> str:
        """Return why a message fails, alone and among sound ones, which do not."""
        content = value if isinstance(value, bytes) else value.SerializeToString()
        column = pa.array([b""] * 10 + [content] + [b""] * 10, pa.binary())
        decoder = self.open()
        block = decoder.decode(column)
        assert list(block.failures) == [10], block.failures
        assert block.failures == decoder.single(column).failures
        return block.failures[10]


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, wire_type: int, content: bytes | int) -> bytes:
    """Return a field on the wire: a varint, or bytes with their length before them, or bytes as they are."""
    tag = varint(number << 3 | wire_type)
    if isinstance(content, int):
        return tag + varint(content)
    if wire_type == 2:
        return tag + varint(len(content)) + content
    return tag + content
