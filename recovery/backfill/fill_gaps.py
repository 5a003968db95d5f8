"""Fills gaps: a loop over gap records, sources and chunks. The table's log holds the open offsets.

It may be killed anywhere and run again, and run beside the live writer and beside another backfill.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from headrace.recovery import identity
from headrace.recovery.backfill.chunk_commit import ChunkCommit, commit_chunk
from headrace.recovery.backfill.source import Source
from headrace.recovery.backfill.throttle import BackfillPace, ask_live_lag, lag_max
from headrace.writer.core import logging
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.record_commit import RecordTable
from headrace.writer.table.backfill_locks import LEASE, BackfillLocks
from headrace.writer.table.gap_records import gap_records_in_snapshot
from headrace.writer.table.ledger.gap_record import GapRecord
from headrace.writer.table.log.foreign_writes import Overtaken
from headrace.writer.table.log.snapshot import PipelineSnapshot

# Rows of a chunk for each task that works on it.
ROWS_PER_TASK = 500_000
# Times in a row that another process may change the gap record first.
_OVERTAKEN_MAX = 10


class ProgressListener(Protocol):
    """Gets a backfill's progress."""

    def on_begin(self, gap_record: GapRecord, offsets: int) -> None:
        """A gap record is being filled, of which so many offsets are open."""

    def on_chunk(self, gap_record: GapRecord, chunk: ChunkCommit) -> None:
        """One chunk more is in the table."""

    def on_wait(self, why: str) -> None:
        """It waits."""


@dataclass(frozen=True)
class BackfillRequest:
    """What a person asked for."""

    # Their ids; none: all that are open.
    gaps: Sequence[str] = ()
    # Rows of one chunk.
    rows_max: int = ROWS_PER_TASK
    # Rows a second.
    rate: float | None = None
    # Of the live writer; None: by its max_delay.
    lag_max: timedelta | None = None
    by: str = ""


@dataclass
class GapOutcome:
    """What became of one gap record. `absent`: open offsets that no source has."""

    gap_record: GapRecord
    chunks: list[ChunkCommit] = field(default_factory=list)
    absent: OffsetSet = field(default_factory=OffsetSet)

    @property
    def rows(self) -> int:
        """Rows that this backfill brought."""
        return sum(chunk.rows for chunk in self.chunks)


def select_gap_records(gap_records: Mapping[str, GapRecord], request: BackfillRequest) -> list[GapRecord]:
    """Return the open gap records that are asked for: all of them oldest first, or by their ids."""
    selection = list(gap_records.values())
    if request.gaps:
        selection = [gap_records[gap] for gap in request.gaps]
    return [gap_record for gap_record in selection if gap_record.state == "open"]


def read_gap_records(record_table: RecordTable) -> tuple[PipelineSnapshot, dict[str, GapRecord]]:
    """Apply pending side files, then read the gap records. Raises CommitFailed, LedgerUnreadable."""
    record_table.refresh()
    return gap_records_in_snapshot(record_table.table, record_table.name)


def fill_gaps(
    record_table: RecordTable,
    sources: Callable[[GapRecord], Sequence[Source]],
    request: BackfillRequest,
    listener: ProgressListener,
) -> list[GapOutcome]:
    """Fill the gap records that are asked for. Raises BackfillLocked, SourceFailed, LimitReached, CommitFailed."""
    _, gap_records = read_gap_records(record_table)
    outcomes = []
    for gap_record in select_gap_records(gap_records, request):
        with _lock(record_table, gap_record.id, request) as renew:
            # The rate holds from the first record on: opening a source does not count.
            gap_sources = sources(gap_record)
            fill = _GapFill(record_table, gap_record, request, listener, renew)
            outcomes.append(fill.run(gap_sources))
    return outcomes


@contextmanager
def _lock(record_table: RecordTable, gap: str, request: BackfillRequest) -> Iterator[Callable[[], None]]:
    """Take the lock of a gap. Raises BackfillLocked. Yields what renews it once a quarter of its time is over."""
    locks = BackfillLocks(record_table.table.store)
    by = identity.process(request.by or identity.person())
    lock = locks.acquire(gap, by, datetime.now(UTC), identity.is_gone)
    renewal_s = time.monotonic()

    def renew() -> None:
        """Raises BackfillLocked where another backfill has it by now."""
        nonlocal lock, renewal_s
        if time.monotonic() - renewal_s > LEASE.total_seconds() / 4:
            lock = locks.renew(gap, lock, datetime.now(UTC))
            renewal_s = time.monotonic()

    try:
        yield renew
    finally:
        newest = locks.newest(gap)
        if newest and newest.owner == by:
            locks.release(gap)


class _GapFill:
    """Fills one gap record, as far as the sources have its records."""

    def __init__(
        self,
        record_table: RecordTable,
        gap_record: GapRecord,
        request: BackfillRequest,
        listener: ProgressListener,
        renew: Callable[[], None],
    ) -> None:
        self._record_table = record_table
        self._request = request
        self._listener = listener
        self._outcome = GapOutcome(gap_record)
        self._pace = BackfillPace(
            partial(ask_live_lag, record_table.config, record_table.name),
            request.lag_max or lag_max(record_table.settings.commit.max_delay),
            request.rate,
            alive=renew,
            on_wait=listener.on_wait,
        )

    def run(self, sources: Sequence[Source]) -> GapOutcome:
        """Bring what the sources have, one after the other."""
        outcome = self._outcome
        self._listener.on_begin(outcome.gap_record, outcome.gap_record.unfilled_offsets.count)
        for source in sources:
            self._read_source(source)
            if outcome.gap_record.state != "open":
                return outcome
        outcome.absent = outcome.gap_record.unfilled_offsets
        return outcome

    def _read_source(self, source: Source) -> None:
        """Bring what one source has; again when another process changed the gap record first."""
        outcome = self._outcome
        conflicts = 0
        chunks = len(outcome.chunks)
        while True:
            try:
                outcome.gap_record = self._commit_chunks(source)
            except Overtaken as error:
                if len(outcome.chunks) > chunks:
                    conflicts = 0
                    chunks = len(outcome.chunks)
                conflicts += 1
                logging.event(
                    "backfill_conflict",
                    pipeline=self._record_table.name,
                    gap=outcome.gap_record.id,
                    reason=str(error),
                )
                if conflicts == _OVERTAKEN_MAX:
                    raise
            else:
                return

    def _commit_chunks(self, source: Source) -> GapRecord:
        """Commit the chunks of a source. Returns the gap record as it is then. Raises Overtaken."""
        snapshot, gap_records = read_gap_records(self._record_table)
        gap_record = gap_records[self._outcome.gap_record.id]
        if gap_record.state != "open":
            return gap_record

        def open_offsets() -> OffsetSet:
            return gap_record.unfilled_offsets

        by = self._request.by or identity.person()
        for chunk in source.chunks(open_offsets, self._request.rows_max):
            self._pace.wait()
            commit = commit_chunk(
                self._record_table, gap_record, snapshot, chunk, source.name, by, self._pace.admit_records
            )
            self._outcome.chunks.append(commit)
            logging.event(
                "gap_filled",
                pipeline=self._record_table.name,
                gap=gap_record.id,
                version=commit.version,
                source=source.name,
                offsets=commit.offsets,
                rows=commit.rows,
                left=commit.left,
                done=commit.done,
            )
            self._listener.on_chunk(gap_record, commit)
            snapshot, gap_records = read_gap_records(self._record_table)
            gap_record = gap_records[gap_record.id]
            if gap_record.state != "open":
                break
        return gap_record
