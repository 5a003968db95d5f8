"""Compacts buckets: in the driver with Spark's tasks, from the command line in this process.

What is decided is in `compaction_plan.py`, how rows are written in `rewrite.py`, what keeps two of them from doubling
rows in `writer/table/`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa

import bucketers
from writer.commit.builder import check_age
from writer.config.pipeline import Pipeline
from writer.core import logging
from writer.core.errors import ConfigError, HeadraceError
from writer.core.files import BucketKey, group_by_bucket
from writer.maintenance.compaction_plan import Piece, Policy, RewritePace, plan
from writer.maintenance.dedupe.across_buckets import AcrossBuckets, Comparison
from writer.maintenance.dedupe.neighbours import BucketPlace
from writer.maintenance.rewrite import Job, RewriteResult, Source, UnknownColumn, rewrite
from writer.schemas.format_detection import unit_of
from writer.sealing.manifest import bucket_path
from writer.sealing.rules import is_closed
from writer.storage.base import S3Settings
from writer.storage.disk_space import scratch
from writer.table.log.entries import added_file
from writer.table.log.foreign_writes import CommitFailed, FilesGone, LiveDeleteFiles
from writer.table.log.operations import RemovedRows, Rewrite
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

Run = Callable[[Sequence[Job]], Iterable[RewriteResult]]  # lazily, in the order of the jobs
_TRIES = 5
Wait = Callable[[float], object]  # seconds


@dataclass(frozen=True)
class CompactionResult:
    """What became of one piece of work. `version` is None where another writer came first, and rows stayed."""

    bucket: BucketKey
    version: int | None
    removed: int  # files
    files: int
    rows: int
    bytes_before: int
    bytes: int
    taken: int  # rows that dedupe took
    seconds: float


class Compactor:
    """Rewrites buckets of one pipeline's table."""

    def __init__(
        self, name: str, settings: Pipeline, table: PipelineTable, s3: S3Settings | None,
        across: AcrossBuckets | None = None, *, late: "Compactor | None" = None, of_late_rows: bool = False,
    ) -> None:  # fmt: skip
        """`across`: for dedupe within a window; `late`: of the table of late rows then; `of_late_rows`: it is that."""
        self._name, self._settings, self._table, self._s3 = name, settings, table, s3
        self._across, self._late, self._of_late_rows = across, late, of_late_rows
        wanted = settings.compact
        self.policy = Policy(
            settings.roll.target_file_size, wanted.open_files_max, tuple(wanted.sort_by),
            wanted.dedupe.rule if wanted.dedupe else None,
        )  # fmt: skip
        self._bucketer = bucketers.build(settings.bucket)
        self._looked = -1  # version up to which the files of open buckets were counted
        self._added: Counter[BucketKey] = Counter()  # files since a bucket was merged

    def closed(self, snapshot: PipelineSnapshot, bucket: BucketKey) -> bool:
        """Return whether no on-time row comes to a bucket any more."""
        if self._of_late_rows:
            return True
        span = bucketers.interval(self._bucketer, bucket)
        return span is not None and is_closed(span[1], snapshot.closed_until)

    def buckets(self, snapshot: PipelineSnapshot) -> list[BucketKey]:
        """Buckets that have files, in order."""
        found = {file.bucket for file in self._table.bucket_files(snapshot)}
        return sorted(found, key=lambda bucket: [value or "" for value in bucket])

    def planned(
        self, snapshot: PipelineSnapshot, buckets: Sequence[BucketKey], *, open_too: bool = False
    ) -> dict[BucketKey, list[Piece]]:
        """Look at the files of buckets and choose. `open_too`: merge an open bucket, however few files it has."""
        files = group_by_bucket(self._table.bucket_files(snapshot, buckets[0] if len(buckets) == 1 else None))
        open_policy = Policy(self.policy.target_file_size, 1) if open_too else self.policy
        planned = {}
        for bucket in buckets:
            closed = self.closed(snapshot, bucket)
            planned[bucket] = plan(files.get(bucket, []), self.policy if closed else open_policy, closed=closed)
        if self._of_late_rows:  # of these, rows only go
            return {b: [replace(p, whole=frozenset(f.path for f in p.files)) for p in ps] for b, ps in planned.items()}
        return planned

    def carry_out(self, snapshot: PipelineSnapshot, pieces: Sequence[Piece], run: Run) -> Iterator[CompactionResult]:
        """Rewrite, a piece at a time; each is an entry of its own. Pieces with nothing to do give nothing.

        `snapshot`: where the files were listed. Raises HeadraceError when a file is gone, ConfigError for columns that
        cannot be sorted or deduped by, CommitFailed, ForeignChange.
        """
        if not pieces:
            return
        began, configured = time.monotonic(), self._settings.event_time.unit
        unit = unit_of(configured, self._table.recent_commits(10) if configured == "auto" else ())
        self._table.publish(snapshot.state.table_version)  # files are read in their place
        compared = [self._compared(piece, snapshot) for piece in pieces]
        jobs = [self._job(*each, snapshot, unit) for each in zip(pieces, compared, strict=True)]
        done = iter(run(jobs))
        for piece, beside in zip(pieces, compared, strict=True):
            started = datetime.now(UTC)
            try:
                rewritten = next(done)
            except FileNotFoundError as error:
                if self._table.snapshot().version == snapshot.version and not (beside and beside.is_outdated()):
                    raise HeadraceError(
                        f"a file that the table at {self._table.location} names is gone: {error}. Restore it; without "
                        "it the rows that it held are lost."
                    ) from error
                self._conflict(piece.files[0].bucket, error)
                return  # the generator is at its end; the next call plans again
            except UnknownColumn as error:
                raise ConfigError(f"pipelines.{self._name}: {error}") from error
            if rewritten.removed:
                yield self._landed(snapshot, piece, beside, rewritten, started, time.monotonic() - began)
            if self._across and beside:
                self._across.judged(beside.places[0], [beside.places[number] for number in rewritten.repeats_in])
            began = time.monotonic()

    def before_seal(self, bucket: BucketKey, run: Run) -> None:
        """Rewrite a bucket until nothing is left to do. Raises as `carry_out` does, and when others are faster.

        A bucket whose rows another client deleted by delete files stays as it is, unless it is to be deduped. Sealed
        buckets and late rows that turn out to be repeats of its rows go, too.
        """
        self._settle(bucket, run)
        for other, repeats in self._due():
            other._settle(repeats, run)  # noqa: SLF001 - the same class
        list(self._due())  # by rows that were judged before: these buckets were not asked about

    def answers(self, run: Run) -> Iterator[CompactionResult]:
        """Rewrite, once, what turned out to hold repeats of the rows of buckets that were carried out."""
        for other, bucket in list(self._due()):
            snapshot = other._table.snapshot()  # noqa: SLF001 - the same class
            yield from other.carry_out(snapshot, other.planned(snapshot, [bucket])[bucket], run)
        list(self._due())

    def _due(self) -> Iterator[tuple["Compactor", BucketKey]]:
        for place in self._across.due() if self._across else ():
            other = self if place.late == self._of_late_rows else self._late
            if other is not None:
                yield other, place.bucket

    def _settle(self, bucket: BucketKey, run: Run) -> None:
        for _ in range(_TRIES):
            snapshot = self._table.snapshot()
            try:
                done = list(self.carry_out(snapshot, self.planned(snapshot, [bucket])[bucket], run))
            except LiveDeleteFiles as error:
                if self.policy.dedupe is not None:
                    raise  # what is sealed has each key once
                self._pass_over(bucket, error)
                return
            self._log_results(done)
            if all(one.version is not None for one in done):
                return
        raise CommitFailed(f"files of {self._named(bucket)} at {self._table.location} change too fast to be rewritten")

    def merge_open(self, run: Run) -> None:
        """Merge open buckets that have too many small files since the last call. Raises as `carry_out` does."""
        limit = self.policy.open_files_max
        snapshot = self._table.snapshot()
        if limit is None or snapshot.version <= self._looked:
            return
        if self._looked < 0:  # of this process: what was there before, all files tell
            buckets = set(self.buckets(snapshot))
        else:
            columns = snapshot.state.metadata["partitionColumns"]
            for _, actions in self._table.entries(self._looked):
                self._added.update(added_file(columns, action["add"]).bucket for action in actions if "add" in action)
            buckets = {bucket for bucket, count in self._added.items() if count > limit // 2}
        for bucket in buckets:
            del self._added[bucket]
        self._looked = snapshot.version
        for bucket, pieces in self.planned(snapshot, sorted(buckets, key=str)).items() if buckets else ():
            try:
                self._log_results(self.carry_out(snapshot, pieces, run))
            except LiveDeleteFiles as error:
                self._pass_over(bucket, error)

    def _log_results(self, done: Iterable[CompactionResult]) -> None:
        for one in done:
            if one.version is not None:
                logging.event(
                    "bucket_rewritten", pipeline=self._name, **{**vars(one), "bucket": self._named(one.bucket)}
                )

    def _landed(
        self, snapshot: PipelineSnapshot, piece: Piece, beside: Comparison | None, rewritten: RewriteResult,
        started: datetime, seconds: float,
    ) -> CompactionResult:  # fmt: skip
        gone = [file for file in piece.files if file.path in set(rewritten.removed)]
        bucket, size = gone[0].bucket, sum(file.bytes for file in rewritten.files)
        done = CompactionResult(
            bucket, None, len(gone), len(rewritten.files), rewritten.rows, sum(file.bytes for file in gone), size,
            rewritten.taken, round(seconds, 3),
        )  # fmt: skip
        facts = {
            "why": "compact", "bucket": list(bucket), "at": started.isoformat(), "removed": len(gone),
            "files": len(rewritten.files), "rows": rewritten.rows, "bytes_before": done.bytes_before, "bytes": size,
            "seconds": done.seconds,
        }  # fmt: skip
        taken = RemovedRows("dedupe", rewritten.taken) if rewritten.taken else None
        by = beside.by if beside and taken else ()
        check_age(started, datetime.now(UTC), self._settings.table.orphan_retention)
        try:
            version = self._table.rewrite(snapshot, Rewrite(uuid4().hex, gone, rewritten.files, taken, facts, by=by))
        except FilesGone as error:
            self._table.discard(rewritten.files)  # another entry stands where theirs might: none will name them
            self._conflict(bucket, error)
            return done
        except LiveDeleteFiles:
            self._table.discard(rewritten.files)
            raise
        return replace(done, version=version)

    def _named(self, bucket: BucketKey) -> str:
        return bucket_path(self._bucketer.columns, bucket)

    def _pass_over(self, bucket: BucketKey, error: LiveDeleteFiles) -> None:
        logging.warning("rewrite_passed_over", pipeline=self._name, bucket=self._named(bucket), reason=str(error))

    def _conflict(self, bucket: BucketKey, error: Exception) -> None:
        logging.event("rewrite_conflict", pipeline=self._name, bucket=self._named(bucket), reason=str(error))

    def _compared(self, piece: Piece, snapshot: PipelineSnapshot) -> Comparison | None:
        if self._across is None or piece.dedupe is None:
            return None
        return self._across.compared(BucketPlace(piece.files[0].bucket, self._of_late_rows), snapshot)

    def _job(self, piece: Piece, beside: Comparison | None, snapshot: PipelineSnapshot, unit: str) -> Job:
        names = tuple(snapshot.state.metadata["partitionColumns"])
        columns = pa.schema([column for column in snapshot.columns() if column.name not in names])
        settings = self._settings
        sources = tuple(
            Source(f.path, (f.event_time_min, f.event_time_max) if f.event_time_min and f.event_time_max else None,
                   f.path in piece.whole)
            for f in piece.files
        )  # fmt: skip
        return Job(
            self._table.location, piece.files[0].bucket, names, columns, sources, settings.roll.target_file_size,
            settings.memory.buffer, settings.event_time.rule(unit), piece.sort_by, piece.dedupe,
            settings.table.entropy_bits, self._table.hidden, self._table.folder, self._s3,
            beside.window if beside else None,
        )  # fmt: skip


def here(jobs: Sequence[Job]) -> Iterator[RewriteResult]:
    """Carry jobs out in this process."""
    for job in jobs:
        yield rewrite(job)


def in_spark(spark: Any, pool: str, pace: RewritePace, wait: Wait = time.sleep) -> Run:
    """Carry jobs out in Spark's tasks, one at a time and at a pace, which is kept from one call to the next.

    `pool`: of Spark's scheduler; `wait` is called before a job that has to, and returns true to end early.
    """

    def run(jobs: Sequence[Job]) -> Iterator[RewriteResult]:
        context = spark.sparkContext
        for job in jobs:
            owed_s = pace.owed_s(time.monotonic())
            if owed_s and wait(owed_s):
                return
            context.setLocalProperty("spark.scheduler.pool", pool)
            began = time.monotonic()
            found, cpu_s = context.parallelize([job], 1).map(_carried).collect()[0]
            now = time.monotonic()
            pace.took(now - began, cpu_s, context.defaultParallelism, now)
            if isinstance(found, Exception):
                raise found
            yield found

    return run


def _carried(job: Job) -> tuple[RewriteResult | FileNotFoundError | UnknownColumn, float]:
    """Carry a job out in a task. Returns CPU-seconds, too.

    What another try would meet again is told, not raised: Spark would try again.
    """
    began = time.process_time()  # of all threads of the worker, whose only task this is
    try:
        found: RewriteResult | FileNotFoundError | UnknownColumn
        found = rewrite(job, scratch())
    except (FileNotFoundError, UnknownColumn) as error:
        found = error
    return found, time.process_time() - began
