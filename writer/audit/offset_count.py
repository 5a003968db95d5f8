"""Counts offsets in data files: which are there, which more than once. Memory is bounded for tables of any size.

An offset is a byte in an array. Parts are counted in passes, each over the files that may hold its offsets.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.batch.staging import table_file
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import OffsetRange, OffsetSet, Span, TopicPartition, cut_ranges, merge_spans
from headrace.writer.storage.base import Store
from headrace.writer.table.row_removal import OFFSET_COLUMNS, PARTITION_COLUMNS, mask_spans, spans_of_rising

# Bytes in memory, one for each offset.
OFFSETS_AT_ONCE = 256 * 2**20
_ROWS_AT_ONCE = 500_000
# Bytes that are looked at in one step, as each position takes eight bytes.
_COUNTS_AT_ONCE = 4 * 2**20
# A count of an offset has one byte.
_COUNT_MAX = 255
SPANS_SHOWN = 20
# Stands for the partition of rows without an offset: another writer's, in a table that was adopted.
WITHOUT_OFFSET = TopicPartition("", 0, 0)


@dataclass(frozen=True)
class FileSet:
    """Files of one table, and how to read them."""

    # Of the table.
    store: Store
    files: Sequence[BucketFile]
    # The files hold dead letters, not rows.
    dead_letters: bool = False
    # Offsets that are not counted.
    removed_offsets: OffsetSet = field(default_factory=OffsetSet)


@dataclass
class FileOffsets:
    """What files hold of one part."""

    rows: int = 0
    # By outcome.
    dead_letters: dict[str, int] = field(default_factory=dict)
    distinct: int = 0
    twice: list[Span] = field(default_factory=list)
    # Offsets that no file holds, within the part's range, gaps left out.
    nowhere: list[Span] = field(default_factory=list)
    nowhere_offsets: int = 0
    # Offsets outside the part's range.
    astray: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class _OffsetBatch:
    """Offsets of one part in a batch of a file's rows. `outcome`: of dead letters; None for rows."""

    part: TopicPartition
    outcome: str | None
    offsets: np.ndarray


def count_file_offsets(
    file_sets: Sequence[FileSet],
    ranges: Sequence[OffsetRange],
    gaps: OffsetSet,
    *,
    below_is_known: bool,
    at_once: int = OFFSETS_AT_ONCE,
) -> dict[TopicPartition, FileOffsets]:
    """Count what the files hold of each part's one range. `below_is_known`: rows below a range are not astray.

    Raises OSError for a file that is gone.
    """
    counter = _OffsetCounter(ranges, below_is_known=below_is_known)
    # There is always a first pass.
    passes = cut_ranges(sorted(ranges, key=attrgetter("part")), at_once) or [[]]
    for pass_number, windows in enumerate(passes):
        counter.start_pass(windows)
        for set_number, file_set in enumerate(file_sets):
            for file in file_set.files:
                # The first pass also reads the files that no pass reaches, for what is astray in them.
                if _reaches(file, windows) or (pass_number == 0 and not _reaches(file, counter.ranges)):
                    counter.add_file(set_number, file_set, file)
        counter.end_pass(gaps)
    return counter.file_offsets


class _OffsetCounter:
    """Counts offsets of files in the windows of one pass after the other."""

    def __init__(self, ranges: Sequence[OffsetRange], *, below_is_known: bool) -> None:
        self.ranges = [offset_range for offset_range in ranges if offset_range.count]
        self.file_offsets = {offset_range.part: FileOffsets() for offset_range in ranges}
        self._span_by_part = {offset_range.part: offset_range.span for offset_range in ranges}
        self._below_is_known = below_is_known
        # The number of a file's set, and its path.
        self._files_read: set[tuple[int, str]] = set()
        self._counts: dict[OffsetRange, np.ndarray] = {}
        self._windows_by_part: dict[TopicPartition, list[OffsetRange]] = {}

    def start_pass(self, windows: Iterable[OffsetRange]) -> None:
        """Set the counts of each offset of the windows to zero."""
        self._counts = {window: np.zeros(window.count, np.uint8) for window in windows}
        self._windows_by_part = {}
        for window in windows:
            self._windows_by_part.setdefault(window.part, []).append(window)

    def add_file(self, set_number: int, file_set: FileSet, file: BucketFile) -> None:
        """Count the offsets of a file in the windows; what has no offset or is astray counts in its first pass."""
        is_first_pass = (set_number, file.path) not in self._files_read
        self._files_read.add((set_number, file.path))
        for batch in _read_offsets(file_set, file):
            if is_first_pass and batch.part is WITHOUT_OFFSET:
                self.file_offsets.setdefault(WITHOUT_OFFSET, FileOffsets()).rows += len(batch.offsets)
            elif is_first_pass:
                self._add_astray(batch)
            for window in self._windows_by_part.get(batch.part, ()):
                _count_batch(self.file_offsets[batch.part], self._counts[window], window, batch)

    def _add_astray(self, batch: _OffsetBatch) -> None:
        """Add the offsets of a batch that lie outside the range of their part."""
        if self._below_is_known and batch.part not in self._span_by_part:
            return
        start, end = self._span_by_part.get(batch.part, (0, 0))
        is_outside = batch.offsets >= end
        if not self._below_is_known:
            is_outside |= batch.offsets < start
        outside = batch.offsets[is_outside]
        if len(outside):
            file_offsets = self.file_offsets.setdefault(batch.part, FileOffsets())
            file_offsets.astray = merge_spans(
                [*file_offsets.astray, *spans_of_rising(np.unique(outside), SPANS_SHOWN)]
            )[:SPANS_SHOWN]

    def end_pass(self, gaps: OffsetSet) -> None:
        """Add up the counts of the windows. Offsets in gaps hold nothing, and are not missing."""
        for window, counts in self._counts.items():
            _add_counts(self.file_offsets[window.part], window, counts, gaps.get(window.part, ()))


def _reaches(file: BucketFile, windows: Iterable[OffsetRange]) -> bool:
    """Return whether a file may hold offsets of the windows, by its bounds."""
    return any(file.reaches(*window.span) for window in windows)


def _read_offsets(file_set: FileSet, file: BucketFile) -> Iterator[_OffsetBatch]:
    """Yield the offsets of a file by part, and by outcome for dead letters, a batch at a time."""
    columns = [*OFFSET_COLUMNS]
    keys = [*PARTITION_COLUMNS]
    if file_set.dead_letters:
        columns.append("outcome")
        keys.append("outcome")
    with table_file.open_parquet(file_set.store, file.path) as source:
        if not set(columns) <= set(source.names):
            yield _batch_without_offset(source.metadata.num_rows)
            return
        for batch in source.iter_batches(_ROWS_AT_ONCE, columns):
            rows = pa.table(batch)
            # Another client's rows, in a file that holds rows of ours.
            rows_without_offset = rows.column("_offset").null_count
            if rows_without_offset:
                yield _batch_without_offset(rows_without_offset)
                rows = rows.filter(pc.is_valid(rows.column("_offset")))
            offset_lists = rows.group_by(keys, use_threads=False).aggregate([("_offset", "list")])
            for index in range(offset_lists.num_rows):
                yield _batch_of_group(file_set, offset_lists, index)


def _batch_of_group(file_set: FileSet, offset_lists: pa.Table, index: int) -> _OffsetBatch:
    """Return the offsets of one group of a part, and of an outcome for dead letters, without those removed."""
    group_offsets = offset_lists.column("_offset_list")[index].values
    partition_values = [offset_lists.column(name)[index].as_py() for name in PARTITION_COLUMNS]
    if None in partition_values:
        return _batch_without_offset(len(group_offsets))
    part = TopicPartition(*partition_values)
    offsets = group_offsets.to_numpy(zero_copy_only=False)
    if part in file_set.removed_offsets:
        offsets = offsets[~mask_spans(offsets, file_set.removed_offsets[part])]
    outcome = None
    if file_set.dead_letters:
        outcome = offset_lists.column("outcome")[index].as_py()
    return _OffsetBatch(part, outcome, offsets)


def _batch_without_offset(rows: int) -> _OffsetBatch:
    """Stand for rows that have no offset, by their number."""
    return _OffsetBatch(WITHOUT_OFFSET, None, np.broadcast_to(np.int64(0), rows))


def _count_batch(file_offsets: FileOffsets, counts: np.ndarray, window: OffsetRange, batch: _OffsetBatch) -> None:
    """Count the offsets of a batch that lie in a window.

    Of the window [10, 14) with the counts 1, 0, 0, 0, the offsets 10, 12, 12, 20 make 2, 0, 2, 0.
    """
    is_inside = (batch.offsets >= window.start) & (batch.offsets < window.end)
    positions = batch.offsets[is_inside] - window.start
    if batch.outcome is None:
        file_offsets.rows += len(positions)
    else:
        file_offsets.dead_letters[batch.outcome] = file_offsets.dead_letters.get(batch.outcome, 0) + len(positions)
    distinct_positions, times = np.unique(positions, return_counts=True)
    sums = counts[distinct_positions].astype(np.int64) + times
    counts[distinct_positions] = np.minimum(sums, _COUNT_MAX).astype(np.uint8)


def _add_counts(file_offsets: FileOffsets, window: OffsetRange, counts: np.ndarray, gaps: Sequence[Span]) -> None:
    """Add the counts of a window to what files hold of its part."""
    file_offsets.distinct += int(np.count_nonzero(counts))
    file_offsets.twice = _add_spans(file_offsets.twice, counts, window.start, lambda some: some > 1)
    for start, end in gaps:
        counts[max(start - window.start, 0) : max(end - window.start, 0)] = 1
    file_offsets.nowhere_offsets += len(counts) - int(np.count_nonzero(counts))
    file_offsets.nowhere = _add_spans(file_offsets.nowhere, counts, window.start, lambda some: some == 0)


def _add_spans(
    shown_spans: list[Span], counts: np.ndarray, start: int, condition: Callable[[np.ndarray], np.ndarray]
) -> list[Span]:
    """Add the runs of offsets whose counts meet a condition: as many as are shown, though the last may go on."""
    for index in range(0, len(counts), _COUNTS_AT_ONCE):
        if len(shown_spans) >= SPANS_SHOWN:
            return shown_spans[:SPANS_SHOWN]
        positions = np.flatnonzero(condition(counts[index : index + _COUNTS_AT_ONCE]))
        shown_spans = merge_spans([*shown_spans, *spans_of_rising(positions + (start + index), SPANS_SHOWN)])
    return shown_spans[:SPANS_SHOWN]
