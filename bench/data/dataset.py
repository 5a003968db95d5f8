"""The pinned data sets of the bench: the same events on every machine.

Ids, addresses and positions are distinct as in life, so that dictionaries and compression flatter nobody. Event times
are those of a live stream: a batch opens about nine hourly buckets.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.bench.data import encode, fields as f
from headrace.bench.data.avro_columns import AvroColumns
from headrace.bench.data.draw import Draw, draw
from headrace.bench.data.fields import Field
from headrace.bench.data.json_columns import JsonColumns
from headrace.bench.data.protobuf_columns import ProtobufColumns, proto_text
from headrace.bench.data.tracing import Headers, trace_headers
from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.message_indexes import write_indexes
from headrace.writer.framing.wire_format import header

SEED = 20
TIME_FIELD = "event_time"
_AGENTS = [
    "okhttp/4.12.0 (Android 14)",
    "Mozilla/5.0 (iPhone; iOS 17_5)",
    "Mozilla/5.0 (Windows NT 10.0)",
    "okhttp/4.9.3 (Android 11)",
    "Mozilla/5.0 (Macintosh; 10_15)",
    "okhttp/5.0.0 (Android 15)",
    "Mozilla/5.0 (iPad; iOS 16_1)",
    "Mozilla/5.0 (X11; Linux x86_64)",
    "Dalvik/2.1.0 (Android 9)",
]
_COUNTRIES = ["US", "IN", "BR", "DE", "JP", "ID", "MX", "FR", "GB", "TR", "VN", "PH", "KR", "EG", "NG", "PL"]
_CITIES = ["New York", "Mumbai", "São Paulo", None, "Berlin", "東京", "Jakarta", None, "Paris", "London", "İstanbul"]
_CURRENCIES = ["USD", "INR", None, "EUR", "BRL", "JPY"]
_CAMPAIGNS = [None, *(f"campaign-{n}" for n in range(400))]
_EVENTS = ["view", "click", "open", "share", "purchase", "install"]
_LOCALES = ["en-US", "en-IN", "pt-BR", None, "de-DE", "ja-JP"]


# Of values.
Form = Literal["avro", "json", "protobuf"]


@dataclass(frozen=True)
class DataSet:
    """A named set of events. Event number i is the same bytes whenever and with whatever it is asked for."""

    name: str
    about: str
    fields: Sequence[Field]
    form: Form = "avro"
    # Members of JSON that no column is declared for.
    undeclared: Sequence[Field] = ()
    # Fields that an older producer does not write, for each of them. They send in turn with one that writes all.
    missing_fields: Sequence[Sequence[str]] = ()
    has_headers: bool = False

    @property
    def schema_text(self) -> str:
        """The Avro schema of its fields, as JSON."""
        return f.schema_text(self._record_name, self.fields)

    @property
    def older_schema_texts(self) -> list[str]:
        """The Avro schemas of older producers, as JSON."""
        return [f.schema_text(self._record_name, self._fields_without(missing)) for missing in self.missing_fields]

    @property
    def _record_name(self) -> str:
        return f"Event{self.name.removesuffix('-headers')}"

    def _fields_without(self, missing: Sequence[str]) -> list[Field]:
        return [field for field in self.fields if field.name not in missing]

    @property
    def proto_text(self) -> str:
        """The Protobuf schema of its fields."""
        return proto_text(f"Event{self.name.removesuffix('-protobuf')}", self.fields)

    @property
    def declared(self) -> Mapping[str, Any]:
        """The columns of its events as JSON, for `columns.declared`."""
        return {field.name: f.declared_type(field.kind) for field in self.fields}

    def headers(self, start: int, count: int) -> list[Headers]:
        """Return the Kafka headers of the events in [start, start + count), which the set has."""
        return trace_headers(draw(start, count, SEED))

    def encode(
        self, start: int, count: int, *, schema_id: int = 1, older_ids: Sequence[int] = (2, 3)
    ) -> pa.BinaryArray:
        """Encode the events in [start, start + count): JSON, or Confluent's header and then Avro or Protobuf.

        `older_ids`: of the schemas of older producers, where the set has such.
        """
        numbers = draw(start, count, SEED)
        if self.missing_fields:
            return self._encode_in_turn(numbers, [schema_id, *older_ids])
        if self.form == "json":
            members = [*self.fields, *self.undeclared]
            columns = JsonColumns()
            return columns.record(
                [field.name for field in members], [field.encode(numbers, columns) for field in members]
            )
        if self.form == "protobuf":
            head = pa.scalar(header(schema_id) + write_indexes([0]), pa.binary())
            messages = ProtobufColumns()
            return encode.join_parts(
                [head, messages.message([field.encode(numbers, messages) for field in self.fields])]
            )
        return _encode_avro(numbers, self.fields, schema_id)

    def _encode_in_turn(self, numbers: Draw, schema_ids: Sequence[int]) -> pa.BinaryArray:
        """Encode each event by the producer whose turn it is."""
        producers = [self.fields, *map(self._fields_without, self.missing_fields)]
        turn_of_event = numbers.positions % np.uint64(len(producers))
        values = []
        for turn, (fields, schema_id) in enumerate(zip(producers, schema_ids, strict=True)):
            own_numbers = Draw(numbers.positions[turn_of_event == turn], numbers.seed)
            values.append(_encode_avro(own_numbers, fields, schema_id))
        order = np.argsort(np.argsort(turn_of_event, kind="stable"))
        return pa.concat_arrays(values).take(pa.array(order))


def _encode_avro(numbers: Draw, fields: Sequence[Field], schema_id: int) -> pa.BinaryArray:
    head = pa.scalar(header(schema_id), pa.binary())
    return encode.join_parts([head, *(field.encode(numbers, AvroColumns()) for field in fields)])


def dataset(name: str) -> DataSet:
    """Return a data set by its name. Raises ConfigError for a name that is none."""
    if name not in SETS:
        raise ConfigError(f"there is no data set {name!r}. Take one of {', '.join(SETS)}.")
    return SETS[name]()


def parse_data_sets(names: str) -> list[DataSet]:
    """Read `200B,200B-json`. Raises ConfigError for a name that is none."""
    return [dataset(name.strip()) for name in names.split(",")]


def _click() -> list[Field]:
    return [
        f.identity("event_id", word_count=2),
        f.time(TIME_FIELD),
        f.enum("event_name", _EVENTS),
        f.number("app_id", 1000, kind="long"),
        f.person("user_id", 50_000_000),
        f.identity("session_id", word_count=1, by=8),
        f.url("url", "app.example/p", share=0.9),
        f.word("user_agent", _AGENTS),
        f.word("country", _COUNTRIES),
        f.word("city", _CITIES),
        f.degrees("lat", 90),
        f.degrees("lon", 180),
        f.amount("revenue", share=0.3),
        f.word("currency", _CURRENCIES),
        f.word("campaign", _CAMPAIGNS),
        f.word("locale", _LOCALES),
        f.flag("is_first", 0.1),
        f.number("duration_ms", 100_000),
        f.counter("views", 500),
        f.counter("retries", 5),
    ]


def _with_prose(mean: int) -> list[Field]:
    """Return the twenty columns with long texts in five of them, `mean` bytes together."""
    texts = {"campaign": 1, "locale": 1, "city": 2, "currency": 4, "user_agent": 8}
    part = mean / sum(texts.values())
    return [
        f.prose(field.name, round(texts[field.name] * part)) if field.name in texts else field for field in _click()
    ]


def _wide() -> list[Field]:
    """Return the twenty columns and 180 more of every primitive kind."""
    more: list[Field] = []
    for n in range(30):
        more += [
            f.number(f"count_{n}", 10_000),
            f.number(f"number_{n}", 2**32, kind="long"),
            f.degrees(f"measure_{n}", 1000),
            f.amount(f"price_{n}", share=0.5),
            f.word(f"label_{n}", ["north", None, "south", "east", "west"]),
            f.flag(f"flag_{n}", 0.2),
        ]
    return [*_click(), *more]


def _nested_fields() -> list[Field]:
    item = f.record(
        "item",
        [
            f.identity("sku", word_count=1),
            f.number("quantity", 10),
            f.amount("price", share=0.9),
            f.array("tags", f.word("tag", ["new", "sale", "gift", "bulk"]), 3),
        ],
    )
    device = f.record(
        "device",
        [
            f.word("model", _AGENTS),
            f.record("screen", [f.number("width", 4000), f.number("height", 3000)]),
            f.word("locale", _LOCALES),
        ],
        share=0.9,
    )
    return [
        f.identity("event_id", word_count=2),
        f.time(TIME_FIELD),
        f.person("user_id", 50_000_000),
        f.enum("event_name", _EVENTS),
        device,
        f.array("items", item, 5),
        f.array("scores", f.degrees("score", 1), 8),
        f.mapping("attributes", ["campaign", "channel", "experiment", "referrer"], f.url("value", "ref.example")),
        f.mapping("counters", ["views", "clicks", "taps"], f.counter("counter", 1000)),
        f.url("url", "app.example/p"),
    ]


def _undeclared_fields() -> list[Field]:
    """Return three members that no column is declared for."""
    consent = f.record("consent", [f.flag("ads", 0.6), f.number("version", 9)])
    return [f.identity("build", word_count=1), f.number("battery", 100), consent]


def _sets_of(name: str, about: str, make: Callable[[], list[Field]]) -> dict[str, Callable[[], DataSet]]:
    """Return a set in Avro, and the same events in Protobuf and as JSON, without and with undeclared members."""
    as_json = f"the events of {name} as JSON, their columns declared"
    with_rest = f"{as_json}, and three undeclared members"
    return {
        name: cache(lambda: DataSet(name, about, make())),
        f"{name}-protobuf": cache(
            lambda: DataSet(f"{name}-protobuf", f"the events of {name} in Protobuf", make(), "protobuf")
        ),
        f"{name}-json": cache(lambda: DataSet(f"{name}-json", as_json, make(), "json")),
        f"{name}-json-rest": cache(
            lambda: DataSet(f"{name}-json-rest", with_rest, make(), "json", undeclared=_undeclared_fields())
        ),
    }


SETS: Mapping[str, Callable[[], DataSet]] = {
    **_sets_of("200B", "20 columns, about 200 bytes of Avro: what an app's clicks look like", _click),
    **_sets_of("1KB", "20 columns, about 1 KB of Avro, five of them texts", lambda: _with_prose(1010)),
    **_sets_of("4KB", "20 columns, about 4 KB of Avro, five of them texts", lambda: _with_prose(4010)),
    **_sets_of("200col", "200 columns of every primitive kind", _wide),
    **_sets_of("nested", "records in records, arrays of records, maps", _nested_fields),
    "200B-headers": cache(
        lambda: DataSet("200B-headers", "the events of 200B with two tracing headers", _click(), has_headers=True)
    ),
    "mixed": cache(
        lambda: DataSet(
            "mixed",
            "the events of 200B by producers of three versions of the schema, record by record in turn",
            _click(),
            missing_fields=[["locale"], ["locale", "currency"]],
        )
    ),
}
