"""Compacts buckets: in the driver with Spark's tasks, from the command line in this process.

What is decided is in `compaction_plan.py`, how rows are written in `rewrite.py`, what keeps two of them from doubling
rows in `writer/table/`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch.staging.sorting import TakenLimit
from headrace.writer.commit.builder import check_age
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.files import BucketFile, BucketKey, group_by_bucket
from headrace.writer.core.text import plural
from headrace.writer.maintenance.compaction.plan import Piece, Policy, RewritePace, plan
from headrace.writer.maintenance.dedupe.across_buckets import AcrossBuckets, Comparison
from headrace.writer.maintenance.dedupe.neighbours import TableBucket
from headrace.writer.maintenance.rewrite import Job, RewriteResult, Source, UnknownColumn, rewrite
from headrace.writer.schemas.format_detection import unit_of
from headrace.writer.sealing.manifest import bucket_path
from headrace.writer.sealing.rules import SealRefused, is_closed
from headrace.writer.storage.disk_space import scratch
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.log.entries import added_file
from headrace.writer.table.log.foreign_writes import CommitFailed, FilesGone, LiveDeleteFiles
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.row_removal import discard_on_failure, discard_on_refusal
from headrace.writer.table.table import PipelineTable

# Carries jobs out lazily, in their order.
Run = Callable[[Sequence[Job]], Iterable[RewriteResult]]
# Waits some seconds; returns true to end early.
Wait = Callable[[float], object]
_TRIES = 5


@dataclass(frozen=True)
class CompactionResult:
    """What became of one piece of work. `version` is None where another writer came first, and rows stayed."""

    bucket: BucketKey
    version: int | None
    # Files that went.
    removed: int
    # Files that replace them.
    files: int
    rows: int
    bytes_before: int
    bytes: int
    # Rows that dedupe took.
    taken: int
    seconds: float


class Compactor:
    """Rewrites buckets of one pipeline's table."""

    def __init__(
        self,
        name: str,
        settings: Pipeline,
        table: PipelineTable,
        stores: StoreSettings | None,
        across: AcrossBuckets | None = None,
        *,
        late: "Compactor | None" = None,
        of_late_rows: bool = False,
    ) -> None:
        """`across`: for dedupe within a window; `late`: of the table of late rows then; `of_late_rows`: it is that."""
        self._name = name
        self._settings = settings
        self._table = table
        self._stores = stores
        self._across = across
        self._late = late
        self._of_late_rows = of_late_rows
        dedupe = settings.compact.dedupe
        self.policy = Policy(
            settings.roll.target_file_size,
            settings.compact.max_open_files,
            tuple(settings.compact.sort_by),
            dedupe.rule if dedupe else None,
        )
        # A late row may repeat one of the table, whatever their number.
        self._taken_limit = dedupe.limit if dedupe and not of_late_rows else None
        self._bucketer = bucketers.build(settings.bucket)
        # The version up to which the files of open buckets were counted.
        self._counted_version = -1
        # Files that a bucket got since it was merged.
        self._files_added: Counter[BucketKey] = Counter()

    def is_closed(self, snapshot: PipelineSnapshot, bucket: BucketKey) -> bool:
        """Return whether no on-time row comes to a bucket any more."""
        if self._of_late_rows:
            return True
        interval = bucketers.interval(self._bucketer, bucket)
        return interval is not None and is_closed(interval[1], snapshot.closed_until)

    def buckets(self, snapshot: PipelineSnapshot) -> list[BucketKey]:
        """Buckets that have files, in order."""
        buckets = {file.bucket for file in self._table.bucket_files(snapshot)}
        return sorted(buckets, key=lambda bucket: [value or "" for value in bucket])

    def plan(
        self, snapshot: PipelineSnapshot, buckets: Sequence[BucketKey], *, open_too: bool = False
    ) -> dict[BucketKey, list[Piece]]:
        """Look at the files of buckets and choose. `open_too`: merge an open bucket, however few files it has."""
        only_bucket = buckets[0] if len(buckets) == 1 else None
        files = group_by_bucket(self._table.bucket_files(snapshot, only_bucket))
        open_policy = Policy(self.policy.target_file_size, 1) if open_too else self.policy
        pieces_by_bucket = {}
        for bucket in buckets:
            closed = self.is_closed(snapshot, bucket)
            pieces = plan(files.get(bucket, []), self.policy if closed else open_policy, closed=closed)
            if self._of_late_rows:
                # Late rows are only removed: no file of them is merged for its size.
                pieces = [replace(piece, well_sized=frozenset(file.path for file in piece.files)) for piece in pieces]
            pieces_by_bucket[bucket] = pieces
        return pieces_by_bucket

    def carry_out(
        self, snapshot: PipelineSnapshot, pieces: Sequence[Piece], run: Run, taken_limit: TakenLimit | None = None
    ) -> Iterator[CompactionResult]:
        """Rewrite, a piece at a time; each is an entry of its own. Pieces with nothing to do give nothing.

        `snapshot`: where the files were listed. `taken_limit`: of rows that dedupe takes; None: any number. Raises
        HeadraceError when a file is gone, ConfigError for columns that cannot be sorted or deduped by, SealRefused
        beyond the limit, CommitFailed, ForeignChange.
        """
        if not pieces:
            return
        started_s = time.monotonic()
        unit: str = self._settings.event_time.unit
        unit = unit_of(unit, self._table.recent_commits(10) if unit == "auto" else ())
        # Files are read where they lie.
        self._table.publish(snapshot.state.table_version)
        comparisons = [self._compare(piece, snapshot) for piece in pieces]
        jobs = [
            replace(self._job(piece, comparison, snapshot, unit), taken_limit=taken_limit)
            for piece, comparison in zip(pieces, comparisons, strict=True)
        ]
        results = iter(run(jobs))
        for piece, comparison in zip(pieces, comparisons, strict=True):
            started_at = datetime.now(UTC)
            try:
                result = next(results)
            except FileNotFoundError as error:
                is_outdated = comparison is not None and comparison.is_outdated()
                if self._table.snapshot().version == snapshot.version and not is_outdated:
                    raise self._absence(error) from error
                self._log_conflict(piece.files[0].bucket, error)
                # The generator is at its end; the next call plans again.
                return
            except UnknownColumn as error:
                raise ConfigError(f"pipelines.{self._name}: {error}") from error
            if result.exceeds_limit:
                raise self._refusal(piece.files[0].bucket, result)
            if result.removed:
                seconds = time.monotonic() - started_s
                yield self._commit(snapshot, piece, comparison, result, started_at, seconds)
            if self._across and comparison:
                repeats_in = [comparison.buckets[number] for number in result.repeats_in]
                self._across.add_result(comparison.buckets[0], repeats_in)
            started_s = time.monotonic()

    def count_taken(self, snapshot: PipelineSnapshot, pieces: Sequence[Piece], run: Run) -> int:
        """Count the rows that dedupe would take of pieces, and write nothing. Raises as `carry_out` does."""
        jobs = [
            replace(self._job(piece, self._compare(piece, snapshot), snapshot, "us"), only_counts=True)
            for piece in pieces
            if piece.dedupe is not None
        ]
        try:
            return sum(result.taken for result in run(jobs))
        except FileNotFoundError as error:
            if self._table.snapshot().version == snapshot.version:
                raise self._absence(error) from error
            raise HeadraceError(f"the table at {self._table.location} changed meanwhile; look again") from error
        except UnknownColumn as error:
            raise ConfigError(f"pipelines.{self._name}: {error}") from error

    def _absence(self, error: FileNotFoundError) -> HeadraceError:
        """Return what a person is told of a file that is not there."""
        return HeadraceError(
            f"a file that the table at {self._table.location} names is gone: {error}. Restore it; without it the rows "
            "that it held are lost."
        )

    def _refusal(self, bucket: BucketKey, result: RewriteResult) -> SealRefused:
        """Return why a bucket is not deduped, and what a person may do."""
        dedupe = self._settings.compact.dedupe
        assert dedupe is not None, "rows are taken by a key"
        name = self._name_of(bucket)
        share = f"{result.taken:,} of {plural(result.rows, 'row')} of {name} ({result.taken / result.rows:.0%})"
        return SealRefused(
            f"dedupe by {', '.join(dedupe.key)} would take {share}, more than compact.dedupe.max_taken_ratio "
            f"{dedupe.max_taken_ratio:g} allows. If they are repeats, `headrace compact --bucket {name} --yes` takes "
            "them; if not, correct compact.dedupe.key"
        )

    def before_seal(self, bucket: BucketKey, run: Run) -> None:
        """Rewrite a bucket until nothing is left to do. Raises as `carry_out` does, and when others are faster.

        A bucket whose rows another client deleted by delete files stays as it is, unless it is to be deduped. Sealed
        buckets and late rows that turn out to be repeats of its rows go, too.
        """
        self._rewrite_until_done(bucket, run)
        for compactor, key in self._take_due():
            compactor._rewrite_until_done(key, run)  # noqa: SLF001 - the same class
        # Repeats that these rewrites met are of rows that were judged before: they are not asked about.
        self._take_due()

    def rewrite_repeats(self, run: Run) -> Iterator[CompactionResult]:
        """Rewrite, once, what turned out to hold repeats of the rows of buckets that were carried out."""
        for compactor, bucket in self._take_due():
            snapshot = compactor._table.snapshot()  # noqa: SLF001 - the same class
            yield from compactor.carry_out(snapshot, compactor.plan(snapshot, [bucket])[bucket], run)
        self._take_due()

    def _take_due(self) -> list[tuple["Compactor", BucketKey]]:
        """Return the buckets that hold repeats of rows that were judged since the last call, with their compactors."""
        if self._across is None:
            return []
        due = []
        for bucket in self._across.take_due():
            compactor = self if bucket.late == self._of_late_rows else self._late
            if compactor is not None:
                due.append((compactor, bucket.key))
        return due

    def _rewrite_until_done(self, bucket: BucketKey, run: Run) -> None:
        for _ in range(_TRIES):
            snapshot = self._table.snapshot()
            try:
                results = list(self.carry_out(snapshot, self.plan(snapshot, [bucket])[bucket], run, self._taken_limit))
            except LiveDeleteFiles as error:
                # A sealed bucket has each key once.
                if self.policy.dedupe is not None:
                    raise
                self._log_pass_over(bucket, error)
                return
            self._log_results(results)
            if all(result.version is not None for result in results):
                return
        raise CommitFailed(
            f"files of {self._name_of(bucket)} at {self._table.location} change too fast to be rewritten"
        )

    def merge_open(self, run: Run) -> None:
        """Merge open buckets that have too many small files since the last call. Raises as `carry_out` does."""
        limit = self.policy.max_open_files
        snapshot = self._table.snapshot()
        if limit is None or snapshot.version <= self._counted_version:
            return
        buckets = self._growing_buckets(snapshot, limit)
        for bucket in buckets:
            del self._files_added[bucket]
        self._counted_version = snapshot.version
        if not buckets:
            return
        for bucket, pieces in self.plan(snapshot, sorted(buckets, key=str)).items():
            try:
                self._log_results(self.carry_out(snapshot, pieces, run))
            except LiveDeleteFiles as error:
                self._log_pass_over(bucket, error)

    def _growing_buckets(self, snapshot: PipelineSnapshot, limit: int) -> set[BucketKey]:
        """Count the files that buckets got since the last call. Returns those that may have too many."""
        # At the first call of this process, all files are counted when the merge is planned.
        if self._counted_version < 0:
            return set(self.buckets(snapshot))
        columns = snapshot.state.metadata["partitionColumns"]
        for _, actions in self._table.entries(self._counted_version):
            self._files_added.update(added_file(columns, action["add"]).bucket for action in actions if "add" in action)
        return {bucket for bucket, count in self._files_added.items() if count > limit // 2}

    def _log_results(self, results: Iterable[CompactionResult]) -> None:
        for result in results:
            if result.version is not None:
                facts = {**vars(result), "bucket": self._name_of(result.bucket)}
                logging.event("bucket_rewritten", pipeline=self._name, **facts)

    def _commit(
        self,
        snapshot: PipelineSnapshot,
        piece: Piece,
        comparison: Comparison | None,
        rewritten: RewriteResult,
        started_at: datetime,
        seconds: float,
    ) -> CompactionResult:
        """Swap the files of a piece. Returns a result without a version where another writer was faster."""
        removed_paths = set(rewritten.removed)
        removed = [file for file in piece.files if file.path in removed_paths]
        bucket = removed[0].bucket
        result = CompactionResult(
            bucket,
            version=None,
            removed=len(removed),
            files=len(rewritten.files),
            rows=rewritten.rows,
            bytes_before=sum(file.bytes for file in removed),
            bytes=sum(file.bytes for file in rewritten.files),
            taken=rewritten.taken,
            seconds=round(seconds, 3),
        )
        facts = {
            "why": "compact",
            "bucket": list(bucket),
            "at": started_at.isoformat(),
            "removed": result.removed,
            "files": result.files,
            "rows": result.rows,
            "bytes_before": result.bytes_before,
            "bytes": result.bytes,
            "seconds": result.seconds,
        }
        taken = None
        by: Sequence[BucketFile] = ()
        if rewritten.taken:
            taken = RemovedRows("dedupe", rewritten.taken)
            by = comparison.by if comparison else ()
        discard = partial(self._table.discard, rewritten.files)
        with discard_on_failure(discard):
            check_age(started_at, datetime.now(UTC), self._settings.table.orphan_retention)
            swap = Rewrite(uuid4().hex, removed, rewritten.files, taken, facts, by=by)
        try:
            with discard_on_refusal(discard):
                version = self._table.append(swap, snapshot)
        except FilesGone as error:
            self._log_conflict(bucket, error)
            return result
        return replace(result, version=version)

    def _name_of(self, bucket: BucketKey) -> str:
        return bucket_path(self._bucketer.columns, bucket)

    def _log_pass_over(self, bucket: BucketKey, error: LiveDeleteFiles) -> None:
        logging.warning("rewrite_passed_over", pipeline=self._name, bucket=self._name_of(bucket), reason=str(error))

    def _log_conflict(self, bucket: BucketKey, error: Exception) -> None:
        logging.event("rewrite_conflict", pipeline=self._name, bucket=self._name_of(bucket), reason=str(error))

    def _compare(self, piece: Piece, snapshot: PipelineSnapshot) -> Comparison | None:
        if self._across is None or piece.dedupe is None:
            return None
        return self._across.compare(TableBucket(piece.files[0].bucket, self._of_late_rows), snapshot)

    def _job(self, piece: Piece, comparison: Comparison | None, snapshot: PipelineSnapshot, unit: str) -> Job:
        bucket_columns = tuple(snapshot.state.metadata["partitionColumns"])
        settings = self._settings
        return Job(
            self._table.location,
            piece.files[0].bucket,
            bucket_columns,
            columns=pa.schema([column for column in snapshot.columns() if column.name not in bucket_columns]),
            files=tuple(_source(file, piece) for file in piece.files),
            target_file_size=settings.roll.target_file_size,
            budget=settings.memory.buffer,
            times=settings.event_time.rule(unit),
            sort_by=piece.sort_by,
            dedupe=piece.dedupe,
            entropy_bits=settings.table.entropy_bits,
            hidden=self._table.hidden,
            folder=self._table.folder,
            stores=self._stores,
            window=comparison.window if comparison else None,
        )


def _source(file: BucketFile, piece: Piece) -> Source:
    times = None
    if file.event_time_min and file.event_time_max:
        times = (file.event_time_min, file.event_time_max)
    return Source(file.path, times, file.path in piece.well_sized)


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
            started_s = time.monotonic()
            result, cpu_s = context.parallelize([job], 1).map(_rewrite_in_task).collect()[0]
            ended_s = time.monotonic()
            pace.took(ended_s - started_s, cpu_s, context.defaultParallelism, ended_s)
            if isinstance(result, Exception):
                raise result
            yield result

    return run


def _rewrite_in_task(job: Job) -> tuple[RewriteResult | FileNotFoundError | UnknownColumn, float]:
    """Carry a job out in a task. Returns CPU-seconds of all threads of the worker, too, whose only task this is.

    What another try would meet again is told, not raised: Spark would try again.
    """
    started_s = time.process_time()
    result: RewriteResult | FileNotFoundError | UnknownColumn
    try:
        result = rewrite(job, scratch())
    except (FileNotFoundError, UnknownColumn) as error:
        result = error
    return result, time.process_time() - started_s
