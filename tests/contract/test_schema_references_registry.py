"""References in a real registry, Apicurio, by Confluent's API and by its own."""

import json
import uuid
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from headrace.writer.framing.wire_format import Ids
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
