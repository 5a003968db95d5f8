"""Offsets that Kafka no longer has."""

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable


def forget(location: Path) -> None:
    """Write a checkpoint of the table's log without how far the pipeline was, as a client that let that expire does."""
    table = DeltaTable(location)
    table.create_checkpoint()
    checkpoint = location / "_delta_log" / f"{table.version():020d}.checkpoint.parquet"
    actions = pq.read_table(checkpoint)
    pq.write_table(actions.filter(pc.is_null(actions.column("txn"))), checkpoint)
