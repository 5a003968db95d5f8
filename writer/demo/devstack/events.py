"""Generates clicks and installs like those of a mobile attribution feed, for demo, tests and bench.

The same arguments always give the same records, so that a test can say what the lake must hold.
"""

import io
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from fastavro import parse_schema, schemaless_writer

USERS = 5_000
# Consecutive events of one session.
BURST = 8
# The share of events from phones that were offline.
LATE_SHARE = 0.01
LATE_MAX = timedelta(hours=1)
# The mean delay of the other events.
JITTER = timedelta(seconds=20)
# How far `produce` moves late events back: a long flight.
LATE_BY = timedelta(hours=9)
# How far ahead a wrong clock is. A writer accepts a day by default.
AHEAD_BY = timedelta(days=30)
_MILLISECOND = timedelta(milliseconds=1)
# A field of `clicks_2`, the second version of the clicks schema.
NEW_FIELD = "referrer_campaign"
_PLACES = [
    ("US", "New York", 40.71, -74.01),
    ("IN", "Mumbai", 19.08, 72.88),
    ("CN", "上海", 31.23, 121.47),
    ("DE", "München", 48.14, 11.58),
    ("BR", "São Paulo", -23.55, -46.63),
    ("JP", "東京", 35.68, 139.69),
]
_NETWORKS = ["facebook", "google", "tiktok", "email", "organic"]
_NAMES = ["open", "view", "view", "view", "click", "click", "purchase", "share"]

_TIMESTAMP = {"type": "long", "logicalType": "timestamp-millis"}


def _fields(kind: Any, *names: str) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind} for name in names]


def _optional(kind: Any, *names: str) -> list[dict[str, Any]]:
    return [{"name": name, "type": ["null", kind], "default": None} for name in names]


def _record(name: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "namespace": "headrace.demo", "fields": fields}


_EVENT = [
    *_fields("string", "event_id"),
    *_fields(_TIMESTAMP, "event_time"),
    *_fields("long", "app_id"),
    *_fields("string", "user_id"),
]
_CLICK = [
    *_EVENT,
    *_fields("string", "session_id", "event_name"),
    *_optional("string", "os", "os_version", "country", "city", "campaign", "channel", "url", "ip"),
    *_optional("double", "revenue"),
    *_fields("boolean", "is_install"),
    *_fields("int", "duration_ms"),
    *_optional("double", "lat", "lon"),
    *_fields("string", "sdk"),
]
_ATTRIBUTION = {
    "type": "record",
    "name": "Attribution",
    "fields": [*_fields("string", "network"), *_optional(_TIMESTAMP, "click_time"), *_fields("int", "touch_count")],
}
_INSTALL = [
    *_EVENT,
    *_optional("string", "os", "country"),
    *_optional(_ATTRIBUTION, "attribution"),
    *_fields({"type": "array", "items": "string"}, "tags"),
    *_fields({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "cost"),
]
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "clicks": _record("Click", _CLICK),
    "installs": _record("Install", _INSTALL),
    "clicks_2": _record("Click", [*_CLICK, *_optional("string", NEW_FIELD)]),
}


Encode = Callable[[Mapping[str, Any]], bytes]


class Encoding(Protocol):
    """How events become values of records."""

    def open_encoder(self, topic: str, kind: str) -> Encode:
        """Return what encodes events of a kind, a key of SCHEMAS, for a topic."""
        ...

    def broken_value(self, record: Mapping[str, Any], encode: Encode, turn: int) -> bytes:
        """Return a value that a strict reader refuses, made from a good event; `turn` selects what is wrong."""
        ...


@dataclass(frozen=True)
class Produced:
    """What a topic got, counted from the broker's acknowledgements: messages per partition, each counted once."""

    good: Mapping[int, int] = field(default_factory=dict)
    broken: Mapping[int, int] = field(default_factory=dict)
    # Good ones, `late_by` behind.
    late: Mapping[int, int] = field(default_factory=dict)
    # They can be decoded, and their time is not believable.
    ahead: Mapping[int, int] = field(default_factory=dict)

    @property
    def per_partition(self) -> dict[int, int]:
        """All messages, broken ones too: how far each partition's end moved."""
        return dict(Counter(self.good) + Counter(self.broken) + Counter(self.late) + Counter(self.ahead))


def generate(
    kind: str, n: int, *, now: datetime, hours: float = 3, seed: int = 7
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield `n` pairs of key (the user id) and record of `clicks`, `clicks_2` or `installs`, in order of arrival.

    Event times are aware UTC to the millisecond, in [now - hours, now], rising but for a jitter and a late share. Event
    ids are distinct within one call. fastavro reads an encoded record back equal to what is yielded here.
    """
    if now.tzinfo is None:
        raise ValueError(f"now must be an aware datetime, got {now!r}")
    if hours <= 0:
        raise ValueError(f"hours must be positive, got {hours}")
    make = {"clicks": _clicks, "clicks_2": _clicks_2, "installs": _installs}[kind]
    rnd = Random(f"{kind}/{seed}")  # noqa: S311 - made-up data
    yield from make(rnd, _times(n, rnd, now, hours))


def encoder(schema: dict[str, Any], schema_id: int) -> Encode:
    """Return the function that encodes one record behind Confluent's 5-byte header."""
    parsed = parse_schema(schema)
    header = struct.pack(">bI", 0, schema_id)

    def encode(record: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        out.write(header)
        schemaless_writer(out, parsed, record)
        return out.getvalue()

    return encode


def produce(
    bootstrap: str,
    encoding: Encoding,
    topic: str,
    n: int,
    *,
    now: datetime,
    kind: str | None = None,
    hours: float = 3,
    seed: int = 7,
    broken: int = 0,
    late: int = 0,
    late_by: timedelta = LATE_BY,
    ahead: int = 0,
    on_row: Callable[[Mapping[str, Any]], None] = lambda _: None,
) -> Produced:
    """Produce `n` events, and `broken` more that a strict reader refuses.

    The topic must exist. `kind` is a key of SCHEMAS, by default the topic's name. Broken values are those of the
    encoding, spread evenly. Of the `n`, `late` have an event time `late_by` behind their own, and `ahead` one AHEAD_BY
    in the future. `on_row` gets each event that must become a row. Raises KafkaException if a delivery fails, and as
    the encoding does.
    """
    if broken and not n:
        raise ValueError(f"{broken} broken values are made from good ones: n must be positive")
    if late + ahead > n:
        raise ValueError(f"{late} late events and {ahead} ahead are of the n, which is {n}")
    kind = kind or topic
    encode = encoding.open_encoder(topic, kind)
    delivery = _Delivery(bootstrap, topic)
    damaged = 0
    events = move_event_times(generate(kind, n, now=now, hours=hours, seed=seed), spread(n, late, ahead), late_by)
    for i, (outcome, key, record) in enumerate(events):
        while damaged < (i + 1) * broken // n:
            delivery.send(key, encoding.broken_value(record, encode, damaged), "broken", i)
            damaged += 1
        delivery.send(key, encode(record), outcome, i)
        if outcome != "ahead":
            on_row(record)
    return delivery.finish()


def move_event_times(
    events: Iterator[tuple[bytes, dict[str, Any]]], outcomes: Mapping[int, str], late_by: timedelta = LATE_BY
) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
    """Yield `good`, `late` or `ahead` with each key and record, and move the event times of those that are not good.

    They stay whole milliseconds.
    """
    shifts = {"good": timedelta(0), "late": -late_by // _MILLISECOND * _MILLISECOND, "ahead": AHEAD_BY}
    for i, (key, record) in enumerate(events):
        outcome = outcomes.get(i, "good")
        record["event_time"] += shifts[outcome]
        yield outcome, key, record


class _Delivery:
    """Sends, counts acknowledgements, and raises the first failure."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                # A retry neither doubles nor reorders.
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 20,
                # A coordinator that still loads is not news. A failure is raised.
                "log_level": 3,
                # How long a topic may seem unknown; the default is 30 s.
                "topic.metadata.propagation.max.ms": 5_000,
                "queue.buffering.max.messages": 200_000,
            }
        )
        self._failures: list[KafkaError] = []
        self._counts: dict[str, Counter[int]] = {name: Counter() for name in ("good", "late", "ahead", "broken")}
        # Not methods: through one, self would hold itself, and the producer would dial on after its last use.
        self._callbacks = {
            outcome: _counter_callback(counts, self._failures) for outcome, counts in self._counts.items()
        }

    def send(self, key: bytes, value: bytes, outcome: str, number: int) -> None:
        """Send one value, to be counted as `what` once it is acknowledged. `number`: its trace id."""
        headers = [("source", b"headrace demo"), ("trace-id", f"{number:032x}".encode())]
        while True:
            try:
                self._producer.produce(self._topic, value, key, headers=headers, on_delivery=self._callbacks[outcome])
            except BufferError:
                # The queue is full: acknowledgements make room.
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                break
        self._check()

    def finish(self) -> Produced:
        self._producer.flush()
        self._check()
        return Produced(**{outcome: dict(sorted(counts.items())) for outcome, counts in self._counts.items()})

    def _check(self) -> None:
        if self._failures:
            raise KafkaException(self._failures[0])


def _counter_callback(counts: Counter[int], failures: list[KafkaError]) -> Callable[[KafkaError | None, Message], None]:
    def count_delivery(error: KafkaError | None, message: Message) -> None:
        if error is None:
            counts[message.partition()] += 1
        else:
            failures.append(error)

    return count_delivery


def spread(n: int, late: int, ahead: int) -> dict[int, str]:
    """Return which of `n` events are `late` and which `ahead`, both spread evenly."""
    turns = sorted(
        [((i + 0.5) / late, "late") for i in range(late)] + [((i + 0.5) / ahead, "ahead") for i in range(ahead)]
    )
    return {i * n // len(turns): outcome for i, (_, outcome) in enumerate(turns)}


def _times(n: int, rnd: Random, now: datetime, hours: float) -> Iterator[datetime]:
    """Yield `n` event times, rising on the whole towards `now`."""
    last = now.astimezone(UTC)
    last = last.replace(microsecond=last.microsecond // 1000 * 1000)
    span_ms = round(hours * 3_600_000)
    start = last - timedelta(milliseconds=span_ms)
    late_ms = LATE_MAX / timedelta(milliseconds=1)
    rate = timedelta(milliseconds=1) / JITTER
    for i in range(n):
        delay = rnd.random() * late_ms if rnd.random() < LATE_SHARE else rnd.expovariate(rate)
        yield start + timedelta(milliseconds=max(0, int((i + 1) * span_ms / n - delay)))


def _ids(rnd: Random) -> Iterator[str]:
    """Yield 32 hex digits each, never the same twice: an odd multiplier permutes the low 64 bits."""
    low = rnd.getrandbits(64)
    while True:
        low = (low + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        yield f"{rnd.getrandbits(64):016x}{low:016x}"


def _users(rnd: Random) -> list[dict[str, Any]]:
    """Return the people of one feed: what stays the same from event to event."""
    users = []
    for _ in range(USERS):
        country, city, lat, lon = rnd.choice(_PLACES)
        system = rnd.choice(["ios", "android", "android", "web"])
        users.append(
            {
                "user_id": f"u{rnd.randrange(10**10):010d}",
                "os": system,
                "os_version": None if system == "web" else f"{rnd.randrange(8, 19)}.{rnd.randrange(5)}",
                "country": country,
                "city": city,
                "ip": f"10.{rnd.randrange(256)}.{rnd.randrange(256)}.{rnd.randrange(256)}",
                "lat": lat + rnd.uniform(-0.2, 0.2),
                "lon": lon + rnd.uniform(-0.2, 0.2),
                "sdk": f"{system}-5.{rnd.randrange(10)}.0",
            }
        )
    return users


def _clicks(rnd: Random, times: Iterator[datetime]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    users = _users(rnd)
    ids = _ids(rnd)
    session: dict[str, Any] = {}
    for i, event_time in enumerate(times):
        if i % BURST == 0:
            campaign = rnd.randrange(500)
            session = rnd.choice(users) | {
                "app_id": rnd.randrange(1000),
                "session_id": f"{rnd.getrandbits(64):016x}",
                "campaign": f"camp{campaign}" if campaign % 10 else None,
                "channel": rnd.choice(_NETWORKS),
            }
        name = rnd.choice(_NAMES)
        record = session | {
            "event_id": next(ids),
            "event_time": event_time,
            "event_name": name,
            "url": f"https://app.example/{rnd.getrandbits(40):010x}?c={rnd.randrange(1000)}",
            "revenue": rnd.random() * 100 if name == "purchase" else None,
            "is_install": name == "open" and rnd.randrange(3) == 0,
            "duration_ms": int(rnd.random() * 100_000),
        }
        yield record["user_id"].encode(), record


def _clicks_2(rnd: Random, times: Iterator[datetime]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    for key, record in _clicks(rnd, times):
        yield key, record | {NEW_FIELD: f"{record['channel']}/{record['campaign'] or 'none'}"}


def _installs(rnd: Random, times: Iterator[datetime]) -> Iterator[tuple[bytes, dict[str, Any]]]:
    users = _users(rnd)
    ids = _ids(rnd)
    for event_time in times:
        user = rnd.choice(users)
        network = rnd.choice(_NETWORKS)
        click_time = event_time - timedelta(seconds=rnd.randrange(1, 7 * 86_400)) if rnd.randrange(5) else None
        touched = {"network": network, "click_time": click_time, "touch_count": rnd.randrange(1, 6)}
        record = {
            "event_id": next(ids),
            "event_time": event_time,
            "app_id": rnd.randrange(1000),
            "user_id": user["user_id"],
            "os": user["os"],
            "country": user["country"],
            "attribution": None if network == "organic" else touched,
            "tags": rnd.sample(["paid", "retarget", "video", "store", "qr"], rnd.randrange(4)),
            "cost": Decimal(rnd.randrange(1, 100_000)).scaleb(-2),
        }
        yield record["user_id"].encode(), record
