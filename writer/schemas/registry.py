"""Reads schemas from a registry, by the API of Confluent, Apicurio or AWS Glue, or from files. Only the driver asks."""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from urllib.parse import quote

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, file_error
from headrace.writer.core.http import RequestFailed
from headrace.writer.framing.wire_format import Ids, Part, is_guid, show_id
from headrace.writer.privacy.field_decryption import DataKey
from headrace.writer.protobuf.proto_files import read_schema_file
from headrace.writer.schemas.apicurio import ApicurioRegistry
from headrace.writer.schemas.glue import GlueRegistry
from headrace.writer.schemas.references import JSON, PROTOBUF, Reference, RegisteredSchema, inline_references
from headrace.writer.schemas.registry_client import (
    MALFORMED,
    Login,
    ReferenceNotFound,
    RegistryClient,
    RegistryUnreachable,
    SchemaNotFound,
    envelope_text,
    has_absence_code,
    read_list,
    read_versions,
    unreachable_error,
    without_user,
)
from headrace.writer.schemas.subjects import (
    DEFAULT_CONTEXT,
    DEFAULT_GROUP,
    Subjects,
    check_contexts,
    find_contexts,
    fits,
    oldest_first,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema

__all__ = [
    "ApicurioRegistry",
    "ByFingerprint",
    "ConfluentRegistry",
    "GlueRegistry",
    "HasKeys",
    "HasOtherIds",
    "Login",
    "RegistryUnreachable",
    "SchemaFiles",
    "SchemaNotFound",
    "SchemaSource",
    "TwoRegistries",
    "confluent_registry",
    "of_keys",
    "source",
    "subjects",
    "with_ids",
]

# Shorter than a pause between two questions about one id.
LISTING_FRESH_S = 0.5
# Types of the rules of a schema by which producers encrypt fields, or whole values.
_ENCRYPTING_RULES = ("ENCRYPT", "ENCRYPT_PAYLOAD")
# What references refer to, as far as it was read.
_Parts = dict[tuple[str, str, str], RegisteredSchema]


class SchemaSource(Protocol):
    """Schemas by id."""

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text. Raises SchemaNotFound or RegistryUnreachable."""

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the schemas registered for a topic's values, by id, oldest first. Raises RegistryUnreachable."""


@runtime_checkable
class HasKeys(Protocol):
    """A source that has other schemas for keys than for values."""

    def of_keys(self) -> SchemaSource:
        """Return the same source, whose schemas of topics are those of a topic's keys."""


@runtime_checkable
class HasOtherIds(Protocol):
    """A source that finds its schemas by other ids itself."""

    def with_ids(self, ids: Ids) -> SchemaSource:
        """Return the same schemas by other ids."""


class ConfluentRegistry:
    """The Confluent API, as Confluent, Apicurio, Karapace and Redpanda serve it."""

    def __init__(
        self,
        url: str,
        core_url: str | None = None,
        login: Login | None = None,
        subjects: Subjects | None = None,
        *,
        names_context: bool = False,
    ) -> None:
        """Ask at `url`. `core_url`: where an Apicurio registry serves its own API, if it is not beside `url`.

        `subjects`: of the topics, by default those of their names. `names_context`: the configuration says in which
        context their schemas are.
        """
        self._url = url
        self._core_url = core_url
        self._names_context = names_context
        # The log says of these topics that several contexts have them.
        self._ambiguous_topics = set[str]()
        self.subjects = subjects or Subjects()
        self.login = login or Login()
        self._client = RegistryClient(url, self.login)
        # By what the registry was asked for; a key never changes.
        self.data_keys = dict[tuple[object, ...], DataKey]()

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text by id, named references put in its place."""
        return self._inline_text(schema_id, self._envelope(schema_id), {})

    def registered_schema(self, schema_id: int) -> "Schema":
        """Return a schema by id with what the registry keeps beside it. Raises as `schema` does."""
        # Confluent's client takes a tenth of a second to import, and only encrypted fields need it.
        from confluent_kafka.schema_registry import Schema

        envelope = self._envelope(schema_id)
        try:
            return Schema.from_dict(envelope)
        except MALFORMED as error:
            raise self.unreachable(error) from error

    def subjects_of(self, schema_id: int) -> list[str]:
        """Return the subjects that have a schema, deleted ones too. Raises RegistryUnreachable."""
        return self._list_subjects(f"schemas/ids/{schema_id}/subjects?deleted=true")

    def _list_subjects(self, path: str) -> list[str]:
        answer = self._get(path)
        if answer is None:
            return []
        return [str(name) for name in self._read_list(answer, "subjects")]

    def _envelope(self, schema_id: int) -> Any:
        path = f"ids/{schema_id}"
        if is_guid(schema_id):
            path = f"guids/{show_id(schema_id)}"
        envelope = self._get(f"schemas/{path}", is_guid=is_guid(schema_id))
        if envelope is None:
            raise SchemaNotFound(f"schema id {show_id(schema_id)} is not in the registry at {without_user(self._url)}")
        return envelope

    def read_object(self, path: str) -> Mapping[str, Any] | None:
        """Return an answer that is an object; None where the registry says that there is no such thing.

        Raises RegistryUnreachable.
        """
        answer = self._get(path)
        if answer is None or isinstance(answer, dict):
            return answer
        raise self.unreachable(ValueError("it sent no object"))

    def _get(self, path: str, *, is_guid: bool = False) -> Any:
        """Return an answer; None where the registry says that there is no such thing. Raises RegistryUnreachable."""
        try:
            answer = self._client.ask(path)
            document = answer.json() if answer.ok else None
        except RequestFailed as error:
            raise self.unreachable(error) from error
        if document is not None:
            return document
        if answer.ok:
            raise self.unreachable(ValueError("it sent null"))
        if has_absence_code(answer.body) or is_guid:
            return None
        raise self._no_registry()

    def of_keys(self) -> "ConfluentRegistry":
        """Return the same registry, asked for the schemas of keys."""
        subjects = self.subjects.of_keys()
        return ConfluentRegistry(self._url, self._core_url, self.login, subjects, names_context=self._names_context)

    def topic_schemas(self, topic: str) -> dict[int, str]:
        """Return every version of the topic's schemas, oldest first; empty when none of the subjects exists.

        A version that refers to what the registry lacks is left out, with a log line that says so.
        Raises UnclearContext where the subjects are in a context alone that the configuration does not name.
        """
        self._check_contexts(topic)
        subjects = self.subjects.of_topic(topic)
        if subjects is None:
            names = self._read_list(self._get(f"subjects?subjectPrefix={quote(f'{topic}-', safe='')}"), "subjects")
            subjects = self.subjects.choose(topic, [(DEFAULT_GROUP, str(name)) for name in names])
        texts: dict[int, str] = {}
        for subject in subjects:
            versions = self._versions(subject.name)
            texts |= {schema_id: text for schema_id, text in versions.items() if fits(subject, text)}
        return oldest_first(texts, subjects)

    def contexts(self, topic: str) -> list[str]:
        """Return the contexts that have subjects of a topic; none where the configuration names the one that counts."""
        if self._names_context:
            return []
        return find_contexts(self.subjects, topic, self._every_subject)

    def _check_contexts(self, topic: str) -> None:
        """Raise UnclearContext where the default context has no subject of a topic; log that others have some, too."""
        contexts = self.contexts(topic)
        check_contexts(self.subjects, topic, contexts)
        if len(contexts) > 1 and topic not in self._ambiguous_topics:
            self._ambiguous_topics.add(topic)
            logging.warning("registry_contexts", topic=topic, contexts=contexts, used=DEFAULT_CONTEXT)

    @cached_property
    def _every_subject(self) -> list[str]:
        """Every subject of every context; none, with a log line, where the registry does not list them."""
        try:
            return self._list_subjects("subjects")
        except RegistryUnreachable as error:
            logging.warning("registry_contexts_unknown", error=str(error))
            return []

    def _versions(self, subject: str) -> dict[int, str]:
        numbers = self._get(f"subjects/{quote(subject, safe='')}/versions")
        if numbers is None:
            return {}
        parts: _Parts = {}
        read = partial(self._version, subject, parts)
        versions = self._read_list(numbers, "versions")
        if not all(isinstance(version, int) for version in versions):
            raise self.unreachable(ValueError(f"it sent versions of subject {subject!r} that are no numbers"))
        return read_versions(sorted(versions), read, subject)

    def _version(self, subject: str, parts: _Parts, number: int) -> tuple[int, str] | None:
        """Return id and text of a version; None where it was removed meanwhile. Raises SchemaNotFound for its parts."""
        envelope = self._get(f"subjects/{quote(subject, safe='')}/versions/{number}")
        if envelope is None:
            return None
        try:
            schema_id = int(envelope["id"])
        except MALFORMED as error:
            raise self.unreachable(ValueError(f"it sent no version {number} of subject {subject!r}")) from error
        return schema_id, self._inline_text(schema_id, envelope, parts)

    def _inline_text(self, schema_id: int, envelope: Any, parts: _Parts) -> str:
        return inline_references(self._parse_envelope(envelope), partial(self._read_reference, schema_id, parts))

    def _read_reference(self, schema_id: int, parts: _Parts, reference: Reference) -> RegisteredSchema:
        """Return what a schema refers to, softly deleted or not. Raises ReferenceNotFound."""
        if reference.target not in parts:
            path = f"subjects/{quote(reference.subject, safe='')}/versions/{reference.version}"
            envelope = self._get(f"{path}?deleted=true")
            if envelope is None:
                raise ReferenceNotFound(
                    f"schema id {show_id(schema_id)} refers to {reference}, which is not in the registry at "
                    f"{without_user(self._url)}. Register that version again."
                )
            parts[reference.target] = self._parse_envelope(envelope)
        return parts[reference.target]

    def _parse_envelope(self, envelope: Any) -> RegisteredSchema:
        """Read a schema's envelope. Raises RegistryUnreachable where it is none."""
        try:
            references = [
                Reference(str(entry["name"]), str(entry["subject"]), str(entry["version"]))
                for entry in envelope.get("references") or ()
            ]
            kind = envelope.get("schemaType")
            rule = _encrypting_rule(envelope) if kind in (JSON, PROTOBUF) else None
            return RegisteredSchema(envelope_text(envelope), kind, references, rule)
        except MALFORMED as error:
            raise self.unreachable(error) from error

    def _read_list(self, answer: object, items: str) -> list[Any]:
        try:
            return read_list(answer, items)
        except ValueError as error:
            raise self.unreachable(error) from error

    @property
    def core_url(self) -> str:
        """Where an Apicurio registry serves its own API. Raises ConfigError when that is not known."""
        if self._core_url is not None:
            return self._core_url
        address, confluent_path, _ = self._url.partition("/apis/ccompat/")
        if not confluent_path:
            raise ConfigError(
                f"the records carry ids of an Apicurio registry, and registry.url ({without_user(self._url)}) does not "
                "say where it serves its own API. Set registry.core_url, such as http://registry:8080/apis/registry/v3."
            )
        return f"{address}/apis/registry/v3"

    def unreachable(self, error: Exception) -> RegistryUnreachable:
        """Return what to raise where the registry gives no answer, or none that can be read."""
        return unreachable_error(self._url, error, "registry.url")

    def _no_registry(self) -> RegistryUnreachable:
        context = ""
        if self._names_context and "/contexts/" in self._url:
            context = (
                " Karapace and Apicurio have no contexts: leave the one out that registry.context or registry.url "
                "names."
            )
        return RegistryUnreachable(
            without_user(
                f"there is no schema registry at {self._url}: it answers 404, as for a path that it does not "
                "know. Check the path of registry.url, such as http://registry:8081, or "
                f"http://registry:8080/apis/ccompat/v7 of an Apicurio registry.{context}"
            )
        )


def _encrypting_rule(envelope: Any) -> str | None:
    """Return the name of a rule by which producers encrypt fields or whole values; None without one.

    Raises LookupError, TypeError, AttributeError where the rules are none.
    """
    rule_set = envelope.get("ruleSet") or {}
    for rule in [*(rule_set.get("domainRules") or ()), *(rule_set.get("encodingRules") or ())]:
        if str(rule.get("type")) in _ENCRYPTING_RULES and not rule.get("disabled"):
            return str(rule.get("name"))
    return None


class SchemaFiles:
    """Schemas in files, by the id in the records' header."""

    def __init__(
        self, files: Mapping[int, Path], keys: Mapping[int, Path] | None = None, section: str = "registry.files"
    ) -> None:
        """`keys`: files of the schemas of keys. `section`: of the configuration, which names the files."""
        self._keys = keys or {}
        self._section = section
        try:
            self._texts = {schema_id: read_schema_file(path) for schema_id, path in files.items()}
        except OSError as error:
            raise file_error(f"{self._section}: cannot read {error.filename}: {error.strerror}", error) from error

    def of_keys(self) -> "SchemaFiles":
        """Return the files of the schemas of keys. Raises ConfigError."""
        return SchemaFiles(self._keys, section="registry.key_files")

    def schema(self, schema_id: int) -> str:
        """Return the file's text."""
        if schema_id not in self._texts:
            raise SchemaNotFound(f"schema id {show_id(schema_id)} is not in {self._section}")
        return self._texts[schema_id]

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - files belong to no topic
        """Return the texts of all files."""
        return dict(self._texts)


class ByFingerprint:
    """Schemas by their CRC-64-AVRO fingerprint, which no registry is asked by: the topics' own, and the files.

    Threads may share it. All fingerprints that are asked for within LISTING_FRESH_S share one reading of the topics.
    """

    def __init__(self, schemas: SchemaSource) -> None:
        self._schemas = schemas
        self._topics: list[str] = []
        self._texts: dict[int, str] = {}
        self._lock = threading.Lock()
        # When the topics were read last, monotonic.
        self._listing_s = -math.inf

    def schema(self, schema_id: int) -> str:
        """Return the schema with this fingerprint among those of the topics that were asked for."""
        with self._lock:
            is_fresh = time.monotonic() - self._listing_s < LISTING_FRESH_S
            if schema_id not in self._texts and not is_fresh:
                for topic in self._topics:
                    self.topic_schemas(topic)
                self._listing_s = time.monotonic()
        if schema_id not in self._texts:
            raise SchemaNotFound(f"no schema of {', '.join(self._topics)} has the fingerprint {schema_id}")
        return self._texts[schema_id]

    def topic_schemas(self, topic: str) -> dict[int, str]:
        """Return every schema of the topic that can be read, oldest first."""
        if topic not in self._topics:
            self._topics.append(topic)
        texts: dict[int, str] = {}
        for text in self._schemas.topic_schemas(topic).values():
            with suppress(UnsupportedSchema):
                texts[crc_fingerprint(text)] = text
        self._texts |= texts
        return texts


@dataclass(frozen=True)
class TwoRegistries:
    """Confluent's API and AWS Glue: the kind of an id says which of them has its schema."""

    confluent: ConfluentRegistry
    glue: GlueRegistry

    def schema(self, schema_id: int) -> str:
        """Return a schema's text by an id of Confluent's API."""
        return self.confluent.schema(schema_id)

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the schemas that Confluent's API has of a topic."""
        return self.confluent.topic_schemas(topic)

    def of_keys(self) -> "TwoRegistries":
        """Return both, asked for the schemas of keys."""
        return TwoRegistries(self.confluent.of_keys(), self.glue.of_keys())

    def with_ids(self, ids: Ids) -> SchemaSource:
        """Return the schemas of the registry that has ids of a kind. Raises ConfigError."""
        if ids == "glue":
            return self.glue
        return with_ids(self.confluent, ids)


def source(config: Registry) -> SchemaSource:
    """Open the configured source of schemas."""
    if config.url is None and config.glue is None:
        return SchemaFiles(config.files, config.key_files)
    topic_subjects = subjects(config)
    glue: GlueRegistry | None = None
    if config.glue is not None:
        glue = GlueRegistry(config.glue, topic_subjects)
    if config.url is None:
        assert glue is not None, "there is a registry"
        return glue
    headers = {"target-sr-cluster": config.logical_cluster, "Confluent-Identity-Pool-Id": config.identity_pool}
    login = Login(
        None if config.login is None else config.login.http,
        config.ca_file,
        config.client_cert_file,
        {name: value for name, value in headers.items() if value is not None},
    )
    confluent = ConfluentRegistry(
        str(config.address),
        config.core_url,
        login,
        topic_subjects,
        names_context=config.names_context,
    )
    if glue is None:
        return confluent
    return TwoRegistries(confluent, glue)


def subjects(config: Registry) -> Subjects:
    """Return the subjects that the configuration names."""
    return Subjects(config.subjects.strategy, config.subjects.records)


def confluent_registry(schemas: SchemaSource) -> ConfluentRegistry | None:
    """Return the registry with Confluent's API of a source; None where it has none."""
    if isinstance(schemas, TwoRegistries):
        return schemas.confluent
    if isinstance(schemas, ConfluentRegistry):
        return schemas
    return None


def describe_subjects(config: Registry, topics: Sequence[str], part: Part = "value") -> str:
    """Name where a registry has the schemas of topics' values or keys, for a person."""
    names = subjects(config)
    if part == "key":
        names = names.of_keys()
    described: list[str] = []
    if config.glue is not None:
        described.append(f"{GlueRegistry(config.glue, names).describe(topics)} in AWS Glue")
    if config.glue is None or config.url is not None:
        described.append(names.describe(topics))
    return " or ".join(reversed(described))


def with_ids(schemas: SchemaSource, ids: Ids) -> SchemaSource:
    """Return the same schemas by other ids. Raises ConfigError when it is not known where they are to be had."""
    match schemas, ids:
        case HasOtherIds(), _:
            return schemas.with_ids(ids)
        case _, "fingerprint":
            return ByFingerprint(schemas)
        # While no record has shown a format, Confluent's is assumed.
        case GlueRegistry(), "glue" | "confluent":
            return schemas
        case GlueRegistry(), _:
            raise ConfigError(
                f"the records carry {ids} ids of an Apicurio registry, and `registry` names AWS Glue's alone. Give "
                "registry.url, too."
            )
        case ConfluentRegistry(), "glue":
            raise ConfigError(
                "the records carry ids of the AWS Glue Schema Registry. Name it in registry.glue, such as "
                "glue: {name: default-registry, region: eu-central-1}; it may stand beside registry.url."
            )
        case _, "confluent":
            return schemas
        case ConfluentRegistry(), _:
            return ApicurioRegistry(schemas.core_url, ids, schemas.login, schemas.subjects)
        case _:
            # The numbers of files are whatever ids the records carry.
            return schemas


def of_keys(schemas: SchemaSource) -> SchemaSource:
    """Return the same source, asked for the schemas of keys. Raises ConfigError."""
    return schemas.of_keys() if isinstance(schemas, HasKeys) else schemas
