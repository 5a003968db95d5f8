"""Shares the ranges of a batch out to its tasks. Pure."""

import math
from collections.abc import Iterable

from writer.core.offsets import OffsetRange


def cut(ranges: Iterable[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Cut ranges into at most so many shares of equal numbers of offsets, in their order; at least one share.

    A partition may be in several shares, so that a heavy one does not hold a batch.
    """
    wanted = [r for r in ranges if r.start < r.end]
    size = max(1, math.ceil(sum(r.end - r.start for r in wanted) / tasks))
    shares, room = [list[OffsetRange]()], size
    for r in wanted:
        start = r.start
        while start < r.end:
            if not room:
                shares.append([])
                room = size
            end = min(r.end, start + room)
            shares[-1].append(OffsetRange(r.part, start, end))
            room -= end - start
            start = end
    return shares
