"""Decoded fields to table columns, by the driver's schema plan. One writer schema in, one table schema out."""

import pyarrow as pa

from bucketers.arrays import contiguous
from writer.rooms.fit import absent, fitted
from writer.rooms.plan import SchemaPlan, WriterSchema


def conform(rows: pa.Table, schema: WriterSchema, plan: SchemaPlan) -> pa.Table:
    """Give the rows exactly the plan's columns, in its order; where the writer lacks one, its default or null."""
    source = {column: name for name, column in schema.columns.items()}
    seams, defaults = schema.seams, plan.reader.defaults
    columns = []
    for column in plan.columns:
        place = (column.name,)
        if column.name not in source:
            columns.append(absent(rows.num_rows, column.type, place, defaults))
            continue
        values = rows.column(source[column.name])
        same = values.type == column.type and not seams.beside(place)
        columns.append(values if same else fitted(contiguous(values), column.type, place, seams, defaults))
    return pa.table(columns, schema=plan.columns)
