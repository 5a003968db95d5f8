"""Chooses the buckets that one is compared with. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from writer.core.files import BucketKey
from writer.core.units import microseconds

Interval = tuple[datetime, datetime]


@dataclass(frozen=True)
class BucketPlace:
    """A bucket of the table, or of the table of late rows."""

    bucket: BucketKey
    late: bool = False


@dataclass(frozen=True)
class Neighbours:
    """What a bucket is compared with: itself first."""

    places: tuple[BucketPlace, ...]
    near: frozenset[BucketPlace]  # within the window of the bucket itself


def neighbours(
    own: BucketPlace, intervals: Mapping[BucketPlace, Interval], unjudged: Collection[BucketKey], window: timedelta
) -> Neighbours:
    """Choose what decides which rows of a bucket go, and what holds rows that may go by one of its own.

    A bucket of the table whose rows were judged holds only rows that stay. Which of an unjudged one will stay, such as
    of an open one, is to be found out: so what lies within the window of that one is compared, too, and so on. Late
    rows decide nothing about the rows of the table.
    """
    places = list(intervals)
    starts, ends = (np.array([microseconds(span[i]) for span in intervals.values()], np.int64) for i in (0, 1))
    late, width = np.array([place.late for place in places]), window // timedelta(microseconds=1)
    numbers = {place: number for number, place in enumerate(places)}

    def near(number: int) -> np.ndarray:
        between = np.maximum(starts, starts[number]) - np.minimum(ends, ends[number])
        return np.asarray(between < width)

    first = numbers[own]
    direct = near(first)
    found = direct | (np.arange(len(places)) == first)
    waiting = [n for n in np.flatnonzero(found).tolist() if n != first]
    while waiting:
        number = waiting.pop()
        if places[number].bucket in unjudged and not late[number]:
            new = near(number) & ~found & ~late
            found |= new
            waiting += np.flatnonzero(new).tolist()
    others = [places[n] for n in np.flatnonzero(found).tolist() if n != first]
    return Neighbours((own, *others), frozenset(place for place in (own, *others) if direct[numbers[place]]))
