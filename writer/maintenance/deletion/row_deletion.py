"""Deletes rows by key: rewrites the files that hold matching rows, bucket by bucket; and their raw records by offset.

A file is a candidate by the statistics in its footer, and is read in its key columns before it is written. Each
bucket's files are swapped in one entry, fenced by the log, which says how many rows went and not whose. Raw records go
before the rows that say their offsets. Broken off, it is run again: what is gone is not found.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from uuid import uuid4

import pyarrow as pa

from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.core.files import BucketFile, BucketKey, StagedFile
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.deletion.row_keys import Keys, RowFinder
from headrace.writer.storage.locations import in_bucket
from headrace.writer.table.log.appender import LostRace
from headrace.writer.table.log.foreign_writes import FilesGone
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.row_removal import (
    OFFSET_COLUMNS,
    count_rows,
    discard_on_failure,
    discard_on_refusal,
    offsets_by_partition,
    write_remaining_rows,
)
from headrace.writer.table.table import PipelineTable

WHY = "delete"
_PREFIX = "delete"
_ROWS_AT_ONCE = 65_536
_FILES_AT_ONCE = 16  # whose footers are asked for, of a store that takes a round trip to answer
_TRIES = 5


@dataclass(frozen=True)
class MatchingFile:
    """A file with rows that are meant, and how many."""

    file: BucketFile
    rows: int


@dataclass(frozen=True)
class DeletionResult:
    """What one entry took out of one bucket."""

    version: int
    bucket: BucketKey
    rows: int
    files: int


class RawDeletion:
    """Removes raw records at the offsets of rows and dead letters that are to go, never by their values."""

    def __init__(self, tables: Tables, now: datetime, request: str) -> None:
        """`tables`: of the pipeline. `request`: what the entries name."""
        self._tables = tables
        self._facts = {"at": now.isoformat(), "request": request}
        raw_tables = map(tables.side, tables.main.snapshot().raw_locations)
        self._raw = [table for table in raw_tables if table.exists()]
        # Records that were removed.
        self.records = 0
        self.versions: list[int] = []

    def __bool__(self) -> bool:
        """Whether there is a raw table."""
        return bool(self._raw)

    def look(self, offsets: OffsetSet) -> int:
        """Count the raw records at these offsets. Raises CommitFailed, OSError."""
        files = ((table.store, file) for table in self._raw for file in table.bucket_files(table.snapshot()))
        return sum(count_rows(store, file, offsets) for store, file in files)

    def remove(self, offsets: OffsetSet) -> None:
        """Remove them. The rows at these offsets are still there: if it is interrupted, they are found again."""
        if not self._raw or not offsets:
            return
        # Raw records of rows that were just committed are there by then.
        self._tables.apply_side_files()
        for table in self._raw:
            self._remove(table, offsets)

    def _remove(self, table: PipelineTable, offsets: OffsetSet) -> None:
        for tries in range(_TRIES):
            snapshot = table.snapshot()
            try:
                with table.stage_without_offsets(snapshot, offsets, _PREFIX) as removal:
                    if removal.rows:
                        removed_rows = RemovedRows(WHY, removal.rows)
                        swap = Rewrite(uuid4().hex, removal.removed, removal.rewritten, removed_rows, self._facts)
                        self.versions.append(table.append(swap, snapshot))
                        self.records += removal.rows
            except (FilesGone, FileNotFoundError, LostRace):
                # Another process rewrote files meanwhile.
                if tries == _TRIES - 1:
                    raise
            else:
                return


@dataclass
class DeletionScan:
    """The result of a search for rows to delete."""

    files: int = 0
    candidates: int = 0  # by their statistics
    hits: list[MatchingFile] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that are meant."""
        return sum(hit.rows for hit in self.hits)

    @property
    def buckets(self) -> dict[BucketKey, list[MatchingFile]]:
        """Hits by bucket."""
        buckets: dict[BucketKey, list[MatchingFile]] = {}
        for hit in self.hits:
            buckets.setdefault(hit.file.bucket, []).append(hit)
        return buckets


class RowDeletion:
    """Rows of one table that are to go."""

    def __init__(
        self,
        table: PipelineTable,
        keys: Keys,
        columns: Sequence[str],
        rule: TimeRule,
        target_file_size: int,
        *,
        request: str,
        raw: RawDeletion | None = None,
    ) -> None:
        """`columns`: bucket columns of the table. `request`: what the entries name. `raw` takes their raw records.

        Raises ConfigError.
        """
        self._raw = raw
        self._table = table
        self._keys = keys
        self._columns = tuple(columns)
        self._rule = rule
        self._target_file_size = target_file_size
        self._request = request
        self._finder = RowFinder(keys, table.snapshot().columns())

    def look(self) -> DeletionScan:
        """Find the files that hold such rows. Raises CommitFailed, OSError."""
        _, scan = self._scan()
        return scan

    def run(self, now: datetime) -> Iterator[DeletionResult]:
        """Take the rows out, bucket by bucket. Raises what a commit raises; what was committed stays so."""
        tries = 0
        while True:
            snapshot, scan = self._scan()
            if not scan.hits:
                return
            try:
                if self._raw:
                    self._raw.remove(self.offsets(scan))
                for bucket, hits in scan.buckets.items():
                    yield self._erase(snapshot, bucket, hits, now)
                    tries = 0
            except (FilesGone, FileNotFoundError):
                # Another process rewrote files of the bucket meanwhile.
                tries += 1
                if tries == _TRIES:
                    raise

    def offsets(self, scan: DeletionScan) -> OffsetSet:
        """Return the offsets of the rows that were found. Raises OSError."""
        return OffsetSet.union(offsets_by_partition(rows) for hit in scan.hits for rows in self._rows(hit.file))

    def _rows(self, file: BucketFile) -> Iterator[pa.Table]:
        """Yield the rows of a file that are meant, if they say their offsets."""
        with table_file.open_parquet(self._table.store, file.path) as source:
            if {*OFFSET_COLUMNS} <= {*source.names}:
                names = [name for name in source.names if name in (*OFFSET_COLUMNS, *self._keys.columns)]
                for batch in source.iter_batches(_ROWS_AT_ONCE, names, self._finder.row_groups(source.metadata)):
                    yield pa.Table.from_batches([batch.filter(pa.array(self._finder.match_rows(batch)))])

    def _scan(self) -> tuple[PipelineSnapshot, DeletionScan]:
        """Find the files that hold such rows, at a version of the table."""
        snapshot = self._table.snapshot()
        # Rows of a file that stay are read where they lie.
        self._table.publish(snapshot.state.table_version)
        files = self._table.bucket_files(snapshot)
        scan = DeletionScan(files=len(files))
        with ThreadPoolExecutor(_FILES_AT_ONCE if in_bucket(self._table.location) else 1) as threads:
            for file, rows in zip(files, threads.map(self._count_rows, files), strict=True):
                scan.candidates += rows is not None
                if rows:
                    scan.hits.append(MatchingFile(file, rows))
        return snapshot, scan

    def _count_rows(self, file: BucketFile) -> int | None:
        """Count the rows of a file that are meant; None: by its statistics it has none."""
        with table_file.open_parquet(self._table.store, file.path) as source:
            groups = self._finder.row_groups(source.metadata)
            if not groups:
                return None
            names = [name for name in self._keys.columns if name in source.names]
            batches = source.iter_batches(_ROWS_AT_ONCE, names, groups)
            return sum(int(self._finder.match_rows(batch).sum()) for batch in batches)

    def _erase(
        self, snapshot: PipelineSnapshot, bucket: BucketKey, hits: Sequence[MatchingFile], now: datetime
    ) -> DeletionResult:
        table = self._table
        to = Destination(
            table.store, self._columns, _PREFIX, self._target_file_size, hidden=table.hidden, below=table.folder
        )
        rows = sum(hit.rows for hit in hits)
        with discard_on_failure(to.remove):
            remaining = (self._rest(to, hit) for hit in hits)
            rest = [file for file in remaining if file is not None]
        facts = {
            "at": now.isoformat(),
            "request": self._request,
            "fields": self._keys.fields,
            "keys": self._keys.count,
            "bucket": list(bucket),
        }
        swap = Rewrite(uuid4().hex, [hit.file for hit in hits], rest, RemovedRows(WHY, rows), facts)
        with discard_on_refusal(to.remove):
            version = self._table.append(swap, snapshot)
        return DeletionResult(version, bucket, rows, len(hits))

    def _rest(self, to: Destination, hit: MatchingFile) -> StagedFile | None:
        """Write the rows of a file that stay; None when none does."""
        return write_remaining_rows(to, hit.file, hit.rows, self._finder.match_rows, self._rule)
