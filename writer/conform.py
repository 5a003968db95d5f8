"""Decoded fields to table columns, by the driver's schema plan. One writer schema in, one table schema out."""

from dataclasses import dataclass

import pyarrow as pa

from writer.plan import SchemaPlan, WriterSchema


@dataclass(frozen=True)
class Conformed:
    """Rows with the table's columns, which rows they were, and why the other ones cannot fill their columns."""

    rows: pa.Table
    kept: pa.BooleanArray | None  # None: every row
    failures: dict[int, str]


def conform(rows: pa.Table, schema: WriterSchema, plan: SchemaPlan) -> Conformed:
    """Give the rows exactly the plan's columns, in its order: promoted where wider, null where the writer has none.

    A row whose bytes are no text, where the column is, fails alone: many readers refuse a file that holds such a value.
    """
    source = {column: name for name, column in schema.columns.items()}
    failures: dict[int, str] = {}
    for column in plan.columns:
        if column.name in source and column.type == pa.string():
            failures |= _no_text(rows.column(source[column.name]), source[column.name])
    if not failures:
        return Conformed(_promoted(rows, source, plan), None, {})
    kept = pa.array([i not in failures for i in range(rows.num_rows)])  # cold: there is a bad one
    return Conformed(_promoted(rows.filter(kept), source, plan), kept, dict(sorted(failures.items())))


def _no_text(values: pa.ChunkedArray, field: str) -> dict[int, str]:
    if values.type != pa.binary():
        return {}
    try:
        values.cast(pa.string())
    except pa.ArrowInvalid:
        return {i: f"field {field!r} holds bytes that are not UTF-8" for i, v in enumerate(values) if not _is_text(v)}
    return {}


def _is_text(value: pa.BinaryScalar) -> bool:
    try:
        (value.as_py() or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _promoted(rows: pa.Table, source: dict[str, str], plan: SchemaPlan) -> pa.Table:
    columns = []
    for column in plan.columns:
        if column.name not in source:
            columns.append(pa.nulls(rows.num_rows, column.type))
            continue
        values = rows.column(source[column.name])
        # An integer beyond 2^53 loses its last digits as a double: Avro's promotion says so, hence not "safe".
        columns.append(values if values.type == column.type else values.cast(column.type, safe=False))
    return pa.table(columns, schema=plan.columns)
