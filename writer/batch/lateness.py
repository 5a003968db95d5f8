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

from headrace.bucketers import Buckets
from headrace.bucketers.arrow import contiguous
from headrace.writer.core.files import BucketKey
from headrace.writer.core.offsets import Source
from headrace.writer.core.units import microseconds

LatePolicy = Literal["reopen", "late_table", "dead_letter"]
LATE_POLICIES: tuple[LatePolicy, ...] = get_args(LatePolicy)


class LateTier(NamedTuple):
    """What becomes of late rows up to some lateness.

    `within`: how far the watermark is past the end of their bucket at most; None: no bound.
    """

    within: timedelta | None
    policy: LatePolicy


# The first and the last time that is believed.
Window = tuple[datetime, datetime]
_INT64_MIN = -(2**63)
# Begins the reason of a dead letter that was only late.
LATE = "late: "
# Upper bounds in seconds of the histograms: about a factor of four each, from a second to twelve days.
BOUNDS_S = (1, 4, 15, 60, 240, 900, 3_600, 14_400, 57_600, 259_200, 1_036_800)
_BOUNDS_US = [bound * 1_000_000 for bound in BOUNDS_S]
_BINS = len(BOUNDS_S) + 1


@dataclass
class Lateness:
    """How late rows came. Bins by BOUNDS_S, each row in one; the last is beyond all bounds.

    `behind`: of all rows, how long after the event the broker had them. `beyond`: of late rows, how long after the end
    of their bucket `closed_until` is. `buckets`: late rows that joined their bucket. `elsewhere`: late rows that did
    not, by policy.
    """

    behind: list[int] = field(default_factory=lambda: [0] * _BINS)
    beyond: list[int] = field(default_factory=lambda: [0] * _BINS)
    buckets: Counter[BucketKey] = field(default_factory=Counter)
    elsewhere: Counter[tuple[BucketKey, str]] = field(default_factory=Counter)

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
        """Late rows by what became of them."""
        counts = Counter[str]()
        if self.buckets:
            counts["reopen"] = self.buckets.total()
        for (_, late_policy), rows in self.elsewhere.items():
            counts[late_policy] += rows
        return dict(counts)

    def to_json(self) -> dict[str, Any]:
        """Write it as JSON values."""
        buckets = [[list(bucket), rows] for bucket, rows in self.buckets.items()]
        elsewhere = [[list(bucket), late_policy, rows] for (bucket, late_policy), rows in self.elsewhere.items()]
        values: dict[str, Any] = {"behind": self.behind, "beyond": self.beyond, "buckets": buckets}
        if elsewhere:
            values["elsewhere"] = elsewhere
        return values

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "Lateness":
        """Read what `to_json` wrote."""
        buckets = Counter({tuple(bucket): rows for bucket, rows in raw["buckets"]})
        elsewhere = Counter(
            {(tuple(bucket), late_policy): rows for bucket, late_policy, rows in raw.get("elsewhere", ())}
        )
        return cls(raw["behind"], raw["beyond"], buckets, elsewhere)

    def count_delays(self, delays_us: Any) -> None:
        """Count rows by how many microseconds after its event the broker had each (a numpy array)."""
        below = [0, *(int(np.count_nonzero(delays_us < bound)) for bound in _BOUNDS_US), len(delays_us)]
        self.behind = [n + below[i + 1] - below[i] for i, n in enumerate(self.behind)]

    def count_late_rows(self, late_rows: "LateRows", closed_until: datetime) -> None:
        """Count late rows."""
        for bucket in late_rows.buckets:
            lateness = closed_until - bucket.end
            histogram_bin = sum(lateness >= timedelta(seconds=bound) for bound in BOUNDS_S)
            self.beyond[histogram_bin] += bucket.rows
            if bucket.policy == "reopen":
                self.buckets[bucket.key] += bucket.rows
            else:
                self.elsewhere[bucket.key, bucket.policy] += bucket.rows


class LateBucket(NamedTuple):
    """The late rows of one bucket in a batch. `code`: of the bucket in the batch."""

    code: int
    key: BucketKey
    end: datetime
    rows: int
    policy: LatePolicy


@dataclass(frozen=True)
class LateRows:
    """The late rows of a batch. `codes`: of the buckets of all rows."""

    codes: pa.Array
    buckets: tuple[LateBucket, ...]

    def mask(self, *policies: LatePolicy) -> pa.BooleanArray:
        """Return which rows have one of these policies."""
        codes = [bucket.code for bucket in self.buckets if bucket.policy in policies]
        return pc.is_in(self.codes, value_set=pa.array(codes, pa.int32()))


def find_late_rows(
    buckets: Buckets, closed_until: datetime | None, watermark: datetime | None, tiers: Sequence[LateTier]
) -> LateRows | None:
    """Return the rows whose bucket is closed; None if there are none.

    Tiers count by the watermark, or by `closed_until` where that is further: a clock or a person closed buckets then.
    The last tier has no bound.
    """
    if closed_until is None:
        return None
    ends = {i: span[1] for i, span in enumerate(buckets.intervals) if span is not None and span[1] <= closed_until}
    if not ends:
        return None
    is_late = pc.is_in(buckets.codes, value_set=pa.array(list(ends), pa.int32()))
    counts = {row["values"]: row["counts"] for row in pc.value_counts(buckets.codes.filter(is_late)).to_pylist()}
    newest = closed_until if watermark is None else max(watermark, closed_until)
    late_buckets = (
        LateBucket(code, buckets.values[code], end, counts[code], _choose_policy(tiers, newest - end))
        for code, end in ends.items()
        if code in counts
    )
    return LateRows(buckets.codes, tuple(late_buckets))


def _choose_policy(tiers: Sequence[LateTier], lateness: timedelta) -> LatePolicy:
    """Return what becomes of rows whose bucket ended so long before the watermark."""
    return next(tier.policy for tier in tiers if tier.within is None or lateness <= tier.within)


def follow_event_times(
    rows: pa.Table, event_time: pa.Array, window: Window, now: datetime, lateness: Lateness
) -> dict[Source, int]:
    """Return how far rows show that their sources have come, in microseconds since 1970, and count how late they are.

    That is the newest event time, each bounded by the broker's time of the record, all by `now`. `window`: first and
    last time that is believed. With one partition and `now` at 12:10, of three rows:

        event time   12:00  12:07  12:05
        Kafka time   12:01  12:03  null
        bounded      12:00  12:03  12:05    the result is 12:05
    """
    event_us = _micros(event_time)
    kafka_us = _kafka_micros(rows.column("_kafka_time"), event_us, window)
    if len(event_us) == 0:
        return {}
    lateness.count_delays(kafka_us - event_us)
    return _newest_until(rows.column("_topic"), rows.column("_partition"), np.minimum(event_us, kafka_us), now)


def newest_event_times(records: pa.Table, event_time: pa.Array, window: Window, now: datetime) -> dict[Source, int]:
    """Return the same of records that become no rows, and count nothing."""
    if len(event_time) == 0:
        return {}
    event_us = _micros(event_time)
    bounded_us = np.minimum(event_us, _kafka_micros(records.column("timestamp"), event_us, window))
    return _newest_until(records.column("topic"), records.column("partition"), bounded_us, now)


def _kafka_micros(times: pa.ChunkedArray, event_us: Any, window: Window) -> Any:
    """Return the broker's times; those of the events where there is none, or it is not believed, as one in seconds."""
    first_us, last_us = (microseconds(bound) for bound in window)
    # What is null lies before any window.
    numbers = pc.fill_null(contiguous(times).cast(pa.int64()), _INT64_MIN)
    kafka_us = numbers.to_numpy(zero_copy_only=False)
    if len(kafka_us) and (kafka_us.min() < first_us or kafka_us.max() > last_us):
        return np.where((kafka_us < first_us) | (kafka_us > last_us), event_us, kafka_us)
    return kafka_us


def _newest_until(topics: Any, partitions: Any, micros: Any, now: datetime) -> dict[Source, int]:
    """Return the newest time of each source, but none after `now`."""
    now_us = microseconds(now)
    return {source: min(newest, now_us) for source, newest in _newest_by_source(topics, partitions, micros).items()}


def _newest_by_source(topics: Any, partitions: Any, micros: Any) -> dict[Source, int]:
    """Return the newest time of each source of the rows: one, mostly."""
    low, high = pc.min_max(partitions).as_py().values()
    if low == high and pc.all(pc.equal(topics, topics[0])).as_py():
        return {(topics[0].as_py(), low): int(micros.max())}
    table = pa.table({"topic": topics, "partition": partitions, "micros": pa.array(micros)})
    groups = table.group_by(["topic", "partition"], use_threads=False).aggregate([("micros", "max")])
    # One turn a partition.
    return {(row["topic"], row["partition"]): row["micros_max"] for row in groups.to_pylist()}


def late_reasons(event_time: pa.Array, field: str, closed_until: datetime) -> list[str]:
    """Return for each late row why it is a dead letter (cold: late rows only)."""
    texts = event_time.cast(pa.string()).to_pylist()
    return [
        f"{LATE}{field} is {text}, in a bucket that was closed by {closed_until:%Y-%m-%dT%H:%M:%SZ}" for text in texts
    ]


def _micros(times: pa.Array) -> Any:
    return times.cast(pa.int64()).to_numpy(zero_copy_only=False)
