"""Drops records that the table already has, and then tombstones; counts what is read, by partition."""

from collections import defaultdict
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous
from writer.batch.task_report import SPANS_MAX, Counts
from writer.core.offsets import Source, Span


def skip(records: pa.Table, frontier: Mapping[Source, int], counts: defaultdict[Source, Counts]) -> pa.Table:
    """Drop what the table already has; count the rest as read, and its tombstones, by partition.

    Records without a column of values have none that is null.
    """
    kept: list[pa.Table] = []
    for source, rows in _runs(records):
        count, known = counts[source], frontier.get(source, 0)
        new = rows
        lowest = pc.min(rows.column("offset")).as_py()  # not the first: Spark may hand a partition over in two pieces
        if lowest < known:
            new = rows.filter(pc.greater_equal(rows.column("offset"), known))
            count.skipped += rows.num_rows - new.num_rows
        if new.num_rows == 0:
            continue
        first, last = pc.min_max(new.column("offset")).as_py().values()
        count.offset_min = first if count.offset_min is None else min(count.offset_min, first)
        count.offset_max = last if count.offset_max is None else max(count.offset_max, last)
        count.read += new.num_rows
        if count.spans_whole:
            count.add_read([(first, last + 1)] if last - first + 1 == new.num_rows else _spans(new.column("offset")))
        count.tombstones += _tombstones(new)
        kept.append(new)
    return pa.concat_tables(kept) if kept else records.slice(0, 0)


def with_values(records: pa.Table) -> pa.Table:
    """Drop tombstones."""
    return records.filter(pc.is_valid(records.column("value"))) if _tombstones(records) else records


def _tombstones(records: pa.Table) -> int:
    return int(records.column("value").null_count) if "value" in records.column_names else 0


def _spans(offsets: pa.ChunkedArray) -> list[Span]:
    """Cut offsets, in any order, into runs without a missing offset (cold: few are missing); the first pieces."""
    ordered = contiguous(offsets).sort()
    steps = pc.subtract(ordered.slice(1), ordered.slice(0, len(ordered) - 1))
    after = pc.indices_nonzero(pc.not_equal(steps, 1)).slice(0, SPANS_MAX + 1).to_pylist()
    starts, ends = [0, *(at + 1 for at in after)], [*(at + 1 for at in after), len(ordered)]
    return [(ordered[a].as_py(), ordered[b - 1].as_py() + 1) for a, b in zip(starts, ends, strict=True)]


def _runs(records: pa.Table) -> Iterator[tuple[Source, pa.Table]]:
    """Cut a batch where the topic or the partition changes. Spark reads one partition after the other."""
    topics = pc.run_end_encode(contiguous(records.column("topic")).dictionary_encode().indices)
    partitions = pc.run_end_encode(contiguous(records.column("partition")))
    ends = sorted({*topics.run_ends.to_pylist(), *partitions.run_ends.to_pylist()})  # few
    start = 0
    for end in ends:
        piece = records.slice(start, end - start)
        yield (piece.column("topic")[0].as_py(), piece.column("partition")[0].as_py()), piece
        start = end
