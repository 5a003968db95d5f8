"""Data files and the bucket that a file belongs to."""

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
    """A file that a version of the table names. None: the log does not tell, as another client wrote it."""

    path: str  # relative to the table
    bucket: BucketKey
    rows: int | None
    bytes: int
    event_time_min: datetime | None = None
    event_time_max: datetime | None = None


@dataclass(frozen=True)
class DataFile:
    """A file of a table. Bounds are of `_offset`; None: the table's log does not tell."""

    path: str  # relative to the table
    rows: int | None
    offset_min: int | None = None
    offset_max: int | None = None
    bytes: int = 0
