"""The part of AWS Glue's API that a schema registry's readers and producers ask, as an answer for `scripted`.

moto lists no schemas and no versions. It knows JSON as AWS's clients speak it: a POST whose header names the operation.
"""

import json
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from tests.servers.objects import KEY
from tests.servers.scripted import HttpRequest, Reply

ACCOUNT = "arn:aws:glue:us-east-1:123456789012"
_TARGET = "x-amz-target"


@dataclass
class StoredVersion:
    """A version of a schema."""

    id: str
    schema: str
    number: int
    kind: str
    text: str
    status: str = "AVAILABLE"


class Refusal(Exception):
    """An answer that is an error of AWS's."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.reply = Reply(status, {"__type": code, "Message": message})


@dataclass
class GlueApi:
    """One registry, its schemas and their versions, and what is wrong with it."""

    registry: str = "default-registry"
    # Items in an answer, whatever was asked for.
    page: int = 2
    delay_s: float = 0.0
    # Requests that are throttled from now on.
    throttled: int = 0
    # Error code and status of every answer; None: all is well.
    trouble: tuple[str, int] | None = None
    schemas: dict[str, list[StoredVersion]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, schema: str, definition: Any, kind: str = "AVRO", status: str = "AVAILABLE") -> UUID:
        """Register a version. Returns its id."""
        text = definition if isinstance(definition, str) else json.dumps(definition)
        versions = self.schemas.setdefault(schema, [])
        version = StoredVersion(str(uuid4()), schema, len(versions) + 1, kind, text, status)
        versions.append(version)
        return UUID(version.id)

    def version(self, version_id: UUID) -> StoredVersion:
        """Return a version by its id."""
        return self._versions_by_id()[str(version_id)]

    def __call__(self, asked: HttpRequest) -> Reply:
        """Answer a request."""
        operation = asked.headers.get(_TARGET, "").removeprefix("AWSGlue.")
        with self._lock:
            self.asked.append(operation)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            is_throttled = self.throttled > 0
            self.throttled -= is_throttled
        time.sleep(self.delay_s)
        try:
            self._check(asked, is_throttled=is_throttled)
            return Reply(body=self._answer(operation, asked.json()))
        except Refusal as refusal:
            return refusal.reply
        finally:
            with self._lock:
                self.at_once -= 1

    def _check(self, asked: HttpRequest, *, is_throttled: bool) -> None:
        """Raise Refusal where a request is not looked at."""
        if f"Credential={KEY}/" not in asked.headers.get("authorization", ""):
            raise Refusal("UnrecognizedClientException", "The security token included in the request is invalid.")
        if is_throttled:
            raise Refusal("ThrottlingException", "Rate exceeded")
        if self.trouble is not None:
            code, status = self.trouble
            raise Refusal(code, "no such luck", status)

    def _answer(self, operation: str, question: dict[str, Any]) -> dict[str, Any]:
        match operation:
            case "GetRegistry":
                self._check_registry(question["RegistryId"])
                return {"RegistryName": self.registry, "Status": "AVAILABLE"}
            case "GetSchemaVersion":
                return self._describe(self._find(question["SchemaVersionId"]), whole=True)
            case "ListSchemas":
                self._check_registry(question["RegistryId"])
                return self._page("Schemas", [self._schema(name) for name in self.schemas], question)
            case "ListSchemaVersions":
                versions = self._schema_of(question["SchemaId"])
                # AWS does not say in which order they come.
                items = [self._describe(version, whole=False) for version in reversed(versions)]
                return self._page("Schemas", items, question)
            case "CreateSchema":
                if question["SchemaName"] in self.schemas:
                    raise Refusal("AlreadyExistsException", "Schema already exists.")
                version_id = self.add(question["SchemaName"], question["SchemaDefinition"], question["DataFormat"])
                return {"SchemaName": question["SchemaName"], "SchemaVersionId": str(version_id)}
            case "RegisterSchemaVersion":
                newest = self._schema_of(question["SchemaId"])[-1]
                version_id = self.add(newest.schema, question["SchemaDefinition"], newest.kind)
                return {"SchemaVersionId": str(version_id), "VersionNumber": newest.number + 1, "Status": "AVAILABLE"}
        raise Refusal("UnknownOperationException", operation)

    def _check_registry(self, registry_id: dict[str, str]) -> None:
        if registry_id.get("RegistryName") != self.registry:
            raise Refusal("EntityNotFoundException", f"Registry is not found. RegistryName: {registry_id}")

    def _schema_of(self, schema_id: dict[str, str]) -> list[StoredVersion]:
        self._check_registry(schema_id)
        if schema_id["SchemaName"] not in self.schemas:
            raise Refusal("EntityNotFoundException", f"Schema is not found. SchemaName: {schema_id['SchemaName']}")
        return self.schemas[schema_id["SchemaName"]]

    def _find(self, version_id: str) -> StoredVersion:
        version = self._versions_by_id().get(version_id)
        if version is None:
            raise Refusal("EntityNotFoundException", f"Schema version is not found. SchemaVersionId: {version_id}")
        return version

    def _versions_by_id(self) -> dict[str, StoredVersion]:
        return {version.id: version for versions in self.schemas.values() for version in versions}

    def _schema(self, name: str) -> dict[str, Any]:
        return {
            "RegistryName": self.registry,
            "SchemaName": name,
            "SchemaArn": f"{ACCOUNT}:schema/{self.registry}/{name}",
            "SchemaStatus": "AVAILABLE",
        }

    def _describe(self, version: StoredVersion, *, whole: bool) -> dict[str, Any]:
        description = {
            "SchemaArn": f"{ACCOUNT}:schema/{self.registry}/{version.schema}",
            "SchemaVersionId": version.id,
            "VersionNumber": version.number,
            "Status": version.status,
            "CreatedTime": "2026-11-20T05:00:00.000Z",
        }
        if whole:
            description |= {"SchemaDefinition": version.text, "DataFormat": version.kind}
        return description

    def _page(self, name: str, items: list[dict[str, Any]], question: dict[str, Any]) -> dict[str, Any]:
        start = int(question.get("NextToken", "0"))
        stop = start + min(self.page, question.get("MaxResults", self.page))
        more = {"NextToken": str(stop)} if stop < len(items) else {}
        return {name: items[start:stop], **more}
