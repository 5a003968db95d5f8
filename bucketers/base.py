"""The protocol between the writer and every bucketer, built in or your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

import pyarrow as pa


@dataclass(frozen=True)
class Buckets:
    """The buckets of one table of rows.

    `codes` has one entry per row and no nulls: the index of the row's bucket in `values` and `intervals`.
    `values` has one string per partition column, or None for the null partition; distinct within one call.
    `intervals` are half-open [start, end) in aware UTC; None where the bucketer does not go by time.
    """

    codes: pa.Int32Array
    values: tuple[tuple[str | None, ...], ...]
    intervals: tuple[tuple[datetime, datetime] | None, ...]


class Bucketer(Protocol):
    """Anything with these two names, configured as `type: my_module:MyClass`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the partition columns, in the order of a bucket's values. A plain attribute will do."""
        ...

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:
        """Give every row its bucket.

        A bucketer that goes by time may have a method `interval(values)` beside this one, which returns the interval of
        a bucket of its own from its values, as `assign` would. Without it, no bucket of it is closed by time.

        `event_time` is timestamp('us', 'UTC') without nulls, one per row, as
        `headrace.bucketers.timestamps.event_time` returns it.
        The same rows must get the same buckets on every call: a replayed batch relies on it.
        """
        ...


@runtime_checkable
class TimeBucketer(Protocol):
    """A bucketer that knows the interval of a bucket from its values alone."""

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        """Return [start, end) in aware UTC, as `assign` gives it; None for what it would never give."""
        ...


def interval(bucketer: Bucketer, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
    """Return the interval of a bucket; None where the bucketer does not go by time, or cannot tell."""
    if not isinstance(bucketer, TimeBucketer):
        return None
    return bucketer.interval(values)
