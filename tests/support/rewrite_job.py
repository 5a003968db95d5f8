"""A job that a rewrite of rows runs in its process."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.maintenance.rewrite import Job, Source

COLUMNS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field("user", pa.struct({"name": pa.string(), "age": pa.int64()})),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("price", pa.decimal128(20, 2)),
        *PROVENANCE,
    ]
)


def job(table: Path, sources: Sequence[Source], **changes: Any) -> Job:
    fields: dict[str, Any] = {
        "table": str(table),
        "bucket": ("x",),
        "bucket_columns": ("hour",),
        "columns": COLUMNS,
        "files": tuple(sources),
        "target_file_size": 2**20,
        "budget": 2**20,
        "times": TimeRule("_kafka_time", "auto", timedelta(days=365), timedelta(days=1)),
        **changes,
    }
    return Job(**fields)
