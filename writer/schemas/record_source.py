"""A source of schemas as record schemas, by the formats that a pipeline reads."""

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json, refuse_unforeseen, refused_text
from headrace.writer.core.errors import ConfigError
from headrace.writer.formats.protobuf_format import missing_extra
from headrace.writer.formats.value_rules import ValueRules, check_not_encrypted
from headrace.writer.framing.message_marks import lack_of_message
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    Wire,
    canonical_mark,
    framed_id,
    message_mark,
    message_style,
    own_schema_id,
    show_id,
    with_message,
    without_message,
)
from headrace.writer.protobuf.attributes import FINGERPRINT
from headrace.writer.protobuf.envelope import wrap_message
from headrace.writer.protobuf.message_types import compile_types, read_types
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.schemas.registry_client import UnreadableSchema

# Name of the record around a key's schema; no name of the schema is inside a namespace.
KEY_RECORD = "headrace_key"


@dataclass(frozen=True)
class RecordSource:
    """The schemas of a source, each as the text of the record schema that the plan knows.

    Of a Protobuf schema each message has a record schema, under an id of its own; the id of the schema itself has the
    names of the messages (`headrace.writer.protobuf.message_types`). Where a wire format names no message (bare), the
    schema's only one is meant. `used`: returns the full names of messages that the table has rows of.
    """

    schemas: SchemaSource
    rules: ValueRules
    wire: Wire = CONFLUENT
    used: Callable[[], Collection[str]] = frozenset

    def __post_init__(self) -> None:
        # The configuration alone is also read where nothing is decoded, as by the autoscaler.
        lack = missing_extra()
        if "protobuf" in self.rules.formats and lack is not None:
            raise ConfigError(f"{lack}, where the driver runs and where tasks do")

    def schema(self, schema_id: int) -> str:
        """Return a schema's record schema. Raises UnreadableSchema, and as the source does."""
        text = self.schemas.schema(without_message(schema_id))
        try:
            return self._record_text(text, message_mark(schema_id))
        except UnsupportedSchema as error:
            raise UnreadableSchema(f"schema id {show_id(schema_id)}: {error}") from error

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the record schemas of those registered for a topic's values.

        One by which the pipeline cannot read values is a text that no parser takes, and that says why. Of a Protobuf
        schema with several messages these are the ones that the table has rows of: of the others, records show which
        the topic has.
        """
        texts: dict[int, str] = {}
        for schema_id, text in self.schemas.topic_schemas(topic).items():
            try:
                texts[schema_id] = self._record_text(text, None)
                if read_types(texts[schema_id]) is not None:
                    texts |= self._message_texts(schema_id, text)
            except UnsupportedSchema as error:
                texts[schema_id] = refused_text(str(error))
        return texts

    def _message_texts(self, schema_id: int, text: str) -> dict[int, str]:
        """Return the record schemas of the messages of a Protobuf schema that a start knows, by their ids."""
        types = compile_types(text)
        style = self.wire.message_style
        assert style is not None, "values name their messages"
        names = set(self.used())
        if types.only is not None:
            names.add(types.only_name)
        texts: dict[int, str] = {}
        for mark, name in types.marks(style).items():
            if name in names:
                with suppress(UnsupportedSchema):
                    texts[with_message(schema_id, mark, style)] = self._record_text(text, mark)
        return texts

    def _record_text(self, text: str, mark: bytes | None) -> str:
        """Return the record schema of a schema, or of the message of it that values name. Raises UnsupportedSchema."""
        with refuse_unforeseen():
            return self._make_record_text(text, mark)

    def _make_record_text(self, text: str, mark: bytes | None) -> str:
        schema = read_schema(text)
        if schema is None:
            if mark is not None:
                raise UnsupportedSchema("its values name one of several messages, and it is no Protobuf schema")
            return self.rules.record_text(text)
        self.rules.check_reads("protobuf")
        check_not_encrypted(schema.encrypting_rule, "Protobuf schemas")
        types = compile_types(text)
        if self.wire.format == "bare":
            return message_record(text, self.rules, types.only_name)
        style = self.wire.message_style
        if style is None:
            raise UnsupportedSchema(
                "Protobuf values are read by the ids that serializers of Confluent, Apicurio and AWS Glue write, "
                f"and these have a {self.wire.description}"
            )
        if mark is None:
            return types.text_of(style)
        name = types.marks(style).get(canonical_mark(mark, style))
        if name is None:
            raise UnsupportedSchema(lack_of_message(mark, style))
        return message_record(text, self.rules, name)


def message_record(text: str, rules: ValueRules, message: str) -> str:
    """Return the record schema of a message of a Protobuf schema as a source has it. Raises UnsupportedSchema."""
    rules.check_reads("protobuf")
    types = compile_types(text)
    record = json.loads(rules.record_text(wrap_message(types.files, message)))
    # An id has one meaning, whichever of the messages a value is.
    return json.dumps({**record, FINGERPRINT: types.fingerprint})


@dataclass(frozen=True)
class FramedSources:
    """The schemas of values in several wire formats: a source for each, whose ids mean its own schemas."""

    sources: tuple[SchemaSource, ...]

    def schema(self, schema_id: int) -> str:
        """Return a schema's record schema. Raises as the source of its format does."""
        number, own_id = own_schema_id(schema_id)
        mark = message_mark(schema_id)
        if mark is not None:
            own_id = with_message(own_id, mark, message_style(schema_id))
        return self.sources[number].schema(own_id)

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the record schemas registered for a topic's values, by the ids of all formats."""
        texts: dict[int, str] = {}
        for number, source in enumerate(self.sources):
            for own_id, text in source.topic_schemas(topic).items():
                texts[framed_id(number, own_id)] = text
        return texts


@dataclass(frozen=True)
class KeyRecordSource:
    """Schemas of keys, each as that of the one field of a record."""

    schemas: SchemaSource
    field: str

    def schema(self, schema_id: int) -> str:
        """Return a schema's JSON text."""
        return self._key_record(self.schemas.schema(schema_id))

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the schemas registered for a topic's keys, by id."""
        return {schema_id: self._key_record(text) for schema_id, text in self.schemas.topic_schemas(topic).items()}

    def _key_record(self, text: str) -> str:
        try:
            fields = [{"name": self.field, "type": read_json(text)}]
        except UnsupportedSchema:
            # What is no Avro, such as Protobuf, is rejected as it is.
            return text
        return json.dumps({"type": "record", "name": KEY_RECORD, "fields": fields})
