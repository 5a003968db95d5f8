"""Where schemas come from: a Confluent-compatible registry, or files. Asked by the driver only."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from writer.config import Registry
from writer.errors import ConfigError, HeadraceError

_NOT_FOUND = 404
_USER = re.compile(r"(?<=://)\S*@")  # to the last @: one may stand in a password, as may a slash


class SchemaNotFound(HeadraceError):
    """The registry answers, and does not know this schema id."""


class RegistryUnreachable(HeadraceError):
    """The registry does not answer; what it would say is not known, so the batch must wait."""


class SchemaSource(Protocol):
    """Schemas by id."""

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text. Raises SchemaNotFound or RegistryUnreachable."""

    def known(self, topic: str) -> Mapping[int, str]:
        """Schemas registered for a topic's values, by id, oldest first. Raises RegistryUnreachable."""


class ConfluentRegistry:
    """The Confluent API, as Confluent, Apicurio, Karapace and Redpanda serve it. Subjects are `<topic>-value`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = SchemaRegistryClient({"url": url, "timeout": 10, "max.retries": 1})

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text by id, named references put in its place."""
        try:
            return self._flattened(self._client.get_schema(schema_id))
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                where = without_user(self._url)
                raise SchemaNotFound(f"schema id {schema_id} is not in the registry at {where}") from error
            raise self._unreachable(error) from error
        except Exception as error:
            raise self._unreachable(error) from error

    def known(self, topic: str) -> dict[int, str]:
        """Every version of the topic's value schema, oldest first; empty when the subject does not exist."""
        try:
            versions = sorted(self._client.get_versions(f"{topic}-value"))
            found = [self._client.get_version(f"{topic}-value", version) for version in versions]
            return {int(v.schema_id): self._flattened(v.schema) for v in found}
        except SchemaRegistryError as error:
            if error.http_status_code == _NOT_FOUND:
                return {}
            raise self._unreachable(error) from error
        except Exception as error:
            raise self._unreachable(error) from error

    def _flattened(self, schema: object) -> str:
        text = str(schema.schema_str)  # type: ignore[attr-defined]
        references = schema.references or []  # type: ignore[attr-defined]
        if not references:
            return text
        parts = {r.name: self._flattened(self._client.get_version(r.subject, r.version).schema) for r in references}
        return json.dumps(_inlined(json.loads(text), {name: json.loads(part) for name, part in parts.items()}))

    def _unreachable(self, error: Exception) -> RegistryUnreachable:
        return RegistryUnreachable(
            without_user(
                f"the schema registry at {self._url} does not answer ({error}). Check registry.url and that it is up."
            )
        )


class SchemaFiles:
    """Schemas in files, by the id that stands in the records' header."""

    def __init__(self, files: Mapping[int, Path]) -> None:
        try:
            self._texts = {schema_id: path.read_text(encoding="utf-8") for schema_id, path in files.items()}
        except OSError as error:
            raise ConfigError(f"registry.files: cannot read {error.filename}: {error.strerror}") from error

    def schema(self, schema_id: int) -> str:
        """Return the file's text."""
        if schema_id not in self._texts:
            raise SchemaNotFound(f"schema id {schema_id} is not in registry.files")
        return self._texts[schema_id]

    def known(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - files belong to no topic
        """Every file."""
        return dict(self._texts)


def source(config: Registry) -> SchemaSource:
    """Open the configured source of schemas."""
    return ConfluentRegistry(config.url) if config.url is not None else SchemaFiles(config.files)


def without_user(text: str) -> str:
    """Leave out of every URL in a text who logs in, and with what."""
    return _USER.sub("***@", text)


def _inlined(schema: object, parts: dict[str, object]) -> object:
    """Put each referenced schema where its name is first used; later uses stay names."""
    if isinstance(schema, str):
        return _inlined(parts.pop(schema), parts) if schema in parts else schema
    if isinstance(schema, list):
        return [_inlined(item, parts) for item in schema]
    if isinstance(schema, dict):
        return {k: _inlined(v, parts) if k in ("type", "items", "values", "fields") else v for k, v in schema.items()}
    return schema
