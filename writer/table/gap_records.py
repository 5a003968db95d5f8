"""Reads a table's whole history from ledger and log, with the gap records of its gaps."""

from datetime import datetime

from writer.core import logging
from writer.core.errors import ConfigError
from writer.table.ledger.gap_record import GapRecord, oldest, together
from writer.table.ledger.segment import Known, LedgerSegment, nothing_known, segments
from writer.table.ledger.segment_store import LedgerStore
from writer.table.log.operations import Gap
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

_ID_MIN = 4  # characters by which a gap record may be named


class NoSuchGap(ConfigError):
    """No gap record has this id, or several begin with it."""


def gap_records(table: PipelineTable, pipeline: str) -> dict[str, GapRecord]:
    """Return the gap records of all gaps, oldest first. Raises CommitFailed, LedgerUnreadable, OSError."""
    return standing(table, pipeline)[1]


def standing(table: PipelineTable, pipeline: str) -> tuple[PipelineSnapshot, dict[str, GapRecord]]:
    """Return a snapshot, and the gap records as they are in it. Raises as `gap_records` does."""
    snapshot, whole = history(table, pipeline)
    return snapshot, together(one.gap_records for one in whole)


def history(
    table: PipelineTable, pipeline: str, rows_at: Known = nothing_known
) -> tuple[PipelineSnapshot, list[LedgerSegment]]:
    """Return a snapshot, and the facts of ledger and log up to it, oldest first. Raises as `gap_records`.

    `rows_at`: is asked where an entry of another client does not say how many rows it took; it lists the table's files.
    """
    pages = LedgerStore(table.store, table.snapshot().state.metadata["id"], pipeline).pages()
    snapshot = table.snapshot()  # at or after the newest page
    after = pages[-1].last if pages else -1
    entries = ((version, actions) for version, actions in table.entries(after) if version <= snapshot.version)
    return snapshot, [*pages, *segments(entries, pipeline, rows_at)]


def named(found: dict[str, GapRecord], wanted: str) -> GapRecord:
    """Return the gap record whose id begins with this text. Raises NoSuchGap."""
    fit = [one for key, one in found.items() if key == wanted or (len(wanted) >= _ID_MIN and key.startswith(wanted))]
    if len(fit) == 1:
        return fit[0]
    known = ", ".join(key[:8] for key in found) or "none"
    what = "is the beginning of several gaps" if fit else "is no gap of this pipeline"
    raise NoSuchGap(f"{wanted!r} {what}; there are: {known}. `headrace gaps list` shows them.")


class OldestGap:
    """Since when the oldest open gap of a table is open. Gap records are read only after one was opened, or ended."""

    def __init__(self, table: PipelineTable, pipeline: str) -> None:
        self._table, self._pipeline = table, pipeline
        self._known: tuple[int, int] | None = None
        self._opened: datetime | None = None

    def look(self, snapshot: PipelineSnapshot) -> datetime | None:
        """Return when it was opened. Raises CommitFailed, LedgerUnreadable, OSError."""
        sums = snapshot.gap_sums
        found = sums["gaps"], sums["gaps_ended"]
        if found != self._known:
            some = found[0] > found[1]
            self._opened = oldest(gap_records(self._table, self._pipeline).values()) if some else None
            self._known = found
        return self._opened


def open_gap(table: PipelineTable, pipeline: str, snapshot: PipelineSnapshot, gap: Gap) -> int:
    """Append the entry. Returns its version. Raises Fenced, CommitFailed."""
    version = table.record_gap(snapshot, gap)
    for r in gap.ranges:
        logging.warning(
            "gap_recorded", pipeline=pipeline, version=version, id=gap.id, cause=gap.cause, topic=r.part.topic,
            incarnation=r.part.incarnation, partition=r.part.partition, start=r.start, end=r.end,
            offsets=r.end - r.start,
        )  # fmt: skip
    return version
