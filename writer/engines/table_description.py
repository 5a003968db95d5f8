"""The description of a table that engines need: location, columns, buckets, format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headrace.writer.config.pipelines import Config
from headrace.writer.config.safe_names import make_identifier
from headrace.writer.config.sections.table import Catalog, TableFormat
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.table import PipelineTable

# How many commits are searched for the unit of the event time.
_LOOKED_AT = 10


@dataclass(frozen=True)
class TableDescription:
    """A table's place, format, columns and time."""

    pipeline: str
    location: str
    format: TableFormat
    # Bucket columns included.
    columns: pa.Schema
    bucket_columns: tuple[str, ...]
    # Dots lead into structs.
    time_field: str
    # The unit of a plain number: s, ms, us, ns; auto: nothing was committed yet.
    time_unit: str = "auto"
    # The table's id: a re-created table has another.
    id: str = ""
    stores: StoreSettings = field(default_factory=StoreSettings)
    # Of an Iceberg table: its catalog, its name there, and the newest metadata file.
    catalog: Catalog | None = None
    identifier: tuple[str, ...] = ()
    metadata: str = ""
    # The name that goes to it by the pipeline's route; None: it is the pipeline's own.
    target: str | None = None

    @property
    def short_name(self) -> str:
        """What engines call it, unless a name is given: as the pipeline, or of a route as its folder."""
        if self.target is None:
            return self.pipeline.replace("-", "_")
        return make_identifier(self.location.rpartition("/")[2])

    @property
    def datasource(self) -> str:
        """What Druid calls it, unless a name is given."""
        if self.target is None:
            return self.pipeline
        return self.short_name

    @property
    def ordered(self) -> pa.Schema:
        """All columns, those of the bucket last: a table that grew has them among the others."""
        return pa.schema([*self.data, *(self.columns.field(name) for name in self.bucket_columns)])

    @property
    def data(self) -> pa.Schema:
        """Columns that the files hold: all but those of the bucket."""
        return pa.schema([column for column in self.columns if column.name not in self.bucket_columns])


def describe_table(name: str, config: Config, table: PipelineTable, target: str | None = None) -> TableDescription:
    """Describe a pipeline's table, or that of a target of its route, as it is now.

    Raises CommitFailed when it cannot be read, or is not there.
    """
    settings = config.pipelines[name]
    snapshot = table.snapshot()
    metadata = snapshot.state.metadata
    unit = settings.event_time.unit
    if unit == "auto":
        unit = next(
            (facts["time_unit"] for facts in table.recent_commits(_LOOKED_AT) if facts.get("time_unit")), "auto"
        )
    catalog_table = config.catalog_place(name, settings.table.location)
    return TableDescription(
        name,
        settings.table.location,
        settings.table.format,
        snapshot.columns(),
        tuple(metadata["partitionColumns"]),
        settings.event_time.field,
        unit,
        metadata["id"],
        config.stores,
        config.catalog,
        catalog_table.identifier if catalog_table else (),
        table.metadata_file(),
        target,
    )


def time_type(table: TableDescription) -> pa.DataType | None:
    """Return the type of the event-time column; None where it is not there."""
    data_type: pa.DataType = pa.struct(list(table.columns))
    for step in table.time_field.split("."):
        if not pa.types.is_struct(data_type) or data_type.get_field_index(step) < 0:
            return None
        data_type = data_type.field(step).type
    return data_type


def merge_json(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with another laid over it, at any depth."""
    merged = dict(base)
    for key, value in over.items():
        base_value = merged.get(key)
        if isinstance(base_value, dict) and isinstance(value, dict):
            merged[key] = merge_json(base_value, value)
        else:
            merged[key] = value
    return merged
