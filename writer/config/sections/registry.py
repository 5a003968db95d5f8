"""Configuration section `registry`: where schemas come from, and how a registry is logged in to."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, urlsplit
from uuid import UUID

from pydantic import BeforeValidator, Field, model_validator

from headrace.writer.config.base import ShortForm, Strict, did_you_mean
from headrace.writer.config.sections.glue_registry import GlueRegistry
from headrace.writer.config.sections.logins import RegistryLoginSection
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.http import is_url

# Of a registry's URL, before the context.
_CONTEXT_PATH = "/contexts/"
FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
Strategy = Literal["topic_name", "record_name", "topic_record_name"]
# Of an HTTP header.
_HEADER = r"^[\x21-\x7e]+$"


class Subjects(ShortForm):
    """How producers name the subjects of their schemas. `subjects: record_name` gives its `strategy`."""

    short: ClassVar[str] = "strategy"
    strategy: Strategy = Field(
        "topic_name",
        description="as the producers' `value.subject.name.strategy`: topic_name: `<topic>-value`; record_name: the "
        "record's full name; topic_record_name: `<topic>-<full name>`",
    )
    records: dict[str, list[str]] = Field(
        default_factory=dict,
        description="topic → full names of the records of its values, such as com.shop.Click. "
        "record_name needs them; with topic_record_name, topics without them have all that the registry lists",
    )

    @model_validator(mode="after")
    def _names_of_records(self) -> "Subjects":
        if self.records and self.strategy == "topic_name":
            raise ValueError("strategy topic_name has no 'records'; leave them out, or name the producers' strategy")
        if self.strategy == "record_name" and not self.records:
            raise ValueError(
                "strategy record_name needs 'records', as nothing in a registry says which records a topic has: "
                "{strategy: record_name, records: {clicks: [com.shop.Click]}}"
            )
        for topic, names in self.records.items():
            if not names:
                raise ValueError(f"'records' names none of topic {topic!r}; name them, or leave the topic out")
            for name in names:
                if not FULL_NAME.fullmatch(name):
                    raise ValueError(f"{name!r} is no full name of a record, such as com.shop.Click")
        return self

    def check_topics(self, read: Sequence[TopicSelection], key: str) -> None:
        """Raise ValueError where a topic that is named lacks records, or none is read that has some.

        `key`: where this section stands.
        """
        named = {topic for selection in read for topic in selection.names}
        if missing := sorted(named - self.records.keys()) if self.strategy == "record_name" else []:
            raise ValueError(
                f"{key}.records names no record of topic {missing[0]!r}; record_name needs those of every "
                "topic that is read"
            )
        if strange := [t for t in sorted(self.records) if not any(selection.includes(t) for selection in read)]:
            near = did_you_mean(strange[0], sorted(named))
            raise ValueError(f"{key}.records: no pipeline reads topic {strange[0]!r}{near}")


def _context_of(server: str) -> str | None:
    """Return the context that the URL of a server names, without the colons that some write; None: none."""
    _, separator, context = server.strip().partition(_CONTEXT_PATH)
    if separator:
        return context.strip("/:")
    return None


def _servers_of(url: str | None) -> list[str]:
    """Return the addresses of the servers of one registry, which commas divide."""
    return [server.strip() for server in (url or "").split(",") if server.strip()]


def _check_addresses(key: str, url: str | None) -> None:
    """Raise ValueError for an address of a server that is none; it is not shown, for it may have a password."""
    if url is None:
        return
    is_sound = bool(_servers_of(url)) and all(map(_is_address, _servers_of(url)))
    if not is_sound:
        raise ValueError(
            f"{key!r} is no http:// or https:// URL; write it as http://registry:8081, several of them with commas "
            "between, and signs of a password by their codes, such as %2F for /"
        )


def _is_address(server: str) -> bool:
    return is_url(server, may_have_user=True) and not set(server) & {"?", "#"}


def _parse_schema_id(raw: Any) -> Any:
    """Return the number of a GUID, as ids of AWS Glue and some of Confluent's are; anything else as it is."""
    if not isinstance(raw, str) or "-" not in raw:
        return raw
    try:
        return UUID(raw).int
    except ValueError:
        return raw


_FilesById = dict[Annotated[int, BeforeValidator(_parse_schema_id)], Path]


class Registry(Strict):
    """Where schemas come from: a Confluent-compatible registry, AWS Glue's, both, or files by id."""

    # An address may have a password.
    url: str | None = Field(None, repr=False, description="base URL of the registry's Confluent API")
    core_url: str | None = Field(
        None,
        repr=False,
        description="base URL of an Apicurio registry's own API, version 3; default: beside its Confluent API",
    )
    context: str | None = Field(
        None,
        pattern=r"^\.[^:/\s]*$",
        description="context of the registry in which the producers register, such as .staging, or `.` for the default "
        "one; needed where the registry has a topic's subjects in a context",
    )
    login: RegistryLoginSection | None = Field(None, description="how a client of the registry at `url` logs in")
    ca_file: Path | None = Field(
        None, description="PEM file with the authority of the registry's certificate; default: the machine's"
    )
    client_cert_file: Path | None = Field(
        None,
        description="PEM file with a private key, without a password, and its certificates, for a registry that wants "
        "to know clients by them",
    )
    logical_cluster: str | None = Field(
        None, pattern=_HEADER, description="of Confluent Cloud, such as lsrc-1: sent as the header `target-sr-cluster`"
    )
    identity_pool: str | None = Field(
        None, pattern=_HEADER, description="of Confluent Cloud, such as pool-1: sent as `Confluent-Identity-Pool-Id`"
    )
    subjects: Subjects = Subjects.model_validate({})
    glue: GlueRegistry | None = Field(
        None, description="AWS Glue Schema Registry, for `wire: glue`; may stand beside `url`, for topics with both"
    )
    files: _FilesById = Field(
        default_factory=dict,
        description="schema id, as the records carry it, a number or a GUID → .avsc file; serves without a registry",
    )
    key_files: _FilesById = Field(
        default_factory=dict, description="with `files`: the same of the records' keys, for `columns.key: avro`"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> "Registry":
        if self.files and (self.url is not None or self.glue is not None):
            raise ValueError(f"give either '{'glue' if self.url is None else 'url'}' or 'files'")
        if not self.has_registry and self.subjects != Subjects.model_validate({}):
            raise ValueError("'subjects' goes with 'url'; files belong to no subject")
        if self.key_files and self.has_registry:
            raise ValueError("'key_files' goes with 'files'; a registry has the schemas of keys itself")
        twice = [schema_id for schema_id, path in self.key_files.items() if self.files.get(schema_id, path) != path]
        if twice:
            raise ValueError(f"schema id {twice[0]} has one file in 'files' and another in 'key_files'; give it one")
        for key in ("url", "core_url"):
            _check_addresses(key, getattr(self, key))
        if self.context is not None and (self.url is None or _CONTEXT_PATH in self.url):
            raise ValueError("'context' needs a 'url', and one that names no context itself")
        contexts = {_context_of(server) for server in _servers_of(self.url)}
        if len(contexts) > 1:
            raise ValueError("'url' has servers of several contexts, whose ids mean other schemas; give all the same")
        if "" in contexts:
            raise ValueError("'url' ends where the name of a context belongs, such as /contexts/.staging")
        return self

    @model_validator(mode="after")
    def _login_of_the_url(self) -> "Registry":
        for name in ("login", "client_cert_file", "logical_cluster", "identity_pool"):
            if self.url is None and getattr(self, name) is not None:
                raise ValueError(f"{name!r} needs a 'url', whose server gets it")
        if self.login is not None and any("@" in urlsplit(server).netloc for server in _servers_of(self.url)):
            raise ValueError("'login' needs a 'url' that names no user itself")
        return self

    @property
    def has_schemas(self) -> bool:
        """Whether there is a source of schemas."""
        return self.has_registry or bool(self.files)

    @property
    def has_registry(self) -> bool:
        """Whether there is a registry, which is asked over the network."""
        return self.url is not None or self.glue is not None

    @property
    def address(self) -> str | None:
        """The base URL of the context's schemas; of several servers, separated by commas."""
        if self.url is None or self.context in (None, "."):
            return self.url
        context = quote(str(self.context), safe="")
        return ",".join(f"{server.rstrip('/')}{_CONTEXT_PATH}{context}" for server in _servers_of(self.url))

    @property
    def names_context(self) -> bool:
        """Whether it says in which context schemas are, by a key or in the URL."""
        return self.context is not None or _CONTEXT_PATH in (self.url or "")
