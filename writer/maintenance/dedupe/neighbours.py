"""Chooses the buckets that one is compared with. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from headrace.writer.core.files import BucketKey
from headrace.writer.core.units import microseconds

Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class TableBucket:
    """A bucket of the table, or of the table of late rows."""

    key: BucketKey
    late: bool = False


@dataclass(frozen=True)
class Neighbours:
    """The buckets that one is compared with."""

    # The bucket itself is the first.
    buckets: tuple[TableBucket, ...]
    # Those within the window of the bucket itself.
    near: frozenset[TableBucket]


def neighbours(
    own: TableBucket, intervals: Mapping[TableBucket, Interval], unjudged: Collection[BucketKey], window: timedelta
) -> Neighbours:
    """Choose what decides which rows of a bucket go, and what holds rows that may go by one of its own.

    A bucket of the table whose rows were judged holds only rows that stay. Which of an unjudged one will stay, such as
    of an open one, is to be found out: so what lies within the window of that one is compared, too, and so on. Late
    rows decide nothing about the rows of the table.

    Hours 0 to 4 of the table, of which 3 and 4 are unjudged, and a window of one hour: hour 2 is compared
    with 1 and 3, which are near, and with 4, which is near 3. Hour 0 is near 1 alone, which was judged.
    """
    buckets = list(intervals)
    indexes = {bucket: index for index, bucket in enumerate(buckets)}
    starts = np.array([microseconds(start) for start, _ in intervals.values()], np.int64)
    ends = np.array([microseconds(end) for _, end in intervals.values()], np.int64)
    is_late = np.array([bucket.late for bucket in buckets])
    window_us = window // timedelta(microseconds=1)

    def is_near(index: int) -> np.ndarray:
        distance_us = np.maximum(starts, starts[index]) - np.minimum(ends, ends[index])
        return np.asarray(distance_us < window_us)

    own_index = indexes[own]
    is_near_own = is_near(own_index)
    is_chosen = is_near_own.copy()
    is_chosen[own_index] = True
    waiting = [index for index in np.flatnonzero(is_chosen).tolist() if index != own_index]
    while waiting:
        index = waiting.pop()
        if buckets[index].key in unjudged and not is_late[index]:
            is_new = is_near(index) & ~is_chosen & ~is_late
            is_chosen |= is_new
            waiting += np.flatnonzero(is_new).tolist()
    others = [buckets[index] for index in np.flatnonzero(is_chosen).tolist() if index != own_index]
    chosen = (own, *others)
    return Neighbours(chosen, frozenset(bucket for bucket in chosen if is_near_own[indexes[bucket]]))
