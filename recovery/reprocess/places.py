"""Offsets of rows by partition, as sorted arrays: eight bytes a row, however the rows of a bucket are scattered."""

from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.batch.staging import table_file
from writer.core.files import BucketFile, StagedFile
from writer.core.offsets import OffsetRange, Span, TopicPartition
from writer.storage.base import Store
from writer.table.row_removal import OFFSET_COLUMNS, PARTITION_COLUMNS

Places = Mapping[TopicPartition, np.ndarray]  # offsets in order, each once
_ROWS_AT_ONCE = 65_536
_SKIPPED_MAX = 10_000  # records between two wanted ones that are read along, and dropped


class Collector:
    """Collects the places of rows."""

    def __init__(self) -> None:
        self._found = defaultdict[TopicPartition, list[np.ndarray]](list)
        self.rows = 0  # that say an offset
        self.unplaced = 0  # that say none: adopted, or backfilled by event time

    def add(self, rows: pa.RecordBatch) -> None:
        """Take the places of these rows; they have the columns OFFSET_COLUMNS."""
        known = pc.and_(*(pc.is_valid(rows.column(name)) for name in ("_topic", "_offset")))
        placed = pa.table(rows.select(OFFSET_COLUMNS)).filter(known)
        self.rows, self.unplaced = self.rows + placed.num_rows, self.unplaced + rows.num_rows - placed.num_rows
        grouped = placed.group_by(PARTITION_COLUMNS, use_threads=False).aggregate([("_offset", "list")])
        for i in range(grouped.num_rows):  # one turn a part
            part = TopicPartition(*(grouped.column(name)[i].as_py() for name in PARTITION_COLUMNS))
            self._found[part].append(grouped.column("_offset_list")[i].values.to_numpy(zero_copy_only=False))

    def places(self) -> dict[TopicPartition, np.ndarray]:
        """Return the places of all rows that say one."""
        return {part: np.unique(np.concatenate(found)) for part, found in self._found.items()}


def size(places: Places) -> int:
    """Count the offsets."""
    return sum(len(offsets) for offsets in places.values())


def hull(places: Places) -> dict[TopicPartition, list[Span]]:
    """Return the range from the first to the last offset of each part."""
    return {part: [(int(offsets[0]), int(offsets[-1]) + 1)] for part, offsets in places.items() if len(offsets)}


def ranges(places: Places) -> list[OffsetRange]:
    """Return ranges that hold all offsets, few of which are far apart: what a source reads in one go."""
    found = []
    for part, offsets in sorted(places.items()):
        cuts = np.flatnonzero(np.diff(offsets) > _SKIPPED_MAX)
        starts, ends = offsets[np.r_[0, cuts + 1]], offsets[np.r_[cuts, len(offsets) - 1]]
        found += [OffsetRange(part, int(start), int(end) + 1) for start, end in zip(starts, ends, strict=True)]
    return found


def positions(offsets: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Return where in a sorted array each offset is; -1: it is not there."""
    at = np.searchsorted(among, offsets)
    is_there = among[np.minimum(at, len(among) - 1)] == offsets if len(among) else np.zeros(len(offsets), bool)
    return np.where(is_there, at, -1)


def at_places(rows: pa.RecordBatch, places: Places) -> np.ndarray:
    """Return for each row whether it is at one of these places."""
    found = np.zeros(rows.num_rows, bool)
    offsets = rows.column("_offset").to_numpy(zero_copy_only=False)
    here = {part for part in _parts(rows) if part in places}
    for part in here:
        values = zip(PARTITION_COLUMNS, (part.topic, part.incarnation, part.partition), strict=True)
        masks = [pc.fill_null(pc.equal(rows.column(name), value), False) for name, value in values]
        mine = np.logical_and.reduce([mask.to_numpy(zero_copy_only=False) for mask in masks])
        found[mine] = positions(offsets[mine].astype(np.int64), places[part]) >= 0
    return found


def _parts(rows: pa.RecordBatch) -> list[TopicPartition]:
    distinct = pa.table(rows.select(PARTITION_COLUMNS)).group_by(PARTITION_COLUMNS, use_threads=False).aggregate([])
    return [TopicPartition(*row.values()) for row in distinct.to_pylist()]


def count(store: Store, file: BucketFile | StagedFile, places: Places) -> int:
    """Count the rows of a file at these places. Raises OSError."""
    with table_file.open_parquet(store, file.path) as source:
        if not {*OFFSET_COLUMNS} <= {*source.names}:
            return 0
        return sum(int(at_places(batch, places).sum()) for batch in source.iter_batches(_ROWS_AT_ONCE, OFFSET_COLUMNS))
