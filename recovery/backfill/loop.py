"""The loop of a backfill: over gap records, sources and chunks. The log holds the open offsets.

It may be killed anywhere and run again, and run beside the live writer and beside another backfill.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol

from recovery import identity
from recovery.backfill.chunk_commit import BackfilledTable, ChunkCommit
from recovery.backfill.source import Source
from recovery.backfill.throttle import BackfillPace, lag_max, live_lag
from writer.core import logging
from writer.core.offsets import OffsetRange, joined
from writer.table.backfill_locks import LEASE, BackfillLocks
from writer.table.gap_records import find_gap_record
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.foreign_writes import Overtaken

_OVERTAKEN_MAX = 10  # times in a row that another process changed the gap record first


class ProgressListener(Protocol):
    """Gets a backfill's progress."""

    def began(self, gap_record: GapRecord, offsets: int) -> None:
        """A gap record is being filled, of which so many offsets are open."""

    def settled(self, gap_record: GapRecord, chunk: ChunkCommit) -> None:
        """One chunk more is in the table."""

    def waits(self, why: str) -> None:
        """It waits."""


@dataclass(frozen=True)
class BackfillRequest:
    """What a person asked for."""

    gaps: Sequence[str] = ()  # ids, or their beginnings; none: all that are open
    rows_max: int = 500_000  # of one chunk
    rate: float | None = None  # rows a second
    lag_max: timedelta | None = None  # of the live writer; None: by its max_delay
    by: str = ""


@dataclass
class Outcome:
    """What became of one gap record."""

    gap_record: GapRecord
    chunks: list[ChunkCommit] = field(default_factory=list)
    absent: Sequence[OffsetRange] = ()  # open offsets that no source has

    @property
    def rows(self) -> int:
        """Rows that this backfill brought."""
        return sum(chunk.rows for chunk in self.chunks)


def chosen(gap_records: Mapping[str, GapRecord], wish: BackfillRequest) -> list[GapRecord]:
    """Return the open gap records that are meant, oldest first. Raises NoSuchGap."""
    meant = [find_gap_record(dict(gap_records), gap) for gap in wish.gaps] if wish.gaps else list(gap_records.values())
    return [one for one in meant if one.state == "open"]


def fill(
    filling: BackfilledTable, sources: Callable[[GapRecord], Sequence[Source]], wish: BackfillRequest,
    listener: ProgressListener,
) -> list[Outcome]:  # fmt: skip
    """Fill the gap records that are meant. Raises BackfillLocked, SourceFailed, LimitReached, CommitFailed."""
    _, gap_records = filling.look()
    done = []
    for gap_record in chosen(gap_records, wish):
        with _locked(filling, gap_record.id, wish) as renew:
            done.append(_one(filling, gap_record, sources(gap_record), wish, listener, renew))
    return done


@contextmanager
def _locked(filling: BackfilledTable, gap: str, wish: BackfillRequest) -> Iterator[Callable[[], None]]:
    """Hold the claim of a gap. Raises BackfillLocked. Yields what prolongs it once a quarter of its time is over."""
    claims, by = BackfillLocks(filling.table.store), identity.process(wish.by or identity.person())
    claim, renewed_s = claims.acquire(gap, by, datetime.now(UTC), identity.gone), time.monotonic()

    def renew() -> None:
        """Raises BackfillLocked where another backfill has it by now."""
        nonlocal claim, renewed_s
        if time.monotonic() - renewed_s > LEASE.total_seconds() / 4:
            claim, renewed_s = claims.renew(gap, claim, datetime.now(UTC)), time.monotonic()

    try:
        yield renew
    finally:
        if (newest := claims.newest(gap)) and newest.owner == by:
            claims.release(gap)


def _one(
    filling: BackfilledTable, gap_record: GapRecord, sources: Sequence[Source], wish: BackfillRequest,
    listener: ProgressListener, renew: Callable[[], None],
) -> Outcome:  # fmt: skip
    """Fill one gap record, as far as the sources have its records."""
    outcome = Outcome(gap_record)
    listener.began(gap_record, _offsets(gap_record.left()))
    lag, limit = partial(live_lag, filling.config, filling.name), lag_max(filling.settings.commit.max_delay)
    pace = BackfillPace(lag, wish.lag_max or limit, wish.rate, alive=renew, on_wait=listener.waits)
    for source in sources:
        lost, came = 0, len(outcome.chunks)
        while lost < _OVERTAKEN_MAX:
            try:
                outcome.gap_record = _from(filling, outcome, source, wish, listener, pace)
                break
            except Overtaken as error:
                lost = 1 if len(outcome.chunks) > came else lost + 1
                came = len(outcome.chunks)
                logging.event("backfill_conflict", pipeline=filling.name, gap=gap_record.id, reason=str(error))
                if lost == _OVERTAKEN_MAX:
                    raise
        if outcome.gap_record.state != "open":
            break
    outcome.absent = outcome.gap_record.left() if outcome.gap_record.state == "open" else []
    return outcome


def _from(
    filling: BackfilledTable, outcome: Outcome, source: Source, wish: BackfillRequest, listener: ProgressListener,
    pace: BackfillPace,
) -> GapRecord:  # fmt: skip
    """Bring what one source has. Returns the gap record as it is then. Raises Overtaken."""
    snapshot, gap_records = filling.look()
    gap_record = gap_records[outcome.gap_record.id]
    if gap_record.state != "open":
        return gap_record

    def left() -> list[OffsetRange]:
        return gap_record.left()

    for chunk in source.chunks(left, wish.rows_max):
        pace.hold()
        by = wish.by or identity.person()
        settled = filling.carry(gap_record, snapshot, chunk, source.name, by, datetime.now(UTC), pace.pieces)
        outcome.chunks.append(settled)
        logging.event(
            "gap_filled", pipeline=filling.name, gap=gap_record.id, version=settled.version, source=source.name,
            offsets=settled.offsets, rows=settled.rows, left=settled.left, done=settled.done,
        )  # fmt: skip
        listener.settled(gap_record, settled)
        snapshot, gap_records = filling.look()
        gap_record = gap_records[gap_record.id]
        if gap_record.state != "open":
            break
    return gap_record


def _offsets(ranges: Sequence[OffsetRange]) -> int:
    parts = {r.part for r in ranges}
    return sum(b - a for part in parts for a, b in joined((r.start, r.end) for r in ranges if r.part == part))
