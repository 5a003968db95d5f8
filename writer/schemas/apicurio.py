"""Reads schemas from an Apicurio registry by its own API, version 3, for the ids that its serializers write."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from headrace.writer.core.http import Answer, RequestFailed
from headrace.writer.framing.wire_format import Ids
from headrace.writer.schemas.references import Reference, RegisteredSchema, inline_references
from headrace.writer.schemas.registry_client import (
    MALFORMED,
    SHOWN,
    Login,
    ReferenceNotFound,
    RegistryClient,
    RegistryUnreachable,
    SchemaNotFound,
    document_text,
    names_absence,
    read_versions,
    unreachable_error,
)
from headrace.writer.schemas.subjects import DEFAULT_GROUP, Subjects, fits, oldest_first, with_apicurio_groups

# Versions of a schema, or artifacts, in one answer.
_PAGE = 500
# State of a version that was softly deleted.
_DISABLED = "DISABLED"
_KIND = "x-registry-artifacttype"
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Version:
    """A version of an artifact, as the registry describes it. `ids`: by their kind, global or content."""

    ids: Mapping[str, int]
    kind: str | None
    is_disabled: bool


# What references refer to, as far as it was read.
_Parts = dict[tuple[str, str, str], RegisteredSchema]


class ApicurioRegistry:
    """Apicurio's own API.

    What Confluent's API calls a subject is an artifact of the default group. Apicurio's serializers that name artifacts
    after records put them into the group of the record's namespace.
    """

    def __init__(self, core_url: str, ids: Ids, login: Login | None = None, subjects: Subjects | None = None) -> None:
        """Ask at `core_url`, such as http://registry:8080/apis/registry/v3, by `global` or `content` ids."""
        self._client = RegistryClient(core_url, login or Login())
        self._ids = ids
        self._subjects = subjects or Subjects()

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text by id, references put in its place."""
        versions = self._versions(f"search/versions?{self._ids}Id={schema_id}&limit=1")
        text = self._text(schema_id, versions[0], {}) if versions else None
        if text is None:
            raise SchemaNotFound(f"{self._ids} id {schema_id} is not in the registry at {self._client.url}")
        return text

    def topic_schemas(self, topic: str) -> dict[int, str]:
        """Return every version of the topic's schemas, oldest first; empty when there is no such artifact.

        A version that refers to what the registry lacks is left out, with a log line that says so.
        """
        topic_subjects = self._subjects.of_topic(topic)
        if topic_subjects is None:
            subjects = self._subjects.choose(topic, self._artifacts())
        else:
            subjects = with_apicurio_groups(topic_subjects)
        texts: dict[int, str] = {}
        for subject in subjects:
            path = f"{_artifact_path(subject.group, subject.name)}/versions"
            pages = self._read_pages(f"{path}?order=asc&orderby=globalId", self._versions)
            versions = [version for version in pages if not version.is_disabled]
            read = partial(self._version, {})
            version_texts = read_versions(versions, read, subject.name)
            texts |= {schema_id: text for schema_id, text in version_texts.items() if fits(subject, text)}
        return oldest_first(texts, subjects)

    def _version(self, parts: _Parts, version: _Version) -> tuple[int, str] | None:
        """Return id and text of a version; None where it was removed meanwhile. Raises SchemaNotFound for its parts."""
        schema_id = version.ids[self._ids]
        text = self._text(schema_id, version, parts)
        return None if text is None else (schema_id, text)

    def _text(self, schema_id: int, version: _Version, parts: _Parts) -> str | None:
        schema = self._read_schema(version)
        if schema is None:
            return None
        return inline_references(schema, partial(self._read_reference, schema_id, parts))

    def _read_reference(self, schema_id: int, parts: _Parts, reference: Reference) -> RegisteredSchema:
        """Return what a schema refers to, softly deleted or not. Raises ReferenceNotFound."""
        if reference.target not in parts:
            path = f"{_artifact_path(reference.group, reference.subject)}/versions/{quote(reference.version, safe='')}"
            answer = self._ask(path)
            schema = None
            if answer is not None:
                schema = self._read_schema(self._read(answer, _version_of, "version"))
            if schema is None:
                raise ReferenceNotFound(
                    f"schema with the {self._ids} id {schema_id} refers to {reference}, which is not in the registry "
                    f"at {self._client.url}. Register that version again."
                )
            parts[reference.target] = schema
        return parts[reference.target]

    def _read_schema(self, version: _Version) -> RegisteredSchema | None:
        """Return a version's text and what it refers to; None when there is no such version."""
        kind = None
        answer = self._ask(f"ids/globalIds/{version.ids['global']}?returnArtifactType=true")
        if answer is not None:
            kind = answer.headers.get(_KIND)
        else:
            # Of a version that was softly deleted, only the content is served.
            answer = self._ask(f"ids/contentIds/{version.ids['content']}")
        if answer is None:
            return None
        try:
            # A name that is not UTF-8 is refused by the parser.
            text = document_text(answer.body.decode(errors="surrogateescape"), kind)
        except ValueError as error:
            raise self._unreachable(error) from error
        listing = self._ask(f"ids/contentIds/{version.ids['content']}/references")
        references: list[Reference] = []
        if listing is not None:
            references = self._read(listing, _references_of, "list of references")
        return RegisteredSchema(text, kind or version.kind, references)

    def _read_pages(self, path: str, read: Callable[[str], list[_T]]) -> Iterator[_T]:
        """Yield the items of all pages of an answer. Raises RegistryUnreachable where a page comes again."""
        offset = 0
        first_items: list[_T] = []
        while page := read(f"{path}&limit={_PAGE}&offset={offset}"):
            if page[0] in first_items:
                raise self._unreachable(
                    ValueError(f"its list {path.partition('?')[0]} has no end: the page at offset {offset} came before")
                )
            first_items.append(page[0])
            yield from page
            offset += _PAGE

    def _artifacts(self) -> list[tuple[str, str]]:
        """Return group and name of every artifact."""
        return list(self._read_pages("search/artifacts?order=asc&orderby=name", self._artifacts_of))

    def _artifacts_of(self, path: str) -> list[tuple[str, str]]:
        answer = self._ask(path)
        return [] if answer is None else self._read(answer, _artifacts_in, "list of artifacts")

    def _versions(self, path: str) -> list[_Version]:
        """Return the versions in an answer; none when there is no such artifact."""
        answer = self._ask(path)
        return [] if answer is None else self._read(answer, _versions_in, "list of versions")

    def _read(self, answer: Answer, read: Callable[[Any], _T], thing: str) -> _T:
        """Read an answer. Raises RegistryUnreachable where it is not what it should be."""
        try:
            return read(json.loads(answer.body))
        except MALFORMED as error:
            shown = answer.body.decode(errors="replace")[:SHOWN]
            raise self._unreachable(ValueError(f"it sent no {thing}: {shown}")) from error

    def _ask(self, path: str) -> Answer | None:
        """Return an answer; None when the registry says that there is no such thing. Raises RegistryUnreachable."""
        try:
            answer = self._client.ask(path)
        except RequestFailed as error:
            raise self._unreachable(error) from error
        if answer.ok:
            return answer
        if names_absence(answer.body):
            return None
        raise self._unreachable(RequestFailed(f"it answered {answer.summary()}"))

    def _unreachable(self, error: Exception) -> RegistryUnreachable:
        return unreachable_error(self._client.url, error, "registry.url, registry.core_url")


def _artifact_path(group: str, name: str) -> str:
    return f"groups/{quote(group or DEFAULT_GROUP, safe='')}/artifacts/{quote(name, safe='')}"


def _version_of(entry: Any) -> _Version:
    ids = {kind: int(entry[f"{kind}Id"]) for kind in ("global", "content")}
    return _Version(ids, entry.get("artifactType"), entry.get("state") == _DISABLED)


def _versions_in(document: Any) -> list[_Version]:
    return [_version_of(entry) for entry in document["versions"]]


def _references_of(document: Any) -> list[Reference]:
    return [
        Reference(str(entry["name"]), str(entry["artifactId"]), str(entry["version"]), str(entry.get("groupId") or ""))
        for entry in document
    ]


def _artifacts_in(document: Any) -> list[tuple[str, str]]:
    return [(str(entry.get("groupId") or DEFAULT_GROUP), str(entry["artifactId"])) for entry in document["artifacts"]]
