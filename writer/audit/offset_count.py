"""Counts offsets in data files: which are there, which more than once. Memory is bounded for tables of any size.

An offset is a byte in an array. Parts are counted in passes, each over the files that may hold its offsets.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from writer.batch.staging import table_file
from writer.core.files import BucketFile
from writer.core.offsets import Span, TopicPartition, joined
from writer.storage.base import Store
from writer.table.row_removal import mask_spans

OFFSETS_AT_ONCE = 256 * 2**20  # bytes, one for each offset
_ROWS_AT_ONCE = 500_000
_MARKS_AT_ONCE = 4 * 2**20  # positions take eight bytes each
_PLACE = ["_topic", "_incarnation", "_partition", "_offset"]
SPANS_SHOWN = 20
# Stands for the partition of rows without an offset: another writer's, in a table that was adopted.
WITHOUT_OFFSET = TopicPartition("", 0, 0)


@dataclass(frozen=True)
class FileSet:
    """Files of one table, and how to read them. `kind`: rows or dead letters; `without`: offsets to leave out."""

    store: Store  # of the table
    files: Sequence[BucketFile]
    dead_letters: bool = False
    without: Mapping[TopicPartition, Sequence[Span]] = field(default_factory=dict)


@dataclass
class FileOffsets:
    """What files hold of one part."""

    rows: int = 0
    dead_letters: dict[str, int] = field(default_factory=dict)  # by outcome
    distinct: int = 0
    twice: list[Span] = field(default_factory=list)
    nowhere: list[Span] = field(default_factory=list)  # within the part's range, gaps left out
    nowhere_offsets: int = 0
    astray: list[Span] = field(default_factory=list)  # outside the part's range


@dataclass(frozen=True)
class _Window:
    part: TopicPartition
    start: int
    end: int


def count(
    file_sets: Sequence[FileSet],
    ranges: Mapping[TopicPartition, Span],
    gaps: Mapping[TopicPartition, Sequence[Span]],
    *,
    below_is_known: bool,
    at_once: int = OFFSETS_AT_ONCE,
) -> dict[TopicPartition, FileOffsets]:
    """Count what the files hold of each part's range. `below_is_known`: rows below a range are not astray.

    Raises OSError for a file that is gone.
    """
    found = {part: FileOffsets() for part in ranges}
    looked: set[tuple[int, str]] = set()
    for number, windows in enumerate(_passes(ranges, at_once)):
        seen = {window: np.zeros(window.end - window.start, np.uint8) for window in windows}
        by_part: dict[TopicPartition, list[_Window]] = {}
        for window in windows:
            by_part.setdefault(window.part, []).append(window)
        for at, file_set in enumerate(file_sets):
            for file in file_set.files:
                if not _reaches(file, windows) and (number or _reaches(file, _all(ranges))):
                    continue
                first = (at, file.path) not in looked
                looked.add((at, file.path))
                for part, outcome, offsets in _pieces(file_set, file):
                    if part is WITHOUT_OFFSET:
                        found.setdefault(WITHOUT_OFFSET, FileOffsets()).rows += len(offsets) if first else 0
                        continue
                    if first:
                        _stray(found, part, offsets, ranges, below_is_known=below_is_known)
                    for window in by_part.get(part, ()):
                        _mark(found[part], seen[window], window, offsets, outcome)
        for window, marks in seen.items():
            _count_marks(found[window.part], window, marks, gaps.get(window.part, ()))
    return found


def spans(positions: np.ndarray, start: int) -> list[Span]:
    """Cut rising positions into runs, as offsets from `start` on; the first few."""
    if not len(positions):
        return []
    cuts = np.flatnonzero(np.diff(positions) != 1)[:SPANS_SHOWN]
    firsts, lasts = [0, *(cuts + 1)], [*cuts, len(positions) - 1]
    runs = [(int(positions[a]) + start, int(positions[b]) + start + 1) for a, b in zip(firsts, lasts, strict=True)]
    return runs[:SPANS_SHOWN]


def _passes(ranges: Mapping[TopicPartition, Span], at_once: int) -> Iterator[list[_Window]]:
    """Cut parts into windows, and put as many into a pass as memory holds. There is always a first pass."""
    held: list[_Window] = []
    step = at_once
    for part, (start, end) in sorted(ranges.items()):
        at = start
        while at < end:
            if not step:
                yield held
                held, step = [], at_once
            until = min(end, at + step)
            held.append(_Window(part, at, until))
            step -= until - at
            at = until
    yield held


def _all(ranges: Mapping[TopicPartition, Span]) -> list[_Window]:
    return [_Window(part, start, end) for part, (start, end) in ranges.items() if start < end]


def _reaches(file: BucketFile, windows: Iterable[_Window]) -> bool:
    return any(file.reaches(window.start, window.end) for window in windows)


def _pieces(file_set: FileSet, file: BucketFile) -> Iterator[tuple[TopicPartition, str | None, np.ndarray]]:
    """Yield the offsets of a file by part, and by outcome for dead letters, a batch at a time."""
    columns = [*_PLACE, "outcome"] if file_set.dead_letters else _PLACE
    keys = [name for name in columns if name != "_offset"]
    with table_file.open_parquet(file_set.store, file.path) as source:
        if not set(columns) <= set(source.names):
            yield WITHOUT_OFFSET, None, _as_many(source.metadata.num_rows)
            return
        for batch in source.iter_batches(_ROWS_AT_ONCE, columns):
            rows = pa.table(batch)
            if missing := rows.column("_offset").null_count:  # another client's, in a file that holds rows of ours
                yield WITHOUT_OFFSET, None, _as_many(missing)
                rows = rows.filter(pc.is_valid(rows.column("_offset")))
            listed = rows.group_by(keys, use_threads=False).aggregate([("_offset", "list")])
            for i in range(listed.num_rows):  # one turn a part
                part = TopicPartition(*(listed.column(name)[i].as_py() for name in _PLACE[:3]))
                if None in (part.topic, part.incarnation, part.partition):
                    yield WITHOUT_OFFSET, None, _as_many(len(listed.column("_offset_list")[i].values))
                    continue
                offsets = listed.column("_offset_list")[i].values.to_numpy(zero_copy_only=False)
                if part in file_set.without:
                    offsets = offsets[~mask_spans(offsets, file_set.without[part])]
                yield part, listed.column("outcome")[i].as_py() if file_set.dead_letters else None, offsets


def _as_many(count: int) -> np.ndarray:
    return np.broadcast_to(np.int64(0), count)


def _mark(found: FileOffsets, marks: np.ndarray, window: _Window, offsets: np.ndarray, outcome: str | None) -> None:
    inside = offsets[(offsets >= window.start) & (offsets < window.end)] - window.start
    if outcome is None:
        found.rows += len(inside)
    else:
        found.dead_letters[outcome] = found.dead_letters.get(outcome, 0) + len(inside)
    places, times = np.unique(inside, return_counts=True)
    marks[places] = np.minimum(marks[places].astype(np.int64) + times, 255).astype(np.uint8)


def _stray(
    found: dict[TopicPartition, FileOffsets],
    part: TopicPartition,
    offsets: np.ndarray,
    ranges: Mapping[TopicPartition, Span],
    *,
    below_is_known: bool,
) -> None:
    start, end = ranges.get(part, (0, 0))
    outside = offsets[offsets >= end] if below_is_known else offsets[(offsets >= end) | (offsets < start)]
    if len(outside) and not (below_is_known and part not in ranges):
        known = found.setdefault(part, FileOffsets())
        known.astray = joined([*known.astray, *spans(np.unique(outside), 0)])[:SPANS_SHOWN]


def _count_marks(found: FileOffsets, window: _Window, marks: np.ndarray, gaps: Sequence[Span]) -> None:
    found.distinct += int(np.count_nonzero(marks))
    found.twice = _more(found.twice, marks, window.start, lambda some: some > 1)
    for start, end in gaps:  # holds nothing, and misses nothing
        marks[max(start - window.start, 0) : max(end - window.start, 0)] = 1
    found.nowhere_offsets += len(marks) - int(np.count_nonzero(marks))
    found.nowhere = _more(found.nowhere, marks, window.start, lambda some: some == 0)


def _more(known: list[Span], marks: np.ndarray, start: int, wanted: Callable[[np.ndarray], np.ndarray]) -> list[Span]:
    """Add the runs of wanted marks, a piece at a time: as many as are shown, though the last may go on."""
    for at in range(0, len(marks), _MARKS_AT_ONCE):
        if len(known) >= SPANS_SHOWN:
            return known[:SPANS_SHOWN]
        positions = np.flatnonzero(wanted(marks[at : at + _MARKS_AT_ONCE]))
        known = joined([*known, *spans(positions, start + at)])
    return known[:SPANS_SHOWN]
