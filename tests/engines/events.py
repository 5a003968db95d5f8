"""The events of the engines' lake, and what every reader must find, worked out from what was produced."""

import json
import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import BytesIO
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from fastavro import parse_schema, schemaless_writer

Row = dict[str, Any]
START = datetime(2026, 11, 20, 5, tzinfo=UTC)
HOURS = 3
WAVE = 300  # events of a wave
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# What the second part of the bucket is made of: characters that paths, URIs, Hive and SQL have a meaning for.
KINDS = ("a/b", "50 %2F", "ü €", "it's", 'x:y;a=+"q', None)
# U+FFFD stands before U+1D11E by code points, behind it by UTF-16 units; long ones are cut in statistics.
NAMES = (
    "plain", " ", "é", "e\u0301", "😀", "\ufffd", "\U0001d11e", "it's", 'a"b', "a\\b", "line\nbreak", "\u2028", "%",
    "null", "x" * 200, "x" * 31 + "é", "x" * 32 + "\U0010ffff" + "y", "\U0010ffff" * 40, "~", "A", "a",
)  # fmt: skip


def _logical(kind: str, base: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def _record(name: str, /, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": n, "type": t} for n, t in fields.items()]}


def _optional(kind: Any) -> list[Any]:
    return ["null", kind]


def _schema(*, later: bool) -> dict[str, Any]:
    """The first schema, or the later one: a column and a nested field more, three columns wider."""
    address = _record("Place", city="string", lat="double", deep=_record("Deep", code="int"))
    leg = _record("Leg", km="double", to="string")
    if later:
        address["fields"].append({"name": "zip", "type": _optional("string"), "default": None})
    fields = {
        "event_time": _logical("timestamp-micros", "long"),
        "id": "long",
        "name": "string",
        "kind": _optional("string"),
        "n": "long" if later else "int",
        "ratio": "double" if later else "float",
        "fee": _logical("decimal", "bytes", precision=15 if later else 9, scale=2),
        "price": _logical("decimal", "bytes", precision=12, scale=2),
        "big": _logical("decimal", "bytes", precision=38, scale=10),
        "score": "double",
        "flag": _optional("boolean"),
        "day": _logical("date", "int"),
        "created": _optional(_logical("timestamp-millis", "long")),
        "raw": "bytes",
        "tags": {"type": "array", "items": "string"},
        "legs": {"type": "array", "items": leg},
        "counts": {"type": "map", "values": "long"},
        "place": _optional(address),
    }
    schema = _record("Event", **fields)
    if later:
        schema["fields"].append({"name": "country", "type": "string", "default": "unknown"})
    return schema


FIRST, LATER = _schema(later=False), _schema(later=True)
OWNER = _record("Owner", id="long", region=_optional("string"))  # of the keys


def event(i: int, *, later: bool = False) -> Row:
    """Event number `i`, as it is written. Values at both ends of an hour, of an int and of a long are among them."""
    hour, at = START + timedelta(hours=i % HOURS), i // HOURS
    offset = {0: timedelta(0), 1: timedelta(hours=1) - timedelta(microseconds=1)}.get(
        at, timedelta(seconds=(at * 37) % 3600, microseconds=(at * 7919) % 1_000_000)
    )
    widest = {7: 2**40, 8: -(2**63), 9: 2**63 - 1} if later else {7: 2**31 - 1, 8: -(2**31)}
    address = {"city": f"city {i % 7}", "lat": i / 8, "deep": {"code": i % 5}}
    made: Row = {
        "event_time": hour + offset,
        "id": i,
        "name": NAMES[i % len(NAMES)],
        "kind": KINDS[at % len(KINDS)],
        "n": widest.get(i % 100, i % 50 - 25),
        "ratio": 0.1 if later and i % 2 else (i % 8) / 4,
        "fee": Decimal(i * (10**9 if later else 1) - 50).scaleb(-2),
        "price": Decimal(i * 7919 - 10**6).scaleb(-2),
        "big": Decimal(10**27 + i).scaleb(-10),
        "score": {11: math.nan, 12: math.inf, 13: -math.inf}.get(i % 20, i / 16 - 8),
        "flag": (None, True, False)[i % 3],
        "day": date(2026, 11, 20) - timedelta(days=i % 400),
        "created": None if i % 4 == 0 else START - timedelta(milliseconds=i * 1001),
        "raw": bytes([i % 256, 0, 255]),
        "tags": ["a", "b/c", "ü"][: i % 4],
        "legs": [{"km": i / 4, "to": f"t{j}"} for j in range(i % 3)],
        "counts": {f"k{j}": i * j for j in range(i % 3)},
        "place": None if i % 10 == 9 else address,
    }
    if later:
        made["country"] = ("PT", "DE", "unknown")[i % 3]
        if made["place"] is not None:
            made["place"]["zip"] = f"{i:05}" if i % 2 else None
    return made


@dataclass
class Produced:
    """What a topic was given: for each event the row that a reader must find, with where it lies in Kafka."""

    rows: list[Row] = field(default_factory=list)

    def send(self, bootstrap: str, registry_url: str, topic: str, numbers: Sequence[int], *, later: bool) -> None:
        """Produce a wave of events, and keep what they must become."""
        schema = LATER if later else FIRST
        with SchemaRegistryClient({"url": registry_url}) as registry:
            schema_id = registry.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO"))
            key_id = registry.register_schema(f"{topic}-key", Schema(json.dumps(OWNER), "AVRO"))
        parsed, owners = parse_schema(schema), parse_schema(OWNER)
        producer = Producer({"bootstrap.servers": bootstrap})
        for i in numbers:
            written = event(i, later=later)
            owner = {"id": i % 11, "region": None if i % 2 else "eu"}
            headers = {"n": str(i % 3).encode(), "trace": b"t"} if i % 5 else {}
            row = {**_row(written), "owner": owner, "headers": headers, "attempt": i % 3 if headers else None}
            producer.produce(
                topic, _encoded(schema_id, parsed, written), key=_encoded(key_id, owners, owner),
                headers=list(headers.items()), on_delivery=self._kept(row),
            )  # fmt: skip
        producer.flush()

    def _kept(self, row: Row) -> Any:
        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            self.rows.append({**row, "_topic": message.topic(), "_partition": message.partition(),
                              "_offset": message.offset()})  # fmt: skip

        return delivered

    def waves(self) -> Iterator[list[Row]]:
        """The rows in the order in which they were produced, a wave at a time."""
        ordered = sorted(self.rows, key=lambda row: row["id"])
        for offset in range(0, len(ordered), WAVE):
            yield ordered[offset : offset + WAVE]


def _encoded(schema_id: int, schema: Any, value: Row) -> bytes:
    out = BytesIO(struct.pack(">bI", 0, schema_id))
    out.seek(0, 2)
    schemaless_writer(out, schema, value)
    return out.getvalue()


def _row(written: Row) -> Row:
    """What an event becomes in a table of the later schema."""
    address = None if written["place"] is None else {"zip": None, **written["place"]}
    row = {"country": None, **written, "place": address}
    row["hour"] = f"{written['event_time']:%Y-%m-%dT%H}"
    row["kind_bucket"] = written["kind"]
    return row


def micros(when: datetime) -> int:
    """Microseconds since 1970."""
    return (when - _EPOCH) // timedelta(microseconds=1)
