"""Apicurio's own frames on its real server: ids before the value, of 8 and of 4 bytes, and in Kafka's headers."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.framing.message_marks import NAME_HEADER, write_name
from headrace.writer.framing.wire_format import Wire
from headrace.writer.schemas.format_detection import judge
from headrace.writer.schemas.registry import source
from tests.support import oracle
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.protobuf_orders import MANY, encode
from tests.support.sample_records import EVENT, NOW, event

pytestmark = pytest.mark.slow

ADDRESS = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "type": "object",
    "properties": {"zip": {"type": "integer"}},
}
ORDER: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "home": {"$ref": "address.json"},
    },
}
AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
WIRES: dict[str, Any] = {
    "8 bytes, global": {"format": "apicurio"},
    "8 bytes, content": {"format": "apicurio", "ids": "content"},
    "4 bytes, global": {"format": "confluent", "ids": "global"},
    "4 bytes, content": {"format": "confluent", "ids": "content"},
    "header, global": {"format": "header", "header": "apicurio.value.globalId"},
    "header, content": {"format": "header", "header": "apicurio.value.contentId"},
}


@dataclass(frozen=True)
class Registered:
    """Ids of versions by the name of their artifact."""

    core_url: str
    ids: dict[str, dict[str, int]]

    def id_of(self, wire: Wire, artifact: str) -> int:
        return self.ids[artifact][f"{wire.ids}Id"]


def register(core_url: str, artifact: str, kind: str, schema: Any, references: list[dict[str, Any]]) -> dict[str, int]:
    """Create an artifact by Apicurio's own API. Returns the ids of its version."""
    text = schema if isinstance(schema, str) else json.dumps(schema)
    content_type = "application/x-protobuf" if kind == "PROTOBUF" else "application/json"
    content = {"content": text, "contentType": content_type, "references": references}
    document = {"artifactId": artifact, "artifactType": kind, "firstVersion": {"version": "1", "content": content}}
    request = Request(
        f"{core_url}/groups/default/artifacts",
        json.dumps(document).encode(),
        {"Content-Type": "application/json"},
    )
    with urlopen(request) as answer:
        version = json.load(answer)["version"]
    return {name: int(version[name]) for name in ("globalId", "contentId")}


@pytest.fixture
def registered(registry_url: str, topic: Any) -> tuple[str, Registered]:
    """A topic's name, with an Avro schema and a JSON Schema that refers to another one."""
    name = topic()
    core_url = registry_url.replace("/apis/ccompat/v7", "/apis/registry/v3")
    # Ids of the two kinds are other numbers from here on.
    register(core_url, f"{name}-first", "AVRO", {**EVENT, "name": "First"}, [])
    register(core_url, f"{name}-again", "AVRO", {**EVENT, "name": "First"}, [])
    register(core_url, f"{name}-address", "JSON", {**ADDRESS, "title": name}, [])
    reference = {"groupId": "default", "artifactId": f"{name}-address", "version": "1", "name": "address.json"}
    ids = {
        "order": register(core_url, f"{name}-value", "JSON", {**ORDER, "description": name}, [reference]),
        "event": register(core_url, f"{name}-events", "AVRO", {**EVENT, "doc": name}, []),
        "many": register(core_url, f"{name}-many", "PROTOBUF", f"{MANY} // {name}", []),
    }
    return name, Registered(core_url, ids)


def order(number: Any) -> bytes:
    return json.dumps({"id": number, "at": AT, "home": {"zip": number, "new": 1}}).encode()


def open_driver(root: Path, form: str, registry_url: str, topic: str, **settings: Any) -> Driver:
    limits = {"max_failed_ratio": 1}
    sections = {"registry": {"url": registry_url}}
    settings = {"formats": ["avro", "json_schema"], "limits": limits, "topics": [topic], **settings}
    configuration = pipeline_config(root, form, sections=sections, **settings)
    schemas: Any = source(configuration.registry)
    driver = Driver(root, form, configuration=configuration, schemas=schemas, topic=topic)
    driver.start()
    return driver


@pytest.mark.parametrize("frame", WIRES)
def test_avro_and_json_schema_are_read_by_apicurio_s_own_ids(
    tmp_path: Path, form: str, frame: str, registry_url: str, registered: tuple[str, Registered]
) -> None:
    topic, ids = registered
    driver = open_driver(tmp_path, form, registry_url, topic, wire=WIRES[frame])
    wire = driver.settings.wire.fixed
    assert wire is not None
    values: dict[int, bytes | None] = {}
    headers: dict[int, dict[str, bytes]] = {}
    bodies = {
        0: ("order", order(0)),
        1: ("event", event(1)[5:]),
        2: ("order", order("two")),
        3: ("order", order(3)),
        4: ("event", event(4)[5:-1]),
        5: ("event", event(5)[5:]),
    }
    for offset, (artifact, body) in bodies.items():
        schema_id = ids.id_of(wire, artifact)
        values[offset] = wire.value_header(schema_id) + body
        mark = wire.kafka_header_value(schema_id)
        if wire.header is not None and mark is not None:
            headers[offset] = {"apicurio.value.messageType": b"Order", wire.header: mark}
    driver.carry([log(values, topic=topic, headers=headers)], {0: 6})
    rows = oracle.rows(Path(driver.lake), 'id, home.zip, home."rest"', "ORDER BY 1")
    assert rows == [(0, 0, '{"new":1}'), (1, None, None), (3, 3, '{"new":1}'), (5, None, None)]
    dead_letters = dict(oracle.rows(Path(driver.dead_letters), "_offset, error"))
    assert dead_letters[2] == "$.id: expected an integer, not text"
    assert sorted(dead_letters) == [2, 4]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    meanings = {int(name.rpartition("/")[2]) for name in driver.table.transactions() if f"/{wire.ids}/" in name}
    assert meanings == {ids.id_of(wire, artifact) for artifact in ("order", "event")}


@pytest.mark.parametrize("kind", ["global", "content"])
def test_json_whose_headers_name_a_schema_is_told_from_json_without_one(
    tmp_path: Path, kind: Any, registry_url: str, registered: tuple[str, Registered]
) -> None:
    topic, ids = registered
    wire = Wire("header", kind, f"apicurio.value.{kind}Id")
    settings = {
        "formats": ["json_schema", "json"],
        "columns": {"declared": {"id": "long", "at": "timestamp", "other": "string"}},
    }
    mark = struct.pack(">q", ids.id_of(wire, "order"))
    values: dict[int, bytes | None] = {number: order(number) for number in range(40)}
    headers = {number: {str(wire.header): mark} for number in range(0, 40, 2)}
    batch = log(values, topic=topic, headers=headers)
    driver = open_driver(tmp_path, "delta", registry_url, topic, **settings)
    local_pipeline = driver._pipeline
    local_pipeline.settle_wire(batch)
    assert local_pipeline.schemas.wire == wire
    verdict = judge(local_pipeline.schemas.select_framed(batch), local_pipeline.schemas.knows)
    assert (verdict.wire, verdict.is_sure) == (wire, True)
    fixed = open_driver(
        tmp_path, "delta", registry_url, topic, **settings, wire={"format": "header", "header": wire.header}
    )
    fixed.carry([batch], {0: 40})
    # Of one with a schema the member `home` is a column, of one without it is in `rest`.
    rows = oracle.rows(Path(fixed.lake), "id, home.zip, json_extract(rest, '$.home.zip')::BIGINT", "ORDER BY 1")
    assert rows == [(number, None, number) if number % 2 else (number, number, None) for number in range(40)]


@pytest.mark.parametrize("frame", [frame for frame in WIRES if frame.startswith(("4", "8"))])
def test_messages_of_protobuf_are_told_by_their_names(
    tmp_path: Path, form: str, frame: str, registry_url: str, registered: tuple[str, Registered]
) -> None:
    topic, ids = registered
    driver = open_driver(tmp_path, form, registry_url, topic, wire=WIRES[frame], formats=["protobuf", "json_schema"])
    wire = driver.settings.wire.fixed
    assert wire is not None
    before = wire.value_header(ids.id_of(wire, "many"))
    values = {
        0: before + write_name("Order") + encode(MANY, "acme.Order", id=0),
        1: before + write_name("Refund") + encode(MANY, "acme.Refund", id=1, why="w"),
        2: wire.value_header(ids.id_of(wire, "order")) + order(2),
        3: before + write_name("Line") + encode(MANY, "acme.Order.Line", id=3),
        4: before + encode(MANY, "acme.Order", id=4),
        5: before + write_name("Order") + encode(MANY, "acme.Order", id=5)[:-1],
        6: before + write_name("Refund") + encode(MANY, "acme.Refund", id=6),
    }
    driver.carry([log(values, topic=topic)], {0: len(values)})
    assert oracle.rows(Path(driver.lake), "id, why", "ORDER BY 1") == [(0, None), (1, "w"), (2, None), (6, "")]
    dead_letters = dict(oracle.rows(Path(driver.dead_letters), "_offset, error"))
    assert sorted(dead_letters) == [3, 4, 5]
    assert (
        "is Protobuf, and no message has the name 'Line'; its messages are acme.Order, acme.Refund" in dead_letters[3]
    )
    assert "is Protobuf, and no name of a message stands behind the schema id" in dead_letters[4]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


@pytest.mark.parametrize("frame", [frame for frame in WIRES if frame.startswith("header")])
def test_messages_of_protobuf_are_told_by_the_name_in_a_header(
    tmp_path: Path, form: str, frame: str, registry_url: str, registered: tuple[str, Registered]
) -> None:
    topic, ids = registered
    driver = open_driver(tmp_path, form, registry_url, topic, wire=WIRES[frame], formats=["protobuf", "json_schema"])
    wire = driver.settings.wire.fixed
    assert wire is not None
    # Version 2 of Apicurio's serializers writes the message alone, version 3 a `Ref` before it.
    records: list[tuple[str, bytes | None, bytes]] = [
        ("many", b"Order", encode(MANY, "acme.Order", id=0)),
        ("many", b"Refund", write_name("Refund") + encode(MANY, "acme.Refund", id=1, why="w")),
        ("order", None, order(2)),
        ("many", b"Line", write_name("Line") + encode(MANY, "acme.Order.Line", id=3)),
        ("many", None, write_name("Order") + encode(MANY, "acme.Order", id=4)),
        ("many", b"Order", encode(MANY, "acme.Order", id=5)[:-1]),
        ("many", b"Refund", encode(MANY, "acme.Refund", id=6)),
        ("many", b"Order", write_name("Order") + encode(MANY, "acme.Order", id=7)),
        ("many", b"Order", write_name("Order")),
        ("many", b"Order", write_name("Refund") + encode(MANY, "acme.Order", id=9)),
        ("many", write_name("Order"), write_name("Order") + encode(MANY, "acme.Order", id=10)),
    ]
    values: dict[int, bytes | None] = {}
    headers: dict[int, dict[str, bytes]] = {}
    for offset, (artifact, name, value) in enumerate(records):
        mark = wire.kafka_header_value(ids.id_of(wire, artifact))
        assert mark is not None
        values[offset] = value
        headers[offset] = {"apicurio.value.msgType": b"com.acme.Shop$Order", str(wire.header): mark}
        if name is not None:
            headers[offset][NAME_HEADER] = name
    driver.carry([log(values, topic=topic, headers=headers)], {0: len(values)})
    rows = oracle.rows(Path(driver.lake), "_offset, id, why", "ORDER BY 1")
    # Offset 8 is a message without any field.
    assert [row for row in rows if row[0] != 8] == [(0, 0, None), (1, 1, "w"), (2, 2, None), (6, 6, ""), (7, 7, None)]
    dead_letters = dict(oracle.rows(Path(driver.dead_letters), "_offset, error"))
    assert dead_letters.keys() | {offset for offset, *_ in rows} == set(values)
    assert dead_letters.keys() >= {3, 4, 5, 9, 10}
    assert "no message has the name 'Line'; its messages are acme.Order, acme.Refund" in dead_letters[3]
    for offset in (4, 10):
        assert "no Kafka header apicurio.protobuf.type has the name of a message" in dead_letters[offset]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
