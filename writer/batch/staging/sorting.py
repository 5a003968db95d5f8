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

from bucketers.arrow import column
from writer.core import fault_points

PLACE = ("_kafka_time", "_topic", "_incarnation", "_partition", "_offset")  # in which records came; no two share one
BUDGET_MIN = 32 * 2**20  # bytes; with less, a merge of many spills finds no room
_BATCH_BYTES = 4 * 2**20
_GROUP_BYTES = 16 * 2**20  # of Arrow data, of a scratch file


@dataclass(frozen=True)
class Dedupe:
    """Of rows with the same values in these columns, one stays. A row with a null among them stays, too."""

    key: tuple[str, ...]
    keep: Literal["first", "last"] = "first"


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
        first, end = start >> 3, (start + count + 7) >> 3
        return np.unpackbits(self._bits[first:end], bitorder="little")[start & 7 :][:count].astype(bool)


def repeated(batches: Iterable[pa.RecordBatch], rows: int, rule: Dedupe, scratch: Path, budget: int) -> RowBits:
    """Mark repeated rows, numbered in order of arrival. `batches` hold the columns of `needed`.

    Which of several stays: the first in the order of PLACE, or the last.
    """
    names, path, at = [f"k{n}" for n in range(len(rule.key))], scratch / "keys.parquet", 0
    writer = None
    for batch in batches:
        keys = [column(batch, name) for name in rule.key]
        numbers = pa.array(np.arange(at, at + batch.num_rows))
        at += batch.num_rows
        wanted = pa.table([*keys, *(batch.column(name) for name in PLACE), numbers], names=[*names, *PLACE, "at"])
        for name in names:
            wanted = wanted.filter(pc.is_valid(wanted.column(name)))
        writer = writer or scratch_file(path, wanted.schema)
        writer.write_table(wanted)
    assert at == rows, f"{rows} rows were to be looked at, {at} came"
    marks = RowBits(rows)
    if writer is None:
        return marks
    writer.close()
    way = "ASC" if rule.keep == "first" else "DESC"
    order = ", ".join(f'"{name}" {way}' for name in (*PLACE, "at"))
    ranked = f"SELECT at, row_number() OVER (PARTITION BY {', '.join(names)} ORDER BY {order}) AS rank FROM rows"  # noqa: S608 - our own names
    with query(path, f"SELECT at FROM ({ranked}) WHERE rank > 1", scratch, budget) as found:  # noqa: S608
        for batch in found:
            marks.set(batch.column("at").to_numpy(zero_copy_only=False))
    path.unlink()
    return marks


def needed(rule: Dedupe) -> list[str]:
    """Return the columns that decide which rows are repeated."""
    return list(dict.fromkeys([*(name.partition(".")[0] for name in rule.key), *PLACE]))


def in_order(
    batches: Iterable[pa.RecordBatch], by: Sequence[str], scratch: Path, budget: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the order of some columns, nulls last; rows alike in them as they came."""
    path, writer = scratch / "rows.parquet", None
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        writer = writer or scratch_file(path, batch.schema)
        waiting.append(batch)
        if sum(one.nbytes for one in waiting) >= _GROUP_BYTES:
            writer.write_table(pa.Table.from_batches(waiting))
            waiting = []
    if writer is None:
        return
    if waiting:
        writer.write_table(pa.Table.from_batches(waiting))
    schema = writer.schema
    writer.close()
    order = ", ".join(f"{_quoted(name)} ASC NULLS LAST" for name in dict.fromkeys([*by, *PLACE]))
    with query(path, f"SELECT * FROM rows ORDER BY {order}", scratch, budget) as found:  # noqa: S608 - quoted
        for batch in found:
            yield batch.cast(schema) if batch.schema != schema else batch
    path.unlink()


def scratch_file(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """Open a file for rows that are read once more."""
    return pq.ParquetWriter(path, schema, compression="lz4", use_dictionary=False, write_statistics=False)


@contextmanager
def query(
    path: Path, question: str, scratch: Path, budget: int, merging: int = 0
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Ask about the rows of a file, and have the answer a batch at a time.

    `merging`: bytes that are set aside for the merge of what was spilled; 0: DataFusion's default.
    """
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext  # late: it imports pandas, half a second

    fault_points.point("in_sort")
    metadata = pq.read_metadata(path)
    held = sum(metadata.row_group(g).total_byte_size for g in range(metadata.num_row_groups))
    batch_rows = int(np.clip(_BATCH_BYTES * metadata.num_rows / max(held, 1), 16, 8192)) if metadata.num_rows else 1
    settings = SessionConfig().with_target_partitions(1).with_batch_size(batch_rows)
    settings = settings.set("datafusion.execution.parquet.schema_force_view_types", "false")
    if merging:
        settings = settings.set("datafusion.execution.sort_spill_reservation_bytes", str(merging))
    runtime = RuntimeEnvBuilder().with_disk_manager_specified(str(scratch))
    context: Any = SessionContext(settings, runtime.with_fair_spill_pool(max(budget, BUDGET_MIN)))
    context.register_parquet("rows", str(path), skip_metadata=False)
    yield (batch.to_pyarrow() for batch in context.sql(question).execute_stream())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
