"""Events behind each frame that headrace reads, in each format that the frame may hold, and garbage made of them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import UUID

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.demo.devstack.events import SCHEMAS, encoder, generate
from headrace.writer.demo.devstack.protobuf_encoding import message_encoder, schema_text
from headrace.writer.demo.devstack.value_encoding import JsonEncoding, encode_json
from headrace.writer.framing.message_indexes import write_indexes
from headrace.writer.framing.message_marks import NAME_HEADER, write_name, write_place
from headrace.writer.framing.wire_format import CONFLUENT, GLUE, Wire
from tests.servers.glue_api import GlueApi
from tests.support import oracle
from tests.support.format_values import GARBAGE_KEY, json_schema
from tests.support.glue_values import compressed, plain
from tests.support.writer_process import NOW, Site

# What registries call the formats whose values name a schema.
SCHEMA_KINDS: Mapping[str, str] = {"avro": "AVRO", "json_schema": "JSON", "protobuf": "PROTOBUF"}

_CONFLUENT_HEADER = 5
# Of the message of an event, which is the second in its file.
_INDEXES = (1,)
_PLACE = 1
_NAME = "Click"


@dataclass(frozen=True)
class FramedMessage:
    """A record as a producer sends it."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]] = field(default_factory=list)


def protobuf_text(kind: str) -> str:
    """Return the Protobuf schema of a kind of events, with another message before that of the events."""
    return schema_text(kind).replace(f"message {_NAME} ", f"message Aside {{ string note = 1; }}\nmessage {_NAME} ", 1)


def schema_texts(kind: str) -> dict[str, str]:
    """Return the schemas of a kind of events by the format of the values."""
    return {
        "avro": json.dumps(SCHEMAS[kind]),
        "json_schema": json.dumps(json_schema(kind)),
        "protobuf": protobuf_text(kind),
    }


@dataclass(frozen=True)
class Registries:
    """A registry with Confluent's API and Apicurio's own, and AWS Glue."""

    url: str
    glue: GlueApi

    def register(self, topic: str, value_format: str, kind: str) -> dict[str, int]:
        """Register the schema of a kind of events, once. Returns its ids by their kinds, as `Wire.ids` names them."""
        text = schema_texts(kind)[value_format]
        subject = f"{topic}-value" if value_format == "avro" else f"{topic}-{value_format}"
        schema = Schema(text, SCHEMA_KINDS[value_format])
        with SchemaRegistryClient({"url": self.url}) as client:
            if subject in client.get_subjects():
                client.set_compatibility(subject, "NONE")
            ids = {"confluent": int(client.register_schema(subject, schema))}
            version = client.lookup_schema(subject, schema).version
        core_url = self.url.replace("/apis/ccompat/v7", "/apis/registry/v3")
        with urlopen(f"{core_url}/groups/default/artifacts/{subject}/versions/{version}") as answer:
            facts = json.load(answer)
        ids |= {"global": int(facts["globalId"]), "content": int(facts["contentId"])}
        ids["glue"] = self._register_in_glue(topic, value_format, text).int
        if value_format == "avro":
            ids["fingerprint"] = crc_fingerprint(text)
        return ids

    def _register_in_glue(self, topic: str, value_format: str, text: str) -> UUID:
        name = topic if value_format == "avro" else f"{topic}-{value_format}"
        for version in self.glue.schemas.get(name, ()):
            if version.text == text:
                return UUID(version.id)
        return self.glue.add(name, text, SCHEMA_KINDS[value_format])


@dataclass(frozen=True)
class FramedEncoding:
    """One format behind one frame. What a frame leaves open takes turns: compression, and Apicurio's `Ref`."""

    wire: Wire
    value_format: str

    @property
    def description(self) -> str:
        """Name it for a person."""
        return f"{self.value_format} with a {self.wire.description}"

    def open_encoder(self, registries: Registries, topic: str, kind: str) -> Callable[[Any], FramedMessage]:
        """Register the schema, and return what makes records of events."""
        schema_id = registries.register(topic, self.value_format, kind)[self.wire.ids]
        encode_body = self._body_encoder(kind)
        turn = count()

        def encode(event: Any) -> FramedMessage:
            body = encode_body(event)
            is_odd = next(turn) % 2 == 1
            headers: list[tuple[str, bytes]] = [("trace", b"1")]
            mark = b""
            if self.value_format == "protobuf":
                mark = self._message_mark(headers, is_odd=is_odd)
            in_header = self.wire.kafka_header_value(schema_id)
            key = str(event["event_id"]).encode()
            if in_header is not None:
                is_in_id = self.wire.ids == "confluent"
                headers.append((str(self.wire.header), in_header + (mark if is_in_id else b"")))
                return FramedMessage(key, body if is_in_id else mark + body, headers)
            if self.wire.format == "glue":
                frame = compressed if is_odd else plain
                return FramedMessage(key, frame(UUID(int=schema_id), mark + body), headers)
            return FramedMessage(key, self.wire.value_header(schema_id) + mark + body, headers)

        return encode

    def _body_encoder(self, kind: str) -> Callable[[Any], bytes]:
        match self.value_format:
            case "avro":
                encode_avro = encoder(SCHEMAS[kind], 1)
                return lambda event: encode_avro(event)[_CONFLUENT_HEADER:]
            case "protobuf":
                # Of the message alone: what stands beside it in its file does not show in its bytes.
                return message_encoder(schema_text(kind))
            case _:
                return encode_json

    def _message_mark(self, headers: list[tuple[str, bytes]], *, is_odd: bool) -> bytes:
        """Return the bytes that name the message; add the header that does."""
        match self.wire.message_style:
            case "indexes":
                return write_indexes(_INDEXES)
            case "place":
                return write_place(_PLACE)
            case "name":
                return write_name(_NAME)
            case "header_name":
                headers.append((NAME_HEADER, _NAME.encode()))
                return write_name(_NAME) if is_odd else b""
        raise AssertionError(f"a {self.wire.description} names no message")

    def damage(self, message: FramedMessage, turn: int) -> FramedMessage:
        """Return a record that becomes no row, made of a sound one."""
        if self.wire.format == "glue":
            return FramedMessage(GARBAGE_KEY, glue_garbage(turn, message.value), message.headers)
        cut = FramedMessage(GARBAGE_KEY, message.value[:-1], message.headers)
        before_value = message.value[: self.wire.header_bytes]
        records = [cut]
        if self.wire.header is None:
            records += [
                FramedMessage(GARBAGE_KEY, before_value + b"\xff\xff", message.headers),
                FramedMessage(GARBAGE_KEY, before_value[:-1], message.headers),
            ]
        elif self.value_format != "json_schema":
            # An object without its id is plain JSON.
            without_id = [header for header in message.headers if header[0] != self.wire.header]
            records.append(FramedMessage(GARBAGE_KEY, message.value, without_id))
        if self.wire.message_style == "header_name" and self.value_format == "protobuf":
            others = [header for header in message.headers if header[0] != NAME_HEADER]
            records += [
                FramedMessage(GARBAGE_KEY, message.value, others),
                FramedMessage(GARBAGE_KEY, message.value, [*others, (NAME_HEADER, b"Nothing")]),
                FramedMessage(GARBAGE_KEY, message.value, [*others, (NAME_HEADER, write_name(_NAME))]),
            ]
        return records[turn % len(records)]


@dataclass(frozen=True)
class PlainJsonEncoding:
    """JSON objects that name no schema."""

    description: str = "plain JSON"

    def open_encoder(self, registries: Registries, topic: str, kind: str) -> Callable[[Any], FramedMessage]:  # noqa: ARG002
        """Return what makes records of events."""
        encode = JsonEncoding().open_encoder(topic, kind)
        return lambda event: FramedMessage(str(event["event_id"]).encode(), encode(event))

    def damage(self, message: FramedMessage, turn: int) -> FramedMessage:
        """Return a record that becomes no row, made of a sound one."""
        value = message.value
        values = (value[:-1], value * 2, b"[%b]" % value, b"\xff" + value, b"garbage", b"\0", b"")
        return FramedMessage(GARBAGE_KEY, values[turn % len(values)])


Stream = FramedEncoding | PlainJsonEncoding
_HEADERS = (
    Wire("header", "confluent", "__value_schema_id"),
    Wire("header", "global", "apicurio.value.globalId"),
    Wire("header", "content", "apicurio.value.contentId"),
)
_SINGLE_OBJECT = Wire("single_object", "fingerprint")
# No record shows whose ids its 4 bytes are, nor which of Apicurio's its 8 are: a topic has one kind of each.
FRAMES: Mapping[str, tuple[Wire, ...]] = {
    "Confluent's": (*_HEADERS, GLUE, _SINGLE_OBJECT, Wire("apicurio", "global"), CONFLUENT),
    "Apicurio's": (*_HEADERS, GLUE, _SINGLE_OBJECT, Wire("apicurio", "content"), Wire("confluent", "content")),
}


def wire_settings(wires: Sequence[Wire]) -> list[dict[str, Any]]:
    """Return wire formats as `wire` of a pipeline has them."""
    settings: list[dict[str, Any]] = []
    for wire in wires:
        document: dict[str, Any] = {"format": wire.format}
        if wire.header is not None:
            document["header"] = wire.header
        elif wire.ids in ("global", "content"):
            document["ids"] = wire.ids
        settings.append(document)
    return settings


def streams_of(wires: Sequence[Wire]) -> list[Stream]:
    """Return each format behind each frame that may hold it, and JSON without a frame."""
    streams: list[Stream] = [PlainJsonEncoding()]
    for wire in wires:
        value_formats = ["avro"] if wire.format == "single_object" else list(SCHEMA_KINDS)
        streams += [FramedEncoding(wire, value_format) for value_format in value_formats]
    return streams


def encode_stream(
    stream: Stream, registries: Registries, topic: str, number: int, *, kind: str, seed: int
) -> Iterator[FramedMessage]:
    """Yield the records of so many events, and garbage among them: one of eight."""
    encode = stream.open_encoder(registries, topic, kind)
    for place, (_, event) in enumerate(generate(kind, number, now=NOW, seed=seed)):
        message = encode(event)
        yield message
        if place % 8 == seed % 8:
            yield stream.damage(message, place // 8 + seed)


def send_framed(site: Site, topic: str, messages: Iterator[FramedMessage]) -> None:
    """Produce records with their headers."""
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for message in messages:
        producer.produce(topic, message.value, message.key, headers=message.headers)
        producer.poll(0)
    assert producer.flush(30) == 0


def glue_garbage(turn: int, value: bytes) -> bytes:
    """Return what no reader takes, made of a value behind Glue's header."""
    stream = value if value[1] else b"\3\5" + value[2:]
    values = (stream[:-1], value[:17], b"\3\1" + value[2:], stream + b"x", b"\3\5" + value[2:18] + b"garbage", b"\3")
    return values[turn % len(values)]


def check_records(site: Site, lake: Path, topic: str) -> None:
    """Assert that each row and each dead letter is the record at its offset, and that none is in the wrong table."""
    records = site.records(topic)
    expected = {place: (key or b"").decode() for place, (key, _) in records.items() if key != GARBAGE_KEY}
    rows = oracle.rows(lake, "_partition, _offset, event_id")
    assert {(partition, offset): event for partition, offset, event in rows} == expected
    dead_letters = oracle.rows(lake.with_name(f"{lake.name}_dead_letters"), "_partition, _offset, value")
    assert {(partition, offset): bytes(value) for partition, offset, value in dead_letters} == {
        place: value for place, (key, value) in records.items() if key == GARBAGE_KEY
    }
