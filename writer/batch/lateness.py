"""Finds late rows, whose bucket was closed before the batch, and measures how late rows are.

A bucket is closed, or it is not: so the buckets of a batch are looked at, a handful, and rows only where one is closed.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bucketers import Buckets
from bucketers.arrow import contiguous
from writer.core.files import BucketKey
from writer.core.offsets import Source
from writer.core.units import microseconds

LatePolicy = Literal["reopen", "late_table", "dead_letter"]
LATE_POLICIES: tuple[LatePolicy, ...] = get_args(LatePolicy)


class LateTier(NamedTuple):
    """What becomes of late rows up to some lateness."""

    within: timedelta | None  # how far the watermark is past the end of their bucket; None: any more
    to: LatePolicy


Window = tuple[datetime, datetime]  # the first and the last time that is believed
_INT64_MIN = -(2**63)
LATE = "late: "  # before the reason of a dead letter that was only late
# Upper bounds in seconds of the histograms: about a factor of four each, from a second to twelve days.
BOUNDS_S = (1, 4, 15, 60, 240, 900, 3_600, 14_400, 57_600, 259_200, 1_036_800)
_BOUNDS_US = [bound * 1_000_000 for bound in BOUNDS_S]
_BINS = len(BOUNDS_S) + 1


@dataclass
class Lateness:
    """How late rows came. Bins by BOUNDS_S, each row in one; the last is beyond all bounds."""

    behind: list[int] = field(default_factory=lambda: [0] * _BINS)  # broker time after event time, of all rows
    beyond: list[int] = field(
        default_factory=lambda: [0] * _BINS
    )  # `closed_until` after the bucket's end, of late rows
    buckets: Counter[BucketKey] = field(default_factory=Counter)  # late rows that joined their bucket
    elsewhere: Counter[tuple[BucketKey, str]] = field(default_factory=Counter)  # late rows that did not, by policy

    def plus(self, other: "Lateness") -> "Lateness":
        """Add the counts of another task."""
        return Lateness(
            [a + b for a, b in zip(self.behind, other.behind, strict=True)],
            [a + b for a, b in zip(self.beyond, other.beyond, strict=True)],
            self.buckets + other.buckets,
            self.elsewhere + other.elsewhere,
        )

    @property
    def by_policy(self) -> dict[str, int]:
        """Late rows by what became of them; none of those that releases before tiers put elsewhere."""
        found = Counter({"reopen": self.buckets.total()} if self.buckets else {})
        for (_, to), rows in self.elsewhere.items():
            found[to] += rows
        return dict(found)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        buckets = [[list(bucket), rows] for bucket, rows in self.buckets.items()]
        elsewhere = [[list(bucket), to, rows] for (bucket, to), rows in self.elsewhere.items()]
        found = {"behind": self.behind, "beyond": self.beyond, "buckets": buckets}
        return {**found, "elsewhere": elsewhere} if elsewhere else found

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Lateness":
        """Read what `to_json` wrote."""
        buckets = Counter({tuple(bucket): rows for bucket, rows in raw["buckets"]})
        elsewhere = Counter({(tuple(bucket), to): rows for bucket, to, rows in raw.get("elsewhere", ())})
        return cls(raw["behind"], raw["beyond"], buckets, elsewhere)

    def see(self, micros: Any) -> None:
        """Count rows by how many microseconds after its event the broker had each (a numpy array)."""
        below = [0, *(int(np.count_nonzero(micros < bound)) for bound in _BOUNDS_US), len(micros)]
        self.behind = [n + below[i + 1] - below[i] for i, n in enumerate(self.behind)]

    def add(self, found: "Late", closed_until: datetime) -> None:
        """Count late rows."""
        for one in found.buckets:
            self.beyond[sum(closed_until - one.end >= timedelta(seconds=bound) for bound in BOUNDS_S)] += one.rows
            if one.to == "reopen":
                self.buckets[one.bucket] += one.rows
            else:
                self.elsewhere[one.bucket, one.to] += one.rows


class LateBucket(NamedTuple):
    """The late rows of one bucket in a batch."""

    code: int  # in the batch
    bucket: BucketKey
    end: datetime
    rows: int
    to: LatePolicy


@dataclass(frozen=True)
class Late:
    """The late rows of a batch."""

    codes: pa.Array  # of the buckets of all rows
    buckets: tuple[LateBucket, ...]

    def rows(self, *to: LatePolicy) -> pa.BooleanArray:
        """Return which rows have one of these policies."""
        return pc.is_in(self.codes, value_set=pa.array([one.code for one in self.buckets if one.to in to], pa.int32()))


def late(
    buckets: Buckets, closed_until: datetime | None, watermark: datetime | None, tiers: Sequence[LateTier]
) -> Late | None:
    """Return the rows whose bucket is closed; None if there are none.

    Tiers count by the watermark, or by `closed_until` where that is further: a clock or a person closed buckets then.
    The last tier has no bound.
    """
    if closed_until is None:
        return None
    closed = [i for i, span in enumerate(buckets.intervals) if span is not None and span[1] <= closed_until]
    if not closed:
        return None
    mask = pc.is_in(buckets.codes, value_set=pa.array(closed, pa.int32()))
    counts = {row["values"]: row["counts"] for row in pc.value_counts(buckets.codes.filter(mask)).to_pylist()}
    at = closed_until if watermark is None else max(watermark, closed_until)
    ends = {i: span[1] for i in closed if i in counts and (span := buckets.intervals[i]) is not None}
    found = (LateBucket(i, buckets.values[i], end, counts[i], policy(tiers, at - end)) for i, end in ends.items())
    return Late(buckets.codes, tuple(found))


def policy(tiers: Sequence[LateTier], past: timedelta) -> LatePolicy:
    """Return what becomes of rows whose bucket ended so long before the watermark."""
    return next(tier.to for tier in tiers if tier.within is None or past <= tier.within)


def follow(
    rows: pa.Table, event_time: pa.Array, window: Window, now: datetime, lateness: Lateness
) -> dict[Source, int]:
    """Return how far rows show that their sources have come, in microseconds since 1970, and count how late they are.

    That is the newest event time, each bounded by the broker's time of the record, all by `now`. `window`: first and
    last time that is believed.
    """
    event_us = _micros(event_time)
    kafka_us = _kafka_micros(rows.column("_kafka_time"), event_us, window)
    if len(event_us) == 0:
        return {}
    lateness.see(kafka_us - event_us)
    return _reached(rows.column("_topic"), rows.column("_partition"), np.minimum(event_us, kafka_us), now)


def reached(records: pa.Table, event_time: pa.Array, window: Window, now: datetime) -> dict[Source, int]:
    """Return the same of records that become no rows, and count nothing."""
    if len(event_time) == 0:
        return {}
    event_us = _micros(event_time)
    newest = np.minimum(event_us, _kafka_micros(records.column("timestamp"), event_us, window))
    return _reached(records.column("topic"), records.column("partition"), newest, now)


def _kafka_micros(times: pa.ChunkedArray, event_us: Any, window: Window) -> Any:
    """Return the broker's times; those of the events where there is none, or it is not believed, as one in seconds."""
    first_us, last_us = (microseconds(bound) for bound in window)
    # What is null lies before any window.
    numbers = pc.fill_null(contiguous(times).cast(pa.int64()), _INT64_MIN)
    kafka_us = numbers.to_numpy(zero_copy_only=False)
    if len(kafka_us) and (kafka_us.min() < first_us or kafka_us.max() > last_us):
        return np.where((kafka_us < first_us) | (kafka_us > last_us), event_us, kafka_us)
    return kafka_us


def _reached(topics: Any, partitions: Any, micros: Any, now: datetime) -> dict[Source, int]:
    now_us = microseconds(now)
    return {source: min(newest, now_us) for source, newest in _newest(topics, partitions, micros).items()}


def _newest(topics: Any, partitions: Any, reached: Any) -> dict[Source, int]:
    """Return the greatest for each source of the rows: one, mostly."""
    low, high = pc.min_max(partitions).as_py().values()
    if low == high and pc.all(pc.equal(topics, topics[0])).as_py():
        return {(topics[0].as_py(), low): int(reached.max())}
    table = pa.table({"topic": topics, "partition": partitions, "reached": pa.array(reached)})
    found = table.group_by(["topic", "partition"], use_threads=False).aggregate([("reached", "max")])
    return {(row["topic"], row["partition"]): row["reached_max"] for row in found.to_pylist()}  # one turn a partition


def late_reasons(event_time: pa.Array, field: str, closed_until: datetime) -> list[str]:
    """Return for each late row why it is a dead letter."""
    texts = event_time.cast(pa.string()).to_pylist()  # cold: late rows only
    return [
        f"{LATE}{field} is {text}, in a bucket that was closed by {closed_until:%Y-%m-%dT%H:%M:%SZ}" for text in texts
    ]


def _micros(times: pa.Array) -> Any:
    return times.cast(pa.int64()).to_numpy(zero_copy_only=False)
