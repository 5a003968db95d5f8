"""Reads what a pipeline's tables hold, and which gaps are open, from the tables' logs: with and without a driver."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import OffsetSet, Source, TopicPartition
from headrace.writer.table.factory import all_tables
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.ledger.gap_record import GapRecord
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.lost_tables import DEAD_LETTER_TABLE, side_table_loss
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable

# A pause is so many times as long as a listing of files, which costs processor time that the stream needs.
_PAUSE_FACTOR = 50


@dataclass(frozen=True)
class GapFacts:
    """The gaps of a table at one moment."""

    # Gaps whose records are still to be brought or given up.
    open: int = 0
    # Offsets of open gaps that are not filled.
    offsets: int = 0
    # Offsets of gaps that are over, in the table's life; None: not read.
    offsets_closed: int | None = None
    # The open gaps, oldest first; None: their records were not read.
    records: tuple[GapRecord, ...] | None = None
    # When they were read.
    read_at: datetime | None = None

    @classmethod
    def of(cls, snapshot: PipelineSnapshot) -> "GapFacts":
        """Return what a version of the table says, without the records."""
        return cls(*snapshot.gaps, snapshot.gap_offsets_closed)

    @property
    def oldest(self) -> datetime | None:
        """When the oldest open gap was opened; None: none is open, or it is not known."""
        times = [record.opened.opened_at for record in self.records or () if record.opened]
        return min(times, default=None)

    @property
    def unfilled(self) -> OffsetSet | None:
        """The offsets of open gaps that are not filled; None: not read."""
        if self.records is None:
            return None
        return OffsetSet.union(record.unfilled_offsets for record in self.records)

    def offsets_in_kafka(
        self, incarnations: Mapping[str, int], starts: Mapping[Source, int], ends: Mapping[Source, int]
    ) -> int | None:
        """Return how many of the unfilled offsets Kafka holds; None: it was not asked, or the gaps were not read.

        `incarnations`: topic → number of the one that Kafka has. `starts`, `ends`: the first offset that each log
        holds, and the one after the last.
        """
        unfilled = self.unfilled
        if unfilled is None or not starts:
            return None
        logs = {
            TopicPartition(topic, incarnations[topic], partition): [(start, ends[topic, partition])]
            for (topic, partition), start in starts.items()
            if topic in incarnations and (topic, partition) in ends
        }
        return (unfilled & OffsetSet(logs)).count


@dataclass(frozen=True)
class TableContents:
    """What a pipeline's tables hold by their lists of files."""

    # When the count was right last: files are counted anew only after a table changed.
    counted_at: datetime
    # None: another client wrote a file and does not say, or the rows lie in the tables of a route.
    rows: int | None
    # None: of a route, whose tables are not listed.
    files: int | None
    bytes: int | None
    # Rows of the dead-letter table; None: another client wrote a file and does not say, or the table is lost.
    dead_letters: int | None
    # Why the dead-letter table is not the one that the log knows, and what to do; empty: it is.
    lost: str = ""


class TableFactsReader:
    """Reads the facts of a pipeline's tables again and again, with views of its own. Not for several threads."""

    def __init__(self, name: str, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds. Raises ConfigError."""
        self._name = name
        self._settings = config.pipelines[name]
        self._tables: Tables = all_tables(name, config)
        self._clock = clock
        self._due_s = 0.0
        # Of the last count, by the same clock.
        self._counted_s = 0.0
        self._versions: tuple[int, int] | None = None
        self._contents: TableContents | None = None
        self._gap_sums: Mapping[str, int] | None = None
        self._open_gaps: tuple[GapRecord, ...] = ()

    def snapshot(self) -> PipelineSnapshot:
        """Return the newest version of the main table. Raises CommitFailed."""
        return self._tables.main.snapshot()

    def gaps(self, snapshot: PipelineSnapshot) -> GapFacts:
        """Return the gaps. Their records are read only after one changed.

        Raises CommitFailed, LedgerUnreadable, OSError.
        """
        sums = snapshot.gap_sums
        if sums != self._gap_sums:
            self._open_gaps = ()
            if snapshot.gaps[0]:
                records = gap_records(self._tables.main, self._name).values()
                self._open_gaps = tuple(record for record in records if record.state == "open")
            self._gap_sums = sums
        return replace(GapFacts.of(snapshot), records=self._open_gaps)

    def contents(self, snapshot: PipelineSnapshot, now: datetime) -> TableContents:
        """Return what the tables hold, counted anew after they changed, with pauses. Raises CommitFailed, OSError."""
        started_s = self._clock()
        if self._contents is not None and started_s < self._due_s:
            # By this clock: the wall clock may have been set since.
            counted_at = now - timedelta(seconds=started_s - self._counted_s)
            return replace(self._contents, counted_at=counted_at)
        dead_letters = self._tables.side(self._settings.dead_letters)
        dead_letter_snapshot = dead_letters.snapshot() if dead_letters.exists() else None
        lost = side_table_loss(
            dead_letters.location, dead_letter_snapshot, DEAD_LETTER_TABLE, snapshot, self._tables.main.location
        )
        lost_text = "" if lost is None else lost.text
        versions = (snapshot.version, -1 if dead_letter_snapshot is None else dead_letter_snapshot.version)
        if self._contents is None or versions != self._versions or lost_text != self._contents.lost:
            count = None if lost_text else _count_dead_letters(dead_letters, dead_letter_snapshot)
            self._contents = self._count_main_table(snapshot, TableContents(now, None, None, None, count, lost_text))
            self._versions = versions
        self._counted_s = started_s
        self._due_s = started_s + _PAUSE_FACTOR * (self._clock() - started_s)
        return replace(self._contents, counted_at=now)

    def _count_main_table(self, snapshot: PipelineSnapshot, contents: TableContents) -> TableContents:
        """Add what the main table holds, unless it is the log of a route, which has no files of its own."""
        if self._settings.route is not None:
            return contents
        files = self._tables.main.bucket_files(snapshot)
        return replace(contents, rows=_count_rows(files), files=len(files), bytes=sum(file.bytes for file in files))


def _count_dead_letters(table: PipelineTable, snapshot: PipelineSnapshot | None) -> int | None:
    # Without a dead letter there is no table of them.
    if snapshot is None:
        return 0
    return _count_rows(table.bucket_files(snapshot))


def _count_rows(files: list[BucketFile]) -> int | None:
    """Return the rows of files; None: another client wrote one and does not say."""
    rows = 0
    for file in files:
        if file.rows is None:
            return None
        rows += file.rows
    return rows
