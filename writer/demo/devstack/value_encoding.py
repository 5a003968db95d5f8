"""Encodes the events of the demo: as Avro behind a registry's id, or as JSON that names no schema."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.demo.devstack.events import SCHEMAS, Encode, encoder

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Columns of all kinds of events as JSON, for `columns.declared`. Two members are undeclared: `referrer_campaign` of
# `clicks_2`, and `touch_count` in `attribution`.
DECLARED: Mapping[str, Any] = {
    "type": "string",
    "event_id": "string",
    "event_time": "timestamp",
    "app_id": "long",
    "user_id": "string",
    "session_id": "string",
    "event_name": "string",
    "os": "string",
    "os_version": "string",
    "country": "string",
    "city": "string",
    "campaign": "string",
    "channel": "string",
    "url": "string",
    "ip": "string",
    "revenue": "double",
    "is_install": "boolean",
    "duration_ms": "int",
    "lat": "double",
    "lon": "double",
    "sdk": "string",
    "attribution": {"network": "string", "click_time": "timestamp(ms)"},
    "tags": ["string"],
    "cost": "decimal(10, 2)",
}


@dataclass(frozen=True)
class AvroEncoding:
    """Avro behind Confluent's header, with the schemas in a registry.

    `subject`: of the schemas, by default `<topic>-value`.
    """

    registry_url: str
    subject: str = ""

    def open_encoder(self, topic: str, kind: str) -> Encode:
        """Register the schema, and return what encodes by it. Raises SchemaRegistryError."""
        with SchemaRegistryClient({"url": self.registry_url}) as registry:
            schema = Schema(json.dumps(SCHEMAS[kind]), "AVRO")
            schema_id: int = registry.register_schema(self.subject or f"{topic}-value", schema)
        return encoder(SCHEMAS[kind], schema_id)

    def broken_value(self, record: Mapping[str, Any], encode: Encode, turn: int) -> bytes:
        """Return a value with its end cut off, without its header, or with bytes to spare."""
        value = encode(record)
        return (value[:-1], value[5:], value + b"\x00\xff\x00")[turn % 3]


class JsonEncoding:
    """JSON objects. The member `type` is the name of the event's Avro record."""

    def open_encoder(self, topic: str, kind: str) -> Encode:  # noqa: ARG002 - the same for each topic
        """Return what encodes events of this kind."""
        name = SCHEMAS[kind]["name"]
        return lambda record: encode_json({"type": name, **record})

    def broken_value(self, record: Mapping[str, Any], encode: Encode, turn: int) -> bytes:
        """Return an object with its end cut off, with text for a number, or with a second object behind it."""
        match turn % 3:
            case 0:
                return encode(record)[:-1]
            case 1:
                return encode({**record, "app_id": "unknown"})
            case _:
                return encode(record) * 2


def encode_json(record: Mapping[str, Any]) -> bytes:
    """Return an event as a JSON object without members for its nulls.

    Times are ISO-8601 text in UTC, but `attribution.click_time` is in milliseconds since the epoch; money is a number.
    """
    members = {name: value for name, value in record.items() if value is not None}
    if "attribution" in members:
        attribution = members["attribution"]
        members["attribution"] = {**attribution, "click_time": _milliseconds(attribution["click_time"])}
    return json.dumps(members, default=_json_value, ensure_ascii=False, separators=(",", ":")).encode()


def _milliseconds(time: datetime | None) -> int | None:
    if time is None:
        return None
    return (time - _EPOCH) // timedelta(milliseconds=1)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, Decimal):
        # The shortest text of a double has all of up to fifteen digits.
        return float(value)
    raise TypeError(f"events hold no {type(value).__name__}")
