"""Reads a table's whole history from ledger and log, with the gap records of its gaps."""

from collections.abc import Mapping

from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.table.ledger.gap_record import GapRecord, merge_gap_records
from headrace.writer.table.ledger.segment import LedgerSegment
from headrace.writer.table.ledger.segment_reader import RowCounts, no_row_counts, read_segments
from headrace.writer.table.ledger.segment_store import LedgerStore
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

# Characters by which a gap record may be named.
_ID_MIN = 4
# Characters of an id, for a person.
ID_SHOWN = 8


class NoSuchGap(ConfigError):
    """No gap record of a pipeline has this id."""


def gap_records(table: PipelineTable, pipeline: str) -> dict[str, GapRecord]:
    """Return the gap records of all gaps, oldest first. Raises CommitFailed, LedgerUnreadable, OSError."""
    return gap_records_in_snapshot(table, pipeline)[1]


def gap_records_in_snapshot(table: PipelineTable, pipeline: str) -> tuple[PipelineSnapshot, dict[str, GapRecord]]:
    """Return a snapshot, and the gap records as they are in it. Raises as `gap_records` does."""
    snapshot, ledger = read_history(table, pipeline)
    return snapshot, merge_gap_records(segment.gap_records for segment in ledger)


def read_history(
    table: PipelineTable, pipeline: str, row_counts: RowCounts = no_row_counts
) -> tuple[PipelineSnapshot, list[LedgerSegment]]:
    """Return a snapshot, and the facts of ledger and log up to it, oldest first. Raises as `gap_records`.

    `row_counts` is asked where an entry of another client does not say how many rows it took; it lists the table's
    files.
    """
    pages = LedgerStore(table.store, table.snapshot().state.metadata["id"], pipeline).pages()
    # It is at or after the newest page.
    snapshot = table.snapshot()
    last_version = pages[-1].last if pages else -1
    entries = ((version, actions) for version, actions in table.entries(last_version) if version <= snapshot.version)
    return snapshot, [*pages, *read_segments(entries, pipeline, row_counts)]


def find_gap_records(pipeline: str, records: Mapping[str, GapRecord], id_prefix: str) -> list[GapRecord]:
    """Return the gap records of a pipeline whose ids begin with this text. Raises NoSuchGap where none does."""
    is_long_enough = len(id_prefix) >= _ID_MIN
    matches = [
        record
        for gap_id, record in records.items()
        if gap_id == id_prefix or (is_long_enough and gap_id.startswith(id_prefix))
    ]
    if not matches:
        ids = ", ".join(gap_id[:ID_SHOWN] for gap_id in records) or "none"
        raise NoSuchGap(
            f"{id_prefix!r} is no gap of pipeline {pipeline!r}; there are: {ids}. `headrace gaps list` shows them."
        )
    return matches


def open_gap(table: PipelineTable, pipeline: str, snapshot: PipelineSnapshot, gap: Gap) -> int:
    """Append the entry that records a gap. Returns its version. Raises Fenced, CommitFailed."""
    version = table.append(gap, snapshot)
    for offset_range in gap.ranges:
        logging.warning(
            "gap_recorded",
            pipeline=pipeline,
            version=version,
            id=gap.id,
            cause=gap.cause,
            topic=offset_range.part.topic,
            incarnation=offset_range.part.incarnation,
            partition=offset_range.part.partition,
            start=offset_range.start,
            end=offset_range.end,
            offsets=offset_range.count,
        )
    return version
