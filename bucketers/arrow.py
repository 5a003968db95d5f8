"""Arrow helpers: one array from chunks, floor division, a column by its dotted name."""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

# So many names show what kind of names they are.
_NAMES_MAX = 10


def contiguous(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return one array. Copies only what comes in several chunks."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    if values.num_chunks == 1:
        return values.chunk(0)
    return values.combine_chunks()


def floor_divide(values: pa.Int64Array, divisor: int) -> pa.Int64Array:
    """Return quotients toward minus infinity, for a positive divisor.

    Arrow's own `divide` truncates, which is wrong before 1970: -1 / 10 is 0 there, and -1 here.
    """
    quotients = pc.divide(values, divisor)
    if (pc.min(values).as_py() or 0) >= 0:
        return quotients
    is_above = pc.greater(pc.multiply(quotients, divisor), values)
    return pc.subtract(quotients, is_above.cast(pa.int64()))


def column(rows: pa.Table, field: str, fits: Callable[[pa.DataType], bool] | None = None) -> pa.Array:
    """Return the column `field`; dots step into structs, and a null struct has null fields.

    `fits`: the types that will do, so that the error proposes no field that is refused for its type; None: any.
    Raises ValueError if the column is absent.
    """
    if field in rows.column_names:
        return contiguous(rows.column(field))
    values = None
    names = rows.column_names
    for name in field.split("."):
        if name not in names:
            fitting = (path for path, kind in fields_of(rows.schema) if fits is None or fits(kind))
            raise ValueError(f"field {field!r} is not in the record; {suggest_name(field, fitting)}")
        values = rows.column(name) if values is None else pc.struct_field(values, name)
        names = values.type.names if pa.types.is_struct(values.type) else []
    return contiguous(values)


def fields_of(members: Iterable[pa.Field], parent: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield the dotted name and the type of each field, also of those inside structs."""
    for member in members:
        path = f"{parent}{member.name}"
        yield path, member.type
        if pa.types.is_struct(member.type):
            yield from fields_of(member.type, f"{path}.")


def has_text(kind: pa.DataType) -> bool:
    """Return whether values of a type have a text that tells them apart for a person: no bytes, lists, structs."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_nested(values) or pa.types.is_binary(values) or pa.types.is_large_binary(values))


def suggest_name(wrong_name: str, names: Iterable[str]) -> str:
    """Return the end of a sentence about a name that does not exist: the nearest one that does, or all names."""
    sorted_names = sorted(names)
    nearest = get_close_matches(wrong_name, sorted_names, n=1)
    if nearest:
        return f"did you mean {nearest[0]!r}?"
    listed = ", ".join(map(repr, sorted_names[:_NAMES_MAX]))
    ellipsis = ", …" if len(sorted_names) > _NAMES_MAX else ""
    return f"there is {listed or 'nothing'}{ellipsis}"
