"""Stages every record of a task as Kafka has it, for the raw table, by the day of its Kafka timestamp."""

from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from headrace import bucketers
from headrace.bucketers.arrow import contiguous
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.batch.staging.spill_buffer import Stage
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.core.files import StagedFile
from headrace.writer.framing.wire_format import HEADERS

RAW_BUCKET = {"type": "event_time", "width": timedelta(days=1), "zone": "UTC"}
RAW_BUCKET_COLUMNS = bucketers.build(RAW_BUCKET).columns
_RECORD = pa.schema(
    [
        # As Kafka numbers them: 0 CreateTime, 1 LogAppendTime.
        pa.field("timestamp_type", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
    ]
)
# Without the columns of buckets.
RAW_COLUMNS = pa.schema([*_RECORD, *PROVENANCE])
_NAMES_IN_RECORDS = {"timestamp_type": "timestampType"}


def raw_columns(records: pa.Table) -> pa.Table:
    """Return the columns of records that the raw table has beside their provenance; null for what is not there."""
    columns = []
    for field in _RECORD:
        name = _NAMES_IN_RECORDS.get(field.name, field.name)
        if name in records.column_names:
            columns.append(records.column(name).cast(field.type))
        else:
            columns.append(pa.nulls(len(records), field.type))
    return pa.table(columns, schema=_RECORD)


class RawRecords:
    """The raw records of one task. `add` them, then `finish` once, or `abandon`."""

    def __init__(
        self,
        destination: Destination,
        window: tuple[datetime, datetime],
        now: datetime,
        *,
        budget: int,
        scratch: str | None = None,
    ) -> None:
        """`window`: first and last timestamp that is believed; of another record the day of `now` is the bucket."""
        self._stage = Stage(destination, budget=budget, scratch=scratch)
        self._bucketer = bucketers.build(RAW_BUCKET)
        self._window = window
        self._now = now

    def add(self, rows: pa.Table) -> None:
        """Take records with the columns RAW_COLUMNS."""
        times = contiguous(rows.column("_kafka_time"))
        first, last, now = (pa.scalar(instant, times.type) for instant in (*self._window, self._now))
        is_believable = pc.fill_null(pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last)), False)
        if not pc.all(is_believable).as_py():
            times = pc.if_else(is_believable, times, now)
        self._stage.add(rows, times, self._bucketer.assign(rows, times))

    def finish(self) -> list[StagedFile]:
        """Complete the files."""
        return self._stage.finish()

    def abandon(self) -> None:
        """Remove what was staged."""
        self._stage.abandon()
