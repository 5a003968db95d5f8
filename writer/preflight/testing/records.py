"""Makes records, as Kafka has them, of those that a test file writes down."""

import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.framing.message_marks import NAME_HEADER
from headrace.writer.framing.wire_format import CONFLUENT, Part, Wire
from headrace.writer.json.envelope import read_envelope
from headrace.writer.preflight.testing.avro_json import AvroEncoder
from headrace.writer.preflight.testing.case_file import CaseFile, RecordSpec
from headrace.writer.preflight.testing.protobuf_json import MessageEncoder
from headrace.writer.protobuf.proto_files import read_schema_file
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.schemas.saved_sample import SavedSample, SavedSchema, SavedSchemas

_FIRST_GUID = 2**127
# Topic, partition and offset.
RecordPosition = tuple[str, int, int]


class Unusable(ValueError):
    """A record that cannot be made. The message has its key."""


def make_sample(
    folder: Path, pipeline: Pipeline, name: str, file: CaseFile, specs: Mapping[str, RecordSpec]
) -> tuple[SavedSample, dict[str, RecordPosition]]:
    """Return the records with their schemas, and where each is by its name. Raises Unusable.

    The schemas are registered for all topics: `registered` first, then in the order of the records that they are of.
    """
    key = pipeline.columns.avro_key
    unnamed = next((name for name in ("json", "raw") if name in pipeline.formats), None)
    values = _Registry(folder, "value", pipeline.wire_of_values or CONFLUENT, unnamed)
    keys = _Registry(folder, "key", (key and key.wire.fixed) or CONFLUENT)
    for path in file.registered:
        values.register(path, "registered")
    topic = file.topic or next(iter(pipeline.topics.names), None)
    rows = list[dict[str, Any]]()
    places = dict[str, RecordPosition]()
    next_offsets = dict[tuple[str, int], int]()
    for label, spec in specs.items():
        where = f"records.{label}"
        source = spec.topic or topic or "", spec.partition
        if not source[0]:
            raise Unusable(f"{where}: it has no topic, and the pipeline names none; set `topic`")
        offset = next_offsets.get(source, 0) if spec.offset is None else spec.offset
        if (*source, offset) in places.values():
            raise Unusable(
                f"{where}: there are two records at {source[0]}/{source[1]}:{offset}; give one another offset"
            )
        places[label] = (*source, offset)
        next_offsets[source] = offset + 1
        headers = _headers(spec.headers)
        if spec.hex is None:
            schema_file = spec.schema_file or file.schema_file
            value = values.encode(spec.value, schema_file, f"{where}.value", headers, spec.message or file.message)
        else:
            value = bytes.fromhex(spec.hex)
        key_schema = spec.key_schema or file.key_schema
        if key_schema is not None:
            key_bytes = keys.encode(spec.key, key_schema, f"{where}.key", headers)
        elif isinstance(spec.key, str):
            key_bytes = spec.key.encode()
        elif spec.key is None:
            key_bytes = None
        else:
            raise Unusable(f"{where}.key: {spec.key!r} is no text; put it in quotes, or give the test a key_schema")
        rows.append(
            {
                "topic": source[0],
                "partition": source[1],
                "offset": offset,
                "timestamp": spec.timestamp or file.now,
                "key": key_bytes,
                "value": value,
                "headers": headers or None,
            }
        )
    rows.sort(key=lambda row: (row["topic"], row["partition"], row["offset"]))
    topics = sorted({row["topic"] for row in rows})
    schemas = SavedSchemas([*values.schemas(topics), *keys.schemas(topics)])
    return SavedSample(name, topics, pa.RecordBatch.from_pylist(rows, schema=RECORDS), schemas), places


def _headers(texts: Mapping[str, str | None]) -> list[dict[str, Any]]:
    return [{"key": name, "value": None if text is None else text.encode()} for name, text in texts.items()]


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; dates and times are ISO-8601 text."""
    return json.dumps(value, ensure_ascii=False, default=lambda time: time.isoformat()).encode()


def encode_text(value: Any, where: str) -> bytes:
    """Return a raw value that is text. Raises Unusable."""
    if not isinstance(value, str):
        raise Unusable(f"{where}: a raw value is text; put it in quotes, or give its bytes as `hex`")
    return value.encode()


class _Registry:
    """The schemas of values, or of keys, with the ids that a producer would write beside them."""

    def __init__(self, folder: Path, part: Part, wire: Wire, unnamed: str | None = None) -> None:
        """`unnamed`: format of values without a schema, json or raw; None: there are none."""
        self._unnamed = unnamed
        self._folder = folder
        self._part = part
        self._wire = wire
        self._ids = dict[Path, int]()
        self._texts = dict[Path, str]()
        self._encoder = cache(AvroEncoder)
        self._message_encoder = cache(MessageEncoder)

    def register(self, path: Path, where: str) -> None:
        """Give a text an id, also one that is no schema, as a registry may have it. Raises Unusable."""
        if path in self._texts:
            return
        try:
            text = read_schema_file(self._folder / path)
            self._ids[path] = self._new_id(text)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise Unusable(f"{where}: {self._folder / path}: {why}") from error
        self._texts[path] = text

    def encoder(self, path: Path, where: str, message: str | None = None) -> Callable[[Any], bytes]:
        """Return the encoder of a schema, which has an id from then on. Raises Unusable.

        `message`: of a Protobuf schema with several.
        """
        self.register(path, where)
        text = self._texts[path]
        if self._part == "value" and read_envelope(text) is not None:
            return encode_json
        try:
            if self._part == "value" and read_schema(text) is not None:
                return self._message_encoder(text, message)
            return self._encoder(text)
        except UnsupportedSchema as error:
            raise Unusable(f"{where}: {self._folder / path}: {error}") from error

    def _new_id(self, text: str) -> int:
        if self._wire.ids == "fingerprint":
            return crc_fingerprint(text)
        if self._wire.schema_id is not None:
            return self._wire.schema_id
        number = len(self._ids) + 1
        # Ids of AWS Glue are numbers of 128 bits.
        if self._wire.ids == "glue":
            return number + _FIRST_GUID
        return number

    def encode(
        self, value: Any, path: Path | None, where: str, headers: list[dict[str, Any]], message: str | None = None
    ) -> bytes | None:
        """Return a value in the wire format, and add to the headers what that needs there; None is none.

        `message`: of a Protobuf schema with several. Raises Unusable.
        """
        if value is None:
            return None
        if path is None and self._unnamed == "json":
            return encode_json(value)
        if path is None and self._unnamed == "raw":
            return encode_text(value, where)
        if path is None:
            raise Unusable(f"{where}: there is no schema for it; set `schema`, of the record or of the test")
        encode = self.encoder(path, where, message)
        message_mark = b""
        style = self._wire.message_style
        in_header = self._wire.kafka_header_value(self._ids[path])
        before_value = self._wire.value_header(self._ids[path])
        try:
            if isinstance(encode, MessageEncoder) and style is not None:
                message_mark = encode.mark_of(style)
            if style == "header_name":
                headers.append({"key": self._wire.header, "value": in_header})
                if message_mark:
                    headers.append({"key": NAME_HEADER, "value": message_mark})
            elif in_header is not None:
                headers.append({"key": self._wire.header, "value": in_header + message_mark})
            else:
                before_value += message_mark
            return before_value + encode(value)
        except ValueError as error:
            raise Unusable(f"{where}: {error}") from error

    def schemas(self, topics: list[str]) -> list[SavedSchema]:
        """Return the schemas, as registered for the topics."""
        ids = self._wire.ids
        return [
            SavedSchema(self._part, ids, self._ids[path], text, tuple(topics)) for path, text in self._texts.items()
        ]
