"""Druid ingestion specs: native batch tasks (`index_parallel`), which need no extension.

A task replaces its intervals: segments of a newer task hide those of an older one, whole. So a bucket that is ingested
again is there once. (docs/adr/0019-hooks-and-their-outbox.md)
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from headrace.writer.core.errors import ConfigError
from headrace.writer.engines import bucket_access
from headrace.writer.engines.table_description import TableDescription, merge_json, time_type
from headrace.writer.storage.locations import in_bucket, on_s3

# The column that a nested event time is copied to.
_TIME = "__headrace_time"
_UNITS = {"s": "posix", "ms": "millis", "us": "micro", "ns": "nano"}
_DIMENSIONS = (
    (pa.types.is_integer, "long"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (pa.types.is_decimal, "double"),
    (pa.types.is_temporal, "long"),
    (pa.types.is_string, "string"),
    (pa.types.is_binary, "string"),
)
Json = dict[str, Any]
Interval = tuple[datetime, datetime]


def bucket_task(
    table: TableDescription,
    files: Sequence[str],
    interval: Interval,
    *,
    datasource: str,
    task_id: str,
    input_source: Mapping[str, Any],
    spec: Mapping[str, Any],
) -> Json:
    """Return the task that puts these files in the place of all that Druid has of the interval.

    `input_source`, `spec`: laid over what is made here. Raises ConfigError.
    """
    span = interval_text(interval)
    source = merge_json(_files(table, files), input_source)
    granularity = {"type": "arbitrary", "queryGranularity": "none", "rollup": False, "intervals": [span]}
    return {
        "type": "index_parallel",
        "id": task_id,
        "spec": merge_json(_spec(table, datasource, source, {"type": "parquet"}, granularity), spec),
    }


def table_task(table: TableDescription, *, datasource: str, segment: str) -> Json:
    """Return the task that ingests the whole table in place of all that Druid has of its intervals."""
    granularity = {"type": "uniform", "segmentGranularity": segment, "queryGranularity": "none", "rollup": False}
    if table.format == "delta":
        source: Json = {"type": "delta", "tablePath": table.location}
        return {"type": "index_parallel", "spec": _spec(table, datasource, source, None, granularity)}
    if on_s3(table.location):
        source = {"type": "s3", "prefixes": [f"{table.location}/"], "objectGlob": "**.parquet", **_endpoint(table)}
    elif cloud := bucket_access.druid_prefixes(table):
        source = cloud
    else:
        source = {"type": "local", "baseDir": table.location, "filter": "*.parquet"}
    return {"type": "index_parallel", "spec": _spec(table, datasource, source, {"type": "parquet"}, granularity)}


def interval_text(interval: Interval) -> str:
    """Write an interval as Druid does."""
    return "/".join(bound.isoformat(timespec="milliseconds").replace("+00:00", "Z") for bound in interval)


def _files(table: TableDescription, paths: Sequence[str]) -> Json:
    """Name the files one by one: nothing else at the location is read."""
    if cloud := bucket_access.druid_objects(table, list(paths)):
        return cloud
    if not in_bucket(table.location):
        return {"type": "local", "files": [f"{table.location}/{path}" for path in paths]}
    bucket, _, prefix = table.location.removeprefix("s3://").partition("/")
    # `uris` would be decoded.
    objects = [{"bucket": bucket, "path": f"{prefix}/{path}"} for path in paths]
    return {"type": "s3", "objects": objects, **_endpoint(table)}


def _endpoint(table: TableDescription) -> Json:
    """Return where S3 is when it is not AWS. Credentials are Druid's own."""
    if table.stores.s3.endpoint is None:
        return {}
    return {
        "endpointConfig": {"url": table.stores.s3.endpoint, "signingRegion": table.stores.s3.region or "us-east-1"},
        "clientConfig": {"enablePathStyleAccess": bool(table.stores.s3.path_style), "disableChunkedEncoding": True},
    }


def _spec(table: TableDescription, datasource: str, source: Json, form: Json | None, granularity: Json) -> Json:
    is_nested = "." in table.time_field
    reading: Json = {}
    if form is not None:
        reading["inputFormat"] = {**form, "flattenSpec": _flatten_spec(table)} if is_nested else form
    time = {"column": _TIME if is_nested else table.time_field, "format": _time_format(table)}
    return {
        "dataSchema": {
            "dataSource": datasource,
            "timestampSpec": time,
            "dimensionsSpec": {"dimensions": _dimensions(table)},
            "granularitySpec": granularity,
        },
        "ioConfig": {"type": "index_parallel", "inputSource": source, **reading, "appendToExisting": False},
        "tuningConfig": {"type": "index_parallel", "partitionsSpec": {"type": "dynamic"}},
    }


def _flatten_spec(table: TableDescription) -> Json:
    """Return the fields that Druid reads: with a flattenSpec it reads only those that it names."""
    roots = [{"type": "root", "name": column.name} for column in table.data]
    steps = [step if step.isidentifier() else f"['{step}']" for step in table.time_field.split(".")]
    time = {"type": "path", "name": _TIME, "expr": f"$.{'.'.join(steps)}"}
    return {"useFieldDiscovery": False, "fields": [*roots, time]}


def _dimensions(table: TableDescription) -> list[Json]:
    """Give every column of the files its type, so that none is guessed from the first rows."""
    dimensions = []
    for column in table.data:
        if column.name != table.time_field:
            kind = next((name for is_kind, name in _DIMENSIONS if is_kind(column.type)), "auto")
            dimensions.append({"type": kind, "name": column.name})
    return dimensions


def _time_format(table: TableDescription) -> str:
    kind = time_type(table)
    where = f"pipelines.{table.pipeline}.event_time"
    if kind is None:
        raise ConfigError(f"{where}.field {table.time_field!r} is no column of the table at {table.location}")
    if pa.types.is_temporal(kind):
        # Druid's Parquet reader gives every timestamp in milliseconds.
        return "millis"
    if pa.types.is_string(kind):
        return "auto"
    if pa.types.is_floating(kind):
        return "posix"
    if table.time_unit not in _UNITS:
        raise ConfigError(f"the unit of {table.time_field!r} is not known before the first commit; set {where}.unit")
    return _UNITS[table.time_unit]
