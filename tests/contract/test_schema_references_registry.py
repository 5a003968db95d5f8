"""References in a real registry, Apicurio, by Confluent's API and by its own: of Avro, JSON Schema and Protobuf."""

import json
import uuid
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import message_factory

from headrace.writer.avro import schema as avro
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.framing.wire_format import Ids
from headrace.writer.json.envelope import read_envelope
from headrace.writer.json.json_schema import record_text
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.protobuf.schema_files import compile_files, open_pool
from headrace.writer.schemas.record_source import message_record
from headrace.writer.schemas.registry import ConfluentRegistry, with_ids
from tests.support.local_driver import log
from tests.support.sample_records import NOW, config


def record(name: str, **fields: Any) -> Schema:
    members = [{"name": field, "type": kind} for field, kind in fields.items()]
    return Schema(json.dumps({"type": "record", "name": name, "namespace": "com.x", "fields": members}), "AVRO")


@pytest.mark.parametrize("ids", ["confluent", "global", "content"])
def test_a_shared_and_softly_deleted_reference_is_resolved(registry_url: str, ids: Ids) -> None:
    name = f"references-{uuid.uuid4().hex[:8]}"
    with SchemaRegistryClient({"url": registry_url}) as client:

        def register(subject: str, schema: Schema, **references: str) -> None:
            referred = [SchemaReference(f"{alias}.avsc", f"{name}-{of}", 1) for alias, of in references.items()]
            client.register_schema(f"{name}-{subject}", Schema(schema.schema_str, "AVRO", referred))

        register("address", record("Address", street="string"))
        # Apicurio's Confluent API knows no subject any more whose versions are all deleted.
        newer = json.loads(str(record("Address", street="string").schema_str))
        newer["fields"].append({"name": "city", "type": "string", "default": ""})
        register("address", Schema(json.dumps(newer), "AVRO"))
        register("buyer", record("Buyer", at="Address"), a="address")
        register("seller", record("Seller", at="com.x.Address"), b="address")
        register("value", record("Order", buyer="Buyer", seller="Seller"), c="buyer", d="seller")
    core = registry_url.replace("/apis/ccompat/v7", "/apis/registry/v3")
    url = f"{core}/groups/default/artifacts/{name}-address/versions/1/state"
    disabled = Request(url, b'{"state": "DISABLED"}', {"Content-Type": "application/json"}, method="PUT")
    with urlopen(disabled) as answer:
        assert answer.status == 204
    schemas = with_ids(ConfluentRegistry(registry_url), ids)
    ((schema_id, text),) = schemas.topic_schemas(name).items()
    assert schemas.schema(schema_id) == text
    buyer, seller = (field["type"] for field in json.loads(text)["fields"])
    assert buyer["fields"][0]["type"]["fields"] == [{"name": "street", "type": "string"}]
    assert seller["fields"][0]["type"] == "com.x.Address"


@pytest.mark.parametrize("ids", ["confluent", "global", "content"])
def test_a_json_schema_comes_with_all_that_it_refers_to(registry_url: str, ids: Ids) -> None:
    """As Confluent's serializer registers it: the names of references are those in `$ref`."""
    name = f"json-{uuid.uuid4().hex[:8]}"
    draft = "http://json-schema.org/draft-07/schema#"
    with SchemaRegistryClient({"url": registry_url}) as client:

        def register(subject: str, schema: dict[str, Any], **references: str) -> None:
            referred = [SchemaReference(f"{alias}.json", f"{name}-{of}", 1) for alias, of in references.items()]
            text = json.dumps({"$schema": draft, "type": "object", **schema})
            client.register_schema(f"{name}-{subject}", Schema(text, "JSON", referred))

        register("city", {"properties": {"name": {"type": "string", "confluent:tags": ["PLACE"]}}})
        address = {"properties": {"city": {"$ref": "city.json"}, "since": {"type": "string", "format": "date"}}}
        register("address", {"$id": "address.json", "title": name, **address}, city="city")
        order = {"home": {"$ref": "address.json"}, "lines": {"type": "array", "items": {"$ref": "city.json"}}}
        register("value", {"title": "com.x.Order", "properties": order}, address="address", city="city")
    schemas = with_ids(ConfluentRegistry(registry_url), ids)
    ((schema_id, text),) = schemas.topic_schemas(name).items()
    assert schemas.schema(schema_id) == text
    parts = read_envelope(text)
    assert parts is not None
    assert set(parts[1]) == {"address.json", "city.json"}
    record = avro.parse(record_text(*parts, undeclared="drop", misfit="dead_letter"))
    city = pa.struct([("name", pa.string())])
    assert record.root["name"] == "com.x.Order"
    assert avro.table_fields(record) == {
        "home": pa.struct([("city", city), ("since", pa.date32())]),
        "lines": pa.list_(pa.field("element", city)),
    }


@pytest.mark.parametrize("ids", ["confluent", "global", "content"])
def test_a_protobuf_schema_comes_with_all_that_it_imports(registry_url: str, ids: Ids) -> None:
    """As Confluent's serializer registers it: the names of references are those of the imports."""
    name = f"proto-{uuid.uuid4().hex[:8]}"
    with SchemaRegistryClient({"url": registry_url}) as client:

        def register(subject: str, body: str, **references: str) -> None:
            referred = [SchemaReference(f"{of}.proto", f"{name}-{of}", 1) for of in references.values()]
            imports = "".join(f'import "{of}.proto"; ' for of in references.values())
            text = f'syntax = "proto3"; package com.x; {imports}{body}'
            client.register_schema(f"{name}-{subject}", Schema(text, "PROTOBUF", referred))

        register("city", "message City { string name = 1; }")
        register("address", 'import "google/protobuf/timestamp.proto"; message Address { City city = 1; '
                 "google.protobuf.Timestamp since = 2; }", a="city")  # fmt: skip
        register("value", "message Order { Address home = 1; repeated City lines = 2; }", a="address", b="city")
    schemas = with_ids(ConfluentRegistry(registry_url), ids)
    ((schema_id, text),) = schemas.topic_schemas(name).items()
    assert schemas.schema(schema_id) == text
    schema = read_schema(text)
    assert schema is not None
    assert set(schema.references) == {"address.proto", "city.proto"}
    assert schema.messages == ["com.x.Order"]
    record = avro.parse(message_record(text, ValueRules(("protobuf",)), "com.x.Order"))
    city = pa.struct([("name", pa.string())])
    assert avro.table_fields(record) == {
        "home": pa.struct([("city", city), ("since", pa.timestamp("us", "UTC"))]),
        "lines": pa.list_(pa.field("element", city)),
    }


def test_values_of_confluents_serializer_are_read(registry_url: str, tmp_path: Path) -> None:
    """It registers schemas as serialized descriptors, which Apicurio hands over as they are."""
    name = f"client-{uuid.uuid4().hex[:8]}"
    text = (
        'syntax = "proto3"; package com.x; import "google/protobuf/timestamp.proto"; message Other { int64 n = 1; } '
        "message Order { int64 id = 1; google.protobuf.Timestamp at = 2; message Line { int64 id = 1; "
        "google.protobuf.Timestamp at = 2; string sku = 3; } }"
    )
    pool = open_pool(compile_files({"order.proto": text}, "order.proto"))
    values = []
    with SchemaRegistryClient({"url": registry_url}) as client:
        for number, (message, members) in enumerate({"Order": {}, "Order.Line": {"sku": "s"}}.items()):
            message_class = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"com.x.{message}"))
            serialize = ProtobufSerializer(message_class, client, {"use.deprecated.format": False})
            context = SerializationContext(name, MessageField.VALUE)
            values.append(serialize(message_class(id=number, at=NOW, **members), context))
    settings = config(tmp_path, formats="protobuf", topics=[name], event_time={"field": "at", "max_age": "36500 d"})
    pipeline = open_local_pipeline("clicks", settings, ConfluentRegistry(registry_url))
    sample = pipeline.decode(log(dict(enumerate(values))))
    assert not sample.dead_letters, sample.dead_letters[0].reason
    rows = sorted((row for group in sample.groups for row in group.rows.to_pylist()), key=lambda row: row["id"])
    assert [(row["id"], row["sku"]) for row in rows] == [(0, None), (1, "s")]
