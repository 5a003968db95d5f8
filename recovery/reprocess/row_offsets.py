"""Offsets of a bucket's rows by partition, and the records at these offsets, from sources of a backfill.

Offsets are sorted arrays: eight bytes a row, however the rows of a bucket are scattered.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.recovery.backfill.source import Source
from headrace.writer.batch.staging import table_file
from headrace.writer.batch.task import Read
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile, BucketKey, StagedFile
from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition
from headrace.writer.storage.base import Store
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.row_removal import OFFSET_COLUMNS, PARTITION_COLUMNS, mask_spans
from headrace.writer.table.table import PipelineTable

# Records that a source gives at a time.
RECORDS_AT_ONCE = 500_000
_BATCH_ROWS = 65_536
# Records between two wanted ones that are read along, and dropped.
_SKIPPED_MAX = 10_000
_TIME_COLUMN = "_kafka_time"


@dataclass(frozen=True)
class RowOffsets:
    """Offsets of rows. `by_part`: in order, each once."""

    by_part: Mapping[TopicPartition, np.ndarray] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many offsets there are."""
        return sum(len(offsets) for offsets in self.by_part.values())

    def hull(self) -> OffsetSet:
        """Return all offsets from the first to the last one of each part."""
        return OffsetSet(
            {part: [(int(offsets[0]), int(offsets[-1]) + 1)] for part, offsets in self.by_part.items() if len(offsets)}
        )

    def near_offsets(self) -> OffsetSet:
        """Return all offsets, and those between two that are not far apart: what a source reads in one go.

        Of the offsets 3, 5, 9, 50000 and 50002 of a part these are [3, 10) and [50000, 50003).
        """
        ranges = []
        for part, offsets in sorted(self.by_part.items()):
            cuts = np.flatnonzero(np.diff(offsets) > _SKIPPED_MAX)
            starts = offsets[np.r_[0, cuts + 1]]
            lasts = offsets[np.r_[cuts, len(offsets) - 1]]
            ranges += [OffsetRange(part, int(start), int(last) + 1) for start, last in zip(starts, lasts, strict=True)]
        return OffsetSet.of(ranges)

    def by_incarnation(self) -> dict[int, "RowOffsets"]:
        """Return the offsets of each incarnation: a task has one of each topic."""
        groups: dict[int, dict[TopicPartition, np.ndarray]] = {}
        for part, offsets in self.by_part.items():
            groups.setdefault(part.incarnation, {})[part] = offsets
        return {incarnation: RowOffsets(group) for incarnation, group in groups.items()}

    def mask(self, rows: pa.RecordBatch) -> np.ndarray:
        """Return for each row whether it is at one of these offsets. The rows have the columns OFFSET_COLUMNS.

        With the offset 5 of partition 0, incarnation 1: of rows at 5 and 6 of it, at 5 of incarnation 0, and without an
        offset, the first is.
        """
        mask = np.zeros(rows.num_rows, bool)
        offsets = rows.column("_offset").to_numpy(zero_copy_only=False)
        for part in _parts(rows):
            if part not in self.by_part:
                continue
            values = zip(PARTITION_COLUMNS, (part.topic, part.incarnation, part.partition), strict=True)
            equal = [pc.fill_null(pc.equal(rows.column(name), value), False) for name, value in values]
            is_of_part = np.logical_and.reduce([column.to_numpy(zero_copy_only=False) for column in equal])
            offsets_of_part = offsets[is_of_part].astype(np.int64)
            mask[is_of_part] = find_positions(offsets_of_part, self.by_part[part]) >= 0
        return mask

    def count_rows(self, store: Store, file: BucketFile | StagedFile) -> int:
        """Count the rows of a file at these offsets. Raises OSError."""
        with table_file.open_parquet(store, file.path) as source:
            if not {*OFFSET_COLUMNS} <= {*source.names}:
                return 0
            return sum(int(self.mask(batch).sum()) for batch in source.iter_batches(_BATCH_ROWS, OFFSET_COLUMNS))

    def count_available(self, sources: Sequence[Source]) -> int:
        """Count the offsets whose records a source has, as far as it says before it is read."""
        available = OffsetSet.union(source.available(self.near_offsets()) for source in sources)
        return sum(int(mask_spans(offsets, available.get(part, ())).sum()) for part, offsets in self.by_part.items())


def find_positions(offsets: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Return the position of each offset in a sorted array; -1: it is not in it.

    In [3, 5, 9] the offsets 2, 3 and 9 are at -1, 0 and 2.
    """
    if not len(ordered):
        return np.full(len(offsets), -1)
    positions = np.searchsorted(ordered, offsets)
    is_found = ordered[np.minimum(positions, len(ordered) - 1)] == offsets
    return np.where(is_found, positions, -1)


def _parts(rows: pa.RecordBatch) -> list[TopicPartition]:
    distinct = pa.table(rows.select(PARTITION_COLUMNS)).group_by(PARTITION_COLUMNS, use_threads=False).aggregate([])
    return [TopicPartition(*row.values()) for row in distinct.to_pylist()]


class _OffsetCollector:
    """Collects the offsets of rows."""

    def __init__(self) -> None:
        self._arrays = defaultdict[TopicPartition, list[np.ndarray]](list)
        # Rows with an offset.
        self.rows = 0
        # Rows without one: they were adopted, or backfilled by event time.
        self.unplaced = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the offsets of these rows, which have the columns OFFSET_COLUMNS.

        Rows of the topic clicks, incarnation 1 and partition 0, at the offsets 7, null and 5, add the array [7, 5] of
        that part, two rows and one that is unplaced.
        """
        has_offset = pc.and_(pc.is_valid(rows.column("_topic")), pc.is_valid(rows.column("_offset")))
        placed = pa.table(rows.select(OFFSET_COLUMNS)).filter(has_offset)
        self.rows += placed.num_rows
        self.unplaced += rows.num_rows - placed.num_rows
        grouped = placed.group_by(PARTITION_COLUMNS, use_threads=False).aggregate([("_offset", "list")])
        # One turn for each part.
        for i in range(grouped.num_rows):
            part = TopicPartition(*(grouped.column(name)[i].as_py() for name in PARTITION_COLUMNS))
            self._arrays[part].append(grouped.column("_offset_list")[i].values.to_numpy(zero_copy_only=False))

    def offsets(self) -> RowOffsets:
        """Return the offsets of all rows that have one."""
        return RowOffsets({part: _distinct(np.concatenate(arrays)) for part, arrays in self._arrays.items()})


def _distinct(offsets: np.ndarray) -> np.ndarray:
    """Return offsets in order, each once. `np.unique` hashes them, which takes several times as long."""
    ordered: np.ndarray = np.sort(offsets)
    is_first = np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)]
    distinct: np.ndarray = ordered[is_first]
    return distinct


@dataclass(frozen=True)
class BucketRows:
    """The rows of a bucket at one version of the table, by their offsets.

    `unplaced`: rows without an offset. `first_time`: when the broker had the first of them; None: a row does not say.
    """

    bucket: BucketKey
    files: Sequence[BucketFile] = ()
    offsets: RowOffsets = field(default_factory=RowOffsets)
    unplaced: int = 0
    first_time: datetime | None = None

    @property
    def rows(self) -> int:
        """How many rows have an offset."""
        return self.offsets.count


def read_bucket_rows(
    table: PipelineTable, snapshot: PipelineSnapshot, bucket: BucketKey, excluded_paths: Collection[str] = ()
) -> BucketRows:
    """Read the offsets of a bucket's rows, but not those in the files of `excluded_paths`.

    Raises HeadraceError where two rows have the same offset, OSError, CommitFailed.
    """
    files = [file for file in table.bucket_files(snapshot, bucket) if file.path not in excluded_paths]
    collector = _OffsetCollector()
    unplaced = 0
    first_times: list[datetime] = []
    is_dated = True
    for file in files:
        with table_file.open_parquet(table.store, file.path) as source:
            if not {*OFFSET_COLUMNS} <= {*source.names}:
                unplaced += source.metadata.num_rows
                continue
            names = [name for name in (*OFFSET_COLUMNS, _TIME_COLUMN) if name in source.names]
            for batch in source.iter_batches(_BATCH_ROWS, names):
                collector.add(batch)
                if _TIME_COLUMN not in names:
                    continue
                times = batch.column(_TIME_COLUMN)
                is_dated = is_dated and not times.null_count
                first_time = pc.min(times).as_py()
                if first_time is not None:
                    first_times.append(first_time)
    offsets = collector.offsets()
    if offsets.count != collector.rows:
        raise HeadraceError(
            f"bucket {'/'.join(map(str, bucket))} of the table at {table.location} has "
            f"{collector.rows - offsets.count} rows whose offsets are there more than once; `headrace audit --deep` "
            "names them. Nothing of it was read again."
        )
    return BucketRows(
        bucket,
        files,
        offsets,
        unplaced + collector.unplaced,
        min(first_times, default=None) if is_dated else None,
    )


def read_staged_offsets(store: Store, files: Sequence[StagedFile]) -> RowOffsets:
    """Read the offsets of the rows of staged files. Raises OSError."""
    collector = _OffsetCollector()
    for file in files:
        with table_file.open_parquet(store, file.path) as source:
            for batch in source.iter_batches(_BATCH_ROWS, OFFSET_COLUMNS):
                collector.add(batch)
    return collector.offsets()


class RecordsAtOffsets(Iterable[Read]):
    """Reads of the records at some offsets, of one incarnation of each topic, and which of them the sources have.

    Tasks share the reads out. `admit_records` lets them take each record once.
    """

    def __init__(self, sources: Sequence[Source], offsets: RowOffsets, tasks: int = 1) -> None:
        """`tasks`: that share the reads out."""
        parts = offsets.by_part
        assert len({part.topic for part in parts}) == len({(part.topic, part.incarnation) for part in parts})
        self._sources = sources
        self._offsets = offsets
        self._tasks = tasks
        self._parts = {part.source: part for part in parts}
        # For each offset of a part whether its record came.
        self._is_read: dict[TopicPartition, np.ndarray] = {}

    def __iter__(self) -> Iterator[Read]:
        """Yield what reads the records and some around them, from the beginning.

        Raises SourceFailed, BrokerUnreachable, OSError.
        """
        self._is_read = {part: np.zeros(len(offsets), bool) for part, offsets in self._offsets.by_part.items()}
        near_offsets = self._offsets.near_offsets()
        for source in self._sources:
            for chunk in source.chunks(lambda: near_offsets, RECORDS_AT_ONCE):
                groups = {id(reads): reads for reads in chunk.split(self._tasks)}
                for reads in groups.values():
                    yield from reads

    def read_offsets(self) -> dict[TopicPartition, np.ndarray]:
        """Return the offsets whose records came."""
        return {part: self._offsets.by_part[part][is_read] for part, is_read in self._is_read.items() if is_read.any()}

    def admit_records(self, records: pa.RecordBatch) -> pa.BooleanArray:
        """Return which records are wanted and did not come yet, each once. They have come then.

        With the offsets 2 and 4 wanted, of records at 4, 3, 4 and 2 the first and the last are new. Of the same records
        a second time none is.
        """
        topics = records.column("topic")
        partitions = records.column("partition")
        offsets = records.column("offset").to_numpy(zero_copy_only=False)
        is_new = np.zeros(records.num_rows, bool)
        for source in product(pc.unique(topics).to_pylist(), pc.unique(partitions).to_pylist()):
            part = self._parts.get(source)
            if part is None:
                continue
            is_of_part = pc.and_(pc.equal(topics, part.topic), pc.equal(partitions, part.partition))
            rows = np.flatnonzero(is_of_part.to_numpy(zero_copy_only=False))
            positions = find_positions(offsets[rows], self._offsets.by_part[part])
            is_read = self._is_read[part]
            is_wanted = (positions >= 0) & ~is_read[positions]
            new_positions, first = np.unique(positions[is_wanted], return_index=True)
            is_read[new_positions] = True
            is_new[rows[is_wanted][first]] = True
        return pa.array(is_new)
