"""Which formats the values of a pipeline have, and the record schemas of what their sources say."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.writer.avro.schema_text import UnsupportedSchema, read_json
from headrace.writer.formats.formats import FORMAT
from headrace.writer.json.declared import declared_record
from headrace.writer.json.envelope import read_encrypting_rule, read_envelope
from headrace.writer.json.json_schema import record_text, text_columns
from headrace.writer.json.record_schema import Misfit, Undeclared
from headrace.writer.protobuf.envelope import read_message

FormatName = Literal["avro", "json_schema", "protobuf", "json", "raw"]
# Formats whose values name a schema of a source.
_WITH_SCHEMAS = frozenset[str](("avro", "json_schema", "protobuf"))
# What a schema of a format is called.
_KINDS: Mapping[str, str] = {
    "avro": "an Avro schema",
    "json_schema": "a JSON Schema",
    "protobuf": "a Protobuf schema",
}
# Begin of the attributes by which a record schema says how values are read; no producer sets them.
_OWN_ATTRIBUTES = "headrace."
_RAW_RECORD = {
    "type": "record",
    "name": "raw",
    FORMAT: "raw",
    "fields": [{"name": "value", "type": ["null", "bytes"], "default": None}],
}


class OtherFormat(UnsupportedSchema):
    """A schema is of a format that the pipeline does not read."""


@dataclass(frozen=True)
class TextColumn:
    """A member of a JSON Schema that has no typed column: its path, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class ValueRules:
    """The formats that a pipeline reads, and what becomes of members of JSON that fit no column.

    `declared`: the columns of JSON without a schema.
    """

    formats: tuple[FormatName, ...] = ("avro",)
    declared: Mapping[str, Any] = field(default_factory=dict)
    undeclared: Undeclared = "rest"
    misfit: Misfit = "dead_letter"

    @property
    def has_schemas(self) -> bool:
        """Whether values may name a schema of a source."""
        return not _WITH_SCHEMAS.isdisjoint(self.formats)

    @property
    def unnamed_schema(self) -> str | None:
        """Text of the record schema of values that name none; None where there are no such values."""
        if "raw" in self.formats:
            return json.dumps(_RAW_RECORD)
        if "json" in self.formats:
            return declared_record(self.declared, self.undeclared, self.misfit)
        return None

    def text_columns(self, text: str) -> list[TextColumn]:
        """Return the columns of a JSON Schema that are JSON text; none of other schemas. Raises UnsupportedSchema."""
        json_schema = read_envelope(text)
        if json_schema is None:
            return []
        return [TextColumn(path, reason) for path, reason in text_columns(*json_schema)]

    def record_text(self, text: str) -> str:
        """Return the text of the record schema of a schema as its source has it.

        What is no JSON is returned as it is, for the parser to refuse. Raises OtherFormat, UnsupportedSchema.
        """
        message = read_message(text)
        if message is not None:
            from headrace.writer.protobuf.record_schema import protobuf_record

            self.check_reads("protobuf")
            return protobuf_record(*message)
        json_schema = read_envelope(text)
        if json_schema is not None:
            self.check_reads("json_schema")
            check_not_encrypted(read_encrypting_rule(text), "JSON Schemas")
            return record_text(*json_schema, undeclared=self.undeclared, misfit=self.misfit)
        try:
            document = read_json(text)
        except UnsupportedSchema:
            return text
        self.check_reads("avro")
        return _without_own_attributes(text, document)

    def check_reads(self, name: FormatName) -> None:
        """Raise OtherFormat where the pipeline does not read values of a format."""
        if name not in self.formats:
            raise OtherFormat(f"it is {_KINDS[name]}, and the pipeline reads {' and '.join(self.formats)}")


def check_not_encrypted(rule: str | None, kinds: str) -> None:
    """Raise UnsupportedSchema where producers encrypt the values of a schema. `kinds`: what such schemas are called."""
    if rule is not None:
        raise UnsupportedSchema(
            f"producers encrypt its values by the rule {rule!r}, and those of {kinds} are not decrypted; register it "
            "without the rule, or send Avro"
        )


def _without_own_attributes(text: str, document: Any) -> str:
    """Return an Avro schema without words that would choose another decoder for its values."""
    if not isinstance(document, dict) or not any(str(key).startswith(_OWN_ATTRIBUTES) for key in document):
        return text
    return json.dumps({key: value for key, value in document.items() if not str(key).startswith(_OWN_ATTRIBUTES)})
