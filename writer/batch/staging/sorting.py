"""Sorts rows and finds repeated ones in bounded memory; the rest spills to local disk.

DataFusion sorts, merges and spills. It is told what it may hold; beside that it takes a row group of what it reads and
of what it merges.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.bucketers.arrow import column
from headrace.writer.core import fault_points

# The columns in whose order records came; no two share one place.
PLACE = ("_kafka_time", "_topic", "_incarnation", "_partition", "_offset")
# In bytes; with less, a merge of many spills finds no room.
BUDGET_MIN = 32 * 2**20
_BATCH_BYTES = 4 * 2**20
# Of Arrow data, in a scratch file.
_GROUP_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Dedupe:
    """Of rows with the same values in these columns, one stays. A row with a null among them stays, too."""

    key: tuple[str, ...]
    keep: Literal["first", "last"] = "first"


@dataclass(frozen=True)
class TakenLimit:
    """How many rows dedupe takes of a bucket without a person."""

    max_ratio: float
    # Fewer are taken, whatever their share.
    min_rows: int

    def is_exceeded(self, taken: int, rows: int) -> bool:
        """Return whether a person is to be asked before so many of a bucket's rows go."""
        return taken >= self.min_rows and taken > self.max_ratio * rows


class RowBits:
    """A bit for each row, by its number."""

    def __init__(self, rows: int) -> None:
        self._bits = np.zeros(rows // 8 + 1, np.uint8)

    def set(self, numbers: np.ndarray) -> None:
        """Mark rows."""
        np.bitwise_or.at(self._bits, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))

    def has(self, numbers: np.ndarray) -> np.ndarray:
        """Return for each of these numbers whether it is marked."""
        return np.asarray(self._bits[numbers >> 3] >> (numbers & 7).astype(np.uint8) & 1, bool)

    def of(self, start: int, count: int) -> np.ndarray:
        """Return for each row from a number on whether it is marked."""
        first_byte = start >> 3
        last_byte = (start + count - 1) >> 3
        bits = np.unpackbits(self._bits[first_byte : last_byte + 1], bitorder="little")
        return bits[start & 7 :][:count].astype(bool)


def mark_repeats(batches: Iterable[pa.RecordBatch], rows: int, rule: Dedupe, scratch: Path, budget: int) -> RowBits:
    """Mark repeated rows, numbered in order of arrival. `batches` hold the columns of `dedupe_columns`.

    Which of several stays: the first in the order of PLACE, or the last.
    """
    names = [f"k{n}" for n in range(len(rule.key))]
    path = scratch / "keys.parquet"
    row_count = 0
    writer: pq.ParquetWriter | None = None
    for batch in batches:
        keys = [column(batch, name) for name in rule.key]
        numbers = pa.array(np.arange(row_count, row_count + batch.num_rows))
        row_count += batch.num_rows
        numbered = pa.table([*keys, *(batch.column(name) for name in PLACE), numbers], names=[*names, *PLACE, "at"])
        for name in names:
            numbered = numbered.filter(pc.is_valid(numbered.column(name)))
        writer = writer or scratch_file(path, numbered.schema)
        writer.write_table(numbered)
    assert row_count == rows, f"{rows} rows were to be looked at, {row_count} came"
    marks = RowBits(rows)
    if writer is None:
        return marks
    writer.close()
    direction = "ASC" if rule.keep == "first" else "DESC"
    order = ", ".join(f'"{name}" {direction}' for name in (*PLACE, "at"))
    ranks = f"row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY {order})"
    statement = f"SELECT at FROM (SELECT at, {ranks} AS rank FROM rows) WHERE rank > 1"  # noqa: S608 - our own names
    with query_rows(path, statement, scratch, budget) as repeats:
        for batch in repeats:
            marks.set(batch.column("at").to_numpy(zero_copy_only=False))
    path.unlink()
    return marks


def dedupe_columns(rule: Dedupe) -> list[str]:
    """Return the columns that decide which rows are repeated."""
    return list(dict.fromkeys([*(name.partition(".")[0] for name in rule.key), *PLACE]))


def sort_rows(
    batches: Iterable[pa.RecordBatch], sort_by: Sequence[str], scratch: Path, budget: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the order of some columns, nulls last; rows alike in them as they came."""
    path = scratch / "rows.parquet"
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        writer = writer or scratch_file(path, batch.schema)
        waiting.append(batch)
        if sum(each.nbytes for each in waiting) >= _GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting = []
    if writer is None:
        return
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    schema = writer.schema
    writer.close()
    order = ", ".join(f"{_quote_name(name)} ASC NULLS LAST" for name in dict.fromkeys([*sort_by, *PLACE]))
    statement = f"SELECT * FROM rows ORDER BY {order}"  # noqa: S608 - quoted
    with query_rows(path, statement, scratch, budget) as sorted_batches:
        for batch in sorted_batches:
            yield batch.cast(schema) if batch.schema != schema else batch
    path.unlink()


def scratch_file(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a file for rows that are read once more."""
    return pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=False, write_statistics=False)


@contextmanager
def query_rows(
    path: Path, statement: str, scratch: Path, budget: int, *, merge_bytes: int = 0
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Run SQL on the table `rows`, which a file holds, and yield the result's batches.

    `merge_bytes`: set aside for the merge of what was spilled; 0: DataFusion's default.
    """
    # Imported late: it imports pandas, half a second.
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

    fault_points.point("in_sort")
    metadata = pq.read_metadata(path)
    total_bytes = sum(metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups))
    batch_rows = 1
    if metadata.num_rows:
        batch_rows = int(np.clip(_BATCH_BYTES * metadata.num_rows / max(total_bytes, 1), 16, 8192))
    settings = SessionConfig().with_target_partitions(1).with_batch_size(batch_rows)
    settings = settings.set("datafusion.execution.parquet.schema_force_view_types", "false")
    if merge_bytes:
        settings = settings.set("datafusion.execution.sort_spill_reservation_bytes", str(merge_bytes))
    runtime = RuntimeEnvBuilder().with_disk_manager_specified(str(scratch))
    context: Any = SessionContext(settings, runtime.with_fair_spill_pool(max(budget, BUDGET_MIN)))
    context.register_parquet("rows", str(path), skip_metadata=False)
    yield (batch.to_pyarrow() for batch in context.sql(statement).execute_stream())


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
