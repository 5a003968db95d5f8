"""Compares schemas with what their ids meant when rows were decoded. Every command that decodes uses it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from urllib.parse import urlsplit

from headrace.writer.avro.fingerprint import schema_fingerprint
from headrace.writer.avro.schema_text import UnsupportedSchema, read_json, refuse_unforeseen
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.units import instant
from headrace.writer.framing.wire_format import Ids, show_id
from headrace.writer.json.envelope import FORMAT, read_envelope
from headrace.writer.json.json_schema import FINGERPRINT, schema_fingerprint as json_schema_fingerprint
from headrace.writer.protobuf.attributes import PROTOBUF
from headrace.writer.protobuf.message_types import compile_types
from headrace.writer.protobuf.registered_schema import (
    message_of,
    read_schema,
)
from headrace.writer.schemas.glue import id_space
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.table.log import schema_ids
from headrace.writer.table.log.schema_ids import Transactions

# Formats of values whose record schemas say what the schemas were that they are made of.
_WITH_FINGERPRINT = frozenset(("json", PROTOBUF))
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class IdMeanings:
    """What the ids of a registry mean in the table of one pipeline. `recorded`: its newest `txn` values."""

    pipeline: str
    registry: Registry
    recorded: Callable[[], Transactions]

    def check_source(self, schemas: SchemaSource, ids: Ids) -> SchemaSource:
        """Return the same schemas; they raise SchemaChanged where an id means another one than it did."""
        return schemas if ids == "fingerprint" else _CheckedSource(schemas, self, ids)

    def of(self, texts: Mapping[int, str], ids: Ids) -> dict[str, int]:
        """Return what the ids of these schemas mean: name of the `txn` → fingerprint, and their messages.

        An id that is itself a fingerprint means the same for ever.
        """
        if ids == "fingerprint":
            return {}
        meanings: dict[str, int] = {}
        for schema_id, text in texts.items():
            fingerprint = fingerprint_of(text)
            if fingerprint is None:
                continue
            name = self.name(schema_id, ids)
            meanings[name] = fingerprint
            message = message_of(text)
            if message is not None:
                meanings[schema_ids.message_name(name, message)] = 1
        return meanings

    def messages(self, ids: Ids) -> set[str]:
        """Return the full names of the Protobuf messages as which rows were decoded."""
        return schema_ids.recorded_messages(self.recorded(), self.prefix(ids))

    def since(self, ids: Ids) -> dict[int, datetime]:
        """Return from when on ids have their meanings, where they had others before."""
        transactions = self.recorded()
        times: dict[int, datetime] = {}
        for schema_id in schema_ids.recorded_meanings(transactions, self.prefix(ids)):
            name = schema_ids.since_name(self.name(schema_id, ids))
            if name in transactions:
                times[schema_id] = instant(transactions[name])
        return times

    def name(self, schema_id: int, ids: Ids) -> str:
        """Return the name of the `txn` of an id."""
        return f"{self.prefix(ids)}{show_id(schema_id)}"

    def prefix(self, ids: Ids) -> str:
        """Return the begin of the names of all ids of a kind."""
        return schema_ids.id_prefix(self.pipeline, registry_name(self.registry, ids), ids)


@dataclass(frozen=True)
class _CheckedSource:
    """A source of schemas that compares each id with its meaning in the table's log."""

    schemas: SchemaSource
    meanings: IdMeanings
    ids: Ids

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text."""
        text = self.schemas.schema(schema_id)
        self._check({schema_id: text})
        return text

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the schemas registered for a topic's values, by id."""
        texts = self.schemas.topic_schemas(topic)
        self._check(texts)
        return texts

    def _check(self, texts: Mapping[int, str]) -> None:
        recorded = self.meanings.recorded()
        changed_names: list[str] = []
        for schema_id, text in texts.items():
            name = self.meanings.name(schema_id, self.ids)
            if name in recorded and recorded[name] != registered_fingerprint(text):
                changed_names.append(name)
        if changed_names:
            raise schema_ids.schema_changed_error(changed_names)


@lru_cache(maxsize=1024)
def registered_fingerprint(text: str) -> int | None:
    """Return the fingerprint of a schema as a source has it; None for what is none. What it says of itself is no fact.

    `text`: of an Avro schema, of a JSON Schema or a Protobuf schema, or the envelope of one.
    """
    try:
        if read_schema(text) is not None:
            return _protobuf_fingerprint(text)
        json_schema = read_envelope(text)
        return schema_fingerprint(text) if json_schema is None else json_schema_fingerprint(*json_schema)
    except UnsupportedSchema:
        return None


def _protobuf_fingerprint(text: str) -> int:
    types = compile_types(text)
    with refuse_unforeseen():
        return types.fingerprint


@lru_cache(maxsize=1024)
def fingerprint_of(text: str) -> int | None:
    """Return a schema's fingerprint; None for what is none, which no row was ever read by.

    `text`: of an Avro schema, of a JSON Schema or a Protobuf schema, the envelope of one, or the record schema that
    became of it.
    """
    try:
        if read_schema(text) is not None:
            return _protobuf_fingerprint(text)
        json_schema = read_envelope(text)
        if json_schema is not None:
            return json_schema_fingerprint(*json_schema)
        recorded = _recorded_fingerprint(text)
        return schema_fingerprint(text) if recorded is None else recorded
    except UnsupportedSchema:
        return None


def _recorded_fingerprint(text: str) -> int | None:
    """Return the fingerprint that the record schema of a JSON Schema or a Protobuf schema has; None of another one."""
    document = read_json(text)
    if not isinstance(document, dict) or document.get(FORMAT) not in _WITH_FINGERPRINT:
        return None
    fingerprint = document.get(FINGERPRINT)
    return fingerprint if type(fingerprint) is int else None


def registry_name(registry: Registry, ids: Ids) -> str:
    """Name the registry that gives ids their meaning: its address, without scheme, login and what is usual.

    So one that is made anew at its address is the same; one at another address is another, whose ids are recorded anew.
    """
    if registry.glue is not None and (ids == "glue" or registry.address is None):
        return id_space(registry.glue)
    if registry.address is None:
        return "files"
    url = registry.address if ids == "confluent" else registry.core_url or registry.address
    return ",".join(sorted(_address(server.strip()) for server in url.split(",")))


def _address(url: str) -> str:
    parts = urlsplit(url)
    port = ""
    if parts.port and parts.port != _PORTS.get(parts.scheme):
        port = f":{parts.port}"
    return f"{parts.hostname or ''}{port}{parts.path.rstrip('/')}"
