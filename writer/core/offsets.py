"""What tables are spoken of in: a partition of a topic's life, offsets of it, a file of a bucket."""

from dataclasses import dataclass
from datetime import datetime

from writer.batch.parquet_files import BucketKey


@dataclass(frozen=True, order=True)
class Part:
    """One partition of one incarnation of a topic: what a frontier belongs to."""

    topic: str
    incarnation: int
    partition: int


@dataclass(frozen=True)
class Range:
    """Offsets [start, end) of one part."""

    part: Part
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise ValueError(f"{self.part}: a range needs 0 <= start <= end, got [{self.start}, {self.end})")


@dataclass(frozen=True)
class BucketFile:
    """A file that a version of the table names. None: the log does not tell, as another client wrote it."""

    path: str  # relative to the table
    bucket: BucketKey
    rows: int | None
    bytes: int
    event_time_min: datetime | None = None
    event_time_max: datetime | None = None
