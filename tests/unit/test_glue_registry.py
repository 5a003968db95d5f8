"""Schemas of the AWS Glue Schema Registry, by a server that answers as AWS does: ids, names, statuses and errors."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import ConfigError
from headrace.writer.json.envelope import read_envelope
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.schemas import glue
from headrace.writer.schemas.registry import (
    ConfluentRegistry,
    GlueRegistry,
    RegistryUnreachable,
    SchemaFiles,
    SchemaNotFound,
    TwoRegistries,
    confluent_registry,
    of_keys,
    source,
    with_ids,
)
from headrace.writer.schemas.registry_client import UnavailableSchema
from headrace.writer.schemas.schema_id_check import registry_name
from tests.servers.glue_api import GlueApi
from tests.servers.objects import CREDENTIALS
from tests.servers.scripted import Reply, serve_script
from tests.support.sample_records import EVENT

WIDER = {**EVENT, "fields": [*EVENT["fields"], {"name": "extra", "type": "int", "default": 0}]}
ORDER = {"type": "object", "title": "Order", "properties": {"id": {"type": "integer"}}}
PROTOBUF = 'syntax = "proto3"; message Event { int64 id = 1; }'


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def api() -> GlueApi:
    return GlueApi()


@pytest.fixture
def endpoint(api: GlueApi, credentials: None) -> Iterator[str]:  # noqa: ARG001 - pytest's way
    with serve_script(api) as server:
        yield server.url


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glue, "PATIENCE_S", 1)


def opened(endpoint: str, **settings: Any) -> GlueRegistry:
    registry = source(Registry.model_validate({"glue": {"endpoint": endpoint, **settings}}))
    assert isinstance(registry, GlueRegistry)
    return registry


def test_a_schema_is_found_by_the_id_of_its_version(api: GlueApi, endpoint: str) -> None:
    first = api.add("clicks", EVENT)
    order = api.add("orders", ORDER, "JSON")
    message = api.add("events", PROTOBUF, "PROTOBUF")
    registry = opened(endpoint)
    assert json.loads(registry.schema(first.int)) == EVENT
    envelope = read_envelope(registry.schema(order.int))
    assert envelope is not None
    assert json.loads(envelope[0]) == ORDER
    protobuf = read_schema(registry.schema(message.int))
    assert protobuf is not None
    assert protobuf.text == PROTOBUF


def test_an_id_that_is_not_there_is_an_answer(endpoint: str, api: GlueApi) -> None:
    registry = opened(endpoint)
    missing = uuid4()
    with pytest.raises(SchemaNotFound, match=f"schema id {missing} is not in AWS Glue at 127.0.0.1"):
        registry.schema(missing.int)
    asked = len(api.asked)
    # AWS is not asked for what is no id of its own.
    with pytest.raises(SchemaNotFound, match="schema id 7 is not in"):
        registry.schema(7)
    assert len(api.asked) == asked


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("PENDING", "cannot be read by: AWS Glue still checks whether it is compatible"),
        ("FAILURE", "cannot be read by: AWS Glue refused it as not compatible"),
        ("NEW_WORD", "cannot be read by: its status is NEW_WORD"),
    ],
)
def test_a_version_that_no_producer_may_use_yet_is_not_read_by(
    api: GlueApi, endpoint: str, status: str, reason: str
) -> None:
    version_id = api.add("clicks", EVENT, status=status)
    registry = opened(endpoint)
    with pytest.raises(UnavailableSchema, match=f"schema id {version_id} {reason}"):
        registry.schema(version_id.int)
    assert registry.topic_schemas("clicks") == {}
    api.version(version_id).status = "AVAILABLE"
    assert json.loads(registry.schema(version_id.int)) == EVENT
    assert list(registry.topic_schemas("clicks")) == [version_id.int]


def test_a_version_on_its_way_out_reads_the_records_that_it_wrote_and_makes_no_columns(
    api: GlueApi, endpoint: str
) -> None:
    version_id = api.add("clicks", EVENT, status="DELETING")
    registry = opened(endpoint)
    assert json.loads(registry.schema(version_id.int)) == EVENT
    assert registry.topic_schemas("clicks") == {}


def test_a_topic_has_all_versions_of_its_schema_oldest_first_page_by_page(api: GlueApi, endpoint: str) -> None:
    ids = [api.add("clicks", {**EVENT, "doc": str(number)}) for number in range(7)]
    api.add("clicks-2", WIDER)
    registry = opened(endpoint)
    texts = registry.topic_schemas("clicks")
    assert [UUID(int=schema_id) for schema_id in texts] == ids
    assert [json.loads(text)["doc"] for text in texts.values()] == [str(number) for number in range(7)]
    assert api.asked.count("ListSchemaVersions") == 4
    assert registry.topic_schemas("installs") == {}


def test_versions_are_read_side_by_side(api: GlueApi, endpoint: str) -> None:
    for number in range(20):
        api.add("clicks", {**EVENT, "doc": str(number)})
    api.delay_s = 0.05
    api.page = 100
    assert len(opened(endpoint).topic_schemas("clicks")) == 20
    assert 2 <= api.most_at_once <= 8


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["clicks"]),
        ({"schemas": {"clicks": ["Click", "Install"]}}, ["Click", "Install"]),
        ({"schemas": {"*": ["{topic}-value"]}}, ["clicks-value"]),
        ({"schemas": {"other": ["Click"]}}, ["clicks"]),
        ({"schemas": {"*": ["{topic}-*"]}}, ["clicks-com.shop.Event", "clicks-key", "clicks-value"]),
    ],
)
def test_names_of_schemas_follow_the_configuration(
    api: GlueApi, endpoint: str, settings: dict[str, Any], names: list[str]
) -> None:
    all_names = ["clicks", "clicks-key", "clicks-value", "Click", "Install", "clicks-com.shop.Event", "clicksclicks-x"]
    ids = {name: api.add(name, EVENT) for name in all_names}
    registry = opened(endpoint, **settings)
    assert [UUID(int=schema_id) for schema_id in registry.topic_schemas("clicks")] == [ids[name] for name in names]


def test_schemas_named_after_records_are_those_of_the_subjects(api: GlueApi, endpoint: str) -> None:
    record = {**EVENT, "name": "Click", "namespace": "com.shop"}
    by_record = api.add("com.shop.Click", record)
    by_topic = api.add("clicks-com.shop.Click", record)
    api.add("clicks-com.shop.Other", record)

    def ids(strategy: Any) -> list[UUID]:
        config = Registry.model_validate({"glue": {"endpoint": endpoint}, "subjects": strategy})
        return [UUID(int=schema_id) for schema_id in source(config).topic_schemas("clicks")]

    assert ids({"strategy": "record_name", "records": {"clicks": ["com.shop.Click"]}}) == [by_record]
    assert ids("topic_record_name") == [by_topic]


def test_keys_have_schemas_of_their_own(api: GlueApi, endpoint: str) -> None:
    api.add("clicks", EVENT)
    key = api.add("clicks-key", '"string"')
    other_key = api.add("ClickKey", '"long"')
    assert list(of_keys(opened(endpoint)).topic_schemas("clicks")) == [key.int]
    named = opened(endpoint, key_schemas={"clicks": ["ClickKey"]})
    assert list(of_keys(named).topic_schemas("clicks")) == [other_key.int]


def test_a_registry_that_is_not_there_is_told_from_a_topic_without_schemas(endpoint: str) -> None:
    with pytest.raises(RegistryUnreachable, match=r"there is no registry events in AWS Glue at .*registry\.glue\.name"):
        opened(endpoint, name="events").topic_schemas("clicks")


def test_a_throttled_request_is_asked_again(api: GlueApi, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glue, "PATIENCE_S", 30)
    version_id = api.add("clicks", EVENT)
    api.throttled = 3
    assert json.loads(opened(endpoint).schema(version_id.int)) == EVENT


@pytest.mark.parametrize(
    ("code", "status", "sentence"),
    [
        ("ThrottlingException", 400, r"refuses requests: it answers ThrottlingException .*Raise the quota"),
        ("InternalServiceException", 500, "refuses requests: it answers InternalServiceException"),
        ("AccessDeniedException", 400, r"refuses the credentials.*glue:GetSchemaVersion.*glue:GetRegistry"),
        ("ExpiredTokenException", 400, "refuses the credentials: it answers ExpiredTokenException"),
        ("InvalidInputException", 400, r"answers InvalidInputException \(no such luck\)\. Check registry\.glue"),
    ],
)
def test_an_answer_that_is_no_schema_is_a_sentence_and_the_next_one_counts(
    api: GlueApi, endpoint: str, code: str, status: int, sentence: str
) -> None:
    version_id = api.add("clicks", EVENT)
    registry = opened(endpoint)
    api.trouble = (code, status)
    for ask in (lambda: registry.schema(version_id.int), lambda: registry.topic_schemas("clicks")):
        with pytest.raises(RegistryUnreachable, match=sentence):
            ask()
    api.trouble = None
    assert json.loads(registry.schema(version_id.int)) == EVENT


def test_a_service_that_does_not_answer_is_named(credentials: None) -> None:  # noqa: ARG001 - pytest's way
    sentence = r"AWS Glue at 127\.0\.0\.1:9 does not answer \(.*registry\.glue\.region and registry\.glue\.endpoint"
    with pytest.raises(RegistryUnreachable, match=sentence):
        opened("http://127.0.0.1:9").schema(uuid4().int)


def test_missing_and_wrong_credentials_are_sentences(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    with pytest.raises(RegistryUnreachable, match="refuses the credentials: it answers UnrecognizedClientException"):
        opened(endpoint).schema(uuid4().int)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(RegistryUnreachable, match=r"is not asked without credentials.*standard chain of AWS"):
        opened(endpoint).schema(uuid4().int)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(RegistryUnreachable, match="is not asked without credentials"):
        opened(endpoint).schema(uuid4().int)


def test_the_kind_of_an_id_says_which_registry_has_it(api: GlueApi, endpoint: str) -> None:
    version_id = api.add("clicks", EVENT)
    both = source(Registry.model_validate({"url": "http://127.0.0.1:9", "glue": {"endpoint": endpoint}}))
    assert isinstance(both, TwoRegistries)
    assert json.loads(with_ids(both, "glue").schema(version_id.int)) == EVENT
    assert with_ids(both, "confluent") is both.confluent
    assert confluent_registry(both) is both.confluent
    assert list(of_keys(both).with_ids("glue").topic_schemas("clicks")) == []  # type: ignore[attr-defined]


def test_ids_of_a_registry_that_is_not_named_are_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match=r"ids of the AWS Glue Schema Registry\. Name it in registry\.glue"):
        with_ids(ConfluentRegistry("http://127.0.0.1:9"), "glue")
    with pytest.raises(ConfigError, match=r"global ids of an Apicurio registry.*Give registry\.url"):
        with_ids(opened(endpoint), "global")


def test_files_are_found_by_guids(tmp_path: Path) -> None:
    path = tmp_path / "event.avsc"
    path.write_text(json.dumps(EVENT))
    version_id = uuid4()
    files = source(Registry.model_validate({"files": {str(version_id): path, 7: path}}))
    assert isinstance(files, SchemaFiles)
    assert json.loads(with_ids(files, "glue").schema(version_id.int)) == EVENT
    assert json.loads(files.schema(7)) == EVENT
    with pytest.raises(SchemaNotFound, match=r"schema id [0-9a-f-]{36} is not in registry\.files"):
        files.schema(uuid4().int)


def test_meanings_of_ids_are_kept_by_region(credentials: None) -> None:  # noqa: ARG001 - pytest's way
    both = Registry.model_validate({"url": "http://registry:8081", "glue": {"region": "eu-central-1"}})
    assert registry_name(both, "glue") == "glue.eu-central-1"
    assert registry_name(both, "confluent") == "registry:8081"
    assert registry_name(Registry.model_validate({"glue": "events"}), "confluent") == "glue.us-east-1"


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"glue": {"name": "a b"}}, "String should match pattern"),
        ({"glue": {"endpoint": "glue.local"}}, "String should match pattern"),
        ({"glue": {"schemas": {"clicks": []}}}, "topic 'clicks' has no name of a schema"),
        ({"glue": {"schemas": {"clicks": ["{table}"]}}}, "is no name of a schema in AWS Glue"),
        ({"glue": {}, "files": {7: "a.avsc"}}, "give either 'glue' or 'files'"),
        ({"glue": {}, "key_files": {7: "a.avsc"}}, "'key_files' goes with 'files'"),
        ({"files": {"not-a-guid": "a.avsc"}}, "Input should be a valid integer"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Registry.model_validate(section)


def test_threads_share_a_registry(api: GlueApi, endpoint: str) -> None:
    version_id = api.add("clicks", EVENT)
    registry = opened(endpoint)
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(registry.schema(version_id.int))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 8


def test_a_list_that_names_the_same_next_page_again_is_refused(credentials: None) -> None:  # noqa: ARG001 - pytest's way
    with serve_script(lambda _: Reply(body={"Schemas": [], "NextToken": "2"})) as server:
        registry = opened(server.url)
        with pytest.raises(RegistryUnreachable, match=r"a list of AWS Glue at .* has no end"):
            registry.topic_schemas("clicks")
    assert len(server.asked) == 2
