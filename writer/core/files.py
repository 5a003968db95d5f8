"""Data files of a table: their buckets, their JSON in reports and entries, and their names before a commit."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from headrace.writer.core.offsets import Source

BucketKey = tuple[str | None, ...]
# Ends the name of the folder where late rows of a table that refuses wait.
HELD_LATE = "_late"


@dataclass(frozen=True)
class StagedFile:
    """A complete Parquet file that no commit names yet. The event times are the bucket's in this task."""

    # Relative to the table, once it is committed.
    path: str
    bucket: BucketKey
    rows: int
    bytes: int
    statistics: str
    event_time_min: datetime
    event_time_max: datetime
    # Counted from what was written.
    rows_by_source: dict[Source, int]


@dataclass(frozen=True)
class BucketFile:
    """A file in a version of the table. None: the log does not hold the value, because another client wrote it."""

    # Relative to the table.
    path: str
    bucket: BucketKey
    rows: int | None
    bytes: int
    event_time_min: datetime | None = None
    event_time_max: datetime | None = None
    offset_min: int | None = None
    offset_max: int | None = None

    def reaches(self, start: int, end: int) -> bool:
        """Return whether it may hold rows at offsets [start, end), of any partition."""
        if self.offset_min is None or self.offset_max is None:
            return True
        return self.offset_min < end and self.offset_max >= start


def group_by_bucket(files: Iterable[BucketFile]) -> dict[BucketKey, list[BucketFile]]:
    """Return the files of each bucket, in the order that they have."""
    files_by_bucket: dict[BucketKey, list[BucketFile]] = {}
    for file in files:
        files_by_bucket.setdefault(file.bucket, []).append(file)
    return files_by_bucket


def staged_name(path: str) -> str:
    """Return where a file waits for its commit.

    Hive's readers pass over names that begin with an underscore. Others pass over names without .parquet.
    """
    return f"_headrace/staged/{path.rpartition('/')[2]}.staged"


def file_to_json(file: StagedFile) -> dict[str, Any]:
    """Write a staged file as JSON values."""
    times = {"event_time_min": file.event_time_min.isoformat(), "event_time_max": file.event_time_max.isoformat()}
    return {**vars(file), **times, "rows_by_source": [[*source, rows] for source, rows in file.rows_by_source.items()]}


def file_from_json(raw: dict[str, Any]) -> StagedFile:
    """Read what `file_to_json` wrote."""
    return StagedFile(
        path=raw["path"],
        bucket=tuple(raw["bucket"]),
        rows=raw["rows"],
        bytes=raw["bytes"],
        statistics=raw["statistics"],
        event_time_min=datetime.fromisoformat(raw["event_time_min"]),
        event_time_max=datetime.fromisoformat(raw["event_time_max"]),
        rows_by_source={(topic, partition): rows for topic, partition, rows in raw["rows_by_source"]},
    )
