"""Buckets by a column's value, for a table that is read by tenant, country or kind of event."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import column, has_text
from bucketers.base import Buckets

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
    column: str | None = None  # None: the field with dots as underscores and '_bucket' after it
    max_values: int = 200  # a few hundred open Parquet writers fit a task's memory

    def __post_init__(self) -> None:
        if self.max_values < 1:
            raise ValueError(f"max_values must be at least 1, got {self.max_values}; leave it out for 200")

    @property
    def columns(self) -> tuple[str, ...]:
        """The one partition column, named so that it never hides the field itself."""
        return (f"{self.field.replace('.', '_')}_bucket" if self.column is None else self.column,)

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:  # noqa: ARG002 the protocol's
        """Give every row the bucket of its value. ValueError if the field is absent or has no text."""
        text = _text(column(rows, self.field, has_text), self.field)
        kept = _most_frequent(text, self.max_values)
        codes = pc.index_in(text, value_set=kept)
        values: list[str | None] = kept.to_pylist()
        for extra, among in ((OTHER, pc.is_valid(text)), (None, pc.is_null(text))):
            missing = pc.and_(among, pc.is_null(codes))
            if pc.any(missing).as_py():
                codes = pc.if_else(missing, pa.scalar(len(values), pa.int32()), codes)
                values.append(extra)
        return Buckets(codes, tuple((value,) for value in values), (None,) * len(values))


def _text(values: pa.Array, field: str) -> pa.StringArray:
    if not has_text(values.type):
        raise ValueError(
            f"field {field!r} is {values.type}, which has no text to bucket by; choose a text, number or date"
        )
    text = values.cast(pa.string())
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _most_frequent(text: pa.StringArray, limit: int) -> pa.StringArray:
    counts = pc.value_counts(text.filter(pc.not_equal(text, OTHER)))  # a value '_other' joins the others
    ranked = pa.table({"value": counts.field("values"), "rows": counts.field("counts")})
    ranked = ranked.sort_by([("rows", "descending"), ("value", "ascending")])
    return ranked.slice(0, limit)["value"].combine_chunks()
