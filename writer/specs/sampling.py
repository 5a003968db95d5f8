"""Samples records by SHA-256 of one column's text: the same records wherever and whenever it is asked.

A record stays where the digest, read as a number of 256 bits, is below the share of 2^256. So a smaller share keeps a
part of what a larger one keeps, and any engine with SHA-256 can tell which (docs/SPECS.md has test vectors).
"""

from fractions import Fraction
from math import ceil

import pyarrow as pa

from bucketers.arrow import fields_of, suggest_name
from writer.specs.expressions import quote_path
from writer.specs.projection import member_names
from writer.specs.spec import SpecError

_BITS = 256


def threshold(share: Fraction) -> str:
    """Return the least digest that does not stay, as 64 hexadecimal digits."""
    return f"{min(ceil(share * 2**_BITS), 2**_BITS - 1):064x}"


def digest_sql(by: str, columns: pa.Schema) -> str:
    """Return SQL for the digest of a column: of bytes as they are, of anything else as text; null is the empty text.

    Raises SpecError where there is no such column, or its text is not the same everywhere.
    """
    kind = pa.struct(list(columns))
    for step in by.split("."):
        if step not in member_names(kind):
            fitting = (path for path, kind in fields_of(columns) if _has_digest(kind))
            raise SpecError(f"sample.by: no schema of its records has {by!r}; {suggest_name(by, fitting)}")
        kind = kind.field(step).type
    column = quote_path(by)
    if pa.types.is_binary(kind):
        return f"sha256(coalesce({column}, X''))"
    if not _has_digest(kind):
        raise SpecError(f"sample.by: {by!r} is {kind}; name a column that is a text, bytes, an integer or a boolean")
    return f"sha256(coalesce(CAST({column} AS VARCHAR), ''))"


def _has_digest(kind: pa.DataType) -> bool:
    """Return whether values of a type have the same bytes everywhere."""
    is_of = (pa.types.is_binary, pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)
    return any(matches(kind) for matches in is_of)
