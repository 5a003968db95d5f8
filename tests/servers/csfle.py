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

from tests.servers.scripted import Asked, Reply, serve_script

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

    def register(self, subject: str, schema: Mapping[str, Any] | str, **beside: Any) -> int:
        """Register a schema with its `ruleSet` and `metadata`. Returns its id."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        whole = {"schema": text, **{name: one for name, one in beside.items() if one}}
        schema_id = next((n for n, one in self.schemas.items() if one == whole), len(self.schemas) + 1)
        self.schemas[schema_id] = whole
        versions = self.subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("schemas", "subjects", "keks", "deks")}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "CsfleRegistry":
        return cls(**{**state, "schemas": {int(n): one for n, one in state["schemas"].items()}})

    def answer(self, asked: Asked) -> Reply:
        at = urlsplit(asked.path)
        self.asked.append(at.path)
        query = {name: values[-1] for name, values in parse_qs(at.query).items()}
        parts = [unquote(part) for part in at.path.split("/")[1:]]
        body = asked.json() if asked.body else {}
        if at.path.startswith(_KEKS):
            return (
                Reply(500, {"error_code": 50001, "message": "down"})
                if self.down
                else self._keys(parts[3:], query, body)
            )
        match parts:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return Reply(body=self.schemas[int(number)])
            case ["schemas", "ids", number, "subjects"]:
                return Reply(body=[one for one, ids in self.subjects.items() if int(number) in ids])
            case ["subjects"]:
                return Reply(body=[one for one in self.subjects if one.startswith(query.get("subjectPrefix", ""))])
            case ["subjects", subject, "versions"] if asked.method == "POST":
                beside = {name: body.get(name) for name in ("ruleSet", "metadata")}
                return Reply(body={"id": self.register(subject, body["schema"], **beside)})
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return Reply(body=[*range(1, len(self.subjects[subject]) + 1)])
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                number = len(self.subjects[subject]) if version == "latest" else int(version)
                schema_id = self.subjects[subject][number - 1]
                about = {"subject": subject, "version": number, "id": schema_id}
                return Reply(body={**about, **self.schemas[schema_id]})
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
                mine = [
                    one
                    for one in self.deks
                    if (one["kekName"], one["subject"], one["algorithm"]) == (kek, subject, algorithm)
                ]
                if not version:
                    return Reply(body=[one["version"] for one in mine])
                assert re.fullmatch(r"-1|[1-9]\d*", version[0]), version
                wanted = max((one["version"] for one in mine), default=0) if version == ["-1"] else int(version[0])
                return next((Reply(body=one) for one in mine if one["version"] == wanted), _none(40470))
        return _none(40470)


@contextmanager
def serving(registry: CsfleRegistry) -> Iterator[CsfleRegistry]:
    """Serve until the end of the block."""
    with serve_script(registry.answer) as server:
        registry.url = server.url
        yield registry
