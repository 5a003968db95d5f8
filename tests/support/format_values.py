"""Events as values of each format. A sound value has the id of its event for a key, garbage has `GARBAGE_KEY`."""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.demo.devstack.events import NEW_FIELD, Encode, generate
from headrace.writer.demo.devstack.protobuf_encoding import ProtobufEncoding
from headrace.writer.demo.devstack.value_encoding import DECLARED, JsonEncoding, encode_json
from tests.support.writer_process import NOW, Site

Message = tuple[bytes, bytes | None]
GARBAGE_KEY = b"garbage"
_CLICK: Mapping[str, Any] = {
    "event_id": {"type": "string"},
    "event_time": {"type": "string", "format": "date-time"},
    "app_id": {"type": "integer"},
    "user_id": {"type": "string"},
    "session_id": {"type": "string"},
    "event_name": {"type": "string"},
    "os": {"type": ["null", "string"]},
    "os_version": {"oneOf": [{"type": "null"}, {"type": "string"}]},
    "country": {"$ref": "#/definitions/word"},
    "city": {"$ref": "#/definitions/word"},
    "campaign": {"$ref": "#/definitions/word"},
    "channel": {"$ref": "#/definitions/word"},
    "url": {"type": "string"},
    "ip": {"type": "string"},
    "revenue": {"type": ["null", "number"]},
    "is_install": {"type": "boolean"},
    "duration_ms": {"type": "integer", "connect.type": "int32"},
    "lat": {"type": "number"},
    "lon": {"type": "number"},
    "sdk": {"type": "string"},
}
_WIDER_CLICK: Mapping[str, Any] = {**_CLICK, NEW_FIELD: {"type": "string"}}
_PROPERTIES: Mapping[str, Mapping[str, Any]] = {"clicks": _CLICK, "clicks_2": _WIDER_CLICK}


def json_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind of events: `clicks`, or `clicks_2` with one member more."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "headrace.demo.Click",
        "type": "object",
        "properties": dict(_PROPERTIES[kind]),
        "required": ["event_id", "event_time"],
        "definitions": {"word": {"type": "string", "minLength": 1}},
    }


@dataclass(frozen=True)
class JsonSchemaEncoding:
    """JSON behind Confluent's header, with JSON Schemas in a registry. `subject`: by default `<topic>-value`."""

    registry_url: str
    subject: str = ""

    def open_encoder(self, topic: str, kind: str) -> Encode:
        """Register the schema, and return what encodes by it. Raises SchemaRegistryError."""
        header = struct.pack(">bI", 0, self.register(topic, json_schema(kind)))
        return lambda record: header + encode_json(record)

    def register(self, topic: str, schema: Mapping[str, Any]) -> int:
        """Register a version that need not be compatible with those before it, and return its id."""
        subject = self.subject or f"{topic}-value"
        with SchemaRegistryClient({"url": self.registry_url}) as registry:
            if subject in registry.get_subjects():
                registry.set_compatibility(subject, "NONE")
            schema_id: int = registry.register_schema(subject, Schema(json.dumps(schema), "JSON"))
        return schema_id

    def broken_value(self, record: Mapping[str, Any], encode: Encode, turn: int) -> bytes:
        """Return an object that is cut, that has no header, that has another type, or that is followed by a second."""
        value = encode(record)
        return (value[:-1], value[5:], encode({**record, "app_id": "unknown"}), value + value[5:])[turn % 4]


class RawEncoding:
    """Bytes of any kind, which are all sound."""

    def open_encoder(self, topic: str, kind: str) -> Callable[[Mapping[str, Any]], bytes | None]:  # noqa: ARG002
        """Return what makes of an event JSON, a text that is cut, bytes that no text has, an empty value, or none."""
        return _raw_value


def _raw_value(record: Mapping[str, Any]) -> bytes | None:
    value = encode_json(record)
    values = (value, value[:-1], b"\xff\xfe" + value, struct.pack(">bI", 0, 1) + value, b"", None)
    return values[record["duration_ms"] % len(values)]


@dataclass(frozen=True)
class FormatValues:
    """A format of values: how a pipeline reads it, what writes it, and which of its columns has the member that is new.

    `event_column`: of the table; it has the id of the event, or the value itself.
    """

    settings: Mapping[str, Any]
    has_registry: bool
    open_encoding: Callable[[str], Any]
    new_member: str | None
    event_column: str = "event_id"


_NEW_IN_REST = f"json_extract_string(rest, '$.{NEW_FIELD}')"
JSON = FormatValues(
    {"formats": ["json"], "columns": {"declared": dict(DECLARED)}}, False, lambda _: JsonEncoding(), _NEW_IN_REST
)
JSON_SCHEMA = FormatValues({"formats": ["json_schema"]}, True, JsonSchemaEncoding, NEW_FIELD)
PROTOBUF = FormatValues({"formats": ["protobuf"]}, True, ProtobufEncoding, NEW_FIELD)
RAW = FormatValues(
    {"formats": "raw", "event_time": {"field": "_kafka_time"}}, False, lambda _: RawEncoding(), None, "value"
)
FORMAT_VALUES: Mapping[str, FormatValues] = {
    "json": JSON,
    "json_schema": JSON_SCHEMA,
    "protobuf": PROTOBUF,
    "raw": RAW,
}


def encode_events(encoding: Any, topic: str, count: int, *, kind: str = "clicks", seed: int = 7) -> list[Message]:
    """Return the messages of events."""
    encode = encoding.open_encoder(topic, kind)
    return [
        (str(record["event_id"]).encode(), encode(record)) for _, record in generate(kind, count, now=NOW, seed=seed)
    ]


def encode_garbage(encoding: Any, topic: str, count: int, *, kind: str = "clicks", seed: int = 7) -> list[Message]:
    """Return messages that a strict reader refuses, made of events."""
    encode = encoding.open_encoder(topic, kind)
    events = generate(kind, count, now=NOW, seed=seed)
    return [(GARBAGE_KEY, encoding.broken_value(record, encode, turn)) for turn, (_, record) in enumerate(events)]


def interleave(*groups: Sequence[Message]) -> Iterator[Message]:
    """Yield the first message of each group, then the second of each, to the end of the longest."""
    for turn in zip_longest(*groups):
        yield from (message for message in turn if message is not None)


def start_pipeline(site: Site, values: FormatValues, *topics: str, **settings: Any) -> Any:
    """Add a pipeline of a format; return the location of its table. What needs no registry has none."""
    if not values.has_registry:
        site.overrides["registry"] = {}
    return site.pipeline("events", list(topics), **{**values.settings, **settings})
