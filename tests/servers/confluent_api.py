"""The reading part of Confluent's API, filled by a test, as an answer for `scripted`."""

import json
import re
import threading
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.scripted import HttpRequest, Reply

_NO_SCHEMA = Reply(404, {"error_code": 40403, "message": "Schema not found"})
_NO_SUBJECT = Reply(404, {"error_code": 40401, "message": "Subject not found."})
_NO_VERSION = Reply(404, {"error_code": 40402, "message": "Version not found."})


def reference(name: str, subject: str, version: int = 1) -> dict[str, Any]:
    """Return what a schema says of another one that it refers to."""
    return {"name": name, "subject": subject, "version": version}


@dataclass
class ConfluentApi:
    """Subjects, their versions, and what is wrong with them. An id counts up with each version."""

    delay_s: float = 0.0
    rate: int | None = None  # requests a second, above which it answers 429
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    soft_deleted: set[tuple[str, int]] = field(default_factory=set)
    gone: set[tuple[str, int]] = field(default_factory=set)  # deleted for good
    paths: list[str] = field(default_factory=list)  # that were asked for
    at_once: int = 0  # requests that are answered now
    most_at_once: int = 0
    refused: int = 0
    _times_s: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self, subject: str, schema: Any, references: list[dict[str, Any]] | None = None, kind: str | None = None
    ) -> int:
        """Register a version. Returns its id. `kind`: AVRO where it is not said, as the API leaves it out then."""
        schema_id = len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[schema_id] = {"schema": text, **({"references": references} if references else {})}
        if kind is not None:
            self.schemas[schema_id]["schemaType"] = kind
        self.subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def __call__(self, asked: HttpRequest) -> Reply:
        """Answer a request."""
        with self._lock:
            self.paths.append(asked.path)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            refusal = self._refusal()
        time.sleep(self.delay_s)
        try:
            return refusal or self._answer(asked.path)
        finally:
            with self._lock:
                self.at_once -= 1

    def _refusal(self) -> Reply | None:
        now_s = time.monotonic()
        self._times_s = [time_s for time_s in self._times_s if now_s - time_s < 1]
        if self.rate is not None and len(self._times_s) >= self.rate:
            self.refused += 1
            return Reply(429, {"error_code": 429, "message": "Too many requests"}, {"Retry-After": "1"})
        self._times_s.append(now_s)
        return None

    def _answer(self, path: str) -> Reply:
        parts = urlsplit(path)
        steps = [unquote(step) for step in parts.path.split("/")[1:]]
        is_deleted_too = parse_qs(parts.query).get("deleted") == ["true"]
        match steps:
            case ["schemas", "ids", number]:
                return Reply(body=self.schemas[int(number)]) if int(number) in self.schemas else _NO_SCHEMA
            case ["subjects"]:
                return Reply(body=list(self.subjects))
            case ["subjects", subject, "versions"] if subject in self.subjects:
                numbers = range(1, len(self.subjects[subject]) + 1)
                return Reply(body=[n for n in numbers if self._has(subject, n, is_deleted_too=is_deleted_too)])
            case ["subjects", subject, "versions", number] if subject in self.subjects and re.fullmatch(r"\d+", number):
                if not self._has(subject, int(number), is_deleted_too=is_deleted_too):
                    return _NO_VERSION
                schema_id = self.subjects[subject][int(number) - 1]
                envelope = {"subject": subject, "version": int(number), "id": schema_id, **self.schemas[schema_id]}
                return Reply(body=envelope)
            case ["subjects", *_]:
                return _NO_SUBJECT
        return Reply(404, {"error_code": 404, "message": "HTTP 404 Not Found"})

    def _has(self, subject: str, number: int, *, is_deleted_too: bool) -> bool:
        version = (subject, number)
        if not 1 <= number <= len(self.subjects[subject]) or version in self.gone:
            return False
        return is_deleted_too or version not in self.soft_deleted
