"""Shares the ranges of a batch out to its tasks. Pure."""

import math
from collections.abc import Iterable

from writer.core.offsets import OffsetRange


def share_ranges(ranges: Iterable[OffsetRange], tasks: int) -> list[list[OffsetRange]]:
    """Cut ranges into at most so many shares of equal numbers of offsets, in their order; at least one share.

    A partition may be in several shares, so that a heavy one does not hold a batch.
    """
    filled = [r for r in ranges if r.start < r.end]
    share_size = max(1, math.ceil(sum(r.end - r.start for r in filled) / tasks))
    shares = [list[OffsetRange]()]
    size_left = share_size
    for r in filled:
        start = r.start
        while start < r.end:
            if not size_left:
                shares.append([])
                size_left = share_size
            until = min(r.end, start + size_left)
            shares[-1].append(OffsetRange(r.part, start, until))
            size_left -= until - start
            start = until
    return shares
