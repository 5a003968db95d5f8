"""Decoded fields to table columns, by the driver's schema plan. One writer schema in, one table schema out."""

import pyarrow as pa

from writer.rooms.plan import SchemaPlan, WriterSchema


def conform(rows: pa.Table, schema: WriterSchema, plan: SchemaPlan) -> pa.Table:
    """Give the rows exactly the plan's columns, in its order: promoted where wider, null where the writer has none."""
    source = {column: name for name, column in schema.columns.items()}
    columns = []
    for column in plan.columns:
        if column.name not in source:
            columns.append(pa.nulls(rows.num_rows, column.type))
            continue
        values = rows.column(source[column.name])
        # An integer beyond 2^53 loses its last digits as a double: Avro's promotion says so, hence not "safe".
        columns.append(values if values.type == column.type else values.cast(column.type, safe=False))
    return pa.table(columns, schema=plan.columns)
