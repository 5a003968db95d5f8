"""References in a real registry, Apicurio, by Confluent's API and by its own: of Avro and of JSON Schema."""

import json
import uuid
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from headrace.writer.avro import schema as avro
from headrace.writer.framing.wire_format import Ids
from headrace.writer.json.envelope import read_envelope
from headrace.writer.json.json_schema import record_text
from headrace.writer.schemas.registry import ConfluentRegistry, with_ids


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
