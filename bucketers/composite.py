"""Combines several bucketers: the partition columns of each, in order."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.base import Bucketer, Buckets, TimeBucketer, interval


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
        for name in self.columns:
            if names.count(name.lower()) > 1:
                raise ValueError(f"two parts write the column {name!r}; give one of them another 'column'")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the parts, in their order."""
        return tuple(name for part in self.parts for name in part.columns)

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:
        """Give every row the combination of its buckets."""
        parts = [part.assign(rows, event_time) for part in self.parts]
        codes, combinations = _combine(parts)
        return Buckets(
            codes,
            tuple(_combined_values(parts, combination) for combination in combinations),
            tuple(_first_interval(parts, combination) for combination in combinations),
        )

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        """Return the interval of the first part that has one."""
        offset = 0
        for part in self.parts:
            part_values = values[offset : offset + len(part.columns)]
            part_interval = interval(part, part_values)
            if part_interval is not None:
                return part_interval
            offset += len(part.columns)
        return None


def goes_by_time(bucketer: Bucketer) -> bool:
    """Return whether its buckets have intervals, so that they end and grow old."""
    if isinstance(bucketer, Composite):
        return any(goes_by_time(part) for part in bucketer.parts)
    return isinstance(bucketer, TimeBucketer)


def _combined_values(parts: Sequence[Buckets], combination: Sequence[int]) -> tuple[str | None, ...]:
    """Return the values of a combination: those of each part's bucket, in order."""
    values: list[str | None] = []
    for part, code in zip(parts, combination, strict=True):
        values += part.values[code]
    return tuple(values)


def _first_interval(parts: Sequence[Buckets], combination: Sequence[int]) -> tuple[datetime, datetime] | None:
    """Return the interval of the first part's bucket that has one."""
    for part, code in zip(parts, combination, strict=True):
        part_interval = part.intervals[code]
        if part_interval is not None:
            return part_interval
    return None


def _combine(parts: Sequence[Buckets]) -> tuple[pa.Int32Array, list[tuple[int, ...]]]:
    """Return a code for each row, and for each code the codes of the parts.

    Of four rows, the first part has the codes 0, 1, 0, 1 and the second, of three buckets, 2, 0, 2, 2. The rows' keys
    `first * 3 + second` are 2, 3, 2, 5. So the codes are 0, 1, 0, 2, and the combinations (0, 2), (1, 0), (1, 2).

    It encodes after each part, so that no product overflows.
    """
    codes = parts[0].codes
    combinations: list[tuple[int, ...]] = [(code,) for code in range(len(parts[0].values))]
    for part in parts[1:]:
        radix = len(part.values)
        keys = pc.add(pc.multiply(codes.cast(pa.int64()), radix), part.codes).dictionary_encode()
        combinations = [(*combinations[key // radix], key % radix) for key in keys.dictionary.to_pylist()]
        codes = keys.indices
    return codes, combinations
