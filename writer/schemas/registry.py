"""Reads schemas from a registry, by Confluent's API or Apicurio's own, or from files. Only the driver asks."""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable
from urllib.parse import quote, unquote, urlsplit

from confluent_kafka.schema_registry import MetadataTags, Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError
from pydantic import SecretStr

from writer.avro.schema import UnsupportedSchema, fingerprint
from writer.avro.wire_format import Ids, is_guid, show_id
from writer.clients.http import RequestFailed, ask, login as login_header
from writer.config.connections import Registry
from writer.core.errors import ConfigError, HeadraceError, file_error
from writer.privacy.field_decryption import DataKey
from writer.schemas.registry_answers import AVRO, SHOWN, inlined, listed, names_absence, whole, without_user
from writer.schemas.subjects import DEFAULT_GROUP, Subjects, fits, in_apicurio, oldest_first

# Confluent's client keeps schemas by their hash, and its own of metadata with tags raises TypeError.
MetadataTags.__hash__ = lambda tags: hash(json.dumps(tags.tags))

_NOT_FOUND = 404
_T = TypeVar("_T")
_ANSWER_WITHIN_S = 10
_PAGE = 500  # versions of a schema in one answer


class SchemaNotFound(HeadraceError):
    """The registry answers, and does not know this schema id."""


class RegistryUnreachable(HeadraceError):
    """The registry does not answer, or sends no complete schema: the batch must wait."""


class SchemaSource(Protocol):
    """Schemas by id."""

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text. Raises SchemaNotFound or RegistryUnreachable."""

    def known(self, topic: str) -> Mapping[int, str]:
        """Schemas registered for a topic's values, by id, oldest first. Raises RegistryUnreachable."""


@runtime_checkable
class HasKeys(Protocol):
    """A source that has other schemas for keys than for values."""

    def of_keys(self) -> SchemaSource:
        """Return the same source, whose `known` schemas are those of a topic's keys."""


@runtime_checkable
class HasOtherIds(Protocol):
    """A source that finds its schemas by other ids itself."""

    def by(self, ids: Ids) -> SchemaSource:
        """Return the same schemas by other ids."""


@dataclass(frozen=True)
class Login:
    """The login for a registry, and the authority of its certificate."""

    user: str | None = None
    password: str = field(default="", repr=False)
    ca: Path | None = None

    @property
    def confluents(self) -> dict[str, str]:
        """Settings of Confluent's client."""
        login = {} if self.user is None else {"basic.auth.user.info": f"{self.user}:{self.password}"}
        return login if self.ca is None else {**login, "ssl.ca.location": str(self.ca)}

    def check(self) -> ssl.SSLContext:
        """Return what a certificate is checked by. Raises ConfigError for an authority that cannot be read."""
        try:
            return ssl.create_default_context(cafile=None if self.ca is None else str(self.ca))
        except OSError as error:  # ssl.SSLError is one
            text = f"registry.ca_file {self.ca} cannot be read ({error}). Give a PEM file of certificates."
            raise file_error(text, error) from error


class ConfluentRegistry:
    """The Confluent API, as Confluent, Apicurio, Karapace and Redpanda serve it."""

    def __init__(
        self, url: str, core_url: str | None = None, login: "Login | None" = None, subjects: Subjects | None = None
    ) -> None:
        """Ask at `url`. `core_url`: where an Apicurio registry serves its own API, if it is not beside `url`.

        `subjects`: of the topics, by default those of their names.
        """
        self._url, self._core_url, self.subjects = url, core_url, subjects or Subjects()
        self.login = login or Login()
        if self.login.ca is not None:
            self.login.check()
        self.settings = {"url": url, "timeout": 10, "max.retries": 1, **self.login.confluents}
        self.client = SchemaRegistryClient(self.settings)
        self.data_keys = dict[tuple[object, ...], DataKey]()  # as asked for; a key never changes

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text by id, named references put in its place."""
        return self._asked(schema_id, self._flattened)

    def registered(self, schema_id: int) -> Schema:
        """Return a schema by id with what the registry keeps beside it. Raises as `schema` does."""
        return self._asked(schema_id, lambda schema: schema)

    def _asked(self, schema_id: int, read: Callable[[Schema], _T]) -> _T:
        self.client.clear_caches()  # it keeps each answer as long as it lives, whatever the answer was
        try:
            if is_guid(schema_id):
                return read(self.client.get_schema_by_guid(show_id(schema_id)))
            return read(self.client.get_schema(schema_id))
        except SchemaRegistryError as error:
            if is_absence(error) or (is_guid(schema_id) and error.http_status_code == _NOT_FOUND):
                where = without_user(self._url)
                raise SchemaNotFound(f"schema id {show_id(schema_id)} is not in the registry at {where}") from error
            raise self.unreachable(error) from error
        except Exception as error:
            raise self.unreachable(error) from error

    def of_keys(self) -> "ConfluentRegistry":
        """Return the same registry, asked for the schemas of keys."""
        return ConfluentRegistry(self._url, self._core_url, self.login, self.subjects.of_keys())

    def known(self, topic: str) -> dict[int, str]:
        """Every version of the topic's schemas, oldest first; empty when none of the subjects exists."""
        subjects = self.subjects.named(topic)
        if subjects is None:
            subjects = self.subjects.among(topic, [(DEFAULT_GROUP, name) for name in self._listed(f"{topic}-")])
        found: dict[int, str] = {}
        for subject in subjects:
            found |= {i: text for i, text in self._versions(subject.name).items() if fits(subject, text)}
        return oldest_first(found, subjects)

    def _listed(self, prefix: str) -> list[str]:
        """Return the names of all subjects, or of those with the prefix where the registry can tell them apart."""
        try:
            return listed(self.client.get_subjects(prefix), "subjects")
        except Exception as error:
            raise self.unreachable(error) from error

    def _versions(self, subject: str) -> dict[int, str]:
        try:
            versions = sorted(listed(self.client.get_versions(subject), "versions"))
            found = [self.client.get_version(subject, version) for version in versions]
            return {int(v.schema_id): self._flattened(v.schema) for v in found}
        except SchemaRegistryError as error:
            if is_absence(error):
                return {}
            raise self.unreachable(error) from error
        except Exception as error:
            raise self.unreachable(error) from error

    @property
    def core_url(self) -> str:
        """Where an Apicurio registry serves its own API. Raises ConfigError when that is not known."""
        if self._core_url is not None:
            return self._core_url
        address, found, _ = self._url.partition("/apis/ccompat/")
        if not found:
            raise ConfigError(
                f"the records carry ids of an Apicurio registry, and registry.url ({without_user(self._url)}) does not "
                "say where it serves its own API. Set registry.core_url, such as http://registry:8080/apis/registry/v3."
            )
        return f"{address}/apis/registry/v3"

    def _flattened(self, schema: object) -> str:
        kind, references = schema.schema_type, schema.references or []  # type: ignore[attr-defined]
        text = whole(schema.schema_str, kind)  # type: ignore[attr-defined]
        if not references or kind not in AVRO:
            return text
        parts = {r.name: self._flattened(self.client.get_version(r.subject, r.version).schema) for r in references}
        return json.dumps(inlined(json.loads(text), {name: json.loads(part) for name, part in parts.items()}))

    def unreachable(self, error: Exception) -> RegistryUnreachable:
        """Return what to raise where the registry gives no answer."""
        self.client.clear_caches()  # what it took for an answer
        if isinstance(error, SchemaRegistryError) and error.http_status_code == _NOT_FOUND:
            return RegistryUnreachable(
                without_user(
                    f"there is no schema registry at {self._url}: it answers 404, as for a path that it does not "
                    "know. Check the path of registry.url, such as http://registry:8081, or "
                    "http://registry:8080/apis/ccompat/v7 of an Apicurio registry."
                )
            )
        return RegistryUnreachable(
            without_user(
                f"the schema registry at {self._url} does not answer ({error}). Check registry.url and that it is up."
            )
        )


class ApicurioRegistry:
    """Apicurio's own API, version 3, for ids that its serializers write.

    What Confluent's API calls a subject is an artifact of the default group. Apicurio's serializers that name artifacts
    after records put them into the group of the record's namespace.
    """

    def __init__(self, core_url: str, ids: Ids, login: Login | None = None, subjects: Subjects | None = None) -> None:
        """Ask at `core_url`, such as http://registry:8080/apis/registry/v3, by `global` or `content` ids."""
        address = urlsplit(core_url.rstrip("/"))
        self._url = address._replace(netloc=address.netloc.rpartition("@")[2]).geturl()
        known = login or Login()
        user, password = known.user, known.password
        if address.username is not None:
            user, password = unquote(address.username), unquote(address.password or "")
        self._headers, self._trust = login_header(user, SecretStr(password), None), known.check()
        self._ids, self._subjects = ids, subjects or Subjects()

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text by id, references put in its place."""
        global_id: int | None = schema_id
        if self._ids == "content":
            found = self._versions(f"search/versions?contentId={schema_id}&limit=1")
            global_id = next((version["global"] for version in found), None)
        text = None if global_id is None else self._text(global_id)
        if text is None:
            raise SchemaNotFound(f"{self._ids} id {schema_id} is not in the registry at {self._url}")
        return text

    def known(self, topic: str) -> dict[int, str]:
        """Every version of the topic's schemas, oldest first; empty when there is no such artifact."""
        named = self._subjects.named(topic)
        subjects = self._subjects.among(topic, self._artifacts()) if named is None else in_apicurio(named)
        found: dict[int, str] = {}
        for one in subjects:
            path = f"groups/{quote(one.group, safe='')}/artifacts/{quote(one.name, safe='')}/versions"
            for version in self._paged(f"{path}?order=asc&orderby=globalId", self._versions):
                text = self._text(version["global"])
                found |= {} if text is None or not fits(one, text) else {version[self._ids]: text}
        return oldest_first(found, subjects)

    def _paged(self, path: str, read: Callable[[str], list[_T]]) -> Iterator[_T]:
        """Yield what all pages of an answer hold."""
        at = 0
        while page := read(f"{path}&limit={_PAGE}&offset={at}"):
            yield from page
            at += _PAGE

    def _artifacts(self) -> list[tuple[str, str]]:
        """Return group and name of every artifact."""
        return list(self._paged("search/artifacts?order=asc&orderby=name", self._artifacts_of))

    def _artifacts_of(self, path: str) -> list[tuple[str, str]]:
        text, _ = self._asked(path) or ('{"artifacts": []}', None)
        try:
            return [(one.get("groupId") or DEFAULT_GROUP, one["artifactId"]) for one in json.loads(text)["artifacts"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._unreachable(ValueError(f"it sent no list of artifacts: {text[:SHOWN]}")) from error

    def _text(self, global_id: int) -> str | None:
        """Return a schema's text; None when there is no such id."""
        answer = self._asked(f"ids/globalIds/{global_id}?references=DEREFERENCE&returnArtifactType=true")
        try:
            return None if answer is None else whole(*answer)
        except ValueError as error:
            raise self._unreachable(error) from error

    def _versions(self, path: str) -> list[dict[str, int]]:
        """Return the ids of each version in an answer, by their kind; none when there is no such artifact."""
        text, _ = self._asked(path) or ('{"versions": []}', None)
        try:
            return [
                {ids: int(one[f"{ids}Id"]) for ids in ("global", "content")} for one in json.loads(text)["versions"]
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreachable(ValueError(f"it sent no list of versions: {text[:SHOWN]}")) from error

    def _asked(self, path: str) -> tuple[str, str | None] | None:
        """Return the answer and the type of the artifact in it, if it has one; None when there is no such thing."""
        try:
            answer = ask(
                f"{self._url}/{path}", headers=self._headers, timeout_s=_ANSWER_WITHIN_S, trust=self._trust,
                redirects=True,
            )  # fmt: skip
            if answer.status == _NOT_FOUND and names_absence(answer.body):
                return None
            if answer.ok:
                return answer.body.decode(), answer.headers.get("x-registry-artifacttype")
        except (RequestFailed, ValueError) as error:  # of these: an answer that is no text
            raise self._unreachable(error) from error
        raise self._unreachable(RequestFailed(f"it answered {answer.shown()}"))

    def _unreachable(self, error: Exception) -> RegistryUnreachable:
        return RegistryUnreachable(
            f"the schema registry at {self._url} does not answer ({error}). Check registry.url, registry.core_url and "
            "that it is up."
        )


class SchemaFiles:
    """Schemas in files, by the id in the records' header."""

    def __init__(
        self, files: Mapping[int, Path], keys: Mapping[int, Path] | None = None, section: str = "registry.files"
    ) -> None:
        """`keys`: files of the schemas of keys. `section`: of the configuration, which names the files."""
        self._keys, self._section = keys or {}, section
        try:
            self._texts = {schema_id: path.read_text(encoding="utf-8") for schema_id, path in files.items()}
        except OSError as error:
            raise file_error(f"{self._section}: cannot read {error.filename}: {error.strerror}", error) from error

    def of_keys(self) -> "SchemaFiles":
        """Return the files of the schemas of keys. Raises ConfigError."""
        return SchemaFiles(self._keys, section="registry.key_files")

    def schema(self, schema_id: int) -> str:
        """Return the file's text."""
        if schema_id not in self._texts:
            raise SchemaNotFound(f"schema id {schema_id} is not in {self._section}")
        return self._texts[schema_id]

    def known(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - files belong to no topic
        """Every file."""
        return dict(self._texts)


class ByFingerprint:
    """Schemas by their CRC-64-AVRO fingerprint, which no registry is asked by: the topics' own, and the files."""

    def __init__(self, schemas: SchemaSource) -> None:
        self._schemas = schemas
        self._topics: list[str] = []
        self._texts: dict[int, str] = {}

    def schema(self, schema_id: int) -> str:
        """Return the schema with this fingerprint among those of the topics that were asked for."""
        for topic in self._topics if schema_id not in self._texts else ():
            self.known(topic)
        if schema_id not in self._texts:
            raise SchemaNotFound(f"no schema of {', '.join(self._topics)} has the fingerprint {schema_id}")
        return self._texts[schema_id]

    def known(self, topic: str) -> dict[int, str]:
        """Every schema of the topic that can be read, oldest first."""
        if topic not in self._topics:
            self._topics.append(topic)
        found: dict[int, str] = {}
        for text in self._schemas.known(topic).values():
            with suppress(UnsupportedSchema):
                found[fingerprint(text)] = text
        self._texts |= found
        return found


def source(config: Registry) -> SchemaSource:
    """Open the configured source of schemas."""
    if config.url is None:
        return SchemaFiles(config.files, config.key_files)
    password = "" if config.password is None else config.password.get_secret_value()
    login = Login(config.user, password, config.ca_file)
    return ConfluentRegistry(config.url, config.core_url, login, subjects(config))


def subjects(config: Registry) -> Subjects:
    """Return the subjects that the configuration names."""
    return Subjects(config.subjects.strategy, config.subjects.records)


def by(schemas: SchemaSource, ids: Ids) -> SchemaSource:
    """Return the same schemas by other ids. Raises ConfigError when it is not known where they are to be had."""
    match schemas, ids:
        case HasOtherIds(), _:
            return schemas.by(ids)
        case _, "confluent":
            return schemas
        case _, "fingerprint":
            return ByFingerprint(schemas)
        case ConfluentRegistry(), _:
            return ApicurioRegistry(schemas.core_url, ids, schemas.login, schemas.subjects)
        case _:
            return schemas  # files: their numbers are whatever ids the records carry


def of_keys(schemas: SchemaSource) -> SchemaSource:
    """Return the same source, asked for the schemas of keys. Raises ConfigError."""
    return schemas.of_keys() if isinstance(schemas, HasKeys) else schemas


def is_absence(error: SchemaRegistryError) -> bool:
    """Tell a registry's own 404, such as 40401 (no subject) or 40403 (no schema), from that of any path or server."""
    return bool(error.http_status_code == _NOT_FOUND and (error.error_code or 0) // 100 == _NOT_FOUND)
