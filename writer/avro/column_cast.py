"""Casts whole columns to another type: promotes numbers, adds struct fields, renames members.

Types are the table's. A place is a column and the way into it: `("point", "x")`, `("tags", "element")`,
`("notes", "value", "x")`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

Place = tuple[str, ...]


@dataclass(frozen=True)
class Seams:
    """Where values of a writer differ from the table by more than their types."""

    members: Mapping[Place, Mapping[str, str]] = field(default_factory=dict)  # struct → its member → the writer's
    wrapped: Mapping[Place, str] = field(default_factory=dict)  # union of the table → the member that all values are
    divided: Mapping[Place, int] = field(default_factory=dict)  # instants that become numbers → microseconds in one

    def beside(self, place: Place) -> bool:
        """Return whether values of this place need more than a cast."""
        if not (self.members or self.wrapped or self.divided):  # nearly always
            return False
        return any(at[: len(place)] == place for at in (*self.members, *self.wrapped, *self.divided))


SEAMLESS = Seams()
Defaults = Mapping[Place, pa.Array]  # one value each, which a place has where a writer lacks its field


def fitted(values: pa.Array, kind: pa.DataType, place: Place, seams: Seams, defaults: Defaults) -> pa.Array:
    """Cast values to the type of a column or field. `kind`: a type that the writer's type can fill."""
    if values.type == kind and not seams.beside(place):
        return values
    if place in seams.wrapped:
        return _member_of_union(values, kind, place, seams, defaults)
    if place in seams.divided:
        return pc.divide(values.cast(pa.int64()), seams.divided[place])
    if pa.types.is_nested(kind) and values.offset:
        values = values.take(pa.arange(0, len(values)))  # cold: children and offsets begin at 0
    if pa.types.is_struct(kind):
        return _struct(values, kind, place, seams, defaults)
    if pa.types.is_list(kind):
        items = fitted(values.values, kind.value_type, (*place, "element"), seams, defaults)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())
    if pa.types.is_map(kind):
        items = fitted(values.items, kind.item_type, (*place, "value"), seams, defaults)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=kind, mask=values.is_null())
    # An integer beyond 2^53 loses its last digits as a double: Avro's promotion says so, hence not "safe".
    return values.cast(kind, safe=False)


def absent(rows: int, kind: pa.DataType, place: Place, defaults: Defaults) -> pa.Array:
    """Return what a place holds for records of a writer that lacks its field: the default, or null."""
    if place not in defaults:
        return pa.nulls(rows, kind)
    one = fitted(defaults[place], kind, place, SEAMLESS, defaults)
    return one.take(pa.repeat(pa.scalar(0, pa.int32()), rows))


def _struct(values: pa.StructArray, kind: pa.StructType, place: Place, seams: Seams, defaults: Defaults) -> pa.Array:
    names = [part.name for part in values.type]
    sources = seams.members.get(place, {name: name for name in names})
    children = []
    for part in kind:
        inside = (*place, part.name)
        if part.name in sources:
            child = values.field(names.index(sources[part.name]))
            children.append(fitted(child, part.type, inside, seams, defaults))
        else:
            children.append(absent(len(values), part.type, inside, defaults))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())


def _member_of_union(values: pa.Array, kind: pa.StructType, place: Place, seams: Seams, defaults: Defaults) -> pa.Array:
    chosen = seams.wrapped[place]
    children = [
        fitted(values, part.type, (*place, part.name), seams, defaults)
        if part.name == chosen
        else pa.nulls(len(values), part.type)
        for part in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
