"""Finds the schema that a plan is made for: one of the registry, of a file, or of columns that are to be declared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.writer.config import loader
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import ConfigError
from headrace.writer.formats.value_rules import TextColumn, ValueRules
from headrace.writer.framing.wire_format import show_id
from headrace.writer.protobuf.message_types import compile_types
from headrace.writer.protobuf.proto_files import PROTO, read_schema_file
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.schemas.record_source import message_record
from headrace.writer.schemas.registry import SchemaSource

# No registry gives this id.
NOT_REGISTERED = -1
_YAML = (".yaml", ".yml")


@dataclass(frozen=True)
class PlannedSchema:
    """A schema as its source has it. `label`: how the command names it. `is_declared`: of columns to declare.

    `message`: full name of a message of a Protobuf schema; None: the only one that it defines.
    """

    schema_id: int
    text: str
    label: str
    is_declared: bool = False
    message: str | None = None

    def record_text(self, rules: ValueRules) -> str:
        """Return the text of its record schema. Raises UnsupportedSchema."""
        if self.is_declared:
            return self.text
        if read_schema(self.text) is None:
            return rules.record_text(self.text)
        rules.check_reads("protobuf")
        return message_record(self.text, rules, self.message or compile_types(self.text).only_name)

    def text_columns(self, rules: ValueRules) -> Sequence[TextColumn]:
        """Return its columns that are JSON text because it gives them no type. Raises UnsupportedSchema."""
        return () if self.is_declared else rules.text_columns(self.text)


def find_planned_schema(
    name: str,
    settings: Pipeline,
    schemas: SchemaSource,
    *,
    schema_id: int | None,
    file: Path | None,
    message: str | None = None,
) -> PlannedSchema:
    """Return the schema that a command names. `message`: of a Protobuf schema. Raises HeadraceError."""
    if not settings.value_rules.has_schemas:
        _check_has_declaration(name, settings, file)
    if file is not None and _is_declaration(settings, file):
        return PlannedSchema(NOT_REGISTERED, _declared_text(settings, file), str(file), is_declared=True)
    if file is not None:
        return PlannedSchema(NOT_REGISTERED, _read(file), str(file), message=message)
    if schema_id is None:
        raise ConfigError("name one schema: --id N for one of the registry, or --file schema.avsc")
    return PlannedSchema(schema_id, schemas.schema(schema_id), f"schema id {show_id(schema_id)}", message=message)


def _check_has_declaration(name: str, settings: Pipeline, file: Path | None) -> None:
    """Raise ConfigError where values name no schema, and the command gives no columns to declare."""
    if "json" not in settings.formats:
        raise ConfigError(
            f"pipeline {name!r}: values of the format raw name no schema, so none changes the table; leave it out"
        )
    if file is None:
        raise ConfigError(
            f"pipeline {name!r}: values of the format json name no schema. Give the columns that are to be declared: "
            "--file columns.yaml, written as columns.declared has them"
        )


def _is_declaration(settings: Pipeline, file: Path) -> bool:
    """Return whether a file has columns to declare: YAML, where the pipeline reads JSON."""
    return "json" in settings.formats and file.suffix in _YAML


def _declared_text(settings: Pipeline, file: Path) -> str:
    """Return the record schema of the columns that a file declares. Raises ConfigError."""
    needs = "it has the members with their types, as columns.declared has them"
    declared = loader.mapping(file, needs, "Give the path of columns to declare (.yaml).")
    try:
        text = replace(settings.value_rules, declared=declared).unnamed_schema
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error
    assert text is not None, "JSON has a record schema"
    return text


def _read(file: Path) -> str:
    try:
        if file.suffix == PROTO:
            return read_schema_file(file)
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why: str | None = "it is no UTF-8 text"
        if isinstance(error, OSError):
            why = error.strerror
        raise ConfigError(f"cannot read {file}: {why}. Give the path of a schema (.avsc, .json, .proto).") from error
