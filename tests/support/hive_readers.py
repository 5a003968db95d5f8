"""What readers of Hive's folders see, each with its own eyes: DuckDB and Arrow, told nothing but where to look."""

import duckdb
import pyarrow as pa
from pyarrow import dataset

from headrace.writer.storage.locations import in_bucket, store_at

BUCKETS = pa.schema([("hour", pa.string())])


def read_rows(location: str, columns: pa.Schema = BUCKETS) -> pa.Table:
    """Rows of all files that Arrow finds, with their buckets; every one of them is read to its end."""
    filesystem, root = store_at(location).files()
    files = dataset.dataset(
        root, filesystem=filesystem, format="parquet", partitioning=dataset.partitioning(columns, flavor="hive")
    )
    rows = files.to_table()
    if not in_bucket(location):
        assert query(location, "count(*)") == [(rows.num_rows,)]
    return rows


def query(location: str, columns: str, tail: str = "") -> list[tuple[object, ...]]:
    """Ask DuckDB over every *.parquet at any depth, as careless as can be: `SELECT what FROM files tail`."""
    glob = f"{location}/**/*.parquet"
    if not duckdb.execute("SELECT count(*) FROM glob($1)", [glob]).fetchone() > (0,):
        return [(0,)] if columns == "count(*)" else []
    options = "union_by_name = true, hive_partitioning = true, hive_types_autocast = false"
    return duckdb.execute(f"SELECT {columns} FROM read_parquet($1, {options}) {tail}", [glob]).fetchall()
