"""Wire formats on a real broker, registry and Spark: found, kept, read; and schemas by the ids that each carries."""

import json
import signal
from io import BytesIO
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from fastavro import parse_schema, schemaless_writer

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.framing.wire_format import CONFLUENT, Wire
from headrace.writer.schemas.registry import ConfluentRegistry, SchemaNotFound, with_ids
from tests.support import oracle

pytestmark = pytest.mark.slow

EVENT: dict[str, Any] = {
    "type": "record", "name": "Event", "namespace": "ns",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}  # fmt: skip
WIDER = {**EVENT, "fields": [*EVENT["fields"], {"name": "extra", "type": "int", "default": 0}]}
NOON_MS = 1_795_176_000_000
GLOBAL, SINGLE = Wire("header", "global", "apicurio.value.globalId"), Wire("single_object", "fingerprint")
CONTENT = Wire("header", "content", "apicurio.value.contentId")
EVERY = {
    "confluent": CONFLUENT, "apicurio": Wire("apicurio", "global"), "global": GLOBAL, "content": CONTENT,
    "single": SINGLE,
}  # fmt: skip


def register(registry_url: str, topic: str, schema: dict[str, Any]) -> int:
    client = SchemaRegistryClient({"url": registry_url})
    return int(client.register_schema(f"{topic}-value", Schema(json.dumps(schema), "AVRO")))


def versions(registry_url: str, topic: str) -> list[dict[str, Any]]:
    """What the registry itself says of the topic's schemas, oldest first."""
    core = registry_url.replace("/apis/ccompat/v7", "/apis/registry/v3")
    with urlopen(f"{core}/groups/default/artifacts/{topic}-value/versions?order=asc&orderby=globalId") as answer:
        return list(json.load(answer)["versions"])


def id_of(wire: Wire, registry_url: str, topic: str, schema: dict[str, Any], version: int = 0) -> int:
    if wire.ids == "fingerprint":
        return crc_fingerprint(json.dumps(schema))
    if wire.ids == "confluent":
        return register(registry_url, topic, schema)
    return int(versions(registry_url, topic)[version][f"{wire.ids}Id"])


def produce(bootstrap: str, topic: str, wire: Wire, schema_id: int, schema: dict[str, Any], numbers: range) -> None:
    producer, parsed = Producer({"bootstrap.servers": bootstrap}), parse_schema(schema)
    beside = wire.kafka_header_value(schema_id)
    headers = None if beside is None else [("trace", b"1"), (str(wire.header), beside)]
    for number in numbers:
        out = BytesIO()
        row = {"id": number, "event_time": NOON_MS + number, "note": None if number % 3 else f"n{number}", "extra": 7}
        schemaless_writer(out, parsed, {f["name"]: row[f["name"]] for f in schema["fields"]})
        producer.produce(topic, wire.value_header(schema_id) + out.getvalue(), partition=0, headers=headers)
    assert producer.flush(10) == 0


def test_a_registry_s_schemas_are_had_by_each_kind_of_id(registry_url, topic):
    other, name = topic(), topic()
    register(registry_url, other, {"type": "record", "name": "Shift", "fields": [{"name": "x", "type": "int"}]})
    for schema in (EVENT, WIDER):  # other ids than the next topic's
        register(registry_url, name, schema)
    registered = versions(registry_url, name)
    registry = ConfluentRegistry(registry_url)
    for ids in ("global", "content"):
        schemas = with_ids(registry, ids)
        schema_texts = schemas.topic_schemas(name)
        assert list(schema_texts) == [version[f"{ids}Id"] for version in registered]
        assert [json.loads(text) for text in schema_texts.values()] == [EVENT, WIDER]
        assert json.loads(schemas.schema(registered[1][f"{ids}Id"])) == WIDER
        assert schemas.topic_schemas("no-such-topic") == {}
        with pytest.raises(SchemaNotFound, match=f"{ids} id 987654 is not in the registry"):
            schemas.schema(987_654)
    prints = with_ids(registry, "fingerprint").topic_schemas(name)
    assert [json.loads(text) for text in prints.values()] == [EVENT, WIDER]
    assert list(prints) == [crc_fingerprint(json.dumps(schema)) for schema in (EVENT, WIDER)]


def test_references_are_put_in_their_place_whatever_the_ids(registry_url, topic):
    name = topic()
    point = {"type": "record", "name": "Point", "namespace": "ns", "fields": [{"name": "x", "type": "int"}]}
    client = SchemaRegistryClient({"url": registry_url})
    client.register_schema(f"{name}-point", Schema(json.dumps(point), "AVRO"))
    fields = [{"name": "a", "type": "ns.Point"}, {"name": "b", "type": ["null", "ns.Point"]}]
    path = {"type": "record", "name": "Path", "namespace": "ns", "fields": fields}
    references = [SchemaReference("ns.Point", f"{name}-point", 1)]
    schema_id = client.register_schema(f"{name}-value", Schema(json.dumps(path), "AVRO", references))
    registry, (registered,) = ConfluentRegistry(registry_url), versions(registry_url, name)
    wanted = crc_fingerprint(registry.schema(schema_id))
    for ids in ("global", "content"):
        assert crc_fingerprint(with_ids(registry, ids).schema(registered[f"{ids}Id"])) == wanted


def test_each_format_is_found_kept_and_read_to_the_last_record(site, topic, bootstrap, registry_url):
    topics, ids = {kind: topic(prefix=kind) for kind in [*EVERY, "bare", "late"]}, {}
    for kind, name in topics.items():
        if kind != "late":
            first = register(registry_url, name, {**EVENT, "name": kind.title()})
        settings = {"wire": {"format": "bare", "schema_id": first}} if kind == "bare" else {}
        site.pipeline(kind, [name], commit={"max_delay": "2 s"}, **settings)
    for kind, wire in EVERY.items():
        schema = {**EVENT, "name": kind.title()}
        ids[kind] = id_of(wire, registry_url, topics[kind], schema)
        produce(bootstrap, topics[kind], wire, ids[kind], schema, range(300))
    produce(bootstrap, topics["bare"], Wire("bare", schema_id=first), first, EVENT, range(300))
    output = site.once()
    lakes = site.root / "lake"
    for kind, wire in EVERY.items():
        assert oracle.rows(lakes / kind, "count(*), sum(id), count(note)") == [(300, 44_850, 100)], kind
        assert oracle.replay(lakes / kind).commits[-1]["wire"] == wire.facts()
        assert f"wire_format_found pipeline={kind} wire={wire.format} " in output
    assert oracle.rows(lakes / "bare", "count(*), sum(id), count(note)") == [(300, 44_850, 100)]

    # A second start reads by what the first one found: a record of another format is a dead letter that says so.
    wire = EVERY["single"]
    stray = id_of(CONFLUENT, registry_url, topics["single"], {**WIDER, "name": "Single"})
    produce(bootstrap, topics["single"], CONFLUENT, stray, {**WIDER, "name": "Single"}, range(300, 340))
    grown = crc_fingerprint(json.dumps({**WIDER, "name": "Single"}))
    produce(bootstrap, topics["single"], wire, grown, {**WIDER, "name": "Single"}, range(340, 350))
    writer = site.start()
    writer.until(lambda: "pipeline_started pipeline=late" in writer.output())
    late = {**EVENT, "name": "Late"}
    register(registry_url, topics["late"], late)
    content = id_of(CONTENT, registry_url, topics["late"], late)
    produce(bootstrap, topics["late"], CONTENT, content, late, range(50))
    writer.until(lambda: bool(oracle.rows(lakes / "late", "count(*)")))
    writer.process.send_signal(signal.SIGTERM)
    assert writer.wait(120) == 0
    assert oracle.rows(lakes / "late", "count(*), sum(id)") == [(50, 1_225)]
    assert oracle.replay(lakes / "late").commits[-1]["wire"] == CONTENT.facts()
    assert oracle.rows(lakes / "single", "count(*), count(extra)") == [(310, 10)]
    dead_letters = oracle.rows(lakes / "single_dead_letters", "error, count(*)", "GROUP BY ALL")
    assert [count for _, count in dead_letters] == [40]
    assert "it has a Confluent header" in str(dead_letters[0][0])
    for kind, name in topics.items():
        oracle.check(lakes / kind, kind, site.ends(name))
