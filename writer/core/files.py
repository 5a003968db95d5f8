"""Data files and the bucket that a file belongs to."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

BucketKey = tuple[str | None, ...]


@dataclass(frozen=True)
class StagedFile:
    """A complete Parquet file that no commit names yet. The event times are the bucket's in this task."""

    path: str  # relative to the table, once it is committed
    bucket: BucketKey
    rows: int
    bytes: int
    statistics: str
    event_time_min: datetime
    event_time_max: datetime
    rows_by_source: dict[tuple[str, int], int]  # (topic, partition) → rows, counted from what was written


@dataclass(frozen=True)
class BucketFile:
    """A file in a version of the table. None: the log does not hold the value, because another client wrote it."""

    path: str  # relative to the table
    bucket: BucketKey
    rows: int | None
    bytes: int
    event_time_min: datetime | None = None
    event_time_max: datetime | None = None
    offset_min: int | None = None
    offset_max: int | None = None

    def reaches(self, start: int, end: int) -> bool:
        """Return whether it may hold rows at offsets [start, end), of whatever part."""
        if self.offset_min is None or self.offset_max is None:
            return True
        return self.offset_min < end and self.offset_max >= start


def by_bucket(files: Iterable[BucketFile]) -> dict[BucketKey, list[BucketFile]]:
    """Put the files of each bucket together, in the order that they have."""
    found: dict[BucketKey, list[BucketFile]] = {}
    for file in files:
        found.setdefault(file.bucket, []).append(file)
    return found
