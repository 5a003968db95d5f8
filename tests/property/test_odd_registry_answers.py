"""Whatever a registry answers, there is a schema, there is none, or the batch waits: nothing else is raised.

Answers of Confluent's API, of Apicurio's and of AWS Glue's have one of their parts replaced.
"""

import json
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from headrace.writer.config.sections.glue_registry import GlueRegistry as GlueSettings
from headrace.writer.core.http import Answer
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.schemas.glue import GlueRegistry
from headrace.writer.schemas.record_source import RecordSource
from headrace.writer.schemas.registry import ApicurioRegistry, ConfluentRegistry, SchemaSource
from headrace.writer.schemas.registry_client import RegistryUnreachable, SchemaNotFound
from headrace.writer.schemas.subjects import Subjects
from tests.support.example_counts import share
from tests.support.sample_records import EVENT

TEXT = json.dumps(EVENT)
GUID = "11111111-2222-4333-8444-555555555555"
# Infinity is what Python's parser makes of 1e400.
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, float("inf"), float("nan"), 2**70, "", "x", "\ud800", "-1", [], [None], [1, "a"], [[]], {},
    {"id": None}, {"name": 1},
)  # fmt: skip
KINDS = ("AVRO", "JSON", "PROTOBUF")
DEEP = b"[" * 100_000


def replace_part(document: Any, rng: random.Random) -> Any:
    """Return a document with one of its parts replaced, removed or added."""
    if not isinstance(document, list | dict) or not document or rng.random() < 0.2:
        return rng.choice(JUNK)
    copy = json.loads(json.dumps(document))
    key = rng.choice(list(copy)) if isinstance(copy, dict) else rng.randrange(len(copy))
    match rng.randrange(4):
        case 0:
            del copy[key]
        case 1 if isinstance(copy, list):
            copy.append(rng.choice(JUNK))
        case _:
            copy[key] = replace_part(copy[key], rng)
    return copy


class Answers:
    """Answers as a sound registry does, but for about one of three answers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def json(self, document: Any) -> Any:
        return replace_part(document, self._rng) if self._rng.random() < 0.3 else document

    def http(self, document: Any, headers: dict[str, str] | None = None) -> Answer:
        body = json.dumps(self.json(document)).encode()
        if self._rng.random() < 0.05:
            body = self._rng.choice([DEEP, b"\xff", b"", b"<html>", b"null", b'{"a":'])
        return Answer(self._rng.choice([200] * 9 + [404]), body, headers or {})

    def confluent(self, path: str) -> Answer:
        kind = self._rng.choice(KINDS)
        named = {"schema": TEXT, "schemaType": kind, "references": [], "ruleSet": {"domainRules": [{"type": "CEL"}]}}
        if self._rng.random() < 0.3:
            named["references"] = [{"name": "n", "subject": "s", "version": 1}]
        if path.startswith(("subjects?", "subjects/")) and "/versions/" not in path:
            return self.http([1, 2] if path.endswith("versions") else ["clicks-com.shop.Click", ":.eu:clicks-value"])
        if path == "subjects":
            return self.http(["clicks-value"])
        return self.http({"subject": "clicks-value", "version": 1, "id": 1, **named})

    def apicurio(self, path: str) -> Answer:
        version = {"globalId": 1, "contentId": 1, "artifactType": self._rng.choice(KINDS), "state": "ENABLED"}
        is_first = "offset=0" in path or "limit=1" in path
        if path.startswith("search/artifacts"):
            return self.http({"artifacts": [{"groupId": "g", "artifactId": "clicks-a"}] if is_first else []})
        if path.endswith("/references"):
            reference = {"name": "n", "artifactId": "s", "version": "1", "groupId": None}
            return self.http([reference] if self._rng.random() < 0.3 else [])
        if path.startswith("ids/"):
            return self.http(EVENT, {"x-registry-artifacttype": self._rng.choice(KINDS)})
        if "/versions/" in path:
            return self.http(version)
        # A list that never ends is another fault.
        return self.http({"versions": [version]}) if is_first else Answer(200, b'{"versions": []}')


class GlueClient:
    """What AWS's client returns."""

    def __init__(self, answers: Answers, rng: random.Random) -> None:
        self._answers = answers
        self._rng = rng

    def _object(self, document: dict[str, Any]) -> dict[str, Any]:
        answer = self._answers.json(document)
        return answer if isinstance(answer, dict) else {}

    def get_schema_version(self, **_: Any) -> dict[str, Any]:
        return self._object({"SchemaDefinition": TEXT, "DataFormat": self._rng.choice(KINDS), "Status": "AVAILABLE"})

    def list_schema_versions(self, **_: Any) -> dict[str, Any]:
        return self._list({"SchemaVersionId": GUID, "VersionNumber": 1, "Status": "AVAILABLE"})

    def list_schemas(self, **_: Any) -> dict[str, Any]:
        return self._list({"SchemaName": "clicks-com.shop.Click"})

    def get_registry(self, **_: Any) -> dict[str, Any]:
        return {}

    def _list(self, entry: dict[str, Any]) -> dict[str, Any]:
        return {**self._object({"Schemas": [entry, entry]}), "NextToken": ""}


def open_sources() -> list[SchemaSource]:
    """Open a registry of each kind, by either way in which schemas get their names."""
    sources: list[SchemaSource] = []
    settings = GlueSettings.model_validate({"name": "r", "region": "us-east-1"})
    for subjects in (Subjects(), Subjects("topic_record_name")):
        sources.append(ConfluentRegistry("http://registry", subjects=subjects))
        sources.append(ApicurioRegistry("http://registry/apis", "global", subjects=subjects))
        sources.append(GlueRegistry(settings, subjects))
    return sources


def let_answer(source: SchemaSource, rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> int:
    """Let a registry answer at random. Returns an id that it has."""
    answers = Answers(rng)
    match source:
        case ConfluentRegistry():
            monkeypatch.setattr(source._client, "ask", answers.confluent)
        case ApicurioRegistry():
            monkeypatch.setattr(source._client, "ask", answers.apicurio)
        case _:
            source.__dict__["_client"] = GlueClient(answers, rng)
            return UUID(GUID).int
    return 1


def is_answered(ask: Callable[[], object]) -> bool:
    with suppress(RegistryUnreachable, SchemaNotFound):
        ask()
        return True
    return False


@pytest.mark.timeout(900)
def test_an_odd_answer_is_a_schema_or_none_or_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = 0
    asked = 0
    rules = ValueRules(formats=("avro", "json_schema", "protobuf"))
    sources = open_sources()
    for seed in range(max(80, share(100))):
        rng = random.Random(seed)
        for source in sources:
            schema_id = let_answer(source, rng, monkeypatch)
            records = RecordSource(source, rules)
            answered += is_answered(partial(records.topic_schemas, "clicks"))
            answered += is_answered(partial(records.schema, schema_id))
            asked += 2
    assert asked / 10 < answered < asked
