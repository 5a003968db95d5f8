"""Reads schemas from the AWS Glue Schema Registry, by the ids that its serializers write. Only the driver asks.

Credentials come by the standard chain of AWS. The actions it needs: glue:GetSchemaVersion, glue:ListSchemaVersions,
glue:ListSchemas where names are patterns, and glue:GetRegistry, to tell a registry that is not there.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

from headrace.writer.config.sections.glue_registry import EVERY_TOPIC, TOPIC, GlueRegistry as GlueSettings
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.wire_format import Part, is_guid, show_id
from headrace.writer.logins.hidden_secrets import hide_keys
from headrace.writer.schemas.references import RegisteredSchema, inline_references
from headrace.writer.schemas.registry_client import (
    MALFORMED,
    PATIENCE_S,
    REQUESTS_AT_ONCE,
    RegistryUnreachable,
    SchemaNotFound,
    UnavailableSchema,
    read_versions,
)
from headrace.writer.schemas.subjects import DEFAULT_GROUP, Subject, Subjects, fits

if TYPE_CHECKING:
    from botocore.exceptions import ClientError

# Schemas, or versions, in one answer.
_PAGE = 100
_CONNECT_S = 5
_ANSWER_S = 10
# Two: a connection may have been closed meanwhile.
_ATTEMPTS = 2
_BACKOFF = Backoff(0.2, 5, jitter=0.5)
_ABSENT = "EntityNotFoundException"
_BUSY_CODES = frozenset(
    ["ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded", "SlowDown"]
)
_LOGIN_CODES = frozenset(
    [
        "AccessDeniedException",
        "AccessDenied",
        "ExpiredTokenException",
        "ExpiredToken",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationTokenException",
        "OptInRequired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    ]
)
_FAILED_STATUS = 500
_GRANT = (
    "Let these credentials do glue:GetSchemaVersion, glue:ListSchemaVersions, glue:ListSchemas and glue:GetRegistry, "
    "or give others (environment, profile or role: the standard chain of AWS)."
)
# Of a version that producers may use, and of one that is on its way out: records were written by both.
_AVAILABLE = "AVAILABLE"
_READABLE = (_AVAILABLE, "DELETING")
_WHY_NOT = {
    "PENDING": "AWS Glue still checks whether it is compatible (PENDING)",
    "FAILURE": "AWS Glue refused it as not compatible (FAILURE), so no producer may use it; register it anew where the "
    "schema's compatibility allows it",
}


@dataclass(frozen=True)
class _Version:
    """A version of a schema, as a list has it. `id`: its GUID."""

    id: str
    number: int


class GlueRegistry:
    """One registry of AWS Glue. Threads may share it."""

    def __init__(self, settings: GlueSettings, subjects: Subjects | None = None) -> None:
        """`subjects`: how producers name schemas after records; by default schemas have the names of their topics."""
        self._settings = settings
        self._subjects = subjects or Subjects()
        self._has_registry = False

    @property
    def name(self) -> str:
        """The registry, for a person."""
        return f"AWS Glue registry {self._settings.name} of {service_name(self._settings)}"

    def of_keys(self) -> "GlueRegistry":
        """Return the same registry, asked for the schemas of keys."""
        return GlueRegistry(self._settings, self._subjects.of_keys())

    def schema(self, schema_id: int) -> str:
        """Return a schema's text by the id of its version. Raises SchemaNotFound, RegistryUnreachable."""
        # The id of another registry is none of Glue's, which are random numbers of 128 bits.
        answer: Mapping[str, Any] | None = None
        if is_guid(schema_id):
            answer = self._version(str(UUID(int=schema_id)))
        if answer is None:
            raise SchemaNotFound(f"schema id {show_id(schema_id)} is not in {service_name(self._settings)}")
        status = str(answer.get("Status", _AVAILABLE))
        if status not in _READABLE:
            why = _WHY_NOT.get(status, f"its status is {status}")
            raise UnavailableSchema(f"schema id {show_id(schema_id)} cannot be read by: {why}")
        return self._text(answer)

    def topic_schemas(self, topic: str) -> dict[int, str]:
        """Return every available version of the topic's schemas, oldest first; empty when there is no such schema."""
        texts: dict[int, str] = {}
        for subject in self._subjects_of(topic):
            versions = self._versions(subject.name)
            version_texts = read_versions(versions, self._read_version, subject.name)
            texts |= {schema_id: text for schema_id, text in version_texts.items() if fits(subject, text)}
        return texts

    def describe(self, topics: Sequence[str]) -> str:
        """Name the schemas of topics, for a person."""
        names: list[str] = []
        for topic in topics:
            names += self._names(topic) or [self._subjects.describe([topic])]
        return ", ".join(names)

    def _read_version(self, version: _Version) -> tuple[int, str] | None:
        answer = self._version(version.id)
        if answer is None:
            return None
        return UUID(version.id).int, self._text(answer)

    def _version(self, version_id: str) -> Mapping[str, Any] | None:
        """Return a version by its GUID; None where there is none."""
        return self._ask(partial(self._client.get_schema_version, SchemaVersionId=version_id))

    def _text(self, answer: Mapping[str, Any]) -> str:
        text = answer.get("SchemaDefinition")
        if not isinstance(text, str) or not text.strip():
            raise self._unreachable(f"{service_name(self._settings)} sent no schema", "Ask again later.")
        # Glue knows no references.
        return inline_references(RegisteredSchema(text, answer.get("DataFormat")), _refuse_reference)

    def _subjects_of(self, topic: str) -> list[Subject]:
        """Return the schemas of a topic by their names, each with the full name that its records must have, if any."""
        names = self._names(topic)
        if names is not None:
            return [Subject(name) for name in self._expand(names)]
        subjects = self._subjects.of_topic(topic)
        if subjects is None:
            subjects = self._subjects.choose(topic, ((DEFAULT_GROUP, name) for name in self._schema_names()))
        return subjects

    def _names(self, topic: str) -> list[str] | None:
        """Return names and patterns of names of a topic's schemas; None where records give schemas their names."""
        by_topic = self._settings.schemas
        default: list[str] | None = None
        if self._part == "key":
            by_topic = self._settings.key_schemas
            default = [f"{TOPIC}-key"]
        elif self._subjects.strategy == "topic_name":
            default = [TOPIC]
        patterns = by_topic.get(topic, by_topic.get(EVERY_TOPIC, default))
        if patterns is None:
            return None
        return [pattern.replace(TOPIC, topic) for pattern in patterns]

    @property
    def _part(self) -> Part:
        return self._subjects.part

    def _expand(self, patterns: Sequence[str]) -> list[str]:
        """Return the names that patterns stand for, each once."""
        names: dict[str, None] = {}
        for pattern in patterns:
            if "*" not in pattern:
                names[pattern] = None
                continue
            expression = re.compile(".*".join(re.escape(part) for part in pattern.split("*")))
            names |= dict.fromkeys(name for name in self._schema_names() if expression.fullmatch(name))
        return list(names)

    def _schema_names(self) -> list[str]:
        """Return the names of all schemas of the registry, sorted."""
        pages = self._pages(self._client.list_schemas, "Schemas", RegistryId={"RegistryName": self._settings.name})
        with self._reading("list of schemas"):
            return sorted(str(entry["SchemaName"]) for entry in pages)

    def _versions(self, schema: str) -> list[_Version]:
        """Return the available versions of a schema, oldest first."""
        schema_id = {"RegistryName": self._settings.name, "SchemaName": schema}
        pages = self._pages(self._client.list_schema_versions, "Schemas", SchemaId=schema_id)
        with self._reading("list of versions"):
            versions = [
                _Version(str(UUID(entry["SchemaVersionId"])), int(entry["VersionNumber"]))
                for entry in pages
                if entry.get("Status") == _AVAILABLE
            ]
        return sorted(versions, key=lambda version: version.number)

    def _pages(self, operation: Callable[..., Any], items: str, **question: Any) -> Iterator[Mapping[str, Any]]:
        """Yield what all pages of an answer list; nothing where there is no such schema.

        Raises RegistryUnreachable where a page names a next one that came before.
        """
        continuation: dict[str, str] = {}
        tokens: set[str] = set()
        while True:
            page = self._ask(partial(operation, MaxResults=_PAGE, **question, **continuation))
            if page is None:
                self._check_registry()
                return
            yield from page.get(items, ())
            token = page.get("NextToken")
            if not token:
                return
            if token in tokens:
                service = service_name(self._settings)
                raise self._unreachable(
                    f"a list of {service} has no end: it names the same next page again",
                    "Check registry.glue.endpoint.",
                )
            tokens.add(token)
            continuation = {"NextToken": token}

    @contextmanager
    def _reading(self, thing: str) -> Iterator[None]:
        """Raise RegistryUnreachable where an answer is not what it should be. `thing`: what it should be."""
        try:
            yield
        except MALFORMED as error:
            raise self._unreachable(f"{service_name(self._settings)} sent no {thing}", "Ask again later.") from error

    def _check_registry(self) -> None:
        """Raise RegistryUnreachable where there is no registry of the name, once it was found no more."""
        if self._has_registry:
            return
        name = self._settings.name
        if self._ask(partial(self._client.get_registry, RegistryId={"RegistryName": name})) is None:
            raise self._unreachable(
                f"there is no registry {name} in {service_name(self._settings)}",
                "Correct registry.glue.name or registry.glue.region.",
            )
        self._has_registry = True

    def _ask(self, question: Callable[[], Any]) -> Mapping[str, Any] | None:
        """Return an answer; None where Glue says that there is no such thing. Raises RegistryUnreachable.

        A service that is busy is asked again, for PATIENCE_S.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        deadline_s = time.monotonic() + PATIENCE_S
        attempt = 0
        while True:
            try:
                answer: Mapping[str, Any] = question()
            except ClientError as error:
                if _code(error) == _ABSENT:
                    return None
                pause_s = _BACKOFF.random_delay_s(attempt)
                if _may_pass(error) and time.monotonic() + pause_s <= deadline_s:
                    time.sleep(pause_s)
                    attempt += 1
                    continue
                # It is raised below, without the cause: AWS repeats the token of a request whose signature is wrong.
                refusal = self._refusal(error, pause_s)
            except BotoCoreError as error:
                refusal = self._failure(error)
            else:
                return answer
            raise refusal

    def _refusal(self, error: "ClientError", retry_after_s: float) -> RegistryUnreachable:
        """Return what to raise for an answer of Glue that is no schema."""
        service = service_name(self._settings)
        answer = f"{_code(error)} ({_hide_long_words(error.response['Error'].get('Message', ''))})"
        if _code(error) in _LOGIN_CODES:
            return self._unreachable(f"{service} refuses the credentials: it answers {answer}", _GRANT)
        if _may_pass(error):
            text = f"{service} refuses requests: it answers {answer}"
            return self._unreachable(text, "Raise the quota of the account, or wait.", retry_after_s)
        return self._unreachable(f"{service} answers {answer}", "Check registry.glue.")

    def _failure(self, error: Exception) -> RegistryUnreachable:
        """Return what to raise where no answer comes."""
        from botocore.exceptions import (
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
            TokenRetrievalError,
        )

        service = service_name(self._settings)
        no_login = (
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
            ProfileNotFound,
            TokenRetrievalError,
        )
        if isinstance(error, no_login):
            return self._unreachable(
                f"{service} is not asked without credentials ({_hide_long_words(str(error))})", _GRANT
            )
        fix = "Look at the network, at registry.glue.region and registry.glue.endpoint."
        return self._unreachable(f"{service} does not answer ({_hide_long_words(str(error))})", fix)

    @staticmethod
    def _unreachable(what: str, fix: str, retry_after_s: float = 0) -> RegistryUnreachable:
        return RegistryUnreachable(f"{what}. {fix}", retry_after_s)

    @cached_property
    def _client(self) -> Any:
        """A client, which serves several threads. Raises RegistryUnreachable."""
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_ANSWER_S,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            max_pool_connections=REQUESTS_AT_ONCE,
        )
        settings = self._settings
        try:
            return boto3.Session().client(
                "glue", region_name=aws_region(settings.region), endpoint_url=settings.endpoint, config=config
            )
        except BotoCoreError as error:
            raise self._failure(error) from error
        except ValueError as error:
            raise ConfigError(f"registry.glue: {error}") from error


def service_name(settings: GlueSettings) -> str:
    """Name the service, for a person."""
    if settings.endpoint is not None:
        return f"AWS Glue at {urlsplit(settings.endpoint).netloc}"
    return f"AWS Glue of {aws_region(settings.region)}"


def id_space(settings: GlueSettings) -> str:
    """Name what gives ids their meaning, for the table's log: they count in all registries of a region.

    Not the account, which AWS alone knows, and not the endpoint, of which there are several to one region.
    """
    return f"glue.{aws_region(settings.region)}"


def aws_region(configured: str | None) -> str:
    """Return a region as configured, or by the environment or the profile of AWS."""
    return configured or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or _profile_region()


@cache
def _profile_region() -> str:
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        return boto3.Session().region_name or "us-east-1"
    except BotoCoreError:
        # A profile that is not there is said where it is used.
        return "us-east-1"


def _refuse_reference(reference: object) -> RegisteredSchema:
    raise AssertionError(f"AWS Glue's schemas have no references, and this has {reference}")


def _code(error: "ClientError") -> str:
    return str(error.response["Error"].get("Code", ""))


def _may_pass(error: "ClientError") -> bool:
    """Return whether the same request may succeed a moment later."""
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return _code(error) in _BUSY_CODES or status >= _FAILED_STATUS


def _hide_long_words(message: str) -> str:
    """Return words of AWS for a message, without keys and tokens."""
    return hide_keys(message).rstrip(".")
