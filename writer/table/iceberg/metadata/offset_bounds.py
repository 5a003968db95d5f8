"""Decides by bounds of `_offset` whether files that replace others hold rows that those did not.

A merge that deletes more rows than it inserts counts like a delete. Rows of other clients have no offset, or one that
no replaced file of the partition reaches. A row with an offset of such a file is not seen: `audit --deep` counts it
where the offset is there twice.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

OFFSET = "_offset"


@dataclass(frozen=True)
class OffsetBounds:
    """Offsets of some rows.

    All lie in [first, last], which are None where no row has one. `without`: the number of rows that have none.
    """

    first: int | None
    last: int | None
    without: int

    def contains(self, other: "OffsetBounds") -> bool:
        """Return whether other rows may all be among these."""
        if other.without > self.without:
            return False
        if other.first is None or other.last is None:
            return True
        if self.first is None or self.last is None:
            return False
        return self.first <= other.first and other.last <= self.last


def offset_bounds(files: Iterable[DataFile], field: NestedField) -> OffsetBounds | None:
    """Return the bounds of the rows of files; None where a file does not say."""
    offsets = list[int]()
    without = 0
    for file in files:
        nulls = (file.null_value_counts or {}).get(field.field_id)
        bounds = [(values or {}).get(field.field_id) for values in (file.lower_bounds, file.upper_bounds)]
        if nulls is None or (nulls < file.record_count and None in bounds):
            return None
        without += nulls
        offsets += [int(from_bytes(LongType(), bound)) for bound in bounds if bound is not None]
    return OffsetBounds(min(offsets, default=None), max(offsets, default=None), without)


def find_offset_field(schema: Schema) -> NestedField | None:
    """Return the column of offsets; None where a table has none, or one of another type."""
    for field in schema.fields:
        if field.name == OFFSET and isinstance(field.field_type, LongType):
            return field
    return None


def has_new_rows(added: Sequence[DataFile], removed: Sequence[DataFile], schema: Schema) -> bool:
    """Return whether files that were added hold rows that the removed ones of their partition did not hold."""
    field = find_offset_field(schema)
    if field is None:
        return False
    removed_by_partition = defaultdict[str, list[DataFile]](list)
    for file in removed:
        removed_by_partition[repr(file.partition)].append(file)
    for file in added:
        removed_bounds = offset_bounds(removed_by_partition[repr(file.partition)], field)
        # Where the replaced files say nothing of offsets, there are none to go by.
        if removed_bounds is None:
            continue
        added_bounds = offset_bounds([file], field)
        if added_bounds is None or not removed_bounds.contains(added_bounds):
            return True
    return False
