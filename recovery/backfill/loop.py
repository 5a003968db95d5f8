"""The loop of a backfill: ticket by ticket, source by source, chunk by chunk. What is open, the log says each time.

It may be killed anywhere and run again, and run beside the live writer and beside another backfill.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Protocol, Self

from recovery import identity
from recovery.backfill.chunk_commit import ChunkCommit, Filling
from recovery.backfill.source import Source
from recovery.backfill.throttle import Pace, lag_max, live_lag
from writer.core import logging
from writer.core.offsets import OffsetRange, joined
from writer.table.gap_claims import LEASE, BackfillLock, BackfillLocks
from writer.table.gap_records import named
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.foreign_writes import Overtaken

_OVERTAKEN_MAX = 10  # times in a row that somebody else changed the ticket first


class ProgressListener(Protocol):
    """Who is told how it goes."""

    def began(self, gap_record: GapRecord, offsets: int) -> None:
        """A ticket is being filled, of which so many offsets are open."""

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
    """What became of one ticket."""

    gap_record: GapRecord
    chunks: list[ChunkCommit] = field(default_factory=list)
    absent: Sequence[OffsetRange] = ()  # open offsets that no source has

    @property
    def rows(self) -> int:
        """Rows that this backfill brought."""
        return sum(chunk.rows for chunk in self.chunks)


def chosen(gap_records: Mapping[str, GapRecord], wish: BackfillRequest) -> list[GapRecord]:
    """Return the open tickets that are meant, oldest first. Raises NoSuchGap."""
    meant = [named(dict(gap_records), gap) for gap in wish.gaps] if wish.gaps else list(gap_records.values())
    return [one for one in meant if one.state == "open"]


def fill(
    filling: Filling, sources: Callable[[GapRecord], Sequence[Source]], wish: BackfillRequest,
    listener: ProgressListener, clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Outcome]:  # fmt: skip
    """Fill the tickets that are meant. Raises Claimed, SourceFailed, LimitReached, CommitFailed."""
    _, gap_records = filling.look()
    done = []
    for gap_record in chosen(gap_records, wish):
        with _RenewedLock(filling, gap_record, wish, clock) as held:
            done.append(_one(filling, gap_record, sources(gap_record), wish, listener, held, clock))
    return done


class _RenewedLock:
    """A claim that is renewed while it is used."""

    def __init__(
        self, filling: Filling, gap_record: GapRecord, wish: BackfillRequest, clock: Callable[[], datetime]
    ) -> None:
        self._claims, self._gap, self._clock = BackfillLocks(filling.table.store), gap_record.id, clock
        self._by = identity.process(wish.by or identity.person())
        self._claim: BackfillLock | None = None
        self._renewed = time.monotonic()

    def __enter__(self) -> Self:
        self._claim = self._claims.take(self._gap, self._by, self._clock(), identity.gone)
        return self

    def __exit__(self, *_: object) -> None:
        if self._claim is not None and (newest := self._claims.newest(self._gap)) and newest.by == self._by:
            self._claims.release(self._gap)

    def renew(self) -> None:
        """Prolong the claim once a quarter of its time is over. Raises Claimed."""
        assert self._claim is not None
        if time.monotonic() - self._renewed > LEASE.total_seconds() / 4:
            self._claim = self._claims.renew(self._gap, self._claim, self._clock())
            self._renewed = time.monotonic()


def _one(
    filling: Filling, gap_record: GapRecord, sources: Sequence[Source], wish: BackfillRequest,
    listener: ProgressListener, held: _RenewedLock, clock: Callable[[], datetime],
) -> Outcome:  # fmt: skip
    """Fill one ticket, as far as the sources have its records."""
    outcome = Outcome(gap_record)
    listener.began(gap_record, _offsets(gap_record.left()))
    lag, limit = partial(live_lag, filling.config, filling.name), lag_max(filling.settings.commit.max_delay)
    pace = Pace(lag, wish.lag_max or limit, wish.rate, alive=held.renew, told=listener.waits)
    for source in sources:
        lost, came = 0, len(outcome.chunks)
        while lost < _OVERTAKEN_MAX:
            try:
                outcome.gap_record = _from(filling, outcome, source, wish, listener, pace, clock)
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
    filling: Filling, outcome: Outcome, source: Source, wish: BackfillRequest, listener: ProgressListener, pace: Pace,
    clock: Callable[[], datetime],
) -> GapRecord:  # fmt: skip
    """Bring what one source has. Returns the ticket as it is then. Raises Overtaken."""
    snapshot, gap_records = filling.look()
    gap_record = gap_records[outcome.gap_record.id]
    if gap_record.state != "open":
        return gap_record

    def left() -> list[OffsetRange]:
        return gap_record.left()

    for chunk in source.chunks(left, wish.rows_max):
        pace.hold()
        by = wish.by or identity.person()
        settled = filling.carry(gap_record, snapshot, chunk, source.name, by, clock(), pace.pieces)
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
