"""A sealed version of a bucket, as hooks get it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from headrace.writer.engines.table_description import TableDescription
from headrace.writer.hooks.base import SealedVersion
from headrace.writer.sealing.manifest import Manifest

START = datetime(2026, 11, 20, 5, tzinfo=UTC)


def sealed_version(
    bucket: tuple[str | None, ...] = ("2026-11-20T05",), *, version: int = 1, entry: int = 9
) -> SealedVersion:
    """Return a version of 30 rows; the columns of the bucket are `hour` and `country`."""
    columns = ("hour", "country")[: len(bucket)]
    manifest = Manifest(
        "clicks", "/lake/clicks", columns, bucket, START, START + timedelta(hours=1), version, 30, 2, 500,
        START, START, 0, 0, 30, "watermark", False, START + timedelta(hours=2), entry - 1, entry,
    )  # fmt: skip
    table = TableDescription("clicks", "/lake/clicks", "delta", pa.schema([]), columns, "at", id="t1")
    return SealedVersion(manifest, entry, table, list, f"/lake/clicks/{manifest.path}")
