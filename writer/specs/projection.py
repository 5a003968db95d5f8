"""Columns that a spec keeps of a record, at any depth, and what flattening makes of them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.bucketers.arrow import contiguous, suggest_name
from headrace.writer.specs.spec import Path, SpecError


def select_columns(columns: pa.Schema, include: Sequence[str], exclude: Sequence[str]) -> pa.Schema:
    """Return the columns that stay. A path goes through lists and maps; a record without fields is left out.

    Raises SpecError for a path that there is not.
    """
    for path in include:
        _check_path(columns, path, "columns.include")
    for path in exclude:
        _check_path(columns, path, "columns.exclude")
    selection = pa.struct(list(columns))
    if include:
        selection = _select_fields(selection, [tuple(path.split(".")) for path in include], drop=False)
    if selection is not None and exclude:
        selection = _select_fields(selection, [tuple(path.split(".")) for path in exclude], drop=True)
    return pa.schema([] if selection is None else list(selection))


def _check_path(columns: pa.Schema, path: str, key: str) -> None:
    """Raise SpecError for a path that names no field. `key`: that names the path."""
    kind = pa.struct(list(columns))
    parent = ""
    for name in path.split("."):
        kind = _innermost_type(kind)
        names = member_names(kind)
        if name not in names:
            hint = suggest_name(path, (parent + other for other in names))
            raise SpecError(f"{key}: no schema of its records has {path!r}; {hint}")
        kind = kind.field(name).type
        parent = f"{parent}{name}."


def member_names(kind: pa.DataType) -> list[str]:
    """Return the names of a record's fields; none of another type."""
    return [member.name for member in kind] if pa.types.is_struct(kind) else []


def _innermost_type(kind: pa.DataType) -> pa.DataType:
    """Return what a list or a map, of lists or maps or not, holds in the end."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.item_type if pa.types.is_map(kind) else kind.value_type
    return kind


def _select_fields(kind: pa.DataType, paths: Sequence[Path], *, drop: bool) -> pa.DataType | None:
    """Return what is left of a type without these paths in it, or with them alone; None: nothing."""
    if pa.types.is_list(kind):
        item = _select_fields(kind.value_type, paths, drop=drop)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_map(kind):
        value = _select_fields(kind.item_type, paths, drop=drop)
        return None if value is None else pa.map_(kind.key_type, value)
    members = []
    for member in kind:
        inner_paths = [path[1:] for path in paths if path[0] == member.name]
        is_named = () in inner_paths
        selection: pa.DataType | None = None
        if inner_paths and not is_named:
            selection = _select_fields(member.type, inner_paths, drop=drop)
        elif is_named != drop:
            selection = member.type
        if selection is not None:
            members.append(pa.field(member.name, selection))
    return pa.struct(members) if members else None


def project_values(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values with only the fields that a narrower type has."""
    if values.type == kind:
        return values
    if values.offset or pa.types.is_list(kind) or pa.types.is_map(kind):
        # The children and offsets of what is built from them begin at 0.
        values = pa.concat_arrays([values])
        if values.offset:
            values = values.take(pa.arange(0, len(values)))
    if pa.types.is_struct(kind):
        children = [project_values(values.field(member.name), member.type) for member in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if pa.types.is_map(kind):
        items = project_values(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=kind, mask=values.is_null())
    items = project_values(values.values, kind.value_type)
    return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())


@dataclass(frozen=True)
class Leaf:
    """One column of the table: a column of the record, or a field inside one that is flattened."""

    name: str
    source: Path
    kind: pa.DataType

    def values(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return its values; null where a record around it is null."""
        values = columns[self.source[0]]
        for step in self.source[1:]:
            index = values.type.get_field_index(step)
            values = values.flatten()[index]
        return contiguous(values)


def leaves(name: str, source: Path, kind: pa.DataType, *, is_flat: bool) -> Iterator[Leaf]:
    """Yield the columns that one becomes; `is_flat`: each field inside it becomes one, joined to its name by `_`."""
    if not (is_flat and pa.types.is_struct(kind)):
        yield Leaf(name, source, kind)
        return
    for member in kind:
        yield from leaves(f"{name}_{member.name}", (*source, member.name), member.type, is_flat=True)


def check_names(names: Sequence[str]) -> None:
    """Raise SpecError where two columns have one name, as tables tell them apart: without regard to case."""
    first_names = dict[str, str]()
    for name in names:
        if name.lower() in first_names:
            first_name = first_names[name.lower()]
            raise SpecError(f"two columns would be called {first_name!r}; rename or exclude one of them")
        first_names[name.lower()] = name
