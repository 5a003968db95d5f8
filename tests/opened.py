"""How a test opens a table of either format."""

from functools import partial

from writer.table.factory import table_at

delta_table, parquet_table = partial(table_at, "delta"), partial(table_at, "parquet")
OPENED = {"delta": delta_table, "parquet": parquet_table}  # table.format → how it is opened
