"""Commits as the writer makes them, for tests of those who read the table's log."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pyarrow as pa

from headrace.writer.core.files import StagedFile, staged_name
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.operations.rows import Batch
from tests.support.table_formats import OPENED

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PARTS = [TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 1)]
ABSENT = object()  # a fact that this commit does not carry
LIMITS = {
    "offsets_min": 100,
    "offsets_min_from": "commit.min_offsets",
    "offsets_max": 5_000,
    "delay_max_seconds": 600.0,
}


def account(start: int, end: int, partition: int = 0, **outcomes: int) -> dict[str, Any]:
    return {
        "topic": "clicks",
        "incarnation": 1,
        "partition": partition,
        "start": start,
        "end": end,
        "read": end - start,
        "rows": end - start,
        "dead_letters": 0,
        "quarantined": 0,
        "tombstones": 0,
        **outcomes,
    }


def facts(start: int, end: int, **changes):
    return {
        "run": 1,
        "batch": 0,
        "started": "2026-11-20T11:59:00+00:00",
        "reason": "size",
        "offsets": end - start,
        "waiting": end - start,
        "limits": LIMITS,
        "ranges": [account(start, end)],
        "rows": end - start,
        "files": 1,
        "buckets": 1,
        "bytes": 50 * (end - start),
        "event_time_min": None,
        "event_time_max": "2026-11-20T11:00:00+00:00",
        "seconds": {"decode": 0.5},
        "spilled_bytes": 0,
        "time_unit": "ms",
        "tasks": 1,
        "phases": {},
        "assembled": "2026-11-20T11:59:30+00:00",
        "value_bytes": 0,
        "dead_letter_files": 0,
        "dead_letter_bytes": 0,
        "work": None,
        **changes,
    }


class Lake:
    """A table, written as the writer does."""

    def __init__(self, location: str, form: str = "delta") -> None:
        self.table = OPENED[form](location, "clicks")
        self.table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
        self.epoch = 0

    def begin(self) -> None:
        self.epoch = self.table.begin(dict.fromkeys(PARTS, 0), {"clicks": ["uuid-1"]})

    def commit(self, start: int, end: int, hour: str = "x", **changes: Any) -> int:
        file = StagedFile(
            f"hour={hour}/{uuid4().hex}.parquet", (hour,), end - start, 50, "{}", NOON, NOON, {("clicks", 0): 1}
        )
        store_at(self.table.location).put(staged_name(file.path), b"")
        about = {name: value for name, value in facts(start, end, **changes).items() if value is not ABSENT}
        planned = Batch(uuid4().hex, self.epoch, [OffsetRange(PARTS[0], start, end)], [file], facts=about)
        return self.table.append(planned, self.table.snapshot())
