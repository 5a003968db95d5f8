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

from writer.avro.schema_text import UnsupportedSchema, read_json
from writer.avro.wire_format import Ids, Part, show_id
from writer.clients.kafka_sample import RECORDS
from writer.core.errors import ConfigError
from writer.schemas.registry import SchemaNotFound, SchemaSource, by, of_keys

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
        for one in self._mine:
            if one.id == schema_id:
                return one.text
        raise SchemaNotFound(f"schema id {show_id(schema_id)} is not among the schemas of the records")

    def known(self, topic: str) -> Mapping[int, str]:
        """Schemas registered for a topic."""
        return {one.id: one.text for one in self._mine if topic in one.topics}

    def of_keys(self) -> "SavedSchemas":
        """Return those of keys."""
        return replace(self, part="key")

    def by(self, ids: Ids) -> "SavedSchemas":
        """Return those that have ids of a kind."""
        return replace(self, ids=ids)

    @property
    def _mine(self) -> list[SavedSchema]:
        return [one for one in self.saved if (one.part, one.ids) == (self.part, self.ids)]


@dataclass(frozen=True)
class SchemaRecorder:
    """A source that remembers each schema that it gave, so that they can be saved."""

    schemas: SchemaSource
    part: Part = "value"
    ids: Ids = "confluent"
    _found: dict[tuple[Part, Ids, int], SavedSchema] = field(default_factory=dict)

    @property
    def saved(self) -> list[SavedSchema]:
        """What it gave, in that order."""
        return list(self._found.values())

    def schema(self, schema_id: int) -> str:
        """Return a schema's text. Raises SchemaNotFound, RegistryUnreachable."""
        return self._kept(schema_id, self.schemas.schema(schema_id))

    def known(self, topic: str) -> Mapping[int, str]:
        """Schemas registered for a topic. Raises RegistryUnreachable."""
        return {one: self._kept(one, text, topic) for one, text in self.schemas.known(topic).items()}

    def of_keys(self) -> "SchemaRecorder":
        """Return the source of schemas of keys."""
        return replace(self, schemas=of_keys(self.schemas), part="key")

    def by(self, ids: Ids) -> "SchemaRecorder":
        """Return the source by other ids. Raises ConfigError."""
        return replace(self, schemas=by(self.schemas, ids), ids=ids)

    def _kept(self, schema_id: int, text: str, *topics: str) -> str:
        place = self.part, self.ids, schema_id
        known = self._found.get(place, SavedSchema(*place, text))
        self._found[place] = replace(known, topics=tuple(dict.fromkeys((*known.topics, *topics))))
        return text


@dataclass(frozen=True)
class SavedSample:
    """Records as Kafka has them (schema RECORDS), the topics that their pipeline reads, and the schemas of these."""

    pipeline: str
    topics: Sequence[str]
    records: pa.RecordBatch
    schemas: SavedSchemas


def save(path: Path, sample: SavedSample) -> None:
    """Write a sample to a file that does not exist yet. Raises ConfigError."""
    about = {_MARK: _FORMAT, "pipeline": sample.pipeline, "topics": list(sample.topics)}
    records = (
        {**row, "timestamp": row["timestamp"] and row["timestamp"].isoformat().replace("+00:00", "Z"),
         "key": _text(row["key"]), "value": _text(row["value"]),
         "headers": row["headers"] and [[one["key"], _text(one["value"])] for one in row["headers"]]}
        for row in sample.records.to_pylist()  # cold: a sample of some records
    )  # fmt: skip
    lines = [about, *map(_schema_line, sample.schemas.saved), *records]
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False, separators=_SEPARATORS) + "\n" for line in lines)
    except FileExistsError as error:
        raise ConfigError(f"{path} is there already, and is left as it is. Name another file, or remove it.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Name another place.") from error


def load(path: Path) -> SavedSample:
    """Read what `save` wrote. Raises ConfigError, which names the line."""
    at, schemas, rows = 1, list[SavedSchema](), list[dict[str, Any]]()
    try:
        lines = path.read_text(encoding="utf-8").rstrip("\n").split("\n")  # splitlines() knows more ends of a line
        about = json.loads(lines[0])
        if not isinstance(about, dict) or about.get(_MARK) != _FORMAT:
            raise ConfigError(f"{path} holds no sample of this release; write one with `headrace preview --save`")
        for line in lines[1:]:
            at += 1
            document = json.loads(line)
            if "topic" in document:
                rows.append(_record(document))
            else:
                schemas.append(_schema(document))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}. Name a file of `headrace preview --save`.") from error
    except (ValueError, LookupError, TypeError, pa.ArrowException) as error:
        raise ConfigError(f"{path}, line {at}: {error!r}. Each line is a record or a schema.") from error
    records = pa.RecordBatch.from_pylist(rows, schema=RECORDS)
    return SavedSample(about["pipeline"], about["topics"], records, SavedSchemas(schemas))


def _schema_line(one: SavedSchema) -> dict[str, Any]:
    try:
        content = {"schema": read_json(one.text)}
    except UnsupportedSchema:  # no Avro, such as Protobuf
        content = {"text": one.text}
    return {"id": one.id, "ids": one.ids, "of": one.part, "topics": list(one.topics), **content}


def _schema(line: Mapping[str, Any]) -> SavedSchema:
    text = line["text"] if "text" in line else json.dumps(line["schema"])
    return SavedSchema(line["of"], line["ids"], line["id"], text, tuple(line["topics"]))


def _record(line: Mapping[str, Any]) -> dict[str, Any]:
    at, headers = line["timestamp"], line["headers"]
    found = {
        **line, "timestamp": at and datetime.fromisoformat(at), "key": _bytes(line["key"]),
        "value": _bytes(line["value"]),
        "headers": headers and [{"key": name, "value": _bytes(value)} for name, value in headers],
    }  # fmt: skip
    pa.RecordBatch.from_pylist([found], schema=RECORDS)  # raises for a value of another type
    return found


def _text(value: bytes | None) -> str | dict[str, str] | None:
    """Write bytes: as the text that they are, if a person can read it."""
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if text.isprintable() else {"base64": b64encode(value).decode()}


def _bytes(value: str | Mapping[str, str] | None) -> bytes | None:
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else b64decode(value["base64"], validate=True)
