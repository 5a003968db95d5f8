"""A source of schemas as record schemas, by the formats that a pipeline reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json, refused_text
from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.framing.wire_format import framed_id, own_schema_id, show_id
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.schemas.registry_client import UnreadableSchema

# Name of the record around a key's schema; no name of the schema is inside a namespace.
KEY_RECORD = "headrace_key"


@dataclass(frozen=True)
class RecordSource:
    """The schemas of a source, each as the text of the record schema that the plan knows."""

    schemas: SchemaSource
    rules: ValueRules

    def schema(self, schema_id: int) -> str:
        """Return a schema's record schema. Raises UnreadableSchema, and as the source does."""
        try:
            return self.rules.record_text(self.schemas.schema(schema_id))
        except UnsupportedSchema as error:
            raise UnreadableSchema(f"schema id {show_id(schema_id)}: {error}") from error

    def topic_schemas(self, topic: str) -> Mapping[int, str]:
        """Return the record schemas of those registered for a topic's values.

        One by which the pipeline cannot read values is a text that no parser takes, and that says why.
        """
        texts: dict[int, str] = {}
        for schema_id, text in self.schemas.topic_schemas(topic).items():
            try:
                texts[schema_id] = self.rules.record_text(text)
            except UnsupportedSchema as error:
                texts[schema_id] = refused_text(str(error))
        return texts


@dataclass(frozen=True)
class FramedSources:
    """The schemas of values in several wire formats: a source for each, whose ids mean its own schemas."""

    sources: tuple[SchemaSource, ...]

    def schema(self, schema_id: int) -> str:
        """Return a schema's record schema. Raises as the source of its format does."""
        number, own_id = own_schema_id(schema_id)
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
