"""Buckets by a column's value, for a table that is read by tenant, country or kind of event."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import column, has_text
from headrace.bucketers.base import Buckets

OTHER: Final = "_other"


@dataclass(frozen=True)
class Field:
    """One bucket per value of `field`, as text; dots step into structs.

    `max_values` bounds the buckets of one call, and so the open files and their memory: at most that many values, the
    most frequent (ties by value), plus `_other` and null. It does not bound the partitions of the table over time, and
    a value that is rare in one batch may lie in `_other` there and in its own bucket elsewhere. The field stays in the
    data, so nothing is lost by it. Null has the value None, and so has the empty text: Delta stores both as null.
    """

    field: str
    # None: the field with dots as underscores and '_bucket' after it.
    column: str | None = None
    # A few hundred open Parquet writers fit a task's memory.
    max_values: int = 200

    def __post_init__(self) -> None:
        if self.max_values < 1:
            raise ValueError(f"max_values must be at least 1, got {self.max_values}; leave it out for 200")

    @property
    def columns(self) -> tuple[str, ...]:
        """The one partition column, named so that it never hides the field itself."""
        if self.column is not None:
            return (self.column,)
        return (f"{self.field.replace('.', '_')}_bucket",)

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:  # noqa: ARG002 the protocol's
        """Give every row the bucket of its value. Raises ValueError if the field is absent or has no text.

        With `max_values=1`, the rows DE, FR, null, DE have the most frequent value DE and the codes 0, null, null, 0.
        FR then gets the code of `_other`, and null its own: 0, 1, 2, 0, with the values DE, _other, None.
        """
        text = _text(column(rows, self.field, has_text), self.field)
        most_frequent = _most_frequent(text, self.max_values)
        codes = pc.index_in(text, value_set=most_frequent)
        values: list[str | None] = most_frequent.to_pylist()
        for value, has_value in ((OTHER, pc.is_valid(text)), (None, pc.is_null(text))):
            is_missing = pc.and_(has_value, pc.is_null(codes))
            if pc.any(is_missing).as_py():
                codes = pc.if_else(is_missing, pa.scalar(len(values), pa.int32()), codes)
                values.append(value)
        return Buckets(codes, tuple((value,) for value in values), (None,) * len(values))


def _text(values: pa.Array, field: str) -> pa.StringArray:
    """Return the values as text, the empty one as null. Raises ValueError for a type without text."""
    if not has_text(values.type):
        raise ValueError(
            f"field {field!r} is {values.type}, which has no text to bucket by; choose a text, number or date"
        )
    text = values.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _most_frequent(text: pa.StringArray, limit: int) -> pa.StringArray:
    """Return the most frequent values, at most `limit`; of equally frequent ones the first in order."""
    # A value '_other' joins the others.
    counts = pc.value_counts(text.filter(pc.not_equal(text, OTHER)))
    ranked = pa.table({"value": counts.field("values"), "rows": counts.field("counts")})
    ranked = ranked.sort_by([("rows", "descending"), ("value", "ascending")])
    return ranked.slice(0, limit)["value"].combine_chunks()
