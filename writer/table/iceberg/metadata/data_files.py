"""Turns actions of headrace's log into data files of Iceberg's manifests, and back, without opening a file.

Bounds are those of Delta's statistics: whole milliseconds, text cut at 32 characters and rounded up, none of floats.
They are wider than the values, which Iceberg allows.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote, unquote

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from headrace.writer.table.iceberg.metadata.offset_bounds import OFFSET, find_offset_field
from headrace.writer.table.iceberg.metadata.schema import name_in_files
from headrace.writer.table.log.log import Action

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1)
_AZURE = {"abfs", "abfss", "wasb", "wasbs"}
_AZURE_HOST = re.compile(r"^\w+://([^@/]+@[^./]+)\.(?:dfs|blob)\.core\.windows\.net")


def _microseconds(text: str) -> int:
    timestamp = datetime.fromisoformat(text)
    if timestamp.tzinfo is None:
        timestamp = timestamp.replace(tzinfo=UTC)
    return (timestamp - _EPOCH) // timedelta(microseconds=1)


# How a bound of Delta's JSON becomes Iceberg's value.
_BOUND_CONVERTERS: Mapping[type[IcebergType], Callable[[Any], Any]] = {
    IntegerType: int,
    LongType: int,
    StringType: str,
    DateType: lambda text: (date.fromisoformat(text) - _EPOCH_DAY).days,
    TimestampType: _microseconds,
    TimestamptzType: _microseconds,
}


def data_file(add: Mapping[str, Any], location: str, schema: Schema, spec: PartitionSpec) -> DataFile:
    """Return the data file that an `add` names."""
    stats = json.loads(add.get("stats") or "{}")
    ids = {name_in_files(field.name): field.field_id for field in schema.fields}
    nulls = {ids[name]: count for name, count in stats.get("nullCount", {}).items() if name in ids}
    rows = int(stats["numRecords"])
    # A checkpoint has pairs.
    values = dict(add["partitionValues"] or {})
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{location}/{unquote(add['path'])}",
        file_format=FileFormat.PARQUET,
        partition=Record(*(values.get(field.name) for field in spec.fields)),
        record_count=rows,
        file_size_in_bytes=add["size"],
        column_sizes=None,
        value_counts=dict.fromkeys(nulls, rows) or None,
        null_value_counts=nulls or None,
        nan_value_counts=None,
        lower_bounds=_bounds(stats.get("minValues", {}), schema),
        upper_bounds=_bounds(stats.get("maxValues", {}), schema),
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = spec.spec_id
    return file


def describe_add(file: DataFile, location: str, schema: Schema, spec: PartitionSpec, timestamp_ms: int) -> Action:
    """Return the `add` that names another client's data file; `timestamp_ms`: since 1970."""
    add = {
        "path": _quoted_path(file, location),
        "size": file.file_size_in_bytes,
        "stats": json.dumps(_statistics(file, schema)),
        "partitionValues": _partition_values(file, spec),
        "modificationTime": timestamp_ms,
        "dataChange": True,
    }
    return {"add": add}


def _statistics(file: DataFile, schema: Schema) -> dict[str, Any]:
    """Return Delta's statistics of a file: the number of its rows, and bounds of their offsets."""
    statistics: dict[str, Any] = {"numRecords": file.record_count}
    field = find_offset_field(schema)
    if field is None:
        return statistics
    for name, bounds in (("minValues", file.lower_bounds), ("maxValues", file.upper_bounds)):
        if bounds and field.field_id in bounds:
            statistics[name] = {OFFSET: from_bytes(LongType(), bounds[field.field_id])}
    return statistics


def describe_remove(file: DataFile, location: str, spec: PartitionSpec, timestamp_ms: int) -> Action:
    """Return the `remove` of a data file; `timestamp_ms`: since 1970."""
    remove = {
        "path": _quoted_path(file, location),
        "deletionTimestamp": timestamp_ms,
        "dataChange": True,
        "extendedFileMetadata": True,
        "size": file.file_size_in_bytes,
        "partitionValues": _partition_values(file, spec),
    }
    return {"remove": remove}


def path_of(file: DataFile, location: str) -> str:
    """Return the path of a data file below the table's location."""
    return relative_path(file.file_path, location)


def relative_path(path: str, location: str) -> str:
    """Return a path of the table's metadata, relative to the table's location."""
    return canonical_path(path).removeprefix(f"{location}/")


def canonical_path(path: str) -> str:
    """Return the one form by which paths are compared.

    Clients write file:///x, file:/x and /x; s3a:// for s3://; and wasbs:// with Azure's other host for abfss://.
    """
    scheme, separator, rest = path.partition(":")
    if not separator or scheme in ("s3", "gs"):
        return path
    if scheme in ("s3a", "s3n"):
        return f"s3:{rest}"
    if scheme in _AZURE:
        return _AZURE_HOST.sub(r"abfss://\1.dfs.core.windows.net", path)
    return re.sub(r"^file:(//)?(?=/)", "", path)


def full_paths(location: str, actions: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the full paths of actions that name files, in the form that `canonical_path` gives to a manifest's."""
    return {f"{location}/{unquote(action['path'])}" for action in actions}


def _quoted_path(file: DataFile, location: str) -> str:
    return quote(path_of(file, location), safe="/=-_.~")


def _partition_values(file: DataFile, spec: PartitionSpec) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for index, field in enumerate(spec.fields):
        value = file.partition[index]
        values[field.name] = None if value is None else str(value)
    return values


def _bounds(values: Mapping[str, Any], schema: Schema) -> dict[int, bytes] | None:
    bounds = {}
    for field in schema.fields:
        convert = _BOUND_CONVERTERS.get(type(field.field_type))
        value = values.get(name_in_files(field.name))
        if convert is not None and value is not None:
            assert isinstance(field.field_type, PrimitiveType), "bounds are those of single values"
            bounds[field.field_id] = to_bytes(field.field_type, convert(value))
    return bounds or None
