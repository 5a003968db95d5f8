"""Reprocesses buckets: first the dead letters at their offsets, then their rows, a bucket at a time.

It raises no epoch and moves no frontier, so the live writer goes on beside it. Whatever dies, the entry of a bucket is
there with its files or it is not. Broken off, it is run again: what is as it should be is left as it is.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import bucketers
from recovery import identity
from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.source import Source
from recovery.backfill.throttle import BackfillPace, lag_max, live_lag
from recovery.reprocess.bucket_rows import BucketRows, chosen, rows_of
from recovery.reprocess.bucket_swap import BucketOutcome, BucketSwap
from recovery.reprocess.late_swap import LateSwap
from recovery.reprocess.places import hull, ranges
from recovery.reprocess.sources import SourceChoice
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.core.files import BucketKey
from writer.core.offsets import Span, TopicPartition, joined
from writer.maintenance.dead_letters import Selection, read
from writer.maintenance.local_pipeline import age_of
from writer.maintenance.replay import Replaying, ReplayResult
from writer.schemas.registry import SchemaSource
from writer.sealing.manifest import bucket_path
from writer.table.log.foreign_writes import CommitFailed, FilesGone, Overtaken, one_line
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.row_removal import Offsets, mask_spans, merge_offsets
from writer.table.table import PipelineTable

_TRIES = 5  # of a bucket whose files other processes rewrite


@dataclass(frozen=True)
class ReprocessRequest:
    """What a person asked for."""

    buckets: str  # A..B, both included, or one
    source: SourceChoice
    rate: float | None = None  # records a second
    by: str = ""


@dataclass(frozen=True)
class BucketPreview:
    """What a reprocess would read of one bucket."""

    bucket: BucketKey
    rows: int  # that say an offset
    unplaced: int
    available: int  # of these, rows whose records the source has, as far as it says before it is read
    late: bool = False  # of the table of late rows


@dataclass
class Preview:
    """What a reprocess would read."""

    buckets: list[BucketPreview] = field(default_factory=list)
    dead_letters: int = 0  # at the offsets between the first and the last row


@dataclass
class ReprocessResult:
    """What became of it."""

    buckets: list[BucketOutcome] = field(default_factory=list)
    dead_letters: ReplayResult = field(default_factory=ReplayResult)


class Reprocessing:
    """A reprocess of buckets of one pipeline's table."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource, wanted: ReprocessRequest) -> None:
        """Open the tables. Raises ConfigError for a pipeline with a route, HeadraceError when there is no table."""
        config.one_table(name)
        self._filling, self._wanted = BackfilledTable(name, config, schemas), wanted
        self._replaying = Replaying(name, config, schemas)
        self.name = name
        self._bucketer = bucketers.build(self._filling.settings.bucket)

    @property
    def columns(self) -> tuple[str, ...]:
        """Bucket columns of the table."""
        return self._bucketer.columns

    def look(self) -> Preview:
        """Find what would be read. Raises ConfigError for buckets that are none, CommitFailed, SourceFailed."""
        found, hulls = Preview(), list[Offsets]()
        with _storage(self._filling):
            sources = self._wanted.source.opened(self._filling)
            for table in self._tables():
                self._follow(table)
                is_late = table is not self._filling.table
                for bucket in self._buckets(table):
                    _, held = self._rows(table, bucket)
                    there = _available(sources, held)
                    found.buckets.append(BucketPreview(bucket, held.rows, held.unplaced, there, late=is_late))
                    hulls += [] if is_late else [hull(held.places)]
            found.dead_letters = self._dead_letters(merge_offsets(hulls))
        return found

    def run(
        self, now: datetime, listener: Callable[[BucketOutcome], None] = lambda _: None,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> ReprocessResult:  # fmt: skip
        """Reprocess. `listener` gets each bucket, `on_wait` why it waits. What was committed stays where it fails.

        Raises ConfigError, SourceFailed, LimitReached, CommitFailed, FilesGone or Overtaken when other processes
        rewrite a bucket, or the raw table, again and again.
        """
        filling, wanted, result = self._filling, self._wanted, ReprocessResult()
        lag, limit = partial(live_lag, filling.config, self.name), lag_max(filling.settings.commit.max_delay)
        pace = BackfillPace(lag, limit, wanted.rate, alive=lambda: None, on_wait=on_wait)
        facts = {"by": wanted.by or identity.person(), "source": wanted.source.origin}
        with _storage(filling):
            sources = wanted.source.opened(filling)
            main, *late = self._tables()
            self._follow(main)
            buckets = self._buckets(main)
            result.dead_letters = self._replayed(buckets, now)
            swap = BucketSwap(filling, sources, pace, facts)
            added: set[str] = set()  # files of this run: their rows are as they should be
            work = [(swap, bucket) for bucket in buckets]
            for table in late:
                self._follow(table)
                work += [(LateSwap(filling, sources, pace, facts), bucket) for bucket in self._buckets(table)]
            for each, bucket in work:
                outcome = self._one(each, bucket, added, now)
                added.update(outcome.paths)
                result.buckets.append(outcome)
                listener(outcome)
        return result

    def _one(self, swap: BucketSwap, bucket: BucketKey, added: set[str], now: datetime) -> BucketOutcome:
        """Swap one bucket; once more when another process rewrote its files meanwhile."""
        for tries in range(_TRIES):
            snapshot, held = self._rows(swap.table, bucket, added)
            try:
                outcome = swap.run(snapshot, held, now) if held.rows else BucketOutcome(bucket, unplaced=held.unplaced)
            except (FilesGone, FileNotFoundError, Overtaken) as error:
                logging.event("reprocess_conflict", **self._about(bucket), reason=one_line(error))
                if tries == _TRIES - 1 or _is_lost(error, swap.table, snapshot):
                    raise
            else:
                if outcome.version is not None:
                    facts = {k: v for k, v in vars(outcome).items() if k not in ("bucket", "into", "paths")}
                    logging.event("bucket_reprocessed", **self._about(bucket), **facts)
                return outcome
        raise AssertionError

    def _rows(
        self, table: PipelineTable, bucket: BucketKey, besides: Collection[str] = ()
    ) -> tuple[PipelineSnapshot, BucketRows]:
        """Read the offsets of a bucket's rows; again when its files were rewritten meanwhile."""
        for tries in range(_TRIES):
            snapshot = self._follow(table)
            try:
                return snapshot, rows_of(table, snapshot, bucket, besides)
            except FileNotFoundError as error:
                if tries == _TRIES - 1 or _is_lost(error, table, snapshot):
                    raise
        raise AssertionError

    def _follow(self, table: PipelineTable) -> PipelineSnapshot:
        """Apply what waits, and see that all files of a table are in their place. Returns its newest version."""
        snapshot = self._filling.follow()
        snapshot = snapshot if table is self._filling.table else table.snapshot()
        table.publish(snapshot.state.place)  # of an entry whose writer died, too
        return snapshot

    def _tables(self) -> list[PipelineTable]:
        """Return the table, and that of late rows where there is one."""
        late = self._filling.tables.side(self._filling.settings.late_place)
        return [self._filling.table, *([late] if late.exists() else [])]

    def _buckets(self, table: PipelineTable) -> list[BucketKey]:
        """Return the buckets of a table that are meant."""
        there = {file.bucket for file in table.bucket_files(table.snapshot())}
        return chosen(there, self._wanted.buckets, self._bucketer, self.columns)

    def _dead_letters(self, within: Offsets) -> int:
        """Count the dead letters at these offsets."""
        table = self._filling.tables.side(self._filling.settings.dead_letters)
        files = table.bucket_files(table.snapshot())
        return sum(batch.num_rows for batch in read(table.store, files, _meant(within))) if within else 0

    def _replayed(self, buckets: Sequence[BucketKey], now: datetime) -> ReplayResult:
        """Replay the dead letters between the first and the last row of the buckets, but none that was only late."""
        hulls, ages = list[Offsets](), [timedelta(0)]
        for bucket in buckets:
            _, held = self._rows(self._filling.table, bucket)
            hulls.append(hull(held.places))
            ages += [age_of(held.came, now)] if held.rows else []
        within = merge_offsets(hulls)
        if not self._dead_letters(within):
            return ReplayResult()
        return self._replaying.run(_meant(within), now, max(ages))

    def _about(self, bucket: BucketKey) -> dict[str, Any]:
        return {"pipeline": self.name, "bucket": bucket_path(self.columns, bucket)}


def _meant(within: Offsets) -> Selection:
    """Choose dead letters by their offsets. One that was only late stays late, as in the table of late rows."""
    return Selection(within=within, without_late=True)


@contextmanager
def _storage(filling: BackfilledTable) -> Iterator[None]:
    """Raise CommitFailed where the storage of the table fails, HeadraceError for a file that is gone."""
    try:
        yield
    except HeadraceError:
        raise
    except FileNotFoundError as error:
        raise HeadraceError(
            f"a file that the table at {filling.table.location} names is gone: {one_line(error)}. Restore it; without "
            "it the rows that it held are lost."
        ) from error
    except OSError as error:
        raise CommitFailed(f"cannot read {filling.table.location}: {one_line(error)}") from error


def _is_lost(error: Exception, table: PipelineTable, snapshot: PipelineSnapshot) -> bool:
    """Return whether a file is gone that the newest version of the table still names."""
    return isinstance(error, FileNotFoundError) and table.snapshot().version == snapshot.version


def _available(sources: Sequence[Source], held: BucketRows) -> int:
    """Count the rows whose records a source has, as far as it says before it is read."""
    found: dict[TopicPartition, list[Span]] = {}
    for r in (r for source in sources for r in source.available(ranges(held.places))):
        found.setdefault(r.part, []).append((r.start, r.end))
    there = {part: joined(spans) for part, spans in found.items() if part in held.places}
    return sum(int(mask_spans(held.places[part], spans).sum()) for part, spans in there.items())
