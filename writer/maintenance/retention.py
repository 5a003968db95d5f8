"""Drops whole buckets that ended longer ago than the retention, and records the number of rows.

Which ones is a pure decision. They go in entries of kind rewrite, each fenced by the log; Delta keeps their files until
vacuum, a Parquet table removes them at once. A bucket's mark is put before its entry: if that is broken off, the next
run drops it. A driver drops by the retention that is in force for a table (`headrace.writer.sealing.retention_wait`).
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from math import inf
from uuid import uuid4

from headrace import bucketers
from headrace.writer.batch.staging.table_file import read_footer
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.files import BucketFile, BucketKey, group_by_bucket
from headrace.writer.core.units import shift_instant
from headrace.writer.sealing.manifest import FOLDER, bucket_path
from headrace.writer.sealing.retention_wait import RetentionWait, forget_retention, read_retention, write_retention
from headrace.writer.sealing.sealer import sealed_targets
from headrace.writer.storage.base import Store
from headrace.writer.table.factory import main_table, side_table
from headrace.writer.table.log.foreign_writes import FilesGone
from headrace.writer.table.log.operations.rows import RETENTION, RemovedRows, Rewrite
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

# A file beside the manifests of a bucket.
MARK = "retired.json"
# Files of one entry of the log, which then takes some megabytes.
FILES_AT_ONCE = 10_000
EVERY = timedelta(minutes=10)
# While a retention waits: that it was accepted is noticed within this time.
WAIT_EVERY = timedelta(minutes=1)
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
        _, expired = self._list_expired(now, self.kept_for)
        return expired

    def run(self, now: datetime) -> Iterator[DroppedBucket]:
        """Drop what is due, entry by entry. May be broken off, and run beside the writer. Raises what a commit does."""
        yield from self._run(now, self.kept_for)

    def run_in_force(self, now: datetime) -> Iterator[DroppedBucket]:
        """Drop as `run` does what is due by the retention in force."""
        in_force = self.find_in_force()
        if in_force is not None:
            yield from self._run(now, in_force)

    def find_in_force(self) -> timedelta | None:
        """Return the longer of the retention that was accepted and this one; None: none was. Raises StoreError."""
        accepted = read_retention(self._table.store)
        return None if accepted is None else max(accepted, self.kept_for)

    def settle(self, now: datetime) -> None:
        """Take this retention into force where that drops nothing: at a start, before records are read.

        It is longer than the one that was accepted, or the first, and nothing is due by it. Raises CommitFailed,
        StoreError.
        """
        if not self._table.exists():
            return
        accepted = read_retention(self._table.store)
        is_first = accepted is None and not self.due(now)
        if is_first or (accepted is not None and self.kept_for > accepted):
            write_retention(self._table.store, self.kept_for, now)

    def accept(self, now: datetime) -> None:
        """Take this retention into force, whatever it drops; nothing where there is no table. Raises StoreError."""
        if self._table.exists():
            write_retention(self._table.store, self.kept_for, now)

    def find_wait(self, now: datetime) -> RetentionWait | None:
        """Return what this retention would drop, where it waits to be accepted. Raises CommitFailed, StoreError."""
        if not self._table.exists():
            return None
        in_force = self.find_in_force()
        if in_force == self.kept_for:
            return None
        expired = self.due(now)
        if in_force is not None:
            # What is due by both goes anyway.
            expired = [bucket for bucket in expired if shift_instant(bucket.interval[1], in_force) > now]
        elif not expired:
            return None
        return RetentionWait(
            self.location,
            self.kept_for,
            in_force,
            len(expired),
            count_rows([file for bucket in expired for file in bucket.files]),
            sum(bucket.bytes for bucket in expired),
            min((bucket.interval[0] for bucket in expired), default=None),
        )

    def _run(self, now: datetime, kept_for: timedelta) -> Iterator[DroppedBucket]:
        tries = 0
        while self._table.exists():
            snapshot, expired = self._list_expired(now, kept_for)
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

    def _list_expired(self, now: datetime, kept_for: timedelta) -> tuple[PipelineSnapshot, list[ExpiredBucket]]:
        """List what is due, with the version that it was listed at."""
        snapshot = self._table.snapshot()
        files = self._table.bucket_files(snapshot)
        return snapshot, due(files, lambda bucket: bucketers.interval(self._bucketer, bucket), kept_for, now)

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
    return [Retention(table, bucketer, settings.retention) for table in _tables_of(pipeline, config)]


def pipeline_retentions(pipeline: str, config: Config) -> list[Retention]:
    """Return the retentions of all tables of a pipeline: its own or those of its route, late rows, raw records.

    Raises CommitFailed.
    """
    settings = config.pipelines[pipeline]
    retentions = table_retentions(pipeline, config)
    if settings.route is not None:
        log = main_table(pipeline, config)
        if log.exists():
            for target in sealed_targets(settings, log.snapshot()):
                retentions += table_retentions(pipeline, config.at_target(pipeline, target))
    if settings.table.raw is not None:
        retentions += table_retentions(pipeline, config.at_raw(pipeline))[:1]
    return retentions


def settle_retentions(pipeline: str, config: Config, now: datetime) -> list[Retention]:
    """Take into force at a start what drops nothing. Returns the retentions. Raises CommitFailed, StoreError.

    Without a retention none is in force any more: the next one waits, if it drops anything.
    """
    settings = config.pipelines[pipeline]
    if settings.retention is None and settings.route is None:
        for table in _tables_of(pipeline, config):
            if table.exists():
                forget_retention(table.store)
    retentions = table_retentions(pipeline, config)
    for retention in retentions:
        retention.settle(now)
    return retentions


def _tables_of(pipeline: str, config: Config) -> tuple[PipelineTable, PipelineTable]:
    return main_table(pipeline, config), side_table(pipeline, config, config.pipelines[pipeline].late_place)


class PeriodicRetention:
    """Retention as a step of the driver's rounds: the buckets are listed now and then, for that reads the log."""

    def __init__(
        self,
        pipeline: str,
        retentions: Sequence[Retention],
        report: Callable[[Mapping[str, RetentionWait | None]], None] = lambda _: None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report` gets by the location of each table its retention that waits, or None.

        `seconds`: a monotonic clock.
        """
        self._pipeline = pipeline
        self._retentions = retentions
        self._report = report
        self._seconds = seconds
        self._due_s = -inf
        # By location, so that each is logged once.
        self._lengths_before = dict[str, tuple[timedelta, timedelta | None]]()

    def __call__(self, _: object, now: datetime) -> None:
        """Drop what is due. Raises what a commit raises; then it is tried again with the next round."""
        if self._seconds() < self._due_s:
            return
        wait_by_location: dict[str, RetentionWait | None] = {}
        for retention in self._retentions:
            for dropped in retention.run_in_force(now):
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
            wait_by_location[retention.location] = retention.find_wait(now)
        self._report(wait_by_location)
        waits = [wait for wait in wait_by_location.values() if wait is not None]
        self._log_waits(waits)
        interval = WAIT_EVERY if waits else EVERY
        self._due_s = self._seconds() + interval.total_seconds()

    def _log_waits(self, waits: Sequence[RetentionWait]) -> None:
        """Log each retention that waits, once."""
        for wait in waits:
            if self._lengths_before.get(wait.table) != (wait.configured, wait.in_force):
                reason = f"{wait.text} until `headrace retention --yes`"
                logging.warning("retention_waits", pipeline=self._pipeline, table=wait.table, reason=reason)
        self._lengths_before = {wait.table: (wait.configured, wait.in_force) for wait in waits}


def count_rows(files: Sequence[BucketFile]) -> int | None:
    """Return the rows of files; None where the log does not say them of each."""
    counts = [file.rows for file in files if file.rows is not None]
    if len(counts) < len(files):
        return None
    return sum(counts)


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
