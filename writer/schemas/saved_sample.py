"""Keeps a sample of records in one file, with the schemas that they need, and reads it without Kafka and registry.

The file has a JSON object on each line: first what the sample is of, then the schemas, then the records. Bytes that are
text stand as text, others as `{"base64": …}`.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.core.errors import ConfigError, file_error
from headrace.writer.framing.wire_format import Ids, Part, show_id
from headrace.writer.schemas.registry import SchemaNotFound, SchemaSource, of_keys, with_ids

_FORMAT = 1
_MARK = "headrace_sample"
_SEPARATORS = (", ", ": ")


@dataclass(frozen=True)
class SavedSchema:
    """A schema by one of its ids. `topics`: those under whose subjects it is registered."""

    part: Part
    ids: Ids
    id: int
    text: str
    topics: tuple[str, ...] = ()


@dataclass(frozen=True)
class SavedSchemas:
    """The schemas of a file, or of a test."""

    saved: Sequence[SavedSchema]
    part: Part = "value"
    ids: Ids = "confluent"

    def schema(self, schema_id: int) -> str:
        """Return a schema's text. Raises SchemaNotFound."""
        for schema in self._selected:
            if schema.id == schema_id:
                return schema.text
        raise SchemaNotFound(f"schema id {show_id(schema_id)} is not among the schemas of the records")

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the schemas registered for a topic."""
        return {schema.id: schema.text for schema in self._selected if topic in schema.topics}

    def of_keys(self) -> "SavedSchemas":
        """Return those of keys."""
        return replace(self, part="key")

    def with_ids(self, ids: Ids) -> "SavedSchemas":
        """Return those that have ids of a kind."""
        return replace(self, ids=ids)

    @property
    def _selected(self) -> list[SavedSchema]:
        """The schemas of this part and kind of ids."""
        return [schema for schema in self.saved if (schema.part, schema.ids) == (self.part, self.ids)]


@dataclass(frozen=True)
class SchemaRecorder:
    """A source that remembers each schema that it gave, so that they can be saved."""

    schemas: SchemaSource
    part: Part = "value"
    ids: Ids = "confluent"
    _saved_schemas: dict[tuple[Part, Ids, int], SavedSchema] = field(default_factory=dict)

    @property
    def saved(self) -> list[SavedSchema]:
        """The schemas that it gave, in that order."""
        return list(self._saved_schemas.values())

    def schema(self, schema_id: int) -> str:
        """Return a schema's text. Raises SchemaNotFound, RegistryUnreachable."""
        text = self.schemas.schema(schema_id)
        self._record(schema_id, text)
        return text

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the schemas registered for a topic. Raises RegistryUnreachable."""
        texts = dict(self.schemas.topic_schemas(topic))
        for schema_id, text in texts.items():
            self._record(schema_id, text, topic)
        return texts

    def of_keys(self) -> "SchemaRecorder":
        """Return the source of schemas of keys."""
        return replace(self, schemas=of_keys(self.schemas), part="key")

    def with_ids(self, ids: Ids) -> "SchemaRecorder":
        """Return the source by other ids. Raises ConfigError."""
        return replace(self, schemas=with_ids(self.schemas, ids), ids=ids)

    def _record(self, schema_id: int, text: str, *topics: str) -> None:
        key = (self.part, self.ids, schema_id)
        schema = self._saved_schemas.get(key, SavedSchema(*key, text))
        self._saved_schemas[key] = replace(schema, topics=tuple(dict.fromkeys((*schema.topics, *topics))))


@dataclass(frozen=True)
class SavedSample:
    """Records as Kafka has them (schema RECORDS), the topics that their pipeline reads, and the schemas of these."""

    pipeline: str
    topics: Sequence[str]
    records: pa.RecordBatch
    schemas: SavedSchemas


def save(path: Path, sample: SavedSample) -> None:
    """Write a sample to a file that does not exist yet. Raises ConfigError, FileUnavailable."""
    about = {_MARK: _FORMAT, "pipeline": sample.pipeline, "topics": list(sample.topics)}
    # This path is cold: a sample has some records.
    records = sample.records.to_pylist()
    lines = [about, *map(_schema_line, sample.schemas.saved), *map(_record_line, records)]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False, separators=_SEPARATORS) + "\n" for line in lines)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already, and is left as it is. Name another file, or remove it.") from error
    except OSError as error:
        raise file_error(f"{path} cannot be written: {error.strerror}. Name another place.", error) from error


def load(path: Path) -> SavedSample:
    """Read what `save` wrote. Raises ConfigError, which names the line."""
    schemas: list[SavedSchema] = []
    rows: list[dict[str, Any]] = []
    line_number = 1
    try:
        # splitlines() would also split at other characters, which a JSON text may have.
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        about = json.loads(lines[0])
        if not isinstance(about, dict) or about.get(_MARK) != _FORMAT:
            raise ConfigError(f"{path} holds no sample of this release; write one with `headrace preview --save`")
        for line in lines[1:]:
            line_number += 1
            document = json.loads(line)
            if "topic" in document:
                rows.append(_parse_record(document))
            else:
                schemas.append(_parse_schema(document))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Name a file of `headrace preview --save`.") from error
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise ConfigError(f"{path}, line {line_number}: {error!r}. Each line is a record or a schema.") from error
    records = pa.RecordBatch.from_pylist(rows, schema=RECORDS)
    return SavedSample(about["pipeline"], about["topics"], records, SavedSchemas(schemas))


def _schema_line(schema: SavedSchema) -> dict[str, Any]:
    try:
        content = {"schema": read_json(schema.text)}
    except UnsupportedSchema:
        # It is no Avro, but such as Protobuf.
        content = {"text": schema.text}
    return {"id": schema.id, "ids": schema.ids, "of": schema.part, "topics": list(schema.topics), **content}


def _record_line(record: Mapping[str, Any]) -> dict[str, Any]:
    timestamp = record["timestamp"]
    if timestamp:
        timestamp = timestamp.isoformat().replace("+00:00", "Z")
    headers = record["headers"]
    if headers:
        headers = [[header["key"], _encode_bytes(header["value"])] for header in headers]
    return {
        **record,
        "timestamp": timestamp,
        "key": _encode_bytes(record["key"]),
        "value": _encode_bytes(record["value"]),
        "headers": headers,
    }


def _parse_schema(line: Mapping[str, Any]) -> SavedSchema:
    text = line["text"] if "text" in line else json.dumps(line["schema"])
    return SavedSchema(line["of"], line["ids"], line["id"], text, tuple(line["topics"]))


def _parse_record(line: Mapping[str, Any]) -> dict[str, Any]:
    timestamp = line["timestamp"]
    if timestamp:
        timestamp = datetime.fromisoformat(timestamp)
    headers = line["headers"]
    if headers:
        headers = [{"key": name, "value": _decode_bytes(value)} for name, value in headers]
    record = {
        **line,
        "timestamp": timestamp,
        "key": _decode_bytes(line["key"]),
        "value": _decode_bytes(line["value"]),
        "headers": headers,
    }
    # This raises for a value of another type.
    pa.RecordBatch.from_pylist([record], schema=RECORDS)
    return record


def _encode_bytes(value: bytes | None) -> str | dict[str, str] | None:
    """Write bytes: as the text that they are, if a person can read it."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
    return text if text.isprintable() else {"base64": b64encode(value).decode()}


def _decode_bytes(value: str | Mapping[str, str] | None) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"], validate=True)
