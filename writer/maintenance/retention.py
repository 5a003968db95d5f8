"""Drops whole buckets that ended longer ago than the retention, and records the number of rows.

Which ones is a pure decision. They go in entries of kind rewrite, each fenced by the log; Delta keeps their files until
vacuum, a Parquet table removes them at once. A bucket's mark is put before its entry: if that is broken off, the next
run drops it.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from math import inf
from uuid import uuid4

import bucketers
from writer.batch.staging.table_file import read_footer
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.files import BucketFile, BucketKey, group_by_bucket
from writer.core.units import shift_instant
from writer.sealing.manifest import FOLDER, bucket_path
from writer.storage.base import Store
from writer.table.factory import main_table, side_table
from writer.table.log.foreign_writes import FilesGone
from writer.table.log.operations.rows import RETENTION, RemovedRows, Rewrite
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

# A file beside the manifests of a bucket.
MARK = "retired.json"
# Files of one entry of the log, which then takes some megabytes.
FILES_AT_ONCE = 10_000
EVERY = timedelta(minutes=10)
_TRIES = 5
Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class ExpiredBucket:
    """A bucket that is due, and its files."""

    bucket: BucketKey
    interval: Interval
    files: tuple[BucketFile, ...]

    @property
    def bytes(self) -> int:
        """Bytes of its files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class DroppedBucket:
    """What one entry dropped."""

    version: int
    buckets: tuple[BucketKey, ...]
    rows: int
    files: int
    bytes: int


def due(
    files: Iterable[BucketFile], interval: Callable[[BucketKey], Interval | None], kept_for: timedelta, now: datetime
) -> list[ExpiredBucket]:
    """Find the buckets whose end is at least `kept_for` ago, oldest first. A bucket without an interval stays. Pure."""
    expired = []
    for bucket, bucket_files in group_by_bucket(files).items():
        span = interval(bucket)
        if span is not None and shift_instant(span[1], kept_for) <= now:
            expired.append(ExpiredBucket(bucket, span, tuple(bucket_files)))
    return sorted(expired, key=lambda old: (old.interval, tuple(value or "" for value in old.bucket)))


class Retention:
    """Retention of one table."""

    def __init__(self, table: PipelineTable, bucketer: bucketers.Bucketer, kept_for: timedelta) -> None:
        self._table = table
        self._bucketer = bucketer
        self.kept_for = kept_for
        self.location = table.location
        self.columns = bucketer.columns

    def due(self, now: datetime) -> list[ExpiredBucket]:
        """List what is due; nothing where there is no table. Raises CommitFailed."""
        if not self._table.exists():
            return []
        _, expired = self._list_expired(now)
        return expired

    def run(self, now: datetime) -> Iterator[DroppedBucket]:
        """Drop what is due, entry by entry. May be broken off, and run beside the writer. Raises what a commit does."""
        tries = 0
        while self._table.exists():
            snapshot, expired = self._list_expired(now)
            if not expired:
                return
            try:
                yield self._drop(snapshot, _oldest_of_entry(expired), now)
                tries = 0
            except FilesGone:
                # Another process rewrote files of these buckets meanwhile.
                tries += 1
                if tries == _TRIES:
                    raise

    def _list_expired(self, now: datetime) -> tuple[PipelineSnapshot, list[ExpiredBucket]]:
        """List what is due, with the version that it was listed at."""
        snapshot = self._table.snapshot()
        files = self._table.bucket_files(snapshot)
        return snapshot, due(files, lambda bucket: bucketers.interval(self._bucketer, bucket), self.kept_for, now)

    def _drop(self, snapshot: PipelineSnapshot, expired: Sequence[ExpiredBucket], now: datetime) -> DroppedBucket:
        table = self._table
        files = list(chain.from_iterable(bucket.files for bucket in expired))
        buckets = tuple(bucket.bucket for bucket in expired)
        rows = sum(rows_of(table.store, file) for file in files)
        for bucket in buckets:
            mark = {"bucket": list(bucket), "at": now.isoformat(), "why": RETENTION}
            content = json.dumps(mark, ensure_ascii=False) + "\n"
            table.store.put(f"{FOLDER}/{bucket_path(self._bucketer.columns, bucket)}/{MARK}", content.encode())
        facts = {"at": now.isoformat(), "buckets": [list(bucket) for bucket in buckets], "files": len(files)}
        version = table.append(Rewrite(uuid4().hex, files, (), RemovedRows(RETENTION, rows), facts), snapshot)
        return DroppedBucket(version, buckets, rows, len(files), sum(file.bytes for file in files))


def table_retentions(pipeline: str, config: Config) -> list[Retention]:
    """Return the retention of a pipeline's table and of its table of late rows; none where none is set.

    That of its raw table is the first of `config.at_raw(pipeline)`, whose settings are those of a table.
    """
    settings = config.pipelines[pipeline]
    if settings.retention is None or settings.route is not None:
        return []
    bucketer = bucketers.build(settings.bucket)
    tables = (main_table(pipeline, config), side_table(pipeline, config, settings.late_place))
    return [Retention(table, bucketer, settings.retention) for table in tables]


class PeriodicRetention:
    """Retention as a step of the driver's rounds: the buckets are listed now and then, for that reads the log."""

    def __init__(
        self, pipeline: str, retentions: Sequence[Retention], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """`seconds`: a monotonic clock."""
        self._pipeline = pipeline
        self._retentions = retentions
        self._seconds = seconds
        self._due_s = -inf

    def __call__(self, _: object, now: datetime) -> None:
        """Drop what is due. Raises what a commit raises; then it is tried again with the next round."""
        if self._seconds() < self._due_s:
            return
        for retention in self._retentions:
            for dropped in retention.run(now):
                logging.event(
                    "buckets_retired",
                    pipeline=self._pipeline,
                    table=retention.location,
                    version=dropped.version,
                    buckets=len(dropped.buckets),
                    rows=dropped.rows,
                    files=dropped.files,
                    bytes=dropped.bytes,
                )
        self._due_s = self._seconds() + EVERY.total_seconds()


def rows_of(store: Store, file: BucketFile) -> int:
    """Rows of a file, from its own footer where the log does not say. Raises OSError."""
    if file.rows is not None:
        return file.rows
    return int(read_footer(store, file.path).num_rows)


def _oldest_of_entry(expired: Sequence[ExpiredBucket]) -> list[ExpiredBucket]:
    """Return as many of the oldest as one entry takes; one at least."""
    buckets: list[ExpiredBucket] = []
    files = 0
    for bucket in expired:
        files += len(bucket.files)
        if buckets and files > FILES_AT_ONCE:
            break
        buckets.append(bucket)
    return buckets
