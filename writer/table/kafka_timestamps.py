"""Reads the broker's timestamps of a table's rows, by their offsets."""

from contextlib import suppress
from datetime import datetime

import pyarrow.compute as pc

from headrace.writer.batch.staging import table_file
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.table.log.foreign_writes import reading
from headrace.writer.table.table import PipelineTable

_BATCH_ROWS = 2**16


def read_kafka_timestamps(table: PipelineTable, part: TopicPartition, start: int, end: int) -> dict[int, datetime]:
    """Read offsets [start, end) of a part and their timestamps from the files that may hold them.

    Files of any writer count, whatever the log says of them. For a few rows a command: each becomes Python objects.
    """
    column = pc.field
    of_part = (
        (column("_topic") == part.topic)
        & (column("_incarnation") == part.incarnation)
        & (column("_partition") == part.partition)
    )
    is_wanted = of_part & (column("_offset") >= start) & (column("_offset") < end)
    timestamps: dict[int, datetime] = {}
    with reading(table.location):
        for file in table.bucket_files(table.snapshot()):
            if not file.reaches(start, end):
                continue
            # A file that another process removed meanwhile leaves less to compare.
            with suppress(FileNotFoundError), table_file.open_parquet(table.store, file.path) as source:
                for batch in source.iter_batches(_BATCH_ROWS, PROVENANCE.names):
                    rows = batch.filter(is_wanted)
                    offsets = rows["_offset"].to_pylist()
                    timestamps |= zip(offsets, rows["_kafka_time"].to_pylist(), strict=True)
    return timestamps
