"""The description of a table that engines need: location, columns, buckets, format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from writer.config.pipelines import Config
from writer.config.table_sections import Catalog, TableFormat
from writer.storage.base import S3Settings
from writer.table.table import PipelineTable

_LOOKED_AT = 10  # commits, for the unit of the event time


@dataclass(frozen=True)
class TableDescription:
    """A table's place, format, columns and time."""

    pipeline: str
    location: str
    format: TableFormat
    columns: pa.Schema  # bucket columns included
    bucket_columns: tuple[str, ...]
    time_field: str  # dots into structs
    time_unit: str = "auto"  # of a plain number: s, ms, us, ns; auto: nothing was committed yet
    id: str = ""  # of the table: a re-created table has another
    s3: S3Settings = field(default_factory=S3Settings)
    # Of an Iceberg table: its catalog, its name there, and the newest metadata file.
    catalog: Catalog | None = None
    identifier: tuple[str, ...] = ()
    metadata: str = ""

    @property
    def ordered(self) -> pa.Schema:
        """All columns, those of the bucket last: a table that grew has them among the others."""
        return pa.schema([*self.data, *(self.columns.field(name) for name in self.bucket_columns)])

    @property
    def data(self) -> pa.Schema:
        """Columns that the files hold: all but those of the bucket."""
        return pa.schema([column for column in self.columns if column.name not in self.bucket_columns])


def described(name: str, config: Config, table: PipelineTable) -> TableDescription:
    """Describe a pipeline's table as it is now. Raises CommitFailed when it cannot be read, or is not there."""
    settings = config.pipelines[name]
    snapshot = table.snapshot()
    metadata = snapshot.state.metadata
    unit = settings.event_time.unit
    if unit == "auto":
        unit = next((facts["time_unit"] for facts in table.recent(_LOOKED_AT) if facts.get("time_unit")), "auto")
    place = config.catalog_place(name, settings.table.location)
    return TableDescription(
        name, settings.table.location, settings.table.format, snapshot.columns(),
        tuple(metadata["partitionColumns"]), settings.event_time.field, unit, metadata["id"], config.s3.settings,
        config.catalog, place.identifier if place else (), table.metadata_file(),
    )  # fmt: skip


def time_type(table: TableDescription) -> pa.DataType | None:
    """Return the type of the event-time column; None where it is not there."""
    head, *steps = table.time_field.split(".")
    at = table.columns.get_field_index(head)
    kind = table.columns.field(at).type if at >= 0 else None
    for step in steps:
        if kind is None or not pa.types.is_struct(kind) or kind.get_field_index(step) < 0:
            return None
        kind = kind.field(step).type
    return kind


def laid_over(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with another laid over it, at any depth."""
    merged = dict(base)
    for key, value in over.items():
        known = merged.get(key)
        both = isinstance(known, dict) and isinstance(value, dict)
        merged[key] = laid_over(known, value) if both else value  # type: ignore[arg-type]
    return merged
