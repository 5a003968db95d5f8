"""Names of partition fields in the Avro schema of a manifest, as every reader takes them.

Avro has names of ASCII letters, digits and `_`. pyiceberg and Iceberg's Java library leave any Unicode letter in them,
at which DuckDB (1.5.5) ends its process. Readers find fields by their ids; `iceberg-field-name` keeps the name itself.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from pyiceberg.avro.file import MAGIC, META_SCHEMA, AvroFileHeader, AvroOutputFile
from pyiceberg.avro.resolver import construct_writer
from pyiceberg.manifest import DEFAULT_READ_VERSION, ManifestEntry, ManifestWriterV2
from pyiceberg.schema import ICEBERG_FIELD_NAME_PROP
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ODD = re.compile(r"[^A-Za-z0-9_]")
_PARTITION = "partition"  # field of a manifest's data file


def make_avro_names(names: Sequence[str]) -> list[str]:
    """Return a name that Avro allows for each of these distinct names, distinct too. One that it allows stays."""
    taken = {name for name in names if _AVRO_NAME.fullmatch(name)}
    avro_names = []
    for name in names:
        if _AVRO_NAME.fullmatch(name):
            avro_names.append(name)
            continue
        safe = _ODD.sub(_escape, name)
        if safe[:1].isdigit() or not safe:
            safe = f"_{safe}"
        while safe in taken:
            safe += "_"
        taken.add(safe)
        avro_names.append(safe)
    return avro_names


def _escape(character: re.Match[str]) -> str:
    """Write a character as Iceberg's libraries do."""
    return f"_x{ord(character[0]):X}"


class SafeManifestWriter(ManifestWriterV2):
    """Writes a manifest of data files whose partition fields have names that Avro allows."""

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        """Return the file of the manifest's entries."""
        return _SafeAvroFile(
            output_file=self._output_file,
            file_schema=self._with_partition(self.version),
            record_schema=self._with_partition(DEFAULT_READ_VERSION),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


class _SafeAvroFile(AvroOutputFile[ManifestEntry]):
    """An Avro file whose header has safe names. Values carry none, so they stay as they are."""

    def _write_header(self) -> None:
        schema = AvroSchemaConversion().iceberg_to_avro(self.file_schema, schema_name=self.schema_name)
        assert isinstance(schema, dict), "a manifest's schema is a record"
        _rename_partition_fields(schema)
        metadata = {**self.metadata, "avro.schema": json.dumps(schema)}
        construct_writer(META_SCHEMA).write(self.encoder, AvroFileHeader(MAGIC, metadata, self.sync_bytes))


def _rename_partition_fields(schema: dict[str, Any]) -> None:
    data_file = _field(schema, "data_file")["type"]
    fields: list[dict[str, Any]] = _field(data_file, _PARTITION)["type"]["fields"]
    names = [str(field.get(ICEBERG_FIELD_NAME_PROP, field["name"])) for field in fields]
    for field, name, safe in zip(fields, names, make_avro_names(names), strict=True):
        field["name"] = safe
        if safe != name:
            field[ICEBERG_FIELD_NAME_PROP] = name


def _field(record: dict[str, Any], name: str) -> dict[str, Any]:
    field: dict[str, Any] = next(field for field in record["fields"] if field["name"] == name)
    return field
