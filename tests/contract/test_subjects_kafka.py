"""Schemas under every naming of subjects, in a real registry: a start, `schema plan` and `validate` know them."""

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.config.loader import load
from headrace.writer.config.sections.registry import Strategy
from headrace.writer.framing.wire_format import Ids
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.schemas.registry import ConfluentRegistry, of_keys, source, with_ids
from headrace.writer.schemas.subjects import Subjects
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
TIME = {"type": "long", "logicalType": "timestamp-millis"}


def event(name: str, *more: str) -> dict[str, Any]:
    fields = [{"name": "event_time", "type": TIME}, *({"name": one, "type": "int", "default": 0} for one in more)]
    return {"type": "record", "name": name, "namespace": "com.shop", "fields": fields}


def register(url: str, subject: str, schema: Any) -> int:
    with SchemaRegistryClient({"url": url}) as client:
        return int(client.register_schema(subject, Schema(json.dumps(schema), "AVRO")))


def put(url: str, group: str, artifact: str, schema: Any) -> None:
    """Register a schema as Apicurio's own serializers do."""
    core = url.replace("/apis/ccompat/v7", "/apis/registry/v3")
    content = {"content": json.dumps(schema), "contentType": "application/json"}
    body = {"artifactId": artifact, "artifactType": "AVRO", "firstVersion": {"content": content}}
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(f"{core}/groups/{group}/artifacts", json.dumps(body).encode(), headers)) as answer:
        assert answer.status == 200


def names(found: Any) -> list[list[str]]:
    """Fields of each schema, without the time, in the order in which they came."""
    return [[field["name"] for field in json.loads(text)["fields"][1:]] for text in found.values()]


@pytest.mark.parametrize("ids", ["confluent", "global", "content", "fingerprint"])
def test_the_schemas_of_a_topic_are_found_under_each_strategy(registry_url: str, topic: Any, ids: Ids) -> None:
    clicks = topic(1, prefix="clicks")
    click, install = f"Click_{clicks.replace('-', '_')}", f"Install_{clicks.replace('-', '_')}"
    other = f"{clicks}-eu"  # another topic, whose name begins with this one's
    for subject, schema in (
        (f"{clicks}-value", event("Other", "by_topic")), (f"com.shop.{click}", event(click, "by_record")),
        (f"{clicks}-com.shop.{click}", event(click, "first")),
        (f"{clicks}-com.shop.{click}", event(click, "first", "b")),
        (f"{clicks}-com.shop.{install}", event(install, "second")), (f"{other}-com.shop.{click}", event(click, "eu")),
        (f"{clicks}-key", event("Key", "id")),
    ):  # fmt: skip
        register(registry_url, subject, schema)

    def known(strategy: Strategy, *records: str) -> list[list[str]]:
        given = {clicks: [f"com.shop.{record}" for record in records]} if records else {}
        registry = ConfluentRegistry(registry_url, subjects=Subjects(strategy, given))
        return names(with_ids(registry, ids).topic_schemas(clicks))

    assert known("topic_name") == [["by_topic"]]
    assert known("record_name", click) == [["by_record"]]
    assert known("record_name", "None") == []
    assert known("topic_record_name", install) == [["second"]]
    assert known("topic_record_name") == [["first"], ["first", "b"], ["second"]]
    keys = of_keys(ConfluentRegistry(registry_url, subjects=Subjects("topic_record_name")))
    assert names(with_ids(keys, ids).topic_schemas(clicks)) == [["id"]]


@pytest.mark.parametrize("ids", ["global", "content"])
def test_artifacts_that_apicurio_s_serializers_name_after_records_are_found(
    registry_url: str, topic: Any, ids: Ids
) -> None:
    clicks = topic(1, prefix="clicks")
    click = f"Click_{clicks.replace('-', '_')}"
    put(registry_url, "com.shop", click, event(click, "by_record"))
    put(registry_url, "com.shop", f"{clicks}-{click}", event(click, "both"))
    put(registry_url, "com.other", f"{clicks}-{click}", event(click, "of_another_namespace"))
    for strategy, records, expected in (
        ("record_name", {clicks: [f"com.shop.{click}"]}, "by_record"), ("topic_record_name", {}, "both"),
        ("topic_record_name", {clicks: [f"com.shop.{click}"]}, "both"),
    ):  # fmt: skip
        registry = ConfluentRegistry(registry_url, subjects=Subjects(strategy, records))  # type: ignore[arg-type]
        assert names(with_ids(registry, ids).topic_schemas(clicks)) == [[expected]]


def test_a_start_and_the_commands_know_them(site: Site, topic: Any) -> None:
    clicks = topic(1, prefix="clicks")
    site.pipeline("clicks", [clicks])
    click = event(f"Click_{clicks.replace('-', '_')}", "price")
    register(site.registry_url, f"{clicks}-com.shop.{click['name']}", click)
    (wider := Path(site.root / "wider.avsc")).write_text(json.dumps(event(click["name"], "price", "tax")))

    def said(*command: str) -> str:
        found = CliRunner().invoke(app, [*command, str(site.config)], terminal_width=300)
        return " ".join((found.output + str(found.exception or "")).split())

    assert f"none is registered as {clicks}-value" in said("validate", "--sample", "0")
    site.overrides["registry"] = {"url": site.registry_url, "subjects": "topic_record_name"}
    config = load(site.config)
    local_pipeline = open_local_pipeline("clicks", config, source(config.registry), with_table=False)
    assert local_pipeline.plan.columns.names == ["event_time", "price"]
    assert "price int32" in said("validate", "--sample", "0")
    assert "adds tax int32" in (plan := said("schema", "plan", "--file", str(wider)))
    assert "2 columns and 1 registered schema" in plan
    record = {"strategy": "record_name", "records": {clicks: ["com.shop.Absent"]}}
    site.overrides["registry"] = {"url": site.registry_url, "subjects": record}
    assert "none is registered as com.shop.Absent" in said("validate", "--sample", "0")
    begin = ["init", "--bootstrap-servers", site.bootstrap, "--registry-url", site.registry_url, "--topic", clicks]
    path = site.root / "made.yaml"
    result = CliRunner().invoke(app, [*begin, "--subjects", "topic_record_name", "--output", str(path)])
    assert result.exit_code == 0, result.output
    assert load(path).registry.subjects.strategy == "topic_record_name"
    assert "field: event_time" in path.read_text(), "by the schemas alone, as the topic is empty"
    result = CliRunner().invoke(app, [*begin, "--subjects", "record_name", "--output", str(site.root / "no.yaml")])
    assert "strategy record_name needs 'records'" in str(result.exception)
