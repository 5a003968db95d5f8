"""Drops records that the table already has, and then tombstones; counts what is read, by partition."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.writer.batch.task_report import SPANS_MAX, Counts
from headrace.writer.core.offsets import Source, Span


def skip(
    records: pa.Table,
    frontier: Mapping[Source, int],
    counts: defaultdict[Source, Counts],
    *,
    keeps_tombstones: bool = False,
) -> pa.Table:
    """Drop what the table already has; count the rest as read, and its tombstones, by partition.

    Records without a column of values have none that is null. `keeps_tombstones`: a record without a value becomes a
    row as any other.
    """
    new_records: list[pa.Table] = []
    for source, rows in _cut_by_source(records):
        source_counts = counts[source]
        source_frontier = frontier.get(source, 0)
        new = rows
        # The lowest offset is not always the first: Spark may hand a partition over in two pieces.
        lowest = pc.min(rows.column("offset")).as_py()
        if lowest < source_frontier:
            new = rows.filter(pc.greater_equal(rows.column("offset"), source_frontier))
            source_counts.skipped += rows.num_rows - new.num_rows
        if new.num_rows > 0:
            _count_read(new, source_counts)
            if not keeps_tombstones:
                source_counts.tombstones += _count_tombstones(new)
            new_records.append(new)
    if not new_records:
        return records.slice(0, 0)
    return pa.concat_tables(new_records)


def _count_read(records: pa.Table, counts: Counts) -> None:
    """Count records of one partition as read, with their offsets."""
    first, last = pc.min_max(records.column("offset")).as_py().values()
    counts.offset_min = first if counts.offset_min is None else min(counts.offset_min, first)
    counts.offset_max = last if counts.offset_max is None else max(counts.offset_max, last)
    counts.read += records.num_rows
    if counts.spans_whole:
        has_gaps = last - first + 1 != records.num_rows
        spans = _offset_spans(records.column("offset")) if has_gaps else [(first, last + 1)]
        counts.add_spans(spans)


def drop_tombstones(records: pa.Table) -> pa.Table:
    """Return the records with a value."""
    if _count_tombstones(records) == 0:
        return records
    return records.filter(pc.is_valid(records.column("value")))


def _count_tombstones(records: pa.Table) -> int:
    if "value" not in records.column_names:
        return 0
    return int(records.column("value").null_count)


def _offset_spans(offsets: pa.ChunkedArray) -> list[Span]:
    """Cut offsets, in any order, into runs without a missing offset (cold: few are missing); the first pieces.

    Of the offsets `[7, 4, 5, 9]` these are `[(4, 6), (7, 8), (9, 10)]`.
    """
    ordered = contiguous(offsets).sort()
    steps = pc.subtract(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
    gaps = pc.indices_nonzero(pc.not_equal(steps, 1)).slice(0, SPANS_MAX + 1).to_pylist()
    bounds = [0, *(position + 1 for position in gaps), len(ordered)]
    return [(ordered[first].as_py(), ordered[end - 1].as_py() + 1) for first, end in pairwise(bounds)]


def _cut_by_source(records: pa.Table) -> Iterator[tuple[Source, pa.Table]]:
    """Cut a batch where the topic or the partition changes. Spark reads one partition after the other.

    Of the topics `[a, a, a, b]` and the partitions `[0, 0, 1, 1]` the pieces are `(a, 0)` with two rows, `(a, 1)` with
    one, and `(b, 1)` with one.
    """
    topics = pc.run_end_encode(contiguous(records.column("topic")).dictionary_encode().indices)
    partitions = pc.run_end_encode(contiguous(records.column("partition")))
    run_ends = sorted({*topics.run_ends.to_pylist(), *partitions.run_ends.to_pylist()})
    for start, end in pairwise([0, *run_ends]):
        piece = records.slice(start, end - start)
        yield (piece.column("topic")[0].as_py(), piece.column("partition")[0].as_py()), piece
