"""Columns that a spec keeps of a record, at any depth, and what flattening makes of them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from bucketers.arrow import contiguous, fix
from writer.specs.spec import SpecError

Path = tuple[str, ...]


def narrowed(columns: pa.Schema, include: Sequence[str], exclude: Sequence[str]) -> pa.Schema:
    """Return what is left of columns. A path goes through lists and maps; a record without fields is left out.

    Raises SpecError for a path that there is not.
    """
    for key, paths in (("include", include), ("exclude", exclude)):
        for path in paths:
            _check(columns, path, f"columns.{key}")
    every = pa.struct(list(columns))
    kept = every if not include else _kept(every, [tuple(path.split(".")) for path in include], drop=False)
    if kept is not None and exclude:
        kept = _kept(kept, [tuple(path.split(".")) for path in exclude], drop=True)
    return pa.schema([] if kept is None else list(kept))


def _check(columns: pa.Schema, path: str, where: str) -> None:
    kind, known = pa.struct(list(columns)), ""
    for name in path.split("."):
        kind = _inside(kind)
        names = [member.name for member in kind] if pa.types.is_struct(kind) else []
        if name not in names:
            meant = fix(path, (known + one for one in names))
            raise SpecError(f"{where}: no schema of its records has {path!r}; {meant}")
        kind, known = kind.field(name).type, f"{known}{name}."


def _inside(kind: pa.DataType) -> pa.DataType:
    """Return what a list or a map holds, at last."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.item_type if pa.types.is_map(kind) else kind.value_type
    return kind


def _kept(kind: pa.DataType, paths: Sequence[Path], *, drop: bool) -> pa.DataType | None:
    """Return what is left of a type without these places in it, or with them alone; None: nothing."""
    if pa.types.is_list(kind):
        item = _kept(kind.value_type, paths, drop=drop)
        return None if item is None else pa.list_(pa.field("element", item))
    if pa.types.is_map(kind):
        value = _kept(kind.item_type, paths, drop=drop)
        return None if value is None else pa.map_(kind.key_type, value)
    members = []
    for member in kind:
        mine = [path[1:] for path in paths if path[0] == member.name]
        if () in mine or not mine:
            found = member.type if (() in mine) != drop else None
        else:
            found = _kept(member.type, mine, drop=drop)
        if found is not None:
            members.append(pa.field(member.name, found))
    return pa.struct(members) if members else None


def projected(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values with only the fields that a narrower type has."""
    if values.type == kind:
        return values
    if values.offset or pa.types.is_list(kind) or pa.types.is_map(kind):
        values = pa.concat_arrays([values])  # children and offsets begin at 0
        values = values if not values.offset else values.take(pa.arange(0, len(values)))
    if pa.types.is_struct(kind):
        children = [projected(values.field(member.name), member.type) for member in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=values.is_null())
    if pa.types.is_map(kind):
        items = projected(values.items, kind.item_type)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, type=kind, mask=values.is_null())
    items = projected(values.values, kind.value_type)
    return pa.ListArray.from_arrays(values.offsets, items, type=kind, mask=values.is_null())


@dataclass(frozen=True)
class Leaf:
    """One column of the table: a column of the record, or a field inside one that is flattened."""

    name: str
    source: Path
    kind: pa.DataType

    def of(self, columns: Mapping[str, pa.Array]) -> pa.Array:
        """Return its values; null where a record around it is null."""
        values = columns[self.source[0]]
        for step in self.source[1:]:
            at = values.type.get_field_index(step)
            values = values.flatten()[at]
        return contiguous(values)


def leaves(name: str, source: Path, kind: pa.DataType, *, flat: bool) -> Iterator[Leaf]:
    """Yield the columns that one becomes; `flat`: each field inside it becomes one, joined to its name by `_`."""
    if not (flat and pa.types.is_struct(kind)):
        yield Leaf(name, source, kind)
        return
    for member in kind:
        yield from leaves(f"{name}_{member.name}", (*source, member.name), member.type, flat=True)


def check_names(names: Iterable[str]) -> None:
    """Raise SpecError where two columns have one name, as tables tell them apart: without regard to case."""
    seen = dict[str, str]()
    for name in names:
        if (other := seen.setdefault(name.lower(), name)) != name or list(names).count(name) > 1:
            raise SpecError(f"two columns would be called {other!r}; rename or exclude one of them")
