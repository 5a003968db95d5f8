"""Orders offsets of many partitions, oldest first by the broker's timestamps. Pure.

A partition's offsets say nothing of another's. So instants are laid over the time of the gap, and each partition is
asked for its offset at each instant; the offsets between two instants are a slice of all partitions.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from operator import attrgetter

from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition

# Instants that Kafka is asked for.
INSTANTS_MAX = 500


def instants(first: datetime, last: datetime, offsets: int, rows_max: int) -> list[datetime]:
    """Choose instants between the first and the last record: two for each chunk, evenly spaced."""
    count = min(INSTANTS_MAX, 2 * -(-offsets // rows_max) - 1)
    step = (last - first) / (count + 1)
    return [first + step * number for number in range(1, count + 1)] if step else []


def cut_into_chunks(
    wanted: Sequence[OffsetRange], marks: Sequence[Mapping[TopicPartition, int]], rows_max: int
) -> list[list[OffsetRange]]:
    """Cut ranges into chunks of about `rows_max` offsets, oldest first; of a part one range at most in a chunk.

    `marks`: for rising instants, each part's first offset at or after it. With `rows_max` 10, the ranges [0, 8) of
    part A and [0, 12) of part B, and the mark A=2, B=8, the chunks are A [0, 2) with B [0, 8), and A [2, 8) with
    B [8, 12).
    """
    chunks: list[list[OffsetRange]] = []
    ranges: list[OffsetRange] = []
    for window in _cut_at_marks(wanted, marks):
        if ranges and _count_offsets(ranges) + _count_offsets(window) > rows_max:
            chunks += _split(ranges, rows_max)
            ranges = []
        ranges += window
    return [*chunks, *_split(ranges, rows_max)]


def cut_into_slices(ranges: Sequence[OffsetRange], slices: int) -> list[list[OffsetRange]]:
    """Cut each range evenly into so many slices: the first has the first offsets of each range. None is empty.

    In two slices, the ranges [0, 4) of part A and [10, 11) of part B become A [0, 2), and A [2, 4) with B [10, 11).
    """
    cuts = [[_piece_of(r, number, slices) for r in ranges] for number in range(slices)]
    filled = [[r for r in cut if r.count] for cut in cuts]
    return [cut for cut in filled if cut]


def _cut_at_marks(
    wanted: Sequence[OffsetRange], marks: Sequence[Mapping[TopicPartition, int]]
) -> list[list[OffsetRange]]:
    """Return what is wanted before the first mark, between each two, and after the last; empty windows are left out."""
    windows = []
    starts = {r.part: 0 for r in wanted}
    for mark in marks:
        ends = {part: max(start, mark.get(part, start)) for part, start in starts.items()}
        windows.append([r.clip((starts[r.part], ends[r.part])) for r in wanted])
        starts = ends
    windows.append([r.clip((starts[r.part], r.end)) for r in wanted])
    parts = [[r for r in window if r.count] for window in windows]
    return [window for window in parts if window]


def _split(ranges: Sequence[OffsetRange], rows_max: int) -> list[list[OffsetRange]]:
    """Cut what is too much for one chunk, evenly over all parts, and put ranges of one part into chunks of their own.

    Ranges that touch are one range.
    """
    merged = OffsetSet.of(sorted(ranges, key=attrgetter("part"))).ranges()
    pieces = max(1, -(-_count_offsets(merged) // rows_max))
    chunks = []
    for piece in range(pieces):
        chunks += _one_range_a_part([_piece_of(r, piece, pieces) for r in merged])
    return chunks


def _one_range_a_part(ranges: Sequence[OffsetRange]) -> list[list[OffsetRange]]:
    """Distribute ranges over as few chunks as have at most one range of each part."""
    chunks: list[list[OffsetRange]] = []
    for r in ranges:
        if not r.count:
            continue
        free = next((chunk for chunk in chunks if all(other.part != r.part for other in chunk)), None)
        if free is None:
            chunks.append([r])
        else:
            free.append(r)
    return chunks


def _piece_of(r: OffsetRange, piece: int, pieces: int) -> OffsetRange:
    """Return one of so many equal pieces of a range. May be empty."""
    return r.clip((r.start + r.count * piece // pieces, r.start + r.count * (piece + 1) // pieces))


def _count_offsets(ranges: Sequence[OffsetRange]) -> int:
    return sum(r.count for r in ranges)
