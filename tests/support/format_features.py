"""What a feature is tried with in each format of values, and the features that tests declare for docs/TYPES.md."""

import json
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.task import Piece
from headrace.writer.cli.main import app
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.commit import builder
from headrace.writer.commit.targets import add_targets
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.demo.devstack.protobuf_encoding import message_encoder
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.protobuf.registered_schema import wrap_schema
from headrace.writer.table.factory import all_tables
from tests.support.local_driver import Driver, log
from tests.support.reprocess_lake import offset_key
from tests.support.sample_records import NOW, TIME, Schemas, value

MILLISECOND = timedelta(milliseconds=1)
P0 = TopicPartition("clicks", 1, 0)


@dataclass(frozen=True)
class Order:
    """An event, as producers know it. `seen` and `email` are of its nested member `user`."""

    id: int
    at: datetime = NOW - timedelta(minutes=5)
    country: str = "at"
    email: str = "ann@shop.example"
    seen: datetime = NOW - timedelta(hours=3)
    tags: tuple[str, ...] = ("new", "paid")
    # Only values of the later version have it.
    coupon: str | None = None


class FormatCase(ABC):
    """How the values of one format are written and read."""

    name: ClassVar[str]
    # Of its record schema, by which routes and specs go.
    record: ClassVar[str]
    # Whether a column can be made of a member.
    has_members: ClassVar[bool] = True
    # Whether values name a schema of a registry.
    names_schema: ClassVar[bool] = False
    # A value that becomes no row.
    unreadable: ClassVar[bytes | None] = None

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings of a pipeline that reads orders."""

    @abstractmethod
    def value(self, order: Order) -> bytes:
        """Return an order as Kafka has it; with a coupon it is of the later version."""

    @abstractmethod
    def row(self, order: Order) -> dict[str, Any]:
        """Return what a row holds of an order."""

    def documents(self) -> dict[int, Any]:
        """Return the schemas of the registry by id; 2 is the later version."""
        return {}

    def schemas(self, *, later: bool = True) -> Schemas:
        """Return a registry with the schemas; `later`: with the later version."""
        documents = {number: document for number, document in self.documents().items() if later or number == 1}
        return Schemas(documents, list(documents))

    def example(self, order: Order) -> Any:
        """Return an order as a test file has its value."""
        return _members(order)

    def later_schema_file(self, root: Path) -> Path:
        """Write what the later version is to have, for a plan. Returns the file."""
        raise NotImplementedError

    @property
    def later_settings(self) -> dict[str, Any]:
        """Settings of a pipeline that reads the later version, too."""
        return self.settings

    def records(self, orders: Mapping[int, Order | bytes | None], **of_all: Any) -> pa.RecordBatch:
        """Return orders as records by offset, with headers that say the same. Bytes stand for themselves."""
        values = {offset: self.value(o) if isinstance(o, Order) else o for offset, o in orders.items()}
        headers = {offset: headers_of(order) for offset, order in orders.items() if isinstance(order, Order)}
        return log(values, headers=headers, **of_all)

    def merge(self, settings: Mapping[str, Any], *, later: bool = False) -> dict[str, Any]:
        """Return the settings with others, of which `columns` and `table` join those that are there."""
        merged = {"limits": {"max_failed_ratio": 1}, **(self.later_settings if later else self.settings), **settings}
        own = self.later_settings if later else self.settings
        if "columns" in own and "columns" in settings:
            merged["columns"] = {**own["columns"], **settings["columns"]}
        return merged

    def start(self, root: Path, form: str = "delta", *, later: bool = False, **settings: Any) -> Driver:
        """Start a pipeline that reads orders."""
        driver = Driver(root, form, schemas=self.schemas(later=later), **self.merge(settings, later=later))
        driver.start()
        driver.table.grow(list(driver.row_columns()), driver.epoch)
        return driver

    def config_file(self, root: Path, *, later: bool = False, **settings: Any) -> Path:
        """Write the configuration of such a pipeline, with the schemas as files."""
        files = {}
        for number, document in self.documents().items():
            path = root / f"{number}.json"
            path.write_text(json.dumps(document))
            if later or number == 1:
                files[number] = str(path)
        clicks = {
            "topics": ["clicks"],
            "table": {"location": str(root / "lake" / "clicks")},
            **self.merge(settings, later=later),
        }
        document = {
            "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"},
            "checkpoints": str(root / "checkpoints"),
            **settings.pop("sections", {}),
            "pipelines": {"clicks": clicks},
        }
        clicks.pop("sections", None)
        if files:
            document["registry"] = {"files": files}
        file = root / "headrace.yaml"
        file.write_text(yaml.safe_dump(document))
        return file

    def config(self, root: Path, **settings: Any) -> Config:
        """Return the configuration of such a pipeline."""
        return load(self.config_file(root, **settings))


ORDERS = {number: Order(number, country="at" if number % 2 else "de") for number in range(6)}


def headers_of(order: Order) -> dict[str, bytes]:
    """Return the headers that a producer of orders sets."""
    milliseconds = order.at.timestamp() * 1000
    return {"id": str(order.id).encode(), "at": f"{milliseconds:.0f}".encode(), "country": order.country.encode()}


class AvroCase(FormatCase):
    """Avro behind Confluent's header."""

    name = "avro"
    record = "Order"
    names_schema = True
    unreadable = b"\0\0\0\0\1cut"

    @property
    def settings(self) -> dict[str, Any]:
        return {"event_time": {"field": "at", "max_age": "30 d"}}

    def documents(self) -> dict[int, Any]:
        return {1: self._document(has_coupon=False), 2: self._document(has_coupon=True)}

    def later_schema_file(self, root: Path) -> Path:
        file = root / "later.avsc"
        file.write_text(json.dumps(self.documents()[2]))
        return file

    def _document(self, *, has_coupon: bool) -> dict[str, Any]:
        user = {
            "type": "record",
            "name": "User",
            "fields": [{"name": "email", "type": "string", "confluent:tags": ["PII"]}, {"name": "seen", "type": TIME}],
        }
        fields = [
            {"name": "id", "type": "long"},
            {"name": "at", "type": TIME},
            {"name": "country", "type": "string"},
            {"name": "user", "type": user},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
        ]
        if has_coupon:
            fields.append({"name": "coupon", "type": ["null", "string"], "default": None})
        return {"type": "record", "name": self.record, "fields": fields}

    def value(self, order: Order) -> bytes:
        number = 1 if order.coupon is None else 2
        row = {**_members(order), "at": order.at, "user": {"email": order.email, "seen": order.seen}}
        return value(number, self.documents()[number], row)

    def row(self, order: Order) -> dict[str, Any]:
        return _row(order)


class JsonSchemaCase(FormatCase):
    """JSON behind Confluent's header, whose schema is a JSON Schema."""

    name = "json_schema"
    record = "Order"
    names_schema = True
    unreadable = b"\0\0\0\0\1cut"

    @property
    def settings(self) -> dict[str, Any]:
        return {"formats": "json_schema", "event_time": {"field": "at", "max_age": "30 d"}}

    def documents(self) -> dict[int, Any]:
        return {1: self._document(has_coupon=False), 2: self._document(has_coupon=True)}

    def later_schema_file(self, root: Path) -> Path:
        file = root / "later.schema.json"
        file.write_text(json.dumps(self.documents()[2]))
        return file

    def _document(self, *, has_coupon: bool) -> dict[str, Any]:
        time = {"type": "string", "format": "date-time"}
        email = {"type": "string", "confluent:tags": ["PII"]}
        properties = {
            "id": {"type": "integer"},
            "at": time,
            "country": {"type": "string"},
            "user": {"type": "object", "properties": {"email": email, "seen": time}},
            "tags": {"type": "array", "items": {"type": "string"}},
        }
        if has_coupon:
            properties["coupon"] = {"type": "string"}
        return {"type": "object", "title": self.record, "properties": properties}

    def value(self, order: Order) -> bytes:
        number = 1 if order.coupon is None else 2
        return struct.pack(">bI", 0, number) + json.dumps(self.example(order)).encode()

    def example(self, order: Order) -> Any:
        return {**_members(order), "user": {"email": order.email, "seen": order.seen.isoformat()}}

    def row(self, order: Order) -> dict[str, Any]:
        return _row(order)


class ProtobufCase(FormatCase):
    """Protobuf behind Confluent's header and the index of its message."""

    name = "protobuf"
    record = "Order"
    names_schema = True
    unreadable = b"\0\0\0\0\1\0\x1a\x7fcut"

    @property
    def settings(self) -> dict[str, Any]:
        return {"formats": "protobuf", "event_time": {"field": "at", "max_age": "30 d"}}

    def documents(self) -> dict[int, Any]:
        texts = {1: self._text(has_coupon=False), 2: self._text(has_coupon=True)}
        # As a source of schemas hands them over.
        return {number: json.loads(wrap_schema(text, {})) for number, text in texts.items()}

    def later_schema_file(self, root: Path) -> Path:
        file = root / "later.proto"
        file.write_text(self._text(has_coupon=True))
        return file

    def _text(self, *, has_coupon: bool) -> str:
        coupon = "optional string coupon = 6;" if has_coupon else ""
        return f"""
            syntax = "proto3";
            import "google/protobuf/timestamp.proto";
            import "confluent/meta.proto";
            message Order {{
              int64 id = 1;
              google.protobuf.Timestamp at = 2;
              string country = 3;
              message User {{
                string email = 1 [(confluent.field_meta).tags = "PII"];
                google.protobuf.Timestamp seen = 2;
              }}
              User user = 4;
              repeated string tags = 5;
              {coupon}
            }}"""

    def value(self, order: Order) -> bytes:
        number = 1 if order.coupon is None else 2
        encode = message_encoder(self._text(has_coupon=number == 2))
        row = {**_members(order), "at": order.at, "user": {"email": order.email, "seen": order.seen}}
        return struct.pack(">bI", 0, number) + b"\0" + encode(row)

    def example(self, order: Order) -> Any:
        return {**_members(order), "user": {"email": order.email, "seen": order.seen.isoformat()}}

    def row(self, order: Order) -> dict[str, Any]:
        return _row(order)


class JsonCase(FormatCase):
    """JSON with declared columns."""

    name = "json"
    record = "declared"
    unreadable = b'{"id": "one"}'
    _DECLARED: ClassVar[Mapping[str, Any]] = {
        "id": "long",
        "at": "timestamp",
        "country": "string",
        "user": {"email": "string", "seen": "timestamp(ms)"},
        "tags": ["string"],
    }

    @property
    def settings(self) -> dict[str, Any]:
        event_time = {"field": "at", "max_age": "30 d"}
        return {"formats": "json", "columns": {"declared": dict(self._DECLARED)}, "event_time": event_time}

    @property
    def later_settings(self) -> dict[str, Any]:
        return {**self.settings, "columns": {"declared": {**self._DECLARED, "coupon": "string"}}}

    def later_schema_file(self, root: Path) -> Path:
        file = root / "later.yaml"
        file.write_text(yaml.safe_dump(self.later_settings["columns"]["declared"]))
        return file

    def value(self, order: Order) -> bytes:
        return json.dumps(_members(order)).encode()

    def row(self, order: Order) -> dict[str, Any]:
        return _row(order)


class RawCase(FormatCase):
    """Values as they are; columns of headers stand for members."""

    name = "raw"
    record = "raw"
    has_members = False

    @property
    def settings(self) -> dict[str, Any]:
        headers = {"id": {"header": "id", "type": "long"}, "at": {"header": "at", "type": "long"}, "country": "country"}
        event_time = {"field": "at", "unit": "ms", "max_age": "30 d"}
        return {"formats": "raw", "columns": {"header_columns": headers}, "event_time": event_time}

    def value(self, order: Order) -> bytes:
        return b"order %d of %s" % (order.id, order.email.encode())

    def row(self, order: Order) -> dict[str, Any]:
        return {"id": order.id, "country": order.country, "value": self.value(order)}


def _members(order: Order) -> dict[str, Any]:
    """Return the members of an order, as JSON has them."""
    members = {
        "id": order.id,
        "at": order.at.isoformat(),
        "country": order.country,
        "user": {"email": order.email, "seen": int(order.seen.timestamp() * 1000)},
        "tags": list(order.tags),
    }
    if order.coupon is not None:
        members["coupon"] = order.coupon
    return members


def _row(order: Order) -> dict[str, Any]:
    row = {"id": order.id, "country": order.country, "email": order.email, "tags": list(order.tags)}
    if order.coupon is not None:
        row["coupon"] = order.coupon
    return row


CASES: Mapping[str, FormatCase] = {
    case.name: case for case in (AvroCase(), JsonSchemaCase(), ProtobufCase(), JsonCase(), RawCase())
}


def rows_of(driver: Driver, *, place: str | None = None) -> dict[int, dict[str, Any]]:
    """Return the rows of the table, or of one beside it, by offset, with `email` beside `user`."""
    table = driver.table if place is None else driver.side(place)
    rows = {}
    for row in sorted(table.rows().to_table().to_pylist(), key=offset_key):
        user = row.get("user") or {}
        rows[row["_offset"]] = {**row, **user}
    return rows


def check_rows(driver: Driver, case: FormatCase, orders: Mapping[int, Order]) -> None:
    """Assert that the table has these orders, and no other rows."""
    rows = rows_of(driver)
    assert list(rows) == sorted(orders)
    for offset, order in orders.items():
        expected = case.row(order)
        assert {name: rows[offset][name] for name in expected} == expected


def failures_of(driver: Driver) -> dict[int, tuple[str, str]]:
    """Return outcome and reason of the dead letters, by offset."""
    rows = driver.side(driver.dead_letters).rows().to_table().to_pylist()
    return {row["_offset"]: (row["outcome"], row["error"]) for row in sorted(rows, key=offset_key)}


def carry_routed(case: FormatCase, root: Path, by: Any, names: list[str]) -> dict[str, list[int]]:
    """Commit ORDERS by a route that has a table for each name. Returns the offsets in each table."""
    places = {name: str(root / "lake" / f"to_{name}") for name in names}
    config = case.config(root, route={"by": by, "targets": places})
    tables = all_tables("clicks", config)
    tables.main.create(PROVENANCE, [])
    tables.side(config.pipelines["clicks"].dead_letters).create(DEAD_LETTERS, [])
    epoch = tables.main.begin({P0: 0}, {"clicks": ["uuid-1"]})
    tables.apply_side_files()
    pipeline = open_local_pipeline("clicks", config, case.schemas(), tables=tables)
    targets = pipeline.targets
    assert targets is not None
    records = case.records(ORDERS)
    report = builder.merge_reports(
        [
            pipeline.run(
                lambda _: [Piece(records)],
                lambda _: add_targets(pipeline.task_plan(NOW, "1", {"clicks": 1}), targets, {}),
            )
        ]
    )
    pipeline.grow(tables.main, tables.main)
    batch = builder.batch(
        report,
        [OffsetRange(P0, 0, len(ORDERS))],
        epoch=epoch,
        settled=tables.settled,
        side=pipeline.side_files(report),
        seen={},
        closed=(None, {}),
        facts={"started": NOW.isoformat(), **builder.target_facts(report)},
    )
    tables.main.append(batch, tables.main.snapshot())
    tables.apply_side_files()
    shown = {}
    for name, place in places.items():
        table = tables.side(place)
        if table.exists():
            shown[name] = sorted(table.rows().to_table(columns=["_offset"])["_offset"].to_pylist())
    return {name: offsets for name, offsets in shown.items() if offsets}


def run_command(*words: object, code: int = 0) -> str:
    """Run a command, and return what it prints."""
    result = CliRunner(env={"COLUMNS": "160"}).invoke(app, [str(word) for word in words])
    if isinstance(result.exception, HeadraceError):
        raise result.exception
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout


# --- features ---------------------------------------------------------------------------------------------------------

Act = Callable[[FormatCase, Path], Any]


@dataclass(frozen=True)
class Refusal:
    """A format does not offer a feature: what asks for it ends with a sentence."""

    # The sentence, or its beginning.
    sentence: str
    act: Act


@dataclass(frozen=True)
class Feature:
    """A feature, and what each format makes of it. A test proves each of these."""

    title: str
    # Of the test.
    module: str
    # In which formats it is another, by the format's name.
    notes: Mapping[str, str] = field(default_factory=dict)
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    # Formats that have nothing of it, and why.
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def formats(self) -> list[str]:
        """Formats that offer it."""
        return [name for name in CASES if name not in self.refusals and name not in self.absent]


FEATURES: dict[str, Feature] = {}


def feature(
    title: str,
    *,
    notes: Mapping[str, str] | None = None,
    refusals: Mapping[str, Refusal] | None = None,
    absent: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare that a test proves a feature for all formats but those that refuse it or have nothing of it."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        declared = Feature(title, test.__module__, notes or {}, refusals or {}, absent or {})
        assert title not in FEATURES, f"two tests declare {title!r}"
        assert {*declared.notes, *declared.refusals, *declared.absent} <= set(CASES), f"{title}: unknown format"
        FEATURES[title] = declared
        cases: Sequence[FormatCase] = [CASES[name] for name in declared.formats]
        return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])(test)

    return mark


def refusals_of(module: str) -> list[Any]:
    """Return the refusals that the tests of a module declare: each with its format, as parameters of a test."""
    return [
        pytest.param(CASES[name], refusal, id=f"{declared.title}, {name}")
        for declared in FEATURES.values()
        if declared.module == module
        for name, refusal in declared.refusals.items()
    ]


def check_refused(case: FormatCase, refusal: Refusal, root: Path) -> None:
    """Assert that the configuration, or the command, says that the format does not offer it."""
    with pytest.raises((ConfigError, ValueError), match=re.escape(refusal.sentence)):
        refusal.act(case, root)
