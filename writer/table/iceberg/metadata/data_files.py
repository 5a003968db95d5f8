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

from writer.table.iceberg.metadata.schema import in_files
from writer.table.log.log import Action

_EPOCH, _EPOCH_DAY = datetime(1970, 1, 1, tzinfo=UTC), date(1970, 1, 1)
_OFFSET = "_offset"


def _microseconds(text: str) -> int:
    at = datetime.fromisoformat(text)
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


_VALUES: Mapping[type[IcebergType], Callable[[Any], Any]] = {  # how a bound of Delta's JSON becomes Iceberg's value
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
    ids = {in_files(field.name): field.field_id for field in schema.fields}
    nulls = {ids[name]: count for name, count in stats.get("nullCount", {}).items() if name in ids}
    rows = int(stats["numRecords"])
    values = dict(add["partitionValues"] or {})  # pairs, where a checkpoint has them
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


def add_of(file: DataFile, location: str, schema: Schema, spec: PartitionSpec, at: int) -> Action:
    """Return the `add` that names another client's data file; `at`: milliseconds since 1970."""
    field = next((one for one in schema.fields if one.name == _OFFSET), None)
    stats: dict[str, Any] = {"numRecords": file.record_count}
    if field is not None and isinstance(field.field_type, LongType):
        for name, bounds in (("minValues", file.lower_bounds), ("maxValues", file.upper_bounds)):
            if bounds and field.field_id in bounds:
                stats[name] = {_OFFSET: from_bytes(field.field_type, bounds[field.field_id])}
    return {
        "add": {
            "path": _quoted(file, location), "size": file.file_size_in_bytes, "stats": json.dumps(stats),
            "partitionValues": _values(file, spec), "modificationTime": at, "dataChange": True,
        }
    }  # fmt: skip


def remove_of(file: DataFile, location: str, spec: PartitionSpec, at: int) -> Action:
    """Return the `remove` of a data file; `at`: milliseconds since 1970."""
    return {
        "remove": {
            "path": _quoted(file, location), "deletionTimestamp": at, "dataChange": True, "extendedFileMetadata": True,
            "size": file.file_size_in_bytes, "partitionValues": _values(file, spec),
        }
    }  # fmt: skip


def path_of(file: DataFile, location: str) -> str:
    """Return the path of a data file below the table's location."""
    return relative(file.file_path, location)


def relative(path: str, location: str) -> str:
    """Return a path of the table's metadata, relative to the table's location."""
    return canonical(path).removeprefix(f"{location}/")


def canonical(path: str) -> str:
    """Return the one form by which paths are compared: clients write file:///x, file:/x and /x, and s3a:// for s3://."""
    return re.sub(r"^s3[an]://", "s3://", re.sub(r"^file:(//)?(?=/)", "", path))


def _quoted(file: DataFile, location: str) -> str:
    return quote(path_of(file, location), safe="/=-_.~")


def full_paths(location: str, found: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the whole paths of actions that name files, in the form that `canonical` gives to a manifest's."""
    return {f"{location}/{unquote(one['path'])}" for one in found}


def _values(file: DataFile, spec: PartitionSpec) -> dict[str, str | None]:
    return {
        field.name: None if (value := file.partition[n]) is None else str(value) for n, field in enumerate(spec.fields)
    }


def _bounds(values: Mapping[str, Any], schema: Schema) -> dict[int, bytes] | None:
    found = {}
    for field in schema.fields:
        convert, value = _VALUES.get(type(field.field_type)), values.get(in_files(field.name))
        if convert is not None and value is not None:
            assert isinstance(field.field_type, PrimitiveType), "bounds are those of single values"
            found[field.field_id] = to_bytes(field.field_type, convert(value))
    return found or None
