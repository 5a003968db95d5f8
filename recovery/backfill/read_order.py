"""Orders offsets of many partitions, oldest first by the broker's timestamps. Pure.

A partition's offsets say nothing of another's. So instants are laid over the time of the gap, and each partition is
asked for its offset at each instant; what lies between two instants is a slice of all partitions.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

from writer.core.offsets import OffsetRange, TopicPartition

INSTANTS_MAX = 500  # that Kafka is asked for


def instants(first: datetime, last: datetime, offsets: int, rows_max: int) -> list[datetime]:
    """Choose instants between the first and the last record: two for each chunk, evenly spaced."""
    count = min(INSTANTS_MAX, 2 * -(-offsets // rows_max) - 1)
    step = (last - first) / (count + 1)
    return [first + step * (at + 1) for at in range(count)] if step else []


def aligned(
    wanted: Sequence[OffsetRange], marks: Sequence[Mapping[TopicPartition, int]], rows_max: int
) -> list[list[OffsetRange]]:
    """Cut ranges into chunks of about `rows_max` offsets, oldest first; of a part one range at most in a chunk.

    `marks`: for rising instants, each part's first offset at or after it.
    """
    chunks: list[list[OffsetRange]] = []
    held: list[OffsetRange] = []
    for window in _windows(wanted, marks):
        if held and _offsets(held) + _offsets(window) > rows_max:
            chunks += _layers(held, rows_max)
            held = []
        held += window
    return [*chunks, *_layers(held, rows_max)]


def _windows(wanted: Sequence[OffsetRange], marks: Sequence[Mapping[TopicPartition, int]]) -> list[list[OffsetRange]]:
    at = {r.part: 0 for r in wanted}
    found = []
    for mark in [*marks, None]:
        window = []
        until = {part: max(start, mark.get(part, start)) if mark is not None else None for part, start in at.items()}
        for r in wanted:
            end = until[r.part]
            first, last = max(r.start, at[r.part]), r.end if end is None else min(r.end, end)
            if first < last:
                window.append(OffsetRange(r.part, first, last))
        at = {part: start if (end := until[part]) is None else end for part, start in at.items()}
        if window:
            found.append(window)
    return found


def _layers(held: Sequence[OffsetRange], rows_max: int) -> list[list[OffsetRange]]:
    """Join what touches, cut what is too much for one chunk, and put ranges of one part into chunks of their own."""
    joined: list[OffsetRange] = []
    for r in sorted(held, key=lambda r: (r.part, r.start)):
        if joined and joined[-1].part == r.part and joined[-1].end == r.start:
            joined[-1] = OffsetRange(r.part, joined[-1].start, r.end)
        else:
            joined.append(r)
    pieces = max(1, -(-_offsets(joined) // rows_max))
    chunks = []
    for piece in range(pieces):
        cut = [_cut(r, piece, pieces) for r in joined]
        layers: list[list[OffsetRange]] = []
        for r in (r for r in cut if r.start < r.end):
            free = next((layer for layer in layers if all(one.part != r.part for one in layer)), None)
            if free is None:
                layers.append([r])
            else:
                free.append(r)
        chunks += layers
    return chunks


def _cut(r: OffsetRange, piece: int, pieces: int) -> OffsetRange:
    size = r.end - r.start
    return OffsetRange(r.part, r.start + size * piece // pieces, r.start + size * (piece + 1) // pieces)


def _offsets(ranges: Sequence[OffsetRange]) -> int:
    return sum(r.end - r.start for r in ranges)
