"""Checks that readers can take the columns of a table: their depth, and names with dots between them. Pure."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from writer.avro import schema as avro
from writer.avro.column_cast import ColumnPath

# Of JSON, inside one another: delta-rs reads at most 127, and the table around the columns has some.
_BRACKETS_MAX = 121
# Of types inside one another: Arrow hands none of more to other libraries, such as delta-rs.
_LEVELS_MAX = 60


def check_depth(columns: pa.Schema) -> None:
    """Raise UnsupportedSchema for columns that lie too deep for readers: of a log, as JSON, or of Arrow's types."""
    if max((_brackets(column.type) for column in columns), default=0) > _BRACKETS_MAX:
        raise avro.UnsupportedSchema("its records and unions lie more than 40 levels inside one another; flatten it")
    if max((_levels(column.type) for column in columns), default=0) > _LEVELS_MAX:
        raise avro.UnsupportedSchema(
            f"its types lie more than {_LEVELS_MAX} levels inside one another, where a map is two; flatten it"
        )


def check_dotted_paths(columns: pa.Schema, reserved: frozenset[str]) -> None:
    """Raise UnsupportedSchema for two fields whose paths, with dots between the names, are alike but for their case.

    `reserved`: lower-case names of columns besides these.
    """
    first_of_name: dict[str, ColumnPath] = {}
    for path in _paths(list(columns), ()):
        name = ".".join(path)
        column, dot, _ = name.lower().partition(".")
        is_of_reserved_column = len(path) == 1 and dot and column in reserved
        if is_of_reserved_column or first_of_name.setdefault(name.lower(), path) != path:
            raise avro.UnsupportedSchema(
                f"field {name!r} has the name of a field inside another, as the table's format writes names; rename it"
            )


def _brackets(kind: pa.DataType) -> int:
    """Return how many brackets stand inside one another where a type is written as Delta and Iceberg do."""
    if pa.types.is_map(kind):
        return 1 + max(_brackets(kind.key_type), _brackets(kind.item_type))
    inner = max((_brackets(child.type) for child in _children(kind)), default=0)
    return inner + (3 if pa.types.is_struct(kind) else 1)


def _levels(kind: pa.DataType) -> int:
    """Return how many types lie inside one another, as Arrow counts them: a map has entries, which are structs."""
    return 1 + max((_levels(child.type) for child in _children(kind)), default=0)


def _children(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(index) for index in range(kind.num_fields)]


def _paths(fields: Iterable[pa.Field], parent: ColumnPath) -> Iterator[ColumnPath]:
    """Yield the path of each of these fields, and of each part of them."""
    for field in fields:
        path = (*parent, field.name)
        yield path
        if pa.types.is_map(field.type):
            yield from _paths([field.type.key_field, field.type.item_field], path)
        else:
            yield from _paths(_children(field.type), path)
