"""A schema registry with Confluent's DEK registry, as its API is documented, in this process.

https://docs.confluent.io/platform/current/schema-registry/develop/api.html and
https://docs.confluent.io/platform/current/security/encrypt/csfle/api.html. It takes what a client registers: schemas
with their rule sets, KEKs, DEKs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.scripted import HttpRequest, Reply, serve_script

_KEKS = "/dek-registry/v1/keks"


def _none(code: int) -> Reply:
    return Reply(404, {"error_code": code, "message": "not found"})


@dataclass
class CsfleRegistry:
    """What is registered. `asked`: paths of requests, in their order."""

    schemas: dict[int, Any] = field(default_factory=dict)  # as registered, by id
    subjects: dict[str, list[int]] = field(default_factory=dict)  # ids of its versions
    keks: dict[str, Any] = field(default_factory=dict)
    deks: list[Any] = field(default_factory=list)
    url: str = ""
    asked: list[str] = field(default_factory=list)
    down: bool = False  # of the DEK registry

    def register(self, subject: str, schema: Mapping[str, Any] | str, **more: Any) -> int:
        """Register a schema with its `ruleSet` and `metadata`. Returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        entry = {"schema": text, **{name: part for name, part in more.items() if part}}
        schema_id = next((number for number, schema in self.schemas.items() if schema == entry), len(self.schemas) + 1)
        self.schemas[schema_id] = entry
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("schemas", "subjects", "keks", "deks")}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "CsfleRegistry":
        return cls(**{**state, "schemas": {int(n): schema for n, schema in state["schemas"].items()}})

    def answer(self, request: HttpRequest) -> Reply:
        url = urlsplit(request.path)
        self.asked.append(url.path)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        parts = [unquote(part) for part in url.path.split("/")[1:]]
        body = request.json() if request.body else {}
        if url.path.startswith(_KEKS):
            return (
                Reply(500, {"error_code": 50001, "message": "down"})
                if self.down
                else self._keys(parts[3:], query, body)
            )
        match parts:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return Reply(body=self.schemas[int(number)])
            case ["schemas", "ids", number, "subjects"]:
                return Reply(body=[subject_name for subject_name, ids in self.subjects.items() if int(number) in ids])
            case ["subjects"]:
                return Reply(
                    body=[
                        subject_name
                        for subject_name in self.subjects
                        if subject_name.startswith(query.get("subjectPrefix", ""))
                    ]
                )
            case ["subjects", subject, "versions"] if request.method == "POST":
                more = {name: body.get(name) for name in ("ruleSet", "metadata")}
                return Reply(body={"id": self.register(subject, body["schema"], **more)})
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return Reply(body=[*range(1, len(self.subjects[subject]) + 1)])
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                number = len(self.subjects[subject]) if version == "latest" else int(version)
                schema_id = self.subjects[subject][number - 1]
                version_facts = {"subject": subject, "version": number, "id": schema_id}
                return Reply(body={**version_facts, **self.schemas[schema_id]})
        return _none(40403)

    def _keys(self, parts: list[str], query: Mapping[str, str], body: Any) -> Reply:
        match parts:
            case [] if body:
                self.keks[body["name"]] = {"kmsProps": {}, "shared": False, **body}
                return Reply(body=self.keks[body["name"]])
            case [kek] if kek in self.keks:
                return Reply(body=self.keks[kek])
            case [kek, "deks", subject] if body:
                self.deks.append({"kekName": kek, "subject": subject, "version": 1, "ts": 0, **body})
                return Reply(body=self.deks[-1])
            case [kek, "deks", subject, "versions", *version]:
                algorithm = query.get("algorithm", "AES256_GCM").rpartition(".")[2]
                deks = [
                    dek
                    for dek in self.deks
                    if (dek["kekName"], dek["subject"], dek["algorithm"]) == (kek, subject, algorithm)
                ]
                if not version:
                    return Reply(body=[dek["version"] for dek in deks])
                assert re.fullmatch(r"-1|[1-9]\d*", version[0]), version
                dek_version = max((dek["version"] for dek in deks), default=0) if version == ["-1"] else int(version[0])
                return next((Reply(body=dek) for dek in deks if dek["version"] == dek_version), _none(40470))
        return _none(40470)


@contextmanager
def serving(registry: CsfleRegistry) -> Iterator[CsfleRegistry]:
    """Serve until the end of the block."""
    with serve_script(registry.answer) as server:
        registry.url = server.url
        yield registry
