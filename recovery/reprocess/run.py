"""Reprocesses buckets: first the dead letters at their offsets, then their rows, a bucket at a time.

It raises no epoch and moves no frontier, so the live writer goes on beside it. Whatever dies, the entry of a bucket is
there with its files or it is not. Broken off, it is run again: what is as it should be is left as it is.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal

from headrace import bucketers
from headrace.recovery import identity
from headrace.recovery.backfill import archive_source, source_factory
from headrace.recovery.backfill.raw_source import RawPlace, RawSource
from headrace.recovery.backfill.source import Source
from headrace.recovery.backfill.throttle import BackfillPace, ask_live_lag, lag_max
from headrace.recovery.reprocess.bucket_swap import BucketOutcome, BucketSwap, LateBucketSwap
from headrace.recovery.reprocess.row_offsets import BucketRows, read_bucket_rows
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay, ReplayResult
from headrace.writer.maintenance.dead_letters.selection import Selection, read_dead_letters
from headrace.writer.maintenance.local_pipeline import age_of
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.maintenance.task_pool import TaskPool
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.manifest import bucket_path
from headrace.writer.table.log.foreign_writes import CommitFailed, FilesGone, Overtaken, one_line
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

Origin = Literal["kafka", "raw", "archive"]
# Tries of a bucket whose files other processes rewrite.
_TRIES = 5


@dataclass(frozen=True)
class SourceChoice:
    """Where records are to come from. `columns`: of an archive, by their roles.

    Raises ConfigError for options that do not go together.
    """

    origin: Origin
    archives: Sequence[str] = ()
    columns: str | None = None

    def __post_init__(self) -> None:
        if (self.origin == "archive") != bool(self.archives):
            raise ConfigError("--from archive needs --archive LOCATION, and --archive needs --from archive")
        if self.columns and not self.archives:
            raise ConfigError("--columns speaks of an archive; say which with --from archive --archive LOCATION")

    def open(self, record_table: RecordTable) -> list[Source]:
        """Open it for a pipeline. Raises ConfigError where there is none, or rows made of it would lack something."""
        match self.origin:
            case "kafka":
                return [source_factory.kafka(record_table)]
            case "archive":
                return [archive_source.open_record_archive(record_table, self.archives, self.columns)]
        name = record_table.name
        locations = record_table.table.snapshot().raw_locations
        places = [RawPlace(name, record_table.config, location) for location in reversed(locations)]
        sources: list[Source] = [RawSource(place, own=True) for place in places if place.open().exists()]
        if not sources:
            raise ConfigError(
                f"--from raw: pipeline {name!r} has no raw table. Take --from kafka, as far as Kafka holds the "
                "records, or --from archive; set table.raw to keep records from now on"
            )
        return sources


@dataclass(frozen=True)
class ReprocessRequest:
    """What a person asked for. `buckets`: as `parse_buckets` reads them; `rate`: records a second."""

    buckets: str
    source: SourceChoice
    rate: float | None = None
    by: str = ""


@dataclass(frozen=True)
class BucketPreview:
    """What a reprocess would read of one bucket."""

    bucket: BucketKey
    # Rows with an offset.
    rows: int
    # Rows without one.
    unplaced: int
    # Rows with an offset whose records the source has, as far as it says before it is read.
    available: int
    # The bucket is of the table of late rows.
    late: bool = False


@dataclass
class Preview:
    """What a reprocess would read. `dead_letters`: those at the offsets between the first and the last row."""

    buckets: list[BucketPreview] = field(default_factory=list)
    dead_letters: int = 0


@dataclass
class ReprocessResult:
    """What became of it."""

    buckets: list[BucketOutcome] = field(default_factory=list)
    dead_letters: ReplayResult = field(default_factory=ReplayResult)


class ReprocessRun:
    """A reprocess of buckets of one pipeline's table."""

    def __init__(
        self,
        name: str,
        config: Config,
        schemas: SchemaSource,
        request: ReprocessRequest,
        pool: TaskPool | None = None,
    ) -> None:
        """Open the tables. `pool`: of processes for tasks; None: each task runs in this process.

        Raises ConfigError for a route or what names no bucket, HeadraceError without a table.
        """
        config.one_table(name)
        self.name = name
        self._record_table = RecordTable(name, config, schemas, pool)
        self._request = request
        self._replay = DeadLetterReplay(name, config, schemas)
        self._bucketer = bucketers.build(self._record_table.settings.bucket)
        self._selection = parse_buckets(request.buckets, self._bucketer)

    @property
    def columns(self) -> tuple[str, ...]:
        """Bucket columns of the table."""
        return self._bucketer.columns

    def preview(self) -> Preview:
        """Find what would be read. Raises ConfigError, CommitFailed, SourceFailed."""
        preview = Preview()
        hulls: list[OffsetSet] = []
        with _explain_storage_errors(self._record_table):
            sources = self._request.source.open(self._record_table)
            for table in self._tables():
                self._refresh(table)
                is_late = table is not self._record_table.table
                for bucket in self._buckets(table):
                    _, bucket_rows = self._read_rows(table, bucket)
                    available = bucket_rows.offsets.count_available(sources)
                    preview.buckets.append(
                        BucketPreview(bucket, bucket_rows.rows, bucket_rows.unplaced, available, late=is_late)
                    )
                    if not is_late:
                        hulls.append(bucket_rows.offsets.hull())
            preview.dead_letters = self._count_dead_letters(OffsetSet.union(hulls))
        return preview

    def run(
        self,
        now: datetime,
        listener: Callable[[BucketOutcome], None] = lambda _: None,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> ReprocessResult:
        """Reprocess. `listener` gets each bucket, `on_wait` why it waits. What was committed stays where it fails.

        Raises ConfigError, SourceFailed, LimitReached, CommitFailed, FilesGone or Overtaken when other processes
        rewrite a bucket, or the raw table, again and again.
        """
        result = ReprocessResult()
        pace = self._pace(on_wait)
        facts = {"by": self._request.by or identity.person(), "source": self._request.source.origin}
        with _explain_storage_errors(self._record_table):
            sources = self._request.source.open(self._record_table)
            main_table, *late_tables = self._tables()
            self._refresh(main_table)
            buckets = self._buckets(main_table)
            result.dead_letters = self._replay_dead_letters(buckets, now)
            swap = BucketSwap(self._record_table, sources, pace, facts)
            work = [(swap, bucket) for bucket in buckets]
            for table in late_tables:
                self._refresh(table)
                late_swap = LateBucketSwap(self._record_table, sources, pace, facts)
                work += [(late_swap, bucket) for bucket in self._buckets(table)]
            # Files of this run: their rows are as they should be.
            added_paths: set[str] = set()
            for bucket_swap, bucket in work:
                outcome = self._swap_bucket(bucket_swap, bucket, added_paths, now)
                added_paths.update(outcome.paths)
                result.buckets.append(outcome)
                listener(outcome)
        return result

    def _pace(self, on_wait: Callable[[str], None]) -> BackfillPace:
        return BackfillPace(
            partial(ask_live_lag, self._record_table.config, self.name),
            lag_max(self._record_table.settings.commit.max_delay),
            self._request.rate,
            alive=lambda: None,
            on_wait=on_wait,
        )

    def _swap_bucket(
        self, swap: BucketSwap, bucket: BucketKey, added_paths: Collection[str], now: datetime
    ) -> BucketOutcome:
        """Swap one bucket; once more when another process rewrote its files meanwhile."""
        for attempt in range(1, _TRIES + 1):
            snapshot, bucket_rows = self._read_rows(swap.table, bucket, added_paths)
            if not bucket_rows.rows:
                return BucketOutcome(bucket, unplaced=bucket_rows.unplaced)
            try:
                outcome = swap.run(snapshot, bucket_rows, now)
            except (FilesGone, FileNotFoundError, Overtaken) as error:
                logging.event("reprocess_conflict", **self._event_facts(bucket), reason=one_line(error))
                if attempt == _TRIES or _is_lost(error, swap.table, snapshot):
                    raise
                continue
            if outcome.version is not None:
                facts = {key: fact for key, fact in vars(outcome).items() if key not in ("bucket", "into", "paths")}
                logging.event("bucket_reprocessed", **self._event_facts(bucket), **facts)
            return outcome
        raise AssertionError

    def _read_rows(
        self, table: PipelineTable, bucket: BucketKey, excluded_paths: Collection[str] = ()
    ) -> tuple[PipelineSnapshot, BucketRows]:
        """Read the offsets of a bucket's rows; again when its files were rewritten meanwhile."""
        for attempt in range(1, _TRIES + 1):
            snapshot = self._refresh(table)
            try:
                return snapshot, read_bucket_rows(table, snapshot, bucket, excluded_paths)
            except FileNotFoundError as error:
                if attempt == _TRIES or _is_lost(error, table, snapshot):
                    raise
        raise AssertionError

    def _refresh(self, table: PipelineTable) -> PipelineSnapshot:
        """Apply pending side files, and publish the files of a table. Returns its newest version."""
        snapshot = self._record_table.refresh()
        if table is not self._record_table.table:
            snapshot = table.snapshot()
        # Also publishes files of an entry whose writer died.
        table.publish(snapshot.state.table_version)
        return snapshot

    def _tables(self) -> list[PipelineTable]:
        """Return the table, and that of late rows where there is one."""
        tables = [self._record_table.table]
        late_table = self._record_table.tables.side(self._record_table.settings.late_place)
        if late_table.exists():
            tables.append(late_table)
        return tables

    def _buckets(self, table: PipelineTable) -> list[BucketKey]:
        """Return the buckets of a table that are asked for."""
        buckets = {file.bucket for file in table.bucket_files(table.snapshot())}
        return self._selection.choose(buckets)

    def _count_dead_letters(self, offsets: OffsetSet) -> int:
        """Count the dead letters at these offsets."""
        if not offsets:
            return 0
        table = self._record_table.tables.side(self._record_table.settings.dead_letters)
        files = table.bucket_files(table.snapshot())
        return sum(batch.num_rows for batch in read_dead_letters(table.store, files, _dead_letters_at(offsets)))

    def _replay_dead_letters(self, buckets: Sequence[BucketKey], now: datetime) -> ReplayResult:
        """Replay the dead letters between the first and the last row of the buckets, but none that was only late."""
        hulls: list[OffsetSet] = []
        max_age = timedelta(0)
        for bucket in buckets:
            _, bucket_rows = self._read_rows(self._record_table.table, bucket)
            hulls.append(bucket_rows.offsets.hull())
            if bucket_rows.rows:
                max_age = max(max_age, age_of(bucket_rows.first_time, now))
        offsets = OffsetSet.union(hulls)
        if not self._count_dead_letters(offsets):
            return ReplayResult()
        return self._replay.run(_dead_letters_at(offsets), now, max_age)

    def _event_facts(self, bucket: BucketKey) -> dict[str, Any]:
        return {"pipeline": self.name, "bucket": bucket_path(self.columns, bucket)}


def _dead_letters_at(offsets: OffsetSet) -> Selection:
    """Choose dead letters by their offsets. One that was only late stays late, as in the table of late rows."""
    return Selection(within=offsets, without_late=True)


@contextmanager
def _explain_storage_errors(record_table: RecordTable) -> Iterator[None]:
    """Raise CommitFailed where the storage of the table fails, HeadraceError for a file that is gone."""
    location = record_table.table.location
    try:
        yield
    except HeadraceError:
        raise
    except FileNotFoundError as error:
        raise HeadraceError(
            f"a file that the table at {location} names is gone: {one_line(error)}. Restore it; without it the rows "
            "that it held are lost."
        ) from error
    except OSError as error:
        raise CommitFailed(f"cannot read {location}: {one_line(error)}") from error


def _is_lost(error: Exception, table: PipelineTable, snapshot: PipelineSnapshot) -> bool:
    """Return whether a file is gone that the newest version of the table still names."""
    return isinstance(error, FileNotFoundError) and table.snapshot().version == snapshot.version
