"""Delta's per-file statistics, from what the Parquet writer already knows. Never a bound that could hide a row.

Left out: floats (NaN has no place in an order all engines share), decimals, booleans, binary, nested fields. Strings
are cut at 32 characters, the maximum rounded up; timestamps are widened to whole milliseconds, for readers that
truncate.
"""

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow.parquet as pq

COLUMNS_MAX = 40  # a log entry stays small also for tables of many hundred columns
_TEXT_MAX = 32
_LAST_CHARACTER = "\U0010ffff"
_LAST_INSTANT = datetime.max.replace(tzinfo=UTC)


def delta_statistics(metadata: pq.FileMetaData) -> str:
    """Return Delta's `stats` JSON for one file: numRecords, minValues, maxValues, nullCount."""
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    names = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
    flat = [i for i, name in enumerate(names) if "." not in name]
    # The last columns are the provenance, which a record is looked up by.
    chosen = flat if len(flat) <= COLUMNS_MAX else flat[: COLUMNS_MAX - 5] + flat[-5:]
    for i in chosen:
        bounds = [metadata.row_group(g).column(i).statistics for g in range(metadata.num_row_groups)]
        if any(b is None or not b.has_null_count for b in bounds):
            continue
        nulls[names[i]] = sum(b.null_count for b in bounds)
        with_values = [
            b for b, g in zip(bounds, range(metadata.num_row_groups), strict=True) if _has_values(metadata, g, b)
        ]
        if not with_values or not all(b.has_min_max for b in with_values):
            continue
        smallest, largest = _floor(min(b.min for b in with_values)), _ceiling(max(b.max for b in with_values))
        if smallest is not None and largest is not None:
            low[names[i]], high[names[i]] = smallest, largest
    stats = {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}
    # As text, not escaped: delta-rs reads the escapes of U+20000 to U+2FFFF as other, lower characters.
    return json.dumps(stats, separators=(",", ":"), ensure_ascii=False)


def _has_values(metadata: pq.FileMetaData, group: int, bounds: pq.Statistics) -> bool:
    return bool(bounds.null_count < metadata.row_group(group).num_rows)


def _floor(value: Any) -> Any:
    match value:
        case bool() | float() | bytes():
            return None
        case int():
            return value
        case str():
            return value[:_TEXT_MAX]
        case datetime():
            return _milliseconds(value)
        case date():
            return value.isoformat()
        case _:
            return None


def _ceiling(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return None if value[_TEXT_MAX] == _LAST_CHARACTER else value[:_TEXT_MAX] + _LAST_CHARACTER
    if isinstance(value, datetime) and value.microsecond % 1000:
        up = timedelta(microseconds=1000 - value.microsecond % 1000)
        return None if value > _LAST_INSTANT - up else _milliseconds(value + up)
    return _floor(value)


def _milliseconds(value: datetime) -> str:
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
