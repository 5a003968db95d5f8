"""A bucketer that takes its time, so that on few cores more executors carry more: as one that asks a service would."""

import time
from collections.abc import Sequence
from datetime import datetime, timedelta

import pyarrow as pa

from headrace.bucketers import Buckets, EventTime


class SlowBucketer:
    """Days of event time, at so many records a second in each slot."""

    def __init__(self, records_per_second: float) -> None:
        self._days = EventTime(timedelta(days=1))
        self._per_s = records_per_second
        self.columns = self._days.columns

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:
        time.sleep(rows.num_rows / self._per_s)
        return self._days.assign(rows, event_time)

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        return self._days.interval(values)
