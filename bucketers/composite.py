"""Combines several bucketers: the partition columns of each, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.base import Bucketer, Buckets, Timed, interval


@dataclass(frozen=True, init=False)
class Composite:
    """The combinations of the parts' buckets that occur.

    A bucket's interval is that of the first part that has one. Raises ValueError for no part, or for two with the same
    column; case is ignored, as Delta ignores it.
    """

    parts: tuple[Bucketer, ...]

    def __init__(self, *parts: Bucketer) -> None:
        object.__setattr__(self, "parts", parts)
        if not parts:
            raise ValueError("a composite needs at least one part, got none; list its bucketers")
        names = [name.lower() for name in self.columns]
        if twice := next((name for name in self.columns if names.count(name.lower()) > 1), None):
            raise ValueError(f"two parts write the column {twice!r}; give one of them another 'column'")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the parts, in their order."""
        return tuple(name for part in self.parts for name in part.columns)

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:
        """Give every row the combination of its buckets."""
        assigned = [part.assign(rows, event_time) for part in self.parts]
        codes, picks = _cross(assigned)
        return Buckets(
            codes,
            tuple(
                tuple(value for part, code in zip(assigned, pick, strict=True) for value in part.values[code])
                for pick in picks
            ),
            tuple(
                next((span for part, code in zip(assigned, pick, strict=True) if (span := part.intervals[code])), None)
                for pick in picks
            ),
        )

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        """Return the interval of the first part that has one."""
        at = 0
        for part in self.parts:
            mine = values[at : at + len(part.columns)]
            if (span := interval(part, mine)) is not None:
                return span
            at += len(part.columns)
        return None


def goes_by_time(bucketer: Bucketer) -> bool:
    """Whether its buckets have intervals, so that they end and grow old."""
    if isinstance(bucketer, Composite):
        return any(goes_by_time(part) for part in bucketer.parts)
    return isinstance(bucketer, Timed)


def _cross(assigned: list[Buckets]) -> tuple[pa.Int32Array, list[tuple[int, ...]]]:
    """A code per row, and for each code the parts' codes. Encodes after each part, so that no product overflows."""
    codes = assigned[0].codes
    picks: list[tuple[int, ...]] = [(code,) for code in range(len(assigned[0].values))]
    for part in assigned[1:]:
        radix = len(part.values)
        crossed = pc.add(pc.multiply(codes.cast(pa.int64()), radix), part.codes).dictionary_encode()
        picks = [(*picks[key // radix], key % radix) for key in crossed.dictionary.to_pylist()]
        codes = crossed.indices
    return codes, picks
