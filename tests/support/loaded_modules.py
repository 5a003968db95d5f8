"""A bucketer that writes down which modules the process of its task has imported."""

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa

from headrace.bucketers import Buckets, EventTime


class LoadedModules:
    """Days of event time. `file`: gets the names of modules, one a line."""

    def __init__(self, file: str) -> None:
        self._days = EventTime(timedelta(days=1))
        self._file = Path(file)
        self.columns = self._days.columns

    def assign(self, rows: pa.Table, event_time: pa.ChunkedArray | pa.Array) -> Buckets:
        self._file.write_text("\n".join(sorted(sys.modules)))
        return self._days.assign(rows, event_time)

    def interval(self, values: Sequence[str | None]) -> tuple[datetime, datetime] | None:
        return self._days.interval(values)
