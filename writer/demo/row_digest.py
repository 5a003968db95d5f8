"""A digest of the rows that events must become, from the events in Python and from the table in DuckDB.

The digest of a row is a number of 60 bits, from the MD5 of the text of its columns; that of many rows is their sum, so
their order is free. A column that lacks a value, has another, or has that of another row changes the sum.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from headrace.writer.demo.devstack.events import NEW_FIELD

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEX_DIGITS = 15
# A double becomes an integer, because DuckDB and Python print doubles in different ways.
_DOUBLE_FACTOR = 1_000_000
_COLUMNS = (
    "event_id", "event_time", "app_id", "user_id", "session_id", "event_name", "os", "os_version", "country", "city",
    "campaign", "channel", "url", "ip", "revenue", "is_install", "duration_ms", "lat", "lon", "sdk", "tags", "cost",
)  # fmt: skip
_ATTRIBUTION = ("network", "click_time", "touch_count")
# What DuckDB writes as Python does with the functions below; other columns are text.
_SQL: Mapping[str, str] = {
    "event_time": "epoch_us(event_time)",
    "revenue": f"CAST(floor(revenue * {_DOUBLE_FACTOR}) AS BIGINT)",
    "lat": f"CAST(floor(lat * {_DOUBLE_FACTOR}) AS BIGINT)",
    "lon": f"CAST(floor(lon * {_DOUBLE_FACTOR}) AS BIGINT)",
    "tags": "array_to_string(tags, ',')",
}
COLUMN_COUNT = len(_COLUMNS) + len(_ATTRIBUTION) + 1


@dataclass
class RowDigest:
    """The sum of the digests of some events."""

    total: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Add an event."""
        attribution = record.get("attribution") or {}
        texts = [_text(record.get(column)) for column in _COLUMNS]
        texts += [_text(attribution.get(member)) for member in _ATTRIBUTION]
        texts.append(_text(record.get(NEW_FIELD)))
        # The digest is no secret, so MD5 will do, which DuckDB has.
        digest = hashlib.md5("|".join(texts).encode(), usedforsecurity=False)
        self.total += int(digest.hexdigest()[:_HEX_DIGITS], 16)


def row_digest_sql(touch_count: str, new_field: str) -> str:
    """Return the SQL of a row's digest. `touch_count`, `new_field`: expressions of what a format has elsewhere."""
    attribution = ["attribution.network", "epoch_us(attribution.click_time)", touch_count]
    values = [*(_SQL.get(column, column) for column in _COLUMNS), *attribution, new_field]
    texts = ", '|', ".join(f"coalesce(CAST({value} AS VARCHAR), '')" for value in values)
    return f"CAST('0x' || substr(md5(concat({texts})), 1, {_HEX_DIGITS}) AS BIGINT)"


def _text(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case datetime():
            return str((value - _EPOCH) // timedelta(microseconds=1))
        case float():
            return str(math.floor(value * _DOUBLE_FACTOR))
        case Decimal():
            return f"{value:f}"
        case str() | int():
            return str(value)
        case Iterable():
            return ",".join(value)
        case _:
            raise TypeError(f"events hold no {type(value).__name__}")
