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
    """Offsets of some rows: all in [first, last], which are None where none has one; rows that have none."""

    first: int | None
    last: int | None
    without: int

    def holds(self, other: "OffsetBounds") -> bool:
        """Return whether other rows may all be among these."""
        if other.without > self.without:
            return False
        if other.first is None or other.last is None:
            return True
        return (
            self.first is not None and self.last is not None and self.first <= other.first and other.last <= self.last
        )


def bounds_of(files: Iterable[DataFile], field: NestedField) -> OffsetBounds | None:
    """Return the bounds of the rows of files; None where a file does not say."""
    found, without = list[int](), 0
    for file in files:
        nulls = (file.null_value_counts or {}).get(field.field_id)
        bounds = [(one or {}).get(field.field_id) for one in (file.lower_bounds, file.upper_bounds)]
        if nulls is None or (nulls < file.record_count and None in bounds):
            return None
        without += nulls
        found += [int(from_bytes(LongType(), bound)) for bound in bounds if bound is not None]
    return OffsetBounds(min(found, default=None), max(found, default=None), without)


def brings_rows(added: Sequence[DataFile], gone: Sequence[DataFile], schema: Schema) -> bool:
    """Return whether files that were added hold rows that those of their partition which went did not."""
    field = next((one for one in schema.fields if one.name == OFFSET and isinstance(one.field_type, LongType)), None)
    if field is None:
        return False
    before = defaultdict[str, list[DataFile]](list)
    for file in gone:
        before[repr(file.partition)].append(file)
    for file in added:
        known, new = bounds_of(before[repr(file.partition)], field), bounds_of([file], field)
        if known is not None and (new is None or not known.holds(new)):
            return True  # where the replaced files say nothing of offsets, there are none to go by
    return False
