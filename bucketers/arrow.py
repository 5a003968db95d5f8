"""Arrow helpers: one array from chunks, floor division, a column by its dotted name."""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc


def contiguous(values: pa.ChunkedArray | pa.Array) -> pa.Array:
    """One array. Copies only what comes in several chunks."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()


def floor_divide(values: pa.Int64Array, divisor: int) -> pa.Int64Array:
    """Quotients toward minus infinity, for a positive divisor. Arrow's own `divide` truncates, wrong before 1970."""
    quotients = pc.divide(values, divisor)
    if (pc.min(values).as_py() or 0) >= 0:
        return quotients
    above = pc.greater(pc.multiply(quotients, divisor), values)
    return pc.subtract(quotients, above.cast(pa.int64()))


def column(rows: pa.Table, field: str, fits: Callable[[pa.DataType], bool] | None = None) -> pa.Array:
    """The column `field`; dots step into structs, and a null struct has null fields. ValueError if it is absent.

    `fits`: the types that will do, so that the error proposes no field that is refused for its type; None: any.
    """
    if field in rows.column_names:
        return contiguous(rows.column(field))
    values, names = None, rows.column_names
    for name in field.split("."):
        if name not in names:
            fitting = (path for path, kind in fields_of(rows.schema) if fits is None or fits(kind))
            raise ValueError(f"field {field!r} is not in the record; {fix(field, fitting)}")
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
    """Whether values of a type have a text that tells them apart for a person: no bytes, no lists, no structs."""
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return not (pa.types.is_nested(values) or pa.types.is_binary(values) or pa.types.is_large_binary(values))


def fix(wrong: str, right: Iterable[str]) -> str:
    """The end of a sentence about a name that does not exist: the nearest one that does, or those there are."""
    known = sorted(right)
    if near := get_close_matches(wrong, known, n=1):
        return f"did you mean {near[0]!r}?"
    few = 10  # enough to see what kind of names they are
    return f"there is {', '.join(map(repr, known[:few])) or 'nothing'}{', …' if len(known) > few else ''}"
