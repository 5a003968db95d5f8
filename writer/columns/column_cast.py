"""Casts whole columns to another type: promotes numbers, adds struct fields, renames members.

Types are the table's. A column path is a column and the way into it: `("point", "x")`, `("tags", "element")`,
`("notes", "value", "x")`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

ColumnPath = tuple[str, ...]
# The default of a field, as an array of one value, by the path of its column.
Defaults = Mapping[ColumnPath, pa.Array]


@dataclass(frozen=True)
class CastRules:
    """How values of a writer differ from the table by more than their types."""

    # Path of a struct → its members, each with the name that the writer gives it.
    sources: Mapping[ColumnPath, Mapping[str, str]] = field(default_factory=dict)
    # Path of a union of which the writer has one branch only → the member of that branch.
    union_members: Mapping[ColumnPath, str] = field(default_factory=dict)
    # Path of a number that the writer has as an instant → microseconds in 1 of the number.
    divisors: Mapping[ColumnPath, int] = field(default_factory=dict)

    def has_rule_for(self, path: ColumnPath) -> bool:
        """Return whether values of a path, or of a part of it, need more than a cast."""
        # Nearly always there are no rules.
        if not (self.sources or self.union_members or self.divisors):
            return False
        paths = (*self.sources, *self.union_members, *self.divisors)
        return any(rule_path[: len(path)] == path for rule_path in paths)


PLAIN_CAST = CastRules()


def cast_values(
    values: pa.Array, kind: pa.DataType, path: ColumnPath, rules: CastRules, defaults: Defaults
) -> pa.Array:
    """Cast values to the type of a column or field. `kind`: a type that the writer's type can fill."""
    if values.type == kind and not rules.has_rule_for(path):
        return values
    if path in rules.union_members:
        return _fill_union_member(values, kind, path, rules, defaults)
    if path in rules.divisors:
        return pc.divide(values.cast(pa.int64()), rules.divisors[path])
    if pa.types.is_nested(kind) and values.offset:
        # Rare. The children and offsets of what is built from them begin at 0.
        values = values.take(pa.arange(0, len(values)))
    if pa.types.is_struct(kind):
        return _cast_struct(values, kind, path, rules, defaults)
    if pa.types.is_list(kind):
        items = cast_values(values.values, kind.value_type, (*path, "element"), rules, defaults)
        return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())
    if pa.types.is_map(kind):
        items = cast_values(values.items, kind.item_type, (*path, "value"), rules, defaults)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=kind, mask=values.is_null())
    # An integer beyond 2^53 loses its last digits as a double: Avro's promotion says so, hence not "safe".
    return values.cast(kind, safe=False)


def default_values(rows: int, kind: pa.DataType, path: ColumnPath, defaults: Defaults) -> pa.Array:
    """Return a column for records of a writer that lacks its field: the default in each row, or null."""
    if path not in defaults:
        return pa.nulls(rows, kind)
    default = cast_values(defaults[path], kind, path, PLAIN_CAST, defaults)
    return default.take(pa.repeat(pa.scalar(0, pa.int32()), rows))


def _cast_struct(
    values: pa.StructArray, kind: pa.StructType, path: ColumnPath, rules: CastRules, defaults: Defaults
) -> pa.Array:
    writer_names = [member.name for member in values.type]
    sources = rules.sources.get(path, {name: name for name in writer_names})
    children = []
    for member in kind:
        member_path = (*path, member.name)
        if member.name in sources:
            child = values.field(writer_names.index(sources[member.name]))
            children.append(cast_values(child, member.type, member_path, rules, defaults))
        else:
            children.append(default_values(len(values), member.type, member_path, defaults))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())


def _fill_union_member(
    values: pa.Array, kind: pa.StructType, path: ColumnPath, rules: CastRules, defaults: Defaults
) -> pa.Array:
    """Return a union's column of which one member has these values. The others are null."""
    children = []
    for member in kind:
        if member.name == rules.union_members[path]:
            children.append(cast_values(values, member.type, (*path, member.name), rules, defaults))
        else:
            children.append(pa.nulls(len(values), member.type))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
