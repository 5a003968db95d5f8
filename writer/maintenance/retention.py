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
from writer.table.log.operations import RETENTION, RemovedRows, Rewrite
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

MARK = "retired.json"  # beside the manifests of a bucket
FILES_AT_ONCE = 10_000  # of one entry of the log, which then takes some megabytes
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
    found = group_by_bucket(files)
    spans = {bucket: interval(bucket) for bucket in found}
    old = [
        ExpiredBucket(bucket, span, tuple(found[bucket]))
        for bucket, span in spans.items()
        if span is not None and shift_instant(span[1], kept_for) <= now
    ]
    return sorted(old, key=lambda one: (one.interval, tuple(value or "" for value in one.bucket)))


class Retention:
    """Retention of one table."""

    def __init__(self, table: PipelineTable, bucketer: bucketers.Bucketer, kept_for: timedelta) -> None:
        self._table, self._bucketer, self.kept_for = table, bucketer, kept_for
        self.location, self.columns = table.location, bucketer.columns

    def due(self, now: datetime) -> list[ExpiredBucket]:
        """List what is due; nothing where there is no table. Raises CommitFailed."""
        return self._looked(now)[1] if self._table.exists() else []

    def run(self, now: datetime) -> Iterator[DroppedBucket]:
        """Drop what is due, entry by entry. May be broken off, and run beside the writer. Raises what a commit does."""
        tries = 0
        while self._table.exists():
            snapshot, old = self._looked(now)
            if not old:
                return
            try:
                yield self._drop(snapshot, _some(old), now)
                tries = 0
            except FilesGone:  # another process rewrote files of these buckets meanwhile
                tries += 1
                if tries == _TRIES:
                    raise

    def _looked(self, now: datetime) -> tuple[PipelineSnapshot, list[ExpiredBucket]]:
        """List what is due, with the version that it was listed at."""
        snapshot = self._table.snapshot()
        files = self._table.bucket_files(snapshot)
        return snapshot, due(files, lambda bucket: bucketers.interval(self._bucketer, bucket), self.kept_for, now)

    def _drop(self, snapshot: PipelineSnapshot, old: Sequence[ExpiredBucket], now: datetime) -> DroppedBucket:
        table = self._table
        files = [file for one in old for file in one.files]
        rows = sum(rows_of(table.store, file) for file in files)
        for one in old:
            mark = {"bucket": list(one.bucket), "at": now.isoformat(), "why": RETENTION}
            folder = bucket_path(self._bucketer.columns, one.bucket)
            table.store.put(f"{FOLDER}/{folder}/{MARK}", (json.dumps(mark, ensure_ascii=False) + "\n").encode())
        facts = {"at": now.isoformat(), "buckets": [list(one.bucket) for one in old], "files": len(files)}
        version = table.rewrite(snapshot, Rewrite(uuid4().hex, files, (), RemovedRows(RETENTION, rows), facts))
        return DroppedBucket(
            version, tuple(one.bucket for one in old), rows, len(files), sum(file.bytes for file in files)
        )


def works(pipeline: str, config: Config) -> list[Retention]:
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
        self, pipeline: str, works: Sequence[Retention], seconds: Callable[[], float] = time.monotonic
    ) -> None:
        """`seconds`: a monotonic clock."""
        self._pipeline, self._works, self._seconds = pipeline, works, seconds
        self._due_s = -inf

    def __call__(self, _: object, now: datetime) -> None:
        """Drop what is due. Raises what a commit raises; then it is tried again with the next round."""
        if self._seconds() < self._due_s:
            return
        for work in self._works:
            for one in work.run(now):
                logging.event(
                    "buckets_retired", pipeline=self._pipeline, table=work.location, version=one.version,
                    buckets=len(one.buckets), rows=one.rows, files=one.files, bytes=one.bytes,
                )  # fmt: skip
        self._due_s = self._seconds() + EVERY.total_seconds()


def rows_of(store: Store, file: BucketFile) -> int:
    """Rows of a file, from its own footer where the log does not say. Raises OSError."""
    if file.rows is not None:
        return file.rows
    return int(read_footer(store, file.path).num_rows)


def _some(old: Sequence[ExpiredBucket]) -> list[ExpiredBucket]:
    """Return as many of the oldest as one entry takes; one at least."""
    taken: list[ExpiredBucket] = []
    count = 0
    for one in old:
        count += len(one.files)
        if taken and count > FILES_AT_ONCE:
            break
        taken.append(one)
    return taken
