"""Parses the name of a bucket: its folder, its label, or its start."""

import re
from collections.abc import Iterator
from datetime import datetime

import pyarrow as pa

import bucketers
from writer.batch.staging.bucket_folders import hive_value
from writer.core.errors import ConfigError
from writer.core.files import BucketKey

_CLOCK = re.compile(r"(\d{4}-\d{2}-\d{2})(?:[T ](\d{2})(?:[:-](\d{2}))?(?:[:-](\d{2}))?([bc]?))?")
_EXAMPLE = datetime.fromisoformat("2026-11-20T05:00:00+00:00")


def bucket_of(text: str, bucketer: bucketers.Bucketer) -> BucketKey:
    """Return the bucket that a text names. Raises ConfigError with how buckets of this table are named.

    Known are `hour=2026-11-20T05`, `2026-11-20T05`, `2026-11-20 05:00`, `2026-11-20T05:00Z`; of a daily bucket
    `2026-11-20`; of several columns all of them, with slashes between.
    """
    parts = text.strip().strip("/").split("/")
    if len(parts) != len(bucketer.columns):
        raise ConfigError(f"{text!r} does not name a bucket: this table's are named {_shape(bucketer)}")
    typed = tuple(_value(column, part) for column, part in zip(bucketer.columns, parts, strict=True))
    if not isinstance(bucketer, bucketers.TimeBucketer) or bucketers.interval(bucketer, typed) is not None:
        return typed
    for index, value in enumerate(typed):
        for other in _candidate_labels(value or "", bucketer, index):
            key = (*typed[:index], other, *typed[index + 1 :])
            if bucketers.interval(bucketer, key) is not None:
                return key
    # The table has no bucket by time.
    if _known_shape(bucketer) is None:
        return typed
    raise ConfigError(f"no bucket of this table is named {text!r}; they are named {_shape(bucketer)}")


def _value(column: str, part: str) -> str | None:
    name, equals, _ = part.partition("=")
    if equals and name.lower() == column.lower():
        return hive_value(part)
    return part


def _candidate_labels(text: str, bucketer: bucketers.Bucketer, index: int) -> Iterator[str | None]:
    """Yield labels that a text may mean: less precise if it ends in zeros, or of the instant."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is not None and instant.tzinfo is not None:
        values = _bucket_of_instant(bucketer, instant)
        span = bucketers.interval(bucketer, values)
        if span is not None and span[0] == instant:
            yield values[index]
        return
    match = _CLOCK.fullmatch(text)
    if match is None:
        return
    date, *clock, suffix = match.groups()
    fields = [field or "00" for field in clock]
    for keep in (3, 2, 1, 0):
        if all(field == "00" for field in fields[keep:]):
            yield f"{date}{'T' if keep else ''}{'-'.join(fields[:keep])}{suffix or ''}"


def _bucket_of_instant(bucketer: bucketers.Bucketer, instant: datetime) -> BucketKey:
    """Return the bucket of an instant; columns that go by fields have no value in it."""
    parts = getattr(bucketer, "parts", (bucketer,))
    values: list[str | None] = []
    for part in parts:
        if isinstance(part, bucketers.TimeBucketer):
            rows = pa.table({"x": [0]})
            times = pa.array([instant], pa.timestamp("us", "UTC"))
            values += part.assign(rows, times).values[0]  # type: ignore[attr-defined]
        else:
            values += [None] * len(part.columns)
    return tuple(values)


def _known_shape(bucketer: bucketers.Bucketer) -> BucketKey | None:
    values = _bucket_of_instant(bucketer, _EXAMPLE)
    if bucketers.interval(bucketer, values) is None:
        return None
    return values


def _shape(bucketer: bucketers.Bucketer) -> str:
    example = _known_shape(bucketer) or (None,) * len(bucketer.columns)
    return "/".join(f"{column}={value or '…'}" for column, value in zip(bucketer.columns, example, strict=True))
