"""Checks of `validate` on engines: which columns of the table they cannot read correctly.

Each line was found by asking the real engines: docs/ENGINES.md, tests/engines.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.table import Reader
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import join_first
from headrace.writer.engines.types import of_records
from headrace.writer.preflight.checks.finding import Finding, doubtful, good

# A sentence names at most as many columns.
_NAMED_MAX = 3


@dataclass(frozen=True)
class _Trap:
    """A kind of column, and what some readers cannot do with it."""

    # The formats of a table that each reader cannot read.
    formats: dict[Reader, tuple[str, ...]]
    columns: Callable[[pa.DataType], bool]
    # Only a column that was widened is affected; `schemas.widen: reject` avoids it.
    widened: bool
    message: str


_TRAPS = (
    _Trap(
        {"trino": ("delta", "parquet"), "presto": ("delta", "parquet")},
        pa.types.is_float32,
        widened=True,
        message="a predicate fails over older files once a float column is double",
    ),
    _Trap(
        {"spark": ("delta", "parquet")},
        pa.types.is_decimal,
        widened=True,
        message="a predicate fails over older files once a decimal has more digits",
    ),
    _Trap(
        {"druid": ("delta",)},
        pa.types.is_decimal,
        widened=True,
        message="its Delta input source fails once a decimal has more digits",
    ),
    _Trap(
        {"druid": ("delta",)},
        of_records,
        widened=False,
        message="its Delta input source fails over a list of records",
    ),
    _Trap(
        {"presto": ("delta",)},
        pa.types.is_struct,
        widened=False,
        message="a query of a field fails where its struct is null in some rows",
    ),
)


def readers(pipeline: Pipeline, columns: pa.Schema) -> Finding:
    """Return which of the table's readers will trip over which columns."""
    traps = list(_traps(pipeline, columns))
    if not traps:
        return good("readers", f"{', '.join(pipeline.table.readers) or 'none'}: they can read every column")
    fix = f"Set table.readers to the engines that will read it; {page_address('docs/ENGINES.md')} says what each can."
    if any(trap.widened for trap, _ in traps):
        fix = "Set schemas.widen to reject, or " + fix[0].lower() + fix[1:]
    return doubtful("readers", "; ".join(text for _, text in traps), fix)


def _traps(pipeline: Pipeline, columns: pa.Schema) -> Iterator[tuple[_Trap, str]]:
    table = pipeline.table
    widens = pipeline.schemas.widen == "in_place"
    for trap in _TRAPS:
        names = [field.name for field in columns if trap.columns(field.type)]
        readers = [reader for reader in table.readers if table.format in trap.formats.get(reader, ())]
        if names and readers and (widens or not trap.widened):
            yield trap, f"{', '.join(readers)}: {trap.message} ({join_first(names, _NAMED_MAX)})"
